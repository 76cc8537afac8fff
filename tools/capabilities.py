#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes together: data/capabilities.csv names capabilities, data/capability_pairs.csv answers for every pair of them.

capabilities.py page                               writes docs/capabilities.md
capabilities.py page --check                       says whether it is what it would write
capabilities.py test BINARY MAKE_GGUF [--device cuda]  holds every pair with that device (all others: on the CPU) to its answer:
                                                   `yes` by one lossless workload on a tiny model, a refusal by its sentence
"""
import argparse
import concurrent.futures
import csv
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/capabilities.md"
YES = "yes"


def rows(name):
    with open(ROOT / "data" / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def capabilities():
    return {row["name"]: row for row in rows("capabilities.csv")}


def goes_in_pairs(a, b):
    """Alternatives exclude each other: those of one kind, but not drafters; a GGUF file and formats of safetensors."""
    if {a["kind"], b["kind"]} == {"weights", "gguf"}:
        return False
    return a["kind"] != b["kind"] or a["kind"] == "drafts"


def answers(named):
    """{(a, b): answer} in the order of capabilities; exits if a pair has none, or two."""
    order = list(named)
    found, faults = {}, []
    for row in rows("capability_pairs.csv"):
        pair = row["a"], row["b"]
        if pair in found or not set(pair) <= set(order) or order.index(pair[0]) > order.index(pair[1]):
            faults.append(f"{pair[0]}, {pair[1]}: twice, unknown, or not in the order of capabilities.csv")
        if not row["answer"]:
            faults.append(f"{pair[0]}, {pair[1]}: no answer")
        found[pair] = row["answer"]
    wanted = {(a, b) for a, b in itertools.combinations(order, 2) if goes_in_pairs(named[a], named[b])}
    faults += [f"{a}, {b}: no answer" for a, b in sorted(wanted - set(found))]
    faults += [f"{a}, {b}: alternatives of one kind" for a, b in sorted(set(found) - wanted)]
    if faults:
        sys.exit("data/capability_pairs.csv:\n" + "\n".join(faults))
    return found


# The page.


def joined(sentences):
    """One line for sentences that begin and end with the same words, … for what differs; None: they have too little in common."""
    split = [sentence.split() for sentence in sentences]
    least = min(map(len, split))

    def common(words):
        same = 0
        while same < least and len({line[same] for line in words}) == 1:
            same += 1
        return same

    begin, end = common(split), common([line[::-1] for line in split])
    if begin == least == max(map(len, split)):
        return sentences[0]
    end = min(end, least - begin)
    return " ".join([*split[0][:begin], "…", *split[0][len(split[0]) - end :]]) if begin + end > least * 2 / 3 else None


def refusals(named, found):
    """([capability], those that it does not go with, the sentence): each pair once, at the capability that has most."""
    left = {pair: answer for pair, answer in found.items() if answer != YES}
    lines = []
    while left:
        owner = max(named, key=lambda name: sum(name in pair for pair in left))
        groups = []
        for pair in [pair for pair in left if owner in pair]:
            answer, other = left.pop(pair), pair[owner == pair[0]]
            for group in groups:
                if joined([*group[1], answer]):
                    group[0].append(other)
                    group[1].append(answer)
                    break
            else:
                groups.append(([other], [answer]))
        lines += [([owner], others, joined(sentences)) for others, sentences in groups]
    return lines


def merged(named, lines):
    """Capabilities of one kind with the same others and like sentences share a line."""
    together = []
    for owners, others, sentence in lines:
        for line in together:
            like = named[line[0][0]]["kind"] == named[owners[0]]["kind"] and line[1] == others and joined([line[2], sentence])
            if like:
                line[0].extend(owners)
                line[2] = like
                break
        else:
            together.append([list(owners), others, sentence])
    return together


def write_page(named, found):
    kinds = {}
    for row in named.values():
        kinds.setdefault(row["kind"], []).append(row["words"])
    lines = [
        "# What goes together",
        "",
        *(f"- {kind}: {', '.join(words)}" for kind, words in kinds.items()),
        "",
        "Each of these goes with all others but its alternatives and the pairs of the table, which are refused by the sentence beside them",
        "(… stands for a value). A test holds each pair: random requests on a tiny model whose every text has the bits of the same request run",
        "alone, or the refusal. Pairs with a GPU are among `make gpu-test`. `tools/capabilities.py page` makes this page from",
        "`data/capability_pairs.csv`.",
        "",
        "| | not with | refused as |",
        "|---|---|---|",
    ]
    before = None
    for owners, others, sentence in merged(named, refusals(named, found)):
        words = ", ".join(named[owner]["words"] for owner in owners)
        lines.append(f"| {'' if words == before else words} | {', '.join(named[other]['words'] for other in others)} | {sentence} |")
        before = words
    return "\n".join(lines) + "\n"


# The test.


def made_otherwise(row, pair):
    """A mode of activations brings coded weights of its own, where the other capability brings none."""
    return row["kind"] == "activations" and any(other["kind"] in ("weights", "gguf", "rounding") for other in pair)


class Models:
    """Tiny models by how they are made, each made once."""

    def __init__(self, binary, make_gguf, folder):
        self.binary, self.make_gguf, self.folder, self.made = binary, make_gguf, folder, {}

    def path(self, pair):
        making = [row["model"] for row in pair if not made_otherwise(row, pair)]
        packed = "pack" in making
        flags = [word for row in making if row.startswith("--") for word in row.split()]
        block = next((row.split()[1] for row in making if row.startswith("gguf ")), None)
        key = tuple(flags) + (packed, block)
        if key not in self.made:
            path = os.path.join(self.folder, str(len(self.made)))
            preset = [] if "--preset" in flags else ["--preset", "tiny-v3"]
            if block:
                preset += ["--dtype", "bf16"]
            run([self.binary, "make-model", *preset, *flags, "--out", path, "--eagle3", path + "-draft"], check=True)
            if block:
                run([self.make_gguf, path, path + ".gguf", block], check=True)
                os.rename(path + "-draft", path + ".gguf-draft")
                path += ".gguf"
            if packed:
                run([self.binary, "pack", path], check=True)
            self.made[key] = path
        return self.made[key]


def run(command, check=False):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=check, timeout=600)


def lossless_command(binary, model, pair):
    on_gpu = any(row["name"] == "cuda" for row in pair)
    flags, drafters = [] if on_gpu else ["--threads", "1"], []
    for row in pair:
        words = row["flags"].split()
        if words[:1] == ["--speculate"]:
            drafters.append(words[1])
        else:
            flags += words
        if row["model"] == "draft":
            flags += ["--draft", model + "-draft"]
    if drafters:
        flags += ["--speculate", ",".join(drafters)]
    return [binary, "selftest", "lossless", model, "--seconds", "0", *flags]


def fault(binary, model, pair, answer):
    """What differs from the answer; None: nothing."""
    result = run(lossless_command(binary, model, pair))
    if answer == YES:
        return None if result.returncode == 0 else result.stdout
    refused = result.returncode != 0 and answer in result.stdout
    return None if refused else f"status {result.returncode}, expected: {answer}\n{result.stdout}"


def test(binary, make_gguf, device, named, found):
    pairs = [(pair, answer) for pair, answer in found.items() if ("cuda" in pair) == (device == "cuda")]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        models = Models(binary, make_gguf, folder)
        jobs = []
        for (a, b), answer in pairs:
            rows_of_pair = named[a], named[b]
            jobs.append((a, b, pool.submit(fault, binary, models.path(rows_of_pair), rows_of_pair, answer)))
        faults = [(a, b, job.result()) for a, b, job in jobs]
    failed = [(a, b, text) for a, b, text in faults if text is not None]
    for a, b, text in failed:
        print(f"{a} with {b}: {text}")
    print(f"{len(faults) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page")
    page.add_argument("--check", action="store_true")
    pairs = commands.add_parser("test")
    pairs.add_argument("binary")
    pairs.add_argument("make_gguf")
    pairs.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    named = capabilities()
    found = answers(named)
    if options.command == "test":
        return test(options.binary, options.make_gguf, options.device, named, found)
    text = write_page(named, found)
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/capabilities.md is not what data/capability_pairs.csv says: tools/capabilities.py page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
