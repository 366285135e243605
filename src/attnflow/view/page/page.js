// The page: contributions to the answer, if there are any; then a text with its tokens shaded, the
// three methods side by side, and the layered graph, all showing one position of one layer. Each part
// of it is in a module of its own.

import { contributionPart } from "./contribution.js";
import { controlsPart, THEMES } from "./controls.js";
import { makeElement } from "./element.js";
import { filesPart } from "./files.js";
import { heatmapPart } from "./heatmap.js";
import { afterFrame, Numbers } from "./numbers.js";
import { highest, howToRead, IMAGE, quote, TEXT } from "./prose.js";
import { fitter } from "./scene.js";
import { sentencesPart } from "./sentences.js";
import { readPicture, textPart } from "./text.js";
import { tracingPart } from "./tracing.js";
import { wordsPart } from "./words.js";

/**
 * Show an explanation in an element.
 *
 * data is what attnflow.view.page.data returns. options may have state, an object with method,
 * layer, position, token, head and special to begin with; theme, "auto", "light" or "dark"; and
 * onChange, a function that is given the state whenever it changes. Returns a promise of {state,
 * set, scores, destroy}: the present state, a function that changes some of it, one that returns
 * the scores shown (null while they are computed), and one that takes everything away again.
 */
export async function mount(element, data, options = {}) {
  const [numbers, picture] = await Promise.all([Numbers.read(data), readPicture(data.picture)]);
  const page = new Page(element, data, numbers, picture, options);
  page.show();
  return {
    get state() {
      return { ...page.state };
    },
    set: (changes) => page.set(changes),
    scores: () => page.scores(),
    destroy: () => page.destroy(),
  };
}

class Page {
  constructor(element, data, numbers, picture, options) {
    this.root = element;
    this.document = element.ownerDocument;
    this.window = this.document.defaultView;
    this.data = data;
    this.numbers = numbers;
    this.picture = picture;
    this.options = options;
    this.fit = fitter(this.document);
    this.labelWidth = this.fit.widest(numbers.labels, 12.5, 700);
    this.leave = new AbortController();
    this.waiting = {};
    this.arrived = new Set();
    this.patches = new Set(data.patches);
    this.things = data.explanation.grid && !data.explanation.text ? IMAGE : TEXT;
    this.themeChoice = THEMES.includes(options.theme) ? options.theme : "auto";
    this.darkScheme = this.window.matchMedia("(prefers-color-scheme: dark)");
    this.shownMethods = new Set(numbers.methods);
    this.printing = false;
    // Contributions without a trace are all that there is to show.
    this.attention = Boolean(numbers.trace) || !data.contribution;
    this.state = { ...data.first, token: null, head: -1, special: false };
    this.knownPosition = numbers.trace || data.explanation.position < numbers.tokens;
    this.wanted = null;
    this.cut = null;
    this.focusNode = null;
    this.build();
    this.set(options.state ?? {}, false);
  }

  make(name, attributes = {}, ...children) {
    return makeElement(this.document, name, attributes, children, this.leave.signal);
  }

  build() {
    const make = this.make.bind(this);
    this.root.replaceChildren();
    this.root.classList.add("attnflow");
    this.live = make("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.tip = make("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.title = make(this.data.contribution ? "h2" : "h1", {});
    this.subtitle = make("p", { class: "subtitle" });

    const header = make(
      "header",
      { class: "masthead" },
      make(
        "p",
        { class: "brand" },
        make("span", { class: "mark", "aria-hidden": "true" }),
        "attnflow",
      ),
      make("div", { class: "tools" }, this.buildThemes(), this.buildDownloads()),
    );
    this.root.append(header);
    if (this.data.contribution) this.root.append(this.buildContribution());
    if (this.attention) this.buildAttention();
    this.root.append(
      this.buildAbout(),
      make(
        "footer",
        {},
        ...(this.attention
          ? [
              "Raw attention, attention rollout and attention flow: Abnar and Zuidema, ",
              make("cite", {}, "Quantifying Attention Flow in Transformers"),
              ", ACL 2020. ",
            ]
          : []),
        "This page makes no network requests.",
      ),
      this.live,
      this.tip,
    );
    this.root.dataset.theme = this.themeChoice;
    this.listen(this.darkScheme, "change", () => this.show());
    this.listen(this.window, "resize", () => this.later("resize", () => this.show(), 60));
    this.listen(this.window, "beforeprint", () => this.print(true));
    this.listen(this.window, "afterprint", () => this.print(false));
  }

  // What attention says: everything that shows one position of one layer.
  buildAttention() {
    const { numbers } = this;
    const make = this.make.bind(this);
    const textPart = numbers.groups ? this.buildSentences() : this.buildWhole();
    this.controls = this.buildControls();
    this.findings = make("p", { class: "finding", id: this.id("finding") });
    this.saturation = make("p", { class: "saturation" });
    const how = make(
      "section",
      { class: "how", "aria-labelledby": this.id("how") },
      make("h2", { id: this.id("how") }, "How to read this"),
      make("p", {}, howToRead(this.things, this.reading())),
    );

    this.root.append(
      make("div", { class: "question" }, this.title, this.subtitle),
      this.controls,
      textPart,
      make("section", { class: "answer", "aria-label": "What it shows" }, this.findings),
      this.buildHeat(),
      how,
      numbers.trace ? this.buildGraph() : this.buildWithout(),
      this.buildTable(),
    );
  }

  // The text, or the image, with the legend of its colours.
  buildWhole() {
    const make = this.make.bind(this);
    this.text = this.buildText();
    this.legend = make("canvas", { class: "scale", width: 240, height: 10, "aria-hidden": "true" });
    this.legendWords = make("span", {});
    return make(
      "section",
      { class: "text-part", "aria-label": this.things === IMAGE ? "The image" : "The text" },
      this.text,
      make("p", { class: "legend" }, make("span", {}, "nothing"), this.legend, this.legendWords),
    );
  }

  // What is worth saying of this explanation in how to read it.
  reading() {
    const { numbers } = this;
    // CLS, by whatever name. Other special tokens, as the mask, stand for something else.
    const whole = numbers.trace && !numbers.encoder && !numbers.causal && numbers.special[0];
    const special = whole && this.data.explanation.position === 0 ? this.name(0) : null;
    return { special, relative: numbers.relative, fixed: !numbers.trace };
  }

  id(name) {
    this.prefix ??= `attnflow-${Math.random().toString(36).slice(2, 8)}`;
    return `${this.prefix}-${name}`;
  }

  listen(target, name, handler) {
    target.addEventListener(name, handler, { signal: this.leave.signal });
  }

  // Do something in a moment, in the place of what else was to be done under the name.
  later(name, work, wait = 0) {
    this.callOff(name);
    const timer = setTimeout(work, wait);
    this.waiting[name] = () => clearTimeout(timer);
  }

  // The same, once what has changed is seen.
  afterFrame(name, work) {
    this.callOff(name);
    this.waiting[name] = afterFrame(work);
  }

  callOff(name) {
    this.waiting[name]?.();
    delete this.waiting[name];
  }

  /** Change some of the state; what is not valid is left as it is. */
  set(changes, redraw = true) {
    const { numbers, state } = this;
    const whole = (value, from, to) => Number.isInteger(value) && value >= from && value <= to;
    const next = { ...state };
    if (numbers.methods.includes(changes.method)) next.method = changes.method;
    if (numbers.trace && whole(changes.position, 0, numbers.tokens - 1)) {
      next.position = changes.position;
      if (changes.token === undefined && changes.position !== state.position) next.token = null;
    }
    // The two sides of an encoder-decoder may have different numbers of layers.
    const layers = numbers.layersOf(next.position);
    next.layer = whole(changes.layer, 1, layers) ? changes.layer : Math.min(next.layer, layers);
    if (changes.token === null || whole(changes.token, 0, numbers.tokens - 1)) {
      next.token = changes.token;
    }
    if (whole(changes.head, -1, numbers.heads - 1)) next.head = changes.head;
    if (typeof changes.special === "boolean") next.special = changes.special;
    if (next.token !== null && !numbers.sees(next.position, next.token)) next.token = null;
    this.state = next;
    if (redraw) this.show();
    this.options.onChange?.({ ...next });
  }

  // In a notebook the page is in a tree of its own, whose focus the document does not tell.
  get focused() {
    return this.root.getRootNode().activeElement ?? null;
  }

  get theme() {
    if (this.printing) return "light";
    if (this.themeChoice !== "auto") return this.themeChoice;
    return this.darkScheme.matches ? "dark" : "light";
  }

  // How many layers the chosen position has.
  get layers() {
    return this.numbers.layersOf(this.state.position);
  }

  layerName(layer = this.state.layer) {
    return this.numbers.layerName(layer, this.state.position);
  }

  get counted() {
    const { numbers, state } = this;
    const all = state.special || numbers.special.every(Boolean);
    return numbers.special.map((special, token) => (all || !special) && this.sees(token));
  }

  sees(token) {
    return this.numbers.sees(this.state.position, token);
  }

  scores(method = this.state.method, layer = this.state.layer) {
    const { numbers, state } = this;
    if (numbers.trace) return numbers.scores(method, layer, state.position, state.head);
    if (method !== numbers.explanation.method) return null;
    return numbers.savedScores(layer);
  }

  knownScores(method, layer) {
    const { numbers, state } = this;
    if (!numbers.trace || layer === state.layer) return this.scores(method, layer);
    return numbers.knownScores(method, layer, state.position, state.head);
  }

  name(token) {
    return quote(this.numbers.labels[token] ?? `position ${token}`);
  }

  // The state as drawings of tokens mark it: a sentence is not the position that is explained.
  get marks() {
    return this.numbers.groups ? { ...this.state, position: -1 } : this.state;
  }

  get positionName() {
    const { state } = this;
    const { sentences } = this.data;
    if (this.numbers.groups && sentences.position !== null) return quote(sentences.position);
    return !this.numbers.groups &&
      this.knownPosition &&
      (this.numbers.trace || wholeTokens(this.data.explanation))
      ? this.name(state.position)
      : `position ${state.position}`;
  }

  show() {
    const { numbers, state } = this;
    // Before anything changes: afterwards the browser would have to lay out all that did.
    if (this.attention) this.measureHeat();
    this.applyTheme();
    if (this.attention) this.showFlows();
    this.drawControls();
    if (this.data.contribution) this.drawContribution();
    if (this.attention) {
      this.drawText();
      this.drawFindings();
      this.drawHeat();
      this.drawGraphSoon();
      this.drawTable();
    }
    Object.assign(this.root.dataset, {
      method: state.method,
      layer: state.layer,
      position: state.position,
      token: state.token ?? "",
      head: state.head,
    });
    this.root.dataset.flow = numbers.job ? "computing" : "done";
  }

  applyTheme() {
    this.root.dataset.theme = this.printing ? "light" : this.themeChoice;
  }

  // Compute the flows that are missing: the chosen layer first.
  showFlows() {
    const { numbers, state } = this;
    if (!numbers.trace) return;
    const name = `${state.position} ${state.head}`;
    const missing = (layer) =>
      !numbers.scores("flow", layer, state.position, state.head) ||
      !numbers.knownScores("rollout", layer, state.position, state.head);
    if (this.wanted === name && (numbers.job || this.allKnown())) return;
    this.wanted = name;
    const layers = Array.from({ length: this.layers }, (_, i) => i + 1)
      .sort((a, b) => Math.abs(a - state.layer) - Math.abs(b - state.layer) || a - b)
      .filter(missing);
    numbers.stop();
    if (layers.length === 0) return;
    this.arrived.clear();
    const arrive = (layer) => {
      this.arrived.add(layer);
      // What is looked at comes at once, and the rest not oftener than the eye can follow.
      const wait = this.arrived.has(this.state.layer) ? 0 : 80;
      if (wait === 0 || !this.waiting.flows) this.later("flows", () => this.flowsArrived(), wait);
    };
    numbers.computeFlows(state.position, layers, state.head, arrive, state.method === "flow");
  }

  allKnown() {
    const { numbers, state } = this;
    for (let layer = 1; layer <= this.layers; layer += 1) {
      if (!numbers.scores("flow", layer, state.position, state.head)) return false;
      if (!numbers.knownScores("rollout", layer, state.position, state.head)) return false;
    }
    return true;
  }

  flowsArrived() {
    const { state, numbers } = this;
    this.callOff("flows");
    this.measureHeat();
    this.drawHeat();
    if (this.arrived.has(state.layer)) {
      this.drawFindings();
      this.drawTable();
      if (state.method === "flow") {
        this.drawText();
        if (!this.cut && !this.waiting.cut) this.drawGraphSoon();
      }
    } else this.drawSaturation();
    this.arrived.clear();
    this.root.dataset.flow = numbers.job ? "computing" : "done";
  }

  // The token whose flow is drawn: the one chosen, or the one most comes from. In a large graph that
  // takes a while to find out, and the one that rollout names is drawn.
  get sink() {
    const { state, numbers, counted } = this;
    if (state.token !== null) return state.token;
    const name = [state.layer, state.position, state.head, state.special].join(" ");
    if (this.traced?.name === name) return this.traced.token;
    const scores = this.scores("flow") ?? (numbers.small ? null : this.scores("rollout"));
    if (!scores) return null;
    const [best] = highest(scores, counted, 1);
    const token =
      best ??
      highest(
        scores,
        scores.map(() => true),
        1,
      )[0] ??
      null;
    this.traced = { name, token };
    return token;
  }

  showTip(event, text) {
    const { tip } = this;
    tip.textContent = text;
    tip.hidden = false;
    const frame = this.document.documentElement;
    const x = Math.min(event.clientX + 14, frame.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < frame.clientHeight;
    const y = below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10;
    tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  destroy() {
    this.numbers.stop();
    this.leave.abort();
    for (const name of Object.keys(this.waiting)) this.callOff(name);
    this.seen?.disconnect();
    this.root.replaceChildren();
    this.root.classList.remove("attnflow", "printing");
  }
}

Object.assign(
  Page.prototype,
  contributionPart,
  controlsPart,
  textPart,
  wordsPart,
  heatmapPart,
  tracingPart,
  filesPart,
  sentencesPart,
);

function wholeTokens(explanation) {
  const { units = "tokens", special_tokens: special, drop_sink: dropped } = explanation.options;
  return units === "tokens" && special !== false && !dropped;
}
