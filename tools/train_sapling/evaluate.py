# SPDX-License-Identifier: Apache-2.0
"""Stage 6: everything the model card claims, from the shipped files. Writes evaluation.json.

Draft figures: prompts are held-out; the target continues them with the engine's noise. Because a chain is only
followed while it is right, every root of a finished text can be judged in one teacher-forced pass: step k
at slot p sees what a chain drafted from root p-k would see.
"""
import argparse, json, os, time
import numpy as np
import torch
from tokenizers import Tokenizer
from . import model as M
from .config import costs
from .data import held_windows
from .export import load_exported
from .generate import generate, gumbel, rounded
from .ngram import ngram_bits, xz_bits_per_byte
from .train import evaluate as held_loss

TOPS = (1, 2, 4, 8)


def held_prompts(path, tokenizer, length, counts):
    """Token prompts [n, length] from document starts of the held-out split; text and tokens round-trip."""
    z = np.load(path)
    starts, ends = z["starts"], np.append(z["starts"][1:], len(z["tokens"]))
    order = np.random.default_rng(7).permutation(len(starts))
    rows, texts, kinds = [], [], []
    for kind, want in counts.items():      # the last kind fills up to the total
        got = 0
        if kind == list(counts)[-1]:
            want = sum(counts.values()) - len(rows)
        for i in order:
            if got == want:
                break
            if z["kinds"][i] != kind or ends[i] - starts[i] < length + 64:
                continue
            ids = z["tokens"][starts[i]:starts[i] + length].astype(np.int64).tolist()
            text = tokenizer.decode(ids[1:], skip_special_tokens=False)
            if tokenizer.encode(text).ids != ids:
                continue
            rows.append(ids)
            texts.append(text)
            kinds.append(kind)
            got += 1
    return torch.tensor(rows), texts, kinds


@torch.no_grad()
def judge(draft, logits_of, ids, first, emb, cos, sin, tokens, prompt, depth, temperature, noise):
    """Ranks of the target's tokens among a draft's choices, per depth. Returns {plain, coupled}: [depth, B, roots] int."""
    B, S = tokens.shape
    roots = S - prompt - depth + 1          # roots at slots prompt-1 .. prompt-1+roots-1
    inverse = torch.full((draft.s.vocab,), -1, device=tokens.device)
    inverse[ids] = torch.arange(len(ids), device=tokens.device)
    ranks = {"plain": [], "coupled": []}
    for k, n in enumerate(M.unroll(draft, emb, first, cos, sin, depth)):
        lo = prompt - 1 + k                 # slot lo is index lo-1
        z = logits_of(n[:, lo - 1:lo - 1 + roots]).double()
        want = tokens[:, lo + 1:lo + 1 + roots]
        w = inverse[want]
        for name in ranks:
            x = z
            if name == "coupled" and temperature > 0:
                x = z / temperature + noise[:, lo + 1 - prompt:lo + 1 - prompt + roots][..., ids]
            own = x.gather(-1, w.clamp_min(0)[..., None])
            r = (x > own).sum(-1)
            ranks[name].append(torch.where(w >= 0, r, 10 ** 6))
    return {k: torch.stack(v) for k, v in ranks.items()}


def summary(ranks, chain):
    """ranks: [depth, B, roots]. First-draft hit, chain right per depth, accepted per step, top-k per depth."""
    hit = ranks == 0
    right = hit.long().cumprod(0).bool()
    accepted = right[:chain].sum(0)
    steps = total = 0
    for row in accepted.tolist():           # walk: a step commits the accepted drafts and one token more
        r = 0
        while r < len(row):
            steps, total, r = steps + 1, total + row[r], r + row[r] + 1
    given = torch.cat([torch.ones_like(right[:1]), right[:-1]])
    return {"first_hit": hit[0].float().mean().item(),
            "chain_right": [x.float().mean().item() for x in right],
            f"accepted_per_step_depth_{chain}": total / steps,
            "top_given_chain": [[(ranks[d] < t)[given[d]].float().mean().item() for t in TOPS] for d in range(len(ranks))],
            "top_on_path": [[(ranks[d] < t).float().mean().item() for t in TOPS] for d in range(len(ranks))]}


@torch.no_grad()
def draft_figures(net, draft, prompts, count, depth, chain, temperatures=(0.0, 0.5, 1.0), own_text=None):
    """own_text replaces generation by given continuations (real text)."""
    out, B, P = {}, *prompts.shape
    seeds = torch.arange(B, device=prompts.device)
    full = torch.arange(net.s.vocab, device=prompts.device)
    for temp in temperatures:
        with rounded():
            tokens = generate(net, prompts, count, temp, seeds) if own_text is None else own_text
            res = {"mtp": {"plain": [], "coupled": []}, "eagle3": {"plain": [], "coupled": []}}
            for a in range(0, B, 25):
                part = tokens[a:a + 25]
                b, S = part.shape
                pos = torch.arange(P, S + 1, device=part.device)
                noise = None
                if temp > 0:
                    noise = gumbel(seeds[a:a + b].repeat_interleave(len(pos)), pos.repeat(b), net.s.vocab).view(b, len(pos), -1)
                n, taps, _, (cos, sin), emb = net.hidden(part, net.s.taps)
                for name, d, logits, ids, first in (("mtp", net.mtp, net.head, full, n),
                                                    ("eagle3", draft, draft.logits, draft.draft_ids(), draft.first(taps))):
                    r = judge(d, logits, ids, first, emb, cos, sin, part, P, depth, temp, noise)
                    for k in r:
                        res[name][k].append(r[k])
            out[str(temp)] = {n: {k: summary(torch.cat(v, 1), chain) for k, v in r.items()} for n, r in res.items()}
    return out


def loops(ids):
    """True when the text ends in, or holds, three repeats of one period of at most 40 tokens (12 tokens or more)."""
    n = len(ids)
    for period in range(1, 41):
        need = max(3 * period, 12)
        run = 0
        for i in range(period, n):
            run = run + 1 if ids[i] == ids[i - period] else 0
            if run >= need - period:
                return True
    return False


def main(argv):
    p = argparse.ArgumentParser(prog="evaluate", description=__doc__)
    p.add_argument("--models", default="models")
    p.add_argument("--tokens", default="build/tokens")
    p.add_argument("--corpus", default="build/corpus")
    p.add_argument("--out", default="build/evaluation.json")
    p.add_argument("--prompt", type=int, default=96)
    p.add_argument("--count", type=int, default=192)
    p.add_argument("--prompts", type=int, default=200)
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--chain", type=int, default=4)
    p.add_argument("--skip-ngram", action="store_true")
    a = p.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    M.ATTENTION["backend"] = "pad" if device == "cuda" else "plain"
    t0 = time.time()
    target_dir, draft_dir = os.path.join(a.models, "sapling"), os.path.join(a.models, "sapling-eagle3")
    net, draft = load_exported(target_dir, draft_dir, device)
    tok = Tokenizer.from_file(os.path.join(target_dir, "tokenizer.json"))
    held = os.path.join(a.tokens, "held.npz")
    out = {"costs": costs(net.s)}
    with rounded():
        out["held_out"] = held_loss(net, held, length=min(2048, net.s.max_positions), limit=400_000)
    print(json.dumps(out["held_out"]), f"{time.time() - t0:.0f}s", flush=True)
    if not a.skip_ngram:
        train = torch.from_numpy(np.load(os.path.join(a.tokens, "train.npz"))["tokens"].astype(np.int64)).to(device)
        z = np.load(held)
        for kind, name in enumerate(("python", "prose")):
            rows, nbytes = held_windows(held, kind, 1 << 20, 400_000, "cpu")
            flat = torch.cat([r[r >= 0] for r in rows]).to(device)
            out["held_out"][name]["five_gram_bits_per_byte"] = ngram_bits(train, flat, net.s.vocab, nbytes)
            texts, size = [], 0
            for line in open(os.path.join(a.corpus, "held.jsonl")):
                d = json.loads(line)
                if d["kind"] == name and size < nbytes:
                    texts.append(d["text"])
                    size += len(d["text"].encode())
            out["held_out"][name]["xz_bits_per_byte"] = xz_bits_per_byte(texts)
        print(json.dumps(out["held_out"]), f"{time.time() - t0:.0f}s", flush=True)
    prompts, texts, kinds = held_prompts(held, tok, a.prompt, {1: a.prompts // 4, 0: a.prompts - a.prompts // 4})
    prompts = prompts.to(device)
    out["prompts"] = {"count": len(texts), "tokens": a.prompt, "generated": a.count}
    out["generated"] = draft_figures(net, draft, prompts, a.count, a.depth, a.chain)
    print("drafts on generated text", f"{time.time() - t0:.0f}s", flush=True)
    z = np.load(held)                        # the same figures on real held-out text, where the model is less sure
    length = min(512, net.s.max_positions)
    long = [s for s, e in zip(z["starts"], np.append(z["starts"][1:], len(z["tokens"]))) if e - s > length][:a.prompts]
    real = torch.from_numpy(np.stack([z["tokens"][s:s + length].astype(np.int64) for s in long])).to(device)
    out["real_text"] = draft_figures(net, draft, real[:, :a.prompt], 0, a.depth, a.chain, (0.0,), real)
    g = out["generated"]
    for t in g:
        for d in g[t]:
            for k in g[t][d]:
                x = g[t][d][k]
                print(f"T {t} {d:7s}{k:8s} first {x['first_hit']:.3f} accepted {x[f'accepted_per_step_depth_{a.chain}']:.2f} chain "
                      + " ".join(f"{v:.3f}" for v in x["chain_right"]) + " top d1 " + " ".join(f"{v:.3f}" for v in x["top_on_path"][0])
                      + " d2 " + " ".join(f"{v:.3f}" for v in x["top_on_path"][1]))
    for d, v in out["real_text"]["0.0"].items():
        print("real text", d, v["plain"]["chain_right"], v["plain"]["top_on_path"][0])
    with rounded():
        greedy = generate(net, prompts, a.count, 0.0)
    looped = [loops(r) for r in greedy[:, a.prompt:].tolist()]
    out["benchmark_loops"] = sum(looped)
    print("looping greedy continuations:", sum(looped), "of", len(looped))
    json.dump(out, open(a.out, "w"), indent=1)
    with open(os.path.splitext(a.out)[0] + "_prompts.jsonl", "w") as f:
        for i, (t, k) in enumerate(zip(texts, kinds)):
            f.write(json.dumps({"id": f"held-{i:03d}", "kind": ("python", "prose")[k], "prompt": t}, ensure_ascii=False) + "\n")
    print(f"{time.time() - t0:.0f}s")
