// Two texts compared: what the model answers for each, and their scores as bars on one scale.

import {
  answerName,
  CONTRIBUTION,
  formatAmong,
  formatShare,
  howToRead,
  quote,
  TEXT,
} from "../../view/page/prose.js";
import { align } from "./align.js";

/** What the two texts are called. */
export const RESULT_NAMES = ["First text", "Second text"];

/**
 * Return the comparison of two pages: {element, draw}. draw is given the scores that both show, for
 * attention methods, and the name of what they are.
 */
export function comparisonPart(frame, { pages }) {
  const { make } = frame;
  const [{ contribution: answered }] = pages;
  const contributions = pages.every((page) => page.contribution);
  // Contributions are of the units that were asked for, attention of the tokens that are shown.
  const names = pages.map((page) => (contributions ? page.names : page.labels));
  const tokens = pages.map(({ explanation, trace, labels }) => {
    return contributions ? explanation.tokens : (trace?.tokens ?? labels);
  });
  const special = contributions ? pages[0].explanation.special : pages[0].special;
  const said = pages.map(prediction);
  const targets = pages.map(({ explanation }) => explanation.target);
  const alike = targets[0] === targets[1] && targets[0] !== null;
  const what = alike ? quote(answerName(targets[0], pages[0].classes)) : "the text's own answer";
  const finding = make("p", { class: "finding" });
  const scale = make("p", { class: "caption" });
  const body = make("tbody");
  // What is alike is named apart within its text, as in "the (1st)", but is the same token.
  const rows = align(...tokens).map(([i, j]) => pairRow(i, j));
  body.append(...rows.map(({ row }) => row));
  const header = (text) => make("th", { scope: "col" }, text);
  const caption = make("caption");
  const element = make(
    "section",
    { class: "comparison", "aria-label": "Comparison" },
    make("h2", { class: "headline" }, headline(said)),
    make("div", { class: "answers" }, ...pages.map(answerCard)),
    finding,
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Scores of both texts" },
      make(
        "table",
        { class: "pairs" },
        caption,
        make(
          "thead",
          {},
          make("tr", {}, ...["First", "Second", "Scores of both", "Change"].map(header)),
        ),
        body,
      ),
    ),
    scale,
    ...help(),
  );
  let drawn = [];

  function bar(side) {
    const fill = make("span", { class: `fill ${side}`, "aria-hidden": "true" });
    const value = make("span", { class: "value" });
    const zero = make("span", { class: "zero", "aria-hidden": "true" });
    const track = make("span", { class: "track" }, fill, zero);
    return { box: make("div", { class: "bar-line" }, value, track), fill, value, zero };
  }

  function pairRow(i, j) {
    const [one, two] = [i === null ? null : bar("one"), j === null ? null : bar("two")];
    const named = (side, at) => (at === null ? "–" : names[side][at]);
    const equal = i !== null && j !== null && tokens[0][i] === tokens[1][j];
    const change = make("td", { class: "change" }, "–");
    const row = make(
      "tr",
      { class: equal ? undefined : "differs" },
      make("th", { scope: "row", dir: "auto" }, named(0, i)),
      make("td", { class: "name", dir: "auto" }, named(1, j)),
      make("td", {}, one?.box, two?.box),
      change,
    );
    return { row, i, j, one, two, change };
  }

  function answerCard(page, index) {
    const { explanation } = page;
    const { value } = explanation;
    return make(
      "div",
      { class: "card" },
      make("h3", {}, RESULT_NAMES[index]),
      make("p", { class: "asked", dir: "auto" }, shortened(explanation.text)),
      said[index] && make("p", { class: "given" }, make("b", {}, said[index].name)),
      said[index] && make("p", { class: "muted" }, `${said[index].share} sure`),
      contributions && value !== null
        ? make("p", {}, `${page.contribution.title}: ${page.contribution.value}`)
        : null,
    );
  }

  // What is the same for both texts.
  function help() {
    const caption = (text) => make("p", { class: "caption" }, text);
    if (contributions) return [answered.reading, ...answered.terms].map(caption);
    const relative = pages[0].explanation.options.receptive_field === true;
    return [
      make(
        "details",
        { class: "help" },
        make("summary", {}, "How to read this"),
        caption(howToRead(TEXT, { relative })),
      ),
    ];
  }

  return {
    element,
    draw(shown, called) {
      const scores = contributions ? pages.map((page) => page.explanation.scores) : shown;
      if (scores.some((values) => values === null)) return;
      // Pages also tell of what changes no score.
      const now = [called, ...scores.flatMap((values) => Array.from(values))];
      if (now.length === drawn.length && now.every((value, at) => value === drawn[at])) return;
      drawn = now;
      const all = scores.flatMap((values) => Array.from(values));
      const [above, below] = [Math.max(0, ...all), Math.max(0, ...all.map((value) => -value))];
      const whole = Math.max(1e-12, above + below);
      const largest = Math.max(above, below);
      const format = (value) =>
        contributions ? formatAmong(value, largest) : formatAmong(value, largest).replace("+", "");
      const draw = ({ fill, value, zero }, score) => {
        zero.style.insetInlineStart = `${(100 * below) / whole}%`;
        fill.style.insetInlineStart = `${(100 * (below + Math.min(0, score))) / whole}%`;
        fill.style.width = `${(100 * Math.abs(score)) / whole}%`;
        fill.classList.toggle("against", score < 0);
        value.textContent = format(score);
      };
      for (const { i, j, one, two, change } of rows) {
        if (one) draw(one, scores[0][i]);
        if (two) draw(two, scores[1][j]);
        if (one && two) change.textContent = formatAmong(scores[1][j] - scores[0][i], largest);
      }
      const method = contributions ? CONTRIBUTION.name : called;
      caption.textContent = method;
      finding.textContent = inShort(scores, format);
      scale.textContent =
        "All bars are on one scale: solid for the first text, hollow for the second." +
        (contributions
          ? ` Blue to the right speaks for ${what}, orange to the left against it.`
          : "");
    },
  };

  // The score that changes most, of tokens that are not special.
  function inShort([one, two], format) {
    const paired = rows.filter(({ i, j }) => i !== null && j !== null);
    const usual = paired.filter(({ i }) => !special[i]);
    const by = ({ i, j }) => Math.abs(two[j] - one[i]);
    const [most] = (usual.length > 0 ? usual : paired).sort((x, y) => by(y) - by(x));
    if (!most) return "";
    const [left, right] = [names[0][most.i], names[1][most.j]];
    const name = left === right ? quote(left) : `${quote(left)} / ${quote(right)}`;
    return (
      `The score that changes most is that of ${name}: ` +
      `${format(one[most.i])} and ${format(two[most.j])}.`
    );
  }
}

function prediction({ explanation, classes }) {
  const found = explanation.prediction;
  if (!found) return null;
  return { name: answerName(found.label, classes), share: formatShare(found.probability) };
}

function headline(said) {
  if (!said.every(Boolean)) return "Two texts compared";
  const [one, two] = said.map(({ name }) => name);
  if (one === two) return `Both are answered with ${quote(one)}`;
  return `The answer goes from ${quote(one)} to ${quote(two)}`;
}

function shortened(text) {
  return quote(text, 160).slice(1, -1);
}
