# SPDX-License-Identifier: Apache-2.0
"""The shipped checkpoint against transformers: same logits, readable text; and its heads' chains, as they are trained and
judged, against the published definition, node by node. CPU only.

Both sides run in float32 on the dequantised weights, so only summation order differs: for logits of size ~10 and
sums of ~500 terms the difference stays under 2e-3.
"""
import argparse, json, os
import torch
from . import model as M
from .export import load_exported
from .generate import rounded


def published(draft, emb, first, root, depth):
    """Normed output [B, d] at the end of the chain of `depth` drafts behind slot `root`: causal passes over slots 1…root+k,
    slot q of token q and of the state of position q-1, which is the draft's own behind the root."""
    states = first[:, :root]
    for _ in range(depth + 1):
        end = states.shape[1] + 1
        tables = M.rope_tables(draft.s, torch.arange(1, end))
        n, state, _ = draft.step(emb[:, 1:end], states, *tables, [], [])
        states = torch.cat([states, state[:, -1:]], 1)
    return n[:, -1]


def check_chains(draft, emb, first, cos, sin, depth):
    """Largest difference over all roots and depths, relative to the largest value."""
    worst, length = 0.0, emb.shape[1]
    for k, n in enumerate(M.unroll(draft, emb, first, cos, sin, depth)):
        for root in range(1, length - k):
            want = published(draft, emb, first, root, k)
            worst = max(worst, ((n[:, root + k - 1] - want).abs().max() / want.abs().max()).item())
    return worst


@torch.no_grad()
def main(argv):
    p = argparse.ArgumentParser(prog="check", description=__doc__)
    p.add_argument("--models", default="models")
    p.add_argument("--prompt", default="def quicksort(items):")
    p.add_argument("--count", type=int, default=120)
    a = p.parse_args(argv)
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    folder = os.path.join(a.models, "sapling")
    tok = AutoTokenizer.from_pretrained(folder)
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).float().eval()
    net, draft = load_exported(folder, os.path.join(a.models, "sapling-eagle3"))
    M.ATTENTION["backend"], M.COMPUTE["dtype"] = "plain", torch.float32
    text = a.prompt + '\n    """Sort a list."""\n    if len(items) <= 1:\n        return items\n'
    ids = tok(text, return_tensors="pt").input_ids
    assert ids[0, 0].item() == tok.bos_token_id, "the tokenizer must add BOS"
    assert tok.decode(ids[0], skip_special_tokens=True) == text, "text does not round-trip"
    theirs = hf(ids).logits
    with rounded():
        n, taps, _, (cos, sin), emb = net.hidden(ids, net.s.taps)
        ours = M.linear(n, net.embed)
        for name, head, first in (("mtp", net.mtp, n), ("eagle3", draft, draft.first(taps))):
            worst = check_chains(head, emb, first, cos, sin, 4)
            print(f"{name}: chains behind all {ids.shape[1] - 1} roots against the published definition, relative difference {worst:.2e}")
            assert worst < 1e-4, "a head is not drafted from slot 1 on as published"
    diff = (theirs - ours).abs().max().item()
    print(f"logits: max |difference| {diff:.2e} over {tuple(ours.shape)}, largest logit {ours.abs().max():.1f}, "
          f"same argmax {(theirs.argmax(-1) == ours.argmax(-1)).float().mean():.4f}")
    assert diff < 2e-3, "transformers and the trainer disagree"
    chat = tok.apply_chat_template([{"role": "user", "content": "What does `sorted` do?"}], tokenize=False, add_generation_prompt=True)
    print("chat template:", chat)
    for kwargs in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_p": 1.0, "top_k": 0}):
        set_seed(1)
        out = hf.generate(tok(a.prompt, return_tensors="pt").input_ids, max_new_tokens=a.count, **kwargs)
        print("----", kwargs)
        print(tok.decode(out[0], skip_special_tokens=True))
    out = hf.generate(tok(chat, return_tensors="pt", add_special_tokens=False).input_ids, max_new_tokens=60, do_sample=False)
    print("---- chat")
    print(tok.decode(out[0]))
