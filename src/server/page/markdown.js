// Markdown as DOM nodes. What a model writes is hostile: its markup is shown as text, what is left goes through DOMPurify with
// a short list of tags, links lead to http, https and mailto alone, and no picture is fetched. Without the three libraries
// (a build that did not fetch them) a text is shown as it stands.

const MOST_MARKDOWN_LETTERS = 60000; // a longer text is shown as it stands; of this length the slowest found, "_a_b" repeated, takes about 5 s
const MOST_CODE_LETTERS = 50000; // likewise without colours

const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a",
    "table", "thead", "tbody", "tr", "th", "td"],
  ALLOWED_ATTR: ["href", "title", "start", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const has_markdown = () => typeof marked !== "undefined" && typeof DOMPurify !== "undefined";

const escaped = (text) => text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

// Markup as text; a picture as a link to it; a task's box as a sign.
const RENDERER = {
  html({ text, block }) { return block ? `<p>${escaped(text.trim()).replace(/\n/g, "<br>")}</p>\n` : escaped(text); },
  image({ href, text }) { return `<a href="${escaped(href)}">${escaped(text || href)}</a>`; },
  checkbox({ checked }) { return checked ? "☑ " : "☐ "; },
};

let reader; // made once it is needed

function markdown_fragment(text) {
  if (!has_markdown() || text.length > MOST_MARKDOWN_LETTERS) return plain_fragment(text);
  try {
    reader ??= new marked.Marked({ gfm: true, renderer: RENDERER });
    const fragment = DOMPurify.sanitize(reader.parse(text), ALLOWED);
    for (const link of fragment.querySelectorAll("a")) finish_link(link);
    for (const table of fragment.querySelectorAll("table")) finish_table(table);
    for (const one of fragment.querySelectorAll("[class]")) if (one.tagName !== "CODE") one.removeAttribute("class");
    for (const code of fragment.querySelectorAll("pre > code")) finish_code(code);
    return fragment;
  } catch { // a text that a library stumbles over is still a text
    return plain_fragment(text);
  }
}

function plain_fragment(text) {
  const fragment = document.createDocumentFragment();
  const whole = document.createElement("div");
  whole.className = "as-written";
  whole.textContent = text;
  fragment.append(whole);
  return fragment;
}

function finish_link(link) {
  if (!link.hasAttribute("href")) {
    link.replaceWith(...link.childNodes);
    return;
  }
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
}

// A wide table scrolls by itself, by keyboard too.
function finish_table(table) {
  const frame = document.createElement("div");
  frame.className = "wide-table";
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Table");
  table.replaceWith(frame);
  frame.append(table);
}

function finish_code(code) {
  const language = /^language-([\w+#-]{1,30})$/.exec(code.className)?.[1] ?? "";
  const text = code.textContent;
  code.removeAttribute("class");
  if (typeof hljs !== "undefined" && text.length <= MOST_CODE_LETTERS && hljs.getLanguage(language)) {
    const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(DOMPurify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }));
  }
  const block = document.createElement("div");
  block.className = "code-block";
  const head = document.createElement("div");
  head.className = "code-head";
  head.append(language || "text", copy_button(() => text, "Copy code"));
  const pre = code.parentElement;
  pre.tabIndex = 0;
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  pre.replaceWith(block);
  block.append(head, pre);
}

function copy_button(text, name) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = "Copy";
  button.setAttribute("aria-label", name);
  button.addEventListener("click", async () => {
    button.textContent = await copy_text(text()) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

// The clipboard's own interface is there only on https and localhost.
async function copy_text(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* refused or absent: the old way */ }
  const place = document.createElement("textarea");
  place.value = text;
  document.body.append(place);
  place.select();
  const copied = document.execCommand("copy");
  place.remove();
  return copied;
}
