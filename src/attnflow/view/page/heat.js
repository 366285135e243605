// Heat maps of the methods, side by side: a token a row, a layer a column.

import { INKS, shade } from "./colour.js";
import { METHODS } from "./prose.js";

const ROW = 22;
const HEAD = 46;
const GAP = 22;

/** Return where the parts of the heat maps are, for a width in pixels. */
export function heatLayout(width, layers, methods, labelWidth) {
  const label = Math.max(48, Math.min(labelWidth + 18, 190, Math.round(width * 0.24)));
  const room = (width - label - GAP * (methods.length - 1) - 14) / Math.max(1, methods.length);
  const cell = Math.max(3, Math.min(52, room / layers));
  const blocks = methods.map((method, i) => ({
    method,
    x: label + 12 + i * (cell * layers + GAP),
    width: cell * layers,
  }));
  const last = blocks[blocks.length - 1];
  const whole = last ? last.x + last.width + 2 : label;
  return { label, cell, layers, row: ROW, head: HEAD, blocks, width: whole };
}

/** Return the median of some scores; NaN if there is none. */
export function median(scores) {
  const sorted = Float64Array.from(scores).sort();
  const middle = sorted.length / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle) - 1]) / 2;
}

// The share of scores that a relative scale tells apart: of a long text, a few tokens have most, and
// would leave one colour for all others.
const BELOW_TOP = 0.98;

/**
 * Return the scores that are shown by no colour and by the strongest: {low, top}. That is from 0 to
 * the highest score that is counted. If relative, it is from the median of those counted to the
 * score that only one in fifty exceeds.
 */
export function scaleOf(scores, counted, relative = false) {
  const sorted = Float64Array.from(scores.filter((_, i) => counted[i])).sort();
  if (sorted.length === 0) return { low: 0, top: 0 };
  if (!relative) return { low: 0, top: Math.max(0, sorted.at(-1)) };
  return { low: median(sorted), top: sorted[Math.ceil(BELOW_TOP * sorted.length) - 1] };
}

/** Return scores as shares of the scale's range, from 0 to 1 for those that are counted. */
export function relativeShades(scores, counted, relative = false) {
  const { low, top } = scaleOf(scores, counted, relative);
  const range = top - low;
  const most = relative ? 1 : Number.POSITIVE_INFINITY;
  return scores.map((score) =>
    range > 0 ? Math.min(most, Math.max(0, score - low) / range) : Number(relative && score > low),
  );
}

/**
 * Return the drawing of the heat maps.
 *
 * rows are the tokens shown, from the top; rowShares(method, layer) gives the shares of the highest
 * score, or null while they are not known.
 */
export function heatScene({ layout, numbers, state, theme, rows, counted, rowShares, fit, head }) {
  const ink = INKS[theme];
  const shapes = [];
  const { cell, label, blocks, layers } = layout;
  const top = head ? HEAD : 0;
  const bottom = top + rows.length * ROW;
  const step = [1, 2, 3, 5, 10].find((every) => every * cell >= 15) ?? 20;
  for (const { method, x } of blocks) {
    const active = method === state.method;
    if (head) {
      shapes.push({
        text: METHODS[method][cell * layers < 110 ? "short" : "name"],
        x,
        y: 16,
        size: 13,
        weight: active ? 700 : 500,
        fill: active ? ink.ink : ink.muted,
      });
    }
    for (let layer = 1; layer <= layers; layer += 1) {
      const left = x + (layer - 1) * cell;
      const chosen = layer === state.layer;
      if (head && (chosen || (layer % step === 0 && Math.abs(layer - state.layer) * cell >= 13))) {
        shapes.push({
          text: cell >= 24 ? `L${layer}` : `${layer}`,
          x: left + cell / 2,
          y: HEAD - 8,
          size: 11,
          anchor: "middle",
          weight: chosen ? 700 : 400,
          fill: chosen ? ink.ink : ink.muted,
        });
      }
      const shares = rowShares(method, layer);
      rows.forEach((token, i) => {
        const y = top + i * ROW;
        const rect = [left + 0.5, y + 0.5, Math.max(1, cell - 1), ROW - 1];
        if (shares) shapes.push({ rect, fill: shade(theme, shares[token], !counted[token]).hex });
        else shapes.push({ rect, fill: ink.line, opacity: 0.35 });
      });
    }
    if (state.layer && rows.length) {
      shapes.push({
        rect: [x + (state.layer - 1) * cell, top, cell, bottom - top],
        stroke: active ? ink.ink : ink.muted,
        width: active ? 2 : 1,
      });
    }
  }
  rows.forEach((token, i) => {
    const y = top + i * ROW;
    const here = token === state.position;
    if (token === state.token) {
      shapes.push({
        rect: [0.5, y + 0.5, layout.width - 1, ROW - 1],
        stroke: ink.cut,
        width: 1.25,
      });
    }
    shapes.push({
      text: `${here ? "▸ " : ""}${fit(numbers.labels[token], label - (here ? 14 : 2), 12.5, here ? 700 : 400)}`,
      x: label + 4,
      y: y + ROW / 2 + 4.5,
      size: 12.5,
      anchor: "end",
      weight: here ? 700 : 400,
      italic: numbers.special[token],
      fill: numbers.special[token] ? ink.muted : ink.ink,
    });
  });
  return { width: layout.width, height: bottom, shapes };
}

/** Return what is at a point of the heat maps: {method, layer, token}, or null. */
export function heatAt(layout, numbers, x, y) {
  const token = Math.floor(y / ROW);
  if (token < 0 || token >= numbers.tokens) return null;
  for (const block of layout.blocks) {
    const layer = Math.floor((x - block.x) / layout.cell) + 1;
    if (x >= block.x && layer >= 1 && layer <= layout.layers) {
      return { method: block.method, layer, token };
    }
  }
  return x <= layout.label + 8 ? { method: null, layer: null, token } : null;
}
