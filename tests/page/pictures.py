# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the docs, of the page as it is."""
import time

from page import ask, check, choose, click, set_value

MOST_BYTES = 200_000  # of one picture: pictures stay in the repository


def take(browser, folder, name, width, height, dark=False, mobile=False):
    browser.look(width, height, dark, mobile)
    browser.wait_for("document.getAnimations().length === 0")
    path = folder / f"page_{name}.png"
    browser.screenshot(path)
    check(path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size} bytes")


def takes_pictures(browser, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Matrix", "Account", "Parser", "Graph", "Cache", "Timer"):  # for charts with some seconds in them
        choose(browser, tokens=150)
        ask(browser, f"class {name}:\n    def __init__(self):\n")
        time.sleep(1)
        browser.evaluate("store.remove(page.current.id)")
    choose(browser, mode="chat", drafts="tree", tokens=120)
    ask(browser, "How do I read a file line by line in Python?")
    choose(browser, tokens=150)
    ask(browser, 'class Queue:\n    """Holds items."""\n\n    def __init__(self):\n        self.items = []\n')
    for panel, open_now in (("list", True), ("drawer", True), ("settings", False)):
        browser.evaluate(f"open_panel('{panel}', {str(open_now).lower()})")
    take(browser, folder, "light", 1280, 800)
    choose(browser, mode="chat", drafts="tree", tokens=120)
    ask(browser, "Write a function that counts words in a text.")
    ask(browser, "What does open() return?")
    browser.evaluate("document.getElementById('charts').scrollIntoView({ block: 'end' })")
    take(browser, folder, "dark", 1280, 800, dark=True)
    for panel in ("list", "drawer"):
        browser.evaluate(f"open_panel('{panel}', false)")
    take(browser, folder, "phone", 390, 844, mobile=True)
    browser.look(1280, 800)
    choose(browser, drafts="tree", tokens=160)
    set_value(browser, "#prompt", 'class Stack:\n    """A stack of items."""\n\n    def __init__(self):\n        self.items = []\n')
    click(browser, "#compare")
    browser.wait_for("document.getElementById('replay').disabled === false && document.querySelectorAll('#sides .later').length === 0")
    browser.evaluate("point_at(40)")
    take(browser, folder, "comparison", 1280, 640)
    click(browser, "#close-comparison")
    set_value(browser, "#prompt", "")
    browser.look(1280, 860)
