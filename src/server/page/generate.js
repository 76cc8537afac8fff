// Asks the server for an answer and puts it into its message as it comes. One at a time; a conversation that is not shown
// goes on all the same.

// The body of a request for the answer to message `id`. Throws a sentence about a setting.
function request_body(conversation, id) {
  const chat = conversation.mode === "chat";
  const body = { model: page.model, stream: true, stream_options: { include_usage: true }, speculation_report: true, ...settings_fields(conversation.settings, chat) };
  return chat ? { ...body, messages: request_messages(conversation, id) } : { ...body, prompt: conversation.nodes[id].content };
}

// What each event of a stream adds: { content, reasoning, calls, tokens, trees, totals, finish, usage }.
async function* answer_parts(mode, body, signal) {
  const path = mode === "chat" ? "/v1/chat/completions" : "/v1/completions";
  for await (const chunk of api.stream(path, body, signal)) {
    const choice = chunk.choices?.[0] ?? {};
    const { tokens = [], trees = [], ...totals } = choice.speculation ?? {};
    yield { content: choice.delta?.content ?? choice.text ?? "", reasoning: choice.delta?.reasoning_content ?? "", calls: choice.delta?.tool_calls ?? [],
      tokens: tokens.map(({ text, source }) => [text, source]), trees, totals: "steps" in totals ? totals : null, finish: choice.finish_reason, usage: chunk.usage };
  }
}

function add_calls(node, parts) {
  for (const { index, id, function: called } of parts) {
    node.calls ??= [];
    node.calls[index] ??= { id: id ?? "", name: "", arguments: "" };
    node.calls[index].name += called?.name ?? "";
    node.calls[index].arguments += called?.arguments ?? "";
  }
}

const ENDS = { length: "length reached", stop: "end of text", tool_calls: "waits for its tools" };

function figures_of(node, seconds, usage, ended) {
  const tokens = usage?.completion_tokens ?? node.tokens.length;
  const parts = [`${tokens} tokens`];
  if (seconds > 0) parts.push(`${(tokens / seconds).toFixed(0)} tokens/s`);
  const accepted = usage?.completion_tokens_details?.accepted_prediction_tokens;
  if (accepted !== undefined) parts.push(`${accepted} from drafts`);
  return [...parts, ended].join(" · ");
}

async function stream_into(node, conversation, body) {
  const began = performance.now();
  let usage, ended = "the connection was cut";
  for await (const part of answer_parts(conversation.mode, body, page.running.controller.signal)) {
    node.content += part.content;
    if (part.reasoning) node.reasoning = (node.reasoning ?? "") + part.reasoning;
    add_calls(node, part.calls);
    node.tokens.push(...part.tokens);
    for (const tree of part.trees) show_tree(tree, element("trees"));
    if (part.finish) ended = ENDS[part.finish] ?? part.finish;
    usage = part.usage ?? usage;
    if (page.current === conversation) shown.views.get(node.id)?.update();
    scroll_down();
  }
  node.figures = figures_of(node, (performance.now() - began) / 1000, usage, ended);
}

async function answer(conversation, question) {
  if (page.running) return say(BUSY, true);
  let body;
  try {
    body = request_body(conversation, question);
  } catch (error) {
    conversation.head = question;
    keep_and_show(conversation);
    return refuse_settings(error);
  }
  const node = add_node(conversation, question, "assistant", { tokens: [] });
  page.running = { controller: new AbortController(), conversation, node };
  set_busy(true);
  keep_and_show(conversation);
  element("spoken").textContent = "";
  say("Generating");
  try {
    await stream_into(node, conversation, body);
    element("spoken").textContent = node.content; // read out when it is whole, not token by token
    say(node.figures.replaceAll(" · ", ", "));
  } catch (error) {
    if (error.name === "AbortError") node.figures = `${node.tokens.length} tokens · stopped`;
    else node.error = error.message;
    if (node.content === "" && !node.calls && !node.error) node.error = "Stopped before its first token.";
    say(node.error ?? "Stopped", Boolean(node.error));
    ask_for_key(error);
  }
  page.running = null;
  set_busy(false);
  if (store.all.has(conversation.id)) keep_and_show(conversation); // it may have been deleted meanwhile
  if (element("key-form").hidden && !element("log").contains(document.activeElement)) element("prompt").focus();
}

function refuse_settings(error) {
  open_panel("settings", true);
  say(error.message, true);
}

function set_busy(busy) {
  element("send").disabled = busy;
  element("compare").disabled = busy;
  element("stop").disabled = !busy;
}
