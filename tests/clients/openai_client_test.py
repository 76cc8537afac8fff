"""The official OpenAI client for Python against a server on Sapling: openai_client_test.py ESPALIER MODEL.

openai_client_test.mjs is the same list with the client for JavaScript. `make test-clients` runs both.
"""

import asyncio
import json
import pathlib
import sys
import tempfile
import time
import typing
import unittest

import openai
import pydantic

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server, generated  # noqa: E402

BINARY, MODEL = sys.argv[1], sys.argv[2]
KEY = "sk-test"
PROMPT = "def clamp(value, low, high):"
MESSAGES = [{"role": "system", "content": "You write Python."}, {"role": "user", "content": "Write a loop."}]
# 64 outputs of 1,900 tokens: minutes of work on any CPU, so what is cancelled cannot have finished by itself.
ENDLESS = {"max_tokens": 1900, "n": 64, "extra_body": {"ignore_eos": True}}
# Tools for a model that was never taught any: its calls are what the grammar leaves it.
TEMPLATE = ("""{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}"""
            """[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or [] %}{{ call.id }}"""
            """{{ call.function.arguments }}{% endfor %}{% endfor %}[assistant]""")


class Person(pydantic.BaseModel):
    # Bounded on all sides, so that a text without sense comes to its end.
    name: typing.Literal["Ann", "Bob"]
    age: int = pydantic.Field(ge=0, le=99)
    tags: list[typing.Literal["a", "b"]] = pydantic.Field(max_length=2)


class Done(pydantic.BaseModel):
    well: bool


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

    def test_texts_are_those_of_generate(self):
        rendered = self.client.post("../apply-template", cast_to=object, body={"messages": MESSAGES})["prompt"]
        rendered = rendered.removeprefix("<｜begin▁of▁sentence｜>")  # generate writes it itself
        for seed, temperature in ((1, 0.0), (2, 0.8), (3, 1.2)):
            asked = {"seed": seed, "temperature": temperature}
            self.assertEqual(self.complete(**asked).choices[0].text, generated(BINARY, MODEL, PROMPT, 24, seed, temperature))
            self.assertEqual(self.chat(**asked).choices[0].message.content, generated(BINARY, MODEL, rendered, 24, seed, temperature))

    def test_a_prediction_is_accepted_and_changes_nothing(self):
        plain = self.chat(max_tokens=60).choices[0].message.content
        for expected in (plain, plain[:40] + " something else"):
            whole = self.chat(max_tokens=60, prediction={"type": "content", "content": expected})
            self.assertEqual(whole.choices[0].message.content, plain)
        details = whole.usage.completion_tokens_details
        self.assertGreaterEqual(details.accepted_prediction_tokens, 0)
        self.assertGreaterEqual(details.rejected_prediction_tokens, 0)

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

    def test_structured_output_with_pydantic(self):
        for seed in range(3):
            made = self.client.chat.completions.parse(model=self.model, messages=MESSAGES, response_format=Person,
                                                      max_tokens=1000, seed=seed, temperature=1)
            self.assertEqual(made.choices[0].finish_reason, "stop")
            self.assertIsInstance(made.choices[0].message.parsed, Person)
        with self.client.chat.completions.stream(model=self.model, messages=MESSAGES, response_format=Person,
                                                 max_tokens=1000, seed=2, temperature=1) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, made.choices[0].message.parsed)

    def test_a_bad_schema_is_named(self):
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.chat(response_format={"type": "json_schema", "json_schema": {
                "name": "n", "schema": {"type": "object", "uniqueNonsense": True}}})
        self.assertEqual(wrong.exception.param, "response_format.json_schema.schema")
        self.assertIn("uniqueNonsense", wrong.exception.message)

    def test_tool_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "template.jinja"
            path.write_text(TEMPLATE)
            server = Server(BINARY, MODEL, "--chat-template", str(path), "--tool-format", "kimi_k2")
            try:
                self.call_tools(openai.OpenAI(base_url=server.root + "/v1", api_key="none", max_retries=0))
            finally:
                self.assertEqual(server.stop(), 0)

    def call_tools(self, client):
        tools = [openai.pydantic_function_tool(Person), openai.pydantic_function_tool(Done)]
        request = {"model": self.model, "messages": MESSAGES, "tools": tools, "tool_choice": "required",
                   "max_tokens": 1000, "temperature": 1}
        for seed in range(3):
            single = request | {"seed": seed, "parallel_tool_calls": False}
            choice = client.chat.completions.parse(**single).choices[0]
            self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
            [call] = choice.message.tool_calls
            self.assertIsInstance(call.function.parsed_arguments, (Person, Done))
            self.assertTrue(call.id.startswith(f"functions.{call.function.name}:"))
            with client.chat.completions.stream(**single) as stream:
                events = [event.type for event in stream]
                final = stream.get_final_completion().choices[0]
            self.assertIn("tool_calls.function.arguments.delta", events)
            self.assertEqual(final.message.tool_calls[0].function, call.function)
        most = max(self.call_in_parallel(client, request | {"seed": seed}) for seed in range(8))
        self.assertGreater(most, 1, "no seed gave parallel calls")
        named = client.chat.completions.create(
            **(request | {"tool_choice": {"type": "function", "function": {"name": "Done"}}}), seed=1)
        call = named.choices[0].message.tool_calls[0]
        self.assertIsInstance(json.loads(call.function.arguments)["well"], bool)
        # The way back: the call and its answer are part of the next prompt.
        history = MESSAGES + [named.choices[0].message,
                              {"role": "tool", "tool_call_id": call.id, "content": "It went well."}]
        after = client.chat.completions.create(**(request | {"messages": history, "tool_choice": "none"}))
        self.assertIsNone(after.choices[0].message.tool_calls)
        self.assertGreater(after.usage.prompt_tokens, named.usage.prompt_tokens)

    def call_in_parallel(self, client, request):
        """Calls as one object and as a stream; the number of those that are whole."""
        choice = client.chat.completions.create(**request).choices[0]
        self.assertIn(choice.finish_reason, ("tool_calls", "length"))
        calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        streamed = []
        for chunk in client.chat.completions.create(**request, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                if call.index == len(streamed):
                    streamed.append([call.id, call.function.name, ""])
                else:
                    self.assertIsNone(call.id)
                streamed[call.index][2] += call.function.arguments
        self.assertEqual([tuple(call) for call in streamed], calls)
        whole = calls if choice.finish_reason == "tool_calls" else calls[:-1]  # the last was cut off
        for _, name, arguments in whole:
            {"Person": Person, "Done": Done}[name].model_validate_json(arguments)
        return len(whole)

    def test_a_full_queue_is_a_rate_limit(self):
        server = Server(BINARY, MODEL, "--rows", "1", "--max-waiting", "1")
        client = openai.OpenAI(base_url=server.root + "/v1", api_key="none", max_retries=0)
        endless = ENDLESS | {"n": 1, "stream": True}
        running = self.complete(client, **endless)
        next(iter(running))  # it has the row, which the engine tells when the step is over
        while server.metric("num_requests_waiting") > 0:
            time.sleep(0.01)
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
