import assert from "node:assert/strict";
import { test } from "node:test";
import { fromOklch, INKS, shade } from "../../src/attnflow/view/page/colour.js";
import { contributionScene } from "../../src/attnflow/view/page/contribution.js";
import { heatAt, heatLayout, relativeShades } from "../../src/attnflow/view/page/heat.js";
import {
  edgeAt,
  graphEdges,
  graphMasses,
  graphRows,
} from "../../src/attnflow/view/page/layered.js";
import { Numbers } from "../../src/attnflow/view/page/numbers.js";
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

test("rollout's edges into a layer sum to 1", () => {
  const numbers = numbersOf(WORKED);
  const state = { method: "rollout", layer: 3, position: 0, head: -1, token: null };
  const masses = graphMasses(numbers, state, null);
  const rows = graphRows(numbers, state, masses);
  const sums = new Map();
  for (const edge of graphEdges(numbers, state, null, masses, rows)) {
    sums.set(edge.layer, (sums.get(edge.layer) ?? 0) + edge.weight);
  }
  for (const layer of [1, 2, 3]) assert.ok(Math.abs(sums.get(layer) - 1) < 1e-3);
});

test("of many tokens the graph shows those that matter, and those chosen", () => {
  const numbers = numbersOf(randomLayers(2, 60, 4));
  const state = { method: "raw", layer: 2, position: 59, head: -1, token: 0 };
  const masses = graphMasses(numbers, state, null);
  const rows = graphRows(numbers, state, masses);
  assert.ok(rows.length < 60);
  assert.ok(rows.includes(59) && rows.includes(0));
  assert.deepEqual(
    rows,
    rows.toSorted((a, b) => a - b),
  );
  const least = Math.min(...rows.filter((k) => k !== 59 && k !== 0).map((k) => masses[1][k]));
  for (let k = 1; k < 59; k += 1) assert.ok(rows.includes(k) || masses[1][k] <= least);
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
  const scene = contributionScene({ rows, value: "+1.00", theme: "light", width: 600, fit });
  const [keys, cabinet] = scene.shapes.filter(({ rect }) => rect && rect[3] === 17);
  assert.ok(Math.abs(keys.rect[0] - (cabinet.rect[0] + cabinet.rect[2])) < 1e-9);
  assert.ok(Math.abs(keys.rect[2] - 2 * cabinet.rect[2]) < 1e-9);
  assert.notEqual(keys.fill, cabinet.fill);
  const texts = scene.shapes.filter(({ text }) => text).map(({ text }) => text);
  assert.deepEqual(texts.slice(-2), ["together", "+1.00"]);
  for (const { rect } of scene.shapes)
    if (rect) assert.ok(rect[0] >= 0 && rect[0] + rect[2] <= 600);
});
