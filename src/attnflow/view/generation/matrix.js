// The matrix of an answer: a row for each new token, a column for each token before it, or for each
// sentence of a long prompt.

import { INKS, shade } from "../page/colour.js";
import { scaleOf } from "../page/heat.js";
import { cutShort } from "../page/prose.js";
import { topOf } from "./sources.js";

const ROW = 20;
// How narrow a column may be before the matrix is scrolled, and how wide it gets.
const NARROWEST = 4;
const WIDEST = 30;
// Columns that are as wide have their names above them, and a mark in cells below 0.
const NAMED_FROM = 13;
const NAME_ROOM = 96;
const MARKED_BELOW = -0.08;

/** The cells of a matrix: its columns, what they are called, and how they are shaded. */
export class Cells {
  constructor(data, sources) {
    const { labels, sentences, messages } = data;
    const own = sources.ownColumns;
    const prompt = sentences
      ? sentences.groups
      : labels.map((_, i) => [i]).filter(([i]) => !sources.own[i]);
    const said = new Map();
    for (const { unit, pieces } of sentences?.rows ?? []) {
      if (unit !== undefined)
        said.set(
          unit,
          pieces
            .map(([text]) => text)
            .join("")
            .trim(),
        );
    }
    this.names = data.names;
    this.signed = data.signed;
    this.columns = [
      ...joined(prompt, sources).map((tokens) => ({
        name: said.get(prompt.indexOf(tokens)) ?? tokens.map((i) => labels[i]).join(" "),
        tokens,
        special: tokens.every((i) => sources.special[i]),
        own: false,
      })),
      ...own.map((i) => ({
        name: labels[i],
        tokens: [i],
        special: sources.special[i],
        own: true,
      })),
    ];
    this.rows = sources.matrix.map((scores) =>
      Float64Array.from(this.columns, ({ tokens }) => {
        const known = tokens.filter((i) => !Number.isNaN(scores[i]));
        return known.length ? known.reduce((sum, i) => sum + scores[i], 0) : Number.NaN;
      }),
    );
    // Where each part begins: the messages of a chat, and the answer.
    const starts = messages.map(([name, tokens]) => {
      const inside = new Set(tokens);
      return [name, this.columns.findIndex((column) => column.tokens.some((i) => inside.has(i)))];
    });
    if (starts.length === 0) starts.push(["prompt", 0]);
    if (own.length) starts.push(["answer", this.columns.length - own.length]);
    this.starts = starts.filter(([, start]) => start >= 0);
    const usual = this.rows.flatMap((row) =>
      Array.from(row).filter((score, i) => !Number.isNaN(score) && !this.columns[i].special),
    );
    if (this.signed) this.scale = { low: 0, top: topOf(usual) };
    else {
      this.scale = scaleOf(
        usual,
        usual.map(() => true),
        usual.length >= 100,
      );
    }
    this.largest = usual.reduce((most, score) => Math.max(most, Math.abs(score)), 0);
  }

  /** Return the share of a score of the scale, from -1 to 1. */
  share(score) {
    const { low, top } = this.scale;
    if (!(top > low)) return 0;
    const share = this.signed ? score / top : Math.max(0, score - low) / (top - low);
    return Math.max(-1, Math.min(1, share));
  }
}

// Special tokens that follow each other, such as those between two messages, are one column.
function joined(prompt, sources) {
  const found = [];
  let before = null;
  for (const tokens of prompt) {
    const special = tokens.every((i) => sources.special[i]);
    if (special && before) before.push(...tokens);
    else if (special) {
      before = [...tokens];
      found.push(before);
    } else {
      before = null;
      found.push(tokens);
    }
  }
  return found;
}

/** Return where the parts of the matrix are, for a width in pixels. */
export function matrixLayout(width, cells, fit, narrowest = NARROWEST) {
  const label = Math.min(150, 18 + fit.widest(cells.names, 12.5, 400));
  const room = Math.max(40, width - label - 6);
  const cell = Math.min(WIDEST, Math.max(narrowest, room / cells.columns.length));
  const named = cell >= NAMED_FROM;
  const names = cells.columns.map(({ name }) => cutShort(name, 40));
  const high = named ? Math.min(NAME_ROOM, fit.widest(names, 12, 400)) + 8 : 0;
  return {
    label,
    cell,
    named,
    width: Math.min(width, label + 6 + cell * cells.columns.length),
    across: cell * cells.columns.length,
    down: ROW * cells.rows.length,
    head: 20 + high,
    row: ROW,
  };
}

/**
 * Return the drawing of some rows of the matrix, as far as they are seen: left is how far it is
 * scrolled. Its head is drawn above the rows, or alone if there are none.
 */
export function matrixScene({
  cells,
  layout,
  rows,
  left = 0,
  theme,
  fit,
  selection,
  cursor,
  head,
}) {
  const ink = INKS[theme];
  const { label, cell, width } = layout;
  const begin = label + 6;
  const first = Math.floor(left / cell);
  const last = Math.min(cells.columns.length, Math.ceil((left + width - begin) / cell) + 1);
  const top = head ? layout.head : 0;
  const gap = cell >= 6 ? 1 : 0;
  const x = (column) => begin + column * cell - left;
  const shapes = [];
  rows.forEach((row, i) => {
    const y = top + i * ROW;
    for (let column = first; column < last; column += 1) {
      const score = cells.rows[row][column];
      if (Number.isNaN(score)) continue;
      const share = cells.share(score);
      const colour = shade(theme, share, cells.columns[column].special);
      shapes.push({
        rect: [x(column), y + 0.5, Math.max(0.5, cell - gap), ROW - 1],
        fill: colour.hex,
      });
      if (share < MARKED_BELOW && cell >= NAMED_FROM && !cells.columns[column].special) {
        shapes.push({ rect: [x(column) + cell / 2 - 3, y + ROW / 2, 6, 1.2], fill: colour.ink });
      }
    }
  });
  const bottom = top + rows.length * ROW;
  if (cursor && rows.includes(cursor.row)) {
    const y = top + rows.indexOf(cursor.row) * ROW;
    shapes.push({ rect: [x(cursor.column), y, cell, ROW], stroke: ink.cut, width: 2 });
  }
  if (rows.length) {
    for (const [, start] of cells.starts.slice(1)) {
      if (start < first) continue;
      shapes.push({ rect: [x(start) - 0.5 - gap / 2, top, 1, bottom - top], fill: ink.muted });
    }
  }
  const chosen = rows.filter((row) => selection && row >= selection[0] && row <= selection[1]);
  if (chosen.length) {
    const y = top + rows.indexOf(chosen[0]) * ROW;
    shapes.push({
      rect: [1, y + 0.5, width - 2, chosen.length * ROW - 1],
      stroke: ink.ink,
      width: 1.5,
    });
  }
  // Names stay where they are when the matrix is scrolled.
  if (left > 0) shapes.push({ rect: [0, top, begin, bottom - top], fill: ink.paper });
  rows.forEach((row, i) => {
    const on = chosen.includes(row);
    shapes.push({
      text: fit(cells.names[row], label - 8, 12.5, on ? 700 : 400),
      x: label,
      y: top + i * ROW + ROW / 2 + 4.5,
      size: 12.5,
      anchor: "end",
      weight: on ? 700 : 400,
      fill: ink.ink,
    });
  });
  if (head) shapes.push(...headShapes({ cells, layout, first, last, x, fit, ink, begin, left }));
  return { width, height: bottom, shapes };
}

// The names of the parts and, where there is room, of the columns.
function headShapes({ cells, layout, first, last, x, fit, ink, begin, left }) {
  const shapes = [];
  if (layout.named) {
    for (let column = first; column < last; column += 1) {
      const { name, special, own } = cells.columns[column];
      shapes.push({
        text: fit(name, NAME_ROOM, 12, 400),
        x: x(column) + layout.cell / 2 + 4,
        y: layout.head - 4,
        size: 12,
        turn: -90,
        italic: own,
        fill: special ? ink.muted : ink.ink,
      });
    }
  }
  if (left > 0) shapes.push({ rect: [0, 0, begin, layout.head], fill: ink.paper });
  cells.starts.forEach(([name, start], i) => {
    const end = cells.starts[i + 1]?.[1] ?? cells.columns.length;
    const from = Math.max(begin, x(start));
    const room = x(end) - from - 8;
    const text = room > 12 ? fit(name, room, 12, 600) : "";
    if (text.length > 1)
      shapes.push({ text, x: from, y: 12, size: 12, weight: 600, fill: ink.muted });
  });
  return shapes;
}

/** Return what is at a point of the matrix, {row, column}; column is null on the names; or null. */
export function matrixAt(layout, cells, x, y, left) {
  const row = Math.floor(y / ROW);
  if (row < 0 || row >= cells.rows.length) return null;
  const column = Math.floor((x - layout.label - 6 + left) / layout.cell);
  if (x < layout.label + 6) return { row, column: null };
  return column < cells.columns.length ? { row, column } : null;
}
