// Attention flow: the maximum flow from a position of a layer to an input token, and the minimum
// cut that limits it. Capacities are whole numbers, so that flow and cut are equal, not nearly so.

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

/** The capacities of a graph, and the working memory to send flow through it. */
export class Network {
  constructor(graph) {
    const { tokens, layers } = graph;
    this.tokens = tokens;
    this.layers = layers;
    this.capacities = [null];
    for (let l = 1; l <= layers; l += 1) this.capacities.push(capacitiesOf(graph, l));
    this.arriving = arrivingOf(this.capacities[1], tokens);
    this.prepare();
  }

  prepare() {
    const { tokens, layers } = this;
    this.flows = Array.from({ length: layers + 1 }, () => new Int32Array(tokens * tokens));
    const nodes = () => Array.from({ length: layers + 1 }, () => new Int32Array(tokens));
    this.alive = nodes(); // of each layer, the positions that may still pass something on
    this.place = nodes(); // where each of them stands in that list
    this.count = new Int32Array(layers + 1);
    this.used = nodes(); // of each layer, the positions that something was sent through
    this.usedCount = new Int32Array(layers + 1);
    this.isUsed = Array.from({ length: layers + 1 }, () => new Uint8Array(tokens));
    this.touched = Array.from({ length: layers + 1 }, () => []); // edges with flow, to be undone
    this.left = nodes(); // of each layer, the positions that a search has not met
    this.leftCount = new Int32Array(layers + 1);
    this.level = nodes();
    this.order = nodes(); // of each layer, the positions in the order in which they were met
    this.pointer = nodes();
    this.where = nodes(); // where each position stands among those not met
    this.queue = new Int32Array((layers + 1) * tokens);
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
    network.capacities = this.capacities.slice();
    network.capacities[layer] = capacitiesOf(graph, layer);
    if (layer === 1) network.arriving = arrivingOf(network.capacities[1], this.tokens);
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
    const value = yield* this.steps(layer, position, token);
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
      this.search(layer, position, token);
      for (let l = layer; l > 0; l -= 1) {
        const from = l === layer ? [position] : this.order[l].subarray(0, tokens - this.leftCount[l]);
        for (const k of from) {
          if (l === 1) {
            const capacity = capacities[1][k * tokens + token];
            if (capacity > 0) cut.push([1, k, token, capacity / UNIT]);
            continue;
          }
          for (let i = 0; i < this.leftCount[l - 1]; i += 1) {
            const m = this.left[l - 1][i];
            const capacity = capacities[l][k * tokens + m];
            if (capacity > 0) cut.push([l, k, m, capacity / UNIT]);
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
    return finish(this.steps(layer, position, token));
  }

  // The same, with a rest after each step.
  *steps(layer, position, token) {
    this.reset(layer, token);
    const bound = Math.min(this.leaving(layer, position), this.arriving[token]);
    let sent = this.push(layer, position, bound, token);
    while (sent < bound) {
      yield;
      if (!this.search(layer, position, token)) break;
      sent += this.augment(layer, position, bound - sent, layer, token);
    }
    return sent;
  }

  reset(layer, token) {
    const { tokens } = this;
    for (let l = 0; l <= this.layers; l += 1) {
      for (const index of this.touched[l]) this.flows[l][index] = 0;
      this.touched[l].length = 0;
      for (let i = 0; i < this.usedCount[l]; i += 1) this.isUsed[l][this.used[l][i]] = 0;
      this.usedCount[l] = 0;
    }
    for (let l = 1; l < layer; l += 1) {
      let count = 0;
      for (let k = 0; k < tokens; k += 1) {
        if (l === 1 && this.capacities[1][k * tokens + token] === 0) {
          this.place[l][k] = -1;
          continue;
        }
        this.alive[l][count] = k;
        this.place[l][k] = count;
        count += 1;
      }
      this.count[l] = count;
    }
  }

  send(layer, index, amount) {
    const flow = this.flows[layer];
    if (flow[index] === 0) this.touched[layer].push(index);
    flow[index] += amount;
  }

  use(layer, position) {
    if (this.isUsed[layer][position]) return;
    this.isUsed[layer][position] = 1;
    this.used[layer][this.usedCount[layer]] = position;
    this.usedCount[layer] += 1;
  }

  drop(layer, position) {
    const at = this.place[layer][position];
    if (at < 0) return;
    const list = this.alive[layer];
    this.count[layer] -= 1;
    const last = list[this.count[layer]];
    list[at] = last;
    this.place[layer][last] = at;
    this.place[layer][position] = -1;
  }

  // A first flow, downwards only: the position's own column first, then the token's, then whoever
  // can still pass something on. Who cannot is dropped from the list, and never asked again.
  push(layer, position, wanted, token) {
    const { tokens } = this;
    if (layer === 1) {
      const index = position * tokens + token;
      const amount = Math.min(wanted, this.capacities[1][index] - this.flows[1][index]);
      if (amount > 0) {
        this.send(1, index, amount);
        this.use(1, position);
      }
      return amount;
    }
    let sent = 0;
    const below = layer - 1;
    sent += this.pushTo(layer, position, position, wanted, token);
    if (sent < wanted && token !== position) {
      sent += this.pushTo(layer, position, token, wanted - sent, token);
    }
    let i = 0;
    while (sent < wanted && i < this.count[below]) {
      const next = this.alive[below][i];
      sent += this.pushTo(layer, position, next, wanted - sent, token);
      // A position that was dropped has another in its place.
      if (i < this.count[below] && this.alive[below][i] === next) i += 1;
    }
    if (sent > 0) this.use(layer, position);
    return sent;
  }

  pushTo(layer, position, next, wanted, token) {
    if (this.place[layer - 1][next] < 0) return 0;
    const index = position * this.tokens + next;
    const asked = Math.min(wanted, this.capacities[layer][index] - this.flows[layer][index]);
    if (asked <= 0) return 0;
    const sent = this.push(layer - 1, next, asked, token);
    if (sent > 0) this.send(layer, index, sent);
    if (sent < asked) this.drop(layer - 1, next);
    return sent;
  }

  // Find what can be reached where flow may also be sent back, and how many steps away it is.
  // Returns whether the token can.
  search(layer, position, token) {
    const { tokens, capacities, flows, queue } = this;
    for (let l = 1; l < layer; l += 1) {
      const left = this.left[l];
      const where = this.where[l];
      for (let k = 0; k < tokens; k += 1) {
        left[k] = k;
        where[k] = k;
      }
      this.leftCount[l] = tokens;
      this.level[l].fill(-1);
      this.pointer[l].fill(0);
    }
    this.pointer[layer][position] = 0;
    this.level[layer][position] = 0;
    this.starts = Array.from({ length: layer + 1 }, () => []);
    this.met = new Int32Array(layer + 1);
    this.reached = -1;
    queue[0] = layer * tokens + position;
    let head = 0;
    let tail = 1;
    for (let step = 1; head < tail && this.reached < 0; step += 1) {
      for (let l = 0; l <= layer; l += 1) this.starts[l][step] = this.met[l];
      const end = tail;
      for (; head < end; head += 1) {
        const l = Math.floor(queue[head] / tokens);
        const k = queue[head] - l * tokens;
        const row = k * tokens;
        if (l === 1) {
          if (capacities[1][row + token] > flows[1][row + token]) this.reached = step;
        } else {
          const capacity = capacities[l];
          const flow = flows[l];
          const left = this.left[l - 1];
          for (let i = 0; i < this.leftCount[l - 1]; ) {
            const m = left[i];
            if (capacity[row + m] > flow[row + m]) {
              this.meet(l - 1, i, step);
              queue[tail] = (l - 1) * tokens + m;
              tail += 1;
            } else {
              i += 1;
            }
          }
        }
        if (l + 1 < layer && this.leftCount[l + 1] > 0) {
          const flow = flows[l + 1];
          const used = this.used[l + 1];
          const level = this.level[l + 1];
          for (let i = 0; i < this.usedCount[l + 1]; i += 1) {
            const above = used[i];
            if (level[above] < 0 && flow[above * tokens + k] > 0) {
              this.meet(l + 1, this.where[l + 1][above], step);
              queue[tail] = (l + 1) * tokens + above;
              tail += 1;
            }
          }
        }
      }
    }
    for (let l = 0; l <= layer; l += 1) this.starts[l].push(this.met[l]);
    return this.reached >= 0;
  }

  meet(layer, at, step) {
    const left = this.left[layer];
    const position = left[at];
    this.leftCount[layer] -= 1;
    const last = left[this.leftCount[layer]];
    left[at] = last;
    this.where[layer][last] = at;
    this.level[layer][position] = step;
    this.order[layer][this.met[layer]] = position;
    this.met[layer] += 1;
  }

  // Send more along shortest ways found by search, backwards too.
  augment(layer, position, wanted, top, token) {
    const { tokens, capacities, flows } = this;
    const step = this.level[layer][position] + 1;
    if (layer === 1 && step === this.reached) {
      const index = position * tokens + token;
      const amount = Math.min(wanted, capacities[1][index] - flows[1][index]);
      if (amount > 0) {
        this.send(1, index, amount);
        this.use(1, position);
      }
      return amount;
    }
    if (step >= this.reached) return 0;
    let sent = 0;
    const from = layer > 1 ? this.starts[layer - 1][step] : 0;
    const down = layer > 1 ? this.starts[layer - 1][step + 1] - from : 0;
    const backFrom = layer + 1 < top ? this.starts[layer + 1][step] : 0;
    const total = down + (layer + 1 < top ? this.starts[layer + 1][step + 1] - backFrom : 0);
    const pointer = this.pointer[layer];
    while (sent < wanted && pointer[position] < total) {
      const i = pointer[position];
      if (i < down) {
        const m = this.order[layer - 1][from + i];
        const index = position * tokens + m;
        const room = capacities[layer][index] - flows[layer][index];
        if (room > 0) {
          const asked = Math.min(wanted - sent, room);
          const amount = this.augment(layer - 1, m, asked, top, token);
          if (amount > 0) {
            this.send(layer, index, amount);
            this.use(layer, position);
            sent += amount;
          }
          if (amount === asked) continue;
        }
      } else {
        const above = this.order[layer + 1][backFrom + i - down];
        const index = above * tokens + position;
        const room = flows[layer + 1][index];
        if (room > 0) {
          const asked = Math.min(wanted - sent, room);
          const amount = this.augment(layer + 1, above, asked, top, token);
          if (amount > 0) {
            flows[layer + 1][index] -= amount;
            sent += amount;
          }
          if (amount === asked && flows[layer + 1][index] > 0) continue;
        }
      }
      if (sent < wanted) pointer[position] += 1;
    }
    return sent;
  }
}
