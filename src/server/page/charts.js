// Line charts of the last two minutes, drawn from /metrics once a second while the page is visible.

const SECONDS = 120;
const FEWEST_SECONDS = 20; // the width before there is more to show

const milliseconds = (seconds) => seconds === undefined ? undefined : seconds * 1000;
// Of a counter (less another one) between two readings, for each step of the engine.
function per_step(now, before, name, less) {
  const steps = difference(now, before, "steps_total");
  const count = difference(now, before, name) - (less ? difference(now, before, less) : 0);
  return steps ? Math.max(0, count) / steps : undefined;
}

const plain = (digits) => (value) => value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });

// Each line: what it is called, its colour, and its value from two readings.
const CHARTS = [
  { title: "Tokens per second", help: "Output of all requests, over the time in which there was one.", show: plain(0), lines: [
    { name: "tokens/s", colour: "--accent", of: (now, before) => {
      const busy = difference(now, before, "busy_seconds_total");
      return busy > 0 ? difference(now, before, "output_tokens_total") / busy : undefined; } }] },
  { title: "Tokens per step", help: "Of a request: 1 without drafts; each accepted draft adds one.", show: plain(2), least: 1, lines: [
    { name: "acceptance length", colour: "--ngram", of: (now, before) => {
      const drafts = difference(now, before, "spec_decode_num_drafts_total");
      return drafts ? 1 + difference(now, before, "spec_decode_num_accepted_tokens_total") / drafts : undefined; } }] },
  { title: "Batch, tokens per step", help: "What one pass of the model computes.", show: plain(0), lines: [
    { name: "decoding", colour: "--accent", of: (now, before) => per_step(now, before, "spec_decode_num_drafts_total") },
    { name: "drafts", colour: "--ngram", of: (now, before) => per_step(now, before, "drafts_verified_total") },
    { name: "prompts", colour: "--mtp", of: (now, before) => per_step(now, before, "prompt_tokens_total", "prompt_tokens_cached_total") }] },
  { title: "Requests", help: "Now writing, reading their prompts, and in the queue.", show: plain(0), lines: [
    { name: "decoding", colour: "--accent", of: (now) => now.values.requests_running },
    { name: "prompts", colour: "--mtp", of: (now) => now.values.requests_prefilling },
    { name: "waiting", colour: "--eagle3", of: (now) => now.values.num_requests_waiting }] },
  { title: "Cache pages in use", help: "A page keeps 64 tokens of a sequence.", show: (value) => value === undefined ? "–" : `${(100 * value).toFixed(1)} %`, most: 1, lines: [
    { name: "pages", colour: "--mtp", of: (now) => now.values.kv_cache_usage_perc }] },
  { title: "Between tokens, ms", help: "From one token of a text to the next.", show: plain(1), lines: [
    { name: "median", colour: "--accent", of: (now, before) => milliseconds(quantile(now, before, "inter_token_latency_seconds", 0.5)) },
    { name: "99 %", colour: "--eagle3", of: (now, before) => milliseconds(quantile(now, before, "inter_token_latency_seconds", 0.99)) }] },
  { title: "To the first token, ms", help: "From a request to its first token: queue and prompt.", show: plain(0), lines: [
    { name: "median", colour: "--ngram", of: (now, before) => milliseconds(quantile(now, before, "time_to_first_token_seconds", 0.5)) }] },
];

class Chart {
  constructor(definition, place) {
    Object.assign(this, definition);
    this.points = this.lines.map(() => []); // [time, value]
    this.figure = document.createElement("figure");
    this.figure.className = "chart";
    const caption = document.createElement("figcaption");
    caption.append(this.title);
    this.now = document.createElement("span");
    this.now.className = "now";
    this.now.textContent = "–";
    caption.append(this.now);
    this.image = svg("svg", { viewBox: "0 0 240 64", preserveAspectRatio: "none", role: "img", "aria-label": this.title });
    this.image.setAttribute("hidden", "");
    this.waits = make("p", "waits", "Nothing to measure yet. Send a prompt.");
    this.parts = make("p", "parts");
    this.figure.append(caption, this.image, this.waits, this.parts, make("p", "help", this.help));
    place.append(this.figure);
  }

  add(time, now, before) {
    this.lines.forEach((line, i) => {
      const value = line.of(now, before);
      this.points[i].push([time, value]);
      while (this.points[i][0][0] < time - SECONDS) this.points[i].shift();
    });
    this.draw(time);
  }

  draw(time) {
    const values = this.points.flat().map((point) => point[1]).filter((value) => value !== undefined);
    this.waits.hidden = values.length > 0;
    this.image.toggleAttribute("hidden", values.length === 0);
    if (values.length === 0) return;
    const most = Math.max(this.most ?? 0, (this.least ?? 0) + 1e-9, ...values);
    const least = this.least ?? 0;
    const span = Math.max(FEWEST_SECONDS, time - this.points[0][0][0]);
    const x = (t) => 238 * (1 - (time - t) / span);
    const y = (value) => 62 - 58 * (value - least) / (most - least || 1);
    this.image.replaceChildren(...this.points.map((points, i) => {
      let path = "", pen = false;
      for (const [t, value] of points) {
        if (value === undefined) { pen = false; continue; }
        path += `${pen ? "L" : "M"}${x(t).toFixed(1)} ${y(value).toFixed(1)}${pen ? "" : "h0.01"}`; // one by itself is a dot
        pen = true;
      }
      return svg("path", { d: path || "M0 0", fill: "none", stroke: `var(${this.lines[i].colour})`, "stroke-width": 2, "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round", "stroke-linecap": "round" });
    }));
    const latest = this.points.map((points) => points.findLast((point) => point[1] !== undefined)?.[1]);
    this.now.textContent = this.show(latest[0]);
    const said = this.lines.map((line, i) => `${line.name} ${this.show(latest[i])}`);
    const largest = `largest ${this.show(Math.max(...values))}`;
    this.image.setAttribute("aria-label", `${this.title}: ${said.join(", ")}; ${largest}`);
    if (this.lines.length > 1) this.name_parts(said);
    else this.parts.textContent = largest;
  }

  name_parts(said) {
    this.parts.replaceChildren(...this.lines.flatMap((line, i) => {
      const key = document.createElement("span");
      key.className = "key-line";
      key.style.borderColor = `var(${line.colour})`;
      return [key, said[i] + (i + 1 < said.length ? "  " : "")];
    }));
  }
}

function start_charts(place, on_error) {
  const charts = CHARTS.map((definition) => new Chart(definition, place));
  let before;
  const read = async () => {
    if (document.hidden) return;
    try {
      const now = parse_metrics(await (await api.get("/metrics")).text());
      const time = performance.now() / 1000;
      if (before) for (const chart of charts) chart.add(time, now, before);
      before = now;
    } catch (error) { on_error(error); }
  };
  setInterval(read, 1000);
  read();
}
