# SPDX-License-Identifier: Apache-2.0
"""KV events as a router hears them, with pyzmq and msgpack: an index rebuilt from what came, after losses and a replay, finds
for every prompt what the server finds.

  tests/clients/kv_events_test.py build/cpu/espalier models/sapling
"""

import concurrent.futures
import json
import pathlib
import random
import re
import sys
import threading
import unittest
import urllib.request

import msgpack
import zmq

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server  # noqa: E402

BINARY, MODEL = sys.argv[1:3]
BLOCK = 64
END = (-1).to_bytes(8, "big", signed=True)


class Index:
    """What a router keeps: blocks by hash, and for each the ones behind it by their tokens."""

    def __init__(self):
        self.next = 0
        self.clear()

    def clear(self):
        self.blocks, self.behind = {}, {}

    def apply(self, number, payload):
        assert number == self.next, f"{number} after {self.next - 1}"
        self.next += 1
        seconds, events, rank = msgpack.unpackb(payload)
        assert seconds > 1.7e9 and rank == 0
        for name, *fields in events:
            getattr(self, name)(*fields)

    def AllBlocksCleared(self):
        self.clear()

    def BlockStored(self, hashes, parent, tokens, size, lora, medium):
        assert (size, lora, medium) == (BLOCK, None, "GPU") and len(tokens) == BLOCK * len(hashes)
        for place, name in enumerate(hashes):
            assert parent is None or parent in self.blocks
            assert name not in self.blocks
            own = tuple(tokens[place * BLOCK:(place + 1) * BLOCK])
            self.blocks[name] = (parent, own)
            self.behind.setdefault((parent, own), set()).add(name)
            parent = name

    def BlockRemoved(self, hashes, medium):
        assert medium == "GPU"
        for name in hashes:
            place = self.blocks.pop(name)
            self.behind[place].remove(name)

    def cached_tokens(self, prompt):
        parents, count = {None}, 0
        while len(prompt) > (count + 1) * BLOCK:
            own = tuple(prompt[count * BLOCK:(count + 1) * BLOCK])
            parents = {name for parent in parents for name in self.behind.get((parent, own), ())}
            if not parents:
                break
            count += 1
        return count * BLOCK


class Listener:
    """A subscriber that loses a part of what comes."""

    def __init__(self, endpoint, topic, losses):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.socket.connect(endpoint)
        self.heard, self.lost, self.losses, self.ended = {}, 0, losses, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        chance = random.Random(5)
        while not self.ended:
            if not self.socket.poll(50):
                continue
            topic, number, payload = self.socket.recv_multipart()
            assert topic == b"kv@test"
            if chance.random() < self.losses:
                self.lost += 1
            else:
                self.heard[int.from_bytes(number, "big")] = payload

    def end(self):
        self.ended = True
        self.thread.join()
        self.socket.close(0)


def replayed(endpoint, first):
    """A router's question for what it missed; behind it the index is what the server's is at that moment."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart((b"", first.to_bytes(8, "big")))
    while True:
        assert socket.poll(60_000), "no replay"
        _, number, payload = socket.recv_multipart()
        if number == END:
            socket.close(0)
            return
        yield int.from_bytes(number, "big"), payload


class KvEvents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A cache of 40 pages: most of what was there is thrown out again.
        cls.server = Server(BINARY, MODEL, "--pages", "40", "--rows", "4", "--max-model-len", "512", "--max-waiting", "1000",
                            "--kv-events-endpoint", "tcp://127.0.0.1:*", "--kv-events-replay-endpoint", "tcp://127.0.0.1:*",
                            "--kv-events-topic", "kv@test")
        said = re.search(r"KV events at (\S+), replays at (\S+);", "".join(cls.server.log))
        cls.endpoint, cls.replay = said.groups()
        cls.random = random.Random(11)
        cls.roots = [[cls.random.randrange(5, 200) for _ in range(BLOCK)] for _ in range(6)]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def prompt(self):
        """Up to four blocks, of which many begin alike: prompts of this length are computed in one form."""
        tokens = []
        for _ in range(self.random.randrange(1, 4)):
            tokens += self.random.choice(self.roots)
        return tokens + [self.random.randrange(5, 200) for _ in range(self.random.randrange(1, 60))]

    def complete(self, prompt, max_tokens, **fields):
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 1, "seed": 3, **fields}
        request = urllib.request.Request(self.server.root + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_an_index_rebuilt_after_losses_and_a_replay_is_the_servers(self):
        listener = Listener(self.endpoint, b"kv@", losses=0.25)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(self.complete, self.prompt(), self.random.randrange(1, 90)) for _ in range(160)]
            for job in jobs:
                job.result()
        self.server.wait_until_idle()
        listener.end()
        self.assertGreater(listener.lost, 10)

        # What was heard, and what is missing between and behind it by replays.
        index, asked = Index(), 0
        for number in sorted(listener.heard):
            if number > index.next:
                asked += 1
                for other, payload in replayed(self.replay, index.next):
                    if other < number:
                        index.apply(other, payload)
            index.apply(number, listener.heard[number])
        for number, payload in replayed(self.replay, index.next):
            index.apply(number, payload)
        self.assertGreater(asked, 5)
        whole = Index()
        for number, payload in replayed(self.replay, 0):
            whole.apply(number, payload)
        self.assertEqual(index.blocks, whole.blocks)
        self.assertGreater(len(index.blocks), 20)
        self.assertLessEqual(len(index.blocks), 40)

        hits = 0
        for _ in range(60):
            prompt = self.prompt()
            expected = index.cached_tokens(prompt)
            self.assertEqual(self.complete(prompt, 1), expected)
            hits += expected > 0
            self.server.wait_until_idle()
            for number, payload in replayed(self.replay, index.next):
                index.apply(number, payload)
        self.assertGreater(hits, 20)

        # Nothing is said of what a request keeps apart.
        secret = [777] * (2 * BLOCK + 1)
        self.assertEqual(self.complete(secret, 1, cache_salt="mine"), 0)
        self.assertEqual(self.complete(secret, 1, cache_salt="mine"), 2 * BLOCK)
        self.server.wait_until_idle()
        self.assertFalse(any(b"\xcd\x03\x09" * 3 in payload for _, payload in replayed(self.replay, 0)))
        print(f"{whole.next} batches, {listener.lost} lost, {asked} replays, {len(index.blocks)} blocks; "
              f"60 prompts found what the index says, {hits} of them cached pages")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
