"""Fuzzes a running server by its own description: run.py ESPALIER MODEL [--seconds N] [--seed S] [--threads N].

Half of the time without TLS and half with it, a server each. Bodies are made from /openapi.json, half of them as it describes them
and half with a fault put in (bodies.py); they come in every method, with odd headers, cut off, split and pipelined, from clients that
stay and clients that vanish (connection.py), with one of two keys, of which the second is of a file and has limits. Meanwhile the
server reads keys and certificate again, every third time a file of keys with a mistake.
No answer has a status from 500 on, none takes longer than five minutes, every error is an error of that path's API, every stream ends as its API
says; and a body that is as described is never refused for a field's type. In the end no request runs, no page of the cache is
held, and the process has the descriptors of before. The seed is printed; the same seed sends the same requests.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
from bodies import Bodies, broken  # noqa: E402
from connection import SECONDS, Connection, Gone, trusting  # noqa: E402
from serving import Server  # noqa: E402

KEY, LIMITED_KEY = "sk-fuzz", "sk-limited"
# Sizes that let each request end soon, and refuse some of them.
LIMITS = ["--max-model-len", "256", "--max-waiting", "64", "--max-body-bytes", "65536", "--max-connections", "64", "--rows", "8",
          "--read-seconds", "5", "--write-seconds", "5", "--access-log", "off"]


# Tools for a model that was never taught any: its calls are what the grammar leaves it.
TEMPLATE = ("""{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}"""
            """[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or [] %}{{ call.id }}"""
            """{{ call.function.arguments }}{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}""")


class Found(Exception):
    """Something that must not be."""


def check_error(path, status, body):
    error = json.loads(body)["error"]
    if not error["message"]:
        raise Found(f"an error without words: {body!r}")
    if path in ("/v1/messages", "/v1/messages/count_tokens") and json.loads(body).get("type") != "error":
        raise Found(f"an error of another API: {body!r}")
    if status == 400 and "json.exception" in error["message"]:
        raise Found(f"a library's words: {body!r}")
    return error["message"]


def check_stream(path, body):
    events = [block for block in body.decode().split("\n\n") if block and not block.startswith(":")]
    data = [line[6:] for block in events for line in block.split("\n") if line.startswith("data: ")]
    if path in ("/v1/completions", "/v1/chat/completions"):
        if data[-1] != "[DONE]":
            raise Found(f"a stream without its end: {data[-1]!r}")
        data.pop()
    told = [json.loads(text) for text in data]
    last = told[-1].get("type") if told else None
    if path == "/v1/messages" and last not in ("message_stop", "error"):
        raise Found(f"a stream of messages that ends with {told[-1]}")
    if path == "/v1/responses" and last not in ("response.completed", "response.incomplete", "response.failed"):
        raise Found(f"a stream of a response that ends with {told[-1]}")


class Worker(threading.Thread):
    def __init__(self, run, number):
        super().__init__(daemon=True)
        self.run_, self.random = run, random.Random(f"{run.seed} {number}")
        self.bodies = Bodies(self.random, run.document)
        self.name = f"client {number}"
        self.statuses = collections.Counter()
        self.request, self.count, self.longest, self.failure = b"", 0, 0, None
        self.connection = None

    def run(self):
        try:
            while time.monotonic() < self.run_.end and not self.run_.stopped:
                self.one()
                self.count += 1
        except Exception as error:  # told by the main thread, with the request
            self.failure = error
            self.run_.stopped = True

    def one(self):
        route = self.random.choice(self.run_.routes)
        method, path, schema = route
        is_valid = False
        body = b""
        if schema is not None:
            value = self.bodies.value(schema)
            is_valid = self.random.random() < 0.5
            body = json.dumps(value).encode() if is_valid else broken(self.random, value)
        head = {"Host": "127.0.0.1", "Authorization": f"Bearer {self.random.choice([KEY, KEY, LIMITED_KEY])}"}
        if schema is not None:
            head["Content-Type"] = "application/json"
        if not is_valid:
            method, path = self.odd_line(method, path)
            self.odd_head(head)
        path = path.replace("{id}", self.random.choice(["none", self.run_.model, "%2F", "a/b", "%zz"]))
        self.send(method, path, head, body, is_valid)

    def odd_line(self, method, path):
        if self.random.random() < 0.05:
            method = self.random.choice(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
        if self.random.random() < 0.03:
            path = self.random.choice([path + "/", path + "?a=%00&b=1", "//" + path, path.upper(), "/" + "x" * 3000, "*", path + "\x7f"])
        return method, path

    def odd_head(self, head):
        odd = self.random
        if odd.random() < 0.1:
            head[odd.choice(["X-Request-Id", "traceparent", "Origin", "Host", "anthropic-version", "Accept-Encoding", "Expect", "Range",
                             "x-api-key"])] = odd.choice(["", "a" * 200, "\x01", "100-continue", "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
                                                          "http://elsewhere", KEY, "gzip", "é"])
        if odd.random() < 0.03:
            del head["Authorization"]
        if odd.random() < 0.05:
            head["Content-Type"] = odd.choice(["text/plain", "application/json; charset=utf-16", "multipart/form-data", ""])

    def send(self, method, path, head, body, is_valid):
        if self.connection is None:
            self.connection = Connection(self.run_.port, self.run_.tls)
        way = "whole" if is_valid else self.random.choice(["whole"] * 6 + ["chunked", "slow", "cut", "vanish", "twice"])
        self.request = f"{way} {method} {path} {head} ".encode(errors="replace") + body
        began = time.monotonic()
        try:
            answers = self.connection.exchange(method, path, head, body, way, self.random)
        except Gone:
            self.connection.close()
            self.connection = None
            self.statuses["gone"] += 1
            return
        self.longest = max(self.longest, time.monotonic() - began)
        for status, kind, text in answers:
            self.check(method, path, status, kind, text, is_valid)
        if not self.connection.stays or self.random.random() < 0.1:
            self.connection.close()
            self.connection = None

    def check(self, method, path, status, kind, text, is_valid):
        self.statuses[status] += 1
        if status >= 500:
            raise Found(f"status {status}: {text[:400]!r}")
        if method == "HEAD" or not text:
            return
        if status >= 400:
            words = check_error(path, status, text)
            if is_valid and "is expected, not" in words:
                raise Found(f"a body as described is refused for a type: {words}")
        elif "event-stream" in kind:
            check_stream(path.split("?")[0], text)
        elif "json" in kind:
            json.loads(text)


class Run:
    """What the clients have in common."""

    def __init__(self, document, server, tls, seed, seconds):
        self.document, self.port, self.tls, self.seed = document, int(server.root.rsplit(":", 1)[1]), tls, seed
        self.routes = []
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
                # Bodies are where faults are: the other paths come now and then.
                self.routes += [(method.upper(), path, schema)] * (8 if schema else 1)
        self.end = time.monotonic() + seconds
        self.stopped = False
        self.model = "none"


def descriptors(process):
    """What each open descriptor is."""
    folder = pathlib.Path(f"/proc/{process.pid}/fd")
    found = []
    for one in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(folder / one))
    return sorted(found)


def resident(process):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text()).group(1)) / 1024


def certificate(folder):
    """A certificate that signs itself, for a server at 127.0.0.1."""
    names = [str(pathlib.Path(folder, name)) for name in ("cert.pem", "key.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-out", names[0], "-keyout", names[1]],
                   check=True, capture_output=True)
    return names


class Fuzzed(Server):
    """A server with two keys, and with TLS where it is wanted."""

    def __init__(self, binary, model, folder, tls):
        template = pathlib.Path(folder, "template.jinja")
        template.write_text(TEMPLATE)
        self.keys = pathlib.Path(folder, "keys")
        self.write_keys(0)
        flags = ["--chat-template", str(template), "--tool-format", "kimi_k2", "--api-key-file", str(self.keys)]
        if tls:
            cert, key = certificate(folder)
            flags += ["--tls-cert", cert, "--tls-key", key]
        self.context = trusting() if tls else None
        super().__init__(binary, model, "--api-key", KEY, *LIMITS, *flags)

    def write_keys(self, number):
        mistake = "limited sk-other requests=0\n" if number % 3 == 2 else ""
        written = self.keys.with_suffix(".new")
        written.write_text(f"limited {LIMITED_KEY} requests=2 tokens={300 + number % 50}\n{mistake}")
        written.replace(self.keys)

    def reload_until(self, ended):
        """Keys and certificate are read again, five times a second."""
        number = 0
        while not ended.wait(0.2):
            number += 1
            self.write_keys(number)
            self.process.send_signal(signal.SIGHUP)

    def get(self, path, key=KEY):
        request = urllib.request.Request(self.root + path, headers={"Authorization": f"Bearer {key or KEY}"})
        with urllib.request.urlopen(request, context=self.context, timeout=SECONDS) as answer:
            return answer.read().decode()


def fuzz(server, tls, seed, seconds, threads):
    run = Run(json.loads(server.get("/openapi.json")), server, tls, seed, seconds)
    run.model = json.loads(server.get("/v1/models"))["data"][0]["id"]
    before = descriptors(server.process), resident(server.process)
    workers = [Worker(run, number) for number in range(threads)]
    ended = threading.Event()
    reloader = threading.Thread(target=server.reload_until, args=(ended,), daemon=True)
    for thread in [*workers, reloader]:
        thread.start()
    for worker in workers:
        worker.join(run.end - time.monotonic() + 2 * SECONDS)
        if worker.is_alive():
            raise SystemExit(f"{worker.name}: no answer within {2 * SECONDS} s to\n{worker.request[:4000]!r}")
        if worker.connection is not None:
            worker.connection.close()
    ended.set()
    reloader.join()
    for worker in workers:
        if worker.failure is not None:
            raise SystemExit(f"seed {seed}, {worker.name}, request {worker.count}: {worker.failure!r}\n{worker.request[:4000]!r}")
    check_rest(server, before)
    statuses = sum((worker.statuses for worker in workers), collections.Counter())
    print(f"http fuzz: {sum(statuses.values())} answers in {seconds:g} s, none later than {max(worker.longest for worker in workers):.1f} s, "
          + ", ".join(f"{count} × {status}" for status, count in statuses.most_common()))
    if not statuses[200]:
        raise SystemExit("no request was answered with 200: nothing was tested")


def check_rest(server, before):
    server.wait_until_idle()
    for _ in range(500):
        pages = server.metric("pages_owned")
        time.sleep(0.02)  # its own connection ends
        after = descriptors(server.process), pages
        if len(after[0]) <= len(before[0]) and pages == 0:
            break
    print(f"http fuzz: {len(before[0])} descriptors before, {len(after[0])} after; {after[1]:g} pages held; "
          f"{before[1]:.0f} MiB resident before, {resident(server.process):.0f} after")
    if len(after[0]) > len(before[0]) or after[1] != 0:
        raise SystemExit(f"descriptors or pages were leaked: {before[0]} before, {after[0]} after")
    if server.process.poll() is not None:
        raise SystemExit("the server has ended")
    if not any("not read again" in line for line in server.log):
        raise SystemExit("no file of keys with a mistake was found by the server")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    for tls in (False, True):
        print(f"http fuzz: seed {seed}, {options.threads} clients, {'TLS' if tls else 'no TLS'}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            server = Fuzzed(options.binary, options.model, folder, tls)
            try:
                fuzz(server, tls, seed, options.seconds / 2, options.threads)
            finally:
                if (status := server.stop()) != 0:
                    raise SystemExit(f"the server ended with status {status}:\n{''.join(server.log[-20:])}")


if __name__ == "__main__":
    main()
