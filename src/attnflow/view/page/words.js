// What is said: the findings, the numbers as a table, and how it was made.

import { shade } from "./colour.js";
import { shares, spread } from "./graph.js";
import { relativeShades } from "./heat.js";
import {
  answerName,
  cutShort,
  describePrediction,
  formatScore,
  highest,
  METHODS,
  rawFinding,
  SATURATED,
  saturationSentence,
  topFinding,
} from "./prose.js";

// A longer text does not fit into a card.
const MOST_IN_STRIP = 48;

/** What a page does for what is said; `this` is the page. */
export const wordsPart = {
  // What each method says, in a sentence.
  drawFindings() {
    const { numbers, state, counted } = this;
    const position = this.positionName;
    const said = {};
    for (const method of numbers.methods) {
      const scores = this.scores(method);
      if (!scores) {
        said[method] = "Being computed …";
        continue;
      }
      if (method === "raw") {
        const seen = scores.filter((_, token) => this.sees(token));
        const [first] = highest(
          scores,
          scores.map((_, token) => this.sees(token)),
          1,
        );
        const own =
          !numbers.graph || first === undefined
            ? null
            : numbers.ownShare(state.layer, state.position, first);
        said.raw = rawFinding({
          things: this.things,
          where: this.layerName(),
          position,
          top: first === undefined ? null : this.name(first),
          weight: first === undefined ? 0 : scores[first],
          effective: spread(scores),
          count: seen.length,
          own: numbers.graph || state.layer === 1 ? own : 1,
          sink: numbers.causal && !numbers.encoder && first === 0 && state.position > 0,
        });
      } else {
        const others = scores.filter((_, i) => counted[i]).sort();
        const tops = highest(scores, counted, 3).map((token) => [this.name(token), scores[token]]);
        said[method] = topFinding({
          things: this.things,
          method,
          where: this.layerName(),
          position,
          tops,
          alike: scores.filter((score, i) => counted[i] && score > 0.995 * tops[0]?.[1]).length,
          saturated: method === "flow" && this.saturationShare() >= SATURATED,
          relative: numbers.relative || this.data.explanation.options.receptive_field === true,
          lowest: others[0] ?? Infinity,
          low: others[Math.floor(0.1 * others.length)] ?? Infinity,
          apart: shares(scores).reduce((sum, share, i) => (counted[i] ? sum : sum + share), 0),
        });
      }
    }
    this.findings.textContent = said[state.method] ?? "";
    this.findingList.replaceChildren(
      ...numbers.methods
        .filter((method) => this.shownMethods.has(method))
        .map((method) =>
          this.make(
            "div",
            { class: method === state.method ? "card on" : "card" },
            this.make("h3", {}, METHODS[method].name),
            this.make("p", { class: "muted" }, METHODS[method].about),
            this.strip(method),
            this.make("p", {}, said[method]),
          ),
        ),
    );
    this.drawSaturation();
  },

  drawSaturation() {
    this.saturation.textContent = this.saturationWords();
    this.saturation.hidden = this.saturation.textContent === "";
  },

  // The text once more, small, as a method shades it: the whole of a short one, of a long one the
  // words that score highest. Hidden from screen readers, who get the sentence below it.
  strip(method) {
    const { data, counted, theme } = this;
    const scores = this.scores(method);
    if (!scores) return null;
    const shades = relativeShades(scores, counted);
    const strip = this.make("p", { class: "strip", "aria-hidden": "true" });
    const bit = (text, tokens) => {
      const share = tokens.reduce((sum, token) => sum + shades[token], 0);
      const colour = shade(
        theme,
        share,
        tokens.every((token) => !counted[token]),
      );
      const element = this.make("span", {}, cutShort(text, 40));
      if (tokens.some((token) => this.sees(token))) {
        element.style.backgroundColor = colour.hex;
        element.style.color = colour.ink;
      }
      return element;
    };
    if (data.explanation.grid && !data.explanation.text) return this.smallMap(shades);
    strip.dir = data.direction;
    if (this.numbers.tokens <= MOST_IN_STRIP) {
      strip.append(
        ...data.pieces
          .filter(([, tokens]) => !tokens.some((token) => this.patches.has(token)))
          .map(([text, tokens]) => (tokens.length ? bit(text, tokens) : text)),
      );
    } else {
      for (const token of highest(scores, counted, 6)) {
        strip.append(bit(this.numbers.labels[token], [token]), " ");
      }
    }
    if (!data.explanation.grid) return strip;
    return this.make("div", { class: "image-text" }, this.smallMap(shades), strip);
  },

  // The patches of an image, small, as a method shades them.
  smallMap(shades) {
    const { numbers, theme, data } = this;
    const [rows, columns] = data.explanation.grid;
    const size = Math.max(1, Math.floor(96 / Math.max(rows, columns)));
    const canvas = this.make("canvas", {
      class: "small-map",
      width: columns * size,
      height: rows * size,
      "aria-hidden": "true",
    });
    const context = canvas.getContext("2d");
    numbers.labels.forEach((label, token) => {
      if (!this.patches.has(token)) return;
      const [row, column] = label.split(",").map(Number);
      context.fillStyle = shade(theme, shades[token]).hex;
      context.fillRect(column * size, row * size, size, size);
    });
    return canvas;
  },

  // The share of saturated flows of a layer, or null while it is not known.
  saturationShare(layer = this.state.layer) {
    const { numbers, state } = this;
    if (numbers.trace) return numbers.saturation(layer, state.position, state.head);
    const { saturation, layer: explained } = this.data.explanation;
    return layer === explained ? saturation : null;
  },

  saturationWords() {
    const { numbers, state } = this;
    if (!numbers.methods.includes("flow")) return "";
    const shares = Array.from({ length: this.layers }, (_, i) => this.saturationShare(i + 1));
    let first = null;
    for (let layer = this.layers; layer > 0; layer -= 1) {
      if (shares[layer - 1] === null || shares[layer - 1] < SATURATED) break;
      first = layer;
    }
    const called = (layer) => this.layerName(layer);
    return saturationSentence(state.layer, shares[state.layer - 1], first, called);
  },

  buildTable() {
    const make = this.make.bind(this);
    this.tableBody = make("tbody", {});
    this.tableHead = make("tr", {});
    this.tableCaption = make("caption", {});
    this.table = make(
      "details",
      { class: "numbers", ontoggle: () => this.drawTable() },
      make("summary", {}, "The numbers, as a table"),
      make(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of scores" },
        make("table", {}, this.tableCaption, make("thead", {}, this.tableHead), this.tableBody),
      ),
    );
    return this.table;
  },

  drawTable() {
    if (!this.table.open) return;
    const { numbers } = this;
    const columns = numbers.methods.map((method) => [method, this.scores(method)]);
    this.tableCaption.textContent = `Scores for ${this.positionName}, ${this.layerName()}`;
    this.tableHead.replaceChildren(
      this.make("th", { scope: "col" }, numbers.groups ? "part of the text" : "token"),
      ...columns.map(([method]) => this.make("th", { scope: "col" }, METHODS[method].short)),
    );
    const rows = numbers.labels.map((label, token) =>
      this.make(
        "tr",
        {},
        this.make("th", { scope: "row", dir: "auto" }, cutShort(label, 120)),
        ...columns.map(([, scores]) =>
          this.make("td", {}, scores ? formatScore(scores[token]) : "…"),
        ),
      ),
    );
    this.tableBody.replaceChildren(...rows);
  },

  layersInWords() {
    const { encoder, depth } = this.numbers;
    return encoder ? `${encoder[0]} of the encoder, ${depth} of the decoder` : depth;
  },

  buildAbout() {
    const make = this.make.bind(this);
    const { explanation, classes } = this.data;
    const named = (label) => (label ? answerName(label, classes) : null);
    const terms = [
      ["Model", this.data.model],
      ["Task", explanation.task],
      ["Prediction", describePrediction(explanation, classes)],
      ["Explained for", named(explanation.target)],
      ["Compared with", named(explanation.contrast)],
      ["Check", this.data.contribution ? null : this.data.verdict],
      ["Layers", this.layersInWords()],
      ["Tokens", this.numbers.trace ? this.numbers.tokens : explanation.tokens.length],
      ...Object.entries(explanation.options).map(([name, value]) => [
        name.replaceAll("_", " "),
        typeof value === "string" ? value : JSON.stringify(value),
      ]),
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    return make(
      "section",
      { class: "about", "aria-labelledby": this.id("about") },
      make("h2", { id: this.id("about") }, "How it was made"),
      make(
        "dl",
        {},
        ...terms.map(([name, value]) =>
          make("div", {}, make("dt", {}, name), make("dd", { dir: "auto" }, String(value))),
        ),
      ),
      explanation.notes.length
        ? make(
            "ul",
            { class: "notes" },
            ...explanation.notes.map((note) => make("li", { dir: "auto" }, note)),
          )
        : null,
    );
  },
};
