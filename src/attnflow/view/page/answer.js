// The answer and what it came from: the headline, the text shaded by contribution, one sentence, the
// verdict of the check, and the largest contributions as bars.

import { barScene } from "./bars.js";
import { signedText } from "./chips.js";
import { shade } from "./colour.js";
import { cutShort } from "./prose.js";
import { toSvg } from "./scene.js";
import { sentenceList } from "./sentences.js";

const UNDERLINED = "what speaks against the answer is underlined";
const VERDICTS = { true: "holds", false: "fails", null: "open" };

/** Return the part of a page that shows contributions: {element, draw, figure}. */
export function answerPart(frame, { data, picture }) {
  const { make } = frame;
  const { contribution, verdict } = data;
  const title = make("h1", {}, contribution.title);
  const subtitle = make("p", { class: "subtitle" }, contribution.subtitle);
  const gist = make("p", { class: "finding gist" }, contribution.gist);
  const said = [
    gist,
    verdict &&
      make(
        "p",
        { class: `finding verdict ${VERDICTS[verdict.holds]}` },
        make("b", {}, "Check: "),
        verdict.short,
      ),
  ];
  const details = [
    make("p", { class: "finding sum" }, `Sum: ${contribution.sum}.`),
    make("p", { class: "caption" }, contribution.reading),
    verdict && make("p", { class: "caption" }, `How it was checked: ${verdict.long}`),
    ...contribution.terms.map((term) => make("p", { class: "caption term" }, term)),
  ];
  const { scores, special } = data.explanation;
  const long = data.sentences
    ? sentenceList(frame, {
        sentences: data.sentences,
        direction: data.direction,
        signed: true,
        scoresOf: () => scores,
        isSpecial: (token) => special[token],
      })
    : null;
  const text = long ? null : shadedText(frame, data, picture);
  const bars = long ? null : signedBars(frame, contribution);
  const element = make(
    "section",
    { class: "contribution", "aria-label": "The answer" },
    make("p", { class: "kicker" }, contribution.kicker),
    title,
    subtitle,
    ...(long
      ? [...said, long.element]
      : [
          text.element,
          ...said,
          make("h2", {}, contribution.rows.length > 1 ? "What added up to it" : "What made it"),
          bars.element,
        ]),
    ...details,
  );
  const scene = (width) => {
    const { rows, value } = contribution;
    const most = long ? 0.55 : 0.35;
    return barScene({ rows, value, theme: frame.theme, width, fit: frame.fit, most });
  };
  return {
    element,
    draw() {
      if (long) long.draw();
      else {
        text.draw();
        bars.draw(scene);
      }
    },
    destroy: () => long?.destroy(),
    /** The same as parts of a figure. */
    figure: (width) => [
      { text: contribution.title, size: 20, weight: 700 },
      { text: contribution.subtitle, size: 13, quiet: true },
      { text: contribution.gist, size: 13 },
      scene(width),
      { text: `Sum: ${contribution.sum}.`, size: 13 },
      ...(verdict ? [{ text: `Check: ${verdict.short}`, size: 13 }] : []),
      { text: contribution.reading, size: 12, quiet: true },
    ],
  };
}

function shadedText(frame, data, picture) {
  const { make } = frame;
  const { grid, text: words } = data.explanation;
  const scale = frame.scale();
  const text = signedText(frame, {
    pieces: data.contribution.pieces,
    grid,
    picture,
    direction: data.direction,
    words: !grid || Boolean(words),
    label: "The tokens, shaded by what they add",
  });
  const legend = make(
    "p",
    { class: "legend" },
    make("span", {}, "against"),
    scale.element,
    make("span", {}, words ? `for; ${UNDERLINED}` : "for"),
  );
  return {
    element: make("div", {}, text.element, legend),
    draw() {
      text.draw();
      scale.paint((x) => shade(frame.theme, 2 * x - 1).hex);
    },
  };
}

function signedBars(frame, { rows }) {
  const element = frame.make("div", { class: "bars" });
  const said = rows.map(([name, , words]) => `${cutShort(name)} ${words}`);
  return {
    element,
    draw(scene) {
      const width = element.clientWidth;
      if (width === 0) return;
      const svg = toSvg(frame.document, scene(width));
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", `The largest contributions: ${said.join(", ")}`);
      element.replaceChildren(svg);
    },
  };
}
