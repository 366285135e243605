// The scores of every method, layer and position, computed when they are asked for.

import { Network } from "./flow.js";
import { Graph, relativeTo } from "./graph.js";
import { readTrace, uniformAttention, unpackRows } from "./trace.js";

// How long to compute at a stretch, in milliseconds, before the page may do something else.
const SLICE = 10;

/**
 * Do something once what has changed is seen: after the next frame, or soon in a window that has
 * none. Returns a function that calls it off.
 */
export function afterFrame(work) {
  let timer = 0;
  let frame = 0;
  const stop = () => {
    clearTimeout(timer);
    globalThis.cancelAnimationFrame?.(frame);
  };
  const run = () => {
    stop();
    work();
  };
  const frames = typeof globalThis.requestAnimationFrame === "function";
  if (frames) {
    frame = requestAnimationFrame(() => {
      clearTimeout(timer);
      timer = setTimeout(run, 0);
    });
  }
  timer = setTimeout(run, frames ? 100 : 0);
  return stop;
}

/** What a page shows: the scores that were saved, and those that follow from the trace. */
export class Numbers {
  static async read(data) {
    const trace = data.trace ? await readTrace(data.trace) : null;
    // With a trace, only a file needs the scores that were saved.
    const saved = trace ? [] : await unpackRows(data.explanation.layer_scores);
    const numbers = new Numbers(data, trace, saved);
    // Made before anything is shown, so that nothing has to wait for it afterwards.
    if (trace) {
      numbers.network = new Network(numbers.graph);
      numbers.background = numbers.network.twin();
    }
    return numbers;
  }

  constructor(data, trace, layerScores = []) {
    const { explanation } = data;
    this.explanation = explanation;
    this.layerScores = layerScores;
    // What is shown of a long text are its sentences, each with the scores of its tokens.
    this.groups = trace ? null : (data.sentences?.groups ?? null);
    this.labels = data.labels;
    this.special = data.special;
    this.tokens = data.labels.length;
    this.trace = trace;
    this.encoder = trace?.encoder ?? null;
    this.methods = trace ? ["raw", "rollout", "flow"] : [explanation.method];
    this.heads = trace?.heads ? trace.heads[0].length : 0;
    // What each edge carried to the answer, and what each head added to it, where that was kept.
    this.carried = trace?.carried ?? null;
    this.headValues = trace?.values ?? null;
    this.relative = Boolean(trace?.mask);
    this.graph = trace
      ? new Graph(trace.attention, trace.residual, trace.tokens, this.encoder)
      : null;
    // How many layers there are to explain; two of the graph are one of a decoder.
    const layers = trace?.attention.length ?? layerScores.length;
    this.depth = this.encoder ? (layers - this.encoder[0]) / 2 : layers;
    this.causal = trace ? isCausal(trace.attention, trace.tokens, this.encoder) : false;
    // In a small graph everything is known before anybody could notice that it was not.
    this.small = this.tokens * this.tokens * (this.graph?.layers ?? 0) < 2e5;
    this.network = null;
    this.uniform = null;
    this.rows = new Map();
    this.job = null;
    // The trace is coarser than what was saved, in its last digits.
    this.tolerance = data.trace && data.trace.bits >= 24 ? 1e-6 : 3e-4;
    if (data.saved) this.keepSaved(data.saved);
  }

  // Flows of the explained position were computed exactly, and need not be computed again.
  keepSaved(saved) {
    saved.scores.forEach((scores, i) => {
      const row = new Float64Array(this.tokens);
      row.set(scores);
      this.rows.set(key(saved.method, i + 1, saved.position, -1), row);
    });
    this.saved = saved;
  }

  /** Return whether a position can see a token. */
  sees(position, token) {
    if (this.encoder) {
      const source = this.encoder[1];
      if (position < source || token < source) return token < source;
    }
    return !this.causal || token <= position;
  }

  /** Return "encoder" or "decoder", the side of an encoder-decoder that a position is on, or "". */
  side(position) {
    if (!this.encoder) return "";
    return position < this.encoder[1] ? "encoder" : "decoder";
  }

  /** Return how many layers a position has. */
  layersOf(position) {
    const side = this.side(position);
    return side === "encoder" ? this.encoder[0] : this.depth;
  }

  /** Return the layer of the graph in which a layer of a position ends. */
  level(layer, position) {
    return this.side(position) === "decoder" ? this.encoder[0] + 2 * layer : layer;
  }

  /** Return the layer of a position to which a layer of the graph belongs; 0 is the input. */
  layerAt(level, position) {
    const side = this.side(position);
    if (side === "encoder") return Math.min(level, this.encoder[0]);
    return side === "decoder" ? Math.max(0, Math.ceil((level - this.encoder[0]) / 2)) : level;
  }

  /** Return the layers of the graph of which a layer of a position is made, the lowest first. */
  levelsOf(layer, position) {
    const level = this.level(layer, position);
    return this.side(position) === "decoder" ? [level - 1, level] : [level];
  }

  /** Return what a layer of a position is called. */
  layerName(layer, position) {
    return `${this.side(position)} layer ${layer}`.trim();
  }

  /** Return what a layer of the graph is called. */
  levelName(level) {
    const below = this.encoder?.[0] ?? Infinity;
    if (level <= below) return `${this.encoder ? "encoder " : ""}layer ${level}`;
    const own = (level - below) % 2 === 1;
    return `decoder layer ${Math.ceil((level - below) / 2)} (${own ? "self" : "cross"}-attention)`;
  }

  /**
   * Return the scores of all tokens, a Float64Array, or null where flow is not known yet.
   * head is -1 for all heads together.
   */
  scores(method, layer, position, head = -1) {
    const name = key(method, layer, position, head);
    const known = this.rows.get(name);
    if (known) return known;
    if (!this.trace) return null;
    if (method === "flow") {
      const plain = this.rows.get(key("plain", layer, position, head));
      const even = this.relative ? this.rows.get(key("even", layer, position, -1)) : null;
      if (!plain || (this.relative && !even)) return null;
      return this.keep(name, this.relative ? relativeTo(even, plain) : plain);
    }
    const graph = this.graphOf(layer, head);
    if (method === "raw") {
      // A layer of a decoder attends twice; half of each makes a whole.
      const rows = this.levelsOf(layer, position).map((level) => graph.raw(level, position));
      return this.keep(
        name,
        rows[0].map((weight, token) => (rows.length > 1 ? (weight + rows[1][token]) / 2 : weight)),
      );
    }
    const level = this.level(layer, position);
    const rollout = graph.rollout(level, position);
    if (!this.relative) return this.keep(name, rollout);
    return this.keep(name, relativeTo(this.evenGraph().rollout(level, position), rollout));
  }

  /** Return the scores of a layer that were saved: those of tokens, or of the sentences shown. */
  savedScores(layer) {
    const scores = this.layerScores[layer - 1];
    if (!this.groups) return scores;
    const name = key("saved", layer, 0, -1);
    return this.rows.get(name) ?? this.keep(name, sums(this.groups, scores));
  }

  /** Return scores as far as they are known at once: null where it takes long to compute them. */
  knownScores(method, layer, position, head = -1) {
    if (method === "raw" || this.small) return this.scores(method, layer, position, head);
    if (method === "flow") return this.scores(method, layer, position, head);
    return this.rows.get(key(method, layer, position, head)) ?? null;
  }

  /** Return the flows themselves, not related to anything, or null where they are not known. */
  flows(layer, position, head = -1) {
    const plain = this.rows.get(key("plain", layer, position, head));
    if (plain || this.relative) return plain ?? null;
    return this.rows.get(key("flow", layer, position, head)) ?? null;
  }

  /** Return the share of tokens whose flow is as large as from any position, or null. */
  saturation(layer, position, head = -1) {
    const flows = this.flows(layer, position, head);
    if (!flows) {
      const { explanation } = this;
      const same = this.saved && position === this.saved.position && layer === explanation.layer;
      return same && head < 0 ? explanation.saturation : null;
    }
    const bounds = this.networkOf(layer, head).bounds(this.level(layer, position), position);
    const exact = this.rows.has(key("plain", layer, position, head));
    let full = 0;
    for (let token = 0; token < this.tokens; token += 1) {
      if (flows[token] >= bounds[token] - (exact ? 0 : this.tolerance)) full += 1;
    }
    return full / this.tokens;
  }

  /**
   * Compute the flow to one token with the edges that carry it, and its minimum cut: a generator,
   * which rests whenever something else may be done, and returns what Network.trace does.
   */
  cutSteps(layer, position, token, head = -1) {
    return this.networkOf(layer, head).traceSteps(this.level(layer, position), position, token);
  }

  /**
   * Return how much of what a position attends to is still its own token, by rollout: null where it
   * is the token itself.
   */
  ownShare(layer, position, attended) {
    // The decoder attends to what comes out of the encoder, whichever layer of it attends.
    const across = this.side(position) === "decoder" && this.side(attended) === "encoder";
    const below = across ? this.encoder[0] : layer - 1;
    if (below === 0) return null;
    const name = key("own", below, attended, -1);
    const row =
      this.rows.get(name) ??
      this.keep(name, this.graph.rollout(this.level(below, attended), attended));
    return row[attended];
  }

  /** Return the graph with one head in the place of all in a layer. */
  graphOf(layer, head) {
    return head < 0 ? this.graph : this.graph.withLayer(layer, this.trace.heads[layer - 1][head]);
  }

  networkOf(layer, head, network = this.network) {
    return head < 0 ? network : network.withLayer(layer, this.graphOf(layer, head));
  }

  evenGraph() {
    if (!this.uniform) {
      const attention = uniformAttention(
        this.trace.mask,
        this.tokens,
        this.encoder,
        this.trace.sunk,
      );
      this.uniform = new Graph(attention, this.graph.residual, this.tokens, this.encoder);
    }
    return this.uniform;
  }

  /**
   * Return what the positions of each layer of the graph carry to the answer: masses, with their
   * sign, sizes, without, and for each layer the total size of its edges.
   */
  get currents() {
    this.summed ??= currentsOf(this.carried, this.tokens);
    return this.summed;
  }

  keep(name, row) {
    // Rows of 512 numbers; this many are a few megabytes.
    if (this.rows.size > 4000) this.forget();
    this.rows.set(name, row);
    return row;
  }

  forget() {
    this.rows.clear();
    if (this.saved) this.keepSaved(this.saved);
  }

  /**
   * Compute the rollouts and flows of a position in the background, in the order of the layers
   * given, and call done after all rollouts, with 0, and after the flows of each layer. Those of the
   * first layer come before the rollouts if flowFirst. Any other such work is given up.
   */
  computeFlows(position, layers, head, done, flowFirst = false) {
    this.stop();
    if (!this.trace) return;
    const work = this.flowWork(position, layers, head, done, flowFirst);
    const job = { stop: null };
    const run = () => {
      const until = performance.now() + SLICE;
      while (performance.now() < until) {
        if (work.next().done) {
          if (this.job === job) this.job = null;
          return;
        }
      }
      const timer = setTimeout(run, 0);
      job.stop = () => clearTimeout(timer);
    };
    this.job = job;
    job.stop = afterFrame(run);
  }

  /** Give up what is being computed. */
  stop() {
    this.job?.stop();
    this.job = null;
  }

  *flowWork(position, layers, head, done, flowFirst = false) {
    if (flowFirst) yield* this.flowLayers(position, layers.slice(0, 1), head, done);
    for (const layer of layers) {
      this.scores("rollout", layer, position, head);
      yield;
    }
    done(0);
    yield* this.flowLayers(position, layers, head, done);
  }

  *flowLayers(position, layers, head, done) {
    for (const layer of layers) {
      if (this.scores("flow", layer, position, head)) continue;
      const network = this.networkOf(layer, head, this.background);
      yield* this.flowRow(network, "plain", layer, position, head);
      if (this.relative && !this.rows.has(key("even", layer, position, -1))) {
        this.evenNetwork ??= new Network(this.evenGraph());
        yield* this.flowRow(this.evenNetwork, "even", layer, position, -1);
      }
      done(layer);
    }
  }

  *flowRow(network, kind, layer, position, head) {
    const name = key(kind, layer, position, head);
    if (this.rows.has(name)) return;
    const row = new Float64Array(this.tokens);
    const level = this.level(layer, position);
    for (let token = 0; token < this.tokens; token += 1) {
      if (this.sees(position, token))
        row[token] = yield* network.valueSteps(level, position, token);
      yield;
    }
    this.keep(name, row);
  }
}

/** Return the sums of scores over groups of tokens. */
export function sums(groups, scores) {
  return Float64Array.from(groups, (group) => group.reduce((sum, token) => sum + scores[token], 0));
}

// A position carries what leaves it upwards; in the last layer, what came to it from below.
function currentsOf(carried, tokens) {
  const empty = () => Array.from({ length: carried.length + 1 }, () => new Float64Array(tokens));
  const [masses, sizes] = [empty(), empty()];
  const totals = carried.map((edges, layer) => {
    let total = 0;
    for (let from = 0; from < tokens; from += 1) {
      for (let to = 0; to < tokens; to += 1) {
        const value = edges[from * tokens + to];
        const size = Math.abs(value);
        masses[layer][to] += value;
        sizes[layer][to] += size;
        if (layer === carried.length - 1) {
          masses[layer + 1][from] += value;
          sizes[layer + 1][from] += size;
        }
        total += size;
      }
    }
    return total;
  });
  return { masses, sizes, totals };
}

function key(method, layer, position, head) {
  return `${method} ${layer} ${position} ${head}`;
}

// Of an encoder-decoder, whether its target does not see what follows.
function isCausal(attention, tokens, encoder) {
  const first = encoder?.[1] ?? 0;
  if (tokens - first < 2) return false;
  for (const weights of attention) {
    for (let k = first; k < tokens; k += 1) {
      for (let m = k + 1; m < tokens; m += 1) if (weights[k * tokens + m] > 0) return false;
    }
  }
  return true;
}
