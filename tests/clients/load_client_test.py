"""vLLM's own load client over chats, completions and responses: load_client_test.py ESPALIER MODEL endpoint_request_func.py.

The file is vLLM's (vllm/benchmarks/lib), from its source archive at PyPI: its rule says which event is the first token. Chats and
completions of the same prompt must have the same time to it. `make test-clients` runs it.
"""

import asyncio
import importlib.util
import pathlib
import random
import statistics
import sys
import unittest

import aiohttp

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server  # noqa: E402

BINARY, MODEL, CLIENT = sys.argv[1:4]
NAME = pathlib.Path(MODEL).name
PAIRS = 15
TRIES = 4  # another program may take the machine for a while
OUTPUT = 12


def load_client():
    # A class of the module is found by the module's name.
    spec = importlib.util.spec_from_file_location("endpoint_request_func", CLIENT)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules[spec.name]


class LoadClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = load_client()
        # Every prompt is computed: what is timed is the same work.
        cls.server = Server(BINARY, MODEL, "--prefix-cache", "off", "--speculate", "off")
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))

    async def one(self, session, kind, path, prompt):
        send = getattr(self.client, f"async_request_openai_{kind}")
        got = await send(self.client.RequestFuncInput(
            prompt=prompt, api_url=self.server.root + path, prompt_len=1, output_len=OUTPUT, model=NAME, ignore_eos=True), session)
        self.assertTrue(got.success, got.error)
        self.assertEqual(got.output_tokens, OUTPUT)
        return got

    async def pairs(self, session):
        seconds = {"completions": [], "chat_completions": [], "responses": []}
        numbers = random.Random(3)
        for _ in range(PAIRS):
            text = " ".join(numbers.choice(["def", "x", "loop", "print", "return"]) for _ in range(300))
            paths = {"completions": "/v1/completions", "chat_completions": "/v1/chat/completions", "responses": "/v1/responses"}
            order = list(paths)
            numbers.shuffle(order)
            for kind in order:
                got = await self.one(session, kind, paths[kind], text)
                seconds[kind].append(got.ttft)
        return {kind: statistics.median(times) for kind, times in seconds.items()}

    async def compare(self):
        async with aiohttp.ClientSession() as session:
            for tried in range(TRIES):
                median = await self.pairs(session)
                ratio = {kind: median[kind] / median["completions"] for kind in median}
                print(f"first token: completions {1e3 * median['completions']:.1f} ms, chats {ratio['chat_completions']:.3f} of it, "
                      f"responses {ratio['responses']:.3f} (medians of {PAIRS})")
                if all(abs(one - 1) <= 0.1 for one in ratio.values()):
                    return
        self.fail(f"times to the first token differ: {ratio}")

    def test_a_chats_first_token_is_that_of_completions(self):
        asyncio.run(self.compare())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
