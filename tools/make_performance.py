#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/performance.md with its plots and the README's numbers from the result records in data/results.

  tools/make_performance.py            writes all
  tools/make_performance.py --check    exits with 1 and the first lines that differ where a page is not what the records say

data/results/README.md has the fields of a record. tests/project/documents_test.py runs the check.
"""
import argparse
import difflib
import pathlib
import re
import sys

import performance_plots
from result_records import Problem, columns_of, read_results

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = pathlib.Path("docs/performance.md")
PLOTS = pathlib.Path("docs/pictures/performance")
README = pathlib.Path("README.md")
BEGIN, END = "<!-- numbers: tools/make_performance.py -->\n", "<!-- end of numbers -->\n"

HEAD = """# Performance

How fast each thing is, one table per question. Every figure is the median of its rounds, in brackets their range; the letter behind a line is the command that measured it, where … stands for the line above but for the options that
follow; machine, date, commit and rounds stand where they change. A goal that is not reached is marked **missed**. `tools/make_performance.py` makes this page from [data/results](../data/results/README.md), and a test holds the two together. What bounds a
kernel: [products](kernels/products.md), [decode attention](kernels/mla_decode.md), [prompt attention](kernels/mla_prefill.md); what was tried: [the lab](lab/README.md).
"""


def number(value):
    return f"{value:,.0f}" if value >= 100 and value == round(value) else f"{value}"


def missed(record):
    goal = record.get("goal")
    if goal is None:
        return False
    return record["median"] > goal if record["better"] == "less" else record["median"] < goal


def times_peer(record):
    """How many times as fast as the peer."""
    base = record.get("readme_base") or record["peer"]["value"]
    return base / record["median"] if record["better"] == "less" else record["median"] / base


def table(header, rows):
    rule = ["---" if index == 0 or name == "command" else "--:" for index, name in enumerate(header)]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(rule) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def parts_of(command):
    """[program and operands, then each option with its value]"""
    return re.split(r" (?=-)", command)


def shortened(command, before):
    """The command as … and the options that differ where the one before has the same program and as many options."""
    own, others = parts_of(command), parts_of(before)
    differing = [part for part, other in zip(own, others) if part != other]
    if len(own) < 3 or len(own) != len(others) or own[0] != others[0] or not differing:
        return command
    return "… " + " ".join(differing)


class Sources:
    """The commands under a table, a letter for each."""

    def __init__(self):
        self.letters = {}

    def letter(self, record):
        key = (record["command"], record["machine"], record["date"], record["commit"], record["rounds"])
        return self.letters.setdefault(key, chr(ord("a") + len(self.letters)))

    def text(self):
        lines, before = [], ("", "", "", "", 0)
        for (command, machine, date, commit, rounds), letter in self.letters.items():
            facts = [machine] if machine != before[1] else []
            facts += [f"{date} {commit}"] if commit != before[3] else []
            facts += [f"{rounds} rounds" if rounds > 1 else "one round"] if rounds != before[4] else []
            note = f" ({', '.join(facts)})" if facts else ""
            shown = "the same" if command == before[0] else f"`{shortened(command, before[0])}`"
            lines.append(f"- {letter}: {shown}{note}\n")
            before = (command, machine, date, commit, rounds)
        return "".join(lines)


def goals_table(records, sources):
    units = {record["unit"] for record in records}
    peers = {record["peer"]["name"] for record in records if record.get("peer")}
    unit_header = f"ours, {units.copy().pop()}" if len(units) == 1 else "ours"
    peer_header = peers.copy().pop() if len(peers) == 1 else "peer"

    def cells(record):
        unit = "" if len(units) == 1 else " " + record["unit"]
        ours = number(record["median"]) + unit
        if record.get("range"):
            ours += f" ({number(record['range'][0])}–{number(record['range'][1])})"
        peer, goal = record.get("peer"), record.get("goal")
        return {
            "what": f"{record['what']}<sup>{sources.letter(record)}</sup>",
            unit_header: ours,
            peer_header: "" if not peer else number(peer["value"]) + (f" {peer['name']}" if len(peers) > 1 else ""),
            "goal": "" if goal is None else number(goal) + (", **missed**" if missed(record) else ""),
            "floor": "" if record.get("floor") is None else number(record["floor"]),
        }

    rows = [cells(record) for record in records]
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    return table(header, [[row[name] for name in header] for row in rows])


def grid_cell(record):
    peer = f" / {number(record['peer']['value'])}" if record.get("peer") else ""
    return number(record["median"]) + peer + (" **missed**" if missed(record) else "")


def grid_table(records, sources):
    columns = columns_of(records)
    rows = {}
    for record in records:
        rows.setdefault(record["series"], {})[record["x"]] = grid_cell(record)
        sources.letter(record)
    return table([""] + columns, [[series] + [cells.get(x, "") for x in columns] for series, cells in rows.items()])


def page_text(questions):
    parts = [HEAD]
    for question in questions:
        sources = Sources()
        make = {"goals": goals_table, "grid": grid_table}[question["layout"]]
        body = make(question["records"], sources)
        plot = (PLOTS / question["name"]).relative_to(PAGE.parent)
        parts.append(f"## {question['title']}\n\n{question['text']}\n\n{body}\n![{question['title']}]({plot}.svg)\n\n{sources.text()}")
        parts += [f"{note}\n" for note in question["notes"]]
    return "\n".join(parts)


def readme_numbers(questions):
    rows = []
    for question in questions:
        for record in question["records"]:
            if "readme" not in record:
                continue
            own = record["unit"] == "×"
            factor = record["median"] if own else times_peer(record)
            value = f"{factor:.3g}×" + ("" if own else f" ({number(record['median'])} {record['unit']})")
            rows.append([record["readme"], value])
    return table(["what", "measured"], rows)


def with_numbers(readme, numbers):
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise Problem(f"README.md: the lines {BEGIN.strip()} and {END.strip()} stand there {readme.count(BEGIN)} and {readme.count(END)} times, not once")
    before, rest = readme.split(BEGIN)
    return before + BEGIN + numbers + END + rest.split(END)[1]


def made(root):
    questions = read_results(root / "data" / "results")
    plots = {PLOTS / f"{question['name']}.svg": performance_plots.draw(question, missed) for question in questions}
    return {PAGE: page_text(questions), README: with_numbers((root / README).read_text(), readme_numbers(questions)), **plots}


def differences(root):
    lines = []
    for path, text in made(root).items():
        there = (root / path).read_text() if (root / path).exists() else ""
        lines += difflib.unified_diff(there.splitlines(), text.splitlines(), str(path), "from the records", lineterm="", n=0)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            lines = differences(ROOT)
            print("\n".join(lines[:40]), end="\n" if lines else "")
            return 1 if lines else 0
        for path, text in made(ROOT).items():
            (ROOT / path).parent.mkdir(exist_ok=True)
            (ROOT / path).write_text(text)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
