// The messages of the path that is shown: text or tokens, reasoning folded, calls of tools, and what can be done with each.

const NAMES = { chat: { user: "You", assistant: "Assistant", tool: "Tool" }, completion: { user: "Prompt", assistant: "Continuation", tool: "Tool" } };
const BUSY = "An answer is being written: stop it first";
const DRAW_AGAIN_AFTER = 5; // times what drawing took: a long text is drawn more rarely

const shown = { views: new Map(), follows: true }; // views by node id

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(text, name, press) {
  const made = make("button", "quiet small", text);
  made.type = "button";
  if (name !== text) made.setAttribute("aria-label", name);
  made.addEventListener("click", press);
  return made;
}

// A target's token has no mark. Space stands between words and is not underlined.
function append_token(place, text, source) {
  if (source === "target") {
    place.append(text);
    return;
  }
  const space = /^\s*/.exec(text)[0];
  place.append(space);
  if (space.length === text.length) return;
  const token = make("span", `token from-${source}`, text.slice(space.length));
  token.title = SOURCES[source].name;
  place.append(token);
}

class MessageView {
  constructor(conversation, node) {
    Object.assign(this, { conversation, node, tokens_shown: 0, drawn: 0, took: 0, waits: 0 });
    this.message = make("article", `message ${node.role}`);
    this.message.dataset.id = node.id;
    this.who = make("h3", "who", NAMES[conversation.mode][node.role]);
    this.reasoning = make("details", "reasoning");
    this.reasoning.append(make("summary"), make("div", "as-written"));
    this.said = make("div", "said");
    this.calls = make("div", "calls");
    this.figures = make("span", "figures");
    this.actions = make("div", "actions");
    this.message.append(this.who, this.reasoning, this.said, this.calls, this.figures, this.actions);
    this.begin();
    this.draw();
    if (page.running?.conversation !== conversation) this.add_actions();
  }

  as_tokens() { return this.node.role === "assistant" && this.node.tokens && (this.conversation.mode === "completion" || page.show_tokens); }

  begin() {
    if (this.conversation.mode === "completion" || this.as_tokens()) this.said.classList.add("as-written");
    if (this.conversation.mode !== "completion") return;
    this.said.classList.add("plain-text"); // as often code as not
    const asked = this.conversation.nodes[this.node.parent];
    if (this.node.role === "assistant" && asked) this.said.append(make("span", "prompt-part", asked.content));
  }

  // At once, or as soon as drawing does not fill the time.
  update() {
    const wait = this.as_tokens() ? 0 : this.drawn + DRAW_AGAIN_AFTER * this.took - performance.now();
    if (wait <= 0) this.draw();
    else this.waits ||= setTimeout(() => { this.waits = 0; this.draw(); }, wait);
  }

  draw() {
    const began = performance.now();
    if (this.as_tokens()) this.draw_tokens();
    else if (this.conversation.mode === "chat" && this.node.role === "assistant") this.said.replaceChildren(markdown_fragment(this.node.content));
    else if (!this.tokens_shown++) this.said.append(this.conversation.mode === "chat" ? plain_fragment(this.node.content) : this.node.content);
    this.draw_parts();
    this.drawn = performance.now();
    this.took = this.drawn - began;
  }

  draw_tokens() {
    for (; this.tokens_shown < this.node.tokens.length; ++this.tokens_shown) {
      const [text, source] = this.node.tokens[this.tokens_shown];
      append_token(this.said, text, source_of(source));
    }
  }

  draw_parts() {
    const { reasoning = "", calls = [], error, figures = "" } = this.node;
    this.reasoning.hidden = reasoning === "";
    this.reasoning.firstChild.textContent = `Reasoning, ${reasoning.trim().split(/\s+/).length} words`;
    this.reasoning.lastChild.textContent = reasoning;
    this.calls.replaceChildren(...calls.map((call) => {
      const one = make("div", "call");
      one.append(make("span", "who", `Calls ${call.name}`), make("pre", "", call.arguments));
      return one;
    }));
    this.figures.classList.toggle("error", Boolean(error));
    this.figures.textContent = error ? `${error}${this.node.content === "" ? " (Neither this nor its question is sent again.)" : ""}` : figures;
  }

  add_actions() {
    const { conversation, node } = this;
    const name = `${NAMES[conversation.mode][node.role].toLowerCase()} ${node.id}`;
    const among = children_of(conversation, node.parent);
    if (among.length > 1) {
      const at = among.indexOf(node);
      const go = (step) => () => show_node(among[at + step].id);
      const before = button("‹", `Show the version before, of ${name}`, go(-1)), after = button("›", `Show the next version of ${name}`, go(1));
      before.disabled = at === 0;
      after.disabled = at + 1 === among.length;
      this.actions.append(before, make("span", "version", `${at + 1} of ${among.length}`), after);
    }
    const asked = conversation.nodes[node.parent];
    this.actions.append(copy_button(() => node.content, `Copy ${name}`));
    if (node.role !== "assistant" && !children_of(conversation, node.id).length) this.actions.append(button("Answer", `Answer ${name}`, () => answer(conversation, node.id)));
    if (node.role === "assistant" && asked) this.actions.append(button(node.error ? "Try again" : "Regenerate", `Regenerate ${name}`, () => answer(conversation, asked.id)));
    if (conversation.mode === "completion" && asked) this.actions.append(button("Edit", `Edit the prompt of ${name}`, () => this.edit(asked)));
    else this.actions.append(button("Edit", `Edit ${name}`, () => this.edit(node)));
    this.actions.append(button("Branch", `Branch into a conversation of its own after ${name}`, () => open_branch(conversation, node.id)),
      button("Delete", `Delete ${name} and what follows`, () => remove_node(conversation, conversation.mode === "completion" && asked ? asked.id : node.id)));
  }

  // The changed text stands beside the old one; a changed question is asked.
  edit(node) {
    const form = make("form", "edit");
    const text = make("textarea");
    text.value = node.content;
    text.rows = Math.min(12, 2 + node.content.split("\n").length);
    text.setAttribute("aria-label", "Text of the message");
    const save = make("button", "small", node.role === "user" ? "Send" : "Save");
    save.type = "submit";
    const leave = () => { render_log(); give_focus(shown.views.get(this.node.id)?.actions.querySelector("button:enabled")); };
    form.append(text, save, button("Cancel", "Cancel", leave));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (page.running) return say(BUSY, true);
      const { conversation } = this;
      const { id, parent, role, tokens, figures, error, ...fields } = node; // what told of the old text goes
      const made = add_node(conversation, parent, role, { ...fields, content: text.value });
      if (role === "user") answer(conversation, made.id);
      else keep_and_show(conversation);
    });
    text.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); leave(); } });
    this.said.replaceChildren(form);
    this.actions.replaceChildren();
    text.focus();
  }
}

// What the model called waits for results before it goes on.
function results_form(conversation, node) {
  const form = make("form", "edit results");
  const texts = node.calls.map((call, i) => {
    const label = make("label", "", `Result of ${call.name}`);
    const text = make("textarea");
    text.rows = 2;
    text.id = `result-${i}`;
    label.htmlFor = text.id;
    form.append(label, text);
    return text;
  });
  const send_them = make("button", "small", "Send results");
  send_them.type = "submit";
  form.append(send_them);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (page.running) return say(BUSY, true);
    node.calls.forEach((call, i) => add_node(conversation, conversation.head, "tool", { content: texts[i].value, call_id: call.id }));
    answer(conversation, conversation.head);
  });
  return form;
}

function render_log() {
  const log = element("log"), conversation = page.current;
  const path = path_to(conversation, conversation.head);
  shown.views.clear();
  const parts = [];
  path.forEach((node, i) => {
    if (conversation.mode === "completion" && node.role === "user" && path[i + 1]) return; // stands before its continuation
    const view = new MessageView(conversation, node);
    shown.views.set(node.id, view);
    parts.push(view.message);
  });
  const last = path[path.length - 1];
  if (last?.calls?.length && page.running?.node !== last) parts.push(results_form(conversation, last));
  if (!parts.length) parts.push(make("p", "empty", conversation.mode === "chat"
    ? "Ask something. Answers are Markdown; Tokens shows where each of their tokens came from."
    : "Begin a text; the model continues it. Every token shows where it came from."));
  log.replaceChildren(...parts);
  log.setAttribute("aria-busy", String(page.running?.conversation === conversation));
  scroll_down(true);
}

// Follows the text, unless the user has scrolled up to read.
function scroll_down(always) {
  const log = element("log");
  if (always) shown.follows = true;
  if (shown.follows) log.scrollTop = log.scrollHeight;
}

function start_log() {
  const log = element("log");
  let top = 0;
  log.addEventListener("scroll", () => {
    // A scroll event may come after the log became smaller and before its observer hears of it: only a way up ends following.
    const up = log.scrollTop < top, at_end = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    shown.follows = at_end || (shown.follows && !up);
    top = log.scrollTop;
  });
  new ResizeObserver(() => scroll_down()).observe(log);
}
