// The text, or the patches of an image: tokens are shaded, and chosen.

import { shade } from "./colour.js";
import { relativeShades } from "./heat.js";
import { cutShort, formatScore, highest, METHODS } from "./prose.js";
import { fromBase64 } from "./trace.js";

// How much of a picture the highest score covers.
const COVER = 0.82;

/** Return the small copy of an image that came with an explanation, or null. */
export async function readPicture(text) {
  if (!text) return null;
  try {
    // Bytes that are decoded here are no request, which the page's policy would not allow.
    return await createImageBitmap(new Blob([fromBase64(text)]));
  } catch {
    return null;
  }
}

/** What a page does for the text; `this` is the page. */
export const textPart = {
  buildText() {
    const make = this.make.bind(this);
    const { data, numbers } = this;
    const { grid } = data.explanation;
    const can = Boolean(numbers.trace);
    const box = make("div", {
      class: grid ? "image-text" : "text",
      dir: grid ? "ltr" : data.direction,
      role: can ? "radiogroup" : "group",
      "aria-label": can ? "The position that is explained" : "The tokens, shaded by score",
    });
    this.tokenElements = Array.from({ length: numbers.tokens }, () => []);
    const chip = (text, tokens) => {
      const token = tokens[0];
      const element = make(
        "span",
        {
          class: tokens.every((i) => numbers.special[i]) ? "token special" : "token",
          role: can ? "radio" : undefined,
          tabindex: can ? "-1" : undefined,
          "data-token": token,
        },
        text,
      );
      for (const i of tokens) this.tokenElements[i].push(element);
      return element;
    };
    const write = (element, parts) => {
      for (const [text, tokens, label] of parts) {
        element.append(tokens.length ? chip(text, tokens) : label ? make("b", {}, text) : text);
      }
      return element;
    };
    if (grid) {
      const cells = this.patchGrid();
      const plain = this.picture ? this.drawPicture("plain-picture") : null;
      for (const token of this.patches) {
        const element = chip("", [token]);
        placePatch(element, numbers.labels[token]);
        cells.append(element);
      }
      const others = data.pieces.filter(([, tokens]) => !tokens.some((i) => this.patches.has(i)));
      if (data.explanation.text) {
        const words = make("div", { class: "text", dir: data.direction });
        box.append(cells, write(words, others));
      } else {
        const named = others.filter(([, tokens]) => tokens.length);
        box.append(write(make("div", { class: "specials" }), named), cells);
      }
      if (plain) box.append(plain);
    } else {
      write(box, data.pieces);
    }
    if (can) {
      this.listen(box, "click", (event) => {
        const token = event.target.closest?.("[data-token]");
        if (token) this.set({ position: Number(token.dataset.token) });
      });
      this.listen(box, "keydown", (event) => this.moveInText(event));
    }
    this.listen(box, "pointermove", (event) => {
      const token = event.target.closest?.("[data-token]");
      if (!token) return this.hideTip();
      return this.showTip(event, this.describeToken(Number(token.dataset.token)));
    });
    this.listen(box, "pointerleave", () => this.hideTip());
    return box;
  },

  // The place of an image's patches, on the picture if there is one.
  patchGrid() {
    const [rows, columns] = this.data.explanation.grid;
    const cells = this.make("div", { class: "patches" });
    cells.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    if (this.picture) {
      cells.classList.add("on-picture");
      cells.style.gridTemplateRows = `repeat(${rows}, minmax(0, 1fr))`;
      cells.style.aspectRatio = `${this.picture.width} / ${this.picture.height}`;
      cells.append(this.drawPicture("picture"));
    }
    return cells;
  },

  drawPicture(name) {
    const { width, height } = this.picture;
    const canvas = this.make("canvas", { class: name, width, height, "aria-hidden": "true" });
    canvas.getContext("2d").drawImage(this.picture, 0, 0);
    return canvas;
  },

  moveInText(event) {
    const here = this.focused?.dataset?.token;
    if (here === undefined) return;
    const at = Number(here);
    const rtl = this.window.getComputedStyle(this.text).direction === "rtl";
    const last = this.numbers.tokens - 1;
    const columns = this.data.explanation.grid?.[1] ?? 1;
    const to = {
      ArrowRight: at + (rtl ? -1 : 1),
      ArrowLeft: at + (rtl ? 1 : -1),
      ArrowDown: at + columns,
      ArrowUp: at - columns,
      Home: 0,
      End: last,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      const next = Math.min(last, Math.max(0, to));
      this.focusToken(next, at);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.set({ position: at });
      this.focusToken(at);
    }
  },

  focusToken(token, before = -1) {
    // Tokens that share a character are one element, which bears the name of the first.
    let next = token;
    const step = before > token ? -1 : 1;
    while (this.tokenElements[next] && this.tokenElements[next].length === 0) next += step;
    let element = this.tokenElements[next]?.[0];
    if (before >= 0 && element === this.tokenElements[before]?.[0]) {
      while (
        this.tokenElements[next]?.[0] === element &&
        next + step >= 0 &&
        next + step < this.numbers.tokens
      ) {
        next += step;
      }
      element = this.tokenElements[next]?.[0] ?? element;
    }
    if (!element) return;
    for (const other of this.text.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    element.tabIndex = 0;
    element.focus();
  },

  drawText() {
    if (this.numbers.groups) {
      this.drawSentences();
      return;
    }
    const { state, numbers, theme, counted } = this;
    const scores = this.scores();
    const shades = scores ? relativeShades(scores, counted) : null;
    const sums = new Map();
    for (let token = 0; token < numbers.tokens; token += 1) {
      for (const element of this.tokenElements[token]) {
        const sum = sums.get(element) ?? { share: 0, score: 0, tokens: [] };
        sum.share += shades ? shades[token] : 0;
        sum.score += scores ? scores[token] : 0;
        sum.tokens.push(token);
        sums.set(element, sum);
      }
    }
    const active = this.focused;
    for (const [element, { share, score, tokens }] of sums) {
      const [token] = tokens;
      const grey = !counted[token];
      const unseen = tokens.every((i) => !this.sees(i));
      const colour = shade(theme, share, grey);
      const over = this.picture && this.patches.has(token) ? cover(share) : "";
      element.style.backgroundColor = unseen || !scores ? "" : `${colour.hex}${over}`;
      element.style.color = unseen || !scores ? "" : colour.ink;
      element.classList.toggle("unseen-token", unseen);
      const chosen = numbers.trace ? tokens.includes(state.position) : false;
      if (numbers.trace) {
        element.setAttribute("aria-checked", String(chosen));
        element.tabIndex = chosen ? 0 : -1;
        const value = unseen
          ? "not seen from here"
          : scores
            ? formatScore(score)
            : "being computed";
        element.setAttribute("aria-label", `${cutShort(numbers.labels[token])}: ${value}`);
      }
      element.classList.toggle("chosen", chosen);
    }
    if (numbers.trace && active && this.text.contains(active)) active.tabIndex = 0;
    const top = scores ? highest(scores, counted, 1) : [];
    this.legendWords.textContent = top.length
      ? `${formatScore(scores[top[0]])}, the highest in this layer${this.greyWords()}`
      : "";
    const context = this.legend.getContext("2d");
    for (let x = 0; x < this.legend.width; x += 1) {
      context.fillStyle = shade(theme, x / (this.legend.width - 1)).hex;
      context.fillRect(x, 0, 1, this.legend.height);
    }
  },

  greyWords() {
    const { numbers, state } = this;
    const left = numbers.special.some(Boolean) && !state.special && !numbers.special.every(Boolean);
    return left ? "; special tokens are in grey, outside the scale" : "";
  },

  describeToken(token) {
    const parts = [cutShort(this.numbers.labels[token], 120)];
    for (const method of this.numbers.methods) {
      const scores = this.scores(method);
      parts.push(`${METHODS[method].short} ${scores ? formatScore(scores[token]) : "…"}`);
    }
    return parts.join("\n");
  },
};

/** Put a patch into its place, by its name, such as "0,1". */
export function placePatch(element, name) {
  element.classList.add("patch");
  const [row, column] = name.split(",").map(Number);
  element.style.gridRow = String(row + 1);
  element.style.gridColumn = String(column + 1);
}

/** Return how far a colour covers a picture, as the last two digits of its name. */
export function cover(share) {
  const part = Math.round(255 * COVER * Math.min(1, Math.max(0, share)));
  return part.toString(16).padStart(2, "0");
}
