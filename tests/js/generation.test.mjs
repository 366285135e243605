import assert from "node:assert/strict";
import { test } from "node:test";
import { tell } from "../../src/attnflow/view/generation/added.js";
import {
  Cells,
  matrixAt,
  matrixLayout,
  matrixScene,
} from "../../src/attnflow/view/generation/matrix.js";
import { between, fromHash, has, toHash } from "../../src/attnflow/view/generation/selection.js";
import { Sources, topOf } from "../../src/attnflow/view/generation/sources.js";
import { originSentence } from "../../src/attnflow/view/generation/words.js";
import { toSvg } from "../../src/attnflow/view/page/scene.js";

const NONE = Number.NaN;

// Two tokens written after two of the prompt, of which the first is special.
function made({
  signed = true,
  matrix = [
    [5, 1, NONE],
    [3, -2, 0.5],
  ],
} = {}) {
  const data = {
    generation: {
      whole: {
        tokens: ["<s>", "keys", " are"],
        special: [true, false, false],
        scores: [8, -1, 0.5],
        value: 7.75,
        bias: 0.25,
        method: signed ? "contribution" : "rollout",
        options: {},
      },
      // The first has no bias of its own: it is that of the whole.
      explanations: [{ value: 6.25 }, { value: 1.5, bias: 0 }],
      written: [false, false, true],
    },
    labels: ["<s>", "keys", "are"],
    names: ["are", "on"],
    messages: [],
    patches: [],
    stretches: [],
    sentences: null,
    special: "special tokens",
    unit: "token",
    signed,
  };
  return {
    data,
    sources: new Sources(
      data,
      matrix.map((row) => Float64Array.from(row)),
    ),
  };
}

test("a selection is kept in an address and read from it", () => {
  for (const selection of [null, [0, 0], [3, 12]]) {
    assert.deepEqual(fromHash(toHash(selection)), selection);
  }
  for (const text of ["", "tokens=", "tokens=a", "tokens=1-", "tokens=-1", "layer=3"]) {
    assert.equal(fromHash(text), null);
  }
  assert.deepEqual(between(4, 2), [2, 4]);
  assert.deepEqual(
    [1, 2, 4, 5].map((token) => has([2, 4], token)),
    [false, true, true, false],
  );
  assert.equal(has(null, 0), false);
});

test("only tokens that were written are selected", () => {
  const { sources } = made();
  assert.deepEqual(sources.checked([0, 1]), [0, 1]);
  for (const bad of [[0, 2], [1, 0], [-1, 0], [0.5, 1], ["0", 1], null, undefined, 3]) {
    assert.equal(sources.checked(bad), null);
  }
});

test("scores of a span add up, and those of attention are a mean", () => {
  const { sources } = made();
  assert.deepEqual(Array.from(sources.of([0, 1]).scores), [8, -1, 0.5]);
  assert.equal(sources.of([0, 1]).value, 7.75);
  assert.equal(sources.of([0, 1]).bias, 0.25);
  assert.deepEqual(Array.from(sources.of([0, 0]).scores), [5, 1, 0]);
  const even = made({ signed: false }).sources;
  assert.deepEqual(Array.from(even.of([0, 1]).scores), [4, -0.5, 0.25]);
  assert.equal(even.of([0, 1]).value, null);
});

test("full colour is the largest score, unless it leaves one colour for all others", () => {
  assert.equal(topOf([]), 0);
  assert.equal(topOf([NONE, -2, 1]), 2);
  assert.equal(topOf([-20, 2, 1]), 20);
  const many = Array.from({ length: 100 }, (_, i) => i + 1);
  assert.equal(topOf([...many, 1e6]), 99);
  assert.equal(topOf(Array.from({ length: 100 }, (_, i) => (i === 7 ? 3 : 0))), 3);
});

test("a first token far above the others leaves them their colours", () => {
  const { data, sources } = made();
  data.generation.whole.special[0] = false;
  assert.equal(sources.top(Float64Array.of(8, -1, 0.5)), 1);
  assert.equal(sources.top(Float64Array.of(1.5, -1, 0.5)), 1.5);
  assert.equal(sources.top(Float64Array.of(1, -9, 0.5)), 9);
  assert.equal(sources.top(Float64Array.of(3, 0, 7)), 3);
  data.generation.whole.special[0] = true;
  assert.equal(sources.isSink(Float64Array.of(8, -1, 0.5)), false);
});

test("what an answer came from is said in a sentence", () => {
  const write = (score) => score.toFixed(1);
  const given = { name: null, against: null, own: null, sink: false, signed: true, write };
  const say = (changes) => originSentence({ ...given, tops: [["a", 2]], ...changes });
  assert.equal(say({}), "Of the prompt, the answer came most from a (2.0).");
  assert.match(
    say({
      tops: [
        ["a", 3],
        ["b", 2],
        ["c", 1],
      ],
    }),
    /from a \(3.0\), b \(2.0\) and c/,
  );
  assert.match(say({ name: "x", tops: [] }), /^Nothing in the prompt speaks for x\.$/);
  assert.match(say({ against: ["b", -1] }), /B speaks most against it \(-1.0\)\.$/);
  assert.match(say({ own: 4 }), /What was already written added 4\.0\.$/);
  assert.match(say({ own: 0.5, name: "x", signed: false }), /The answer before it has 0\.5\.$/);
  assert.match(say({ sink: true }), /first token/);
});

test("parts of the input add up to the answer", () => {
  const { data, sources } = made();
  const told = tell(data, sources, null, null);
  assert.deepEqual(
    told.parts.rows.map(([name, score]) => [name, score]),
    [
      ["the prompt", -1],
      ["special tokens", 8],
      ["the answer itself", 0.5],
      ["biases of the model", 0.25],
    ],
  );
  assert.equal(told.parts.value, "+7.75");
  const lacking = made();
  lacking.data.generation.whole.value = 9;
  const rows = tell(lacking.data, lacking.sources, null, null).parts.rows;
  assert.deepEqual(rows.at(-1).slice(0, 2), ["not accounted for", 1.25]);
});

const fit = (text) => text;
fit.widest = (texts) => Math.max(...texts.map((text) => 7 * text.length));

test("special tokens that follow each other are one column of the matrix", () => {
  const { data, sources } = made();
  data.generation.whole.special.splice(1, 1, true);
  const cells = new Cells(data, sources);
  assert.deepEqual(
    cells.columns.map(({ tokens }) => tokens),
    [[0, 1], [2]],
  );
  assert.deepEqual(Array.from(cells.rows[1]), [1, 0.5]);
  assert.ok(Number.isNaN(cells.rows[0][1]));
});

test("a point of the matrix is found in its row and column", () => {
  const { data, sources } = made();
  const cells = new Cells(data, sources);
  const layout = matrixLayout(400, cells, fit);
  for (let row = 0; row < 2; row += 1) {
    for (let column = 0; column < 3; column += 1) {
      const x = layout.label + 6 + (column + 0.5) * layout.cell;
      assert.deepEqual(matrixAt(layout, cells, x, (row + 0.5) * layout.row, 0), { row, column });
      // The same, scrolled by a column.
      if (column) {
        const found = matrixAt(layout, cells, x - layout.cell, row * layout.row, layout.cell);
        assert.deepEqual(found, { row, column });
      }
    }
  }
  assert.deepEqual(matrixAt(layout, cells, 3, 3, 0), { row: 0, column: null });
  assert.equal(matrixAt(layout, cells, 3, 1000, 0), null);
  assert.equal(matrixAt(layout, cells, 399, 3, 0), null);
});

test("cells that were not written yet are not drawn, and names of columns are turned", () => {
  const { data, sources } = made();
  const cells = new Cells(data, sources);
  const layout = matrixLayout(400, cells, fit);
  const { shapes } = matrixScene({
    cells,
    layout,
    rows: [0, 1],
    theme: "light",
    fit,
    selection: [1, 1],
    cursor: null,
    head: true,
  });
  const drawn = shapes.filter(({ rect, fill }) => rect && fill && rect[3] === layout.row - 1);
  assert.equal(drawn.length, 5);
  assert.deepEqual(
    shapes.filter(({ turn }) => turn).map(({ text }) => text),
    ["<s>", "keys", "are"],
  );
  assert.equal(shapes.filter(({ stroke }) => stroke).length, 1);
  const elements = [];
  const element = () => {
    const made = { attributes: {}, append: (...children) => elements.push(...children) };
    made.setAttribute = (name, value) => {
      made.attributes[name] = value;
    };
    return made;
  };
  toSvg({ createElementNS: element }, { width: 1, height: 1, shapes });
  const turned = elements.filter(({ attributes }) => attributes.transform);
  assert.equal(turned.length, 3);
  assert.match(turned[0].attributes.transform, /^rotate\(-90 [\d.]+ [\d.]+\)$/);
});
