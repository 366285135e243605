// A long text by its sentences: the largest as bars, then all of them, each shaded by the sum of its
// tokens' scores. A sentence opens to show its tokens, which are not made before they are seen.

import { shade } from "./colour.js";
import { sums } from "./numbers.js";
import { formatAmong, formatScore } from "./prose.js";

// How many sentences are listed as bars, the largest first.
const MOST_BARS = 12;
// How many rows the browser lays out, and this page colours, together.
const BLOCK = 8;

const capital = (name) => name[0].toUpperCase() + name.slice(1);

/** What a page does for a long text; `this` is the page. */
export const sentencesPart = {
  buildSentences() {
    const make = this.make.bind(this);
    const { name, parts, rows } = this.data.sentences;
    this.bars = make("ol", { class: "tops" });
    this.barsRest = make("p", { class: "caption" });
    this.sentenceList = make("div", { class: "sentences", dir: this.data.direction });
    this.sentenceRows = [];
    this.blocks = new Map();
    let block = null;
    for (const row of rows) {
      if (row.heading !== undefined) {
        this.sentenceList.append(make("h3", { dir: "auto" }, row.heading));
        block = null;
        continue;
      }
      if (!block || block.children.length === BLOCK) {
        block = make("ol", { class: "block" });
        this.blocks.set(block, { rows: [], seen: false });
        this.sentenceList.append(block);
      }
      const built = this.buildRow(row);
      this.blocks.get(block).rows.push(built);
      block.append(built.element);
    }
    for (const [element, { rows: own }] of this.blocks) {
      element.style.containIntrinsicSize = `auto ${2.4 * own.length}em`;
    }
    this.openers = this.sentenceRows.filter((row) => row.button);
    const [first] = this.openers;
    if (first) this.enterRow(first);
    this.sentenceScale = make("canvas", {
      class: "scale",
      width: 240,
      height: 10,
      "aria-hidden": "true",
    });
    this.sentenceWords = make("span", {});
    // With margins, so that colours and tokens are there before they scroll into view.
    this.seen = new this.window.IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          const part = this.blocks.get(target);
          part.seen = isIntersecting;
          if (isIntersecting) for (const row of part.rows) this.paintRow(row);
        }
      },
      { root: this.sentenceList, rootMargin: "100px 0px" },
    );
    for (const element of this.blocks.keys()) this.seen.observe(element);
    this.listen(this.sentenceList, "click", (event) => this.clickSentence(event));
    this.listen(this.sentenceList, "keydown", (event) => this.moveInSentences(event));
    this.listen(this.bars, "click", (event) => {
      const button = event.target.closest?.("[data-unit]");
      if (button) this.goToSentence(Number(button.dataset.unit));
    });
    return make(
      "section",
      { class: "by-sentence", "aria-labelledby": this.id("bars") },
      make("h2", { id: this.id("bars") }, `The ${name} with the largest scores`),
      this.bars,
      this.barsRest,
      make(
        "div",
        { class: "section-head" },
        make("h2", { id: this.id("text") }, "The text"),
        first ? this.buildUnits(name, parts) : null,
      ),
      make(
        "p",
        { class: "legend" },
        this.data.contribution ? "against" : "nothing",
        this.sentenceScale,
        this.sentenceWords,
      ),
      this.sentenceList,
    );
  },

  buildRow({ unit, pieces, apart }) {
    const make = this.make.bind(this);
    const tokens = pieces.flatMap(([, own]) => own);
    const row = { unit, pieces, tokens, open: unit === undefined, chips: null };
    row.number = make("span", { class: "number" });
    if (pieces.filter(([, own]) => own.length).length > 1 && !row.open) {
      row.button = make(
        "button",
        { type: "button", class: "opener", tabindex: -1, "aria-expanded": "false" },
        row.number,
      );
    }
    const whole = pieces.map(([text]) => text).join("");
    row.said = make("span", { class: "said" }, whole.trim() || this.chipText(whole));
    row.element = make(
      "li",
      { class: row.open ? "row open aside" : "row", "data-row": this.sentenceRows.length },
      row.button ?? make("span", { class: "opener" }, row.number),
      make("p", { dir: "auto" }, row.said),
    );
    row.element.classList.toggle("opens", Boolean(row.button));
    row.element.classList.toggle("apart", Boolean(apart));
    this.sentenceRows.push(row);
    return row;
  },

  // Sentences or tokens: all open, or none.
  buildUnits(name, parts) {
    const make = this.make.bind(this);
    const group = make("div", {
      class: "segments small",
      role: "radiogroup",
      "aria-label": "The text is divided into",
    });
    for (const kind of ["sentences", "tokens"]) {
      const on = kind === "sentences";
      group.append(
        make(
          "button",
          {
            type: "button",
            role: "radio",
            "data-show-units": kind,
            "aria-checked": String(on),
            tabindex: on ? 0 : -1,
            onclick: () => this.openAll(kind === "tokens"),
          },
          capital(on ? name : parts),
        ),
      );
    }
    this.arrows(group);
    this.unitButtons = group;
    return group;
  },

  clickSentence(event) {
    const element = event.target.closest?.(".row");
    const row = element && this.sentenceRows[Number(element.dataset.row)];
    // A text that somebody selects, to copy it, stays as it is.
    const selected = this.document.getSelection()?.isCollapsed === false;
    const onButton = event.target.closest("button");
    if (!row?.button || (!onButton && (selected || event.detail > 1))) return;
    this.openSentence(row, !row.open);
    this.enterRow(row);
    this.paintRow(row);
  },

  moveInSentences(event) {
    const at = this.openers.indexOf(this.entered);
    const last = this.openers.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const row = this.openers[Math.min(last, Math.max(0, to))];
    this.enterRow(row);
    row.button.focus();
  },

  // One of the rows is in the order of tabs.
  enterRow(row) {
    if (this.entered) this.entered.button.tabIndex = -1;
    row.button.tabIndex = 0;
    this.entered = row;
  },

  goToSentence(unit) {
    const row = this.sentenceRows.find((one) => one.unit === unit);
    if (!row) return;
    const show = () => row.element.scrollIntoView({ block: "center" });
    for (const other of this.sentenceList.querySelectorAll(".here")) other.classList.remove("here");
    row.element.classList.add("here");
    show();
    // Rows on the way there had no height of their own.
    this.afterFrame("reveal", show);
    if (!row.button) return;
    this.openSentence(row, true);
    this.paintRow(row);
    this.enterRow(row);
    row.button.focus({ preventScroll: true });
  },

  openSentence(row, open) {
    row.open = open;
    row.element.classList.toggle("open", open);
    row.button.setAttribute("aria-expanded", String(open));
  },

  openAll(open) {
    for (const button of this.unitButtons.children) {
      const on = (button.dataset.showUnits === "tokens") === open;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    for (const row of this.openers) if (row.open !== open) this.openSentence(row, open);
    this.paintSeen();
  },

  // The scores of tokens and of units, and the largest of each outside of special tokens.
  sentenceScores() {
    const { data, numbers, state } = this;
    const { explanation, sentences } = data;
    const signed = Boolean(data.contribution);
    const tokens = signed ? explanation.scores : numbers.layerScores[state.layer - 1];
    const units = signed ? sums(sentences.groups, tokens) : this.scores();
    const special = (token) => explanation.special[token] && !(state.special && !signed);
    const unitSpecial = (unit) => special(sentences.groups[unit][0]);
    const top = (scores, left) =>
      scores.reduce((most, score, i) => (left(i) ? most : Math.max(most, Math.abs(score))), 0);
    return {
      signed,
      tokens,
      units,
      special,
      unitSpecial,
      topToken: top(tokens, special),
      topUnit: top(units, unitSpecial),
      words: (score, most) => (signed ? formatAmong(score, most) : formatScore(score)),
    };
  },

  drawSentences() {
    const { theme } = this;
    const shown = this.sentenceScores();
    this.shownScores = shown;
    const { units, tokens, topUnit, topToken, signed, words } = shown;
    for (const row of this.sentenceRows) {
      const sum = () => row.tokens.reduce((total, token) => total + tokens[token], 0);
      row.score = row.unit === undefined ? sum() : units[row.unit];
      const number = row.tokens.length ? words(row.score, topUnit) : "";
      if (row.number.textContent !== number) row.number.textContent = number;
      row.stale = true;
    }
    this.paintSeen();
    this.drawBars(shown);
    const { name, parts } = this.data.sentences;
    // Each kind has a scale of its own: a sentence is a sum of many tokens.
    const most = (what, top) =>
      `${words(top, top).replace("+", "")} for a ${what.replace(/s$/, "")}`;
    const scales = [most(name, topUnit), ...(name === parts ? [] : [most(parts, topToken)])];
    this.sentenceWords.textContent = signed
      ? `for; full colour is ${scales.join(", ")}; ${parts} against the answer are underlined`
      : `full colour is ${scales.join(", ")}, the highest in this layer${this.greyWords()}`;
    const context = this.sentenceScale.getContext("2d");
    const last = this.sentenceScale.width - 1;
    for (let x = 0; x <= last; x += 1) {
      context.fillStyle = shade(theme, signed ? (2 * x) / last - 1 : x / last).hex;
      context.fillRect(x, 0, 1, this.sentenceScale.height);
    }
  },

  // The largest as bars; those below 0 reach to the left.
  drawBars({ units, unitSpecial, topUnit, words }) {
    const { theme } = this;
    const make = this.make.bind(this);
    const rows = this.sentenceRows.filter(({ unit }) => unit !== undefined && !unitSpecial(unit));
    const size = ({ unit }) => Math.abs(units[unit]);
    const best = [...rows].sort((a, b) => size(b) - size(a)).slice(0, MOST_BARS);
    const above = Math.max(0, ...best.map(({ unit }) => units[unit]));
    const below = Math.max(0, ...best.map(({ unit }) => -units[unit]));
    const zero = (100 * below) / (above + below || 1);
    this.bars.replaceChildren(
      ...best.map(({ unit, said }) => {
        const score = units[unit];
        const width = (100 * Math.abs(score)) / (above + below || 1);
        const bar = make("span", { class: "bar" });
        bar.style.width = `${width}%`;
        bar.style.insetInlineStart = `${score < 0 ? zero - width : zero}%`;
        bar.style.backgroundColor = shade(theme, score < 0 ? -0.75 : 0.75).hex;
        const line = make("span", { class: "zero" });
        line.style.insetInlineStart = `${zero}%`;
        return make(
          "li",
          {},
          make(
            "button",
            { type: "button", class: "top", "data-unit": unit },
            make("span", { class: "track", "aria-hidden": "true" }, line, bar),
            make("span", { class: "number" }, words(score, topUnit)),
            make("span", { class: "sentence", dir: "auto" }, said.textContent),
          ),
        );
      }),
    );
    const left = rows.length - best.length;
    const next =
      left > 0
        ? Math.max(
            ...rows
              .map(size)
              .sort((a, b) => b - a)
              .slice(best.length, best.length + 1),
          )
        : 0;
    this.barsRest.textContent =
      left > 0
        ? `${left} more in the text, ${words(next, topUnit).replace(/^[+-]/, "")} or less each.`
        : "";
  },

  chipText(text) {
    return text.trim() ? text : text.replaceAll("\n", "\u21b5");
  },

  // Colour what can be seen; the rest follows when it is scrolled to. Paper shows every sentence.
  paintSeen() {
    for (const { rows, seen } of this.blocks.values()) {
      if (seen || this.printing) for (const row of rows) this.paintRow(row);
    }
  },

  // Give a row the colours of its present scores, and make its tokens if it is open.
  paintRow(row) {
    const { topUnit } = this.shownScores;
    if (row.stale && row.unit !== undefined) {
      const colour = shade(this.theme, topUnit > 0 ? row.score / topUnit : 0);
      row.said.style.backgroundColor = colour.hex;
      row.said.style.color = colour.ink;
    }
    if (row.stale) {
      row.chips?.remove();
      row.chips = null;
    }
    row.stale = false;
    if (!row.open || row.chips || (this.printing && row.button)) return;
    row.chips = this.make("span", { class: "chips" });
    const last = row.pieces.findLastIndex(([text]) => text.trim());
    row.pieces.forEach(([text, tokens], i) => {
      row.chips.append(tokens.length ? this.sentenceChip(text, tokens) : text);
      // A line that breaks within a sentence does so after its token.
      const breaks = row.unit !== undefined && !text.trim() && text.includes("\n");
      if (tokens.length && breaks && i < last) row.chips.append("\n");
    });
    row.said.after(row.chips);
  },

  sentenceChip(text, tokens) {
    const { theme } = this;
    const { tokens: scores, special, topToken, words } = this.shownScores;
    const score = tokens.reduce((sum, token) => sum + scores[token], 0);
    const chip = this.make("span", { class: "token", title: words(score, topToken) });
    chip.textContent = this.chipText(text);
    if (tokens.every(special)) {
      chip.classList.add("special");
      return chip;
    }
    const share = topToken > 0 ? score / topToken : 0;
    const colour = shade(theme, share);
    chip.classList.toggle("against", share < 0);
    chip.style.backgroundColor = colour.hex;
    chip.style.color = colour.ink;
    return chip;
  },
};
