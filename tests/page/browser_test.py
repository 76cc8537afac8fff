#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: send, stream, stop, trees, charts, modes, a key, the keyboard. Needs chromium.

  tests/page/browser_test.py [--url http://127.0.0.1:8000] [--pictures FOLDER]
Without --url against a stand-in for the server, which sends everything that the page can show.
"""
import argparse
import pathlib
import sys

import fake_server
from devtools import Browser

SAID = "document.querySelector('.message:last-child .said').textContent"
ENDED = "document.getElementById('send').disabled === false"


def check(condition, what):
    if not condition:
        raise AssertionError(what)
    print("ok", what)


def open_page(browser, url):
    browser.call("Page.navigate", url=url)
    browser.wait_for("document.readyState === 'complete' && !!document.getElementById('status')")
    browser.wait_for("/Ready|key/.test(document.getElementById('status').textContent)")


def ask(browser, text):
    browser.evaluate("document.getElementById('prompt').focus()")
    browser.type(text)
    browser.press("Enter", 13)


def converses(browser, url):
    open_page(browser, url)
    ask(browser, "Once upon a time")
    browser.wait_for(f"document.querySelectorAll('.message').length > 0 && {SAID}.length > 30")
    check(browser.evaluate("document.getElementById('log').getAttribute('aria-busy')") == "true", "the log is busy while it streams")
    browser.wait_for(ENDED)
    check(browser.evaluate("/tokens/.test(document.getElementById('status').textContent)"), "the status tells of the end")
    check(browser.evaluate("document.activeElement.id") == "prompt", "the focus is back in the prompt")


def shows_sources_and_trees(browser):
    colours = browser.evaluate("[...new Set([...document.querySelectorAll('.said .token')].map(t => t.className))].length")
    check(colours >= 2, f"tokens of {colours} sources look different")
    check(browser.evaluate("document.querySelectorAll('#trees svg .node.lit').length") > 0, "a tree has its accepted path lit")
    check(browser.evaluate("document.querySelector('#trees svg').getAttribute('aria-label')").startswith("Draft tree of"), "a tree is described")


def stops(browser, server, by_key):
    before = browser.evaluate("document.querySelectorAll('.message').length")
    ask(browser, "Again")
    browser.wait_for(f"document.querySelectorAll('.message').length > {before} && {SAID}.length > 20")
    if by_key:
        browser.press("Escape", 27)
    else:
        browser.evaluate("document.getElementById('stop').click()")
    browser.wait_for(ENDED)
    check("stopped" in browser.evaluate("document.querySelector('.message:last-child .figures').textContent"), "the answer is marked as stopped")
    if server:
        check(server.cut_off.wait(20), "the server sees the client go")
        server.cut_off.clear()


def draws_charts(browser):
    browser.wait_for("[...document.querySelectorAll('.chart .now')].filter(n => n.textContent !== '–').length >= 4")
    check(browser.evaluate("document.querySelectorAll('.chart svg path').length") >= 8, "charts have their lines")


def has_names(browser):
    nameless = browser.evaluate("""[...document.querySelectorAll('button, input, textarea, [role=img]')].filter(e =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML)""")
    check(nameless == [], f"every control has a name {nameless}")
    order = []
    browser.evaluate("document.querySelector('.skip').focus()")
    order.append(browser.evaluate("document.activeElement.className"))
    for _ in range(9):
        browser.press("Tab", 9)
        order.append(browser.evaluate("document.activeElement.id || document.activeElement.className"))
    check(order[0] == "skip" and "prompt" in order and order.index("prompt") < order.index("max-tokens"), f"tab goes down the page: {order}")


def fits_a_phone(browser):
    browser.look(390, 844, mobile=True)
    check(browser.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is wider than a phone")


def takes_pictures(browser, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, height, dark, mobile in [("light", 1280, 860, False, False), ("dark", 1280, 860, True, False), ("phone", 390, 844, False, True)]:
        browser.look(width, height, dark, mobile)
        browser.evaluate("window.scrollTo(0, 0)")
        path = folder / f"page_{name}.png"
        browser.screenshot(path)
        check(path.stat().st_size <= 300_000, f"{path} has {path.stat().st_size} bytes")


def asks_for_a_key(browser):
    url, _ = fake_server.start(key="secret")
    open_page(browser, url)
    browser.wait_for("!document.getElementById('key-form').hidden")
    browser.type("secret")
    browser.press("Enter", 13)
    browser.wait_for("document.getElementById('status').textContent === 'Ready'")
    browser.evaluate("sessionStorage.clear()")
    browser.errors = [error for error in browser.errors if "401" not in error]
    print("ok asks for a key")


def completes_without_a_template(browser):
    url, _ = fake_server.start(chat=False, report=False)
    open_page(browser, url)
    check(browser.evaluate("document.getElementById('mode-chat').disabled"), "no chat without a template")
    ask(browser, "<b>Once</b>")
    browser.wait_for("document.querySelectorAll('.message').length > 0")
    browser.wait_for(ENDED)
    check(browser.evaluate(SAID).startswith("<b>Once</b>Once upon"), "a prompt is continued, and is text")
    check(browser.evaluate("document.querySelectorAll('#trees .step').length") == 0, "no tree without a report")
    browser.errors = [error for error in browser.errors if "400" not in error]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server")
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for screenshots")
    arguments = parser.parse_args()
    url, server = (arguments.url, None) if arguments.url else fake_server.start()
    browser = Browser()
    try:
        browser.look(1280, 860)
        converses(browser, url)
        shows_sources_and_trees(browser)
        draws_charts(browser)
        if arguments.pictures:
            takes_pictures(browser, arguments.pictures)
            browser.look(1280, 860)
        stops(browser, server, by_key=False)
        stops(browser, server, by_key=True)
        has_names(browser)
        fits_a_phone(browser)
        if not arguments.url:
            asks_for_a_key(browser)
            completes_without_a_template(browser)
        outside = [request for request in browser.requests if not request.startswith(("http://127.0.0.1", "data:", "about:")) and not (arguments.url and request.startswith(arguments.url))]
        check(outside == [], f"no request leaves the server {outside}")
        check(browser.errors == [], f"no error in the console {browser.errors}")
    finally:
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
