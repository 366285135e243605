// What is said: the findings, the numbers as a table, and how it was made.

import { shares, spread } from "./graph.js";
import {
  METHODS,
  cutShort,
  describePrediction,
  formatScore,
  highest,
  rawFinding,
  saturationSentence,
  topFinding,
} from "./prose.js";

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
        const [first] = highest(scores, scores.map((_, token) => this.sees(token)), 1);
        const own =
          state.layer === 1 || !numbers.graph || first === undefined
            ? null
            : numbers.ownShare(state.layer - 1, first);
        said.raw = rawFinding({
          layer: state.layer,
          position,
          top: first === undefined ? null : this.name(first),
          weight: first === undefined ? 0 : scores[first],
          effective: spread(scores),
          count: seen.length,
          own: numbers.graph || state.layer === 1 ? own : 1,
        });
      } else {
        const tops = highest(scores, counted, 3).map((token) => [this.name(token), scores[token]]);
        said[method] = topFinding({
          method,
          layer: state.layer,
          position,
          tops,
          relative: numbers.relative || this.data.explanation.options.receptive_field === true,
          lowest: scores.reduce((least, score, i) => (counted[i] ? Math.min(least, score) : least), Infinity),
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
            this.make("p", {}, said[method]),
          ),
        ),
    );
    this.saturation.textContent = this.saturationWords();
    this.saturation.hidden = this.saturation.textContent === "";
  },

  saturationWords() {
    const { numbers, state } = this;
    if (!numbers.methods.includes("flow")) return "";
    if (!numbers.trace) {
      const { saturation, layer } = this.data.explanation;
      return state.layer === layer ? saturationSentence(layer, saturation, null) : "";
    }
    const shares = Array.from({ length: numbers.layers }, (_, i) =>
      numbers.saturation(i + 1, state.position, state.head),
    );
    let first = null;
    for (let layer = numbers.layers; layer > 0; layer -= 1) {
      if (shares[layer - 1] === null || shares[layer - 1] < 0.95) break;
      first = layer;
    }
    return saturationSentence(state.layer, shares[state.layer - 1], first);
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
    const { numbers, state } = this;
    const columns = numbers.methods.map((method) => [method, this.scores(method)]);
    this.tableCaption.textContent = `Scores for ${this.positionName}, layer ${state.layer}`;
    this.tableHead.replaceChildren(
      this.make("th", { scope: "col" }, "token"),
      ...columns.map(([method]) => this.make("th", { scope: "col" }, METHODS[method].short)),
    );
    const rows = numbers.labels.map((label, token) =>
      this.make(
        "tr",
        {},
        this.make("th", { scope: "row", dir: "auto" }, cutShort(label, 120)),
        ...columns.map(([, scores]) => this.make("td", {}, scores ? formatScore(scores[token]) : "…")),
      ),
    );
    this.tableBody.replaceChildren(...rows);
  },

  buildAbout() {
    const make = this.make.bind(this);
    const { explanation } = this.data;
    const terms = [
      // Of a path, the last folders say which model it is.
      ["Model", explanation.model.replaceAll("\\", "/").replace(/\/+$/, "").split("/").slice(-2).join("/")],
      ["Task", explanation.task],
      ["Prediction", describePrediction(explanation)],
      ["Explained for", explanation.target],
      ["Layers", this.numbers.layers],
      ["Tokens", this.numbers.tokens],
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
        ? make("ul", { class: "notes" }, ...explanation.notes.map((note) => make("li", { dir: "auto" }, note)))
        : null,
    );
  },
};
