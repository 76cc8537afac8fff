# SPDX-License-Identifier: Apache-2.0
"""Settings, reasoning, tools, the drawer and the comparison."""
import json

from page import LAST, SAID, answer_by_server, answer_with, ask, check, choose, click, figures, press_button, set_value

STATUS = "document.getElementById('status').textContent"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "count"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]


def sends_settings(browser):
    answer_with(browser, [{"content": "x"}])
    choose(browser, mode="chat")
    typed = {"system": "Be brief.", "max_tokens": "7", "temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "repetition_penalty": "1.1",
             "seed": "42", "stop": "END\n\nSTOP", "schema": json.dumps(SCHEMA), "tools": json.dumps(TOOLS)}
    check(set(typed) == set(browser.evaluate("SETTINGS.map((one) => one.name)")), "every setting is tried")
    for name, value in typed.items():
        set_value(browser, f"#set-{name}", value)
    ask(browser, "Go")
    body = browser.evaluate("asked[0]")
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "seed": 42, "stop": ["END", "STOP"],
              "tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}}
    check({name: body.get(name) for name in wanted} == wanted, "settings are fields of the request")
    check(body["messages"][0] == {"role": "system", "content": "Be brief."}, "the system prompt is the first message")
    for name in typed:
        set_value(browser, f"#set-{name}", "")
    ask(browser, "Go")
    check(not set(wanted) & set(browser.evaluate("asked[1]")), "an empty setting is the server's own")
    for name, value in (("temperature", "3"), ("schema", "{"), ("tools", "{}"), ("top_k", "1.5")):
        set_value(browser, f"#set-{name}", value)
        told = browser.evaluate(f"document.getElementById('help-{name}').textContent")
        check(browser.evaluate(f"document.getElementById('set-{name}').getAttribute('aria-invalid')") == "true", f"{name} {value} is told of: {told}")
        before = browser.evaluate("page.current.next")
        browser.evaluate("document.getElementById('prompt').focus()")
        browser.type("Go")
        browser.press("Enter", 13)
        check(browser.evaluate("asked.length") == 2 and told == browser.evaluate(STATUS), f"and nothing is sent with {name} {value}")
        check(browser.evaluate("page.current.next") == before + 1, "but what was typed is kept")
        set_value(browser, f"#set-{name}", "")
    click(browser, "#show-settings")
    answer_by_server(browser)


def holds_to_settings(browser):
    """By the server itself."""
    choose(browser, tokens=60)
    ask(browser, "def add(a, b):\n")
    whole = browser.evaluate(SAID).removeprefix("def add(a, b):\n")
    stop = whole.split()[2]
    choose(browser, tokens=60)
    set_value(browser, "#set-stop", stop)
    ask(browser, "def add(a, b):\n")
    check(browser.evaluate(SAID).removeprefix("def add(a, b):\n") == whole[:whole.index(stop)], f"an answer ends at {stop!r}")
    choose(browser, mode="chat", tokens=120)
    set_value(browser, "#set-schema", json.dumps(SCHEMA))
    ask(browser, "Tell me a name and a count.")
    said = json.loads(browser.evaluate("page.current.nodes[page.current.head].content"))
    check(set(said) == {"name", "count"} and 0 <= said["count"] <= 99, f"an answer has the form of its schema: {said}")


def folds_reasoning(browser):
    answer_with(browser, [{"reasoning_content": "First I "}, {"reasoning_content": "think."}, {"content": "Then I answer."}])
    choose(browser, mode="chat")
    ask(browser, "Think")
    check(browser.evaluate(f"{LAST}.querySelector('.reasoning').open") is False, "reasoning is folded")
    check(browser.evaluate(f"{LAST}.querySelector('.reasoning').textContent") == "Reasoning, 3 wordsFirst I think.", "and is there")
    check(browser.evaluate(SAID).strip() == "Then I answer.", "the answer stands apart")
    check(browser.evaluate("request_messages(page.current, page.current.head).at(-1)") == {"role": "assistant", "content": "Then I answer."}, "reasoning is not sent again")
    answer_by_server(browser)


def calls_tools(browser):
    part = lambda **fields: {"tool_calls": [{"index": 0, **fields}]}
    answer_with(browser, [part(id="call_1", type="function", function={"name": "clock", "arguments": ""}), part(function={"arguments": '{"zone"'}),
                          part(function={"arguments": ': "<b>UTC</b>"}'})], finish="tool_calls")
    choose(browser, mode="chat")
    set_value(browser, "#set-tools", json.dumps(TOOLS))
    ask(browser, "What time is it?")
    check(browser.evaluate(f"{LAST}.querySelector('.call').textContent") == 'Calls clock{"zone": "<b>UTC</b>"}', "a call is shown")
    check("tools" in figures(browser), "the model waits for its tools")
    answer_with(browser, [{"content": "It is noon."}])
    set_value(browser, "#result-0", "12:00")
    press_button(browser, "Send results")
    browser.wait_for(f"{SAID}.includes('noon')")
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "<b>UTC</b>"}'}}
    check(browser.evaluate("asked[0].messages.slice(1)") == [{"role": "assistant", "content": "", "tool_calls": [call]},
          {"role": "tool", "content": "12:00", "tool_call_id": "call_1"}], "its results are sent with the call")
    answer_by_server(browser)


def tells_what_runs(browser):
    """Before the first answer: nothing in the drawer is empty."""
    click(browser, "#show-drawer")
    card = browser.evaluate("Object.fromEntries([...document.querySelectorAll('#card dt')].map((one) => [one.textContent, one.nextSibling.textContent]))")
    check(card == {"Model": "sapling", "Architecture": "DeepSeek-V3", "Context": "2,048 tokens", "Weights": "F8_E4M3", "Cache": "bf16",
                   "Device": card["Device"], "Drafters": "N-gram, MTP, EAGLE3, Grammar", "Espalier": card["Espalier"]}
          and card["Device"].startswith("cpu, "), f"a card tells what runs: {card}")
    check(browser.evaluate("document.querySelector('#trees figcaption').textContent").startswith("An example"), "a tree is explained by an example")
    check(browser.evaluate("document.querySelectorAll('#sources dt').length") == 5, "each source is explained")
    browser.wait_for("[...document.querySelectorAll('.chart .now')].some((one) => one.textContent !== '–')")
    for chart in browser.evaluate("""[...document.querySelectorAll('.chart')].map((one) => ({ waits: !one.querySelector('.waits').hidden,
            drawn: !one.querySelector('svg').hasAttribute('hidden'), help: one.querySelector('.help').textContent }))"""):
        check(chart["waits"] != chart["drawn"] and chart["help"], "a chart has its lines or says what it waits for")


def draws_trees_and_charts(browser):
    check(browser.evaluate("document.querySelectorAll('#trees svg .node.lit').length") > 0, "a tree has its accepted path lit")
    check(browser.evaluate("""[...document.querySelectorAll('#trees svg')].some((tree) =>
        tree.querySelectorAll('.node').length > tree.querySelectorAll('.node.lit').length)"""), "a tree has branches that were not taken")
    check(browser.evaluate("document.querySelector('#trees svg').getAttribute('aria-label')").startswith("Draft tree of"), "a tree is described")
    check(browser.evaluate("document.querySelectorAll('#trees .example').length") == 0, "the example is gone")
    wide = {"texts": ["<｜end▁of▁sentence｜>"] + ["abcdefghijkl"] * 8, "parents": list(range(-1, 8)), "sources": [None] + ["mtp"] * 8, "path": [0]}
    browser.evaluate(f"show_tree({json.dumps(wide)}, document.getElementById('trees'))")
    hint = "document.querySelector('#trees .scroll-hint').checkVisibility()"
    check(browser.evaluate(hint), "a wide tree says that it scrolls")
    click(browser, "#show-drawer")
    browser.evaluate(f"show_tree({json.dumps(wide)}, document.getElementById('trees'))")
    click(browser, "#show-drawer")
    browser.wait_for(hint)
    check(True, "also one that came while the drawer was closed")
    check(browser.evaluate("document.querySelector('#trees text').textContent") == "<|end_of_sentence|>", "a special token is shown whole")
    browser.wait_for("[...document.querySelectorAll('.chart .now')].filter((one) => one.textContent !== '–').length >= 5")
    check(browser.evaluate("document.querySelectorAll('.chart svg:not([hidden]) path').length") >= 7, "charts have their lines")


def compares(browser, prompt):
    choose(browser, drafts="tree", tokens=60)
    set_value(browser, "#prompt", prompt)
    click(browser, "#compare")
    check(browser.evaluate("document.getElementById('comparison').open"), "the comparison opens")
    browser.wait_for(f"document.getElementById('replay').disabled === false || {STATUS}.includes('rror')")
    saved = browser.evaluate("document.getElementById('saved').textContent")
    check("the same text" in saved and " s " in saved, f"both write the same text, and the time is told: {saved}")
    sides = browser.evaluate("comparison.sides.map((side) => ({ steps: side.steps, count: side.count, text: side.said.textContent, at: side.tokens.map((one) => one.at), seconds: side.seconds }))")
    check(sides[0]["text"] == sides[1]["text"] and len(sides[0]["text"]) > 60, "token by token")
    check(sides[0]["steps"] == sides[0]["count"] and sides[1]["steps"] < sides[0]["steps"], f"in fewer steps: {sides[1]['steps']} for {sides[0]['steps']}")
    check(all(side["at"] == sorted(side["at"]) and side["at"][-1] <= side["seconds"] for side in sides), "each token has its time")
    check(browser.evaluate("document.querySelectorAll('.side:first-child .from-mtp, .side:first-child .from-eagle3, .side:first-child .from-ngram').length") == 0
          and browser.evaluate("document.querySelectorAll('.side:last-child .from-mtp, .side:last-child .from-eagle3, .side:last-child .from-ngram').length") > 0,
          "sources are marked where there were drafts")
    check(browser.evaluate("saved_sentence({ seconds: 4, steps: 9, drafted: 0, tokens: [] }, { seconds: 1.6, steps: 3, drafted: 8, tokens: [] })").startswith("2.40 s saved with drafts: 2.50 times"), "time saved is a difference")
    check("lost" in browser.evaluate("saved_sentence({ seconds: 1, steps: 9, drafted: 0, tokens: [] }, { seconds: 2, steps: 3, drafted: 8, tokens: [] })"), "time lost is told too")
    browser.evaluate("document.getElementById('sides').focus()")
    browser.press("ArrowRight", 39)
    browser.press("ArrowRight", 39)
    check(browser.evaluate("[...document.querySelectorAll('.pointed')].map((one) => one.dataset.index)") == ["1", "1"], "keys point at one token on both sides")
    check("Token 2" in browser.evaluate("document.getElementById('saved').textContent"), "and its two times are told")
    click(browser, "#replay")
    browser.wait_for("document.querySelectorAll('#sides .later').length === 0")
    check(browser.evaluate("comparison.sides.every((side) => side.filled.style.width !== '')"), "both play side by side")
    check(browser.evaluate("Object.keys(page.current.nodes).length") == 0, "a comparison adds nothing to the conversation")
