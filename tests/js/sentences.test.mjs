import assert from "node:assert/strict";
import { test } from "node:test";
import { Numbers, sums } from "../../src/attnflow/view/page/numbers.js";
import { unpackRows } from "../../src/attnflow/view/page/trace.js";

const VALUES = [
  [0.1, -2.5, 0],
  [1e-300, 3, -1 / 3],
];
// What attnflow.view.page makes of them.
const PACKED = {
  shape: [2, 3],
  packed: "eJybxcAQyRA6k4HhM5j8ASYPgUl5MJnHELqThWEpx1X7AwyMDvsBO9YNZw==",
};

const plain = (rows) => rows.map((row) => Array.from(row));

test("packed numbers are exactly those that were packed", async () => {
  assert.deepEqual(plain(await unpackRows(PACKED)), VALUES);
  assert.deepEqual(plain(await unpackRows(VALUES)), VALUES);
});

test("what is shown of a long text are the sums of its sentences", async () => {
  const data = {
    explanation: { method: "rollout", layer_scores: PACKED },
    labels: ["a", "b"],
    special: [false, false],
    sentences: { groups: [[0, 1], [2]] },
  };
  const numbers = await Numbers.read(data);
  assert.equal(numbers.depth, 2);
  assert.equal(numbers.tokens, 2);
  assert.deepEqual(Array.from(numbers.savedScores(1)), [-2.4, 0]);
  assert.deepEqual(Array.from(numbers.layerScores[0]), VALUES[0]);
  assert.deepEqual(Array.from(sums([[0, 1, 2]], VALUES[0])), [-2.4]);
});
