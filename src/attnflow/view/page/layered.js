// The layered graph as a drawing: a token a row, the input at the left, each layer one column
// further right.

import { INKS, shade } from "./colour.js";

const MOST_ROWS = 30;
const MOST_EDGES = 260;
const GRAPH_ROW = 24;
const GRAPH_HEAD = 34;

/** Return the tokens whose rows are drawn, in their order: those that matter most, if too many. */
export function graphRows(numbers, { sizes, source, sink }) {
  const { tokens } = numbers;
  if (tokens <= MOST_ROWS) return Array.from({ length: tokens }, (_, i) => i);
  const weight = new Float64Array(tokens);
  for (const level of sizes) {
    for (let k = 0; k < tokens; k += 1) weight[k] = Math.max(weight[k], level[k]);
  }
  for (const token of [source, sink]) if (token !== null) weight[token] = Infinity;
  return Array.from(weight.keys())
    .sort((a, b) => weight[b] - weight[a] || a - b)
    .slice(0, MOST_ROWS)
    .sort((a, b) => a - b);
}

/**
 * Return the drawing of routes, with the places of its nodes. node is a chosen one, as [layer,
 * token]: what does not pass through it is drawn paler; null if none is.
 */
export function graphScene({ numbers, routes, node, theme, width, fit, labelWidth }) {
  const ink = INKS[theme];
  const { masses, unit, top, columns, source, sink } = routes;
  const rows = graphRows(numbers, routes);
  const rowOf = new Map(rows.map((token, i) => [token, i]));
  const label = Math.max(48, Math.min(labelWidth + 4, 190, width * 0.24));
  const left = label + 22;
  const right = width - 26;
  const xOf = (layer) => left + ((right - left) * layer) / columns;
  const yOf = (token) => GRAPH_HEAD + (rowOf.get(token) + 0.5) * GRAPH_ROW;
  const shapes = [
    ...columnNames({ numbers, ink, top, columns, xOf }),
    ...gaps({ rows, ink, from: label * 0.4, to: width - 8 }),
  ];

  const drawn = drawnEdges(routes, rowOf, node);
  const largest = drawn.reduce((most, { weight }) => Math.max(most, Math.abs(weight)), 0);
  for (const edge of drawn) {
    const share = largest > 0 ? Math.abs(edge.weight) / largest : 0;
    const sign = edge.weight < 0 ? -1 : 1;
    const colour = edge.quiet ? ink.muted : shade(theme, sign * (0.45 + 0.55 * share)).hex;
    const opacity = edge.quiet ? 0.08 + 0.35 * share : 0.4 + 0.55 * share;
    edge.curve = [xOf(edge.layer - 1), yOf(edge.to), xOf(edge.layer), yOf(edge.from)];
    shapes.push({
      curve: edge.curve,
      stroke: edge.cut ? ink.cut : colour,
      width: 0.7 + 6.3 * share,
      opacity: edge.aside ? 0.16 * opacity : opacity,
      // What speaks against the answer, for those who see no difference in hue.
      dash: edge.cut ? [5, 3] : sign < 0 ? [2, 2.5] : undefined,
    });
  }

  const nodes = [];
  for (let layer = 0; layer <= columns; layer += 1) {
    for (const token of rows) {
      // Who passes a layer is the same node as below.
      if (layer > 0 && numbers.graph.passes(layer, token)) continue;
      const mass = layer <= top ? masses[layer][token] : 0;
      const share = Math.min(1, Math.sqrt(Math.abs(mass) / unit));
      const here = layer === top && token === source;
      const chosen = node !== null && layer === node[0] && token === node[1];
      if (here || chosen || (layer === 0 && token === sink)) {
        shapes.push({ circle: [xOf(layer), yOf(token), 9], stroke: ink.cut, width: 1.75 });
      }
      const colour = shade(theme, Math.sign(mass) * (0.3 + 0.7 * share)).hex;
      shapes.push({
        circle: [xOf(layer), yOf(token), here ? 5.5 : mass ? 2 + 5 * share : 1.6],
        fill: mass ? colour : ink.line,
        key: nodes.length,
      });
      nodes.push({ layer, token, x: xOf(layer), y: yOf(token), mass });
    }
  }
  for (const token of rows) {
    const chosen = token === source || token === sink || token === node?.[1];
    shapes.push({
      text: fit(numbers.labels[token], label, 12.5, chosen ? 700 : 400),
      x: label + 6,
      y: yOf(token) + 4.5,
      size: 12.5,
      anchor: "end",
      weight: chosen ? 700 : 400,
      italic: numbers.special[token],
      fill: numbers.special[token] ? ink.muted : ink.ink,
    });
  }
  const height = GRAPH_HEAD + rows.length * GRAPH_ROW + 10;
  return { width, height, shapes, nodes, edges: drawn, rows };
}

// The strongest edges between rows, the strongest last, so that they lie above.
function drawnEdges({ edges, source, top }, rowOf, node) {
  const touches = ({ layer, from, to }) =>
    (layer === node[0] && from === node[1]) || (layer === node[0] + 1 && to === node[1]);
  const own = (edge) => edge.from === source && edge.layer === top && source !== null;
  const strength = (edge) =>
    Math.abs(edge.weight) * (edge.cut ? 4 : 1) * (own(edge) ? 3 : 1) * (edge.aside ? 1e-3 : 1);
  return edges
    .filter(({ from, to }) => rowOf.has(from) && rowOf.has(to))
    .map((edge) => (node && !touches(edge) ? { ...edge, aside: true } : { ...edge }))
    .sort((a, b) => strength(b) - strength(a))
    .slice(0, MOST_EDGES)
    .reverse();
}

function columnNames({ numbers, ink, top, columns, xOf }) {
  const gap = xOf(1) - xOf(0);
  const twice = numbers.encoder && columns > numbers.encoder[0] ? 2 : 1;
  const step = [1, 2, 5, 10].find((every) => every * gap * twice >= 30) ?? 20;
  const shapes = [];
  for (let column = 0; column <= columns; column += 1) {
    const chosen = column === top;
    const near = Math.abs(column - top) * gap < 30;
    const text = columnName(numbers, column, step);
    if (!chosen && (text === null || near)) continue;
    shapes.push({
      text: columnName(numbers, column, 1),
      x: xOf(column),
      y: 16,
      size: 11,
      anchor: "middle",
      weight: chosen ? 700 : 400,
      fill: chosen ? ink.ink : ink.muted,
    });
  }
  return shapes;
}

// A gap in the text between two rows shows as a thin line.
function gaps({ rows, ink, from, to }) {
  const shapes = [];
  rows.forEach((token, i) => {
    if (i === 0 || token === rows[i - 1] + 1) return;
    const y = GRAPH_HEAD + i * GRAPH_ROW;
    shapes.push({ curve: [from, y, to, y], stroke: ink.line, dash: [2, 4] });
  });
  return shapes;
}

/** Return the edge of a drawing that is nearest to a point, if any is within reach, in pixels. */
export function edgeAt(scene, x, y, reach) {
  let best = null;
  let nearest = reach;
  for (const edge of scene.edges) {
    const [x1, y1, x2, y2] = edge.curve;
    if (x < x1 - reach || x > x2 + reach) continue;
    const t = along((x - x1) / (x2 - x1));
    // Of two edges through one point the stronger one lies above, and comes later.
    const distance = Math.abs(y1 + (y2 - y1) * (3 * t * t - 2 * t * t * t) - y) / slope(edge, t);
    if (distance <= nearest) {
      nearest = distance;
      best = edge;
    }
  }
  return best;
}

// How far along a curve a share of its width is: the inverse of 1.5 t - 1.5 t^2 + t^3.
function along(share) {
  let t = Math.min(1, Math.max(0, share));
  const goal = t;
  for (let i = 0; i < 6; i += 1) {
    t -= (1.5 * t - 1.5 * t * t + t * t * t - goal) / (1.5 - 3 * t + 3 * t * t);
  }
  return Math.min(1, Math.max(0, t));
}

function slope({ curve: [x1, y1, x2, y2] }, t) {
  const across = (x2 - x1) * (1.5 - 3 * t + 3 * t * t);
  return Math.hypot(across, (y2 - y1) * 6 * t * (1 - t)) / across;
}

// What stands above a column, every so many layers: null if nothing does.
function columnName(numbers, level, every) {
  if (level === 0) return "input";
  const below = numbers.encoder?.[0] ?? Infinity;
  if (level <= below) return level % every === 0 ? `${numbers.encoder ? "E" : "L"}${level}` : null;
  // A layer of the decoder ends with its cross-attention.
  const layer = (level - below) / 2;
  return Number.isInteger(layer) && layer % every === 0 ? `D${layer}` : null;
}
