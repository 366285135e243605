import assert from "node:assert/strict";
import { test } from "node:test";
import {
  cutSentence,
  describePrediction,
  formatAmong,
  formatScore,
  formatShare,
  formatSigned,
  highest,
  howToRead,
  quote,
  rawFinding,
  saturationSentence,
  TEXT,
  topFinding,
} from "../../src/attnflow/view/page/prose.js";

const plain = (text) => text.replace(/[\u2068\u2069]/g, "");

test("numbers are written in three digits", () => {
  assert.deepEqual([0, 1, 0.5694, 0.0517, 0.00012, 0.99999].map(formatScore), [
    "0",
    "1.00",
    "0.569",
    "0.0517",
    "1.20e-4",
    "1.00",
  ]);
});

test("a number may have its sign", () => {
  assert.deepEqual([0, 1, -0.5694].map(formatSigned), ["0", "+1.00", "-0.569"]);
});

test("a contribution has as many digits as the largest beside it needs", () => {
  const shown = (largest, ...scores) => scores.map((score) => formatAmong(score, largest));
  assert.deepEqual(shown(3.2, 1.5, -0.25, 0, -0.001), ["+1.50", "-0.25", "0.00", "0.00"]);
  assert.deepEqual(shown(0.5, 0.25, -0.25), ["+0.250", "-0.250"]);
  assert.deepEqual(shown(0, 0), ["0.00"]);
  assert.deepEqual(shown(2e6, 1.5e6, -3), ["+1.50e+6", "-3.00e+0"]);
});

test("a share is never rounded to all or nothing", () => {
  assert.deepEqual([0, 0.004, 0.5, 0.996, 1].map(formatShare), [
    "0 %",
    "under 1 %",
    "50 %",
    "over 99 %",
    "100 %",
  ]);
});

test("a name is quoted, shortened and kept from turning the sentence around", () => {
  assert.equal(quote("keys"), "\u201c\u2068keys\u2069\u201d");
  assert.equal(Array.from(plain(quote("a".repeat(10000)))).length, 42);
});

test("the highest scores are those that count, ties in their order", () => {
  assert.deepEqual(highest([0.5, 0.9, 0.5, 0], [true, false, true, true], 3), [0, 2]);
});

test("raw attention to a blended position says little about words", () => {
  const given = {
    where: "layer 6",
    position: "CLS",
    top: "keys",
    weight: 0.3,
    effective: 2.2,
    count: 9,
  };
  assert.match(
    rawFinding({ ...given, own: 0.08 }),
    /about 2 of 9.*keys \(0\.300\).*only 8 %.*little/,
  );
  assert.match(rawFinding({ ...given, own: 0.95 }), /95 %.*own token/);
  assert.match(rawFinding({ ...given, own: null, where: "layer 1" }), /words themselves/);
  assert.match(rawFinding({ ...given, effective: 8.6, own: 0.1 }), /uniformly.*9 of 9/);
});

test("the first token of a decoder is not taken for what it says", () => {
  const given = {
    where: "layer 30",
    position: "river",
    top: "The",
    weight: 0.5,
    effective: 4,
    count: 12,
  };
  assert.match(rawFinding({ ...given, own: 1, sink: true }), /first token/);
  assert.doesNotMatch(rawFinding({ ...given, own: 1 }), /first token/);
});

test("how to read it is one paragraph, and true of what is shown", () => {
  assert.match(howToRead(TEXT), /flows do not add up to 1/);
  const relative = howToRead(TEXT, { special: "CLS", relative: true });
  assert.match(relative, /CLS is not a word.*divided by.*add up to 1/);
  assert.doesNotMatch(relative, /do not add up/);
  assert.ok(!relative.includes("\n"));
});

test("a predicted word is named without the space before it", () => {
  const names = { "\n": "a line break" };
  const named = (label) =>
    plain(describePrediction({ prediction: { label, probability: 0.2 } }, names));
  assert.equal(named(" are"), "\u201care\u201d (20 %)");
  assert.equal(named("\n"), "\u201ca line break\u201d (20 %)");
});

test("flow that hardly tells words apart is said to", () => {
  const given = { method: "flow", where: "layer 6", position: "CLS", relative: false };
  const tops = [
    ["a", 0.57],
    ["b", 0.56],
  ];
  assert.match(topFinding({ ...given, tops, lowest: 0.55 }), /between 0\.550 and 0\.570/);
  assert.doesNotMatch(topFinding({ ...given, tops, lowest: 0.1 }), /between/);
  assert.match(
    topFinding({ ...given, tops, lowest: 0.1, low: 0.5 }),
    /nine of ten of them.*0\.500 and 0\.570/,
  );
  assert.match(topFinding({ ...given, tops: [], lowest: Infinity }), /Nothing reaches/);
});

test("words that score alike are not told apart by their order", () => {
  const given = { method: "flow", where: "layer 6", position: "CLS", relative: false, lowest: 0.2 };
  const tops = [
    ["a", 1],
    ["b", 1],
    ["c", 1],
  ];
  assert.match(
    topFinding({ ...given, tops, alike: 5 }),
    /from 5 words equally, a, b, c and 2 more \(1\.00 each\)\./,
  );
  assert.match(
    topFinding({ ...given, tops, alike: 3 }),
    /from a \(1\.00\), b \(1\.00\) and c \(1\.00\)\./,
  );
  assert.match(topFinding({ ...given, tops, saturated: true }), /the same for any other position/);
  assert.doesNotMatch(topFinding({ ...given, tops }), /any other position/);
});

test("what special tokens take of a rollout is said before the words", () => {
  const given = {
    method: "rollout",
    where: "layer 6",
    position: "CLS",
    relative: false,
    tops: [["a", 0.02]],
  };
  assert.match(
    topFinding({ ...given, lowest: 0, apart: 0.71 }),
    /71 % of CLS .* special tokens; of the words/,
  );
  assert.match(
    topFinding({ ...given, lowest: 0, apart: 0 }),
    /the most of .* comes from a \(0\.0200\)/,
  );
});

test("saturation is said in words, with the layer from which it holds", () => {
  assert.match(saturationSentence(6, 1, 4), /From layer 4 on, flow is saturated: for 100 %/);
  assert.match(saturationSentence(4, 0.97, 4), /In layer 4, flow is saturated/);
  assert.match(saturationSentence(3, 0.6, null), /60 % of the flows are saturated/);
  assert.match(saturationSentence(2, 0.1, null), /still depends on the position/);
  assert.equal(saturationSentence(2, null, null), "");
  const called = (layer) => `decoder layer ${layer}`;
  assert.match(saturationSentence(6, 1, 4, called), /^From decoder layer 4 on/);
});

test("what limits a flow is said: the token, the position, or what lies between", () => {
  const names = (i) => ["CLS", "keys", "the"][i];
  const cut = (kind, edges) => ({
    kind,
    cut: edges,
    value: edges.reduce((sum, e) => sum + e[3], 0),
  });
  assert.match(
    cutSentence(
      cut("token", [
        [1, 0, 1, 0.2],
        [1, 1, 1, 0.2],
      ]),
      "layer 3",
      0,
      1,
      names,
    ),
    /token itself.*2 edges/,
  );
  assert.match(
    cutSentence(cut("position", [[3, 0, 0, 1]]), "layer 3", 0, 1, names),
    /The position limits it/,
  );
  const between = cutSentence(
    cut("between", [
      [3, 0, 2, 0.25],
      [1, 2, 1, 0.125],
    ]),
    "layer 3",
    0,
    1,
    names,
  );
  assert.match(
    between,
    /At most 0\.375 .* keys to CLS in layer 3.*bottleneck.*1 edge into layer 3 \(0\.250/,
  );
  assert.match(between, /The widest of them, 0\.250, goes from the to CLS in layer 3/);
  assert.match(
    cutSentence({ kind: "between", cut: [], value: 0 }, "layer 3", 0, 1, names),
    /Nothing can flow/,
  );
});
