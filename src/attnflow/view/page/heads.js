// Single heads as drawings: a small map of each, and several laid over each other.

import { INKS, shade } from "./colour.js";

const ROW = 22;
const MOST_ROWS = 32;
const MOST_LINES = 400;
// A thinner line says nothing.
const THINNEST = 0.02;

/** The colours of heads that are drawn over each other, in each theme. */
export const HEAD_INKS = {
  light: ["#2a4fb4", "#c2410c", "#0f766e", "#9333ea", "#8a6100", "#be185d"],
  dark: ["#9db8ff", "#ffa05c", "#5eead4", "#d8b4fe", "#fcd34d", "#f9a8d4"],
};

/**
 * Return the order of all heads, each as {layer, head, value}: by layer, or those that add most to
 * the answer first, whatever their sign. values has what each adds, or is null.
 */
export function headsInOrder(layers, heads, values, order) {
  const every = Array.from({ length: layers * heads }, (_, i) => {
    const [layer, head] = [Math.floor(i / heads) + 1, i % heads];
    return { layer, head, value: values?.[layer - 1]?.[head] ?? null };
  });
  if (order === "answer") every.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  return every;
}

/**
 * Paint the attention of a head, n x n, on a canvas of as many pixels: a row attends, a column is
 * attended to. share is what the head adds, from -1 to 1 of the largest: its sign gives the hue, and
 * its size how strong the colours are.
 */
export function paintHead(canvas, weights, tokens, theme, share) {
  canvas.width = tokens;
  canvas.height = tokens;
  const context = canvas.getContext("2d");
  const image = context.createImageData(tokens, tokens);
  const strength = Math.sign(share || 1) * (0.15 + 0.85 * Math.sqrt(Math.abs(share)));
  const colours = Array.from({ length: 65 }, (_, i) => {
    const { hex } = shade(theme, strength * (i / 64));
    return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
  });
  for (let row = 0; row < tokens; row += 1) {
    let most = 0;
    for (let i = 0; i < tokens; i += 1) most = Math.max(most, weights[row * tokens + i]);
    for (let i = 0; i < tokens; i += 1) {
      const part = most > 0 ? weights[row * tokens + i] / most : 0;
      image.data.set(colours[Math.round(64 * part)], 4 * (row * tokens + i));
      image.data[4 * (row * tokens + i) + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

/**
 * Return the drawing of heads laid over each other: a line from a token at the left to each that it
 * attends to, at the right. heads are {weights, ink}, position is the token whose lines are drawn
 * alone, or null; rows are the tokens drawn.
 */
export function overlayScene({ heads, labels, special, rows, position, theme, width, fit }) {
  const tokens = labels.length;
  const ink = INKS[theme];
  const room = Math.min(200, width * 0.3);
  const [left, right] = [room + 8, Math.min(width, 720) - room - 8];
  const rowOf = new Map(rows.map((token, i) => [token, i]));
  const yOf = (token) => (rowOf.get(token) + 0.5) * ROW + 4;
  const lines = [];
  for (const { weights, ink: stroke } of heads) {
    for (const from of rows) {
      if (position !== null && from !== position) continue;
      for (const to of rows) {
        const weight = weights[from * tokens + to];
        if (weight > THINNEST) lines.push({ from, to, weight, stroke });
      }
    }
  }
  lines.sort((a, b) => b.weight - a.weight);
  const shapes = lines
    .slice(0, MOST_LINES)
    .reverse()
    .map(({ from, to, weight, stroke }) => ({
      curve: [left, yOf(from), right, yOf(to)],
      stroke,
      width: 0.6 + 4 * weight,
      opacity: 0.2 + 0.75 * weight,
    }));
  for (const token of rows) {
    const line = {
      y: yOf(token) + 4.5,
      size: 12.5,
      italic: special[token],
      fill: special[token] ? ink.muted : ink.ink,
    };
    const weight = token === position ? 700 : 400;
    shapes.push(
      {
        ...line,
        text: fit(labels[token], room, 12.5, weight),
        x: left - 8,
        anchor: "end",
        weight,
        key: token,
      },
      { ...line, text: fit(labels[token], room, 12.5, 400), x: right + 8 },
    );
  }
  return { width, height: rows.length * ROW + 8, shapes };
}

/** Return the tokens whose rows are drawn: all, or those that some head attends to most. */
export function overlayRows(heads, tokens, position) {
  if (tokens <= MOST_ROWS) return Array.from({ length: tokens }, (_, i) => i);
  const weight = new Float64Array(tokens);
  for (const { weights } of heads) {
    for (let from = 0; from < tokens; from += 1) {
      for (let to = 0; to < tokens; to += 1) {
        const size = weights[from * tokens + to];
        weight[to] = Math.max(
          weight[to],
          position === null || from === position ? size : size / 1e3,
        );
      }
    }
  }
  if (position !== null) weight[position] = Infinity;
  return Array.from(weight.keys())
    .sort((a, b) => weight[b] - weight[a] || a - b)
    .slice(0, MOST_ROWS)
    .sort((a, b) => a - b);
}
