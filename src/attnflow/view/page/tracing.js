// The layered graph on the page: drawn, pointed at, and traced.

import { edgeAt, graphScene } from "./layered.js";
import { cutSentence, cutShort, formatScore } from "./prose.js";
import { toSvg } from "./scene.js";

/** What a page does for the graph; `this` is the page. */
export const tracingPart = {
  buildGraph() {
    const make = this.make.bind(this);
    this.graphBox = make("div", { class: "graph" });
    this.cutWords = make("p", { class: "cut" });
    this.graphWords = make("p", { class: "caption" });
    this.listen(this.graphBox, "pointermove", (event) => this.hoverGraph(event));
    this.listen(this.graphBox, "pointerleave", () => this.hideTip());
    this.listen(this.graphBox, "click", (event) => {
      const node = event.target.closest?.("[data-layer]");
      if (node) this.chooseNode(Number(node.dataset.layer), Number(node.dataset.position));
    });
    this.listen(this.graphBox, "keydown", (event) => this.moveInGraph(event));
    this.listen(this.graphBox, "focusin", (event) => {
      const { layer, position } = event.target.dataset ?? {};
      if (layer === undefined) return;
      this.focusNode = [Number(layer), Number(position)];
      for (const other of this.graphBox.querySelectorAll('[tabindex="0"]')) {
        other.setAttribute("tabindex", "-1");
      }
      event.target.setAttribute("tabindex", "0");
    });
    return make(
      "section",
      { class: "layers", "aria-labelledby": this.id("layers") },
      make("h2", { id: this.id("layers") }, "How it gets there"),
      this.cutWords,
      this.graphBox,
      this.graphWords,
    );
  },

  buildWithout() {
    return this.make(
      "section",
      { class: "layers" },
      this.make("h2", {}, "How it gets there"),
      this.make(
        "p",
        { class: "caption" },
        "The attention itself was not saved with this explanation: for a very long text, or a sound, " +
          "it is too large for a page. So no other method, position or path can be shown.",
      ),
    );
  },

  // The graph is drawn after all else, which is then seen at once; a cut may take a few hundredths
  // of a second, and rests when something else is to be done.
  drawGraphSoon() {
    if (!this.graphBox) return;
    this.cut = null;
    const sink = this.state.method === "flow" ? this.sink : null;
    if (sink === null) {
      this.afterFrame("cut", () => {
        this.callOff("cut");
        const flow = this.state.method === "flow";
        if (flow && this.sink !== null) this.drawGraphSoon();
        // A graph without its flow would be gone before it is seen.
        else if (!flow || !this.graph || this.scores("flow") || !this.numbers.job) this.drawGraph();
      });
      return;
    }
    const { layer, position, head } = this.state;
    const work = this.numbers.cutSteps(layer, position, sink, head);
    const run = () => {
      const until = performance.now() + 12;
      while (performance.now() < until) {
        const { done, value } = work.next();
        if (!done) continue;
        this.callOff("cut");
        this.cut = value;
        this.drawGraph();
        return;
      }
      this.later("cut", run);
    };
    this.afterFrame("cut", run);
  },

  drawGraph() {
    const { numbers, state, cut } = this;
    const width = this.graphBox.clientWidth;
    if (width === 0) return;
    const sink = state.method === "flow" ? this.sink : null;
    const shown = { ...state, token: state.method === "flow" ? sink : state.token };
    const scene = graphScene({
      numbers,
      state: shown,
      theme: this.theme,
      width,
      cut,
      fit: this.fit,
      labelWidth: this.labelWidth,
    });
    this.graph = scene;
    const hadFocus = this.graphBox.contains(this.focused);
    const svg = toSvg(this.document, scene);
    svg.setAttribute("role", "group");
    svg.setAttribute(
      "aria-label",
      "The layered graph. Arrow keys move between nodes, Enter chooses one.",
    );
    const home = this.focusNode ?? [numbers.level(state.layer, state.position), state.position];
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
      element.setAttribute("aria-label", this.describeNode(node));
      element.setAttribute("class", "node");
      first ??= element;
      if (node.layer === home[0] && node.token === home[1]) first = element;
    }
    first?.setAttribute("tabindex", "0");
    this.graphBox.replaceChildren(svg);
    if (hadFocus) first?.focus({ preventScroll: true });
    const rest = numbers.tokens - scene.rows.length;
    const words = {
      raw: "Raw attention: every step is drawn by its weight alone. The chosen position's own step is in colour; the steps below it, in grey, are what raw attention leaves out.",
      rollout:
        "Rollout: the width of an edge is the share of the chosen position that comes along it. All edges into a layer sum to 1.",
      flow: `Flow: one way to send the most from the ringed token to the ringed position. Dashed edges are the minimum cut: they are full, and widening anything else would change nothing.`,
    }[state.method];
    const twice =
      numbers.side(state.position) === "decoder"
        ? " A layer of the decoder is two steps: it attends to the target so far, then to the source."
        : "";
    const hidden =
      rest === 0
        ? ""
        : rest === 1
          ? " The token that matters least here is not drawn."
          : ` Of all tokens, the ${rest} that matter least here are not drawn.`;
    this.graphWords.textContent = `${words}${twice}${hidden} Choose a node to trace what reaches it.`;
    this.cutWords.hidden = state.method !== "flow";
    if (state.method === "flow") {
      this.cutWords.textContent = cut
        ? cutSentence(
            cut,
            this.layerName(),
            state.position,
            sink,
            (token) => this.name(token),
            (level) => numbers.levelName(level),
          )
        : "The flow is being computed …";
    }
    this.root.dataset.sink = sink ?? "";
    this.root.dataset.cut = cut ? cut.kind : "";
  },

  describeNode({ layer, token, mass }) {
    const place = layer === 0 ? "input token" : `${this.numbers.levelName(layer)}, position`;
    const what = { raw: "attention", rollout: "share", flow: "flow" }[this.state.method];
    const amount = mass > 0 ? `: ${what} ${formatScore(mass)}` : "";
    return `${place} ${cutShort(this.numbers.labels[token])}${amount}`;
  },

  hoverGraph(event) {
    const { layer, position } = event.target.dataset ?? {};
    if (layer !== undefined) {
      const node = this.graph.nodes.find(
        (item) => item.layer === Number(layer) && item.token === Number(position),
      );
      return this.showTip(event, this.describeNode(node));
    }
    const svg = this.graphBox.firstElementChild;
    if (!svg) return undefined;
    const box = svg.getBoundingClientRect();
    const scale = this.graph.width / box.width;
    const edge = edgeAt(
      this.graph,
      (event.clientX - box.left) * scale,
      (event.clientY - box.top) * scale,
      7,
    );
    return edge ? this.showTip(event, this.describeEdge(edge)) : this.hideTip();
  },

  describeEdge({ layer, from, to, weight, cut }) {
    const { numbers } = this;
    const graph = numbers.graphOf(this.state.layer, this.state.head);
    const label = (token) => cutShort(numbers.labels[token]);
    // Who passed the layers below came from where it last attended, or from the input.
    let below = layer - 1;
    while (below > 0 && graph.passes(below, to)) below -= 1;
    const start = below === 0 ? "input" : numbers.levelName(below);
    const lines = [`${label(to)} (${start}) → ${label(from)} (${numbers.levelName(layer)})`];
    const amount = formatScore(weight);
    if (this.state.method === "raw") lines.push(`attention ${amount}`);
    else {
      const what = this.state.method === "flow" ? "flow" : "share";
      const capacity = graph.passes(layer, from)
        ? "passed on unchanged"
        : `edge weight ${formatScore(graph.capacity(layer, from, to))}`;
      lines.push(`${what} ${amount}, ${capacity}`);
    }
    if (cut) lines.push("full: part of the minimum cut");
    return lines.join("\n");
  },

  chooseNode(level, position) {
    if (level === 0) this.set({ token: position });
    else {
      this.focusNode = [level, position];
      this.set({ layer: this.numbers.layerAt(level, position), position });
    }
    this.live.textContent = this.findings.textContent;
  },

  moveInGraph(event) {
    const { layer, position } = event.target.dataset ?? {};
    if (layer === undefined) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.chooseNode(Number(layer), Number(position));
      return;
    }
    const { rows } = this.graph;
    const at = rows.indexOf(Number(position));
    const [l, row] = {
      ArrowLeft: [Number(layer) - 1, at],
      ArrowRight: [Number(layer) + 1, at],
      ArrowUp: [Number(layer), at - 1],
      ArrowDown: [Number(layer), at + 1],
      Home: [Number(layer), 0],
      End: [Number(layer), rows.length - 1],
    }[event.key] ?? [null, null];
    if (l === null) return;
    event.preventDefault();
    const to = rows[Math.min(rows.length - 1, Math.max(0, row))];
    const node = (level) =>
      this.graphBox.querySelector(`[data-layer="${level}"][data-position="${to}"]`);
    // Where a position passes layers there are no nodes; the next is further on.
    const step = l > Number(layer) ? 1 : -1;
    let next = l;
    while (next > 0 && next < this.numbers.graph.layers && !node(next)) next += step;
    node(next)?.focus();
  },
};
