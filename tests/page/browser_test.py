#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of a real server in a real browser, each of its features: conversations, Markdown, settings, the drawer, the
comparison, a key, the keyboard, a phone, contrast and names, its size, and no request to anywhere else.

  tests/page/browser_test.py build/cpu/espalier models/sapling models/sapling-eagle3 [--pictures docs/pictures]
Needs chromium. Nothing here depends on how fast the machine is: what must happen while text comes is done in the page, with
the first token.
"""
import argparse
import gzip
import http.server
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.request

import conversations
import markdown
import settings
from accessibility import POOR_CONTRAST, can_be_used, finds_faults, tab_stops
from devtools import Browser
from page import ENDED, SAID, answer_by_server, answer_with, ask, check, choose, click, figures, leave_page, open_page, press_button, set_value
from pictures import takes_pictures
from serving import metric, serving

PROMPT = 'class Stack:\n    """A stack of items."""\n\n    def __init__(self):\n        self.items = []\n'
MOST_BYTES = 250_000  # of the page, compressed


def is_small(address):
    with urllib.request.urlopen(address + "/") as answer:
        page = answer.read()
    check(len(gzip.compress(page)) <= MOST_BYTES, f"the page has {len(gzip.compress(page))} bytes compressed, of {MOST_BYTES}")
    check(b"highlight.js" in page.lower() and b"dompurify" in page.lower() and b"marked" in page, "Markdown's libraries are in it")


def converses(browser):
    choose(browser)
    ask(browser, PROMPT)
    check(browser.evaluate("window.at_first.busy") == "true", "the log is busy while it streams")
    check(browser.evaluate(SAID).startswith(PROMPT) and len(browser.evaluate(SAID)) > len(PROMPT) + 100, "a text is continued")
    check(browser.evaluate("/tokens/.test(document.getElementById('status').textContent)"), "the status tells of the end")
    check(browser.evaluate("document.activeElement.id") == "prompt", "the focus is back in the prompt")
    drafted = browser.evaluate("document.querySelectorAll('.said .token').length")
    check(drafted > 0, f"{drafted} tokens show which drafter they came from")
    hidden = "(() => { const log = document.getElementById('log'); return log.scrollHeight - log.scrollTop - log.clientHeight; })()"
    check(browser.evaluate(hidden) <= 1, "the last line is in sight")
    click(browser, "#show-list")
    browser.look(1100, 500)
    browser.wait_for(hidden + " <= 1")
    check(True, "also when its place becomes smaller")
    browser.look(1280, 860)
    click(browser, "#show-list")


def drafts_change_no_text(browser):
    """One text, however it was drafted; without drafts there are no trees."""
    texts = set()
    for drafts in ("auto", "chain", "tree", "off"):
        browser.evaluate("show_example(document.getElementById('trees'))")
        choose(browser, drafts=drafts, tokens=60)
        ask(browser, PROMPT)
        texts.add(browser.evaluate(SAID))
    check(len(texts) == 1, "drafts change no text")
    check(browser.evaluate("document.querySelectorAll('#trees .step:not(.example)').length") == 0, "without drafts there is no tree")


def stops(browser, address, by):
    choose(browser, tokens=2000)
    ask(browser, PROMPT, at_first_token=by)
    check("stopped" in figures(browser), f"an answer ends by {by[:60]}")
    browser.wait(lambda: metric(address, "num_requests_running") == 0, "the end of the request in the server")
    check(metric(address, "pages_owned") == 0, "a stopped request holds no page")


def shows_everything(browser):
    """A conversation with all that an answer may have: code, a table, reasoning, a call, tokens of each source, a refusal."""
    choose(browser, mode="chat")
    answer_with(browser, [{"content": piece} for piece in markdown.GOOD.splitlines(keepends=True)] + [{"reasoning_content": "Hm."}])
    ask(browser, "Show all")
    press_button(browser, "Regenerate")
    browser.wait_for(ENDED)
    browser.evaluate("page.current.nodes[page.current.head].tokens.push(...Object.keys(SOURCES).map((name) => [`from ${name} `, name]))")
    browser.evaluate("api.stream = async function* () { throw new Error('This one is refused.'); }")
    ask(browser, "Refuse this")
    answer_with(browser, [{"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "clock", "arguments": "{}"}}]}], finish="tool_calls")
    ask(browser, "Call a tool")
    set_value(browser, "#set-top_p", 7)
    answer_by_server(browser)


def colours_of_sources_can_be_read(browser):
    """On every ground, as any token may be pointed at or stand in a wash."""
    for dark in (False, True):
        browser.look(1280, 860, dark)
        poor = browser.evaluate("""(() => {
            const place = document.createElement('div');
            for (const ground of ['--ground', '--panel', '--wash']) for (const source of ['ngram', 'mtp', 'eagle3', 'grammar', 'draft']) {
                const token = document.createElement('span');
                token.className = `token from-${source}`;
                token.style.backgroundColor = `var(${ground})`;
                token.append(`${source} on ${ground}`);
                place.append(token);
            }
            document.body.append(place);
            const found = %s.poor;
            place.remove();
            return found;
        })()""" % POOR_CONTRAST)
        check(poor == [], f"each source can be read on each ground, {'dark' if dark else 'light'} {poor}")


def can_be_used_everywhere(browser):
    """Every panel, light and dark, wide and as a phone."""
    finds_faults(browser)
    colours_of_sources_can_be_read(browser)
    shows_everything(browser)
    for panel in ("list", "drawer", "settings"):
        browser.evaluate(f"open_panel('{panel}', true)")
    for dark in (False, True):
        browser.look(1280, 860, dark)
        for view in ("tokens", "text"):
            click(browser, "#show-tokens")
            browser.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
            can_be_used(browser, f"all panels, {'dark' if dark else 'light'}, {view}", 60)
    order = [name for name in tab_stops(browser) if name in ("show-list", "show-drawer", "new", "search", "mode-chat", "show-tokens", "log", "set-system", "prompt",
                                                             "show-settings", "drafts", "compare", "send", "trees")]
    check(order == ["show-list", "show-drawer", "new", "search", "mode-chat", "show-tokens", "log", "set-system", "prompt", "show-settings", "drafts", "compare", "send", "trees"],
          f"Tab goes down the page: {order}")
    for panel in ("list", "drawer", "settings"):
        browser.evaluate(f"open_panel('{panel}', false)")


def fits_a_phone(browser):
    for dark in (False, True):
        browser.look(390, 844, dark, mobile=True)
        check(browser.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is wider than a phone")
        for panel in ("list", "drawer", "settings"):
            click(browser, f"#show-{panel}")
            check(browser.evaluate(f"document.getElementById('{panel}').contains(document.activeElement)"), f"the focus is in {panel}")
            check(browser.evaluate("document.documentElement.scrollWidth") <= 390, f"{panel} fits a phone")
            can_be_used(browser, f"{panel} on a phone", 10)
            if panel == "settings":
                click(browser, "#show-settings")
            else:
                browser.press("Escape", 27)
                check(browser.evaluate(f"document.getElementById('{panel}').hidden && document.activeElement.id === 'show-{panel}'"), f"Escape leaves {panel}")
    browser.look(1280, 860)


def looks_at_the_comparison(browser):
    for width, dark in ((1280, False), (1280, True), (390, False)):
        browser.look(width, 860, dark, mobile=width < 800)
        can_be_used(browser, f"the comparison, {width} wide", 4)
        check(browser.evaluate("document.documentElement.scrollWidth") <= width, "it fits")
    browser.look(1280, 860)
    browser.press("Escape", 27)
    browser.wait_for("!document.getElementById('comparison').open")


def asks_for_a_key(browser, arguments):
    with serving(arguments.binary, arguments.model, "--api-key", "secret") as address:
        open_page(browser, address)
        browser.wait_for("!document.getElementById('key-form').hidden")
        check(browser.evaluate("document.activeElement.id") == "key", "the key's field has the focus")
        browser.type("wrong")
        browser.press("Enter", 13)
        browser.wait_for("/key/i.test(document.getElementById('status').textContent) && !document.getElementById('key-form').hidden")
        browser.evaluate("document.getElementById('key').value = ''; document.getElementById('key').focus()")
        browser.type("secret")
        browser.press("Enter", 13)
        browser.wait_for("document.getElementById('status').textContent === 'Ready'")
        choose(browser, tokens=8)
        ask(browser, PROMPT)
        check(len(browser.evaluate(SAID)) > len(PROMPT), "with its key the page works")
        check("secret" not in browser.evaluate("to_json(store.newest_first()) + JSON.stringify(localStorage)"), "no file and no lasting storage has the key")
        browser.evaluate("sessionStorage.clear()")
        leave_page(browser)
    browser.errors = [error for error in browser.errors if "401" not in error]


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """An empty page of another origin."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_):
        pass


# The headers are those that OpenAI's and Anthropic's clients for JavaScript send from a page.
FROM_ELSEWHERE = """(async (address) => {
    const answer = await fetch(address + '/v1/completions', { method: 'POST', body: JSON.stringify({ prompt: 'a', max_tokens: 1 }), headers: {
        Authorization: 'Bearer secret', 'Content-Type': 'application/json', 'X-Stainless-Lang': 'js', 'X-Stainless-Retry-Count': '0',
        'anthropic-version': '2023-06-01', 'anthropic-dangerous-direct-browser-access': 'true', 'X-Request-Id': 'mine' } });
    return `${answer.status} ${answer.headers.get('X-Request-Id')} ${(await answer.json()).object}`;
})"""


def lets_another_page_in(browser, arguments):
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{other.server_port}"
    with serving(arguments.binary, arguments.model, "--api-key", "secret", "--allowed-origin", origin) as address:
        browser.call("Page.navigate", url=origin)
        browser.wait_for(f"location.origin === '{origin}' && document.readyState === 'complete'")
        got = browser.evaluate(f"{FROM_ELSEWHERE}('{address}').catch(String)")
        check(got == "200 mine text_completion", f"another page that is allowed can ask, with the headers of its client: {got}")
        leave_page(browser)
    other.shutdown()
    other.server_close()


def completes_without_a_template(browser, arguments):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([arguments.binary, "make-model", "--preset", "tiny-v3", "--out", f"{folder}/tiny"], check=True, stdout=subprocess.DEVNULL)
        with serving(arguments.binary, f"{folder}/tiny", "--speculate", "off") as address:
            open_page(browser, address)
            check(browser.evaluate("document.getElementById('mode-chat').disabled"), "no chat without a template")
            choose(browser, drafts="auto", tokens=20)
            ask(browser, "<b>Once</b>")
            check(browser.evaluate(SAID).startswith("<b>Once</b>"), "a prompt is text, and no markup")
            check("no drafts are made" in browser.evaluate("document.getElementById('card').textContent"), "the card says that nothing drafts")
            set_value(browser, "#prompt", "Once")
            click(browser, "#compare")
            browser.wait_for("document.getElementById('replay').disabled === false")
            check("no draft" in browser.evaluate("document.getElementById('saved').textContent"), "nor is there anything to compare")
            leave_page(browser)
    browser.errors = [error for error in browser.errors if "400" not in error]


def try_all(browser, address, pictures):
    open_page(browser, address)
    is_small(address)
    settings.tells_what_runs(browser)
    converses(browser)
    settings.draws_trees_and_charts(browser)
    if pictures:
        takes_pictures(browser, pictures)
    drafts_change_no_text(browser)
    conversations.chats(browser)
    conversations.forgets_what_was_refused(browser)
    conversations.makes_versions(browser)
    conversations.lasts(browser, address)
    conversations.hears_of_other_tabs(browser)
    conversations.keeps_the_focus(browser)
    conversations.goes_to_files(browser)
    markdown.reads_markdown(browser)
    markdown.disarms_markup(browser)
    markdown.stays_quick_and_plain(browser)
    settings.sends_settings(browser)
    settings.holds_to_settings(browser)
    settings.folds_reasoning(browser)
    settings.calls_tools(browser)
    stops(browser, address, by="document.getElementById('stop').click()")
    stops(browser, address, by="document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))")
    settings.compares(browser, PROMPT)
    looks_at_the_comparison(browser)
    can_be_used_everywhere(browser)
    fits_a_phone(browser)
    markdown.does_without_libraries(browser, address)
    leave_page(browser)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("draft")
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for screenshots")
    arguments = parser.parse_args()
    browser = Browser()
    try:
        browser.look(1280, 860)
        with serving(arguments.binary, arguments.model, "--draft", arguments.draft, "--speculate", "auto") as address:
            try_all(browser, address, arguments.pictures)
        browser.errors = [error for error in browser.errors if "400" not in error]  # the messages that were to be refused
        asks_for_a_key(browser, arguments)
        lets_another_page_in(browser, arguments)
        completes_without_a_template(browser, arguments)
        outside = [url for url in browser.requests if not url.startswith(("http://127.0.0.1", "data:", "about:", "blob:"))]
        check(outside == [], f"no request leaves the server {outside}")
        check(browser.errors == [], f"no error in the console {browser.errors}")
    finally:
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
