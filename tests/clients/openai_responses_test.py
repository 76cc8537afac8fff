"""OpenAI's client for Python over /v1/responses, against a server on Sapling: openai_responses_test.py ESPALIER MODEL.

`make test-clients` runs it.
"""

import json
import pathlib
import sys
import tempfile
import typing
import unittest

import openai
import pydantic

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server, generated  # noqa: E402
from reasoning_model import with_reasoning_markers  # noqa: E402

BINARY, MODEL = sys.argv[1], sys.argv[2]
INSTRUCTIONS = "You write Python."
INPUT = "Write a loop."
# Tools for a model that was never taught any: its calls are what the grammar leaves it.
TEMPLATE = ("""{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}"""
            """[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or [] %}{{ call.id }}"""
            """{{ call.function.arguments }}{% endfor %}{% endfor %}[assistant]""")


class Person(pydantic.BaseModel):
    # Bounded on all sides, so that a text without sense comes to its end.
    name: typing.Literal["Ann", "Bob"]
    age: int = pydantic.Field(ge=0, le=99)


class Done(pydantic.BaseModel):
    well: bool


def request(seed=3, temperature=0.8, **more):
    return {"model": pathlib.Path(MODEL).name, "instructions": INSTRUCTIONS, "input": INPUT, "max_output_tokens": 24,
            "temperature": temperature, "extra_body": {"seed": seed}} | more


def client_of(server):
    return openai.OpenAI(base_url=server.root + "/v1", api_key="none", max_retries=0)


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL)
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))
        cls.client = client_of(cls.server)

    def create(self, **more):
        return self.client.responses.create(**request(**more))

    def test_a_response(self):
        whole = self.create(store=True, metadata={"k": "v"})
        self.assertEqual((whole.object, whole.model), ("response", pathlib.Path(MODEL).name))
        self.assertIn(whole.status, ("completed", "incomplete"))
        self.assertEqual(whole.incomplete_details.reason if whole.status == "incomplete" else "max_output_tokens",
                         "max_output_tokens")
        self.assertTrue(whole.output_text)
        self.assertEqual((whole.instructions, whole.metadata, whole.max_output_tokens), (INSTRUCTIONS, {"k": "v"}, 24))
        self.assertIs(whole.model_dump()["store"], False)
        self.assertEqual(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens)
        items = [{"role": "developer", "content": INSTRUCTIONS},
                 {"role": "user", "content": [{"type": "input_text", "text": INPUT}]}]
        self.assertEqual(self.create(instructions=None, input=items).output_text, whole.output_text)
        chat = self.client.chat.completions.create(
            model=whole.model, max_tokens=24, temperature=0.8, seed=3,
            messages=[{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": INPUT}])
        self.assertEqual(chat.choices[0].message.content, whole.output_text)

    def test_a_stream_has_the_same_response(self):
        whole = self.create()
        events = list(self.create(stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        types = [event.type for event in events]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(set(types[4:-4]), {"response.output_text.delta"})
        self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", f"response.{whole.status}"])
        self.assertEqual("".join(event.delta for event in events[4:-4]), whole.output_text)
        final = events[-1].response
        self.assertEqual((final.output_text, final.status, final.usage.output_tokens),
                         (whole.output_text, whole.status, whole.usage.output_tokens))
        with self.client.responses.stream(**request()) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)

    def test_text_is_that_of_generate(self):
        for seed, temperature in ((1, 0.0), (2, 0.8)):
            chat = {"messages": [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": INPUT}]}
            prompt = self.client.post("../apply-template", cast_to=object, body=chat)["prompt"]
            prompt = prompt.removeprefix("<｜begin▁of▁sentence｜>")  # generate writes it itself
            self.assertEqual(self.create(seed=seed, temperature=temperature).output_text,
                             generated(BINARY, MODEL, prompt, 24, seed, temperature))

    def test_structured_output(self):
        made = self.client.responses.parse(**request(max_output_tokens=500), text_format=Person)
        self.assertEqual(made.status, "completed")
        self.assertIsInstance(made.output_parsed, Person)
        with self.client.responses.stream(**request(max_output_tokens=500), text_format=Person) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_parsed, made.output_parsed)

    def test_what_is_not_kept_is_refused_by_name(self):
        refused = {"previous_response_id": "resp_1", "conversation": "conv_1", "background": True,
                   "input": [{"type": "item_reference", "id": "msg_1"}]}
        for name, value in refused.items():
            with self.assertRaises(openai.BadRequestError) as wrong:
                self.create(**{name: value})
            self.assertTrue(wrong.exception.param.startswith(name), wrong.exception)
            self.assertIn("keeps no", wrong.exception.message)
        for tool in ({"type": "web_search"}, {"type": "file_search", "vector_store_ids": ["v"]},
                     {"type": "code_interpreter", "container": {"type": "auto"}}):
            with self.assertRaises(openai.BadRequestError) as hosted:
                self.create(tools=[tool])
            self.assertEqual(hosted.exception.param, "tools[0].type")
            self.assertIn(tool["type"], hosted.exception.message)
        with self.assertRaises(openai.NotFoundError) as lost:
            self.client.responses.retrieve("resp_1")
        self.assertIn("keeps no responses", lost.exception.message)
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.create(max_output_tokens=0)
        self.assertEqual(wrong.exception.param, "max_output_tokens")
        with self.assertRaises(openai.BadRequestError) as long:
            self.create(input="x = 1\n" * 4000)
        self.assertEqual((long.exception.code, long.exception.param), ("context_length_exceeded", "input"))

    def test_a_stream_that_the_server_ends_says_so(self):
        server = Server(BINARY, MODEL, "--drain-seconds", "0")
        stream = client_of(server).responses.create(
            **request(max_output_tokens=1900, extra_body={"ignore_eos": True}), stream=True)
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        self.assertEqual(server.stop(), 0)
        last = list(stream)[-1]
        self.assertEqual((last.type, last.response.status), ("response.failed", "failed"))
        self.assertIn("shutting down", last.response.error.message)

    def test_reasoning_is_an_item(self):
        with with_reasoning_markers(MODEL) as model:
            server = Server(BINARY, model, "--reasoning-format", "deepseek_r1")
            try:
                self.reason(client_of(server))
            finally:
                self.assertEqual(server.stop(), 0)

    def reason(self, client):
        asked = request(extra_body={"seed": 3, "thinking_token_budget": 6})
        whole = client.responses.create(**asked)
        self.assertEqual([item.type for item in whole.output], ["reasoning", "message"])
        self.assertTrue(whole.output[0].content[0].text)
        self.assertGreaterEqual(whole.usage.output_tokens_details.reasoning_tokens, 6)
        events = list(client.responses.create(**asked, stream=True))
        told = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        self.assertEqual(told, whole.output[0].content[0].text)
        [done] = [event for event in events if event.type == "response.reasoning_text.done"]
        self.assertEqual(done.text, told)
        # The way back: the items are part of the next input.
        client.responses.create(**asked | {"input": [{"role": "user", "content": INPUT}, *whole.output,
                                                     {"role": "user", "content": "More."}]})


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "template.jinja"
        path.write_text(TEMPLATE)
        cls.server = Server(BINARY, MODEL, "--chat-template", str(path), "--tool-format", "kimi_k2")
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))
        cls.client = client_of(cls.server)

    def test_calls_and_their_outputs(self):
        tools = [openai.pydantic_function_tool(Person)["function"] | {"type": "function"},
                 openai.pydantic_function_tool(Done)["function"] | {"type": "function"}]
        history = [{"role": "user", "content": INPUT}]
        for seed in range(4):
            asked = request(seed=seed, temperature=1, input=history, tools=tools, tool_choice="required",
                            parallel_tool_calls=False, max_output_tokens=500)
            whole = self.client.responses.parse(**asked)
            [call] = whole.output
            self.assertEqual((call.type, call.status, whole.status), ("function_call", "completed", "completed"))
            self.assertIn(call.name, ("Person", "Done"))
            {"Person": Person, "Done": Done}[call.name].model_validate_json(call.arguments)
            with self.client.responses.stream(**asked) as stream:
                events = list(stream)
            told = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
            [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
            self.assertEqual((told, done.arguments), (call.arguments, call.arguments))
            self.assertEqual(events[-1].response.output[0].call_id, call.call_id)
            history += [*whole.output, {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}]
        named = self.client.responses.create(**request(
            seed=1, temperature=1, tools=tools, tool_choice={"type": "function", "name": "Done"}, max_output_tokens=500))
        self.assertIsInstance(json.loads(named.output[0].arguments)["well"], bool)
        after = self.client.responses.create(**request(input=history, tools=tools, tool_choice="none"))
        self.assertEqual([item.type for item in after.output], ["message"])
        self.assertGreater(after.usage.input_tokens, named.usage.input_tokens)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
