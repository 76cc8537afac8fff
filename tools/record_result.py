#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a bench and keeps what it says as a record of data/results.

  tools/record_result.py QUESTION --what TEXT --line tokens=1 --field ms --machine TEXT [--rounds 5] -- espalier bench … -o json

The bench runs once a round, in a process of its own, and prints JSON: a list of lines. --line picks the one line whose fields
have these values, --field the number in it. The record has the median and range over the rounds, the commit that is checked out,
its date, and the command. A record of the same --what is replaced; its peer, goal, floor and place in tables stay.
Then run tools/make_performance.py.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

from result_records import Problem, check_record, question_text, read_question

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEASURED = ("unit", "better", "median", "range", "rounds", "command", "machine", "date", "commit")


def picked(output, conditions, field):
    """The number `field` of the one line of a bench's JSON that has these values."""
    begin = output.find("[")
    try:
        lines = json.loads(output[begin:]) if begin >= 0 else None
    except json.JSONDecodeError as error:
        raise Problem(f"the bench's JSON: {error}") from error
    if not isinstance(lines, list):
        raise Problem("the bench printed no list in JSON; does the command end in -o json?")
    found = [line for line in lines if all(str(line.get(name)) == value for name, value in conditions.items())]
    if len(found) != 1:
        raise Problem(f"{len(found)} of {len(lines)} lines have {conditions}, wanted is one")
    value = found[0].get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Problem(f"{field} of that line is {value!r}; its fields are {', '.join(found[0])}")
    return value


def run_rounds(command, rounds, conditions, field):
    values = []
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Problem(f"the bench ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        values.append(picked(done.stdout, conditions, field))
    return values


def checked_out():
    """(commit, its date); refused where sources differ from it, because then it is not what was measured."""
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "include", "cmake", "CMakeLists.txt")
    if changed:
        raise Problem("sources differ from the commit that is checked out:\n" + changed)
    return git("rev-parse", "--short", "HEAD"), git("log", "-1", "--format=%cs")


def new_record(arguments, values, commit, date):
    command = [pathlib.Path(arguments.command[0]).name, *arguments.command[1:]]
    record = {"what": arguments.what, "unit": arguments.unit or arguments.field, "better": arguments.better,
              "median": statistics.median(values), "range": [min(values), max(values)] if len(values) > 1 else None,
              "rounds": len(values), "peer": None, "goal": None, "floor": None, "command": " ".join(command),
              "machine": arguments.machine, "date": date, "commit": commit}
    check_record(record)
    return record


def put(question, record):
    """The question with this record in the place of the one of the same `what`, or at the end."""
    records = list(question["records"])
    for index, old in enumerate(records):
        if old["what"] == record["what"]:
            if old["unit"] != record["unit"] or old["better"] != record["better"]:
                raise Problem(f"{old['what']}: is in {old['unit']} ({old['better']} is better), the new one in {record['unit']} ({record['better']})")
            records[index] = {**old, **{field: record[field] for field in MEASURED}}
            return {**question, "records": records}
    return {**question, "records": [*records, record]}


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", help="name of a file in data/results, without .json")
    parser.add_argument("--what", required=True, help="the thing measured")
    parser.add_argument("--line", required=True, help="fields and values of the bench's line: tokens=1,sequences=8")
    parser.add_argument("--field", required=True, help="the number in that line")
    parser.add_argument("--unit", help="unit of the number; --field if not given")
    parser.add_argument("--better", choices=("less", "more"), default="less")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--machine", required=True, help="as other records name it: 'one H200, CUDA 13.0'")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "data" / "results")
    parser.add_argument("command", nargs="+", help="the bench, behind --")
    arguments = parser.parse_args(words)
    try:
        if arguments.rounds < 1:
            raise Problem(f"--rounds is {arguments.rounds}, at least 1 is needed")
        path = arguments.results / f"{arguments.question}.json"
        if not path.exists():
            raise Problem(f"{path} does not exist; there are {', '.join(sorted(file.stem for file in arguments.results.glob('*.json')))}")
        conditions = dict(part.split("=", 1) for part in arguments.line.split(",") if "=" in part)
        commit, date = checked_out()
        begin = time.monotonic()
        values = run_rounds(arguments.command, arguments.rounds, conditions, arguments.field)
        record = new_record(arguments, values, commit, date)
        path.write_text(question_text(put(read_question(path), record)))
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{record['what']}: {record['median']} {record['unit']}, rounds {values}, {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
