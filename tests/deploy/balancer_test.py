"""deploy/haproxy.cfg in front of two replicas: balancer_test.py ESPALIER HAPROXY.

While a load runs over it, each replica in turn is stopped and started again. No request may fail. BALANCER_REQUESTS says how
many there are (10000).
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).parents[2]
BINARY, HAPROXY = sys.argv[1:3]
REQUESTS = int(os.environ.get("BALANCER_REQUESTS", "10000"))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Replica:
    def __init__(self, model, port):
        self.model, self.port = model, port
        self.start()

    def start(self):
        self.log = []
        self.process = subprocess.Popen(
            [BINARY, "serve", self.model, "--port", str(self.port), "--served-model-name", "m", "--threads", "1",
             "--access-log", "off", "--max-waiting", "4096", "--drain-seconds", "600"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.log.append(line)
            if "is ready" in line:
                break
        else:
            raise RuntimeError("".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def stop(self):
        self.process.terminate()
        status = self.process.wait()
        self.reader.join()
        self.process.stderr.close()
        assert status == 0, "".join(self.log)

    def answered(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        return sum(map(float, re.findall(r"^espalier:request_success_total{[^\n]*} (\S+)$", text, re.MULTILINE)))


class Balancer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        model = str(cls.folder / "model")
        subprocess.run([BINARY, "make-model", "--preset", "tiny-v3", "--out", model], check=True, capture_output=True)
        cls.port, one, two = free_port(), free_port(), free_port()
        cls.replicas = [Replica(model, one), Replica(model, two)]
        text = (ROOT / "deploy/haproxy.cfg").read_text()
        for address, port in (("127.0.0.1:8080", cls.port), ("127.0.0.1:8001", one), ("127.0.0.1:8002", two)):
            assert text.count(address) == 1, address
            text = text.replace(address, f"127.0.0.1:{port}")
        (cls.folder / "haproxy.cfg").write_text(text)
        cls.log = open(cls.folder / "haproxy.log", "w")
        cls.haproxy = subprocess.Popen([HAPROXY, "-db", "-f", str(cls.folder / "haproxy.cfg")], stderr=cls.log)
        cls.root = f"http://127.0.0.1:{cls.port}"
        for _ in range(1000):
            try:
                urllib.request.urlopen(cls.root + "/health").read()
                break
            except OSError:
                time.sleep(0.02)

    @classmethod
    def tearDownClass(cls):
        cls.haproxy.terminate()
        cls.haproxy.wait()
        cls.log.close()
        for replica in cls.replicas:
            replica.stop()

    def post(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def test_1_the_file_is_one_that_haproxy_takes_without_a_warning(self):
        checked = subprocess.run([HAPROXY, "-c", "-f", ROOT / "deploy/haproxy.cfg"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertNotIn("WARNING", checked.stdout + checked.stderr)

    def long_stream(self):
        """A connection with an answer that goes on for thousands of tokens."""
        connection, answer = self.post({"prompt": "abc", "max_tokens": 6000, "ignore_eos": True, "stream": True})
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.readline().startswith(b"data: "))
        return connection, answer

    def test_2_events_leave_as_they_come(self):
        connection, answer = self.long_stream()
        # The first is there while the replica still works on the rest.
        self.assertEqual(sum(self.running(replica) for replica in self.replicas), 1)
        self.assertEqual(answer.getheader("Content-Type"), "text/event-stream; charset=utf-8")
        self.assertTrue(answer.getheader("X-Request-Id"))
        # A client that goes is gone for the replica, too.
        answer.close()
        connection.close()
        while sum(self.running(replica) for replica in self.replicas):
            time.sleep(0.02)

    def running(self, replica):
        with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics") as answer:
            return sum(map(float, re.findall(r"^espalier:num_requests_running{[^\n]*} (\S+)$", answer.read().decode(),
                                             re.MULTILINE)))

    def test_3_a_stream_outlives_the_draining_of_its_replica(self):
        connection, answer = self.long_stream()
        holder = next(replica for replica in self.replicas if self.running(replica))
        stopped = threading.Thread(target=holder.stop)
        stopped.start()
        for _ in range(20):
            with urllib.request.urlopen(self.root + "/v1/models") as models:
                self.assertEqual(models.status, 200)
        self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
        connection.close()
        stopped.join()
        holder.start()

    def test_4_a_replica_that_is_slow_to_say_that_it_is_well_is_not_taken_out(self):
        stopped, slow = self.replicas
        stopped.stop()
        slow.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(2)  # several checks
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            connection.request("GET", "/v1/models")
            time.sleep(0.5)
        finally:
            slow.process.send_signal(signal.SIGCONT)
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        stopped.start()

    def test_5_no_request_fails_while_replicas_are_restarted_under_load(self):
        load = subprocess.Popen(
            [BINARY, "bench", "serve", "--base-url", self.root, "--model", "m", "--num-prompts", str(REQUESTS), "--max-concurrency", "24",
             "--random-input-len", "12", "--random-output-len", "6", "--vocabulary", "500", "--ignore-eos", "--save-result", "--result-dir",
             str(self.folder), "--result-filename", "load.json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        reader = threading.Thread(target=lambda: said.extend(load.stdout))
        reader.start()
        restarted = []
        for replica in self.replicas:
            other = self.replicas[1 - self.replicas.index(replica)]
            share = REQUESTS / 8
            while load.poll() is None and replica.answered() < share:
                time.sleep(0.05)
            before = other.answered()
            self.assertIsNone(load.poll(), "the load was over before a replica was stopped:\n" + "".join(said))
            replica.stop()
            replica.start()
            self.assertIsNone(load.poll(), "the load was over before the replica was back")
            self.assertGreater(other.answered(), before)
            while load.poll() is None and replica.answered() < 20:
                time.sleep(0.05)
            restarted.append(replica.answered())
        load.wait()
        reader.join()
        load.stdout.close()
        result = json.loads((self.folder / "load.json").read_text())
        self.assertEqual((result["completed"], result["failed"]), (REQUESTS, 0), "".join(said))
        self.assertEqual(result["total_output_tokens"], 6 * REQUESTS)
        self.assertTrue(all(count >= 20 for count in restarted), restarted)
        log = (self.folder / "haproxy.log").read_text()
        again = len(re.findall(r" [-A-Za-z]{4} \d+/\d+/\d+/\d+/\+?[1-9]\d* ", log))
        print(f"{REQUESTS} requests in {result['duration']:.0f} s, both replicas stopped and started again: none failed, "
              f"{again} were asked again of the other")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
