// Puts the page together: what is shown, the panels, the composer, the keys, and the way to the server.

const element = (id) => document.getElementById(id);
const page = { model: "", chat_offered: false, mode: "completion", show_tokens: false, settings: initial_settings(), current: null, running: null };
const PANELS = ["list", "drawer", "settings"];

function say(text, bad = false) {
  element("status").textContent = text;
  element("status").classList.toggle("bad", bad);
}

// ---- what is remembered beside conversations ----------------------------------------------------

function remember() {
  const open = PANELS.filter((id) => !element(id).hidden);
  try { localStorage.setItem("espalier-page", JSON.stringify({ open, current: page.current.id, show_tokens: page.show_tokens, settings: page.settings })); } catch { /* full or forbidden */ }
}

function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem("espalier-page")) ?? {};
    for (const [name, value] of Object.entries(kept.settings ?? {})) if (typeof value === "string") page.settings[name] = value;
    page.show_tokens = kept.show_tokens === true;
    return { open: Array.isArray(kept.open) ? kept.open : [], current: store.all.get(kept.current) };
  } catch { return { open: [] }; }
}

const is_narrow = () => matchMedia("(max-width: 820px)").matches;

function open_panel(id, open) {
  element(id).hidden = !open;
  element(`show-${id}`).setAttribute("aria-expanded", String(open));
  if (open && id === "drawer") hint_at_width(element("trees"));
  if (open && is_narrow()) element(id).querySelector("button, textarea, input")?.focus();
  if (!open && document.activeElement === document.body) element(`show-${id}`).focus();
  remember();
}

// ---- the conversation that is shown -------------------------------------------------------------

function open_conversation(conversation) {
  page.current = conversation;
  page.mode = conversation.mode;
  show_mode();
  show_settings(conversation.settings, conversation.mode === "chat");
  render_log();
  render_list();
  remember();
}

function keep_and_show(conversation) {
  store.put(conversation);
  if (page.current === conversation) render_log();
  render_list();
}

// Another tab wrote or deleted it. An answer that is being written here goes on, and is written when it ends.
function changed_elsewhere(id) {
  if (page.running?.conversation?.id === id) store.all.set(id, page.running.conversation);
  else if (page.current.id === id) open_conversation(store.all.get(id) ?? new_conversation(page.mode, page.settings));
  render_list();
}

// Where drawing took away what had the focus.
function give_focus(to) {
  if (document.activeElement === document.body) to?.focus();
}

function show_node(id) {
  select_node(page.current, id);
  keep_and_show(page.current);
  give_focus(shown.views.get(id)?.actions.querySelector("button:enabled"));
}

function open_branch(conversation, id) {
  const made = branch_of(conversation, id);
  store.put(made);
  open_conversation(made);
  say("A branch of its own");
}

function remove_node(conversation, id) {
  const before = structuredClone(conversation);
  delete_node(conversation, id);
  keep_and_show(conversation);
  offer_undo("Deleted with what followed", () => { store.put(before); open_conversation(before); });
}

// A conversation keeps its mode: with another one a new one begins.
function choose_mode(mode) {
  page.mode = mode;
  if (Object.keys(page.current.nodes).length) open_conversation(new_conversation(mode, page.settings));
  else open_conversation(Object.assign(page.current, { mode }));
}

function show_mode() {
  const chat = page.mode === "chat";
  element("mode-chat").setAttribute("aria-pressed", String(chat));
  element("mode-completion").setAttribute("aria-pressed", String(!chat));
  element("mode-chat").disabled = !page.chat_offered;
  element("mode-note").textContent = page.chat_offered || !page.model ? "" : "This model has no chat template: a text is continued as it stands.";
  element("prompt").placeholder = chat ? "Ask or tell something" : "def binary_search(items, wanted):";
  element("show-tokens").hidden = !chat;
  element("show-tokens").setAttribute("aria-pressed", String(page.show_tokens));
  element("legend").hidden = chat && !page.show_tokens;
}

function send() {
  const prompt = element("prompt").value;
  if (prompt.trim() === "") return;
  if (page.running) return say(BUSY, true);
  element("prompt").value = "";
  const conversation = page.current;
  // A completion stands by itself; what follows a chat's last message says so.
  const asked = add_node(conversation, conversation.mode === "chat" ? conversation.head : 0, "user", { content: prompt });
  answer(conversation, asked.id);
}

// ---- the server ---------------------------------------------------------------------------------

function ask_for_key(error) {
  if (error.status !== 401) return;
  element("key-form").hidden = false;
  element("key").focus();
}

async function connect() {
  try {
    const [models, version] = await Promise.all(["/v1/models", "/version"].map(async (path) => (await api.get(path)).json()));
    page.model = models.data[0].id;
    element("model").textContent = page.model;
    show_card(models.data[0], version.version);
    page.chat_offered = await api.post("/apply-template", { model: page.model, messages: [{ role: "user", content: "?" }] })
      .then(() => true, () => false);
    if (!Object.keys(page.current.nodes).length) choose_mode(page.chat_offered ? "chat" : "completion");
    show_mode();
    element("key-form").hidden = true;
    say("Ready");
  } catch (error) {
    say(error.status === 503 ? "The model is loading" : error.message, error.status !== 503);
    ask_for_key(error);
    if (error.status !== 401) setTimeout(connect, 1500);
  }
}

// ---- what the user does -------------------------------------------------------------------------

function start_composer() {
  element("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  element("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "ArrowUp" && event.target.value === "") edit_last_prompt(event);
  });
  element("stop").addEventListener("click", () => page.running?.controller.abort());
  element("compare").addEventListener("click", () => compare(element("prompt").value));
  element("mode-chat").addEventListener("click", () => choose_mode("chat"));
  element("mode-completion").addEventListener("click", () => choose_mode("completion"));
  element("show-tokens").addEventListener("click", () => { page.show_tokens = !page.show_tokens; show_mode(); render_log(); remember(); });
  const changed = (name, typed) => {
    page.current.settings[name] = page.settings[name] = typed;
    if (store.all.has(page.current.id)) store.put(page.current);
    remember();
  };
  make_settings(element("settings"), changed);
  element("drafts").addEventListener("change", (event) => changed("drafts", event.target.value));
}

function edit_last_prompt(event) {
  const last = path_to(page.current, page.current.head).findLast((node) => node.role === "user");
  if (!last || page.running) return;
  event.preventDefault();
  const view = shown.views.get(last.id) ?? shown.views.get(page.current.head);
  view.edit(last);
  view.message.scrollIntoView({ block: "nearest" });
}

function start_panels() {
  for (const id of PANELS) element(`show-${id}`).addEventListener("click", () => open_panel(id, element(id).hidden));
  for (const one of document.querySelectorAll("[data-closes]")) one.addEventListener("click", () => { open_panel(one.dataset.closes, false); element(`show-${one.dataset.closes}`).focus(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || element("comparison").open) return;
    if (page.running) return page.running.controller.abort();
    const over = is_narrow() && ["drawer", "list"].find((id) => !element(id).hidden);
    if (over) { open_panel(over, false); element(`show-${over}`).focus(); }
  });
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.key = element("key").value;
  sessionStorage.setItem("espalier-key", api.key);
  connect();
});

async function start() {
  show_legend(element("legend"), element("sources"));
  show_example(element("trees"));
  new ResizeObserver(() => hint_at_width(element("trees"))).observe(element("trees"));
  start_charts(element("charts"), ask_for_key);
  start_log();
  start_composer();
  start_panels();
  start_list();
  start_comparison();
  page.current = new_conversation(page.mode, page.settings);
  await store.open(changed_elsewhere);
  const kept = recall();
  for (const id of PANELS) if (kept.open.includes(id) && !is_narrow()) open_panel(id, true);
  open_conversation(kept.current ?? new_conversation(page.mode, page.settings));
  connect();
}

start();
