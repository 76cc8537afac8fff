#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists comments that begin without their subject ("Of the cache", "How many rows", "What is drawn"): a comment begins with the noun
that the code has (CONTRIBUTING.md). With --most N it fails if there are more than N.

  tools/comment_subjects.py [--most N]
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUFFIXES = ("cpp", "hpp", "h", "c", "cu", "cuh", "inc")
SUBJECTLESS = re.compile(r"(What|Where|Of|How|Whether|As|Who|Whoever|Nobody|Somebody)\b")


def comments(path):
    """(number of the line, text) of the first line of every block of // comments, and of every comment behind code."""
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code, mark, text = line.partition("//")
        alone = bool(mark) and not code.strip()
        if mark and not (alone and inside) and '"' not in code:
            yield number, text.lstrip("/! ")
        inside = alone


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--most", type=int)
    arguments = parser.parse_args()
    names = subprocess.run(["git", "ls-files", *(f"*.{suffix}" for suffix in SUFFIXES)], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    found = [f"{name}:{number}: {text}" for name in names for number, text in comments(ROOT / name) if SUBJECTLESS.match(text)]
    print("\n".join(found))
    if arguments.most is not None and len(found) > arguments.most:
        sys.exit(f"{len(found)} comments begin without their subject; at most {arguments.most} may")


if __name__ == "__main__":
    main()
