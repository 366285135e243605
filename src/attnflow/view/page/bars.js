// Scores with a sign as bars: to the right for the answer, to the left against it.

import { INKS, shade } from "./colour.js";

const BAR_ROW = 25;
// The room that a number needs beside its bar.
const NUMBER_ROOM = 66;

/**
 * Return the drawing of scores as bars. rows are [label, score, score in words], the last line is
 * what they add up to, if value is given. Labels take at most a share of the width.
 */
export function barScene({ rows, value = null, theme, width, fit, most = 0.35 }) {
  const ink = INKS[theme];
  const label = Math.min(
    fit.widest([...rows.map(([name]) => name), "together"], 14, 600),
    width * most,
  );
  const largest = (sign) => Math.max(0, ...rows.map(([, score]) => sign * score));
  const [above, below] = [largest(1), largest(-1)];
  const bars = Math.max(40, Math.min(560, width - label - 14 - NUMBER_ROOM * (below > 0 ? 2 : 1)));
  const unit = bars / (above + below || 1);
  const zero = label + 14 + (below > 0 ? NUMBER_ROOM : 0) + below * unit;
  const shapes = [];
  rows.forEach(([name, score, words], i) => {
    const y = i * BAR_ROW;
    const length = Math.abs(score) * unit;
    const left = score < 0;
    const line = { y: y + BAR_ROW / 2 + 5, size: 14, fill: ink.ink };
    shapes.push(
      { ...line, text: fit(name, label, 14, 400), x: label, anchor: "end" },
      {
        rect: [left ? zero - length : zero, y + 4, Math.max(1, length), BAR_ROW - 8],
        fill: shade(theme, left ? -0.75 : 0.75).hex,
      },
      {
        ...line,
        text: words,
        x: left ? zero - length - 6 : zero + length + 6,
        anchor: left ? "end" : "start",
        size: 13,
      },
    );
  });
  const bottom = rows.length * BAR_ROW;
  shapes.push({ rect: [zero - 0.5, 0, 1, bottom], fill: ink.muted });
  if (value !== null) {
    const total = { y: bottom + BAR_ROW / 2 + 9, size: 14, weight: 700, fill: ink.ink };
    shapes.push(
      { rect: [0, bottom + 3, zero + above * unit + NUMBER_ROOM, 1], fill: ink.line },
      { ...total, text: "together", x: label, anchor: "end" },
      { ...total, text: value, x: zero + 6 },
    );
  }
  return { width, height: bottom + (value === null ? 0 : BAR_ROW + 8), shapes };
}
