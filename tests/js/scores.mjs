// Read an explanation with a trace, and print what the page computes of it, for each position and
// each of its layers. For the Python tests.

import { readFileSync } from "node:fs";
import { finish } from "../../src/attnflow/view/page/flow.js";
import { Numbers } from "../../src/attnflow/view/page/numbers.js";

const { trace, ...explanation } = JSON.parse(readFileSync(0, "utf8"));
const { tokens: labels, special } = trace;
const numbers = await Numbers.read({ explanation, trace, labels, special });
const tokens = Array.from(labels.keys());
const every = (work) =>
  tokens.map((position) =>
    Array.from({ length: numbers.layersOf(position) }, (_, i) => work(i + 1, position)),
  );
for (const position of tokens) {
  const layers = Array.from({ length: numbers.layersOf(position) }, (_, i) => i + 1);
  finish(numbers.flowWork(position, layers, -1, () => {}));
}
const scores = (method) =>
  every((layer, position) => Array.from(numbers.scores(method, layer, position)));
const cut = (layer, position, token) => {
  const found = finish(numbers.cutSteps(layer, position, token));
  return [found.value, found.cut.reduce((sum, [, , , capacity]) => sum + capacity, 0)];
};
process.stdout.write(
  JSON.stringify({
    raw: scores("raw"),
    rollout: scores("rollout"),
    flow: scores("flow"),
    saturation: every((layer, position) => numbers.saturation(layer, position)),
    cuts: every((layer, position) =>
      tokens.map((token) => (numbers.sees(position, token) ? cut(layer, position, token) : null)),
    ),
  }),
);
