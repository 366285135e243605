// The page as a figure, for files. Its parts are drawings, and texts {text, size, weight, quiet}.

import { INKS } from "./colour.js";

const WIDTH = 960;
const MARGIN = 28;
/** How wide a part of a figure may be. */
export const INNER = WIDTH - 2 * MARGIN;

/** Return parts as one drawing, one below the other. */
export function figureOf(parts, { theme, fit }) {
  const ink = INKS[theme];
  const shapes = [];
  let y = MARGIN + 14;
  for (const part of parts) {
    if (part.shapes) {
      shapes.push(...part.shapes.map((shape) => moved(shape, MARGIN, y)));
      y += part.height + 18;
      continue;
    }
    const { text, size, weight = 400, quiet = false } = part;
    const fill = quiet ? ink.muted : ink.ink;
    for (const line of wrapped(text, (words) => fit(words, INNER, size, weight) === words)) {
      shapes.push({ text: line, x: MARGIN, y, size, weight, fill });
      y += size * 1.45;
    }
    y += size * 0.35;
  }
  const height = y + MARGIN / 2;
  const paper = { rect: [0, 0, WIDTH, height], fill: ink.paper };
  return { width: WIDTH, height, shapes: [paper, ...shapes] };
}

function wrapped(text, fits) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (line && !fits(longer)) {
      lines.push(line);
      line = word;
    } else line = longer;
  }
  return line ? [...lines, line] : lines;
}

function moved(shape, x, y) {
  if (shape.rect) {
    const [left, top, width, height] = shape.rect;
    return { ...shape, rect: [left + x, top + y, width, height] };
  }
  if (shape.circle) {
    const [cx, cy, r] = shape.circle;
    return { ...shape, circle: [cx + x, cy + y, r] };
  }
  if (shape.curve) {
    const [x1, y1, x2, y2] = shape.curve;
    return { ...shape, curve: [x1 + x, y1 + y, x2 + x, y2 + y] };
  }
  return { ...shape, x: shape.x + x, y: shape.y + y };
}
