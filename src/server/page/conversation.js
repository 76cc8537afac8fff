// A conversation is a tree of messages: another answer to a question, or an edited question, stands beside the first one, and
// `head` is the last message of the path that is shown. Pure functions of plain data, which is what the browser keeps.
//   { id, title, mode: "chat" | "completion", created, changed, settings, nodes: { id: node }, next, head }
//   node: { id, parent, role, content, reasoning, calls, call_id, tokens: [[text, source]], figures, error }

const ROLES = ["user", "assistant", "tool"];
const TITLE_LETTERS = 48;

// crypto.randomUUID is there only on https and localhost.
function random_id() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function new_conversation(mode, settings) {
  return { id: random_id(), title: "", mode, created: Date.now(), changed: Date.now(), settings: { ...settings }, nodes: {}, next: 1, head: 0 };
}

// parent 0: the conversation begins with it.
function add_node(conversation, parent, role, fields) {
  const node = { id: conversation.next++, parent, role, content: "", ...fields };
  conversation.nodes[node.id] = node;
  conversation.head = node.id;
  conversation.changed = Date.now();
  return node;
}

function children_of(conversation, id) {
  return Object.values(conversation.nodes).filter((node) => node.parent === id).sort((a, b) => a.id - b.id);
}

function path_to(conversation, id) {
  const path = [];
  for (let node = conversation.nodes[id]; node; node = conversation.nodes[node.parent]) path.unshift(node);
  return path;
}

// Shows the path that goes through a message, to the newest one below it.
function select_node(conversation, id) {
  const newest_first = Object.values(conversation.nodes).sort((a, b) => b.id - a.id);
  conversation.head = newest_first.find((node) => path_to(conversation, node.id).some((one) => one.id === id)).id;
}

// With all that follows it. What stands beside it is shown next, or what it followed.
function delete_node(conversation, id) {
  const { parent } = conversation.nodes[id];
  const gone = [id];
  for (let i = 0; i < gone.length; ++i) gone.push(...children_of(conversation, gone[i]).map((node) => node.id));
  for (const one of gone) delete conversation.nodes[one];
  conversation.changed = Date.now();
  const beside = children_of(conversation, parent);
  if (beside.length) select_node(conversation, beside[beside.length - 1].id);
  else conversation.head = parent;
}

// A conversation of its own that has the path to a message and nothing beside it.
function branch_of(conversation, id) {
  const made = new_conversation(conversation.mode, conversation.settings);
  made.title = `${title_of(conversation)} (branch)`;
  for (const { parent, id: old, ...fields } of path_to(conversation, id)) add_node(made, made.head, fields.role, structuredClone(fields));
  return made;
}

function title_of(conversation) {
  if (conversation.title) return conversation.title;
  const first = children_of(conversation, 0)[0]?.content.trim().split("\n")[0] ?? "";
  if (first === "") return "New conversation";
  return first.length > TITLE_LETTERS ? `${first.slice(0, TITLE_LETTERS - 1)}…` : first;
}

function has_text(conversation, wanted) {
  const text = wanted.trim().toLowerCase();
  if (text === "" || title_of(conversation).toLowerCase().includes(text)) return true;
  return Object.values(conversation.nodes).some((node) => node.content.toLowerCase().includes(text));
}

// What a request for an answer to message `id` says. What the server refused is not said again.
function request_messages(conversation, id) {
  const path = path_to(conversation, id);
  const system = conversation.settings.system?.trim();
  const messages = system ? [{ role: "system", content: system }] : [];
  path.forEach((node, i) => {
    const refused = (one) => one?.role === "assistant" && one.error && one.content === "";
    if (refused(node) || (node.role !== "assistant" && refused(path[i + 1]))) return;
    const message = { role: node.role, content: node.content };
    if (node.calls?.length) message.tool_calls = node.calls.map(({ id: call, name, arguments: given }) =>
      ({ id: call, type: "function", function: { name, arguments: given } }));
    if (node.role === "tool") message.tool_call_id = node.call_id;
    messages.push(message);
  });
  return messages;
}

// Of what a file or an older page wrote: nothing in it is taken on trust, as it is shown and sent.
function is_conversation(value) {
  const text = (one) => typeof one === "string";
  const optional = (one, is) => one === undefined || is(one);
  const call = (one) => one && text(one.id) && text(one.name) && text(one.arguments);
  const token = (one) => Array.isArray(one) && one.length === 2 && text(one[0]) && text(one[1]);
  const node = (one, key) => one && typeof one === "object" && String(one.id) === key && Number.isSafeInteger(one.id) && one.id > 0 &&
    Number.isSafeInteger(one.parent) && one.parent >= 0 && one.parent < one.id && (one.parent === 0 || value.nodes[one.parent] !== undefined) &&
    ROLES.includes(one.role) && text(one.content) && optional(one.reasoning, text) && optional(one.figures, text) && optional(one.error, text) &&
    optional(one.call_id, text) && optional(one.calls, (list) => Array.isArray(list) && list.every(call)) &&
    optional(one.tokens, (list) => Array.isArray(list) && list.every(token));
  if (!value || typeof value !== "object" || !text(value.id) || !/^[0-9a-f]{24}$/.test(value.id) || !text(value.title)) return false;
  if (!["chat", "completion"].includes(value.mode) || !Number.isFinite(value.created) || !Number.isFinite(value.changed)) return false;
  if (!value.settings || typeof value.settings !== "object" || !Object.values(value.settings).every(text)) return false;
  if (!value.nodes || typeof value.nodes !== "object" || !Object.entries(value.nodes).every(([key, one]) => node(one, key))) return false;
  const largest = Math.max(0, ...Object.keys(value.nodes).map(Number));
  return Number.isSafeInteger(value.next) && value.next > largest && (value.head === 0 || Object.hasOwn(value.nodes, value.head));
}
