#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the documents together: every relative link leads to a file, every anchor to a heading of it; every figure of
docs/performance.md and of the README's table is a record of data/results; the changelog is short and the lab is dated.

  tests/project/documents_test.py
"""
import copy
import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import make_performance
import performance_plots
import result_records


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


def foreign_addresses(text):
    """Hosts that text names as addresses, but for those that stand for any: example names, this machine, names of formats."""
    for host in re.findall(r"https?://([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)", text):
        if not re.search(r"(^|\.)(example|invalid|localhost)(\.(com|org|net))?$|^[\d.]+$|^www\.w3\.org$|^[a-z]\.[a-z]$", host):
            yield host


class Addresses(unittest.TestCase):
    KNOWN = {"src/hub/endpoint.hpp": ["huggingface.co"], "LICENSE": ["www.apache.org"] * 2,
             "deploy/debian/copyright": ["www.debian.org"], "tests/server/guard_test.cpp": ["chat.example.evil"]}

    def test_the_tree_names_the_default_hub_once_and_nothing_else(self):
        """Whatever is fetched goes by a package's name. Documents may cite; prompts and goldens are texts."""
        found = {}
        for folder in (".", "src", "include", "cmake", "tools", "tests", "python", "deploy", "examples", "third_party", ".ci"):
            paths = (ROOT / folder).glob("*") if folder == "." else (ROOT / folder).rglob("*")
            for path in paths:
                name = str(path.relative_to(ROOT))
                if not path.is_file() or path.suffix in (".md", ".patch", ".lock") or "/data/" in name or "/corpus/" in name \
                        or "goldens" in name or "__pycache__" in name or path.name == "package-lock.json":
                    continue
                text = path.read_bytes().decode(errors="replace")
                if hosts := list(foreign_addresses(text)):
                    found[name] = hosts
        self.assertEqual(found, self.KNOWN)

    def test_finder_sees_addresses(self):
        text = "https:" + "//github.test/x http://127.0.0.1:1 https://chat.example/ http://www.w3.org/2000/svg 'https://a.b' https://x.example.org"
        self.assertEqual(list(foreign_addresses(text)), ["github.test"])


class Packages(unittest.TestCase):
    def test_what_tests_fetch_from_pypi_has_a_version_and_a_hash(self):
        """But torch and what it needs, which come from PyPI or from an index for CPUs, as other files."""
        lists = [path for path in sorted((ROOT / "tests").rglob("requirements*.txt")) if path.parent.name != "python"]
        self.assertEqual(len(lists), 4)
        for path in lists:
            text = re.sub(r" \\\n *", " ", path.read_text())
            for line in re.findall(r"^[^#\n].*$", text, flags=re.M):
                self.assertRegex(line, r"^[A-Za-z0-9_.-]+==\S+( --hash=sha256:[0-9a-f]{64})+$", path)


class Words(unittest.TestCase):
    def test_documents_can_be_read(self):
        """What tells of the project as it is; the lab, which tells how it came to be so, is as long as it likes."""
        paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/kernels").glob("*.md")]
        words = {str(path.relative_to(ROOT)): len(path.read_text().split()) for path in paths}
        longest = sorted(words, key=words.get, reverse=True)[:8]
        self.assertLessEqual(sum(words.values()), 40_000, {name: words[name] for name in longest})


class History(unittest.TestCase):
    def test_the_version_is_the_changelogs_newest_everywhere(self):
        newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1]
        self.assertIn(f'ESPALIER_VERSION "{newest}"', (ROOT / "include/espalier/version.hpp").read_text())
        for name in ("deploy/kubernetes.yaml", "docs/deploy.md"):
            self.assertEqual(set(re.findall(r"espalier:(\d+\.\d+\.\d+)", (ROOT / name).read_text())), {newest}, name)

    def test_an_entry_of_the_changelog_has_two_lines_at_most(self):
        text = (ROOT / "CHANGELOG.md").read_text()
        entries = re.findall(r"^- .*\n(?:  .*\n)*", text, flags=re.M)
        self.assertGreater(len(entries), 50)
        self.assertEqual([entry for entry in entries if entry.count("\n") > 2], [])

    def test_entries_of_the_lab_are_dated_newest_first(self):
        for path in sorted((ROOT / "docs" / "lab").glob("*.md")):
            if path.name in ("README.md", "releases.md"):
                continue
            titles = re.findall(r"^## (.*)$", path.read_text(), flags=re.M)
            dates = [title.split(" · ")[0] for title in titles]
            self.assertTrue(dates, path)
            self.assertEqual([title for title in titles if not re.match(r"\d{4}-\d{2}-\d{2} · .", title)], [], path)
            self.assertEqual(dates, sorted(dates, reverse=True), path)

    def test_every_page_of_the_lab_is_in_its_index(self):
        index = (ROOT / "docs" / "lab" / "README.md").read_text()
        for path in sorted((ROOT / "docs" / "lab").glob("*.md")):
            self.assertTrue(path.name == "README.md" or f"({path.name})" in index, path)


class Performance(unittest.TestCase):
    def test_page_and_readme_are_what_the_records_say(self):
        lines = make_performance.differences(ROOT)
        self.assertEqual(lines, [], "run tools/make_performance.py\n" + "\n".join(lines[:40]))

    def test_a_changed_record_changes_the_page(self):
        questions = make_performance.read_results(ROOT / "data" / "results")
        page, numbers = make_performance.page_text(questions), make_performance.readme_numbers(questions)
        for at, question in enumerate(questions):
            for index, record in enumerate(question["records"]):
                changed = copy.deepcopy(questions)
                changed[at]["records"][index]["median"] = record["median"] * 3 + 1
                self.assertNotEqual(make_performance.page_text(changed), page, record["what"])
                if "readme" in record:
                    self.assertNotEqual(make_performance.readme_numbers(changed), numbers, record["what"])

    def test_misses_are_marked_in_both_directions(self):
        record = {"what": "x", "unit": "ms", "better": "less", "median": 2.0, "goal": 2.0}
        self.assertFalse(make_performance.missed(record))
        self.assertTrue(make_performance.missed({**record, "median": 2.01}))
        self.assertTrue(make_performance.missed({**record, "better": "more", "median": 1.99}))
        self.assertFalse(make_performance.missed({**record, "goal": None}))

    def test_plots_set_ours_against_the_peer_or_else_the_goal(self):
        relative = performance_plots.relative
        record = {"what": "x", "unit": "ms", "better": "less", "median": 2.0, "peer": {"name": "p", "value": 3.0}, "goal": 1.5}
        self.assertEqual(relative(record), (1.5, 2.0))
        self.assertEqual(relative({**record, "better": "more"}), (2 / 3, 0.5))
        self.assertEqual(relative({**record, "peer": None}), (0.75, 1.0))
        self.assertEqual(relative({**record, "unit": "×", "better": "more"}), (2.0, 1.5))
        self.assertIsNone(relative({**record, "peer": None, "goal": None}))
        for missed in (True, False):
            drawn = performance_plots.bars("t", [record], lambda _: missed)
            self.assertEqual(performance_plots.RED in drawn, missed)

    def test_records_without_command_machine_or_commit_are_refused(self):
        path = ROOT / "data" / "results" / "decode.json"
        record = json.loads(path.read_text())["records"][0]
        result_records.check_record(record)
        for field in ("what", "unit", "median", "rounds", "command", "machine", "date", "commit"):
            with self.assertRaises(result_records.Problem, msg=field):
                result_records.check_record({key: value for key, value in record.items() if key != field})
        for wrong in ({"better": "least"}, {"range": [3, 4]}, {"goal": "1.5"}, {"speed": 1}):
            with self.assertRaises(result_records.Problem, msg=str(wrong)):
                result_records.check_record({**record, **wrong})

    def test_commands_are_shortened_to_the_options_that_differ(self):
        short = make_performance.shortened
        self.assertEqual(short("x y --a 1 --b 2", "x y --a 1 --b 3"), "… --b 2")
        self.assertEqual(short("x y --a 1 --b 2", "x z --a 1 --b 2"), "x y --a 1 --b 2")
        self.assertEqual(short("x y --a 1 --b 2", "x y --a 1"), "x y --a 1 --b 2")
        self.assertEqual(short("x y --a 1 --b 2", "x y --a 1 --b 2"), "x y --a 1 --b 2")


if __name__ == "__main__":
    unittest.main()
