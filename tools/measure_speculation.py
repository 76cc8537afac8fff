#!/usr/bin/env python3
"""Measures speculation on a model: the tables of docs/lab/speculation.md.

    tools/measure_speculation.py build/cpu/espalier models/sapling --draft models/sapling-eagle3
    tools/measure_speculation.py build/cuda/espalier models/sapling --draft models/sapling-eagle3 --device cuda

Every row is measured by `espalier bench engine`, which runs all ways of drafting in turn, round by round, and
reports medians. Three kinds of text: held-out prompts that the model continues without falling into a loop (at
temperature 0, 0.5 and 1.0), and held-out text that is replayed whatever the model would have written.

a: accepted drafts per step and request. v: a step without its drafting over a plain step. c: one level of drafts over a
plain step, all overhead counted (merging, planning, the KV of committed tokens). d: levels per step.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHAIN, TREE = "6", "4x4/6"  # six drafts are verified either way
DRAFTERS = [
    ("n-gram", "ngram"),
    ("MTP chain", f"mtp:{CHAIN}"),
    ("MTP tree", f"mtp:{TREE}"),
    ("EAGLE3 chain", f"eagle3:{CHAIN}"),
    ("EAGLE3 tree", f"eagle3:{TREE}"),
    ("merged tree", f"ngram+mtp+eagle3:{TREE}"),
    ("what pays", "ngram+mtp+eagle3"),
]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def loops(tokens):
    """A passage of 4 to 32 tokens three times in a row."""
    for length in range(4, 33):
        for start in range(len(tokens) - 3 * length + 1):
            passage = tokens[start:start + length]
            if tokens[start + length:start + 2 * length] == passage == tokens[start + 2 * length:start + 3 * length]:
                return True
    return False


def prompts_without_loops(options):
    found = []
    for one in lines_of(ROOT / "data/prompts/benchmark.jsonl")[::7]:
        if len(found) == options.requests:
            break
        out = run([options.espalier, "generate", options.model, "-p", one["prompt"], "-n", str(options.tokens),
                   "--temperature", "0", "--speculate", "off", "--json", "--device", options.device])
        if not loops(json.loads(out)["tokens"]):
            found.append({"prompt": one["prompt"]})
    return found


def real_text(options):
    """Held-out openings: the first third is the prompt, the rest is replayed."""
    texts = [one["prompt"] for one in lines_of(ROOT / "data/prompts/benchmark.jsonl")[3::7]]
    return [{"prompt": text[:len(text) // 3], "completion": text[len(text) // 3:]} for text in texts[:options.requests]]


def bench(options, file, flag, temperature, clients, ways):
    command = [options.espalier, "bench", "engine", options.model, "--draft", options.draft, flag, str(file),
               "--requests", str(options.requests), "--temperature", str(temperature), "--concurrency", str(clients),
               "--speculate", ",".join(["off"] + ways), "-r", str(options.rounds), "-o", "json",
               "--device", options.device]
    if flag == "--prompts":
        command += ["--output", str(options.tokens)]
    return json.loads(run(command))


def rows_of(results, names, clients):
    plain = results[0]
    step = plain["decode: ms per step"]
    for name, one in zip(names, results[1:]):
        accepted = one["decode: tokens per step and request"] - 1
        drafting = one["decode: of this drafting"]
        levels = one["decode: draft levels per step"]
        v = (one["decode: ms per step"] - drafting) / step
        d_c = drafting / step
        c = drafting / levels / step if levels > 0 else float("nan")
        formula = (1 + accepted) / (v + d_c)
        measured = one["decode: tokens/s"] / plain["decode: tokens/s"]
        cells = [name, str(clients), f"{accepted:.2f}", f"{one['decode: drafts per step and request']:.1f}",
                 f"{levels:.1f}", f"{v:.2f}", "–" if levels == 0 else f"{c:.2f}", f"{formula:.2f}", f"{measured:.2f}",
                 f"{one['output tokens/s against off']:.2f}"]
        yield "| " + " | ".join(cells) + " |"


def measure(options, title, file, flag, temperature, coupling):
    print(f"\n**{title}**\n")
    print("| drafts | batch | a | drafts per step | d | v | c | (1 + a)/(v + d·c) | decode speed-up | end to end |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ways = [way + (f"@{coupling}" if coupling and way != "ngram" else "") for _, way in DRAFTERS]
    for clients in options.batch:
        results = bench(options, file, flag, temperature, clients, ways)
        for row in rows_of(results, [name for name, _ in DRAFTERS], clients):
            print(row, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("espalier")
    parser.add_argument("model")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        free, real = pathlib.Path(directory, "free.jsonl"), pathlib.Path(directory, "real.jsonl")
        free.write_text("".join(json.dumps(one) + "\n" for one in prompts_without_loops(options)))
        real.write_text("".join(json.dumps(one) + "\n" for one in real_text(options)))
        measure(options, "Held-out prompts, temperature 0", free, "--prompts", 0, "")
        for temperature in (0.5, 1.0):
            for coupling in ("plain", "coupled"):
                measure(options, f"Held-out prompts, temperature {temperature}, {coupling}", free, "--prompts",
                        temperature, coupling)
        measure(options, "Replayed held-out text", real, "--completions", 0, "")


if __name__ == "__main__":
    main()
