# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of the model card from evaluation.json, so that no figure is typed by hand."""
import argparse, json


def pct(x):
    return f"{100 * x:.1f}"


def main(argv):
    p = argparse.ArgumentParser(prog="card", description=__doc__)
    p.add_argument("evaluation")
    e = json.load(open(p.parse_args(argv).evaluation))
    print("| held-out text | Sapling, bits per byte | 5-gram on the same tokens | xz -9e | loss, nats per token | MTP loss |\n|---|---|---|---|---|---|")
    for k, v in e["held_out"].items():
        f = lambda n: f"{v[n]:.3f}" if n in v else "–"
        print(f"| {k} | {f('bits_per_byte')} | {f('five_gram_bits_per_byte')} | {f('xz_bits_per_byte')} | {f('loss')} | {f('mtp_loss')} |")
    print("\n| temperature | head | draft | first draft right, % | chain right at depth 1…6, % | accepted per step (chain of 4) |\n|---|---|---|---|---|---|")
    rows = [(t, h, k, v) for t, g in e["generated"].items() for h, r in g.items() for k, v in r.items() if float(t) > 0 or k == "plain"]
    rows += [("real text", h, "plain", r["plain"]) for h, r in e["real_text"]["0.0"].items()]
    for t, h, k, v in rows:
        acc = next(x for n, x in v.items() if n.startswith("accepted"))
        print(f"| {t} | {h} | {k} | {pct(v['first_hit'])} | {' '.join(pct(x) for x in v['chain_right'])} | {acc:.2f} |")
    print("\n| temperature | head | draft | depth 1: top 2/4/8 | depth 2 | depth 3 | depth 4 | depth 5 | depth 6 |\n|---|---|---|---|---|---|---|---|---|")
    for t, h, k, v in rows:
        print(f"| {t} | {h} | {k} | " + " | ".join(" ".join(pct(x) for x in d[1:]) for d in v["top_on_path"]) + " |")
    print("\ncosts:", {k: round(v, 4) for k, v in e["costs"].items()}, "loops among benchmark prompts:", e["benchmark_loops"])
