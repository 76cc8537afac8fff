// Where a token came from: the target model itself, or the drafter that was right about it.

const SOURCES = {
  target: { name: "Target", help: "drawn by the model in a step of its own" },
  ngram: { name: "N-gram", help: "found in the text so far" },
  mtp: { name: "MTP", help: "proposed by the model's own prediction head" },
  eagle3: { name: "EAGLE3", help: "proposed by the EAGLE3 head" },
  draft: { name: "Draft", help: "proposed by another drafter" },
};

// The server's name of a source as one of the above.
function source_of(name) {
  return Object.hasOwn(SOURCES, name) ? name : "draft";
}

function show_legend(list) {
  for (const [source, { name, help }] of Object.entries(SOURCES)) {
    if (source === "draft") continue; // named where it occurs
    const item = document.createElement("li");
    const sample = document.createElement("span");
    sample.className = `token from-${source}`;
    sample.textContent = name;
    item.append(sample);
    item.title = help;
    list.append(item);
  }
}
