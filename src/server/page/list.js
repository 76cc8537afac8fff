// The list of conversations: open, search, rename, delete with a way back, export, import.

function render_list() {
  const wanted = element("search").value;
  const list = store.newest_first().filter((conversation) => has_text(conversation, wanted));
  element("conversations").replaceChildren(...list.map(list_item));
  element("list-note").textContent = list.length ? (store.database ? "Kept in this browser alone." : "Kept until this page closes.")
    : wanted.trim() ? `No conversation has "${wanted.trim()}".` : "Conversations appear here and stay until they are deleted.";
  element("talk-title").textContent = title_of(page.current);
  element("export-all").disabled = store.all.size === 0;
}

function list_item(conversation) {
  const item = make("li"), is_current = conversation === page.current;
  const open = make("button", "open", title_of(conversation));
  open.type = "button";
  open.append(make("span", "when", new Date(conversation.changed).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })));
  if (is_current) open.setAttribute("aria-current", "true");
  open.addEventListener("click", () => { open_conversation(conversation); if (is_narrow()) open_panel("list", false); });
  item.append(open);
  if (!is_current) return item;
  const actions = make("div", "actions");
  actions.append(
    button("Rename", "Rename this conversation", () => rename(conversation, item)),
    button("JSON", "Export this conversation as JSON", () => save_file(file_name(conversation, "json"), "application/json", to_json([conversation]))),
    button("Markdown", "Export this conversation as Markdown", () => save_file(file_name(conversation, "md"), "text/markdown", to_markdown(conversation))),
    button("Delete", "Delete this conversation", () => remove_conversation(conversation)));
  item.append(actions);
  return item;
}

function rename(conversation, item) {
  const form = make("form", "edit"), title = make("input");
  title.type = "text";
  title.value = title_of(conversation);
  title.maxLength = 200;
  title.setAttribute("aria-label", "Name of the conversation");
  const save = make("button", "small", "Rename");
  save.type = "submit";
  form.append(title, save);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    conversation.title = title.value.trim();
    keep_and_show(conversation);
    give_focus(element("conversations").querySelector("[aria-current]"));
  });
  title.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); render_list(); give_focus(element("conversations").querySelector("[aria-current]")); } });
  item.replaceChildren(form);
  title.select();
}

async function remove_conversation(conversation) {
  if (page.running?.conversation === conversation) page.running.controller.abort();
  await store.remove(conversation.id);
  if (page.current === conversation) open_conversation(store.newest_first()[0] ?? new_conversation(page.mode, page.settings));
  offer_undo(`"${title_of(conversation)}" is deleted`, async () => {
    await store.put(conversation);
    open_conversation(conversation);
  });
}

// Takes back the last deletion, until the next one.
function offer_undo(text, restore) {
  say(text);
  const undo = element("undo");
  undo.hidden = false;
  give_focus(undo);
  undo.onclick = () => {
    undo.hidden = true;
    say("Taken back");
    restore();
  };
}

async function import_files(files) {
  let count = 0;
  for (const file of files) {
    try {
      const read = await import_file(file);
      count += read.length;
      if (read.length) open_conversation(read[0]);
    } catch (error) { return say(error.message, true); }
  }
  say(`${count} ${count === 1 ? "conversation" : "conversations"} imported`);
}

function start_list() {
  element("search").addEventListener("input", render_list);
  element("new").addEventListener("click", () => { open_conversation(new_conversation(page.mode, page.settings)); element("prompt").focus(); });
  element("export-all").addEventListener("click", () => save_file("conversations.json", "application/json", to_json(store.newest_first())));
  element("import").addEventListener("click", () => element("import-file").click());
  element("import-file").addEventListener("change", async (event) => {
    await import_files([...event.target.files]);
    event.target.value = "";
  });
}
