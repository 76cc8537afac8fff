# SPDX-License-Identifier: Apache-2.0
"""The shipped checkpoint against transformers: same logits, readable text. CPU only.

Both sides run in float32 on the dequantised weights, so only summation order differs: for logits of size ~10 and
sums of ~500 terms the difference stays under 2e-3.
"""
import argparse, json, os
import torch
from . import model as M
from .export import load_exported
from .generate import rounded


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
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    net, draft = load_exported(folder, os.path.join(a.models, "sapling-eagle3"))
    M.ATTENTION["backend"], M.COMPUTE["dtype"] = "plain", torch.float32
    text = a.prompt + '\n    """Sort a list."""\n    if len(items) <= 1:\n        return items\n'
    ids = tok(text, return_tensors="pt").input_ids
    assert ids[0, 0].item() == tok.bos_token_id, "the tokenizer must add BOS"
    assert tok.decode(ids[0], skip_special_tokens=True) == text, "text does not round-trip"
    theirs = hf(ids).logits
    with rounded():
        n, taps, _, _, _ = net.hidden(ids, net.s.taps)
        ours = M.linear(n, net.embed)
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
