"""The official OpenAI client for Python against a server on Sapling: openai_client_test.py ESPALIER MODEL.

openai_client_test.mjs is the same list with the client for JavaScript. `make test-clients` runs both.
"""

import asyncio
import pathlib
import sys
import unittest

import openai

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server  # noqa: E402

BINARY, MODEL = sys.argv[1], sys.argv[2]
KEY = "sk-test"
PROMPT = "def clamp(value, low, high):"
MESSAGES = [{"role": "system", "content": "You write Python."}, {"role": "user", "content": "Write a loop."}]
# 64 outputs of 1,900 tokens: minutes of work on any CPU, so what is cancelled cannot have finished by itself.
ENDLESS = {"max_tokens": 1900, "n": 64, "extra_body": {"ignore_eos": True}}


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL, "--api-key", KEY)
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))
        cls.client = openai.OpenAI(base_url=cls.server.root + "/v1", api_key=KEY, max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    def complete(self, client=None, **more):
        return (client or self.client).completions.create(
            **({"model": self.model, "prompt": PROMPT, "max_tokens": 24, "seed": 3} | more))

    def chat(self, **more):
        return self.client.chat.completions.create(
            **({"model": self.model, "messages": MESSAGES, "max_tokens": 24, "seed": 3} | more))

    def test_models(self):
        self.assertEqual(self.client.models.retrieve(self.model).object, "model")

    def test_chat(self):
        whole = self.chat()
        self.assertEqual((whole.object, whole.model), ("chat.completion", self.model))
        choice = whole.choices[0]
        self.assertEqual((choice.index, choice.message.role), (0, "assistant"))
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertTrue(choice.message.content)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        self.assertEqual(self.chat().choices[0].message.content, choice.message.content)
        parts = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in MESSAGES]
        self.assertEqual(self.chat(messages=parts).choices[0].message.content, choice.message.content)

    def test_completions(self):
        whole = self.complete()
        self.assertEqual((whole.object, whole.choices[0].index), ("text_completion", 0))
        self.assertTrue(whole.choices[0].text)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        several = self.complete(prompt=[PROMPT, PROMPT]).choices
        self.assertEqual([choice.index for choice in several], [0, 1])

    def test_chat_streams_to_the_same_text(self):
        whole = self.chat().choices[0]
        chunks = list(self.chat(stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole.message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.finish_reason)
        self.assertEqual({c.id for c in chunks}, {chunks[0].id})
        self.assertEqual({c.object for c in chunks}, {"chat.completion.chunk"})

    def test_completions_stream_to_the_same_text(self):
        whole = self.complete().choices[0]
        chunks = list(self.complete(stream=True))
        self.assertEqual("".join(c.choices[0].text for c in chunks), whole.text)
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.finish_reason)

    def test_the_last_chunk_has_the_usage(self):
        for request in (self.chat, self.complete):
            whole = request().usage
            chunks = list(request(stream=True, stream_options={"include_usage": True}))
            self.assertEqual(chunks[-1].choices, [])
            self.assertEqual((chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens),
                             (whole.prompt_tokens, whole.completion_tokens))
            self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))

    def test_logprobs_of_chats(self):
        choice = self.chat(logprobs=True, top_logprobs=3).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual("".join(token.token for token in tokens), choice.message.content)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            best = [top.logprob for top in token.top_logprobs]
            self.assertEqual((len(best), best), (3, sorted(best, reverse=True)))
        streamed = [token for chunk in self.chat(logprobs=True, top_logprobs=3, stream=True)
                    for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
        self.assertEqual(streamed, tokens)

    def test_logprobs_of_completions(self):
        logprobs = self.complete(logprobs=2).choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), len(logprobs.token_logprobs))
        self.assertTrue(all(len(top) in (2, 3) for top in logprobs.top_logprobs))  # two and the one drawn
        scored = self.complete(max_tokens=0, echo=True, logprobs=1).choices[0]  # as evaluation harnesses do
        self.assertEqual(scored.text, PROMPT)
        self.assertIsNone(scored.logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in scored.logprobs.token_logprobs[1:]))

    def test_stop(self):
        text = self.complete().choices[0].text
        stop = text[len(text) // 2:len(text) // 2 + 2]
        stopped = self.complete(stop=["never in it \0", stop]).choices[0]
        self.assertEqual((stopped.text, stopped.finish_reason), (text[:text.index(stop)], "stop"))
        chunks = list(self.complete(stop=stop, stream=True))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), stopped.text)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_n(self):
        choices = self.chat(n=3).choices
        self.assertEqual([choice.index for choice in choices], [0, 1, 2])
        texts = ["", "", ""]
        for chunk in self.chat(n=3, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in choices])

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.chat(temperature=-1)
        self.assertEqual((wrong.exception.param, wrong.exception.type), ("temperature", "invalid_request_error"))
        with self.assertRaises(openai.BadRequestError) as unknown:
            self.chat(tools=[{"type": "function", "function": {"name": "f"}}])
        self.assertEqual(unknown.exception.param, "tools")
        with self.assertRaises(openai.BadRequestError) as long:
            self.complete(prompt="x = 1\n" * 4000)
        self.assertIn("2048", long.exception.message)
        with self.assertRaises(openai.BadRequestError):
            self.chat(stream=True, messages=[])
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="gpt-4")
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="sk-other").models.list()

    def test_a_full_queue_is_a_rate_limit(self):
        server = Server(BINARY, MODEL, "--rows", "1", "--max-waiting", "1")
        client = openai.OpenAI(base_url=server.root + "/v1", api_key="none", max_retries=0)
        endless = ENDLESS | {"n": 1, "stream": True}
        running = self.complete(client, **endless)
        next(iter(running))  # it has the row
        waiting = self.complete(client, **endless)
        with self.assertRaises(openai.RateLimitError) as full:
            self.complete(client)
        self.assertGreater(int(full.exception.response.headers["retry-after"]), 0)
        waiting.close()
        running.close()
        server.wait_until_idle()
        self.assertTrue(self.complete(client).choices[0].text)
        self.assertEqual(server.stop(), 0)

    def test_a_stream_that_the_server_ends_is_an_error(self):
        server = Server(BINARY, MODEL, "--drain-seconds", "0")
        client = openai.OpenAI(base_url=server.root + "/v1", api_key="none", max_retries=0)
        stream = self.complete(client, stream=True, **ENDLESS)
        next(iter(stream))
        self.assertEqual(server.stop(), 0)
        with self.assertRaises(openai.APIError) as ended:
            for _ in stream:
                pass
        self.assertNotIsInstance(ended.exception, openai.APIConnectionError)  # it was told, not cut off

    def test_a_stream_that_is_closed_is_cancelled(self):
        before = self.server.metric("requests_cancelled_total", KEY)
        stream = self.complete(stream=True, **ENDLESS)
        next(iter(stream))
        stream.close()
        self.server.wait_until_idle(KEY)
        self.assertGreater(self.server.metric("requests_cancelled_total", KEY), before)

    def test_a_call_that_is_abandoned_is_cancelled(self):
        async def abandon():
            async with openai.AsyncOpenAI(base_url=self.server.root + "/v1", api_key=KEY, max_retries=0) as client:
                call = asyncio.create_task(self.complete(client, **ENDLESS))
                while self.server.metric("num_requests_running", KEY) == 0:
                    await asyncio.sleep(0.01)
                call.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await call

        before = self.server.metric("requests_cancelled_total", KEY)
        asyncio.run(abandon())
        self.server.wait_until_idle(KEY)
        self.assertGreater(self.server.metric("requests_cancelled_total", KEY), before)

    def test_many_at_once(self):
        """64 calls of four kinds at a time; each has the text that it has alone."""
        alone = [self.complete(seed=seed, max_tokens=12).choices[0].text for seed in range(4)]

        async def one(client, number):
            seed = number % 4
            call = {"seed": seed, "max_tokens": 12}
            if number % 8 < 4:
                return seed, (await self.complete(client, **call)).choices[0].text
            stream = await self.complete(client, stream=True, **call)
            return seed, "".join([chunk.choices[0].text async for chunk in stream])

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.server.root + "/v1", api_key=KEY, max_retries=0) as client:
                return await asyncio.gather(*(one(client, number) for number in range(64)))

        for seed, text in asyncio.run(all_of_them()):
            self.assertEqual(text, alone[seed])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
