import assert from "node:assert/strict";
import { test } from "node:test";
import { barScene } from "../../src/attnflow/view/page/bars.js";
import { fromOklch, INKS, shade } from "../../src/attnflow/view/page/colour.js";

import { fromHash, toHash } from "../../src/attnflow/view/page/hash.js";
import { heatAt, heatLayout, relativeShades } from "../../src/attnflow/view/page/heat.js";
import { edgeAt, graphRows } from "../../src/attnflow/view/page/layered.js";
import { Numbers } from "../../src/attnflow/view/page/numbers.js";
import { answerRoutes, attentionRoutes, throughNode } from "../../src/attnflow/view/page/routes.js";
import { characters } from "../../src/attnflow/view/page/scene.js";
import { graphOf, randomLayers, WORKED } from "./graphs.mjs";

function channels(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function luminance(hex) {
  const [r, g, b] = channels(hex).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Lightness as CIE L*, which is another measure than the scale is made with.
function lightness(hex) {
  const y = luminance(hex);
  return y > 0.008856 ? 116 * Math.cbrt(y) - 16 : 903.3 * y;
}

function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

for (const theme of ["light", "dark"]) {
  test(`the ${theme} scale changes its lightness evenly, so that it can be read in grey`, () => {
    const steps = Array.from({ length: 11 }, (_, i) => lightness(shade(theme, i / 10).hex));
    const changes = steps.slice(1).map((value, i) => value - steps[i]);
    const sign = theme === "light" ? -1 : 1;
    for (const change of changes) assert.ok(sign * change > 0);
    const mean = changes.reduce((a, b) => a + b) / changes.length;
    for (const change of changes) assert.ok(Math.abs(change / mean - 1) < 0.35, `${changes}`);
  });

  test(`a word can be read on every ${theme} shade`, () => {
    for (let i = -100; i <= 100; i += 1) {
      const { hex, ink } = shade(theme, i / 100);
      assert.ok(contrast(hex, ink) >= 4.5, `${theme} ${i}: ${contrast(hex, ink)}`);
    }
  });

  test(`below 0 the ${theme} scale is orange, above it blue`, () => {
    for (let i = 20; i <= 100; i += 1) {
      const [below, above] = [-i, i].map((score) => channels(shade(theme, score / 100).hex));
      assert.ok(below[0] > below[2] && above[2] > above[0], `${theme} ${i}`);
    }
  });

  test(`what is written in a ${theme} drawing can be read`, () => {
    for (const ink of ["ink", "muted", "cut"]) {
      assert.ok(contrast(INKS[theme][ink], INKS[theme].paper) >= 4.5);
    }
  });
}

test("white is white", () => {
  assert.deepEqual(fromOklch(1, 0, 0), [255, 255, 255]);
});

test("shades are shares of the highest score that counts", () => {
  assert.deepEqual(relativeShades([4, 1, 2], [false, true, true]), [2, 0.5, 1]);
  assert.deepEqual(relativeShades([0, 0], [true, true]), [0, 0]);
});

test("a point of the heat maps is found in its method, layer and row", () => {
  const layout = heatLayout(800, 6, ["raw", "rollout", "flow"], 100);
  const numbers = { tokens: 10, layers: 6 };
  for (const [index, block] of layout.blocks.entries()) {
    for (let layer = 1; layer <= 6; layer += 1) {
      const found = heatAt(
        layout,
        numbers,
        block.x + (layer - 0.5) * layout.cell,
        3.5 * layout.row,
      );
      assert.deepEqual(found, { method: ["raw", "rollout", "flow"][index], layer, token: 3 });
    }
  }
  assert.equal(heatAt(layout, numbers, layout.blocks[0].x + 1, 10.5 * layout.row), null);
  assert.ok(layout.width <= 800);
});

test("heat maps fit into any width", () => {
  for (const width of [280, 400, 700, 1100]) {
    for (const layers of [1, 6, 12]) {
      assert.ok(heatLayout(width, layers, ["raw", "rollout", "flow"], 500).width <= width + 1);
    }
  }
});

function numbersOf(layers) {
  const tokens = layers[0].length;
  const graph = graphOf(layers);
  const explanation = { method: "rollout", layer_scores: layers.map(() => []) };
  const labels = Array.from({ length: tokens }, (_, i) => `t${i}`);
  const data = { explanation, labels, special: labels.map(() => false), trace: { bits: 24 } };
  const trace = {
    attention: graph.attention,
    residual: graph.residual,
    tokens,
    heads: null,
    mask: null,
  };
  return new Numbers(data, trace);
}

const SHOWN = { method: "rollout", layer: 3, position: 0, head: -1, token: null, threshold: 0 };

function sumsOf(edges) {
  const sums = new Map();
  for (const { layer, weight } of edges) sums.set(layer, (sums.get(layer) ?? 0) + weight);
  return sums;
}

test("rollout's edges into a layer sum to 1", () => {
  const { edges, kept } = attentionRoutes(numbersOf(WORKED), SHOWN, null, null);
  const sums = sumsOf(edges);
  for (const layer of [1, 2, 3]) assert.ok(Math.abs(sums.get(layer) - 1) < 1e-3);
  assert.equal(kept, 1);
});

test("of many tokens the graph shows those that matter, and those chosen", () => {
  const numbers = numbersOf(randomLayers(2, 60, 4));
  const state = { ...SHOWN, method: "raw", layer: 2, position: 59, token: 0 };
  const routes = attentionRoutes(numbers, state, null, null);
  const rows = graphRows(numbers, routes);
  const { masses } = routes;
  assert.ok(rows.length < 60);
  assert.ok(rows.includes(59) && rows.includes(0));
  assert.deepEqual(
    rows,
    rows.toSorted((a, b) => a - b),
  );
  const least = Math.min(...rows.filter((k) => k !== 59 && k !== 0).map((k) => masses[1][k]));
  for (let k = 1; k < 59; k += 1) assert.ok(rows.includes(k) || masses[1][k] <= least);
});

test("routes of rollout above a threshold carry what paths of their edges alone do", () => {
  const layers = randomLayers(3, 5, 7);
  const numbers = numbersOf(layers);
  const threshold = 0.04;
  const { edges, kept } = attentionRoutes(numbers, { ...SHOWN, threshold }, null, null);
  // Every path by itself: it is kept if the share of each of its edges is above the threshold.
  const descent = numbers.graph.descent(3, 0);
  let sum = 0;
  const follow = (layer, at, product) => {
    if (layer === 0) {
      sum += product;
      return;
    }
    for (let to = 0; to < 5; to += 1) {
      const capacity = numbers.graph.capacity(layer, at, to);
      if (descent[layer][at] * capacity >= threshold) follow(layer - 1, to, product * capacity);
    }
  };
  follow(3, 0, 1);
  assert.ok(kept < 1 && kept > 0);
  assert.ok(Math.abs(kept - sum) < 1e-6);
  for (const { weight } of edges) assert.ok(weight >= threshold);
});

test("what flowed is conserved from layer to layer, with its sign", () => {
  const numbers = numbersOf(randomLayers(2, 3, 1));
  // The answer is 1: position 0 reads 1.5 from itself and -0.5 from position 2.
  numbers.carried = [
    Float32Array.from([1, 0.5, 0, 0, 0, 0, 0, 0, -0.5]),
    Float32Array.from([1.5, 0, -0.5, 0, 0, 0, 0, 0, 0]),
  ];
  const routes = answerRoutes(numbers, 0);
  for (const sum of sumsOf(routes.edges).values()) assert.equal(sum, 1);
  assert.deepEqual(Array.from(routes.masses[2]), [1, 0, 0]);
  assert.deepEqual(Array.from(routes.masses[1]), [1.5, 0, -0.5]);
  assert.deepEqual(Array.from(routes.masses[0]), [1, 0.5, -0.5]);
  assert.equal(routes.kept, 1);
  const { mass, came, went } = throughNode(routes, [1, 0]);
  assert.equal(mass, 1.5);
  assert.deepEqual(
    came.map(({ to, weight }) => [to, weight]),
    [
      [0, 1],
      [1, 0.5],
    ],
  );
  assert.deepEqual(
    went.map(({ from, weight }) => [from, weight]),
    [[0, 1.5]],
  );
  // Above 30 % of a layer only 0: 1.5 of 2 goes there, and 1 of 2 goes on.
  const strong = answerRoutes(numbers, 0.3);
  assert.deepEqual(
    strong.edges.map(({ layer, from, to }) => [layer, from, to]),
    [
      [2, 0, 0],
      [1, 0, 0],
    ],
  );
  assert.equal(strong.kept, 0.5);
});

test("shades from the median up tell apart what is nearly even", () => {
  const scores = [1, 1.01, 1.02, 1.04, 1.1];
  assert.deepEqual(
    relativeShades(
      scores,
      scores.map(() => true),
    ).map((share) => share > 0.9),
    scores.map(() => true),
  );
  const relative = relativeShades(
    scores,
    scores.map(() => true),
    true,
  );
  assert.deepEqual(relative.slice(0, 3), [0, 0, 0]);
  assert.ok(Math.abs(relative[3] - 0.25) < 1e-9);
  assert.equal(relative[4], 1);
});

test("a state comes back from an address", () => {
  const first = {
    ...SHOWN,
    special: false,
    relative: true,
    graph: "answer",
    node: null,
    opened: [],
  };
  assert.equal(toHash(first, first), "");
  const state = {
    ...first,
    method: "flow",
    layer: 2,
    token: 4,
    relative: false,
    threshold: 0.05,
    node: [2, 3],
    opened: [
      [1, 4],
      [2, 0],
    ],
  };
  assert.deepEqual({ ...first, ...fromHash(toHash(state, first)) }, state);
  assert.deepEqual(fromHash("layer=none&node=a.b&token="), {
    layer: Number.NaN,
    token: null,
    node: [Number.NaN, Number.NaN],
  });
});

test("the edge under the pointer is the nearest one", () => {
  const edges = [{ curve: [0, 0, 100, 0] }, { curve: [0, 0, 100, 80] }];
  assert.equal(edgeAt({ edges }, 80, 2, 7), edges[0]);
  assert.equal(edgeAt({ edges }, 50, 41, 7), edges[1]);
  assert.equal(edgeAt({ edges }, 90, 40, 7), null);
});

test("an emoji with joiners is one character", () => {
  assert.deepEqual(characters("a👩‍👩‍👧b"), ["a", "👩‍👩‍👧", "b"]);
});

test("flow is computed in pieces, and is what it is at once", async () => {
  const numbers = numbersOf(WORKED);
  const { Network } = await import("../../src/attnflow/view/page/flow.js");
  numbers.network = new Network(numbers.graph);
  numbers.background = numbers.network.twin();
  assert.equal(numbers.scores("flow", 3, 0), null);
  await new Promise((done) => {
    let layers = 0;
    numbers.computeFlows(0, [3, 2, 1], -1, (layer) => {
      if (layer > 0) layers += 1;
      if (layers === 3) done();
    });
  });
  for (const layer of [1, 2, 3]) {
    for (const token of [0, 1, 2]) {
      assert.equal(numbers.scores("flow", layer, 0)[token], numbers.network.value(layer, 0, token));
    }
  }
  assert.equal(numbers.saturation(1, 0), 0);
});

test("bars of contributions begin at one line, and their lengths are in proportion", () => {
  const fit = Object.assign((text) => text, { widest: () => 60 });
  const rows = [
    ["keys", 2, "+2.00"],
    ["cabinet", -1, "-1.00"],
    ["it", 0, "0.00"],
  ];
  const scene = barScene({ rows, value: "+1.00", theme: "light", width: 600, fit });
  const [keys, cabinet] = scene.shapes.filter(({ rect }) => rect && rect[3] === 17);
  assert.ok(Math.abs(keys.rect[0] - (cabinet.rect[0] + cabinet.rect[2])) < 1e-9);
  assert.ok(Math.abs(keys.rect[2] - 2 * cabinet.rect[2]) < 1e-9);
  assert.notEqual(keys.fill, cabinet.fill);
  const texts = scene.shapes.filter(({ text }) => text).map(({ text }) => text);
  assert.deepEqual(texts.slice(-2), ["together", "+1.00"]);
  for (const { rect } of scene.shapes)
    if (rect) assert.ok(rect[0] >= 0 && rect[0] + rect[2] <= 600);
});
