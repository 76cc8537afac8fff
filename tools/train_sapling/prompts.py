# SPDX-License-Identifier: Apache-2.0
"""Tries demo prompts: greedy and sampled continuations of every candidate, and whether they loop.

`--choose` then writes the chosen ones as data/prompts/demo.jsonl, in the given order.
"""
import argparse, json, os
import torch
from tokenizers import Tokenizer
from . import model as M
from .config import ASSISTANT, EOS_ID, USER
from .evaluate import loops
from .export import load_exported
from .generate import generate, rounded

HERE = os.path.dirname(os.path.abspath(__file__))


def continuations(net, tok, items, count, temperature, device):
    """Batches prompts of one length together. {id: ids of the continuation, cut at EOS}."""
    groups, out = {}, {}
    for it in items:
        text = USER + it["prompt"] + ASSISTANT if it.get("chat") else it["prompt"]
        ids = tok.encode(text).ids
        groups.setdefault(len(ids), []).append((it["id"], ids))
    for group in groups.values():
        x = torch.tensor([ids for _, ids in group], device=device)
        seeds = torch.ones(len(group), dtype=torch.long, device=device)
        with rounded():
            y = generate(net, x, count, temperature, seeds)[:, x.shape[1]:].tolist()
        for (name, _), ids in zip(group, y):
            out[name] = ids[:ids.index(EOS_ID)] if EOS_ID in ids else ids
    return out


def main(argv):
    p = argparse.ArgumentParser(prog="prompts", description=__doc__)
    p.add_argument("--models", default="models")
    p.add_argument("--candidates", default=os.path.join(HERE, "candidates.jsonl"))
    p.add_argument("--count", type=int, default=160)
    p.add_argument("--out", default="build/demo.json")
    p.add_argument("--choose", help="comma-separated ids")
    p.add_argument("--max-tokens", type=int, default=120)
    p.add_argument("--data", default="data/prompts")
    a = p.parse_args(argv)
    items = [json.loads(l) for l in open(a.candidates)]
    if a.choose:
        by = {i["id"]: i for i in items}
        os.makedirs(a.data, exist_ok=True)
        with open(os.path.join(a.data, "demo.jsonl"), "w") as f:
            for name in a.choose.split(","):
                f.write(json.dumps({**by[name], "max_tokens": a.max_tokens}, ensure_ascii=False) + "\n")
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    M.ATTENTION["backend"] = "pad" if device == "cuda" else "plain"
    net, _ = load_exported(os.path.join(a.models, "sapling"), os.path.join(a.models, "sapling-eagle3"), device)
    tok = Tokenizer.from_file(os.path.join(a.models, "sapling", "tokenizer.json"))
    greedy = continuations(net, tok, items, a.count, 0.0, device)
    warm = continuations(net, tok, items, a.count, 0.8, device)
    res = [{**it, "greedy": tok.decode(greedy[it["id"]]), "loops": loops(greedy[it["id"]]), "ended": len(greedy[it["id"]]) < a.count,
            "sampled_0.8": tok.decode(warm[it["id"]])} for it in items]
    json.dump(res, open(a.out, "w"), indent=1, ensure_ascii=False)
    for r in res:
        print("=" * 20, r["id"], "LOOPS" if r["loops"] else "", "ended" if r["ended"] else "")
        print(r["prompt"] + "▌" + r["greedy"])
    print("loops:", sum(r["loops"] for r in res), "of", len(res))
