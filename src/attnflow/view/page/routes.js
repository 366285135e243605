// The routes through the layered graph that are drawn: by what flowed to the answer, or by what one
// of the methods says could flow. Only edges above a share of all in their layer are kept, and only
// those that a kept edge above leads to (Ferrando and Voita, EMNLP 2024).
//
// Routes are {edges, masses, sizes, unit, top, columns, source, sink, kept}: edges are {layer, from,
// to, weight, cut}, from a position of that layer to one of the layer below; masses has how much
// there is at each position of each layer, 0 for the input, sizes the same without sign, and unit the
// largest there can be; top is the layer that is explained, of so many columns; source is the
// explained position and sink the token, or null; kept is the share that the routes carry, or null
// where that says nothing.

// Thinner edges cannot be seen.
const THINNEST = 1e-3;

/** Return the routes by which the answer came from the input, with the sign of what they carried. */
export function answerRoutes(numbers, threshold) {
  const { carried, tokens, currents } = numbers;
  const { masses, sizes, totals } = currents;
  const top = carried.length;
  const edges = [];
  let reached = new Uint8Array(tokens).fill(1);
  let kept = 1;
  for (let layer = top; layer > 0; layer -= 1) {
    const total = totals[layer - 1];
    const below = new Uint8Array(tokens);
    let sum = 0;
    for (let from = 0; from < tokens; from += 1) {
      if (!reached[from]) continue;
      for (let to = 0; to < tokens; to += 1) {
        const weight = carried[layer - 1][from * tokens + to];
        const size = Math.abs(weight);
        if (size === 0 || size < threshold * total) continue;
        sum += size;
        below[to] = 1;
        if (size > THINNEST * total) edges.push({ layer, from, to, weight });
      }
    }
    if (total > 0) kept = Math.min(kept, sum / total);
    reached = below;
  }
  const unit = Math.max(
    ...masses.map((level) => level.reduce((a, b) => Math.max(a, Math.abs(b)), 0)),
  );
  return { edges, masses, sizes, unit, top, columns: top, source: null, sink: null, kept };
}

/**
 * Return the routes by which a method says that information could reach the chosen position. cut is
 * what Network.trace returned for flow, or null.
 */
export function attentionRoutes(numbers, state, cut, sink) {
  const { layer, position, head, method, threshold } = state;
  const top = numbers.level(layer, position);
  const columns = numbers.level(numbers.layersOf(position), position);
  const end = method === "flow" ? sink : state.token;
  const shared = { unit: 1, top, columns, source: position, sink: end };
  const graph = numbers.graphOf(layer, head);
  if (method === "flow") return { ...shared, ...flowRoutes(graph, top, position, cut, threshold) };
  if (method === "raw") return { ...shared, ...rawRoutes(numbers, graph, state, top) };
  return { ...shared, ...rolloutRoutes(graph, top, position, threshold) };
}

function rolloutRoutes(graph, top, position, threshold) {
  const masses = graph.descent(top, position);
  const edges = [];
  // How much comes through the edges that are kept, from the top down.
  let through = new Float64Array(graph.tokens);
  through[position] = 1;
  for (let layer = top; layer > 0; layer -= 1) {
    const below = new Float64Array(graph.tokens);
    for (let from = 0; from < graph.tokens; from += 1) {
      const mass = masses[layer][from];
      if (through[from] === 0 || (threshold === 0 && mass < THINNEST)) continue;
      for (let to = 0; to < graph.tokens; to += 1) {
        const capacity = graph.capacity(layer, from, to);
        const weight = mass * capacity;
        if (weight === 0 || weight < threshold) continue;
        below[to] += through[from] * capacity;
        if (weight > THINNEST) edges.push({ layer, from, to, weight });
      }
    }
    through = below;
  }
  const kept = threshold === 0 ? 1 : through.reduce((sum, value) => sum + value, 0);
  return { edges, masses, sizes: masses, kept };
}

function flowRoutes(graph, top, position, cut, threshold) {
  const masses = Array.from({ length: top + 1 }, () => new Float64Array(graph.tokens));
  if (!cut) return { edges: [], masses, sizes: masses, kept: null };
  masses[top][position] = cut.value;
  const limits = new Set(cut.cut.map(([layer, from, to]) => `${layer} ${from} ${to}`));
  const byLayer = new Array(top + 1).fill(0);
  const edges = [];
  const reached = new Set([`${top} ${position}`]);
  const ordered = [...cut.edges].sort((a, b) => b[0] - a[0]);
  for (const [layer, from, to, weight] of ordered) {
    masses[layer - 1][to] += weight;
    if (weight < threshold * cut.value || !reached.has(`${layer} ${from}`)) continue;
    reached.add(`${layer - 1} ${to}`);
    byLayer[layer] += weight;
    edges.push({ layer, from, to, weight, cut: limits.has(`${layer} ${from} ${to}`) });
  }
  const least = Math.min(...byLayer.slice(1));
  return { edges, masses, sizes: masses, kept: cut.value > 0 ? least / cut.value : null };
}

// Of raw attention every layer is a step of its own, and only the last one is the chosen position's.
function rawRoutes(numbers, graph, { layer, position, threshold }, top) {
  const masses = Array.from({ length: top + 1 }, () => new Float64Array(graph.tokens));
  masses[top][position] = 1;
  const levels = numbers.levelsOf(layer, position);
  for (const level of levels) masses[level - 1] = graph.raw(level, position);
  const edges = [];
  const least = Math.max(THINNEST, threshold);
  for (let level = top; level > 0; level -= 1) {
    for (let from = 0; from < graph.tokens; from += 1) {
      // Whoever passes a layer does not attend in it.
      const other = levels.includes(level) && from !== position;
      if (other || graph.passes(level, from)) continue;
      for (let to = 0; to < graph.tokens; to += 1) {
        const weight = graph.attention[level - 1][from * graph.tokens + to];
        const own = from === position && levels.includes(level);
        if (weight > least) edges.push({ layer: level, from, to, weight, quiet: !own });
      }
    }
  }
  return { edges, masses, sizes: masses, kept: null };
}

/**
 * Return what passes through a node: {mass, came, went}, its mass, and the edges of the routes from
 * the layer below and to the layer above, the strongest first.
 */
export function throughNode(routes, [level, token]) {
  const strongest = (edges) => edges.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
  return {
    mass: routes.masses[level]?.[token] ?? 0,
    came: strongest(routes.edges.filter((edge) => edge.layer === level && edge.from === token)),
    went: strongest(routes.edges.filter((edge) => edge.layer === level + 1 && edge.to === token)),
  };
}
