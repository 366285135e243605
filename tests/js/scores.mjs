// Read an explanation with a trace, and print what the page computes of it. For the Python tests.

import { readFileSync } from "node:fs";
import { Network } from "../../src/attnflow/view/page/flow.js";
import { Graph } from "../../src/attnflow/view/page/graph.js";
import { readTrace } from "../../src/attnflow/view/page/trace.js";

const { trace } = JSON.parse(readFileSync(0, "utf8"));
const { attention, residual, tokens } = await readTrace(trace);
const graph = new Graph(attention, residual, tokens);
const network = new Network(graph);
const every = (work) =>
  attention.map((_, layer) =>
    Array.from({ length: tokens }, (__, position) => Array.from(work(layer + 1, position))),
  );
const all = Array.from({ length: tokens }, (_, token) => token);
process.stdout.write(
  JSON.stringify({
    raw: every((layer, position) => graph.raw(layer, position)),
    rollout: every((layer, position) => graph.rollout(layer, position)),
    flow: every((layer, position) => all.map((token) => network.value(layer, position, token))),
  }),
);
