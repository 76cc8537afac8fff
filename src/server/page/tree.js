// Draws draft trees: the root on the left, drafts to the right of what they follow, the accepted path lit.
// tree: { texts: [nodes], parents: [nodes] (the root's is -1), sources: [nodes], path: indices accepted, root included }

const TREE = { row: 26, gap: 26, letter: 7.3, most_letters: 14, shown: 6 };
const SPECIAL = /^<[|｜].*[|｜]>$/; // <｜end▁of▁sentence｜>: whole, as its beginning says nothing

// Shown until there are trees of an answer.
const EXAMPLE = { texts: ["return", " self", ".", "items", "size", " None", " len"], parents: [-1, 0, 1, 2, 2, 0, 0],
  sources: [null, "mtp", "mtp", "ngram", "mtp", "mtp", "mtp"], path: [0, 1, 2, 3] };

function visible_text(text) {
  const known = SPECIAL.test(text) ? text.replace(/｜/g, "|").replace(/▁/g, "_") : text; // few fonts have these two
  const shown = known.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "·";
  return shown.length > TREE.most_letters && !SPECIAL.test(text) ? shown.slice(0, TREE.most_letters - 1) + "…" : shown;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Columns by depth, rows by order of leaves: a parent stands beside its first child.
function lay_out(tree) {
  const count = tree.parents.length;
  const children = Array.from({ length: count }, () => []);
  const depth = new Array(count).fill(0);
  for (let i = 1; i < count; ++i) {
    children[tree.parents[i]].push(i);
    depth[i] = depth[tree.parents[i]] + 1;
  }
  const lit = new Set(tree.path);
  for (const list of children) list.sort((a, b) => lit.has(b) - lit.has(a) || a - b);
  const labels = tree.texts.map(visible_text);
  const widths = [];
  depth.forEach((d, i) => { widths[d] = Math.max(widths[d] || 0, labels[i].length * TREE.letter + 14); });
  const left = [2];
  for (let d = 1; d < widths.length; ++d) left[d] = left[d - 1] + widths[d - 1] + TREE.gap;
  const row = new Array(count).fill(0);
  let rows = 0;
  const stack = [0];
  while (stack.length) {
    const node = stack.pop();
    if (node !== 0 && children[tree.parents[node]][0] !== node) ++rows;
    row[node] = rows;
    for (let i = children[node].length - 1; i >= 0; --i) stack.push(children[node][i]);
  }
  const last = widths.length - 1;
  return { labels, depth, row, left, lit, widths, width: left[last] + widths[last] + 4, height: (rows + 1) * TREE.row + 2 };
}

function draw_tree(tree, remark = "") {
  const plan = lay_out(tree);
  const x = (i) => plan.left[plan.depth[i]];
  const y = (i) => plan.row[i] * TREE.row + 12;
  const edges = [];
  const lit_edges = []; // drawn last: branches share their first piece
  const nodes = [];
  tree.parents.forEach((parent, i) => {
    const own = plan.labels[i].length * TREE.letter + 14;
    const lit = plan.lit.has(i) ? " lit" : "";
    if (i > 0) {
      const from = x(parent) + plan.labels[parent].length * TREE.letter + 14;
      const middle = x(i) - TREE.gap / 2;
      (lit ? lit_edges : edges).push(svg("path", { class: `edge${lit}`, d: `M${from} ${y(parent)} H${middle} V${y(i)} H${x(i)}` }));
    }
    nodes.push(svg("g", { class: `node ${i > 0 ? source_of(tree.sources[i]) : "target"}${lit}`, transform: `translate(${x(i)} ${y(i) - 10})` },
      svg("rect", { width: own, height: 20, rx: 5 }), svg("text", { x: 7, y: 14 }, plan.labels[i])));
  });
  const accepted = Math.max(0, tree.path.length - 1);
  const drafts = tree.parents.length - 1;
  const said = tree.path.map((i) => tree.texts[i]).join("");
  const image = svg("svg", { width: plan.width, height: plan.height, role: "img",
    "aria-label": `Draft tree of ${drafts} drafts, ${accepted} accepted: ${said}` }, ...edges, ...lit_edges, ...nodes);
  const figure = document.createElement("figure");
  figure.className = "step";
  const caption = document.createElement("figcaption");
  caption.append(`${remark}${accepted} of ${drafts} ${drafts === 1 ? "draft" : "drafts"} accepted`, make("span", "scroll-hint", " · scroll sideways for the rest →"));
  const frame = document.createElement("div"); // a wide tree scrolls by itself
  frame.className = "wide";
  frame.append(image);
  figure.append(caption, frame);
  return figure;
}

function show_example(place) {
  const example = draw_tree(EXAMPLE, "An example, until an answer brings its own: ");
  example.classList.add("example");
  place.replaceChildren(example);
}

// The newest tree on top, a few below it.
function show_tree(tree, place) {
  place.querySelector(".example")?.remove();
  place.prepend(draw_tree(tree));
  hint_at_width(place);
  while (place.children.length > TREE.shown) place.lastChild.remove();
}

// A tree that is wider than its place says so. Its place has no width while the drawer is closed.
function hint_at_width(place) {
  for (const figure of place.children) figure.classList.toggle("is-wide", figure.lastChild.scrollWidth > figure.lastChild.clientWidth);
}
