"""Prometheus' files and the Grafana board against what a server really exports: monitoring_test.py ESPALIER MODEL PROMTOOL.

A server answers some requests, its /metrics is recorded, and promtool evaluates every query of the board on series that
grow as the recorded ones did. A name or a label that the server does not export leaves a query without a number.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from serving import Server  # noqa: E402

BINARY, MODEL, PROMTOOL = sys.argv[1:4]
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
SERIES = re.compile(r"^(?P<name>[\w:]+)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
SCRAPED = {"job", "instance"}  # labels that Prometheus adds


def record():
    """/metrics after completions, a chat, a stream, drafts, a repeated prompt, and an error."""
    server = Server(BINARY, MODEL)
    repeating = "one two three four " * 40
    for _ in range(2):
        server.post("/v1/completions", prompt=repeating, max_tokens=40, temperature=0, ignore_eos=True)
    server.post("/v1/completions", prompt="def f(", max_tokens=20, stream=True)
    server.post("/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=20, n=2)
    server.post("/v1/completions", prompt="x", temperature=-1)
    text = server.get("/metrics")
    assert server.stop() == 0
    return text


def promtool(*arguments, **options):
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, **options)


def plain(query):
    """Grafana's variables as it would fill them in."""
    return query.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$instance", ".*")


def board_queries():
    return [(panel["title"], target) for panel in BOARD["panels"] for target in panel["targets"]]


def names_in(query):
    return set(re.findall(r"espalier:\w+", query))


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = record()
        cls.labels = {}  # of each series' name
        cls.kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", cls.text, re.MULTILINE))
        cls.inputs = []
        for found in SERIES.finditer(cls.text):
            name, labels, value = found["name"], found["labels"], float(found["value"])
            cls.labels.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
            grows = cls.kinds.get(name) != "gauge"
            cls.inputs.append({"series": f'{name}{{{labels},job="espalier",instance="127.0.0.1:8000"}}',
                               "values": f"0+{value}x40" if grows else f"{value}+0x40"})

    def evaluate(self, queries):
        """promtool's verdict on a file that expects a number from every query."""
        expected = [{"labels": "{}", "value": 1}]
        tests = [{"expr": f"count(({query}) > -Inf) > bool 0", "eval_time": "10m", "exp_samples": expected}
                 for query in queries]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"evaluation_interval": "15s",
                       "tests": [{"interval": "15s", "input_series": self.inputs, "promql_expr_test": tests}]}, file)
            file.flush()
            return promtool("test", "rules", file.name)

    def test_configuration_and_rules_are_well_formed(self):
        done = promtool("check", "config", "prometheus.yml", cwd=DEPLOY)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("6 rules found", done.stdout)

    def test_metrics_are_well_formed(self):
        # vLLM's names have a colon, which promtool keeps for recording rules; it would say nothing else about them.
        lines = [re.sub(r"^(# (?:HELP|TYPE) )?(espalier|vllm):", r"\1\2_", line) for line in self.text.splitlines()]
        done = promtool("check", "metrics", input="\n".join(lines) + "\n")
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_every_query_of_the_board_has_a_number(self):
        done = self.evaluate([plain(target["expr"]) for _, target in board_queries()])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_misspelt_query_would_have_none(self):
        for wrong in ("sum(espalier:num_request_running)", 'espalier:request_success_total{finish_reason="stop"}'):
            self.assertNotEqual(self.evaluate([wrong]).returncode, 0, wrong)

    def test_grouping_and_legends_name_labels_that_exist(self):
        for title, target in board_queries():
            known = SCRAPED.union(*(self.labels.get(name, set()) for name in names_in(target["expr"])))
            for group in re.findall(r"\b(?:by|without|ignoring|on)\s*\(([^)]*)\)", target["expr"]):
                self.assertLessEqual({label.strip() for label in group.split(",")}, known, title)
            self.assertLessEqual(set(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"])), known, title)
        for variable in BOARD["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", variable["query"]["query"]).groups()
                self.assertIn(label, SCRAPED | self.labels[metric])

    def test_alerts_name_metrics_that_exist(self):
        named = names_in((DEPLOY / "alerts.yml").read_text())
        self.assertTrue(named)
        self.assertLessEqual(named, self.labels.keys())

    def test_alerts_fire_and_stay_silent(self):
        done = promtool("test", "rules", str(ROOT / "tests/deploy/alerts_test.yml"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_panels_lie_side_by_side(self):
        taken = {}
        for panel in BOARD["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
                self.assertNotIn(cell, taken, f'{panel["title"]} lies on {taken.get(cell)}')
                taken[cell] = panel["title"]
        ids = [panel["id"] for panel in BOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
