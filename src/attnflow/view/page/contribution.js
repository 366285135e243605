// Contributions: what each token adds to the answer. Blue speaks for it, orange and underlined against it.

import { INKS, shade } from "./colour.js";
import { cutShort, describePrediction } from "./prose.js";
import { toSvg } from "./scene.js";
import { cover, placePatch } from "./text.js";

const UNDERLINED = "what speaks against the answer is underlined";
const BAR_ROW = 25;
// The room that a number needs beside its bar.
const NUMBER_ROOM = 66;
// A patch below 0 has a dash unless its colour is almost none.
const DASHED_BELOW = -0.08;

/**
 * Return the drawing of contributions as bars: to the right for the answer, to the left against it.
 * rows are [label, score, score in words], the last line is what they add up to. Labels take at most
 * a share of the width.
 */
export function contributionScene({ rows, value, theme, width, fit, most = 0.35 }) {
  const ink = INKS[theme];
  const label = Math.min(
    fit.widest([...rows.map(([name]) => name), "together"], 14, 600),
    width * most,
  );
  const largest = (sign) => Math.max(0, ...rows.map(([, score]) => sign * score));
  const [above, below] = [largest(1), largest(-1)];
  const bars = Math.max(40, Math.min(560, width - label - 14 - NUMBER_ROOM * (below > 0 ? 2 : 1)));
  const unit = bars / (above + below || 1);
  const zero = label + 14 + (below > 0 ? NUMBER_ROOM : 0) + below * unit;
  const shapes = [];
  rows.forEach(([name, score, words], i) => {
    const y = i * BAR_ROW;
    const length = Math.abs(score) * unit;
    const left = score < 0;
    const line = { y: y + BAR_ROW / 2 + 5, size: 14, fill: ink.ink };
    shapes.push(
      { ...line, text: fit(name, label, 14, 400), x: label, anchor: "end" },
      {
        rect: [left ? zero - length : zero, y + 4, Math.max(1, length), BAR_ROW - 8],
        fill: shade(theme, left ? -0.75 : 0.75).hex,
      },
      {
        ...line,
        text: words,
        x: left ? zero - length - 6 : zero + length + 6,
        anchor: left ? "end" : "start",
        size: 13,
      },
    );
  });
  const bottom = rows.length * BAR_ROW;
  shapes.push({ rect: [zero - 0.5, 0, 1, bottom], fill: ink.muted });
  if (value !== null) {
    const total = { y: bottom + BAR_ROW / 2 + 9, size: 14, weight: 700, fill: ink.ink };
    shapes.push(
      { rect: [0, bottom + 3, zero + above * unit + NUMBER_ROOM, 1], fill: ink.line },
      { ...total, text: "together", x: label, anchor: "end" },
      { ...total, text: value, x: zero + 6 },
    );
  }
  return { width, height: bottom + (value === null ? 0 : BAR_ROW + 8), shapes };
}

/** What a page does for contributions; `this` is the page. */
export const contributionPart = {
  buildContribution() {
    const make = this.make.bind(this);
    const { data } = this;
    const { contribution } = data;
    const { grid } = data.explanation;
    this.contributionTitle = make("h1", {}, contribution.title);
    const prediction = describePrediction(data.explanation, data.classes);
    this.contributionSubtitle = make(
      "p",
      { class: "subtitle" },
      ["Contributions", data.model, prediction ? `the model predicts ${prediction}` : ""]
        .filter(Boolean)
        .join(" · "),
    );
    if (data.sentences) {
      return make(
        "section",
        { class: "contribution", "aria-label": "Contributions" },
        this.contributionTitle,
        this.contributionSubtitle,
        ...this.buildSaid(),
        this.buildSentences(),
      );
    }
    this.contributionChips = [];
    const chip = (text, share, score) => {
      const element = make("span", { class: "token", title: score }, text);
      element.classList.toggle("special", share === null);
      element.classList.toggle("against", share < 0);
      this.contributionChips.push([element, share]);
      return element;
    };
    const box = make("div", {
      class: grid ? "image-text contributed" : "text contributed",
      dir: grid ? "ltr" : data.direction,
      role: "group",
      "aria-label": "The tokens, shaded by what they add",
    });
    if (grid) {
      const cells = this.patchGrid();
      for (const [name, share, score, , isPatch] of contribution.pieces) {
        if (!isPatch) continue;
        const patch = chip(share < DASHED_BELOW ? "−" : "", share, `${name}: ${score}`);
        placePatch(patch, name);
        cells.append(patch);
        this.contributionChips.at(-1).push(true);
      }
      box.append(cells);
    }
    if (!grid || data.explanation.text) {
      const words = grid ? make("div", { class: "text", dir: data.direction }) : box;
      for (const [text, share, score, label, isPatch] of contribution.pieces) {
        if (isPatch) continue;
        const between = label ? make("b", {}, text) : text;
        words.append(score === null ? between : chip(text, share, score));
      }
      if (grid) box.append(words);
    }
    this.contributionScale = make("canvas", {
      class: "scale",
      width: 240,
      height: 10,
      "aria-hidden": "true",
    });
    this.contributionBars = make("div", { class: "bars" });
    return make(
      "section",
      { class: "contribution", "aria-label": "Contributions" },
      this.contributionTitle,
      this.contributionSubtitle,
      box,
      make(
        "p",
        { class: "legend" },
        make("span", {}, "against"),
        this.contributionScale,
        make("span", {}, data.explanation.text ? `for; ${UNDERLINED}` : "for"),
      ),
      this.contributionBars,
      ...this.buildSaid(),
    );
  },

  // What contributions add up to, what the check found, and how to read a score.
  buildSaid() {
    const { contribution, verdict } = this.data;
    return [
      this.make("p", { class: "finding sum" }, `Sum: ${contribution.sum}.`),
      verdict ? this.make("p", { class: "finding verdict" }, `Check: ${verdict}`) : null,
      this.make("p", { class: "caption" }, contribution.reading),
    ];
  },

  drawContribution() {
    const { theme, data } = this;
    if (data.sentences) {
      this.drawSentences();
      return;
    }
    for (const [element, share, isPatch] of this.contributionChips) {
      const colour = shade(theme, share ?? 0, share === null);
      const over = this.picture && isPatch ? cover(Math.abs(share)) : "";
      element.style.backgroundColor = share === null ? "" : `${colour.hex}${over}`;
      element.style.color = share === null ? "" : colour.ink;
    }
    const canvas = this.contributionScale;
    const context = canvas.getContext("2d");
    for (let x = 0; x < canvas.width; x += 1) {
      context.fillStyle = shade(theme, (2 * x) / (canvas.width - 1) - 1).hex;
      context.fillRect(x, 0, 1, canvas.height);
    }
    const width = this.contributionBars.clientWidth;
    if (width === 0) return;
    const svg = toSvg(this.document, this.contributionDrawing(width));
    svg.setAttribute("role", "img");
    const said = data.contribution.rows.map(([name, , words]) => `${cutShort(name)} ${words}`);
    svg.setAttribute("aria-label", `The largest contributions: ${said.join(", ")}`);
    this.contributionBars.replaceChildren(svg);
  },

  contributionDrawing(width) {
    const { rows, value } = this.data.contribution;
    const most = this.data.sentences ? 0.55 : 0.35;
    return contributionScene({ rows, value, theme: this.theme, width, fit: this.fit, most });
  },
};
