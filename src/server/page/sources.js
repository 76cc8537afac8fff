// Where a token came from: the target model itself, or the drafter that was right about it.

const SOURCES = {
  target: { name: "Model", help: "drawn by the model itself, where no draft was right" },
  ngram: { name: "N-gram", help: "what followed the same words before in this text" },
  mtp: { name: "MTP", help: "guessed by the model's own prediction layer" },
  eagle3: { name: "EAGLE3", help: "guessed by an EAGLE3 head, a small model beside it" },
  grammar: { name: "Grammar", help: "the only token that the answer's form allowed" },
  draft: { name: "Draft", help: "guessed by another drafter" },
};

// The server's name of a source as one of the above.
function source_of(name) {
  return Object.hasOwn(SOURCES, name) ? name : "draft";
}

function source_sample(source) {
  return make("span", `token from-${source}`, SOURCES[source].name);
}

// In one line above the messages, and with what each one does in the drawer.
function show_legend(line, explained) {
  for (const [source, { help }] of Object.entries(SOURCES)) {
    if (source === "draft") continue; // named where it occurs
    const item = make("li");
    item.append(source_sample(source));
    item.title = help;
    line.append(item);
    add_pair(explained, source_sample(source), help);
  }
}
