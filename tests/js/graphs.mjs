// Graphs for the tests.

import { Graph } from "../../src/attnflow/view/page/graph.js";

/** Numbers from 0 to 1 that repeat themselves. */
export function random(seed) {
  let state = seed;
  return () => {
    state = (state * 16807) % 2147483647;
    return state / 2147483647;
  };
}

/** A graph of rows, its residual share one half. */
export function graphOf(layers, share = 0.5) {
  const tokens = layers[0].length;
  return new Graph(
    layers.map((rows) => Float32Array.from(rows.flat())),
    layers.map(() => new Float64Array(tokens).fill(share)),
    tokens,
  );
}

/** The example that the Python tests work out by hand, too. */
export const WORKED = [
  [
    [0, 0.75, 0.25],
    [0.5, 0.5, 0],
    [0, 0.5, 0.5],
  ],
  [
    [0.25, 0.25, 0.5],
    [0, 0.75, 0.25],
    [0, 0.75, 0.25],
  ],
  [
    [0.5, 0, 0.5],
    [0.25, 0.25, 0.5],
    [0.5, 0, 0.5],
  ],
];

/** Random attention, with some weights of exactly nothing. */
export function randomLayers(layers, tokens, seed) {
  const next = random(seed);
  return Array.from({ length: layers }, () =>
    Array.from({ length: tokens }, () => {
      const row = Array.from({ length: tokens }, () => (next() < 0.25 ? 0 : next() ** 3));
      if (row.every((weight) => weight === 0)) row[0] = 1;
      const sum = row.reduce((a, b) => a + b);
      return row.map((weight) => weight / sum);
    }),
  );
}

/** The smallest cut between a position and a token, by trying every one of them. */
export function smallestCut(graph, layer, position, token) {
  const { tokens } = graph;
  const between = (layer - 1) * tokens;
  let best = Infinity;
  for (let side = 0; side < 2 ** between; side += 1) {
    const inside = (l, k) => {
      if (l === layer) return k === position;
      if (l === 0) return false;
      return Boolean((side >> ((l - 1) * tokens + k)) & 1);
    };
    let sum = 0;
    for (let l = layer; l > 0; l -= 1) {
      for (let k = 0; k < tokens; k += 1) {
        if (!inside(l, k)) continue;
        for (let m = 0; m < tokens; m += 1) {
          if (l === 1 ? m === token : !inside(l - 1, m)) sum += graph.capacity(l, k, m);
        }
      }
    }
    best = Math.min(best, sum);
  }
  return best;
}
