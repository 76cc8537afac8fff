# SPDX-License-Identifier: Apache-2.0
"""Markdown, code, and a model that writes markup: the page's own renderer, given texts."""
import json
import pathlib
import re
import subprocess
import tempfile

from page import LAST, answer_by_server, answer_with, ask, check, choose, open_page, press_button

GOOD = """# Title

A *word* with `code`, [a link](https://example.org/x) and a [letter](mailto:a@example.org).

| a | b |
|---|---|
| 1 | 2 |

- [x] done
- [ ] open

```python
def clamp(x):
    return max(0, x)  # a comment
```

```nolanguage
plain
```
"""

# Texts that would run a script, fetch something or take over a part of the page, if any of it became markup.
HOSTILE = [
    "<script>window.bitten = 1</script>",
    "<img src=x onerror='window.bitten = 1'>",
    "<svg onload='window.bitten = 1'><a xlink:href='javascript:window.bitten=1'>x</a></svg>",
    "<iframe srcdoc='<script>parent.bitten = 1</script>'></iframe>",
    "[x](javascript:window.bitten=1) [y](JaVaScRiPt&colon;window.bitten=1) [z](data:text/html,<script>1</script>) [w](vbscript:x)",
    "<javascript:window.bitten=1>",
    "![x](https://outside.example/pixel.png) ![y](x\" onerror=\"window.bitten=1)",
    "[x](https://a.example/\" onmouseover=\"window.bitten=1)",
    "[a]: javascript:window.bitten=1\n\n[a]",
    "```html\n<script>window.bitten = 1</script>\n</code></pre><img src=x onerror=window.bitten=1>\n```",
    "```\" onclick=\"window.bitten=1\nx\n```",
    "```js hljs\" style=\"position:fixed\nx\n```",
    "<form action=https://outside.example><input name=status><button>Send</button></form>",
    "<div id=log class=skip style='position:fixed;inset:0'>over everything</div>",
    "<style>body { display: none }</style><link rel=stylesheet href=https://outside.example/x.css>",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=window.bitten=1&gt;\">",
    "<a href='https://a.example' target=_top ping=https://outside.example>x</a>",
    "a < b && c > d, <b>bold</b> &lt;i&gt;",
]

# In the fragment: which tags and attributes there are, and where its links lead.
INSIDE = """(() => {
    const fragment = markdown_fragment(%s), place = document.createElement('div');
    place.append(fragment);
    document.body.append(place);
    const all = [...place.querySelectorAll('*')];
    const found = {
        tags: [...new Set(all.map((one) => one.localName))],
        attributes: [...new Set(all.flatMap((one) => [...one.attributes].map((a) => a.name)))],
        links: all.filter((one) => one.localName === 'a').map((one) => one.protocol + ' ' + one.rel + ' ' + one.target),
        classes: [...new Set(all.flatMap((one) => [...one.classList]))],
        text: place.textContent,
    };
    for (const one of all) for (const type of ['click', 'mouseover', 'error', 'load']) one.dispatchEvent(new Event(type));
    place.remove();
    return found;
})()"""
TAGS = {"p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a", "table", "thead",
        "tbody", "tr", "th", "td", "div", "span", "button"}
ATTRIBUTES = {"href", "title", "start", "class", "rel", "target", "tabindex", "role", "aria-label", "type"}
OF_CODE = re.compile("hljs-[a-z_-]+|[a-z]+_+|language-[a-z]+")  # as highlight.js writes them
CLASSES = {"code-block", "code-head", "wide-table", "as-written", "quiet", "small"}


def look_inside(browser, text):
    return browser.evaluate(INSIDE % json.dumps(text))


def reads_markdown(browser):
    answer_with(browser, [{"content": piece} for piece in GOOD.splitlines(keepends=True)])
    choose(browser, mode="chat")
    ask(browser, "Show me")
    count = lambda selector: browser.evaluate(f"{LAST}.querySelectorAll({json.dumps(selector)}).length")
    check(count(".said h1") == 1 and count(".said table td") == 2 and count(".said em") == 1, "an answer is read as Markdown")
    check(count(".said a[rel='noopener noreferrer nofollow'][target=_blank]") == 2, "links open apart and tell nothing")
    check(count(".hljs-keyword") >= 2 and count(".hljs-comment") == 1, "code has its colours")
    check("☑ done" in browser.evaluate(f"{LAST}.textContent") and count(".said input") == 0, "a task's box is a sign")
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    press_button(browser, "Copy", f"{LAST}.querySelector('.code-block')")
    browser.wait_for(f"{LAST}.querySelector('.code-block button').textContent === 'Copied'")
    check(browser.evaluate("navigator.clipboard.readText()") == "def clamp(x):\n    return max(0, x)  # a comment\n", "code is copied as it was written")
    press_button(browser, "Copy", f"{LAST}.querySelector('.actions')")
    browser.wait_for("navigator.clipboard.readText().then((text) => text.startsWith('# Title'))")
    check(True, "a message is copied as Markdown")
    browser.evaluate("document.getElementById('show-tokens').click()")
    check(browser.evaluate(f"{LAST}.querySelector('.said').textContent") == GOOD and count(".token") > 5, "Tokens shows the text as it came, with sources")
    browser.evaluate("document.getElementById('show-tokens').click()")
    answer_by_server(browser)


def disarms_markup(browser):
    for text in HOSTILE:
        found = look_inside(browser, text)
        check(set(found["tags"]) <= TAGS and set(found["attributes"]) <= ATTRIBUTES
              and all(name in CLASSES or OF_CODE.fullmatch(name) for name in found["classes"])
              and all(link.split(" ", 1) in ([kind, "noopener noreferrer nofollow _blank"] for kind in ("https:", "http:", "mailto:")) for link in found["links"]),
              f"nothing of it is markup: {text[:60]!r} {found['tags']} {found['attributes']}")
    check(look_inside(browser, HOSTILE[-1])["text"].strip() == "a < b && c > d, <b>bold</b> <i>", "markup is shown as it was written")
    check("<script>" in look_inside(browser, HOSTILE[0])["text"], "a script is text")
    answer_with(browser, [{"content": text + "\n\n"} for text in HOSTILE] + [{"reasoning_content": HOSTILE[1]}])
    choose(browser, mode="chat")
    ask(browser, HOSTILE[1])
    browser.evaluate("document.getElementById('show-tokens').click()")
    browser.evaluate("document.getElementById('show-tokens').click()")
    check(browser.evaluate("window.bitten === undefined"), "no script of an answer ran, in text or as tokens")
    check(browser.evaluate("document.querySelectorAll('#log img, #log script, #log style, #log form, #log iframe').length") == 0, "nor did anything else come in")
    check(browser.evaluate("""(() => { const one = document.createElement('img'); one.setAttribute('onerror', 'window.bitten = 1');
        one.dispatchEvent(new Event('error')); return window.bitten === undefined; })()"""), "the page's policy stops a handler that would come in")
    browser.errors = [error for error in browser.errors if "Content Security Policy" not in error]
    answer_by_server(browser)


def stays_quick_and_plain(browser):
    """Long or deep texts end as plain text."""
    deep = look_inside(browser, ">" * 20000 + " deep")
    check("deep" in deep["text"], "a text that is too deep is still shown")
    check(look_inside(browser, "*a* " * 60000)["tags"] == ["div"], "a text that is too long is shown as it stands")


def does_without_libraries(browser, address):
    """The page of a build that has none, in place of the server's."""
    sources = pathlib.Path(__file__).parents[2] / "src/server/page"
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder, "page.cpp")
        subprocess.run(["cmake", f"-DFOLDER={sources}", "-DLIBRARIES=", f"-DOUTPUT={made}", "-P", sources / "embed.cmake"], check=True)
        page = made.read_text().split('R"espalier-page(')[1].split(')espalier-page"')[0]
    browser.put_in_place(address + "/", page)
    open_page(browser, address)
    browser.put_in_place(address + "/", "")
    answer_with(browser, [{"content": "*one* <b>two</b>\n"}, {"content": "```\nthree\n```"}])
    choose(browser, mode="chat")
    ask(browser, "Go")
    check(browser.evaluate("typeof marked") == "undefined", "a build without libraries has none")
    check(browser.evaluate(f"{LAST}.querySelector('.said').textContent") == "*one* <b>two</b>\n```\nthree\n```"
          and browser.evaluate(f"{LAST}.querySelectorAll('.said *').length") == 1, "and shows plain text")
