#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of a real server in a real browser: send, stream, stop, sources, trees, charts, modes, a key, the keyboard.

  tests/page/browser_test.py build/cpu/espalier models/sapling models/sapling-eagle3 [--pictures docs/pictures]
Needs chromium. Nothing here depends on how fast the machine is: what must happen while text comes is done in the page, with
the first token.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

from devtools import Browser
from serving import metric, serving

PROMPT = 'class Stack:\n    """A stack of items."""\n\n    def __init__(self):\n        self.items = []\n'
LAST = "document.querySelector('.message:last-child')"
SAID = f"{LAST}.querySelector('.said').textContent"
ENDED = "document.getElementById('send').disabled === false"


def check(condition, what):
    if not condition:
        raise AssertionError(what)
    print("ok", what)


def open_page(browser, address):
    browser.call("Page.navigate", url=address + "/")
    browser.wait_for("document.readyState === 'complete' && !!document.getElementById('status')")
    browser.wait_for("/Ready|key/.test(document.getElementById('status').textContent)")


def leave_page(browser):
    """Before its server ends: it would go on asking for metrics."""
    browser.call("Page.navigate", url="about:blank")
    browser.wait_for("location.href === 'about:blank'")


def choose(browser, mode="completion", drafts="tree", tokens=128):
    browser.evaluate(f"document.getElementById('mode-{mode}').click()")
    browser.evaluate(f"document.getElementById('drafts').value = '{drafts}'")
    browser.evaluate(f"document.getElementById('max-tokens').value = {tokens}")


def ask(browser, text, at_first_token=""):
    """Types and sends; `at_first_token` runs in the page when the first text of the answer is there."""
    browser.evaluate("""(() => {
        window.at_first = null;
        const log = document.getElementById('log'), before = log.querySelectorAll('.message').length;
        const prompt_parts = () => log.querySelector('.message:last-child .prompt-part')?.textContent.length ?? 0;
        const watch = new MutationObserver(() => {
            const answers = [...log.querySelectorAll('.message')].slice(before);
            const answer = answers.find((one) => one.querySelector('.who').textContent !== 'You');
            if (!answer || answer.querySelector('.said').textContent.length <= prompt_parts()) return;
            watch.disconnect();
            window.at_first = { busy: log.getAttribute('aria-busy') };
            %s;
        });
        watch.observe(log, { childList: true, subtree: true, characterData: true });
        document.getElementById('prompt').focus();
    })()""" % at_first_token)
    browser.type(text)
    browser.press("Enter", 13)
    browser.wait_for("window.at_first !== null")
    browser.wait_for(ENDED)


def converses(browser):
    choose(browser)
    ask(browser, PROMPT)
    check(browser.evaluate("window.at_first.busy") == "true", "the log is busy while it streams")
    check(browser.evaluate(SAID).startswith(PROMPT) and len(browser.evaluate(SAID)) > len(PROMPT) + 100, "a text is continued")
    check(browser.evaluate("/tokens/.test(document.getElementById('status').textContent)"), "the status tells of the end")
    check(browser.evaluate("document.activeElement.id") == "prompt", "the focus is back in the prompt")


def shows_sources_and_trees(browser):
    drafted = browser.evaluate("document.querySelectorAll('.said .token').length")
    check(drafted > 0, f"{drafted} tokens show which drafter they came from")
    check(browser.evaluate("document.querySelectorAll('#trees svg .node.lit').length") > 0, "a tree has its accepted path lit")
    check(browser.evaluate("""[...document.querySelectorAll('#trees svg')].some((tree) =>
        tree.querySelectorAll('.node').length > tree.querySelectorAll('.node.lit').length)"""), "a tree has branches that were not taken")
    check(browser.evaluate("document.querySelector('#trees svg').getAttribute('aria-label')").startswith("Draft tree of"), "a tree is described")


def drafts_change_no_text(browser):
    """One text, however it was drafted; without drafts there are no trees."""
    texts = set()
    for drafts in ("auto", "chain", "tree", "off"):
        browser.evaluate("document.getElementById('clear').click()")
        choose(browser, drafts=drafts, tokens=60)
        ask(browser, PROMPT)
        texts.add(browser.evaluate(SAID))
    check(len(texts) == 1, "drafts change no text")
    check(browser.evaluate("document.querySelectorAll('#trees .step').length") == 0, "without drafts there is no tree")


def chats(browser):
    browser.evaluate("document.getElementById('clear').click()")
    choose(browser, mode="chat", tokens=40)
    for turn in (1, 2):
        ask(browser, "Write a function.")
        check(browser.evaluate("document.querySelectorAll('.message').length") == 2 * turn, f"turn {turn} has its question and its answer")


def stops(browser, address, by):
    choose(browser, tokens=2000)
    ask(browser, PROMPT, at_first_token=by)
    check("stopped" in browser.evaluate(f"{LAST}.querySelector('.figures').textContent"), f"an answer ends by {by[:60]}")
    browser.wait(lambda: metric(address, "num_requests_running") == 0, "the end of the request in the server")
    check(metric(address, "pages_owned") == 0, "a stopped request holds no page")


def draws_charts(browser):
    browser.wait_for("[...document.querySelectorAll('.chart .now')].filter(n => n.textContent !== '–').length >= 2")
    check(browser.evaluate("document.querySelectorAll('.chart svg path').length") >= 10, "charts have their lines")


def has_names(browser):
    nameless = browser.evaluate("""[...document.querySelectorAll('button, input, select, textarea, [role=img], [tabindex]')].filter(e =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML)""")
    check(nameless == [], f"every control has a name {nameless}")
    browser.evaluate("document.querySelector('.skip').focus()")
    order = [browser.evaluate("document.activeElement.className")]
    for _ in range(10):
        browser.press("Tab", 9)
        order.append(browser.evaluate("document.activeElement.id || document.activeElement.className"))
    wanted = [name for name in order if name in ("skip", "prompt", "max-tokens", "temperature", "drafts", "trees")]
    check(wanted == ["skip", "prompt", "max-tokens", "temperature", "drafts", "trees"], f"tab goes down the page: {order}")


def has_contrast(browser):
    """Text against what it stands on, as WCAG 2 counts it: 4.5 : 1."""
    poor = browser.evaluate("""(() => {
        const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
        return [...document.querySelectorAll('.note, .who, .said, .token, .figures, figcaption, .parts, label, h1, h2, .status, .legend span')]
            .filter((e) => e.textContent.trim() && e.offsetParent).map((e) => {
                const a = light(getComputedStyle(e).color), b = light(ground(e));
                return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.className || e.tagName];
            }).filter(([ratio]) => ratio < 4.5);
    })()""")
    check(poor == [], f"text can be read {poor[:4]}")


def fits_a_phone(browser):
    browser.look(390, 844, mobile=True)
    check(browser.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is wider than a phone")
    browser.look(1280, 860)


def takes_pictures(browser, folder):
    """After some more text, so that charts have something to show."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Queue", "Matrix", "Account"):
        choose(browser, tokens=150)
        ask(browser, PROMPT.replace("Stack", name))
    browser.evaluate("document.getElementById('clear').click()")
    choose(browser, tokens=110)
    ask(browser, PROMPT)
    for name, width, height, dark, mobile in [("light", 1280, 900, False, False), ("dark", 1280, 900, True, False), ("phone", 390, 844, False, True)]:
        browser.look(width, height, dark, mobile)
        browser.evaluate("window.scrollTo(0, 0)")
        path = folder / f"page_{name}.png"
        browser.screenshot(path)
        check(path.stat().st_size <= 300_000, f"{path} has {path.stat().st_size} bytes")
    browser.look(1280, 860)


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
        browser.evaluate("sessionStorage.clear()")
        leave_page(browser)
    browser.errors = [error for error in browser.errors if "401" not in error]


def completes_without_a_template(browser, arguments):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([arguments.binary, "make-model", "--preset", "tiny-v3", "--out", f"{folder}/tiny"], check=True, stdout=subprocess.DEVNULL)
        with serving(arguments.binary, f"{folder}/tiny") as address:
            open_page(browser, address)
            check(browser.evaluate("document.getElementById('mode-chat').disabled"), "no chat without a template")
            choose(browser, drafts="off", tokens=20)
            ask(browser, "<b>Once</b>")
            check(browser.evaluate(SAID).startswith("<b>Once</b>"), "a prompt is text, and no markup")
            leave_page(browser)
    browser.errors = [error for error in browser.errors if "400" not in error]


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
            open_page(browser, address)
            converses(browser)
            shows_sources_and_trees(browser)
            draws_charts(browser)
            for dark in (False, True):
                browser.look(1280, 860, dark)
                has_contrast(browser)
            if arguments.pictures:
                takes_pictures(browser, arguments.pictures)
            drafts_change_no_text(browser)
            chats(browser)
            stops(browser, address, by="document.getElementById('stop').click()")
            stops(browser, address, by="document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))")
            has_names(browser)
            fits_a_phone(browser)
            leave_page(browser)
        asks_for_a_key(browser, arguments)
        completes_without_a_template(browser, arguments)
        outside = [url for url in browser.requests if not url.startswith(("http://127.0.0.1", "data:", "about:"))]
        check(outside == [], f"no request leaves the server {outside}")
        check(browser.errors == [], f"no error in the console {browser.errors}")
    finally:
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
