// The layered graph: a token a row, the input at the left, each layer one column further right.

import { INKS, shade } from "./colour.js";

const MOST_ROWS = 30;
const MOST_EDGES = 260;
const GRAPH_ROW = 24;
const GRAPH_HEAD = 34;

/**
 * Return how much there is at each position of each layer of the graph, from the input up to the
 * chosen layer.
 *
 * Of raw attention, that is how much the chosen position attends to a position of the layer below,
 * and nothing further down; of rollout, how much of the chosen position comes through; of flow, how
 * much of one largest flow from the chosen token goes through.
 */
export function graphMasses(numbers, state, cut) {
  const { layer, position, head, method } = state;
  const graph = numbers.graphOf(layer, head);
  const level = numbers.level(layer, position);
  if (method === "rollout") return graph.descent(level, position);
  const masses = Array.from({ length: level + 1 }, () => new Float64Array(graph.tokens));
  if (method === "raw") {
    masses[level][position] = 1;
    for (const l of numbers.levelsOf(layer, position)) masses[l - 1] = graph.raw(l, position);
  } else if (cut) {
    masses[level][position] = cut.value;
    for (const [l, , to, weight] of cut.edges) masses[l - 1][to] += weight;
  }
  return masses;
}

/**
 * Return the edges between some tokens, each as {layer, from, to, weight, cut}: from is a position
 * of that layer, to one of the layer below.
 */
export function graphEdges(numbers, state, cut, masses, rows) {
  const { layer, position, head, method } = state;
  const edges = [];
  if (method === "flow") {
    const shown = new Set(rows);
    const limits = new Set(cut ? cut.cut.map(([l, k, m]) => `${l} ${k} ${m}`) : []);
    for (const [l, from, to, weight] of cut ? cut.edges : []) {
      if (shown.has(from) && shown.has(to)) {
        edges.push({ layer: l, from, to, weight, cut: limits.has(`${l} ${from} ${to}`) });
      }
    }
    return edges;
  }
  const graph = numbers.graphOf(layer, head);
  const levels = numbers.levelsOf(layer, position);
  for (let l = numbers.level(layer, position); l > 0; l -= 1) {
    for (const from of rows) {
      const mass = method === "raw" ? 1 : masses[l][from];
      if (mass < 1e-3) continue;
      // Whoever passes a layer does not attend in it.
      const other = levels.includes(l) && from !== position;
      if (method === "raw" && (other || graph.passes(l, from))) continue;
      for (const to of rows) {
        const weight =
          method === "raw"
            ? graph.attention[l - 1][from * graph.tokens + to]
            : mass * graph.capacity(l, from, to);
        if (weight > 1e-3) edges.push({ layer: l, from, to, weight });
      }
    }
  }
  return edges;
}

/** Return the tokens whose rows are drawn, in their order: those that matter most, if too many. */
export function graphRows(numbers, state, masses) {
  const { tokens } = numbers;
  if (tokens <= MOST_ROWS) return Array.from({ length: tokens }, (_, i) => i);
  const weight = new Float64Array(tokens);
  for (const level of masses) {
    for (let k = 0; k < tokens; k += 1) weight[k] = Math.max(weight[k], level[k]);
  }
  weight[state.position] = Infinity;
  if (state.token !== null) weight[state.token] = Infinity;
  return Array.from(weight.keys())
    .sort((a, b) => weight[b] - weight[a] || a - b)
    .slice(0, MOST_ROWS)
    .sort((a, b) => a - b);
}

/** Return the drawing of the graph, with the places of its nodes. */
export function graphScene({ numbers, state, theme, width, cut, fit, labelWidth }) {
  const ink = INKS[theme];
  const masses = graphMasses(numbers, state, cut);
  const rows = graphRows(numbers, state, masses);
  const rowOf = new Map(rows.map((token, i) => [token, i]));
  const label = Math.max(48, Math.min(labelWidth + 4, 190, width * 0.24));
  const left = label + 22;
  const right = width - 26;
  const level = numbers.level(state.layer, state.position);
  const columns = numbers.level(numbers.layersOf(state.position), state.position);
  const steps = numbers.levelsOf(1, state.position).length;
  const xOf = (layer) => left + ((right - left) * layer) / columns;
  const yOf = (token) => GRAPH_HEAD + (rowOf.get(token) + 0.5) * GRAPH_ROW;
  const height = GRAPH_HEAD + rows.length * GRAPH_ROW + 10;
  const shapes = [];
  const step =
    [1, 2, 5, 10].find((every) => (every * (right - left)) / columns >= 30 / steps) ?? 20;
  for (let column = 0; column <= columns; column += 1) {
    const chosen = column === level;
    const near = Math.abs(column - level) * ((right - left) / columns) < 30;
    const text = columnName(numbers, column, step);
    if (chosen || (text !== null && !near)) {
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
  }
  // A gap in the text between two rows shows as a thin line.
  rows.forEach((token, i) => {
    if (i > 0 && token !== rows[i - 1] + 1) {
      const y = GRAPH_HEAD + i * GRAPH_ROW;
      shapes.push({ curve: [label * 0.4, y, width - 8, y], stroke: ink.line, dash: [2, 4] });
    }
  });

  const drawn = graphEdges(numbers, state, cut, masses, rows);
  const levels = numbers.levelsOf(state.layer, state.position);
  const own = (edge) => edge.from === state.position && levels.includes(edge.layer);
  const strength = (edge) => edge.weight * (edge.cut ? 4 : 1) * (own(edge) ? 3 : 1);
  drawn.sort((a, b) => strength(b) - strength(a));
  drawn.length = Math.min(drawn.length, MOST_EDGES);
  const largest = drawn.reduce((most, edge) => Math.max(most, edge.weight), 0);
  // The strong ones last, so that they lie above.
  drawn.reverse();
  drawn.forEach((edge) => {
    const share = largest > 0 ? edge.weight / largest : 0;
    const quiet = state.method === "raw" && !own(edge);
    const colour = quiet ? ink.muted : shade(theme, 0.45 + 0.55 * share).hex;
    edge.curve = [xOf(edge.layer - 1), yOf(edge.to), xOf(edge.layer), yOf(edge.from)];
    shapes.push({
      curve: edge.curve,
      stroke: edge.cut ? ink.cut : colour,
      width: 0.7 + 6.3 * share,
      opacity: quiet ? 0.08 + 0.35 * share : 0.4 + 0.55 * share,
      dash: edge.cut ? [5, 3] : undefined,
    });
  });

  const nodes = [];
  for (let layer = 0; layer <= columns; layer += 1) {
    for (const token of rows) {
      // Who passes a layer is the same node as below.
      if (layer > 0 && numbers.graph.passes(layer, token)) continue;
      const mass = layer <= level ? masses[layer][token] : 0;
      const source = layer === level && token === state.position;
      const sink = state.method === "flow" && layer === 0 && token === state.token;
      const size = mass > 0 ? 2 + 5 * Math.sqrt(Math.min(1, mass)) : 1.6;
      if (source || sink) {
        shapes.push({ circle: [xOf(layer), yOf(token), 9], stroke: ink.cut, width: 1.75 });
      }
      shapes.push({
        circle: [xOf(layer), yOf(token), source ? 5.5 : size],
        fill: mass > 0 ? shade(theme, 0.3 + 0.7 * Math.min(1, Math.sqrt(mass))).hex : ink.line,
        key: nodes.length,
      });
      nodes.push({ layer, token, x: xOf(layer), y: yOf(token), mass });
    }
  }
  for (const token of rows) {
    const chosen = token === state.position || token === state.token;
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
  return { width, height, shapes, nodes, edges: drawn, rows, spacing: (right - left) / columns };
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
