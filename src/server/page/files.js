// Conversations as files: JSON has everything, Markdown the path that is shown, for people. Both can be read again.

const FORMAT = "espalier-conversations";
const MARKER = /^(\\*)<!-- espalier:(title|system|user|assistant|tool)(?: (.*))? -->$/;
const HEADINGS = { system: "## System", user: "## You", assistant: "## Assistant", tool: "## Tool" };

const to_json = (conversations) => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

// A line of a message that looks like a marker gets a backslash in front, which reading takes away.
function to_markdown(conversation) {
  const lines = [`<!-- espalier:title ${conversation.mode} -->`, `# ${title_of(conversation)}`, ""];
  const part = (role, content) => {
    lines.push(`<!-- espalier:${role} -->`, HEADINGS[role], "");
    for (const line of content.split("\n")) lines.push(MARKER.test(line) ? `\\${line}` : line);
    lines.push("");
  };
  if (conversation.settings.system?.trim()) part("system", conversation.settings.system);
  for (const node of path_to(conversation, conversation.head)) part(node.role, node.content);
  return lines.join("\n");
}

function from_markdown(text, name) {
  const lines = text.replace(/\r\n/g, "\n").split("\n");
  const parts = [];
  for (const line of lines) {
    const marker = MARKER.exec(line);
    if (marker && marker[1] === "") parts.push({ kind: marker[2], said: marker[3], lines: [] });
    else parts[parts.length - 1]?.lines.push(marker ? line.slice(1) : line);
  }
  if (parts[0]?.kind !== "title") throw new Error(`${name}: no conversation of this page ("<!-- espalier:title" is not in it)`);
  const made = new_conversation(parts[0].said === "completion" ? "completion" : "chat", {});
  made.title = (parts[0].lines[0] ?? "").replace(/^# /, "");
  for (const { kind, lines: body } of parts.slice(1)) {
    const content = body.slice(body[0] === HEADINGS[kind] ? 2 : 0, -1).join("\n"); // its heading, an empty line, and one at the end
    if (kind === "system") made.settings.system = content;
    else if (kind !== "title") add_node(made, made.head, kind, kind === "tool" ? { content, call_id: "" } : { content });
  }
  return [made];
}

function from_json(text, name) {
  let read;
  try { read = JSON.parse(text); } catch (error) { throw new Error(`${name}: ${error.message}`); }
  if (read?.format !== FORMAT || read.version !== 1 || !Array.isArray(read.conversations))
    throw new Error(`${name}: no conversations of this page ("format" is not "${FORMAT}" of version 1)`);
  const bad = read.conversations.findIndex((conversation) => !is_conversation(conversation));
  if (bad >= 0) throw new Error(`${name}: conversation ${bad + 1} of ${read.conversations.length} is not whole`);
  return read.conversations;
}

// One that is here already gets an id of its own: nothing is written over.
async function import_file(file) {
  const text = await file.text();
  const read = text.trimStart().startsWith("{") ? from_json(text, file.name) : from_markdown(text, file.name);
  for (const conversation of read) {
    if (store.all.has(conversation.id)) conversation.id = random_id();
    await store.put(conversation);
  }
  return read;
}

function save_file(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const file_name = (conversation, ending) => `${title_of(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation"}.${ending}`;
