// The graphs with known flows that the tests of C++ and Python read, too.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Network } from "../../src/attnflow/view/page/flow.js";
import { graphOf } from "./graphs.mjs";

const file = new URL("../data/golden_graphs.json", import.meta.url);
const UNIT = 2 ** -50;

for (const { name, units, flows } of JSON.parse(readFileSync(file, "utf8")).graphs) {
  test(`flows of the graph "${name}" are those on file`, () => {
    const weights = units.map((rows) => rows.map((row) => row.map((unit) => unit * UNIT)));
    const network = new Network(graphOf(weights, 0));
    for (const [layer, rows] of flows.entries()) {
      for (const [position, row] of rows.entries()) {
        for (const [token, flow] of row.entries()) {
          const found = network.value(layer + 1, position, token);
          assert.ok(Math.abs(found - flow * UNIT) < 1e-6, `${found} is not ${flow * UNIT}`);
        }
      }
    }
  });
}
