// How an explanation was made: the model, its answer, and the options, in words.

import { answerName, describePrediction } from "./prose.js";

/** Return the part about how it was made: {element, draw}. */
export function aboutPart(frame, { data, shown }) {
  const { make } = frame;
  const { explanation, classes } = data;
  const { numbers } = shown;
  const named = (label) => (label ? answerName(label, classes) : null);
  const layers = numbers.encoder
    ? `${numbers.encoder[0]} of the encoder, ${numbers.depth} of the decoder`
    : numbers.depth;
  const head = make("dd", {});
  const terms = [
    ["Model", data.model],
    ["Task", explanation.task],
    ["Prediction", describePrediction(explanation, classes)],
    ["Explained for", named(explanation.target)],
    ["Compared with", named(explanation.contrast)],
    ["Check", data.contribution ? null : data.verdict?.long],
    // Of a long text, contributions are known as a whole and not layer by layer.
    ["Layers", numbers.trace || numbers.depth > 1 ? layers : null],
    ["Tokens", numbers.trace ? numbers.tokens : explanation.tokens.length],
    ...data.options,
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const heads = data.options.find(([name]) => name === "Heads")?.[1];
  const line = (name, value) => make("div", {}, make("dt", {}, name), value);
  const element = make(
    "section",
    { class: "about", "aria-labelledby": frame.id("about") },
    make("h2", { id: frame.id("about") }, "How it was made"),
    make(
      "dl",
      {},
      ...terms.map(([name, value]) =>
        line(name, name === "Heads" ? head : make("dd", { dir: "auto" }, String(value))),
      ),
    ),
    explanation.notes.length
      ? make(
          "ul",
          { class: "notes" },
          ...explanation.notes.map((note) => make("li", { dir: "auto" }, note)),
        )
      : null,
  );
  return {
    element,
    draw() {
      const { head: one, layer } = shown.state;
      head.textContent = one < 0 ? (heads ?? "") : `head ${one} alone in layer ${layer}`;
    },
  };
}
