// The layered graph on the page: what flowed to the answer or what could flow to a position, drawn,
// pointed at, and traced.

import { edgeAt, graphScene } from "./layered.js";
import {
  cutSentence,
  cutShort,
  formatAmong,
  formatScore,
  graphWords,
  keptSentence,
  throughSentence,
} from "./prose.js";
import { answerRoutes, attentionRoutes, throughNode } from "./routes.js";
import { toSvg } from "./scene.js";

const GRAPHS = [
  ["answer", "What flowed", "What each edge carried to the answer, with its sign."],
  ["attention", "What could flow", "What the attention weights alone allow, by the chosen method."],
];
// How long to compute at a stretch, in milliseconds, before the page may do something else.
const SLICE = 12;
// Positions of the threshold's slider, from all edges to those of half of what flows in a layer.
const STEPS = 60;
const LEAST = 1e-3;
const MOST = 0.5;

const thresholdAt = (step) =>
  step === 0 ? 0 : LEAST * (MOST / LEAST) ** ((step - 1) / (STEPS - 1));
const stepOf = (threshold) =>
  threshold === 0
    ? 0
    : Math.round(1 + ((STEPS - 1) * Math.log(threshold / LEAST)) / Math.log(MOST / LEAST));
const percent = (share) => `${(100 * share).toPrecision(2)} %`;

/**
 * Return the layered graph: {element, draw, finish, figure, data}. set changes what is shown. draw
 * draws it in a moment, finish at once; data has what tests and others read of it.
 */
export function graphPart(frame, { shown, set, findings }) {
  const { make } = frame;
  const { numbers } = shown;
  const labelWidth = frame.fit.widest(numbers.labels, 12.5, 700);
  const box = make("div", { class: "graph" });
  const cutWords = make("p", { class: "cut" });
  const through = make("p", { class: "through", role: "status" });
  const words = make("p", { class: "caption" });
  const kinds = numbers.carried
    ? frame.radios({
        label: "What the graph shows",
        attribute: "data-graph",
        choices: GRAPHS,
        choose: (graph) => set({ graph, node: null }),
      })
    : null;
  const slider = make("input", {
    type: "range",
    class: "threshold",
    min: 0,
    max: STEPS,
    step: 1,
    id: frame.id("threshold"),
    oninput: (event) => set({ threshold: thresholdAt(Number(event.target.value)) }),
  });
  const sliderWords = make("output", { for: frame.id("threshold") });
  const kept = make("p", { class: "kept" });
  let cut = null;
  let scene = null;
  let routes = null;
  let focusNode = null;

  const isAnswer = () => shown.state.graph === "answer" && Boolean(numbers.carried);
  const isFlow = () => !isAnswer() && shown.state.method === "flow";
  const sinkOf = () => (isFlow() ? shown.sink : shown.state.token);
  const largest = () => (isAnswer() ? routes.unit : 1);
  const amount = (weight) => (isAnswer() ? formatAmong(weight, largest()) : formatScore(weight));

  frame.listen(box, "pointermove", hover);
  frame.listen(box, "pointerleave", () => frame.hideTip());
  frame.listen(box, "click", (event) => {
    const node = event.target.closest?.("[data-layer]");
    if (node) choose(Number(node.dataset.layer), Number(node.dataset.position));
  });
  frame.listen(box, "keydown", move);
  frame.listen(box, "focusin", (event) => {
    const { layer, position } = event.target.dataset ?? {};
    if (layer === undefined) return;
    focusNode = [Number(layer), Number(position)];
    for (const other of box.querySelectorAll('[tabindex="0"]'))
      other.setAttribute("tabindex", "-1");
    event.target.setAttribute("tabindex", "0");
  });

  function cutSteps() {
    const { layer, position, head } = shown.state;
    return numbers.cutSteps(layer, position, shown.sink, head);
  }

  // The graph is drawn after all else, which is then seen at once; a cut may take a few hundredths
  // of a second, and rests when something else is to be done.
  function draw() {
    cut = null;
    if (!isFlow() || shown.sink === null) {
      frame.afterFrame("cut", () => {
        frame.callOff("cut");
        if (isFlow() && shown.sink !== null) draw();
        // A graph without its flow would be gone before it is seen.
        else if (!isFlow() || !scene || shown.scores("flow") || !numbers.job) drawNow();
      });
      return;
    }
    const work = cutSteps();
    const run = () => {
      const until = performance.now() + SLICE;
      while (performance.now() < until) {
        const { done, value } = work.next();
        if (!done) continue;
        frame.callOff("cut");
        cut = value;
        drawNow();
        return;
      }
      frame.later("cut", run);
    };
    frame.afterFrame("cut", run);
  }

  function computed() {
    const { state } = shown;
    if (isAnswer()) return answerRoutes(numbers, state.threshold);
    return attentionRoutes(numbers, state, cut, sinkOf());
  }

  function sceneOf(width) {
    const { node } = shown.state;
    const { theme, fit } = frame;
    return graphScene({ numbers, routes, node, theme, width, fit, labelWidth });
  }

  function drawNow() {
    const width = box.clientWidth;
    if (width === 0) return;
    const { state } = shown;
    routes = computed();
    scene = sceneOf(width);
    const hadFocus = box.contains(frame.focused);
    const svg = toSvg(frame.document, scene);
    svg.setAttribute("role", "group");
    svg.setAttribute(
      "aria-label",
      "The layered graph. Arrow keys move between nodes, Enter chooses one.",
    );
    const home = focusNode ?? [routes.top, state.position];
    let first = null;
    for (const element of svg.children) {
      const node = scene.nodes[element.dataset.key];
      if (!node) {
        element.setAttribute("aria-hidden", "true");
        continue;
      }
      element.setAttribute("data-layer", String(node.layer));
      element.setAttribute("data-position", String(node.token));
      element.setAttribute("role", "button");
      element.setAttribute("tabindex", "-1");
      element.setAttribute("aria-label", describeNode(node));
      element.setAttribute("class", "node");
      first ??= element;
      if (node.layer === home[0] && node.token === home[1]) first = element;
    }
    first?.setAttribute("tabindex", "0");
    box.replaceChildren(svg);
    if (hadFocus) first?.focus({ preventScroll: true });
    write();
  }

  function write() {
    const { state } = shown;
    kinds?.mark(isAnswer() ? "answer" : "attention");
    slider.value = String(stepOf(state.threshold));
    const share = state.threshold === 0 ? "all edges" : percent(state.threshold);
    sliderWords.textContent = share;
    slider.setAttribute("aria-valuetext", share);
    const method = isAnswer() ? "answer" : state.method;
    kept.textContent =
      state.threshold === 0 ? "" : keptSentence(method, routes.kept, state.threshold);
    kept.hidden = kept.textContent === "";
    words.textContent = graphWords({
      method,
      twice: numbers.side(state.position) === "decoder",
      hidden: numbers.tokens - scene.rows.length,
    });
    cutWords.hidden = !isFlow();
    const waiting = "The flow is being computed …";
    cutWords.textContent = isFlow() ? (cut ? ofCut() : waiting) : "";
    through.hidden = state.node === null;
    through.textContent = state.node === null ? "" : ofNode(state.node);
    frame.root.dataset.sink = isAnswer() ? "" : (sinkOf() ?? "");
    frame.root.dataset.cut = cut ? cut.kind : "";
  }

  function ofCut() {
    return cutSentence(
      cut,
      shown.layerName(),
      shown.state.position,
      sinkOf(),
      (token) => shown.name(token),
      (level) => numbers.levelName(level),
    );
  }

  function ofNode(node) {
    const { mass, came, went } = throughNode(routes, node);
    const named = (token) => (edge) => [shown.name(edge[token]), amount(edge.weight)];
    return throughSentence({
      answer: isAnswer(),
      name: shown.name(node[1]),
      place: node[0] === 0 ? "in the input" : `after ${numbers.levelName(node[0])}`,
      mass: amount(mass),
      all: isAnswer() ? formatAmong(numbers.explanation.value ?? 0, largest()) : null,
      came: came.slice(0, 3).map(named("to")),
      went: went.slice(0, 3).map(named("from")),
      top: node[0] === routes.top,
    });
  }

  function describeNode({ layer, token, mass }) {
    const place = layer === 0 ? "input token" : `${numbers.levelName(layer)}, position`;
    const { method } = shown.state;
    const what = isAnswer() ? "adds" : { raw: "attention", rollout: "share", flow: "flow" }[method];
    return `${place} ${cutShort(numbers.labels[token])}${mass ? `: ${what} ${amount(mass)}` : ""}`;
  }

  function hover(event) {
    const { layer, position } = event.target.dataset ?? {};
    if (layer !== undefined) {
      const at = [Number(layer), Number(position)];
      const node = scene.nodes.find((item) => item.layer === at[0] && item.token === at[1]);
      return frame.showTip(event, describeNode(node));
    }
    const svg = box.firstElementChild;
    if (!svg) return undefined;
    const place = svg.getBoundingClientRect();
    const scale = scene.width / place.width;
    const [x, y] = [(event.clientX - place.left) * scale, (event.clientY - place.top) * scale];
    const edge = edgeAt(scene, x, y, 7);
    return edge ? frame.showTip(event, describeEdge(edge)) : frame.hideTip();
  }

  function describeEdge({ layer, from, to, weight, cut: full }) {
    const { state } = shown;
    const graph = numbers.graphOf(state.layer, state.head);
    const label = (token) => cutShort(numbers.labels[token]);
    // Who passed the layers below came from where it last attended, or from the input.
    let below = layer - 1;
    while (below > 0 && graph.passes(below, to)) below -= 1;
    const start = below === 0 ? "input" : numbers.levelName(below);
    const lines = [`${label(to)} (${start}) → ${label(from)} (${numbers.levelName(layer)})`];
    const capacity = graph.passes(layer, from)
      ? "passed on unchanged"
      : `edge weight ${formatScore(graph.capacity(layer, from, to))}`;
    if (isAnswer()) lines.push(`carried ${amount(weight)} of the answer`, capacity);
    else if (state.method === "raw") lines.push(`attention ${amount(weight)}`);
    else lines.push(`${isFlow() ? "flow" : "share"} ${amount(weight)}, ${capacity}`);
    if (full) lines.push("full: part of the minimum cut");
    return lines.join("\n");
  }

  // Of what flowed, a node shows what passes through it; of attention, what reaches it.
  function choose(level, token) {
    focusNode = [level, token];
    if (isAnswer()) {
      const [at, here] = shown.state.node ?? [];
      set({ node: at === level && here === token ? null : [level, token] });
      return;
    }
    if (level === 0) set({ token });
    else set({ layer: numbers.layerAt(level, token), position: token });
    frame.say(findings());
  }

  function move(event) {
    const { layer, position } = event.target.dataset ?? {};
    if (layer === undefined) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(Number(layer), Number(position));
      return;
    }
    if (event.key === "Escape" && shown.state.node) {
      set({ node: null });
      return;
    }
    const { rows } = scene;
    const at = rows.indexOf(Number(position));
    const to = {
      ArrowLeft: [Number(layer) - 1, at],
      ArrowRight: [Number(layer) + 1, at],
      ArrowUp: [Number(layer), at - 1],
      ArrowDown: [Number(layer), at + 1],
      Home: [Number(layer), 0],
      End: [Number(layer), rows.length - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const row = rows[Math.min(rows.length - 1, Math.max(0, to[1]))];
    const node = (level) => box.querySelector(`[data-layer="${level}"][data-position="${row}"]`);
    // Where a position passes layers there are no nodes; the next is further on.
    const step = to[0] > Number(layer) ? 1 : -1;
    let next = to[0];
    while (next > 0 && next < numbers.graph.layers && !node(next)) next += step;
    node(next)?.focus();
  }

  const element = make(
    "section",
    { class: "layers", "aria-labelledby": frame.id("layers") },
    make(
      "div",
      { class: "section-head" },
      make("h2", { id: frame.id("layers") }, "How it gets there"),
      kinds?.element,
    ),
    cutWords,
    make(
      "div",
      { class: "slider" },
      make("label", { for: frame.id("threshold") }, "Only routes above"),
      slider,
      sliderWords,
    ),
    kept,
    box,
    through,
    words,
  );
  return {
    element,
    draw,
    /** Whether a flow is drawn whose cut is not known yet. */
    get waits() {
      return isFlow() && !cut && !frame.waits("cut");
    },
    /** Draw at once, with the cut. */
    finish() {
      frame.callOff("cut");
      if (isFlow() && shown.sink !== null) {
        const work = cutSteps();
        let step = work.next();
        while (!step.done) step = work.next();
        cut = step.value;
      }
      drawNow();
    },
    figure(width) {
      routes = computed();
      return [
        sceneOf(width),
        ...[cutWords, kept, through]
          .filter((part) => part.textContent)
          .map((part) => ({ text: part.textContent, size: 13 })),
      ];
    },
  };
}

/** Return what stands in the place of the graph where the attention was not saved. */
export function withoutGraph({ make }) {
  return make(
    "section",
    { class: "layers" },
    make("h2", {}, "How it gets there"),
    make(
      "p",
      { class: "caption" },
      "The attention itself was not saved with this explanation: for a very long text, or a sound, " +
        "it is too large for a page. So no other method, position or path can be shown.",
    ),
  );
}
