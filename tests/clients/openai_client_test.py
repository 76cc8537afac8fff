"""The official OpenAI client (PyPI) against a server on Sapling: python3 openai_client_test.py ESPALIER MODEL.

`make test-clients` runs it with a client of its own, outside the tree.
"""

import asyncio
import re
import subprocess
import sys
import time
import unittest

import openai

BINARY, MODEL = sys.argv[1], sys.argv[2]
PROMPT = "def clamp(value, low, high):"


class Server:
    """espalier serve on a free port, which its log names."""

    def __enter__(self):
        self.process = subprocess.Popen(
            [BINARY, "serve", MODEL, "--port", "0", "--api-key", "sk-test"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found.group(1) + "/v1"
            if "is ready" in line:
                break
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stderr.close()
        assert self.process.wait() == 0


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server().__enter__()
        cls.client = openai.OpenAI(base_url=cls.server.url, api_key="sk-test", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def complete(self, **more):
        return self.client.completions.create(
            **({"model": self.model, "prompt": PROMPT, "max_tokens": 24, "seed": 3} | more))

    def chat(self, **more):
        return self.client.chat.completions.create(
            **({"model": self.model, "messages": [{"role": "user", "content": "Write a loop."}], "max_tokens": 24,
                "seed": 3} | more))

    def test_completions_stream_to_the_same_text(self):
        whole = self.complete()
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertIn(chunks[-2].choices[0].finish_reason, ("stop", "length"))

    def test_chats_stream_to_the_same_text(self):
        whole = self.chat()
        self.assertEqual(whole.choices[0].message.role, "assistant")
        chunks = list(self.chat(stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole.choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_logprobs_choices_and_stops(self):
        chat = self.chat(logprobs=True, top_logprobs=3, n=2)
        self.assertEqual(len(chat.choices), 2)
        for choice in chat.choices:
            for token in choice.logprobs.content:
                self.assertEqual(len(token.top_logprobs), 3)
        scored = self.complete(max_tokens=0, echo=True, logprobs=1).choices[0]
        self.assertEqual(scored.text, PROMPT)
        self.assertIsNone(scored.logprobs.token_logprobs[0])
        text = self.complete().choices[0].text
        stop = text[len(text) // 2:len(text) // 2 + 2]
        stopped = self.complete(stop=stop).choices[0]
        self.assertEqual((stopped.text, stopped.finish_reason), (text[:text.index(stop)], "stop"))

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.chat(temperature=-1)
        self.assertEqual(wrong.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="gpt-4")
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="sk-other").models.list()

    def test_a_stream_that_is_closed_is_cancelled(self):
        stream = self.complete(stream=True, max_tokens=1500, n=4, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        metrics = self.client.with_options(base_url=self.server.url.removesuffix("/v1"))
        for _ in range(6000):
            text = metrics.get("/metrics", cast_to=str)
            if re.search(r"requests_cancelled_total\{.*\} 4", text):
                return
            time.sleep(0.01)
        self.fail("it ran on")

    def test_many_at_once(self):
        async def run():
            client = openai.AsyncOpenAI(base_url=self.server.url, api_key="sk-test", max_retries=0)
            texts = await asyncio.gather(*(
                client.completions.create(model=self.model, prompt=PROMPT, max_tokens=8, seed=i % 4) for i in range(32)))
            return [(i % 4, text.choices[0].text) for i, text in enumerate(texts)]

        self.assertLessEqual(len(set(asyncio.run(run()))), 4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
