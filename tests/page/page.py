# SPDX-License-Identifier: Apache-2.0
"""What the tests of the page share: opening it, typing, sending, and answers that a test makes up."""
import json

LAST = "[...document.querySelectorAll('.message')].at(-1)"
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


def click(browser, selector):
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def press_button(browser, text, within="document"):
    """The last button with this text."""
    browser.evaluate(f"[...{within}.querySelectorAll('button')].filter((one) => one.textContent === {json.dumps(text)}).at(-1).click()")


def set_value(browser, selector, value):
    browser.evaluate(f"""(() => {{
        const control = document.querySelector({json.dumps(selector)});
        control.value = {json.dumps(str(value))};
        control.dispatchEvent(new Event(control.tagName === 'SELECT' ? 'change' : 'input', {{ bubbles: true }}));
    }})()""")


def choose(browser, mode="completion", drafts="tree", tokens=128):
    """A new conversation that answers with the likeliest tokens."""
    browser.evaluate("page.settings = initial_settings()")
    click(browser, "#new")
    click(browser, f"#mode-{mode}")
    set_value(browser, "#drafts", drafts)
    set_value(browser, "#set-temperature", 0)
    set_value(browser, "#set-max_tokens", tokens)


def ask(browser, text, at_first_token=""):
    """Types and sends; `at_first_token` runs in the page when the first text of the answer is there."""
    browser.evaluate("""(() => {
        window.at_first = null;
        const log = document.getElementById('log'), last = page.current.next;
        const watch = new MutationObserver(() => {
            const answer = [...log.querySelectorAll('.message.assistant')].find((one) => Number(one.dataset.id) >= last);
            const given = answer?.querySelector('.prompt-part')?.textContent.length ?? 0;
            if (!answer || (answer.querySelector('.said').textContent.length <= given && answer.querySelector('.figures').textContent === '')) return;
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


def messages(browser):
    return browser.evaluate("document.querySelectorAll('.message').length")


def figures(browser):
    return browser.evaluate(f"{LAST}.querySelector('.figures').textContent")


def answer_with(browser, deltas, finish="stop"):
    """From now on the page's requests end here: their bodies are kept in `window.asked`, and each gets these deltas."""
    browser.evaluate("""(() => {
        window.asked = [];
        window.real_stream ??= api.stream;
        const deltas = %s;
        api.stream = async function* (path, body) {
            asked.push(structuredClone(body));
            for (const delta of deltas) {
                const text = delta.content ?? delta.reasoning_content ?? "";
                yield { choices: [{ delta, finish_reason: null, speculation: { tokens: text ? [{ text, source: "mtp" }] : [], trees: [] } }] };
            }
            yield { choices: [{ delta: {}, finish_reason: %s }] };
        };
    })()""" % (json.dumps(deltas), json.dumps(finish)))


def answer_by_server(browser):
    browser.evaluate("if (window.real_stream) api.stream = window.real_stream")
