import assert from "node:assert/strict";
import { test } from "node:test";
import { align } from "../../src/attnflow/serve/page/align.js";
import { random } from "./graphs.mjs";

// The most tokens that two texts have in common in one order, tried out.
function mostEqual(first, second) {
  if (first.length === 0 || second.length === 0) return 0;
  const [one, two] = [first.slice(1), second.slice(1)];
  if (first[0] === second[0]) return 1 + mostEqual(one, two);
  return Math.max(mostEqual(one, second), mostEqual(first, two));
}

function check(first, second) {
  const pairs = align(first, second);
  const places = (side) => pairs.map((pair) => pair[side]).filter((place) => place !== null);
  assert.deepEqual(places(0), [...first.keys()]);
  assert.deepEqual(places(1), [...second.keys()]);
  return pairs.filter(([i, j]) => i !== null && j !== null && first[i] === second[j]).length;
}

test("as many equal tokens as possible are paired, and every token is there once, in order", () => {
  const next = random(7);
  for (let trial = 0; trial < 200; trial += 1) {
    const text = () =>
      Array.from({ length: Math.floor(7 * next()) }, () => "abc"[Math.floor(3 * next())]);
    const [first, second] = [text(), text()];
    assert.equal(check(first, second), mostEqual(first, second), `${first} and ${second}`);
  }
});

test("long texts that differ in one place are paired around it, and others in their order", () => {
  const long = Array.from({ length: 9000 }, (_, i) => `${i}`);
  assert.equal(check(long, long.toSpliced(4000, 1, "new")), 8999);
  assert.equal(check(long, long.toSpliced(4000, 1)), 8999);
  check(long, [...long].reverse().slice(1));
});
