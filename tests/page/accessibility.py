# SPDX-License-Identifier: Apache-2.0
"""Finds controls without a name and text whose contrast is below 4.5 : 1, wherever they are on the page."""
from page import check

# As WCAG 2 counts it. Text stands on the colours behind it, one over the other; a disabled control need not be read.
POOR_CONTRAST = """(() => {
    const parse = (colour) => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
    const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
    const light = (colour) => {
        const [r, g, b] = colour.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const chain = (e) => { const found = []; for (; e; e = e.parentElement) found.unshift(e); return found; };
    const ground = (e) => chain(e).reduce((below, one) => over(parse(getComputedStyle(one).backgroundColor), below), [255, 255, 255]);
    const poor = [];
    let looked = 0;
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = new Set();
    for (let text = walk.nextNode(); text; text = walk.nextNode()) if (text.textContent.trim()) seen.add(text.parentElement);
    for (const one of document.querySelectorAll('input, textarea, select')) seen.add(one);
    for (const e of seen) {
        if (!e.checkVisibility({ visibilityProperty: true }) || e.closest(':disabled, script, style, noscript, .hidden-label')) continue;
        ++looked;
        const style = getComputedStyle(e), below = e instanceof SVGElement && e.closest('.node') ? parse(getComputedStyle(e.closest('.node').querySelector('rect')).fill).slice(0, 3) : ground(e);
        const colours = [style[e instanceof SVGElement ? 'fill' : 'color']];
        if (e.placeholder) colours.push(getComputedStyle(e, '::placeholder').color);
        for (const colour of colours) {
            const a = light(over(parse(colour), below)), b = light(below), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.localName}.${e.getAttribute('class') ?? ''} ${e.textContent.slice(0, 20)}`);
        }
    }
    return { poor, looked };
})()"""

# By the browser's own tree of accessibility, so that every way to give a name counts.
CONTROLS = {"button", "textbox", "searchbox", "spinbutton", "combobox", "checkbox", "link", "dialog", "region", "log", "img", "image", "group", "DisclosureTriangle"}


def nameless_controls(browser):
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    found = [node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in CONTROLS]
    nameless = [node["role"]["value"] for node in found if not node.get("name", {}).get("value", "").strip()]
    return [role for role in nameless if role != "group"], len(found)  # a fold is a group, named by what unfolds it


def can_be_used(browser, where, at_least):
    """at_least: controls that must have been looked at."""
    nameless, controls = nameless_controls(browser)
    check(nameless == [] and controls >= at_least, f"{where}: each of {controls} controls has a name {nameless}")
    contrast = browser.evaluate(POOR_CONTRAST)
    check(contrast["poor"] == [] and contrast["looked"] >= at_least, f"{where}: {contrast['looked']} texts can be read {contrast['poor'][:6]}")


def tab_stops(browser, most=120):
    """What the Tab key reaches, from the top of the page until it comes round."""
    browser.evaluate("document.querySelector('.skip').focus()")
    stops = []
    for _ in range(most):
        stops.append(browser.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 12)"))
        browser.press("Tab", 9)
        if browser.evaluate("document.activeElement === document.body || document.activeElement.className === 'skip'"):
            break
    return stops


def finds_faults(browser):
    """The script itself: a grey word and a button without a name are found."""
    browser.evaluate("""(() => { const bad = document.createElement('div'); bad.id = 'bad'; bad.style.cssText = 'color: #999; background: #fff';
        bad.append('grey', document.createElement('button')); document.body.append(bad); })()""")
    contrast = browser.evaluate(POOR_CONTRAST)
    nameless, _ = nameless_controls(browser)
    browser.evaluate("document.getElementById('bad').remove()")
    check(any("grey" in one for one in contrast["poor"]) and nameless == ["button"], "poor contrast and a control without a name are found")
