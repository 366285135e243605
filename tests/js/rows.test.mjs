// The rows of a data set: searching, ordering and paging, on their own.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  answersOf,
  found,
  paged,
  searchText,
  select,
} from "../../src/attnflow/view/browse/rows.js";

function row(number, words, answer, probability, saturation = null) {
  const pieces = [["[CLS]", [0]]];
  for (const [i, word] of words.entries()) pieces.push([" ", []], [word, [i + 1]]);
  const made = {
    row: number,
    id: `k${number}`,
    pieces,
    scores: [9, ...words.map((_, i) => (i + 1) / 10)],
    special: [0],
    answer,
    probability,
    saturation,
  };
  return { ...made, search: searchText(made) };
}

const ROWS = [
  row(0, ["the", "keys"], "plural", 0.9, 0.5),
  row(1, ["The", "KEY", "turns"], "singular", 0.6, null),
  row(2, ["turnkey", "homes"], "plural", 0.99, 1),
  row(3, ["café"], null, null, 0),
];
const numbers = (rows) => rows.map(({ row: number }) => number);

test("rows are found by their text, id and answer, whatever the case and the accents", () => {
  assert.deepEqual(numbers(select(ROWS, { query: "KEY" })), [0, 1, 2]);
  assert.deepEqual(numbers(select(ROWS, { query: " the key " })), [0, 1]);
  assert.deepEqual(numbers(select(ROWS, { query: "k2" })), [2]);
  assert.deepEqual(numbers(select(ROWS, { query: "singular" })), [1]);
  assert.deepEqual(numbers(select(ROWS, { query: "cafe\u0301" })), [3]);
  assert.deepEqual(numbers(select(ROWS, { query: "[cls]" })), []);
  assert.deepEqual(numbers(select(ROWS, { query: "", answer: "plural" })), [0, 2]);
});

test("rows that lack what the order goes by come last", () => {
  assert.deepEqual(numbers(select(ROWS, { order: "unsure" })), [1, 0, 2, 3]);
  assert.deepEqual(numbers(select(ROWS, { order: "sure" })), [2, 0, 1, 3]);
  assert.deepEqual(numbers(select(ROWS, { order: "saturated" })), [2, 0, 3, 1]);
  assert.deepEqual(numbers(select(ROWS, { order: "unsaturated" })), [3, 0, 2, 1]);
});

test("a word that is searched for comes before words that it is a part of", () => {
  assert.deepEqual(found(ROWS[1], "key"), { text: "KEY", score: 0.2, whole: true });
  assert.deepEqual(found(ROWS[0], "key"), { text: "keys", score: 0.2, whole: false });
  assert.equal(found(ROWS[3], "key"), null);
  assert.deepEqual(numbers(select(ROWS, { query: "key", order: "found" })), [1, 0, 2]);
  assert.deepEqual(numbers(select(ROWS, { query: "key", order: "missed" })), [1, 2, 0]);
  assert.deepEqual(numbers(select(ROWS, { query: "", order: "found" })), [0, 1, 2, 3]);
});

test("answers are counted, the most frequent first", () => {
  assert.deepEqual(answersOf(ROWS), [
    ["plural", 2],
    ["singular", 1],
  ]);
});

test("a page that is not there is the nearest that is", () => {
  assert.deepEqual(paged([1, 2, 3, 4, 5], 2, 2), { page: 2, pages: 3, items: [3, 4] });
  assert.deepEqual(paged([1, 2, 3, 4, 5], 9, 2), { page: 3, pages: 3, items: [5] });
  assert.deepEqual(paged([], 1, 2), { page: 1, pages: 1, items: [] });
});
