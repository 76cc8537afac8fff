#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""espalier pull against a hub on this machine: what comes, where it lies, and every way in which a hub can be wrong.

  tests/hub/pull_test.py build/cpu/espalier
"""

import json
import os
import pathlib
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fake_hub import COMMIT, File, Hub  # noqa: E402

BINARY = sys.argv[1]
PART = 8192
random.seed(7)


def model_files():
    shards = {f"model-0000{i}-of-00002.safetensors": File(random.randbytes(60_000 + i)) for i in (1, 2)}
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return {
        "README.md": File(b"readme"), "config.json": File(b"{}"), "tokenizer.json": File(b"t" * 5000),
        "tokenizer_config.json": File(b""), "chat_template.jinja": File(b"{{ x }}"),
        "model.safetensors.index.json": File(json.dumps(index).encode()), "pytorch_model.bin": File(b"evil"),
        "m-Q4_K-00001-of-00002.gguf": File(b"g" * 3000), "m-Q4_K-00002-of-00002.gguf": File(b"h" * 3000),
        **shards,
    }


SHARD = "model-00001-of-00002.safetensors"
WANTED = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json",
          SHARD, "model-00002-of-00002.safetensors"}


class Pull(unittest.TestCase):
    def setUp(self):
        self.hub = Hub(model_files())
        self.addCleanup(self.hub.stop)
        self.cache = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.repository = self.cache / "models--org--model"
        self.snapshot = self.repository / "snapshots" / COMMIT

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return kept | {"HF_HUB_CACHE": str(self.cache), "HF_ENDPOINT": self.hub.url} | more

    def start(self, *arguments, **environment):
        retries = [] if "--retries" in arguments else ["--retries", "1"]
        return subprocess.Popen([BINARY, "pull", *(arguments or ["org/model"]), "--part-bytes", str(PART), *retries],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(**environment))

    def pull(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        return process.returncode, out.strip(), err

    def assert_pulled(self, result):
        self.assertEqual(result[0], 0, result[2])
        self.assert_whole(WANTED)

    def assert_whole(self, names):
        self.assertEqual({str(path.relative_to(self.snapshot)) for path in self.snapshot.rglob("*") if not path.is_dir()}, names)
        for name in names:
            file = self.hub.files[name]
            self.assertEqual((self.snapshot / name).read_bytes(), file.data, name)
            self.assertEqual(os.readlink(self.snapshot / name), "../" * (2 + name.count("/")) + f"blobs/{file.etag}")
        self.assertEqual({path.name for path in (self.repository / "blobs").iterdir()},
                         {self.hub.files[name].etag for name in names})

    def assert_refused(self, result, *words):
        code, _, err = result
        self.assertEqual(code, 1, err)
        for word in words:
            self.assertIn(word, err)
        self.assertFalse((self.repository / "refs" / "main").exists())
        return err

    def ranges(self, file):
        path = "/" + self.hub.files[file].etag
        return [request[3] for request in self.hub.requests if request[0] == "cdn" and request[2].startswith(path)]

    def fault(self, file, what, origin=None):
        found = self.hub.files[file]
        origin = origin or ("cdn" if found.large else "hub")
        self.hub.faults[(origin, "/" + found.etag if origin == "cdn" else self.hub.path(file))] = what

    # ---- what comes ----

    def test_what_a_model_is_made_of_lies_as_other_tools_lay_it(self):
        result = self.pull()
        self.assert_pulled(result)
        self.assertEqual(result[1], str(self.snapshot))
        self.assertEqual((self.repository / "refs/main").read_text(), COMMIT)
        self.assertEqual(len(self.ranges(SHARD)), -(-60_001 // PART))
        asked = {path for _, _, path, _, _ in self.hub.requests}
        self.assertFalse(any("README" in path or ".bin" in path or "gguf" in path for path in asked))
        # Again: nothing but questions.
        before = len(self.hub.requests)
        self.assert_pulled(self.pull())
        self.assertTrue(all(method == "HEAD" or "/api/" in path for _, method, path, _, _ in self.hub.requests[before:]))

    def test_revisions_are_named_by_themselves(self):
        self.assertEqual(self.pull("org/model@pr/1")[0], 0)
        self.assertEqual((self.repository / "refs/pr/1").read_text(), COMMIT)
        self.assertIn(("hub", "GET", "/api/models/org/model/revision/pr%2F1", None, None), self.hub.requests)
        self.assertEqual(self.pull("org/model", "--revision", COMMIT)[0], 0)
        self.assertEqual([path.name for path in (self.repository / "refs").iterdir()], ["pr"])
        self.assert_refused(self.pull("org/model", "--revision", "none"), "no such model, or no revision 'none'")

    def test_a_gguf_file_comes_with_its_parts_and_without_the_rest(self):
        code, out, err = self.pull("org/model/m-Q4_K-00001-of-00002.gguf")
        self.assertEqual(code, 0, err)
        self.assertEqual(out, str(self.snapshot / "m-Q4_K-00001-of-00002.gguf"))
        self.assert_whole({"m-Q4_K-00001-of-00002.gguf", "m-Q4_K-00002-of-00002.gguf"})
        self.hub.files = {"q/m.gguf": File(b"q" * 3000)}
        err = self.pull()[2]
        self.assertIn("ORG/NAME/q/m.gguf", err)
        self.assertEqual(self.pull("org/model/q/m.gguf")[0], 0)
        self.assertEqual((self.snapshot / "q/m.gguf").read_bytes(), b"q" * 3000)

    def test_a_token_goes_to_the_hub_alone(self):
        self.hub.token = "hf_secret"
        self.assertIn("HF_TOKEN", self.assert_refused(self.pull(), "401"))
        self.assert_refused(self.pull(HF_TOKEN="hf_wrong"), "does not open it")
        self.assert_refused(self.pull(HF_TOKEN="a\r\nX: y"), "HF_TOKEN")
        self.hub.requests.clear()
        self.assert_pulled(self.pull(HF_TOKEN="hf_secret"))
        self.assertEqual({request[4] for request in self.hub.requests if request[0] == "hub"}, {"Bearer hf_secret"})
        self.assertEqual({request[4] for request in self.hub.requests if request[0] == "cdn"}, {None})

    # ---- what goes wrong ----

    def test_cut_connections_are_gone_on_with(self):
        def cut(handler, number):
            if number % 3 == 0:
                return None
            if number % 3 == 1:
                handler.end()
            else:
                first, last = map(int, handler.headers["Range"][6:].split("-"))
                handler.send_response(206)
                handler.send_header("Content-Length", str(last - first + 1))
                handler.end_headers()
                handler.wfile.write(self.hub.files[SHARD].data[first:first + 1000])
                handler.end()
            return True
        self.fault(SHARD, cut)
        self.assert_pulled(self.pull("org/model", "--retries", "20"))

    def test_an_end_that_does_not_come_is_told_and_kept(self):
        def once(handler, number):
            if number <= 3:
                return None
            handler.end()
            return True
        self.fault(SHARD, once)
        self.assert_refused(self.pull("org/model", "--connections", "1"), SHARD, "the connection ended")
        # What came is not asked for again.
        self.hub.faults.clear()
        self.hub.requests.clear()
        self.assert_pulled(self.pull())
        self.assertEqual(len(self.ranges(SHARD)), -(-60_001 // PART) - 3)

    def test_ctrl_c_keeps_what_came(self):
        arrived, go = threading.Event(), threading.Event()

        def hold(handler, number):
            if number <= 2:
                return None
            arrived.set()
            go.wait(60)
            handler.end()
            return True
        self.fault(SHARD, hold)
        process = self.start("org/model", "--connections", "1")
        self.assertTrue(arrived.wait(60))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        go.set()
        self.assertEqual(process.returncode, 1)
        self.assertIn("the same command goes on from there", err)
        self.hub.faults.clear()
        self.hub.requests.clear()
        self.assert_pulled(self.pull())
        self.assertEqual(len(self.ranges(SHARD)), -(-60_001 // PART) - 2)

    def test_a_wrong_checksum_is_thrown_away(self):
        for file in ("config.json", SHARD):
            with self.subTest(file):
                right = self.hub.files[file].data
                self.hub.files[file].data = bytes([right[0] ^ 1]) + right[1:] if right else b""
                self.assert_refused(self.pull(), file, "the hub says " + self.hub.files[file].etag)
                self.assertEqual([p for p in (self.repository / "blobs").iterdir()
                                  if p.name.startswith(self.hub.files[file].etag)], [])
                self.hub.files[file].data = right
        self.assert_pulled(self.pull())

    def test_wrong_lengths(self):
        data = self.hub.files[SHARD].data

        def longer(handler, _):
            handler.answer(206, data[:PART] + b"more")
            return True

        def endless(handler, _):
            handler.send_response(206)
            handler.end_headers()
            try:
                while True:
                    handler.wfile.write(b"x" * 65536)
            except OSError:
                handler.close_connection = True
            return True

        def promised(handler, _):
            if handler.command == "HEAD":
                handler.answer(302, Location=f"{self.hub.cdn}/x", X_Linked_Etag=self.hub.files[SHARD].etag,
                               X_Linked_Size=size)
                return True
            return None
        self.fault(SHARD, longer)
        self.assert_refused(self.pull(), SHARD, "sends more than the ")
        self.fault(SHARD, endless)
        self.assert_refused(self.pull(), SHARD, "sends more than")
        self.hub.faults.clear()
        for size, words in (("70000", "60001"), ("50000", "the hub says"), ("-1", "no size"), ("x", "no size"),
                            ("99999999999999999", "no size")):
            with self.subTest(size):
                self.fault(SHARD, promised, "hub")
                self.assert_refused(self.pull(), SHARD)
        # A disk that cannot hold it: said before a byte is fetched.
        size = str(1 << 44)
        before = len(self.ranges(SHARD))
        self.assert_refused(self.pull(), "bytes are to be fetched", "are free")
        self.assertEqual(len(self.ranges(SHARD)), before)

    def test_no_ranges_is_the_whole_file_at_once(self):
        self.hub.ranges = False
        self.assert_pulled(self.pull())
        self.assertIn(None, self.ranges(SHARD))

    def test_a_signature_that_is_over_is_asked_for_again(self):
        def over(handler, number):
            if number == 3:
                self.hub.signature = "2"
            return None
        self.fault(SHARD, over)
        self.assert_pulled(self.pull("org/model", "--connections", "1", "--retries", "3"))

    def test_redirects(self):
        def to(location, status=302):
            def fault(handler, _):
                handler.answer(status, Location=location)
                return True
            return fault
        path = self.hub.path("config.json")
        moved = self.hub.path("config.json").replace("config.json", "tokenizer_config.json")
        # Within the hub they are followed, in question and answer alike: another file's checksum and bytes.
        self.fault("config.json", to(moved, 307))
        self.hub.files["tokenizer_config.json"] = File(b"{}")
        self.assertEqual(self.pull()[0], 0)
        (self.repository / "refs/main").unlink()
        for location, words in ((path, "more than 6 redirects"), ("ftp://x/y", "no address"), ("nowhere", "no address"),
                                ("http://a@b/", "no address")):
            with self.subTest(location):
                self.fault("config.json", to(location))
                self.assert_refused(self.pull(), words)
        # Another origin that says a checksum of its own is not believed: the hub alone says them.
        self.fault("config.json", to(f"{self.hub.cdn}/x"))
        self.assert_refused(self.pull(), "no checksum")

    def test_names_cannot_leave_the_cache(self):
        outside = self.cache / "outside"
        self.hub.more = [{"rfilename": "../../../../outside"}, {"rfilename": 7}, 7, {}]
        index = {"weight_map": {"a": "../../../outside"}}
        self.hub.files["model.safetensors.index.json"] = File(json.dumps(index).encode())
        self.assert_refused(self.pull(), "no plain name")
        for etag in ("../../../outside", "x" * 64, "A" * 64, "", "a" * 41):
            def named(handler, _):
                handler.answer(200, b"{}", ETag=f'"{etag}"')
                return True
            self.fault("config.json", named)
            self.assert_refused(self.pull(), "no checksum")
        self.assertFalse(outside.exists())
        for name in ("org/..", "../model", "org/model/../x.gguf", "org", "org/model@../x", "a/b/c"):
            self.assertEqual(self.pull(name)[0], 1)

    def test_answers_that_are_no_listing(self):
        path = "/api/models/org/model/revision/main"
        for body, words in ((b"", "the hub's answer"), (b"[]", "no members"), (b"{}", "no commit"),
                            (b'{"sha": "../x", "siblings": []}', "no commit"),
                            (b'{"sha": "%s"}' % COMMIT.encode(), "no files"),
                            (b'{"sha": "%s", "siblings": []}' % COMMIT.encode(), "neither"),
                            (b"[" * 10000, "the hub's answer")):
            def answer(handler, _):
                handler.answer(200, body)
                return True
            self.hub.faults[("hub", path)] = answer
            self.assert_refused(self.pull(), words)
        for status in (403, 404, 500, 503):
            def refuse(handler, _):
                handler.answer(status)
                return True
            self.hub.faults[("hub", path)] = refuse
            self.assert_refused(self.pull(), "org/model")

    def test_without_a_network_it_says_what_to_do(self):
        err = self.assert_refused(self.pull(HF_ENDPOINT="http://127.0.0.1:1"), "cannot be reached", "give its path")
        self.assertIn("HF_ENDPOINT", err)
        self.assert_refused(self.pull(HF_ENDPOINT="http://no-such-host.invalid"), "cannot be reached")
        self.assert_refused(self.pull(HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE")
        self.assert_refused(self.pull(HF_ENDPOINT="ftp://x"), "HF_ENDPOINT")

    def test_over_https_with_a_certificate_that_is_believed(self):
        made = self.cache.parent / (self.cache.name + "-certificate")
        self.addCleanup(made.unlink, missing_ok=True)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(made), "-out", str(made) + ".crt"],
                       check=True, stderr=subprocess.DEVNULL)
        self.addCleanup(pathlib.Path(str(made) + ".crt").unlink)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(str(made) + ".crt", str(made))
        believed = {"SSL_CERT_FILE": str(made) + ".crt"}
        self.hub = Hub(model_files(), tls=tls, cdn_tls=tls)
        self.addCleanup(self.hub.stop)
        self.assert_refused(self.pull(), "cannot be reached", "its certificate is not believed")
        self.assertEqual(self.hub.requests, [])
        self.assert_pulled(self.pull(**believed))
        # A redirect does not lead where nothing is encrypted.
        (self.repository / "refs/main").unlink()
        (self.repository / "blobs" / self.hub.files[SHARD].etag).unlink()
        self.hub.cdn = self.hub.cdn.replace("https", "http")
        self.assert_refused(self.pull(**believed), "not encrypted")

    # ---- two at a time ----

    def test_two_share_what_one_fetches(self):
        arrived, go = threading.Event(), threading.Event()

        def hold(handler, number):
            if number == 1:
                arrived.set()
                go.wait(60)
            return None
        self.fault(SHARD, hold)
        first = self.start()
        self.assertTrue(arrived.wait(60))
        second = self.start()
        for line in second.stderr:
            if "another process is fetching it" in line:
                break
        else:
            self.fail("it did not wait")
        go.set()
        for process in (first, second):
            self.assertEqual((process.communicate(timeout=60), process.returncode)[1], 0)
        self.assert_whole(WANTED)
        self.assertEqual(len(self.ranges(SHARD)), -(-60_001 // PART))

    # ---- serve ----

    def test_serve_fetches_what_the_cache_has_not(self):
        made = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "tiny"
        subprocess.run([BINARY, "make-model", "--preset", "tiny-v3", "--out", str(made)], check=True, capture_output=True)
        self.hub.files = {path.name: File(path.read_bytes()) for path in made.iterdir()}
        process = subprocess.Popen([BINARY, "serve", "org/model", "--port", "0"], stderr=subprocess.PIPE, text=True,
                                   env=self.environment())
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "is ready" in line:
                break
        process.terminate()
        process.communicate(timeout=60)
        self.assertIn("org/model is not here: fetching it", "".join(lines))
        self.assertIn("is ready", lines[-1])
        self.assertEqual((self.repository / "refs/main").read_text(), COMMIT)
        # From here on without the hub.
        inspected = subprocess.run([BINARY, "inspect", "org/model"], capture_output=True, text=True,
                                   env=self.environment(HF_ENDPOINT="http://127.0.0.1:1"))
        self.assertEqual(inspected.returncode, 0, inspected.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
