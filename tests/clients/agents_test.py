"""Frameworks over the server's APIs, on Sapling: agents_test.py ESPALIER MODEL.

The Agents SDK with its default (responses), LiteLLM over Anthropic's API and its bridge from that to OpenAI's, the errors by which
LiteLLM and LangChain know that a prompt is too long. `make test-clients` runs it.
"""

import asyncio
import os
import pathlib
import sys
import tempfile
import typing
import unittest

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1", "OPENAI_API_KEY": "none"}
import agents  # noqa: E402
import langchain_core.exceptions  # noqa: E402
import langchain_openai  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from serving import Server  # noqa: E402

BINARY, MODEL = sys.argv[1], sys.argv[2]
litellm.suppress_debug_info = True
NAME = pathlib.Path(MODEL).name
MESSAGES = [{"role": "user", "content": "Write a loop."}]
TOO_LONG = [{"role": "user", "content": "x = 1\n" * 4000}]
# Tools for a model that was never taught any: its calls are what the grammar leaves it.
TEMPLATE = ("""{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}"""
            """[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or [] %}{{ call.id }}"""
            """{{ call.function.arguments }}{% endfor %}{% endfor %}[assistant]""")


class Answer(pydantic.BaseModel):
    """Bounded on all sides, so that a text without sense comes to its end: one that is cut is an error to the Agents SDK."""

    rain: bool


class Agents(unittest.TestCase):
    """Runner and tools of the Agents SDK, which speaks /v1/responses unless it is told otherwise."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "template.jinja"
        path.write_text(TEMPLATE)
        cls.server = Server(BINARY, MODEL, "--chat-template", str(path), "--tool-format", "kimi_k2")
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))

    def agent(self):
        asked = []

        @agents.function_tool
        def weather(city: typing.Literal["Oslo", "Rome"], days: typing.Literal[1, 2]) -> str:
            """The weather in a city."""
            asked.append((city, days))
            return "rain"

        # A client belongs to the event loop that it is used in.
        agents.set_default_openai_client(openai.AsyncOpenAI(base_url=self.server.root + "/v1", api_key="none", max_retries=0),
                                         use_for_tracing=False)
        settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=1, max_tokens=500,
                                        extra_body={"seed": 5})
        return agents.Agent(name="a", instructions="You know the weather.", tools=[weather], model=NAME, model_settings=settings,
                            output_type=Answer), asked

    def check(self, result, asked):
        self.assertEqual(len(asked), 1)
        self.assertEqual([type(item).__name__ for item in result.new_items], ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"])
        self.assertIsInstance(result.final_output, Answer)
        self.assertEqual([response.usage.requests for response in result.raw_responses], [1, 1])
        self.assertGreater(result.raw_responses[1].usage.input_tokens, result.raw_responses[0].usage.input_tokens)

    def test_a_run_calls_its_tool_and_answers(self):
        async def run():
            agent, asked = self.agent()
            result = await agents.Runner.run(agent, "Is it raining?", max_turns=3)
            self.check(result, asked)
            return result.final_output, asked

        async def streamed():
            agent, asked = self.agent()
            result = agents.Runner.run_streamed(agent, "Is it raining?", max_turns=3)
            kinds = {event.data.type async for event in result.stream_events() if event.type == "raw_response_event"}
            self.check(result, asked)
            self.assertLessEqual({"response.function_call_arguments.delta", "response.output_text.delta", "response.completed"}, kinds)
            return result.final_output, asked

        self.assertEqual(asyncio.run(run()), asyncio.run(streamed()))


class Bridges(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL)
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.server.stop(), 0))
        cls.to_anthropic = {"model": f"anthropic/{NAME}", "api_base": cls.server.root, "api_key": "none"}
        cls.to_openai = {"model": f"openai/{NAME}", "api_base": cls.server.root + "/v1", "api_key": "none"}
        chat = openai.OpenAI(base_url=cls.server.root + "/v1", api_key="none").chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=20, temperature=0)
        cls.text = chat.choices[0].message.content

    def test_litellm_over_messages(self):
        asked = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0} | self.to_anthropic
        self.assertEqual(litellm.completion(**asked).choices[0].message.content, self.text)
        parts = litellm.completion(**asked, stream=True)
        self.assertEqual("".join(part.choices[0].delta.content or "" for part in parts), self.text)

    def test_litellm_bridges_messages_to_chats_and_back(self):
        async def ask(where):
            return await litellm.anthropic.messages.acreate(messages=MESSAGES, max_tokens=20, temperature=0, **where)

        for where in (self.to_anthropic, self.to_openai):
            message = asyncio.run(ask(where))
            self.assertEqual(message["content"][0]["text"], self.text)
            self.assertEqual(message["role"], "assistant")
            self.assertLessEqual(message["usage"]["output_tokens"], 20)

    def test_litellm_knows_that_a_prompt_is_too_long(self):
        for where in (self.to_openai, self.to_anthropic):
            with self.assertRaises(litellm.exceptions.ContextWindowExceededError):
                litellm.completion(messages=TOO_LONG, max_tokens=20, **where)
        with self.assertRaises(litellm.exceptions.ContextWindowExceededError):
            litellm.text_completion(model=f"text-completion-openai/{NAME}", prompt=TOO_LONG[0]["content"], max_tokens=20,
                                    api_base=self.server.root + "/v1", api_key="none")
        # What that is for: the next model of a list.
        fallback = litellm.Router(
            model_list=[{"model_name": "short", "litellm_params": self.to_openai},
                        {"model_name": "long", "litellm_params": self.to_openai | {"mock_response": "from elsewhere"}}],
            context_window_fallbacks=[{"short": ["long"]}])
        answer = fallback.completion(model="short", messages=TOO_LONG, max_tokens=20)
        self.assertEqual(answer.choices[0].message.content, "from elsewhere")

    def test_langchain_knows_that_a_prompt_is_too_long(self):
        for use_responses_api in (False, True):
            model = langchain_openai.ChatOpenAI(model=NAME, base_url=self.server.root + "/v1", api_key="none", max_retries=0, temperature=0,
                                                max_tokens=20, use_responses_api=use_responses_api)
            self.assertEqual(model.invoke([("user", MESSAGES[0]["content"])]).text, self.text)
            with self.assertRaises(langchain_core.exceptions.ContextOverflowError):
                model.invoke([("user", TOO_LONG[0]["content"])])
            with self.assertRaises(langchain_core.exceptions.ContextOverflowError):
                list(model.stream([("user", TOO_LONG[0]["content"])]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
