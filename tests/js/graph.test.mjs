import assert from "node:assert/strict";
import { test } from "node:test";
import { relativeTo, shares, spread } from "../../src/attnflow/view/page/graph.js";
import { readTrace, uniformAttention, unpack } from "../../src/attnflow/view/page/trace.js";
import { graphOf, randomLayers, WORKED } from "./graphs.mjs";

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-6, `${a} is not ${b}`);

async function pack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return Buffer.from(await new Response(stream).arrayBuffer()).toString("base64");
}

test("rollout is the product of the layers", () => {
  const layers = randomLayers(4, 5, 2);
  const graph = graphOf(layers);
  const weights = layers.map((rows) =>
    rows.map((row, k) => row.map((weight, m) => 0.5 * weight + (k === m ? 0.5 : 0))),
  );
  const product = (a, b) =>
    a.map((row) => b[0].map((_, m) => row.reduce((s, w, k) => s + w * b[k][m], 0)));
  let all = weights[0];
  for (let layer = 2; layer <= 4; layer += 1) all = product(weights[layer - 1], all);
  for (let position = 0; position < 5; position += 1) {
    for (const [token, value] of graph.rollout(4, position).entries()) {
      near(value, all[position][token]);
    }
  }
});

test("what goes down from a position is all there in every layer", () => {
  for (const level of graphOf(WORKED).descent(3, 0))
    near(
      level.reduce((a, b) => a + b),
      1,
    );
});

test("raw attention of a layer is its row", () => {
  assert.deepEqual(Array.from(graphOf(WORKED).raw(2, 0)), [0.25, 0.25, 0.5]);
});

test("shares and ratios leave nothing as nothing", () => {
  assert.deepEqual(shares([0, 0]), [0, 0]);
  assert.deepEqual(relativeTo([0.5, 0.25, 0], [0.5, 0.5, 0.5]), [1 / 3, 2 / 3, 0]);
});

test("even scores are spread over all tokens, and a single one over one", () => {
  near(spread([0.25, 0.25, 0.25, 0.25]), 4);
  near(spread([0, 1, 0]), 1);
});

test("whole numbers of 8, 16 and 24 bits are read from planes of bytes", async () => {
  assert.deepEqual(Array.from(await unpack(await pack(new Uint8Array([7, 255])), 2, 8)), [7, 255]);
  assert.deepEqual(
    Array.from(await unpack(await pack(new Uint8Array([1, 0, 2, 3])), 2, 12)),
    [258, 3],
  );
  const planes = new Uint8Array([1, 255, 0, 255, 2, 255]);
  assert.deepEqual(Array.from(await unpack(await pack(planes), 2, 24)), [65538, 16777215]);
});

test("weights that are incomplete are refused", async () => {
  await assert.rejects(unpack(await pack(new Uint8Array([1, 2, 3])), 2, 16), /incomplete/);
});

test("rows of a trace sum to 1, whatever they are in proportion to", async () => {
  const weights = await pack(new Uint8Array([255, 85, 255, 255]));
  const trace = { layers: 1, tokens: ["a", "b"], bits: 8, weights, residual: 0.25, heads: null };
  const { attention, residual } = await readTrace(trace);
  assert.deepEqual(Array.from(attention[0]), [0.75, 0.25, 0.5, 0.5]);
  assert.deepEqual(Array.from(residual[0]), [0.25, 0.25]);
});

test("uniform attention over a causal mask shares out each row among what it sees", () => {
  const [weights] = uniformAttention([[true, true, true, false, false]], 3);
  assert.deepEqual(
    Array.from(weights, (weight) => Math.round(weight * 6)),
    [6, 0, 0, 3, 3, 0, 2, 2, 2],
  );
});

test("a learned sink is one more position of uniform attention in the layers that have it", () => {
  // A window of one token, behind a sink.
  const mask = [false, false, true, false, false];
  const layers = uniformAttention([mask, mask], 3, null, [true, false]);
  assert.deepEqual(
    layers.map((weights) => Array.from(weights)),
    [
      [1, 0, 0, 0.5, 0.5, 0, 0.5, 0, 0.5],
      [1, 0, 0, 0, 1, 0, 0, 0, 1],
    ],
  );
});
