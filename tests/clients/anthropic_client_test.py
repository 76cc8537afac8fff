"""The official Anthropic client for Python against a server on Sapling: anthropic_client_test.py ESPALIER MODEL.

/v1/messages as coding agents use it. `make test-clients` runs it.
"""

import pathlib
import sys
import tempfile
import typing
import unittest

import anthropic
import pydantic

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server, generated  # noqa: E402
from reasoning_model import with_reasoning_markers  # noqa: E402

BINARY, MODEL = sys.argv[1], sys.argv[2]
KEY = "sk-ant-test"
SYSTEM = "You write Python."
MESSAGES = [{"role": "user", "content": "Write a loop."}]
# Tools for a model that was never taught any: its calls are what the grammar leaves it.
TEMPLATE = ("""{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}"""
            """[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or [] %}{{ call.id }}"""
            """{{ call.function.arguments }}{% endfor %}{% endfor %}[assistant]""")
TOOLS = [
    {"name": "read", "description": "Reads a file.", "input_schema": {
        "type": "object", "properties": {"file": {"enum": ["a.py", "b.py"]}, "line": {"type": "integer", "minimum": 0,
                                                                                   "maximum": 99}},
        "required": ["file", "line"], "additionalProperties": False}},
    {"name": "done", "input_schema": {"type": "object", "properties": {"well": {"type": "boolean"}},
                                      "required": ["well"], "additionalProperties": False}},
]


class Person(pydantic.BaseModel):
    name: typing.Literal["Ann", "Bob"]
    well: bool


def check_input(block):
    if block.name == "read":
        assert block.input["file"] in ("a.py", "b.py") and 0 <= block.input["line"] <= 99, block
    else:
        assert isinstance(block.input["well"], bool), block


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL, "--api-key", KEY)
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))
        cls.client = anthropic.Anthropic(base_url=cls.server.root, api_key=KEY, max_retries=0)
        cls.model = pathlib.Path(MODEL).name

    def request(self, **more):
        seed = more.pop("seed", 3)
        temperature = more.pop("temperature", 0.8)
        return {"model": self.model, "max_tokens": 24, "system": SYSTEM, "messages": MESSAGES,
                "extra_body": {"seed": seed, "temperature": temperature} | more.pop("extra_body", {})} | more

    def create(self, **more):
        return self.client.messages.create(**self.request(**more))

    def test_a_message(self):
        message = self.create()
        self.assertEqual((message.type, message.role, message.model), ("message", "assistant", self.model))
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
        self.assertTrue(message.content[0].text)
        self.assertLessEqual(message.usage.output_tokens, 24)
        self.assertTrue(message._request_id)
        blocks = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
        self.assertEqual(self.create(system=blocks).content, message.content)
        bearer = anthropic.Anthropic(base_url=self.server.root, auth_token=KEY, api_key=None, max_retries=0)
        self.assertEqual(bearer.messages.create(**self.request()).content, message.content)
        beta = self.client.beta.messages.create(**self.request(), betas=["context-management-2025-06-27"])
        self.assertEqual(beta.content[0].text, message.content[0].text)

    def test_a_stream_has_the_same_message(self):
        whole = self.create()
        types = [event.type for event in self.create(stream=True)]
        self.assertEqual((types[0], types[1], types[-3:]), (
            "message_start", "content_block_start", ["content_block_stop", "message_delta", "message_stop"]))
        self.assertEqual(set(types[2:-3]), {"content_block_delta"})
        with self.client.messages.stream(**self.request()) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual((final.stop_reason, final.stop_sequence), (whole.stop_reason, whole.stop_sequence))
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_text_is_that_of_generate(self):
        for seed, temperature in ((1, 0.0), (2, 0.8)):
            chat = {"messages": [{"role": "system", "content": SYSTEM}, *MESSAGES]}
            prompt = self.client.post("/apply-template", cast_to=object, body=chat)["prompt"]
            prompt = prompt.removeprefix("<｜begin▁of▁sentence｜>")  # generate writes it itself
            message = self.create(seed=seed, temperature=temperature)
            self.assertEqual(message.content[0].text, generated(BINARY, MODEL, prompt, 24, seed, temperature))

    def test_tokens_are_counted(self):
        counted = self.client.messages.count_tokens(model=self.model, system=SYSTEM, messages=MESSAGES)
        usage = self.create().usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_a_last_message_of_the_assistant_is_continued(self):
        begun = [*MESSAGES, {"role": "assistant", "content": "for i in"}]
        message = self.create(messages=begun)
        chat = {"messages": [{"role": "system", "content": SYSTEM}, *begun], "continue_final_message": True}
        prompt = self.client.post("/apply-template", cast_to=object, body=chat)["prompt"]
        self.assertTrue(prompt.endswith("for i in"), prompt)
        tokens = self.client.post("/tokenize", cast_to=object, body=chat)["tokens"]
        same = {"max_tokens": 24, "seed": 3, "temperature": 0.8}
        raw = self.client.post("/v1/completions", cast_to=object, body=same | {"prompt": tokens})
        self.assertEqual(message.content[0].text, raw["choices"][0]["text"])
        continued = self.client.post("/v1/chat/completions", cast_to=object, body=same | chat)
        self.assertEqual(continued["choices"][0]["message"]["content"], message.content[0].text)
        self.assertNotEqual(message.content, self.create().content)
        counted = self.client.messages.count_tokens(model=self.model, system=SYSTEM, messages=begun)
        self.assertEqual(counted.input_tokens, len(tokens))

    def test_stop_sequences(self):
        text = self.create().content[0].text
        stop = text[len(text) // 2:len(text) // 2 + 2]
        stopped = self.create(stop_sequences=["never in it \x01", stop])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(stopped.content[0].text, text[:text.index(stop)])
        with self.client.messages.stream(**self.request(stop_sequences=[stop])) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_sequence, final.content[0].text), (stop, stopped.content[0].text))

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(anthropic.BadRequestError) as wrong:
            self.create(max_tokens=0)
        self.assertEqual(wrong.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("max_tokens", wrong.exception.body["error"]["message"])
        with self.assertRaises(anthropic.BadRequestError) as image:
            self.create(messages=[{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}])
        self.assertIn("images", str(image.exception))
        with self.assertRaises(anthropic.BadRequestError) as hosted:
            self.create(tools=[{"type": "web_search_20250305", "name": "web_search"}])
        self.assertIn("web_search_20250305", str(hosted.exception))
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="claude-sonnet")
        with self.assertRaises(anthropic.AuthenticationError) as stranger:
            self.client.with_options(api_key="sk-other").messages.create(**self.request())
        self.assertTrue(stranger.exception.request_id)

    def test_a_stream_that_the_server_ends_is_an_error(self):
        server = Server(BINARY, MODEL, "--drain-seconds", "0")
        client = anthropic.Anthropic(base_url=server.root, api_key="none", max_retries=0)
        stream = client.messages.create(**self.request(max_tokens=1900, extra_body={"ignore_eos": True}), stream=True)
        next(iter(stream))
        self.assertEqual(server.stop(), 0)
        with self.assertRaises(anthropic.APIStatusError) as ended:
            for _ in stream:
                pass
        self.assertEqual(ended.exception.body["error"]["type"], "overloaded_error")

    def test_structured_output(self):
        made = self.client.messages.parse(**self.request(max_tokens=500), output_format=Person)
        self.assertIsInstance(made.parsed_output, Person)
        with self.client.messages.stream(**self.request(max_tokens=500), output_format=Person) as stream:
            self.assertEqual(stream.get_final_message().parsed_output, made.parsed_output)

    def test_thinking(self):
        with with_reasoning_markers(MODEL) as model:
            server = Server(BINARY, model, "--reasoning-format", "deepseek_r1")
            try:
                self.think(anthropic.Anthropic(base_url=server.root, api_key="none", max_retries=0))
            finally:
                self.assertEqual(server.stop(), 0)

    def think(self, client):
        request = self.request(thinking={"type": "enabled", "budget_tokens": 6})
        whole = client.messages.create(**request)
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        thinking = whole.content[0]
        self.assertTrue(thinking.thinking and thinking.signature)
        self.assertGreaterEqual(whole.usage.output_tokens_details.thinking_tokens, 6)
        with client.messages.stream(**request) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertTrue({"thinking", "signature", "text"} <= set(events))
        self.assertEqual((final.content[0].thinking, final.content[1].text), (thinking.thinking, whole.content[1].text))
        omitted = client.messages.create(**request | {
            "thinking": {"type": "enabled", "budget_tokens": 6, "display": "omitted"}})
        self.assertEqual((omitted.content[0].thinking, omitted.content[1].text), ("", whole.content[1].text))
        # The way back: the block is part of the next turn.
        client.messages.create(**request | {"messages": [
            *MESSAGES, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "More."}]})


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "template.jinja"
        path.write_text(TEMPLATE)
        cls.server = Server(BINARY, MODEL, "--chat-template", str(path), "--tool-format", "kimi_k2")
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))
        cls.client = anthropic.Anthropic(base_url=cls.server.root, api_key="none", max_retries=0)

    def request(self, seed, **more):
        return {"model": pathlib.Path(MODEL).name, "max_tokens": 500, "messages": MESSAGES, "tools": TOOLS,
                "tool_choice": {"type": "any"}, "extra_body": {"seed": seed, "temperature": 1}} | more

    def test_calls(self):
        for seed in range(3):
            request = self.request(seed, tool_choice={"type": "any", "disable_parallel_tool_use": True})
            message = self.client.messages.create(**request)
            self.assertEqual(message.stop_reason, "tool_use")
            [call] = message.content
            check_input(call)
            with self.client.messages.stream(**request) as stream:
                events = [event.type for event in stream]
                final = stream.get_final_message()
            self.assertIn("input_json", events)
            self.assertEqual((final.content[0].id, final.content[0].name, final.content[0].input),
                             (call.id, call.name, call.input))
        named = self.client.messages.create(**self.request(1, tool_choice={"type": "tool", "name": "done"}))
        self.assertEqual(named.content[0].name, "done")
        none = self.client.messages.create(**self.request(1, tool_choice={"type": "none"}, max_tokens=20))
        self.assertEqual([block.type for block in none.content], ["text"])

    def test_an_agent_finds_its_prefix_although_the_billing_line_changes(self):
        """20 turns with tools: from the second on at least 95 % of the prompts' tokens are cached."""
        rules = "\n".join(f"Rule {i}: read a.py and b.py before you say that it is done." for i in range(60))
        messages = list(MESSAGES)
        found = total = 0
        for turn in range(20):
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{turn}; "
                                               f"cc_entrypoint=cli; cch={turn * 7919:05x};"},
                      {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}}]
            with self.client.messages.stream(**self.request(
                    turn, system=system, messages=messages,
                    tool_choice={"type": "any", "disable_parallel_tool_use": True})) as stream:
                message = stream.get_final_message()
            self.assertEqual(message.stop_reason, "tool_use")
            [call] = message.content
            check_input(call)
            if turn > 0:
                found += message.usage.cache_read_input_tokens
                total += message.usage.input_tokens + message.usage.cache_read_input_tokens
            messages += [{"role": "assistant", "content": message.content},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"}]}]
        print(f"agent of 20 turns: {found} of {total} prompt tokens cached ({found / total:.1%})")
        self.assertGreater(total, 19 * 1000)
        self.assertGreaterEqual(found / total, 0.95)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
