#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/chat/data/*.jsonl: what jinja2, set up as transformers sets it up, makes of chat templates.

published.jsonl   [template, context, text or null]: the templates of tests/chat/data/templates with conversations
constructs.jsonl  [source, text or null]: one construct each, against CONTEXT
random.jsonl      the same for templates drawn from a small grammar
null: jinja2 raised an error. The first line of the last two is the context. Everything follows from --seed.
Needs the package jinja2 (3.1.6 made the committed files).
"""
import argparse
import datetime
import json
import pathlib
import random

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from template_constructs import CONSTRUCTS
from template_grammar import Grammar

NOW = datetime.datetime(2025, 3, 7, 9, 5, 2)  # the tests' time, in UTC


def environment():
    """transformers.utils.chat_template_utils._compile_jinja_template, without its tracking of the assistant's text."""
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENVIRONMENT = environment()
TOKENS = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}


def render(source, context):
    try:
        return ENVIRONMENT.from_string(source).render(**{**context, **TOKENS})
    except Exception:  # jinja2's own errors and Python's come out of a template alike
        return None


CONTEXT = {
    "messages": [
        {"role": "system", "content": "Be  kind. "},
        {"role": "user", "content": "¿Qué? <｜User｜>\n- a\n- b"},
        {"role": "assistant", "content": "<think>hm</think>Sí, \"ok\"\\", "tool_calls": None},
        {"role": "user", "content": [{"type": "text", "text": "x y"}, {"type": "image"}]},
        {"role": "tool", "content": "", "tool_call_id": "f:0", "items": 1},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "dé", "parameters": {"b": 1, "a": [True, None, 1.5]}}}],
    "n": 3, "big": 18446744073709551615, "f": 2.5, "s": "  pad\t", "t": "a,b,,c", "e": "", "yes": True, "no": False,
    "nothing": None, "nested": {"Z": {"k": "v"}, "a": [1, 2, [3]], "_u": 1}, "numbers": [3, -1, 0, 7],
    "words": ["beta", "Alpha", "gamma"], "add_generation_prompt": True,
}


def call(name, arguments, identity="call_1"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    user = {"role": "user", "content": "Hi <|im_end|> <｜end▁of▁sentence｜>"}
    answer = {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHello, wörld </think> x"}
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Wetter für eine Stadt",
              "parameters": {"type": "object", "required": ["city"], "properties": {
                  "city": {"type": "string", "description": "\"Name\"\n"}, "days": {"type": "integer", "maximum": 1e16}}}}}]
    calls = {"role": "assistant", "content": None, "tool_calls": [
        call("get_weather", '{"city": "Köln"}', "get_weather:0"), call("get_weather", '{"city": "Rom"}', "get_weather:1")]}
    results = [{"role": "tool", "tool_call_id": "get_weather:0", "content": "rain"},
               {"role": "tool", "tool_call_id": "get_weather:1", "content": "sun <|im_user|>"}]
    said = {**calls, "content": "Let me see."}
    objects = {"role": "assistant", "content": "", "reasoning_content": "I call.", "tool_calls": [
        call("get_weather", {"city": "Köln", "n": [1, 2.0, None]}, "get_weather:0")]}
    parts = {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "look: "}, {"type": "image_url"}, {"type": "text", "text": "?"}]}
    system = [{"role": "system", "content": "One."}, {"role": "system", "content": "Two."}]
    yield {"messages": []}
    yield {"messages": [user]}
    yield {"messages": [user], "add_generation_prompt": True}
    yield {"messages": [*system, user, answer, user], "add_generation_prompt": True}
    yield {"messages": [system[0], user, answer], "add_generation_prompt": False}
    yield {"messages": [user, answer, user, answer, user], "add_generation_prompt": True, "thinking": True}
    yield {"messages": [user, {**answer, "prefix": True}], "add_generation_prompt": True, "thinking": True}
    yield {"messages": [user, calls], "tools": tools}
    yield {"messages": [user, calls, *results], "tools": tools, "add_generation_prompt": True}
    yield {"messages": [*system, user, said, *results, answer, user], "tools": tools, "add_generation_prompt": True}
    yield {"messages": [user, said, *results, said, results[0]], "tools": None, "add_generation_prompt": True}
    yield {"messages": [user, objects, results[0], {"role": "assistant", "content": "Rain.", "reasoning_content": "So."}], "tools": tools}
    yield {"messages": [user, answer, user, objects, results[0]], "tools": tools, "add_generation_prompt": True}
    yield {"messages": [parts, {"role": "assistant", "content": None}, parts], "add_generation_prompt": True}
    yield {"messages": [{"role": "user", "content": "  \n leading and trailing \n\n"}], "add_generation_prompt": True}
    yield {"messages": [system[0]], "add_generation_prompt": True}
    yield {"messages": [user, objects, results[0], objects, *results, answer, user], "tools": tools,
           "add_generation_prompt": True, "enable_thinking": False, "clear_thinking": False}
    yield {"messages": [user, {"role": "tool", "content": [{"output": "sun"}, "rain"]}], "add_generation_prompt": True}


def write(path, lines):
    with open(path, "w") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    texts = sum(line[-1] is not None for line in lines if isinstance(line, list))
    print(path, path.stat().st_size, "bytes", texts, "texts of", len(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--random", type=int, default=300, help="templates of random.jsonl")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/chat/data")
    arguments = parser.parse_args()
    templates = sorted((pathlib.Path(__file__).parent.parent / "tests/chat/data/templates").glob("*.jinja"))
    write(arguments.output / "published.jsonl",
          [[path.stem, context, render(path.read_text(), context)] for path in templates for context in conversations()])
    write(arguments.output / "constructs.jsonl", [CONTEXT] + [[source, render(source, CONTEXT)] for source in CONSTRUCTS])
    grammar = Grammar(random.Random(arguments.seed))
    sources = [grammar.template() for _ in range(arguments.random)]
    write(arguments.output / "random.jsonl", [CONTEXT] + [[source, render(source, CONTEXT)] for source in sources])


if __name__ == "__main__":
    main()
