// Attention flow: the maximum flow from a position of a layer to an input token, and the minimum
// cut that limits it. Capacities are whole numbers, so that flow and cut are equal, not nearly so.
//
// The way to it is that of attnflow's own solver, src/maxflow: what most of a flow does is done in
// whole columns, the rest by blocking flows (Dinic 1970), with sets of positions as rows of bits.

const UNIT = 2 ** 30;
// More than any position that attends can send, and still a whole number of 32 bits.
const UNLIMITED = 2 ** 31 - 1;

function capacitiesOf(graph, layer) {
  const { tokens } = graph;
  const weights = graph.attention[layer - 1];
  const shares = graph.residual[layer - 1];
  const capacities = new Int32Array(tokens * tokens);
  for (let k = 0; k < tokens; k += 1) {
    const scale = (1 - shares[k]) * UNIT;
    const row = k * tokens;
    for (let m = 0; m < tokens; m += 1) {
      capacities[row + m] = Math.round(scale * weights[row + m]);
    }
    capacities[row + k] = graph.passes(layer, k)
      ? UNLIMITED
      : Math.round(scale * weights[row + k] + shares[k] * UNIT);
  }
  return capacities;
}

/** Run a generator to its end, and return what it returns. */
export function finish(work) {
  for (;;) {
    const { done, value } = work.next();
    if (done) return value;
  }
}

function arrivingOf(capacities, tokens) {
  const sums = new Float64Array(tokens);
  for (let k = 0; k < tokens; k += 1) {
    for (let m = 0; m < tokens; m += 1) sums[m] += capacities[k * tokens + m];
  }
  return sums;
}

// Sets of positions: position k is bit k % 32 of word k / 32.
const wordsFor = (tokens) => Math.ceil(tokens / 32);
const has = (set, start, k) => (set[start + (k >>> 5)] >>> (k & 31)) & 1;
const lowest = (word) => 31 - Math.clz32(word & -word);

function insert(set, start, k) {
  set[start + (k >>> 5)] |= 1 << (k & 31);
}

function erase(set, start, k) {
  set[start + (k >>> 5)] &= ~(1 << (k & 31));
}

// Of each position, the set of those below to which an edge leads.
function edgesOf(capacities, tokens) {
  const words = wordsFor(tokens);
  const edges = new Int32Array(tokens * words);
  for (let k = 0; k < tokens; k += 1) {
    for (let m = 0; m < tokens; m += 1) {
      if (capacities[k * tokens + m] > 0) insert(edges, k * words, m);
    }
  }
  return edges;
}

/** The capacities of a graph, and the working memory to send flow through it. */
export class Network {
  constructor(graph) {
    const { tokens, layers } = graph;
    this.tokens = tokens;
    this.layers = layers;
    this.words = wordsFor(tokens);
    this.capacities = [null];
    for (let l = 1; l <= layers; l += 1) this.capacities.push(capacitiesOf(graph, l));
    this.edges = this.capacities.map((capacity, l) => (l > 1 ? edgesOf(capacity, tokens) : null));
    this.arriving = arrivingOf(this.capacities[1], tokens);
    this.base = null;
    this.prepare();
  }

  prepare() {
    const { tokens, layers, words } = this;
    const each = (size) => Array.from({ length: layers + 1 }, () => new Int32Array(size));
    this.flows = each(tokens * tokens);
    this.touched = Array.from({ length: layers + 1 }, () => []); // edges with flow, to be undone
    this.open = this.edges.map((edges) => edges?.slice() ?? null); // those that can take more
    this.back = each(tokens * words); // of each position, who above sends it something
    this.alive = each(words); // of each layer, the positions that may still pass something on
    this.unseen = each(words); // and those that a search has not met
    this.reached = []; // those that it has, by the number of turns upwards on the way
    this.turns = 0;
    this.out = each(tokens); // of each layer, what the edges that leave the position can still take
    this.into = each(tokens); // and what those that lead to the token can
    this.spare = new Int32Array(tokens); // what a column can still carry from top to bottom
    this.narrow = [];
  }

  /** Return another network of the same graph, to be used while this one rests. */
  twin() {
    const network = Object.assign(Object.create(Network.prototype), this);
    network.prepare();
    return network;
  }

  /** Return the network of the same graph with other weights in one layer. Memory is shared. */
  withLayer(layer, graph) {
    const network = Object.assign(Object.create(Network.prototype), this);
    network.base = this;
    network.narrow = [];
    network.capacities = this.capacities.slice();
    network.capacities[layer] = capacitiesOf(graph, layer);
    network.open = this.open.slice();
    if (layer > 1) network.open[layer] = edgesOf(network.capacities[layer], this.tokens);
    else network.arriving = arrivingOf(network.capacities[1], this.tokens);
    return network;
  }

  /** Return what leaves a position of a layer, in units. */
  leaving(layer, position) {
    let sum = 0;
    const row = position * this.tokens;
    for (let m = 0; m < this.tokens; m += 1) sum += this.capacities[layer][row + m];
    return sum;
  }

  /** Return what no flow from a position exceeds, for each token, as weights. */
  bounds(layer, position) {
    const leaving = this.leaving(layer, position);
    return this.arriving.map((arriving) => Math.min(leaving, arriving) / UNIT);
  }

  /** Return the maximum flow from a position of a layer to an input token, as a weight. */
  value(layer, position, token) {
    return finish(this.valueSteps(layer, position, token));
  }

  /** The same as a generator, which rests whenever something else may be done. */
  *valueSteps(layer, position, token) {
    const { tokens, capacities } = this;
    const row = position * tokens;
    if (layer === 1) return capacities[1][row + token] / UNIT;
    if (layer === 2) {
      let sum = 0;
      for (let k = 0; k < tokens; k += 1) {
        sum += Math.min(capacities[2][row + k], capacities[1][k * tokens + token]);
      }
      return sum / UNIT;
    }
    return (yield* this.steps(layer, position, token)) / UNIT;
  }

  /**
   * Return the maximum flow with the edges that carry it, and a minimum cut.
   *
   * Returns {value, bound, edges, cut, kind}. Edges and cut are lists of [layer, from, to, amount].
   * kind says which cut it is: "token" if all that layer 1 takes from the token is used, "position"
   * if all that leaves the position is, "between" otherwise. Of several minimum cuts it is one of
   * these in this order, and between them the one nearest to the position.
   */
  trace(layer, position, token) {
    return finish(this.traceSteps(layer, position, token));
  }

  /** The same as a generator, which rests whenever something else may be done. */
  *traceSteps(layer, position, token) {
    const { tokens, capacities, flows } = this;
    const value = yield* this.steps(layer, position, token, true);
    const edges = [];
    for (let l = layer; l > 0; l -= 1) {
      for (const index of new Set(this.touched[l])) {
        const amount = flows[l][index];
        if (amount > 0) edges.push([l, Math.floor(index / tokens), index % tokens, amount / UNIT]);
      }
    }
    const leaving = this.leaving(layer, position);
    const cut = [];
    let kind = "between";
    if (value === this.arriving[token]) {
      kind = "token";
      for (let k = 0; k < tokens; k += 1) {
        if (layer === 1 && k !== position) continue;
        const capacity = capacities[1][k * tokens + token];
        if (capacity > 0) cut.push([1, k, token, capacity / UNIT]);
      }
    } else if (value === leaving) {
      kind = "position";
      for (let m = 0; m < tokens; m += 1) {
        const capacity = capacities[layer][position * tokens + m];
        if (capacity > 0) cut.push([layer, position, m, capacity / UNIT]);
      }
    } else {
      // From what the last search met to what it did not.
      const met = (l, k) => (l === layer ? k === position : !has(this.unseen[l], 0, k));
      for (let l = layer; l > 0; l -= 1) {
        for (let k = 0; k < tokens; k += 1) {
          if (!met(l, k)) continue;
          for (let m = 0; m < tokens; m += 1) {
            const capacity = capacities[l][k * tokens + m];
            const across = l === 1 ? m === token : !met(l - 1, m);
            if (capacity > 0 && across) cut.push([l, k, m, capacity / UNIT]);
          }
        }
      }
    }
    return {
      value: value / UNIT,
      bound: Math.min(leaving, this.arriving[token]) / UNIT,
      edges,
      cut,
      kind,
    };
  }

  // Send as much as possible; the flow stays in this.flows until the next call.
  solve(layer, position, token) {
    return finish(this.steps(layer, position, token, true));
  }

  // The same, with a rest after each step. kept is whether the edges that carry it are wanted.
  *steps(layer, position, token, kept = false) {
    this.undo();
    const bound = Math.min(this.leaving(layer, position), this.arriving[token]);
    let sent = this.fall(layer, position, bound, token);
    if (sent === bound && !kept) return sent;
    this.writeDown(layer, position, token);
    for (let l = 1; l < layer; l += 1) this.fill(this.alive[l]);
    for (let k = 0; k < this.tokens; k += 1) {
      if (this.room(1, k, token) <= 0) erase(this.alive[1], 0, k);
    }
    sent += this.push(layer, position, bound - sent, token);
    while (sent < bound) {
      yield;
      if (!this.search(layer, position)) break;
      sent += this.augment(0, layer, position, bound - sent, layer, token);
    }
    return sent;
  }

  // Take back what the last call sent, whichever network with this memory it was of.
  undo() {
    const { tokens, words } = this;
    for (let l = 1; l <= this.layers; l += 1) {
      for (const index of this.touched[l]) {
        this.flows[l][index] = 0;
        if (l === 1) continue;
        const k = Math.floor(index / tokens);
        const m = index - k * tokens;
        if (this.capacities[l][index] > 0) insert(this.open[l], k * words, m);
        if (this.base?.capacities[l][index] > 0) insert(this.base.open[l], k * words, m);
        erase(this.back[l], m * words, k);
      }
      this.touched[l].length = 0;
    }
  }

  // Put every position into a set.
  fill(set) {
    set.fill(-1);
    if (this.tokens % 32 > 0) set[this.words - 1] = (1 << (this.tokens % 32)) - 1;
  }

  room(layer, from, to) {
    const index = from * this.tokens + to;
    return this.capacities[layer][index] - this.flows[layer][index];
  }

  // Send something along an edge; less than nothing takes some of it back.
  send(layer, from, to, amount) {
    const index = from * this.tokens + to;
    const flow = this.flows[layer];
    if (flow[index] === 0) this.touched[layer].push(index);
    flow[index] += amount;
    if (layer === 1) return;
    const { words } = this;
    if (flow[index] < this.capacities[layer][index]) insert(this.open[layer], from * words, to);
    else erase(this.open[layer], from * words, to);
    if (flow[index] > 0) insert(this.back[layer], to * words, from);
    else erase(this.back[layer], to * words, from);
  }

  // Most of a flow leaves the position's column sideways, falls down another column, and enters the
  // token's column sideways. That much is sent first, in whole columns, the short falls before the
  // long ones: what is close together can be joined in few ways, and what is far apart in many.
  fall(layer, position, wanted, token) {
    const { tokens, capacities, out, into, spare } = this;
    for (let l = 1; l <= layer; l += 1) {
      const capacity = capacities[l];
      if (l > 1) out[l].set(capacity.subarray(position * tokens, (position + 1) * tokens));
      if (l === layer && l > 1) break;
      for (let k = 0; k < tokens; k += 1) into[l][k] = capacity[k * tokens + token];
      if (l > 1) into[l][position] = 0; // an edge that leaves the position
    }
    let sent = 0;
    // What the position's column can bring down to a layer, and the token's take from there.
    const down = (from, to, most) => {
      let amount = most;
      for (let l = from + 1; l <= layer; l += 1) amount = Math.min(amount, out[l][position]);
      for (let l = 1; l < to; l += 1) amount = Math.min(amount, into[l][token]);
      return amount;
    };
    const send = (from, to, amount) => {
      for (let l = from + 1; l <= layer; l += 1) out[l][position] -= amount;
      for (let l = 1; l < to; l += 1) into[l][token] -= amount;
      sent += amount;
    };
    // From one of the two columns straight to the other.
    for (let l = 1; l <= (position === token ? 1 : layer); l += 1) {
      const edges = l === 1 ? into[1] : out[l];
      const at = l === 1 ? position : token;
      const amount = down(l, l, Math.min(wanted - sent, edges[at]));
      if (amount === 0) continue;
      edges[at] -= amount;
      send(l, l, amount);
    }
    // Where the two columns are one, its edges would be counted twice.
    if (position === token) return sent;
    spare.set(this.carried(layer - 1));
    for (let steps = 1; steps < layer; steps += 1) {
      for (let low = 1; low + steps <= layer && sent < wanted; low += 1) {
        const most = down(low + steps, low, wanted - sent);
        if (most === 0) continue;
        const from = out[low + steps];
        const to = into[low];
        const own = [from[position], from[token], to[position], to[token]];
        from[position] = 0;
        from[token] = 0;
        let left = most;
        for (let k = 0; k < tokens && left > 0; k += 1) {
          let amount = Math.min(from[k], to[k]);
          if (steps > 1 && spare[k] < amount) amount = spare[k];
          if (amount === 0) continue;
          if (left < amount) amount = left;
          from[k] -= amount;
          to[k] -= amount;
          if (steps > 1) spare[k] -= amount;
          left -= amount;
        }
        [from[position], from[token], to[position], to[token]] = own;
        if (left < most) send(low + steps, low, most - left);
      }
    }
    return sent;
  }

  // The least of the edges from each position to itself, in the layers from 2 up to one.
  carried(layer) {
    for (let l = this.narrow.length; l <= layer; l += 1) {
      this.narrow[l] = new Int32Array(this.tokens).fill(UNLIMITED);
      for (let k = 0; k < this.tokens && l > 1; k += 1) {
        const edge = this.capacities[l][k * this.tokens + k];
        this.narrow[l][k] = Math.min(this.narrow[l - 1][k], edge);
      }
    }
    return this.narrow[layer];
  }

  // Write down which edges carry what fell: from here on some of it may be sent back.
  writeDown(layer, position, token) {
    const { tokens, capacities, out, into, spare } = this;
    const carried = spare.fill(0);
    const pass = (l, k, m, amount) => {
      if (amount > 0) this.send(l, k, m, amount);
    };
    for (let l = layer; l > 0; l -= 1) {
      const row = position * tokens;
      if (l > 1)
        for (let m = 0; m < tokens; m += 1)
          pass(l, position, m, capacities[l][row + m] - out[l][m]);
      if (l === layer && l > 1) continue;
      for (let k = 0; k < tokens; k += 1) {
        if (k === position && l > 1) continue;
        const sideways = capacities[l][k * tokens + token] - into[l][k];
        pass(l, k, token, sideways);
        if (k === token || k === position || l === 1) continue;
        carried[k] += capacities[l + 1][row + k] - out[l + 1][k] - sideways;
        pass(l, k, k, carried[k]);
      }
    }
  }

  // What can still be sent downwards only: down the position's own column first, then to the token's,
  // then to whoever can still pass something on. Who cannot is struck out, and never asked again.
  push(layer, position, wanted, token) {
    if (layer === 1) return this.arrive(position, wanted, token);
    const { words } = this;
    const below = this.alive[layer - 1];
    const open = this.open[layer];
    const row = position * words;
    let left = wanted;
    if (has(open, row, position) && has(below, 0, position)) {
      left -= this.pushTo(layer, position, position, left, token);
    }
    if (left > 0 && has(open, row, token) && has(below, 0, token)) {
      left -= this.pushTo(layer, position, token, left, token);
    }
    for (let w = 0; w < words && left > 0; w += 1) {
      for (;;) {
        const can = open[row + w] & below[w];
        if (can === 0 || left === 0) break;
        left -= this.pushTo(layer, position, w * 32 + lowest(can), left, token);
      }
    }
    if (left > 0) erase(this.alive[layer], 0, position);
    return wanted - left;
  }

  pushTo(layer, position, next, wanted, token) {
    const asked = Math.min(wanted, this.room(layer, position, next));
    const sent = this.push(layer - 1, next, asked, token);
    if (sent > 0) this.send(layer, position, next, sent);
    return sent;
  }

  // Send from a position of layer 1 to the token.
  arrive(position, wanted, token) {
    const room = this.room(1, position, token);
    if (room <= wanted) erase(this.alive[1], 0, position);
    const amount = Math.min(wanted, room);
    if (amount > 0) this.send(1, position, token, amount);
    return amount;
  }

  // Find what can be reached where flow may also be sent back. A way of fewest steps is one of
  // fewest turns upwards. Returns whether the token can be reached.
  search(layer, position) {
    const { words, unseen } = this;
    for (let l = 1; l < layer; l += 1) this.fill(unseen[l]);
    const reachedAfter = (turns) => {
      this.reached[turns] ??= Array.from(unseen, () => new Int32Array(words));
      for (const set of this.reached[turns]) set.fill(0);
      return this.reached[turns];
    };
    // Whoever of the rows of some positions has not been seen is, now.
    const take = (from, rows, into, rest) => {
      let any = 0;
      let more = 1;
      for (let w = 0; w < words && more !== 0; w += 1) {
        for (let members = from[w]; members !== 0 && more !== 0; members &= members - 1) {
          const row = (w * 32 + lowest(members)) * words;
          more = 0;
          for (let v = 0; v < words; v += 1) {
            const found = rows[row + v] & rest[v];
            into[v] |= found;
            rest[v] &= ~found;
            any |= found;
            more |= rest[v];
          }
        }
      }
      return any !== 0;
    };
    let here = reachedAfter(0);
    insert(here[layer], 0, position);
    for (this.turns = 0; ; this.turns += 1) {
      for (let l = layer; l > 1; l -= 1) take(here[l], this.open[l], here[l - 1], unseen[l - 1]);
      for (let w = 0; w < words; w += 1) if (here[1][w] & this.alive[1][w]) return true;
      const next = reachedAfter(this.turns + 1);
      let turned = false;
      for (let l = 1; l + 1 < layer; l += 1) {
        if (take(here[l], this.back[l + 1], next[l + 1], unseen[l + 1])) turned = true;
      }
      if (!turned) return false;
      here = next;
    }
  }

  // Send more along the ways that a search found, backwards too. Who has none left is struck out.
  augment(turns, layer, position, wanted, top, token) {
    const { words } = this;
    let left = wanted;
    if (layer === 1 && turns === this.turns) left -= this.arrive(position, left, token);
    const row = position * words;
    if (layer > 1) {
      const to = this.reached[turns][layer - 1];
      const open = this.open[layer];
      for (let w = 0; w < words && left > 0; w += 1) {
        for (;;) {
          const can = open[row + w] & to[w];
          if (can === 0 || left === 0) break;
          const next = w * 32 + lowest(can);
          const asked = Math.min(left, this.room(layer, position, next));
          const sent = this.augment(turns, layer - 1, next, asked, top, token);
          if (sent > 0) this.send(layer, position, next, sent);
          left -= sent;
        }
      }
    }
    if (turns < this.turns && layer + 1 < top) {
      const to = this.reached[turns + 1][layer + 1];
      const back = this.back[layer + 1];
      for (let w = 0; w < words && left > 0; w += 1) {
        for (;;) {
          const can = back[row + w] & to[w];
          if (can === 0 || left === 0) break;
          const above = w * 32 + lowest(can);
          const asked = Math.min(left, this.flows[layer + 1][above * this.tokens + position]);
          const sent = this.augment(turns + 1, layer + 1, above, asked, top, token);
          if (sent > 0) this.send(layer + 1, above, position, -sent);
          left -= sent;
        }
      }
    }
    if (left > 0) erase(this.reached[turns][layer], 0, position);
    return wanted - left;
  }
}
