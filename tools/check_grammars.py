#!/usr/bin/env python3
"""Asks jsonschema and Python's re about what a random model wrote under our grammars: check_grammars.py --tool grammar_walks.

Every finished text must be valid under the schema as it was given (objects that name properties and say nothing of others
have no others, as `strict` has it), or match the expression in full. Formats are compared with the shapes of the RFCs only
where jsonschema brings a checker of its own.
"""

import argparse
import json
import re
import subprocess
import sys

import jsonschema


def strict(schema):
    """The schema as Specification::strict reads it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key in ("enum", "const"):
            made[key] = value
        elif key in ("properties", "$defs"):
            made[key] = {name: strict(one) for name, one in value.items()}
        else:
            made[key] = strict(value)
    if schema.get("properties") and isinstance(schema["properties"], dict):
        made.setdefault("additionalProperties", False)
    if "prefixItems" in schema:
        made.setdefault("items", False)
    return made


def check_line(line):
    """(texts that were checked, whether it was refused)"""
    entry = json.loads(line)
    if "refused" in entry:
        return 0, True
    if entry["kind"] == "regex":
        pattern = re.compile(entry["text"], re.ASCII)
        for text in entry["outputs"]:
            assert pattern.fullmatch(text), f"{entry['text']!r} does not match {text!r}"
    else:
        schema = strict(json.loads(entry["text"]))
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date", "ipv4", "ipv6", "email"]))
        for text in entry["outputs"]:
            validator.validate(json.loads(text))
    return len(entry["outputs"]), False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    options = parser.parse_args()
    # Python cuts off integers of more than 4,300 digits, and unbounded integers may be longer.
    sys.set_int_max_str_digits(0)
    walks = subprocess.Popen([options.tool, str(options.count), str(options.seed)], stdout=subprocess.PIPE, text=True)
    checked = refused = 0
    for line in walks.stdout:
        texts, was_refused = check_line(line)
        checked += texts
        refused += was_refused
    assert walks.wait() == 0, "the tool failed"
    print(f"{options.count} specifications, {refused} refused, {checked} texts valid")
    assert checked > 2 * (options.count - refused) * 0.8, "too few texts were finished"


if __name__ == "__main__":
    main()
