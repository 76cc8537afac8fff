# SPDX-License-Identifier: Apache-2.0
"""Conversations: what is sent, what lasts, versions of a message, files."""
import json
import pathlib
import tempfile

from page import LAST, SAID, answer_by_server, answer_with, ask, check, choose, click, figures, messages, open_page, press_button, set_value

TITLES = "[...document.querySelectorAll('#conversations .open')].map((one) => one.firstChild.textContent)"
STATUS = "document.getElementById('status').textContent"


def chats(browser):
    choose(browser, mode="chat", tokens=40)
    for turn in (1, 2):
        ask(browser, "Write a function.")
        check(messages(browser) == 2 * turn, f"turn {turn} has its question and its answer")
    sent = browser.evaluate("request_messages(page.current, page.current.head).map((one) => one.role)")
    check(sent == ["user", "assistant", "user", "assistant"], "all turns are sent")


def forgets_what_was_refused(browser):
    """A message that the server refuses is not sent again with the next one."""
    choose(browser, mode="chat", tokens=10)
    ask(browser, "word " * 4000)
    check("tokens" in figures(browser) and browser.evaluate(f"!!{LAST}.querySelector('.figures.error')"), f"the refusal is told: {figures(browser)[:70]}")
    ask(browser, "Write a function.")
    check(browser.evaluate(f"!{LAST}.querySelector('.figures.error')") and browser.evaluate(SAID) != "", "the next message is answered")
    sent = browser.evaluate("request_messages(page.current, page.current.head).map((one) => one.content)")
    check(len(sent) == 2 and sent[0] == "Write a function.", "what was refused is not sent again")


def makes_versions(browser):
    answer_with(browser, [{"content": "first"}])
    choose(browser, mode="chat")
    ask(browser, "Question one")
    answer_with(browser, [{"content": "second"}])
    press_button(browser, "Regenerate")
    browser.wait_for(f"{SAID}.includes('second')")
    check(browser.evaluate(f"{LAST}.querySelector('.version').textContent") == "2 of 2", "another answer stands beside the first")
    press_button(browser, "‹")
    check(browser.evaluate(SAID).strip() == "first", "the first answer can be shown again")
    ask(browser, "Question two")
    check(browser.evaluate("asked.at(-1).messages.map((one) => one.content)") == ["Question one", "first", "Question two"], "the shown path is what is sent")

    answer_with(browser, [{"content": "third"}])
    press_button(browser, "Edit", "document.querySelector('.message')")
    set_value(browser, ".edit textarea", "Question changed")
    press_button(browser, "Send", "document.querySelector('.edit')")
    browser.wait_for(f"{SAID}.includes('third')")
    check(browser.evaluate("asked[0].messages.map((one) => one.content)") == ["Question changed"], "a changed question is asked")
    check(messages(browser) == 2 and browser.evaluate("document.querySelector('.version').textContent") == "2 of 2", "beside the old one")
    press_button(browser, "‹", "document.querySelector('.message')")
    check(messages(browser) == 4, "which is there with all that followed")
    press_button(browser, "›", "document.querySelector('.message')")
    check(messages(browser) == 2, "and back")

    press_button(browser, "Edit")
    set_value(browser, ".edit textarea", "as I want it")
    press_button(browser, "Save")
    check(browser.evaluate(SAID).strip() == "as I want it" and len(browser.evaluate("asked")) == 1, "an answer can be changed without asking")

    before = browser.evaluate("store.all.size")
    press_button(browser, "Branch", "document.querySelector('.message')")
    check(browser.evaluate("store.all.size") == before + 1 and messages(browser) == 1, "a branch is a conversation of its own")
    press_button(browser, "Answer")
    browser.wait_for(f"{SAID}.includes('third')")
    check(messages(browser) == 2, "and goes on by itself")
    press_button(browser, "Delete", "document.querySelector('.message')")
    check(messages(browser) == 0, "a message is deleted with what follows")
    click(browser, "#undo")
    browser.wait_for("document.querySelectorAll('.message').length === 2")
    check(True, "which can be taken back")

    choose(browser, mode="chat")
    ask(browser, "Question three")
    browser.evaluate("document.getElementById('prompt').focus()")
    browser.press("ArrowUp", 38)
    check(browser.evaluate("document.querySelector('.edit textarea')?.value") == "Question three", "the arrow edits the last prompt")
    browser.press("Escape", 27)
    check(browser.evaluate("!document.querySelector('.edit')"), "Escape leaves it as it was")
    answer_by_server(browser)


def lasts(browser, address):
    click(browser, "#show-list")
    answer_with(browser, [{"content": "An answer about **trees**."}])
    choose(browser, mode="chat")
    set_value(browser, "#set-system", "Be brief.")
    ask(browser, "What is an espalier?")
    shown = browser.evaluate("document.getElementById('log').textContent")
    browser.evaluate("new Promise((done) => { const all = store.database.transaction('conversations', 'readwrite'); all.oncomplete = done; })")
    open_page(browser, address)
    check(browser.evaluate("document.getElementById('log').textContent") == shown, "a conversation is there after the page was opened again")
    check(browser.evaluate("document.getElementById('set-system').value") == "Be brief.", "with its settings")
    check(browser.evaluate("!document.getElementById('list').hidden"), "and what was open is open")

    press_button(browser, "Rename", "document.getElementById('conversations')")
    browser.type("Gardens")
    browser.press("Enter", 13)
    check("Gardens" in browser.evaluate(TITLES), "it can be renamed")
    set_value(browser, "#search", "ABOUT **TREES")
    check(browser.evaluate(TITLES) == ["Gardens"], "it is found by what was said in it")
    set_value(browser, "#search", "no such words")
    check(browser.evaluate(TITLES) == [] and "no such words" in browser.evaluate("document.getElementById('list-note').textContent"), "a search can find nothing")
    set_value(browser, "#search", "")

    press_button(browser, "Delete", "document.getElementById('conversations')")
    browser.wait_for("document.getElementById('undo').hidden === false")
    check("Gardens" not in browser.evaluate(TITLES), "it can be deleted")
    click(browser, "#undo")
    browser.wait_for(f"{TITLES}.includes('Gardens')")
    check(browser.evaluate("document.getElementById('log').textContent") == shown, "a deletion can be taken back")


def hears_of_other_tabs(browser):
    """What another tab wrote is shown, not written over."""
    answer_with(browser, [{"content": "here"}])
    choose(browser, mode="chat")
    ask(browser, "Said here")
    elsewhere = """(async () => {
        const other = structuredClone(page.current);
        const request = indexedDB.open('espalier', 1);
        await new Promise((done) => { request.onsuccess = done; });
        %s
        await new Promise((done) => { const writing = request.result.transaction('conversations', 'readwrite'); writing.oncomplete = done;
            %s });
        new BroadcastChannel('espalier').postMessage(other.id);
    })()"""
    browser.evaluate(elsewhere % ("add_node(other, other.head, 'user', { content: 'Said elsewhere' });", "writing.objectStore('conversations').put(other);"))
    browser.wait_for(f"{SAID}.includes('Said elsewhere')")
    ask(browser, "Said here again")
    check(browser.evaluate("asked.at(-1).messages.map((one) => one.content)") == ["Said here", "here", "Said elsewhere", "Said here again"], "another tab's message is kept")
    browser.evaluate(elsewhere % ("", "writing.objectStore('conversations').delete(other.id);"))
    browser.wait_for("document.querySelectorAll('.message').length === 0")
    check("Said here" not in browser.evaluate(TITLES), "what another tab deleted is gone")
    answer_by_server(browser)


def keeps_the_focus(browser):
    """Where the button that was pressed is drawn anew."""
    focus = "document.activeElement.textContent"
    answer_with(browser, [{"content": "first"}])
    choose(browser, mode="chat")
    ask(browser, "Question")
    check(browser.evaluate("document.getElementById('spoken').textContent") == "first", "an answer is read out when it is whole")
    press_button(browser, "Regenerate")
    browser.wait_for("document.querySelectorAll('.version').length > 0")

    def press(text, within="document"):
        browser.evaluate(f"[...{within}.querySelectorAll('button')].filter((one) => one.textContent === {json.dumps(text)}).at(-1).focus()")
        browser.press("Enter", 13)

    press("‹")
    check(browser.evaluate(focus) == "›", "versions: on the other arrow")
    press("Edit")
    browser.press("Escape", 27)
    check(browser.evaluate(f"{LAST}.contains(document.activeElement)"), "edit: on the message")
    press("Delete")
    check(browser.evaluate(focus) == "Undo", "delete: on the way back")
    press("Rename", "document.getElementById('conversations')")
    browser.press("Enter", 13)
    check(browser.evaluate("document.activeElement.getAttribute('aria-current')") == "true", "rename: on the conversation")
    answer_by_server(browser)


def goes_to_files(browser):
    """What is exported and imported again is the same; a file that is not whole changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
        answer_with(browser, [{"content": "Line one\n<!-- espalier:user -->\n\\<!-- espalier:tool -->\n## You\n\n\nend\n"}])
        choose(browser, mode="chat")
        set_value(browser, "#set-system", "Speak\nin lines.")
        ask(browser, "Files?")
        path = "path_to(page.current, page.current.head).map((one) => [one.role, one.content])"
        said, whole = browser.evaluate(path), browser.evaluate("JSON.stringify(page.current.nodes)")
        for button, name, same in (("JSON", "Files.json", "JSON.stringify(page.current.nodes)"), ("Markdown", "Files.md", None)):
            press_button(browser, button, "document.getElementById('conversations')")
            file = pathlib.Path(folder, name)
            browser.wait(file.exists, f"the file {name}")
            before = browser.evaluate("store.all.size")
            browser.choose_file("#import-file", file)
            browser.wait_for(f"store.all.size === {before + 1} && {STATUS}.includes('imported')")
            check(browser.evaluate(path) == said, f"{name} has every message, as it was")
            check(browser.evaluate("page.current.settings.system") == "Speak\nin lines.", f"{name} has the system prompt")
            check(same is None or browser.evaluate(same) == whole, f"{name} has its tokens")

        good = json.loads(pathlib.Path(folder, "Files.json").read_text())
        first = good["conversations"][0]["nodes"]["1"]
        hostile = {
            "a parent that follows": {**first, "parent": 7},
            "a role of its own": {**first, "role": "system"},
            "content that is no text": {**first, "content": {"toString": 1}},
        }
        cases = {name: json.dumps({**good, "conversations": [{**good["conversations"][0], "nodes": {"1": node}, "head": 1}]}) for name, node in hostile.items()}
        cases["no JSON"] = "{"
        cases["another format"] = "{}"
        cases["no conversation"] = "# A page\n\n## You\n\nhello"
        before = browser.evaluate("store.all.size")
        for name, text in cases.items():
            file = pathlib.Path(folder, "bad.json")
            file.write_text(text)
            browser.evaluate("say('')")
            browser.choose_file("#import-file", file)
            browser.wait_for(f"{STATUS}.startsWith('bad.json: ')")
            check(browser.evaluate("store.all.size") == before, f"a file with {name} is refused: {browser.evaluate(STATUS)[:90]}")

        click(browser, "#export-all")
        everything = pathlib.Path(folder, "conversations.json")
        browser.wait(everything.exists, "the file of all conversations")
        check(len(json.loads(everything.read_text())["conversations"]) == before, "all conversations go to one file")
    answer_by_server(browser)
