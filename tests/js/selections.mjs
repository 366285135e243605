// Read the data of a generation's page, and print what the page computes of every selection, and of
// the cells of its matrix. For the Python tests.

import { readFileSync } from "node:fs";
import { Cells } from "../../src/attnflow/view/generation/matrix.js";
import { generationJson } from "../../src/attnflow/view/generation/saved.js";
import { Sources } from "../../src/attnflow/view/generation/sources.js";

const data = JSON.parse(readFileSync(0, "utf8"));
const sources = await Sources.read(data);
const found = [[null, sources.of(null)]];
for (let first = 0; first < sources.count; first += 1) {
  for (let last = first; last < sources.count; last += 1) {
    found.push([[first, last], sources.of([first, last])]);
  }
}
const plain = found.map(([selection, { scores, value, bias }]) => [
  selection,
  { scores: Array.from(scores), value, bias },
]);
const cells = new Cells(data, sources);
process.stdout.write(
  JSON.stringify({
    selections: plain,
    columns: cells.columns.map(({ tokens }) => tokens),
    // JSON has no NaN: null stands for it.
    rows: cells.rows.map((row) => Array.from(row)),
    saved: JSON.parse((await generationJson(data, sources.matrix)).join("")),
  }),
);
