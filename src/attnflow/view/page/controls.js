// The controls of what attention says: the method, layer and head, and the scale of colours.

import { METHODS } from "./prose.js";

/** Return the bar of controls: {element, draw}. set changes what is shown. */
export function controlsPart(frame, { shown, set }) {
  const { make } = frame;
  const { numbers } = shown;
  const methods = frame.radios({
    label: "Method",
    attribute: "data-method-choice",
    choices: Object.entries(METHODS).map(([name, { short, about }]) => [name, short, about]),
    choose: (method) => set({ method }),
    small: false,
    disabled: (method) => !numbers.methods.includes(method),
  });
  const layer = make("input", {
    type: "range",
    min: 1,
    step: 1,
    id: frame.id("layer"),
    oninput: (event) => set({ layer: Number(event.target.value) }),
  });
  const layerWords = make("output", { for: frame.id("layer") });
  const slider = (name, label, ...parts) =>
    make("div", { class: "slider" }, make("label", { for: frame.id(name) }, label), ...parts);
  const bar = make(
    "div",
    { class: "controls", role: "group", "aria-label": "What is shown" },
    methods.element,
    slider("layer", "Layer", layer, layerWords),
  );
  let head = null;
  if (numbers.heads) {
    head = make(
      "select",
      { id: frame.id("head"), onchange: (event) => set({ head: Number(event.target.value) }) },
      make("option", { value: -1 }, "all"),
      ...Array.from({ length: numbers.heads }, (_, i) => make("option", { value: i }, `${i}`)),
    );
    bar.append(slider("head", "Head", head));
  }
  let special = null;
  if (numbers.special.some(Boolean) && !numbers.special.every(Boolean)) {
    special = frame.check("special", "Special tokens in the scale", {
      onchange: (event) => set({ special: event.target.checked }),
    });
    bar.append(special.element);
  }
  let relative = null;
  if (!numbers.groups && !shown.data.explanation.grid) {
    relative = frame.check("relative", "Colours from the median up", {
      "data-relative": "",
      title: "White is the median of the text's scores, so that small differences can be seen.",
      onchange: (event) => set({ relative: event.target.checked }),
    });
    bar.append(relative.element);
  }
  return {
    element: bar,
    draw() {
      const { state } = shown;
      methods.mark(state.method);
      layer.max = String(shown.layers);
      layer.value = String(state.layer);
      layer.setAttribute("aria-valuetext", `${shown.layerName()} of ${shown.layers}`);
      const side = numbers.side(state.position);
      layerWords.textContent = `${state.layer} of ${shown.layers}${side && ` of the ${side}`}`;
      if (head) head.value = String(state.head);
      if (special) special.input.checked = state.special;
      if (relative) relative.input.checked = state.relative;
    },
  };
}
