// The layered graph that attention makes of a text, and what can be read off it at once.
//
// Node (l, k) is position k after layer l, node (0, t) is input token t, and the edge from (l, k)
// to (l - 1, m) weighs (1 - r) W[l][k, m], and r more if k = m. Of an encoder-decoder, a layer of the
// decoder is two of the graph, and whoever does not attend in a layer passes it.

import { passes } from "./trace.js";

/** The attention graph. Layers count from 1, positions from 0. */
export class Graph {
  /**
   * attention: for each layer a Float32Array of n x n, rows summing to 1.
   * residual: for each layer the share of the residual connection of each position.
   * encoder: of an encoder-decoder, [the layers of the encoder, the tokens of the source].
   */
  constructor(attention, residual, tokens, encoder = null) {
    this.attention = attention;
    this.residual = residual;
    this.tokens = tokens;
    this.layers = attention.length;
    this.encoder = encoder;
  }

  /** Return whether a position passes a layer, and does not attend. */
  passes(layer, position) {
    return passes(this.encoder, layer, position);
  }

  /** Return the same graph with other attention in one layer, as that of a single head. */
  withLayer(layer, weights) {
    const attention = this.attention.slice();
    attention[layer - 1] = weights;
    return new Graph(attention, this.residual, this.tokens, this.encoder);
  }

  /** Return the attention of a position in a layer to each position of the layer below. */
  raw(layer, position) {
    const { tokens } = this;
    return Float64Array.from(
      this.attention[layer - 1].subarray(position * tokens, (position + 1) * tokens),
    );
  }

  /** Return the weight of an edge. */
  capacity(layer, from, to) {
    const share = this.residual[layer - 1][from];
    const weight = this.attention[layer - 1][from * this.tokens + to];
    return (1 - share) * weight + (from === to ? share : 0);
  }

  /** Carry amounts at the positions of a layer down to the layer below. */
  stepDown(layer, amounts) {
    const { tokens } = this;
    const weights = this.attention[layer - 1];
    const shares = this.residual[layer - 1];
    const result = new Float64Array(tokens);
    for (let k = 0; k < tokens; k += 1) {
      const amount = amounts[k];
      if (amount === 0) continue;
      const spread = amount * (1 - shares[k]);
      const row = k * tokens;
      for (let m = 0; m < tokens; m += 1) result[m] += spread * weights[row + m];
      result[k] += amount * shares[k];
    }
    return result;
  }

  /**
   * Follow a position of a layer down by rollout.
   *
   * Returns an array of Float64Array: item l is how much of it is at each position of layer l, from
   * 0, the input tokens, to the layer itself, where all of it is at the position.
   */
  descent(layer, position) {
    const levels = new Array(layer + 1);
    levels[layer] = new Float64Array(this.tokens);
    levels[layer][position] = 1;
    for (let l = layer; l > 0; l -= 1) levels[l - 1] = this.stepDown(l, levels[l]);
    return levels;
  }

  /** Return the rollout from a position of a layer to each input token. */
  rollout(layer, position) {
    return this.descent(layer, position)[0];
  }
}

/** Divide numbers by their sum. */
export function shares(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum > 0 ? values.map((value) => value / sum) : values;
}

/** Divide scores by those of uniform attention, as shares. */
export function relativeTo(uniform, scores) {
  return shares(scores.map((score, i) => (uniform[i] > 0 ? score / uniform[i] : 0)));
}

/** Return over how many tokens scores are spread: the exponential of their entropy. */
export function spread(scores) {
  let entropy = 0;
  for (const share of shares(scores)) if (share > 0) entropy -= share * Math.log(share);
  return Math.exp(entropy);
}
