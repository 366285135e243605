// What is shown as a file that Explanation.load reads.

import { unpackRows } from "./trace.js";

// What the choices of a page change in an explanation.
const CHOSEN = ["method", "layer", "position", "head"];

/**
 * Return the parts of a JSON text: the explanation that is given, or, where something else was
 * chosen, that of the method, layer, position and head chosen. A function, as that of a long text
 * takes a while, in which the page stays responsive.
 */
export async function explanationJson(shown) {
  // Flows that are not known yet are computed in the background.
  while (shown.numbers.job) await pause(20);
  const { data, state, first } = shown;
  const { trace, picture } = data;
  const { layer_scores: packed, ...given } = data.explanation;
  const same = CHOSEN.every((name) => state[name] === first[name]);
  const explanation = same ? given : { ...given, ...chosen(shown) };
  const rows = same || !trace ? await unpackRows(packed) : layerScores(shown);
  const saved = { ...explanation, ...(trace ? { trace } : {}), ...(picture ? { picture } : {}) };
  const parts = [JSON.stringify(saved).slice(0, -1), ',"layer_scores":['];
  for (const [i, row] of rows.entries()) {
    parts.push(i ? "," : "", JSON.stringify(Array.from(row)));
    await pause(0);
  }
  parts.push("]}");
  return parts;
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function layerScores(shown) {
  const scores = (_, i) => seen(shown, shown.scores(shown.state.method, i + 1));
  return Array.from({ length: shown.layers }, scores);
}

// Those of the tokens that the position can see.
function seen(shown, values) {
  return Array.from(values).filter((_, token) => shown.sees(token));
}

// Without a trace, only the layer can be chosen.
function chosen(shown) {
  const { data, state, numbers } = shown;
  const { explanation, trace } = data;
  if (!trace) {
    const scores = Array.from(numbers.layerScores[state.layer - 1]);
    return { layer: state.layer, scores, saturation: null, notes: [] };
  }
  const { heads, ...options } = explanation.options;
  return {
    method: state.method,
    layer: state.layer,
    position: state.position,
    reads: [[state.position, 1]],
    tokens: seen(shown, trace.tokens),
    spans: seen(shown, trace.spans),
    special: seen(shown, trace.special),
    scores: seen(shown, shown.scores()),
    options: {
      ...options,
      heads: state.head < 0 ? heads : state.head,
      receptive_field: numbers.relative,
      units: "tokens",
      special_tokens: true,
      drop_sink: false,
    },
    contrast: null,
    value: null,
    bias: null,
    check: null,
    saturation: state.method === "flow" ? shown.saturation() : null,
    notes: [],
  };
}
