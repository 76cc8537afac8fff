#!/usr/bin/env python3
"""Checks texts that grammars held with programs that know nothing of Espalier: JSON Schema's validator and Python's re.

    check_held_texts.py --least 2000 TEST [ARGUMENT ...]

Runs TEST (test_engine_long) with ESPALIER_HELD_TEXTS naming a file, which it fills with lines of JSON
(src/lossless/grammars.hpp), then judges each of them. Needs the package jsonschema.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

import jsonschema


def balanced(text):
    """The one grammar of the workloads that is no regular language: root ::= "(" root ")" | "[" root "]" | "x"."""
    while len(text) > 1 and text[0] + text[-1] in ("()", "[]"):
        text = text[1:-1]
    return text == "x"


def is_held(held):
    output = held["output"]
    if held["kind"] == "json_schema":
        jsonschema.Draft202012Validator(json.loads(held["text"])).validate(json.loads(output))
        return True
    if held["kind"] == "regex":
        return re.fullmatch(held["text"], output) is not None
    if held["kind"] == "choice":
        return output in held["choices"]
    return held["kind"] == "ebnf" and balanced(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least", type=int, required=True, help="texts that there must be")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    seen = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "held.jsonl")
        subprocess.run(arguments.command, check=True, env=dict(os.environ, ESPALIER_HELD_TEXTS=path))
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                held = json.loads(line)
                try:
                    fine = is_held(held)
                except (jsonschema.ValidationError, json.JSONDecodeError) as error:
                    sys.exit(f"{line}{error}")
                if not fine:
                    sys.exit(f"{line}is not a text of its grammar")
                seen[held["kind"]] += 1
    print(", ".join(f"{count} of {kind}" for kind, count in sorted(seen.items())))
    if sum(seen.values()) < arguments.least:
        sys.exit(f"{sum(seen.values())} texts, at least {arguments.least} are needed")


if __name__ == "__main__":
    main()
