#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/record_result.py with a bench that prints prescribed numbers, and the form of the files in data/results.

  tests/project/record_result_test.py
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import record_result
import result_records

BENCH = """
import json, pathlib, sys
rounds = pathlib.Path(sys.argv[1])
done = len(rounds.read_text()) if rounds.exists() else 0
rounds.write_text("x" * (done + 1))
print("a line of the machine")
print(json.dumps([{"test": "window", "tokens": 1, "ms": [3.0, 1.0, 2.0][done % 3]}, {"test": "window", "tokens": 8, "ms": 9.0}]))
"""
OLD = {"what": "one token", "unit": "ms", "better": "less", "median": 5.0, "range": None, "rounds": 1, "peer": {"name": "p", "value": 6.0},
       "goal": 2.5, "floor": 1.0, "command": "espalier bench", "machine": "m", "date": "2026-01-01", "commit": "0000000"}


class Records(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bench.py").write_text(BENCH)
        self.file = self.folder / "decode.json"
        self.file.write_text(result_records.question_text(
            {"order": 1, "title": "Decode", "text": "t", "notes": [], "layout": "goals", "records": [OLD]}))

    def record(self, *options, line="tokens=1", what="one token", expected=0):
        words = ["decode", "--what", what, "--line", line, "--field", "ms", "--rounds", "3", "--machine", "here", "--results", str(self.folder),
                 *options, "--", sys.executable, str(self.folder / "bench.py"), str(self.folder / "rounds")]
        said = io.StringIO()
        with mock.patch.object(record_result, "checked_out", return_value=("abc1234", "2026-11-19")), \
                contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            self.assertEqual(record_result.main(words), expected, said.getvalue())
        return said.getvalue()

    def test_has_median_and_range_and_keeps_peer_goal_and_floor(self):
        self.record()
        (record,) = result_records.read_question(self.file)["records"]
        self.assertEqual((record["median"], record["range"], record["rounds"]), (2.0, [1.0, 3.0], 3))
        self.assertEqual((record["peer"], record["goal"], record["floor"]), (OLD["peer"], 2.5, 1.0))
        self.assertEqual((record["machine"], record["date"], record["commit"]), ("here", "2026-11-19", "abc1234"))
        self.assertTrue(record["command"].startswith(pathlib.Path(sys.executable).name + " "), record["command"])

    def test_of_another_thing_is_added(self):
        self.record(what="eight tokens", line="tokens=8,test=window")
        records = result_records.read_question(self.file)["records"]
        self.assertEqual([(record["what"], record["median"]) for record in records], [("one token", 5.0), ("eight tokens", 9.0)])

    def test_refuses_what_is_not_one_line_or_no_number(self):
        before = self.file.read_text()
        self.assertIn("2 of 2 lines", self.record(line="test=window", expected=1))
        self.assertIn("0 of 2 lines", self.record(line="tokens=2", expected=1))
        self.assertIn("is in ms", self.record("--unit", "s", expected=1))
        self.assertEqual(self.file.read_text(), before)
        for output in ("", "no list", "[1, 2", "{}"):
            with self.assertRaises(result_records.Problem, msg=output):
                record_result.picked(output, {}, "ms")
        with self.assertRaises(result_records.Problem):
            record_result.picked('[{"ms": "3"}]', {}, "ms")

    def test_a_bench_that_fails_leaves_the_file_alone(self):
        before = self.file.read_text()
        (self.folder / "bench.py").write_text("import sys; sys.exit('out of memory')")
        self.assertIn("out of memory", self.record(expected=1))
        self.assertEqual(self.file.read_text(), before)

    def test_files_are_written_as_they_stand(self):
        for path in sorted((ROOT / "data" / "results").glob("*.json")):
            self.assertEqual(result_records.question_text(result_records.read_question(path)), path.read_text(), path)


if __name__ == "__main__":
    unittest.main()
