#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the documents together: every relative link leads to a file, every anchor to a heading of it.

  tests/project/documents_test.py
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pages():
    for folder in ("docs", "data", "models", "tools", "third_party", "deploy", "python"):
        yield from sorted((ROOT / folder).rglob("*.md"))
    yield from sorted(ROOT.glob("*.md"))


def without_code(text):
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "code", text)


def headings(path):
    """Anchors as GitHub makes them: lower case, no punctuation, hyphens for spaces, numbered when repeated."""
    seen, anchors = {}, set()
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.M | re.S)
    for title in re.findall(r"^#+ +(.+?) *$", text, flags=re.M):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


def broken_links(path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"{path.relative_to(ROOT)}: no file {target}"
        elif anchor and file.suffix == ".md" and anchor not in headings(file):
            yield f"{path.relative_to(ROOT)}: no heading {target}"


class Links(unittest.TestCase):
    def test_lead_to_files_and_headings(self):
        broken = [line for path in pages() for line in broken_links(path, path.read_text())]
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_finder_sees_broken_ones(self):
        page = ROOT / "docs" / "cuda.md"
        text = "[a](none.md) [b](cuda.md#none) [c](cuda.md) [d](https://x.y/z) `[e](none.md)`\n"
        self.assertEqual(list(broken_links(page, text)),
                         ["docs/cuda.md: no file none.md", "docs/cuda.md: no heading cuda.md#none"])

    def test_sources_name_documents_that_exist(self):
        missing = []
        for folder in ("src", "include", "tools", "tests", "python", "deploy"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix not in (".cpp", ".hpp", ".h", ".cu", ".cuh", ".py", ".sh", ".txt", ".md"):
                    continue
                for name in re.findall(r"(?<![\w/])(?<!'s )docs/[\w/]+\.(?:md|svg)", path.read_text()):
                    if not (ROOT / name).exists():
                        missing.append(f"{path.relative_to(ROOT)}: no {name}")
        self.assertEqual(missing, [], "\n" + "\n".join(missing))


if __name__ == "__main__":
    unittest.main()
