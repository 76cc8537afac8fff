# SPDX-License-Identifier: Apache-2.0
"""The yardsticks for bits per byte: xz, and an interpolated 5-gram model over the same tokens."""
import lzma, math
import torch

def xz_bits_per_byte(texts):
    raw = "".join(texts).encode()
    return 8 * len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)) / len(raw)


def ngram_bits(train, held, vocab, nbytes, order=5, discount=0.8):
    """Absolute discounting, interpolated down to uniform. train, held: 1-D long tensors. Bits per byte of `held`."""
    bits = math.ceil(math.log2(vocab))
    assert bits * order <= 62, "n-gram keys must fit in 62 bits"
    prob = torch.full((len(held),), 1.0 / vocab, dtype=torch.double, device=held.device)
    for n in range(1, order + 1):
        def keys(x):
            k = torch.zeros(len(x) - n + 1, dtype=torch.long, device=x.device)
            for i in range(n):
                k = (k << bits) | x[i:len(x) - n + 1 + i]
            return k
        grams, count = keys(train).unique(return_counts=True)
        ctx, kinds = (grams >> bits).unique_consecutive(return_counts=True)
        ends = kinds.cumsum(0)
        total = count.cumsum(0)[ends - 1]
        total = torch.diff(total, prepend=total.new_zeros(1))
        q = keys(held)
        at = torch.searchsorted(grams, q).clamp_max(len(grams) - 1)
        c = torch.where(grams[at] == q, count[at], 0).double()
        cat = torch.searchsorted(ctx, q >> bits).clamp_max(len(ctx) - 1)
        known = ctx[cat] == (q >> bits)
        tot, kin = total[cat].double(), kinds[cat].double()
        lower = prob[n - 1:]
        prob[n - 1:] = torch.where(known, ((c - discount).clamp_min(0) + discount * kin * lower) / tot, lower)
    return -prob.log2().sum().item() / nbytes
