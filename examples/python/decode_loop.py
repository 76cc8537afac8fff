# SPDX-License-Identifier: Apache-2.0
"""A decode loop of an MLA model's attention, ten lines long, written for FlashMLA: one import swaps Espalier in, and a step
with a draft tree follows that FlashMLA cannot take. Runs on a Hopper GPU where torch finds one, else on the CPU."""

import torch

# from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from espalier import flash_mla_with_kvcache, get_mla_metadata

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
batch, heads, layers, page, pages = 3, 16, 4, 64, 8
k_cache = torch.randn(layers, batch * pages, page, 1, 576).bfloat16().to(device)
block_table = torch.randperm(batch * pages).int().view(batch, pages).to(device)
lengths = torch.tensor([100, 7, 300], dtype=torch.int32, device=device)

# The loop: one token per sequence and step.
for step in range(8):
    lengths += 1
    metadata, num_splits = get_mla_metadata(lengths, heads, 1)
    hidden = torch.randn(batch, 1, heads, 576).bfloat16().to(device)
    for layer in range(layers):
        out, lse = flash_mla_with_kvcache(
            hidden, k_cache[layer], block_table, lengths, 512, metadata, num_splits, causal=True
        )
        hidden = torch.cat([out, hidden[..., 512:]], dim=-1)
print(f"8 steps on {device}: out {tuple(out.shape)}, lse {tuple(lse.shape)}")

# A step that verifies a draft tree: a root, two children, and a child of the second. Bit j of a token's word: it sees slot j.
words = torch.tensor([[0b0001, 0b0011, 0b0101, 0b1101]] * batch, device=device)
q = torch.randn(batch, 4, heads, 576).bfloat16().to(device)
lengths += 4
out, _ = flash_mla_with_kvcache(q, k_cache[0], block_table, lengths, 512, get_mla_metadata()[0], tree_words=words, invariant=True)

# The last token has three ancestors-or-self: decoded plainly after them, in slots of their own, it gets the same bits.
path = torch.tensor([0, 2, 3], device=device)
first = lengths.long() - 4
flat = k_cache[0].view(-1, 576)
place = lambda slot: block_table.long().gather(1, slot // page) * page + slot % page  # noqa: E731
flat[place(first[:, None] + torch.arange(3, device=device))] = flat[place(first[:, None] + path)]
alone, _ = flash_mla_with_kvcache(
    q[:, 3:].contiguous(), k_cache[0], block_table, lengths - 1, 512, get_mla_metadata()[0], causal=True, invariant=True
)
assert torch.equal(out[:, 3:], alone), "a tree token has the bits of plain decoding"
print("a tree of 4 tokens: the deepest has the bits of plain decoding")
