// What is chosen to be shown, and what follows from it alone.

import { relativeShades } from "./heat.js";
import { highest, IMAGE, quote, TEXT } from "./prose.js";

/** From this many tokens on, colours are relative to the text's median at first. */
export const MANY_TOKENS = 100;
// The largest number of heads that are drawn over each other.
export const MOST_OPENED = 6;

const whole = (value, from, to) => Number.isInteger(value) && value >= from && value <= to;

/** The choices of a page, and what of its numbers they show. */
export class Shown {
  /** data is what attnflow.view.page.data returns, numbers are read from it. */
  constructor(data, numbers) {
    this.data = data;
    this.numbers = numbers;
    this.things = data.explanation.grid && !data.explanation.text ? IMAGE : TEXT;
    this.patches = new Set(data.patches);
    this.first = {
      ...data.first,
      token: null,
      head: -1,
      special: false,
      relative: !numbers.groups && numbers.tokens >= MANY_TOKENS && !data.explanation.grid,
      graph: numbers.carried ? "answer" : "attention",
      threshold: 0,
      node: null,
      opened: [],
    };
    this.state = { ...this.first };
    this.traced = null;
  }

  /** Change some of the state; what is not valid is left as it is. */
  set(changes) {
    const { numbers, state } = this;
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
    for (const name of ["special", "relative"]) {
      if (typeof changes[name] === "boolean") next[name] = changes[name];
    }
    if (changes.graph === "attention" || (changes.graph === "answer" && numbers.carried)) {
      next.graph = changes.graph;
    }
    if (changes.threshold >= 0 && changes.threshold <= 1) next.threshold = changes.threshold;
    if (changes.node !== undefined) next.node = this.checkedNode(changes.node);
    if (Array.isArray(changes.opened)) next.opened = this.checkedHeads(changes.opened);
    if (next.token !== null && !numbers.sees(next.position, next.token)) next.token = null;
    this.state = next;
  }

  checkedNode(node) {
    const { numbers } = this;
    const [level, token] = node ?? [];
    const valid =
      numbers.graph && whole(level, 0, numbers.graph.layers) && whole(token, 0, numbers.tokens - 1);
    return valid ? [level, token] : null;
  }

  checkedHeads(opened) {
    const { numbers } = this;
    const valid = ([layer, head] = []) =>
      whole(layer, 1, numbers.trace?.heads?.length ?? 0) && whole(head, 0, numbers.heads - 1);
    return opened.filter(valid).slice(0, MOST_OPENED);
  }

  /** Whether there is anything of attention to show, beside contributions. */
  get attention() {
    return Boolean(this.numbers.trace) || !this.data.contribution;
  }

  /** How many layers the chosen position has. */
  get layers() {
    return this.numbers.layersOf(this.state.position);
  }

  layerName(layer = this.state.layer) {
    return this.numbers.layerName(layer, this.state.position);
  }

  sees(token) {
    return this.numbers.sees(this.state.position, token);
  }

  /** Which tokens the scale of colours is made for. */
  get counted() {
    const { special } = this.numbers;
    const all = this.state.special || special.every(Boolean);
    return special.map((apart, token) => (all || !apart) && this.sees(token));
  }

  /** The scores of a method and layer, or null while they are computed. */
  scores(method = this.state.method, layer = this.state.layer) {
    const { numbers, state } = this;
    if (numbers.trace) return numbers.scores(method, layer, state.position, state.head);
    return method === numbers.explanation.method ? numbers.savedScores(layer) : null;
  }

  /** The same, but null where they would take long to compute. */
  knownScores(method, layer) {
    const { numbers, state } = this;
    if (!numbers.trace || layer === state.layer) return this.scores(method, layer);
    return numbers.knownScores(method, layer, state.position, state.head);
  }

  /** Scores as shares of the highest one, as colours show them. */
  shares(scores) {
    return relativeShades(scores, this.counted, this.state.relative);
  }

  /** The share of saturated flows of a layer, or null while it is not known. */
  saturation(layer = this.state.layer) {
    const { numbers, state } = this;
    if (numbers.trace) return numbers.saturation(layer, state.position, state.head);
    const { saturation, layer: explained } = this.data.explanation;
    return layer === explained ? saturation : null;
  }

  name(token) {
    return quote(this.numbers.labels[token] ?? `position ${token}`);
  }

  /** What the chosen position is called. */
  get positionName() {
    const { numbers, state, data } = this;
    if (numbers.groups) {
      const { position } = data.sentences;
      return position === null ? `position ${state.position}` : quote(position);
    }
    const {
      units = "tokens",
      special_tokens: special,
      drop_sink: dropped,
    } = data.explanation.options;
    const all = units === "tokens" && special !== false && !dropped;
    const known = numbers.trace || (all && data.explanation.position < numbers.tokens);
    return known ? this.name(state.position) : `position ${state.position}`;
  }

  /** The state as drawings of tokens mark it: a sentence is not the position that is explained. */
  get marks() {
    return this.numbers.groups ? { ...this.state, position: -1 } : this.state;
  }

  /**
   * The token whose flow is drawn: the one chosen, or the one most comes from. In a large graph that
   * takes a while to find out, and the one that rollout names is drawn.
   */
  get sink() {
    const { state, numbers, counted } = this;
    if (state.token !== null) return state.token;
    const name = [state.layer, state.position, state.head, state.special].join(" ");
    if (this.traced?.name === name) return this.traced.token;
    const scores = this.scores("flow") ?? (numbers.small ? null : this.scores("rollout"));
    if (!scores) return null;
    const every = scores.map(() => true);
    const [token = null] = [...highest(scores, counted, 1), ...highest(scores, every, 1)];
    this.traced = { name, token };
    return token;
  }

  /** What is said where special tokens are outside the scale. */
  get greyWords() {
    const { numbers, state } = this;
    const left = numbers.special.some(Boolean) && !state.special && !numbers.special.every(Boolean);
    return left ? "; special tokens are in grey, outside the scale" : "";
  }
}
