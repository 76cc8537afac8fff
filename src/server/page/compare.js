// The comparison: one prompt answered without drafts and with them, one after the other so that neither slows the other down,
// then both played side by side at their own speed. Neither finds cached pages: each has a salt of its own.

const SIDES = [{ name: "Without drafts", of: "without", drafts: false }, { name: "With drafts", of: "with", drafts: true }];
const comparison = { sides: [], controller: null, frame: 0, pointed: -1 };

function side_body(body, drafts) {
  const made = { ...body, cache_salt: random_id() };
  if (!drafts) for (const name of ["draft_depth", "draft_width", "draft_nodes"]) delete made[name];
  if (drafts) delete made.speculate;
  else made.speculate = false;
  return made;
}

function make_side({ name, of, drafts }) {
  const box = make("section", "side"), bar = make("div", "bar"), filled = make("span");
  bar.append(filled);
  const figures = make("p", "figures", "waits"), said = make("div", "said as-written");
  box.append(make("h3", "", name), figures, bar, said);
  return { of, drafts, box, filled, figures, said, tokens: [], seconds: 0, steps: 0, drafted: 0, count: 0 };
}

// Draws an answer token by token and remembers when each one came. Seconds count from the request on.
async function run_side(side, mode, body) {
  const began = performance.now();
  for await (const part of answer_parts(mode, body, comparison.controller.signal)) {
    const at = (performance.now() - began) / 1000;
    for (const [text, source] of part.tokens) {
      const place = make("span");
      place.dataset.index = side.tokens.length;
      append_token(place, text, source_of(source));
      side.tokens.push({ text, at, place });
      side.said.append(place);
    }
    side.said.scrollTop = side.said.scrollHeight;
    side.steps = part.totals?.steps ?? side.steps;
    side.drafted = part.totals?.drafted ?? side.drafted;
    side.count = part.usage?.completion_tokens ?? side.tokens.length; // with those that have no text
    side.seconds = at;
    side.figures.textContent = `${side.count} tokens`;
  }
  side.figures.textContent = `${side.seconds.toFixed(2)} s, ${side.steps} steps, ${(side.count / Math.max(1, side.steps)).toFixed(2)} tokens per step`;
}

// One sentence from two sides: { seconds, steps, drafted, tokens: [{ text }] }.
function saved_sentence(without, with_drafts) {
  if (with_drafts.drafted === 0) return "The server made no draft here: it has no drafter, or none is worth its time. Drafts beside Settings can ask for some.";
  const saved = without.seconds - with_drafts.seconds;
  const times = (without.seconds / Math.max(1e-9, with_drafts.seconds)).toFixed(2);
  const speed = saved >= 0 ? `${saved.toFixed(2)} s saved with drafts: ${times} times as fast` : `${(-saved).toFixed(2)} s lost with drafts: ${times} times as fast`;
  const text = (side) => side.tokens.map((token) => token.text).join("");
  const same = text(without) === text(with_drafts) ? "the same text" : "another text, which should not be";
  return `${speed}, ${with_drafts.steps} steps in place of ${without.steps}, ${same}.`;
}

async function compare(typed) {
  if (page.running) return say(BUSY, true);
  const asked = structuredClone(page.current);
  const last = path_to(asked, asked.head).findLast((node) => node.role === "user");
  const question = typed.trim() !== "" ? add_node(asked, asked.mode === "chat" ? asked.head : 0, "user", { content: typed }) : last;
  if (!question) return say("Write a prompt to compare", true);
  let body;
  try { body = request_body(asked, question.id); } catch (error) { return refuse_settings(error); }
  body.seed ??= crypto.getRandomValues(new Uint32Array(1))[0]; // both draw alike
  comparison.controller = new AbortController();
  page.running = { controller: comparison.controller };
  set_busy(true);
  comparison.sides = SIDES.map(make_side);
  comparison.pointed = -1;
  element("sides").replaceChildren(...comparison.sides.map((side) => side.box));
  element("saved").textContent = "The first answer is being written …";
  element("replay").disabled = true;
  element("comparison").showModal();
  try {
    for (const side of comparison.sides) {
      await run_side(side, asked.mode, side_body(body, side.drafts));
      element("saved").textContent = "The second answer is being written …";
    }
    element("saved").textContent = saved_sentence(...comparison.sides);
    element("replay").disabled = false;
    play();
  } catch (error) {
    element("saved").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    ask_for_key(error);
  }
  page.running = null;
  set_busy(false);
}

// Both from the beginning, at the speed they had.
function play() {
  cancelAnimationFrame(comparison.frame);
  const whole = Math.max(...comparison.sides.map((side) => side.seconds));
  const began = performance.now();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const draw = () => {
    const at = still ? whole : (performance.now() - began) / 1000;
    for (const side of comparison.sides) {
      for (const token of side.tokens) token.place.classList.toggle("later", token.at > at);
      side.filled.style.width = `${(100 * Math.min(at, side.seconds)) / (whole || 1)}%`;
    }
    if (at < whole) comparison.frame = requestAnimationFrame(draw);
  };
  draw();
}

// The same token on both sides, and when each had it.
function point_at(index) {
  for (const token of document.querySelectorAll("#sides .pointed")) token.classList.remove("pointed");
  const found = comparison.sides.filter((side) => side.tokens[index]);
  for (const side of found) side.tokens[index].place.classList.add("pointed");
  comparison.pointed = index;
  if (found.length < comparison.sides.length) return;
  const times = comparison.sides.map((side) => `after ${side.tokens[index].at.toFixed(2)} s ${side.of}`);
  element("saved").textContent = `${saved_sentence(...comparison.sides)} Token ${index + 1}, "${visible_text(comparison.sides[0].tokens[index].text)}": ${times.join(", ")}.`;
}

function start_comparison() {
  element("replay").addEventListener("click", play);
  element("close-comparison").addEventListener("click", () => element("comparison").close());
  element("comparison").addEventListener("close", () => { comparison.controller?.abort(); cancelAnimationFrame(comparison.frame); });
  element("sides").tabIndex = 0;
  element("sides").setAttribute("role", "group");
  element("sides").setAttribute("aria-label", "Both answers; arrow keys go from token to token");
  element("sides").addEventListener("pointerover", (event) => {
    const token = event.target.closest("[data-index]");
    if (!page.running && token) point_at(Number(token.dataset.index));
  });
  element("sides").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const most = (comparison.sides[0]?.tokens.length ?? 0) - 1;
    if (!step || page.running || most < 0) return;
    event.preventDefault();
    point_at(Math.min(most, Math.max(0, comparison.pointed + step)));
  });
}
