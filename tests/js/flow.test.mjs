import assert from "node:assert/strict";
import { test } from "node:test";
import { Network } from "../../src/attnflow/view/page/flow.js";
import { graphOf, random, randomLayers, smallestCut, WORKED } from "./graphs.mjs";

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-6, `${a} is not ${b}`);

test("flow of the worked example is its smallest cut", () => {
  const graph = graphOf(WORKED);
  const network = new Network(graph);
  for (let layer = 1; layer <= 3; layer += 1) {
    for (let position = 0; position < 3; position += 1) {
      for (let token = 0; token < 3; token += 1) {
        near(network.value(layer, position, token), smallestCut(graph, layer, position, token));
      }
    }
  }
});

test("flow of random graphs is their smallest cut", () => {
  for (let seed = 1; seed <= 12; seed += 1) {
    const graph = graphOf(randomLayers(3, 4, seed), seed % 3 === 0 ? 0.1 : 0.5);
    const network = new Network(graph);
    for (let position = 0; position < 4; position += 1) {
      for (let token = 0; token < 4; token += 1) {
        near(network.value(3, position, token), smallestCut(graph, 3, position, token));
      }
    }
  }
});

test("a deep graph, where flow has to be sent back, has its smallest cut too", () => {
  for (let seed = 40; seed < 60; seed += 1) {
    const graph = graphOf(randomLayers(6, 3, seed), 0);
    const network = new Network(graph);
    for (let token = 0; token < 3; token += 1) {
      near(network.value(6, 1, token), smallestCut(graph, 6, 1, token));
    }
  }
});

test("the edges cut sum to the flow, and the flow is kept at every position between", () => {
  const next = random(5);
  for (let seed = 1; seed <= 20; seed += 1) {
    const graph = graphOf(randomLayers(5, 12, seed));
    const network = new Network(graph);
    const [position, token] = [Math.floor(next() * 12), Math.floor(next() * 12)];
    const { value, bound, edges, cut, kind } = network.trace(5, position, token);
    near(
      cut.reduce((sum, edge) => sum + edge[3], 0),
      value,
    );
    assert.ok(value <= bound);
    assert.equal(kind === "between", value < bound);
    const balance = new Map();
    for (const [layer, from, to, amount] of edges) {
      assert.ok(amount <= graph.capacity(layer, from, to) + 1e-8);
      balance.set(`${layer} ${from}`, (balance.get(`${layer} ${from}`) ?? 0) + amount);
      balance.set(`${layer - 1} ${to}`, (balance.get(`${layer - 1} ${to}`) ?? 0) - amount);
    }
    for (const [node, sum] of balance) {
      const ends = { [`5 ${position}`]: value, [`0 ${token}`]: -value };
      near(sum, ends[node] ?? 0);
    }
  }
});

test("no way leads from the position to the token once the cut is made", () => {
  const graph = graphOf(randomLayers(4, 8, 77));
  const network = new Network(graph);
  const { cut } = network.trace(4, 2, 5);
  const gone = new Set(cut.map(([layer, from, to]) => `${layer} ${from} ${to}`));
  let reached = new Set([2]);
  for (let layer = 4; layer > 0; layer -= 1) {
    const below = new Set();
    for (const from of reached) {
      for (let to = 0; to < 8; to += 1) {
        const open = Math.round(graph.capacity(layer, from, to) * 2 ** 30) > 0;
        if (open && !gone.has(`${layer} ${from} ${to}`)) below.add(to);
      }
    }
    reached = below;
  }
  assert.ok(!reached.has(5));
});

test("two networks of one graph do not disturb each other", () => {
  const network = new Network(graphOf(randomLayers(5, 10, 3)));
  const alone = network.value(5, 0, 7);
  const other = network.twin();
  const work = network.valueSteps(5, 0, 7);
  let step = work.next();
  while (!step.done) {
    other.value(5, 3, 2);
    step = work.next();
  }
  assert.equal(step.value, alone);
});

test("with the weights of one head in a layer, the flow is that of the other graph", () => {
  const layers = randomLayers(3, 5, 9);
  const head = randomLayers(1, 5, 10)[0];
  const graph = graphOf(layers);
  const changed = graphOf([layers[0], layers[1], head]);
  const network = new Network(graph).withLayer(3, graph.withLayer(3, changed.attention[2]));
  assert.equal(network.value(3, 1, 4), new Network(changed).value(3, 1, 4));
});

test("work that was given up half way leaves nothing behind", () => {
  const graph = graphOf(randomLayers(4, 40, 21), 0.2);
  const head = graph.withLayer(3, graphOf(randomLayers(1, 40, 22)).attention[0]);
  const network = new Network(graph);
  const fresh = (of, layer, token) => new Network(of).value(layer, 5, token);
  for (let token = 0; token < 40; token += 7) {
    for (const used of [network, network.withLayer(3, head)]) used.traceSteps(3, 9, token).next();
    assert.equal(network.value(4, 5, token), fresh(graph, 4, token));
    network.traceSteps(3, 1, token).next();
    assert.equal(network.withLayer(3, head).value(3, 5, token), fresh(head, 3, token));
    assert.equal(network.value(3, 5, token), fresh(graph, 3, token));
  }
});
