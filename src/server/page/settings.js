// What a conversation asks of the server beside its messages: one table makes the controls and the fields of a request.
// A setting is kept as it was typed; an empty one is the server's own.

const SETTINGS = [
  { name: "system", label: "System prompt", rows: 3, chat: true, help: "Said before the first message" },
  { name: "max_tokens", label: "Tokens at most", least: 1, whole: true, initial: "512" },
  { name: "temperature", label: "Temperature", least: 0, most: 2, step: 0.1, help: "0: the likeliest token each time" },
  { name: "top_p", label: "Top p", least: 0, most: 1, step: 0.05 },
  { name: "top_k", label: "Top k", least: 0, whole: true },
  { name: "min_p", label: "Min p", least: 0, most: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0.01, most: 2, step: 0.05 },
  { name: "seed", label: "Seed", least: 0, whole: true, help: "The same seed gives the same text" },
  { name: "stop", label: "Stop at", rows: 2, help: "One text a line; ends the answer and is not part of it", read: (text) => text.split("\n").filter((line) => line !== "") },
  { name: "schema", label: "JSON Schema of the answer", rows: 3, json: "object", help: "The answer is JSON of this form",
    put: (body, schema) => { body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } }; } },
  { name: "tools", label: "Tools", rows: 3, chat: true, json: "array", help: "A list of functions, as OpenAI's tools" },
];

// What a request says about drafts; the text is the same with each of them.
const DRAFTS = {
  auto: {},
  chain: { draft_depth: 4 },
  tree: { draft_depth: 4, draft_width: 3, draft_nodes: 12 },
  off: { speculate: false },
};

const initial_settings = () => ({ drafts: "auto", ...Object.fromEntries(SETTINGS.filter((one) => one.initial).map((one) => [one.name, one.initial])) });

// The value of a setting; throws a sentence about what was typed.
function read_setting(setting, typed) {
  if (setting.json) {
    let value;
    try { value = JSON.parse(typed); } catch (error) { throw new Error(`${setting.label}: ${error.message}`); }
    const kind = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
    if (kind !== setting.json) throw new Error(`${setting.label}: is ${kind}, must be ${setting.json}`);
    return value;
  }
  if (setting.read) return setting.read(typed);
  if (setting.rows) return typed;
  const value = Number(typed);
  if (!Number.isFinite(value) || (setting.whole && !Number.isSafeInteger(value)) || value < setting.least || value > (setting.most ?? Infinity))
    throw new Error(`${setting.label}: is ${typed}, must be ${setting.whole ? "a whole number " : ""}${setting.most === undefined ? `from ${setting.least} on` : `from ${setting.least} to ${setting.most}`}`);
  return value;
}

// Fields of a request. The system prompt is a message, not a field.
function settings_fields(settings, chat) {
  const body = { ...DRAFTS[settings.drafts] ?? {} };
  for (const setting of SETTINGS) {
    const typed = settings[setting.name] ?? "";
    if (setting.name === "system" || typed.trim() === "" || (setting.chat && !chat)) continue;
    const value = read_setting(setting, typed);
    if (setting.put) setting.put(body, value);
    else body[setting.name] = value;
  }
  return body;
}

// Calls changed(name, typed) with what the user types.
function make_settings(place, changed) {
  for (const setting of SETTINGS) {
    const label = document.createElement("label");
    label.className = setting.rows ? "setting wide" : "setting";
    const control = document.createElement(setting.rows ? "textarea" : "input");
    control.id = `set-${setting.name}`;
    control.spellcheck = setting.name === "system";
    if (setting.rows) control.rows = setting.rows;
    else Object.assign(control, { type: "number", min: setting.least, max: setting.most ?? "", step: setting.step ?? 1, placeholder: "model's own" });
    const help = document.createElement("span");
    help.className = "help";
    help.id = `help-${setting.name}`;
    help.textContent = setting.help ?? "";
    control.setAttribute("aria-describedby", help.id);
    control.addEventListener("input", () => {
      changed(setting.name, control.value);
      mark_setting(setting, control, help);
    });
    label.append(setting.label, control);
    const cell = document.createElement("div");
    cell.className = label.className;
    label.className = "";
    cell.append(label, help);
    place.append(cell);
  }
}

function mark_setting(setting, control, help) {
  let wrong = "";
  if (control.validity.badInput) wrong = `${setting.label}: not a number`;
  else if (control.value.trim() !== "") try { read_setting(setting, control.value); } catch (error) { wrong = error.message; }
  control.setAttribute("aria-invalid", String(wrong !== ""));
  help.textContent = wrong || setting.help || "";
  help.classList.toggle("error", wrong !== "");
}

function show_settings(settings, chat) {
  for (const setting of SETTINGS) {
    const control = element(`set-${setting.name}`);
    control.value = settings[setting.name] ?? "";
    control.closest("div").hidden = Boolean(setting.chat) && !chat;
    mark_setting(setting, control, element(`help-${setting.name}`));
  }
  element("drafts").value = Object.hasOwn(DRAFTS, settings.drafts) ? settings.drafts : "auto";
}
