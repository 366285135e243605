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

/**
 * Return the part with a long text: {element, draw, destroy}. sentences has its rows; scoresOf gives
 * the scores of tokens, signed is whether their sign has a meaning, and isSpecial tells whether a
 * token stands outside the scale. title is the heading of the text; highest what is said of the
 * highest of scores without a sign.
 */
export function sentenceList(
  frame,
  { sentences, direction, signed, scoresOf, isSpecial, title = "The text", highest = () => "" },
) {
  const { make } = frame;
  const { name, parts, rows: given, groups } = sentences;
  const bars = make("ol", { class: "tops" });
  const barsRest = make("p", { class: "caption" });
  const list = make("div", { class: "sentences", dir: direction });
  const scale = frame.scale();
  const scaleWords = make("span", {});
  const rows = [];
  const blocks = new Map();
  let entered = null;
  let scores = null;

  let block = null;
  for (const row of given) {
    if (row.heading !== undefined) {
      list.append(make("h3", { dir: "auto" }, row.heading));
      block = null;
      continue;
    }
    if (!block || block.children.length === BLOCK) {
      block = make("ol", { class: "block" });
      blocks.set(block, { rows: [], seen: false });
      list.append(block);
    }
    const built = buildRow(row);
    blocks.get(block).rows.push(built);
    block.append(built.element);
  }
  for (const [element, { rows: own }] of blocks) {
    element.style.containIntrinsicSize = `auto ${2.4 * own.length}em`;
  }
  const openers = rows.filter((row) => row.button);
  if (openers.length) enter(openers[0]);
  const kinds = openers.length
    ? frame.radios({
        label: "The text is divided into",
        attribute: "data-show-units",
        choices: [
          ["sentences", capital(name)],
          ["tokens", capital(parts)],
        ],
        choose: (kind) => openAll(kind === "tokens"),
      })
    : null;
  kinds?.mark("sentences");
  // With margins, so that colours and tokens are there before they scroll into view.
  const seen = new frame.window.IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const part = blocks.get(target);
        part.seen = isIntersecting;
        if (isIntersecting) for (const row of part.rows) paint(row);
      }
    },
    { root: list, rootMargin: "100px 0px" },
  );
  for (const element of blocks.keys()) seen.observe(element);
  frame.listen(list, "click", click);
  frame.listen(list, "keydown", move);
  frame.listen(bars, "click", (event) => {
    const button = event.target.closest?.("[data-unit]");
    if (button) goTo(Number(button.dataset.unit));
  });

  function buildRow({ unit, pieces, apart }) {
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
    row.said = make("span", { class: "said" }, whole.trim() || chipText(whole));
    row.element = make(
      "li",
      { class: row.open ? "row open aside" : "row", "data-row": rows.length },
      row.button ?? make("span", { class: "opener" }, row.number),
      make("p", { dir: "auto" }, row.said),
    );
    row.element.classList.toggle("opens", Boolean(row.button));
    row.element.classList.toggle("apart", Boolean(apart));
    rows.push(row);
    return row;
  }

  function click(event) {
    const element = event.target.closest?.(".row");
    const row = element && rows[Number(element.dataset.row)];
    // A text that somebody selects, to copy it, stays as it is.
    const selected = frame.document.getSelection()?.isCollapsed === false;
    const onButton = event.target.closest("button");
    if (!row?.button || (!onButton && (selected || event.detail > 1))) return;
    open(row, !row.open);
    enter(row);
    paint(row);
  }

  function move(event) {
    const at = openers.indexOf(entered);
    const last = openers.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const row = openers[Math.min(last, Math.max(0, to))];
    enter(row);
    row.button.focus();
  }

  // One of the rows is in the order of tabs.
  function enter(row) {
    if (entered) entered.button.tabIndex = -1;
    row.button.tabIndex = 0;
    entered = row;
  }

  function goTo(unit) {
    const row = rows.find((one) => one.unit === unit);
    if (!row) return;
    const reveal = () => row.element.scrollIntoView({ block: "center" });
    for (const other of list.querySelectorAll(".here")) other.classList.remove("here");
    row.element.classList.add("here");
    reveal();
    // Rows on the way there had no height of their own.
    frame.afterFrame("reveal", reveal);
    if (!row.button) return;
    open(row, true);
    paint(row);
    enter(row);
    row.button.focus({ preventScroll: true });
  }

  function open(row, on) {
    row.open = on;
    row.element.classList.toggle("open", on);
    row.button.setAttribute("aria-expanded", String(on));
  }

  function openAll(on) {
    kinds.mark(on ? "tokens" : "sentences");
    for (const row of openers) if (row.open !== on) open(row, on);
    paintSeen();
  }

  // The scores of tokens and of units, and the largest of each outside of special tokens.
  function present() {
    const tokens = scoresOf();
    const units = sums(groups, tokens);
    const unitSpecial = (unit) => isSpecial(groups[unit][0]);
    const top = (values, left) =>
      values.reduce((most, score, i) => (left(i) ? most : Math.max(most, Math.abs(score))), 0);
    return {
      tokens,
      units,
      unitSpecial,
      topToken: top(tokens, isSpecial),
      topUnit: top(units, unitSpecial),
    };
  }

  const inWords = (score, most) => (signed ? formatAmong(score, most) : formatScore(score));

  function draw() {
    scores = present();
    const { units, tokens, topUnit, topToken } = scores;
    for (const row of rows) {
      const sum = () => row.tokens.reduce((total, token) => total + tokens[token], 0);
      row.score = row.unit === undefined ? sum() : units[row.unit];
      const number = row.tokens.length ? inWords(row.score, topUnit) : "";
      if (row.number.textContent !== number) row.number.textContent = number;
      row.stale = true;
    }
    paintSeen();
    drawBars();
    // Each kind has a scale of its own: a sentence is a sum of many tokens.
    const most = (what, top) =>
      `${inWords(top, top).replace("+", "")} for a ${what.replace(/s$/, "")}`;
    const scales = [most(name, topUnit), ...(name === parts ? [] : [most(parts, topToken)])];
    scaleWords.textContent = signed
      ? `for; full colour is ${scales.join(", ")}; ${parts} against the answer are underlined`
      : `full colour is ${scales.join(", ")}, the highest${highest()}`;
    scale.paint((x) => shade(frame.theme, signed ? 2 * x - 1 : x).hex);
  }

  // The largest as bars; those below 0 reach to the left.
  function drawBars() {
    const { units, unitSpecial, topUnit } = scores;
    const listed = rows.filter(({ unit }) => unit !== undefined && !unitSpecial(unit));
    const size = ({ unit }) => Math.abs(units[unit]);
    const ordered = [...listed].sort((a, b) => size(b) - size(a));
    const best = ordered.slice(0, MOST_BARS);
    const above = Math.max(0, ...best.map(({ unit }) => units[unit]));
    const below = Math.max(0, ...best.map(({ unit }) => -units[unit]));
    const whole = above + below || 1;
    const zero = (100 * below) / whole;
    bars.replaceChildren(
      ...best.map(({ unit, said }) => {
        const score = units[unit];
        const width = (100 * Math.abs(score)) / whole;
        const bar = make("span", { class: "bar" });
        bar.style.width = `${width}%`;
        bar.style.insetInlineStart = `${score < 0 ? zero - width : zero}%`;
        bar.style.backgroundColor = shade(frame.theme, score < 0 ? -0.75 : 0.75).hex;
        const line = make("span", { class: "zero" });
        line.style.insetInlineStart = `${zero}%`;
        return make(
          "li",
          {},
          make(
            "button",
            { type: "button", class: "top", "data-unit": unit },
            make("span", { class: "track", "aria-hidden": "true" }, line, bar),
            make("span", { class: "number" }, inWords(score, topUnit)),
            make("span", { class: "sentence", dir: "auto" }, said.textContent),
          ),
        );
      }),
    );
    const next = ordered[best.length];
    barsRest.textContent = next
      ? `${ordered.length - best.length} more in the text, ${inWords(size(next), topUnit).replace(/^[+-]/, "")} or less each.`
      : "";
  }

  function chipText(text) {
    return text.trim() ? text : text.replaceAll("\n", "\u21b5");
  }

  // Colour what can be seen; the rest follows when it is scrolled to. Paper shows every sentence.
  function paintSeen() {
    for (const { rows: own, seen: inView } of blocks.values()) {
      if (inView || frame.printing) for (const row of own) paint(row);
    }
  }

  // Give a row the colours of its present scores, and make its tokens if it is open.
  function paint(row) {
    const { topUnit } = scores;
    if (row.stale && row.unit !== undefined) {
      const colour = shade(frame.theme, topUnit > 0 ? row.score / topUnit : 0);
      row.said.style.backgroundColor = colour.hex;
      row.said.style.color = colour.ink;
    }
    if (row.stale) {
      row.chips?.remove();
      row.chips = null;
    }
    row.stale = false;
    if (!row.open || row.chips || (frame.printing && row.button)) return;
    row.chips = make("span", { class: "chips" });
    const last = row.pieces.findLastIndex(([text]) => text.trim());
    row.pieces.forEach(([text, tokens], i) => {
      row.chips.append(tokens.length ? chip(text, tokens) : text);
      // A line that breaks within a sentence does so after its token.
      const breaks = row.unit !== undefined && !text.trim() && text.includes("\n");
      if (tokens.length && breaks && i < last) row.chips.append("\n");
    });
    row.said.after(row.chips);
  }

  function chip(text, tokens) {
    const { tokens: every, topToken } = scores;
    const score = tokens.reduce((sum, token) => sum + every[token], 0);
    const element = make("span", { class: "token", title: inWords(score, topToken) });
    element.textContent = chipText(text);
    if (tokens.every(isSpecial)) {
      element.classList.add("special");
      return element;
    }
    const share = topToken > 0 ? score / topToken : 0;
    const colour = shade(frame.theme, share);
    element.classList.toggle("against", share < 0);
    element.style.backgroundColor = colour.hex;
    element.style.color = colour.ink;
    return element;
  }

  const element = make(
    "section",
    { class: "by-sentence", "aria-labelledby": frame.id("bars") },
    make("h2", { id: frame.id("bars") }, `The ${name} with the largest scores`),
    bars,
    barsRest,
    make(
      "div",
      { class: "section-head" },
      make("h2", { id: frame.id("text") }, title),
      kinds?.element,
    ),
    make("p", { class: "legend" }, signed ? "against" : "nothing", scale.element, scaleWords),
    list,
  );
  return { element, draw, destroy: () => seen.disconnect() };
}
