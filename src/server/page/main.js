// The conversation: sends it, shows each token as it comes with its source, and the trees they came from.

const element = (id) => document.getElementById(id);
const page = { mode: "completion", model: "", chat_offered: false, messages: [], controller: null };

function say(text, bad = false) {
  element("status").textContent = text;
  element("status").classList.toggle("bad", bad);
}

function set_mode(mode) {
  page.mode = mode;
  element("mode-chat").setAttribute("aria-pressed", String(mode === "chat"));
  element("mode-completion").setAttribute("aria-pressed", String(mode === "completion"));
  element("mode-chat").disabled = !page.chat_offered;
  element("mode-note").textContent = mode === "chat"
    ? "Messages go through the model's chat template."
    : page.chat_offered ? "The text is continued as it stands." : "This model has no chat template: the text is continued as it stands.";
}

function add_message(who) {
  element("log").querySelector(".empty")?.remove();
  const message = document.createElement("div");
  message.className = "message";
  const name = document.createElement("span");
  name.className = "who";
  name.textContent = who;
  const said = document.createElement("div");
  said.className = "said";
  const figures = document.createElement("span");
  figures.className = "figures";
  message.append(name, said, figures);
  element("log").append(message);
  scroll_down();
  return { message, said, figures };
}

function scroll_down() {
  const log = element("log");
  log.scrollTop = log.scrollHeight;
}

function append_token(said, text, source) {
  if (source === "target") {
    said.append(text);
    return;
  }
  const space = /^\s*/.exec(text)[0]; // stands between words and is not underlined
  said.append(space);
  if (space.length === text.length) return;
  const token = document.createElement("span");
  token.className = `token from-${source}`;
  token.textContent = text.slice(space.length);
  token.title = SOURCES[source].name;
  said.append(token);
}

// What the request says about drafts; the text is the same with each of them.
const DRAFTS = {
  auto: {},
  chain: { draft_depth: 4 },
  tree: { draft_depth: 4, draft_width: 3, draft_nodes: 12 },
  off: { speculate: false },
};

function request_body(prompt) {
  const body = {
    model: page.model, stream: true, stream_options: { include_usage: true }, speculation_report: true,
    max_tokens: Number(element("max-tokens").value) || 128, temperature: Number(element("temperature").value) || 0,
    ...DRAFTS[element("drafts").value] };
  return page.mode === "chat" ? { ...body, messages: page.messages } : { ...body, prompt };
}

function show_figures(answer, count, seconds, usage, ended) {
  const tokens = usage?.completion_tokens ?? count;
  const parts = [`${tokens} tokens`];
  if (seconds > 0) parts.push(`${(tokens / seconds).toFixed(0)} tokens/s`);
  const accepted = usage?.completion_tokens_details?.accepted_prediction_tokens;
  if (accepted !== undefined) parts.push(`${accepted} from drafts`);
  parts.push(ended);
  answer.figures.textContent = parts.join(" · ");
  return parts.join(", ");
}

async function generate(prompt) {
  const answer = add_message(page.mode === "chat" ? "Assistant" : "Continuation");
  if (page.mode === "completion") {
    answer.said.classList.add("plain-text"); // as often code as not
    const given = document.createElement("span");
    given.className = "prompt-part";
    given.textContent = prompt;
    answer.said.append(given);
  }
  const began = performance.now();
  let text = "", count = 0, usage = null, ended = "the connection was cut";
  page.controller = new AbortController();
  const path = page.mode === "chat" ? "/v1/chat/completions" : "/v1/completions";
  try {
    for await (const chunk of api.stream(path, request_body(prompt), page.controller.signal)) {
      if (chunk.usage) usage = chunk.usage;
      for (const choice of chunk.choices || []) {
        const piece = choice.delta?.content ?? choice.text ?? "";
        if (choice.finish_reason) ended = choice.finish_reason === "length" ? "length reached" : "end of text";
        if (piece === "") continue;
        text += piece;
        count += choice.speculation.tokens.length;
        for (const token of choice.speculation.tokens) append_token(answer.said, token.text, source_of(token.source));
        for (const tree of choice.speculation.trees) show_tree(tree, element("trees"));
        element("tree-note").hidden = element("trees").children.length > 0;
        scroll_down();
      }
    }
  } catch (error) {
    ended = "stopped";
    if (error.name !== "AbortError") {
      answer.figures.classList.add("error");
      answer.figures.textContent = error.message;
      say(error.message, true);
      ask_for_key(error);
      return text;
    }
  }
  say(show_figures(answer, count, (performance.now() - began) / 1000, usage, ended));
  return text;
}

async function send() {
  const prompt = element("prompt").value;
  if (prompt.trim() === "" || page.controller) return;
  element("prompt").value = "";
  if (page.mode === "chat") {
    add_message("You").said.textContent = prompt;
    page.messages.push({ role: "user", content: prompt });
  }
  set_busy(true);
  say("Generating");
  const text = await generate(prompt);
  if (page.mode === "chat") page.messages.push({ role: "assistant", content: text });
  page.controller = null;
  set_busy(false);
  element("prompt").focus();
}

function set_busy(busy) {
  element("send").disabled = busy;
  element("stop").disabled = !busy;
  element("log").setAttribute("aria-busy", String(busy)); // read out when it is whole, not token by token
}

function clear() {
  page.messages = [];
  const empty = document.createElement("p");
  empty.className = "empty";
  empty.textContent = "Nothing yet. Write below; every token shows where it came from.";
  element("log").replaceChildren(empty);
  element("trees").replaceChildren();
  element("tree-note").hidden = false;
}

function ask_for_key(error) {
  if (error.status !== 401) return;
  element("key-form").hidden = false;
  element("key").focus();
}

async function connect() {
  try {
    const models = await (await api.get("/v1/models")).json();
    page.model = models.data[0].id;
    element("model").textContent = page.model;
    page.chat_offered = await api.post("/apply-template", { model: page.model, messages: [{ role: "user", content: "?" }] })
      .then(() => true, () => false);
    set_mode(page.chat_offered ? "chat" : "completion");
    element("key-form").hidden = true;
    say("Ready");
  } catch (error) {
    say(error.status === 503 ? "The model is loading" : error.message, error.status !== 503);
    ask_for_key(error);
    if (error.status !== 401) setTimeout(connect, 1500);
  }
}

element("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
element("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") page.controller?.abort(); });
element("stop").addEventListener("click", () => page.controller?.abort());
element("clear").addEventListener("click", clear);
element("mode-chat").addEventListener("click", () => set_mode("chat"));
element("mode-completion").addEventListener("click", () => set_mode("completion"));
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.key = element("key").value;
  sessionStorage.setItem("espalier-key", api.key);
  connect();
});

show_legend(element("legend"));
clear();
connect();
start_charts(element("charts"), ask_for_key);
