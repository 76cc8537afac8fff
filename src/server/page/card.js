// What runs here, from /v1/models and /version.

// Each line: what it is called, and its value in the model's entry; none where the server does not tell.
const FACTS = [
  ["Model", (model) => model.id],
  ["Architecture", (model) => model.espalier?.architecture],
  ["Context", (model) => `${model.max_model_len.toLocaleString("en")} tokens`],
  ["Weights", (model) => model.espalier?.weights],
  ["Cache", (model) => model.espalier?.cache],
  ["Device", (model) => model.espalier?.device],
  ["Drafters", (model) => model.espalier && (model.espalier.drafters.map((name) => SOURCES[source_of(name)].name).join(", ") || "none: no drafts are made")],
];

function add_pair(list, term, ...said) {
  const value = make("dd");
  value.append(...said);
  const name = make("dt");
  name.append(term);
  list.append(name, value);
}

function show_card(model, version) {
  const card = element("card");
  card.replaceChildren();
  for (const [name, of] of FACTS) if (of(model)) add_pair(card, name, of(model));
  add_pair(card, "Espalier", version);
}
