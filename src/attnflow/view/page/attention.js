// What attention says: everything that shows one position of one layer by one of the methods.

import { background } from "./background.js";
import { controlsPart } from "./controls.js";
import { cardsPart, findings, saturationWords } from "./findings.js";
import { graphPart, withoutGraph } from "./graphpart.js";
import { headsPart } from "./headspart.js";
import { heatPart } from "./heatmap.js";
import { answerName, describePrediction, highest, howToRead, METHODS, quote } from "./prose.js";
import { sentenceList } from "./sentences.js";
import { tablePart } from "./table.js";
import { textPart } from "./text.js";
import { topSentences } from "./topsentences.js";

// More rows than this make no figure that fits on paper.
const MOST_FIGURE_ROWS = 48;

/**
 * Return the part of a page about attention: {elements, measure, draw, restyle, finish, figure,
 * destroy}. set changes what is shown, redraw draws the page anew without a change, and isFirst is
 * whether nothing comes before it.
 */
export function attentionPart(frame, { data, picture, shown, set, redraw, isFirst }) {
  const { make } = frame;
  const { numbers } = shown;
  const wanted = new Set(numbers.methods);
  const methods = () => numbers.methods.filter((method) => wanted.has(method));
  let said = {};

  const title = make(isFirst ? "h1" : "h2", {});
  const subtitle = make("p", { class: "subtitle" });
  const controls = controlsPart(frame, { shown, set });
  const byToken = !numbers.groups;
  const text = byToken
    ? textPart(frame, { data, picture, shown, set })
    : sentenceList(frame, {
        sentences: data.sentences,
        direction: data.direction,
        signed: false,
        scoresOf: () => numbers.layerScores[shown.state.layer - 1],
        isSpecial: (token) => data.explanation.special[token] && !shown.state.special,
        highest: () => ` in this layer${shown.greyWords}`,
      });
  const tops = data.stretches ? topSentences(frame, { data, shown, set }) : null;
  const finding = make("p", { class: "finding", id: frame.id("finding") });
  const cards = cardsPart(frame, { data, shown, methods });
  const heat = heatPart(frame, { shown, set, methods });
  const saturation = make("p", { class: "saturation" });
  const heads = numbers.heads ? headsPart(frame, { shown, set }) : null;
  const graph = numbers.trace
    ? graphPart(frame, { shown, set, findings: () => finding.textContent })
    : null;
  const table = tablePart(frame, { shown });
  const flows = background(frame, { shown, arrived });

  const switches = make(
    "div",
    { class: "switches", role: "group", "aria-label": "Methods compared" },
    ...Object.keys(METHODS).map((method) => {
      const has = numbers.methods.includes(method);
      const box = frame.check(`show-${method}`, METHODS[method].short, {
        "data-show": method,
        disabled: !has,
        onchange: (event) => {
          if (event.target.checked) wanted.add(method);
          else wanted.delete(method);
          redraw();
        },
      });
      box.input.checked = has;
      return box.element;
    }),
  );
  const compare = make(
    "section",
    { class: byToken ? "compare" : "compare long", "aria-labelledby": frame.id("compare") },
    make(
      "div",
      { class: "section-head" },
      make("h2", { id: frame.id("compare") }, "Three answers, layer by layer"),
      switches,
    ),
    cards.element,
    heat.element,
    saturation,
  );
  const how = make(
    "section",
    { class: "how", "aria-labelledby": frame.id("how") },
    make("h2", { id: frame.id("how") }, "How to read this"),
    make("p", {}, howToRead(shown.things, reading())),
  );

  // What is worth saying of this explanation in how to read it.
  function reading() {
    // CLS, by whatever name. Other special tokens, as the mask, stand for something else.
    const whole = numbers.trace && !numbers.encoder && !numbers.causal && numbers.special[0];
    const special = whole && data.explanation.position === 0 ? shown.name(0) : null;
    return { special, relative: numbers.relative, fixed: !numbers.trace };
  }

  function arrived(chosen) {
    heat.measure();
    heat.draw();
    if (chosen) {
      const before = finding.textContent;
      drawFindings();
      // A screen reader was told that it was being computed.
      if (frame.live.textContent === before) frame.say(finding.textContent);
      table.draw();
      tops?.draw();
      if (shown.state.method === "flow") {
        text.draw();
        if (graph?.waits) graph.draw();
      }
    } else drawSaturation();
    frame.root.dataset.flow = numbers.job ? "computing" : "done";
  }

  function drawTitle() {
    const { explanation, classes } = data;
    const { state, positionName } = shown;
    title.textContent = isFirst
      ? `Where does ${positionName} get its information from?`
      : `Where could ${positionName} get its information from?`;
    const parts = [`${METHODS[state.method].name}, ${shown.layerName()} of ${shown.layers}`];
    if (state.head >= 0) parts.push(`head ${state.head}`);
    const prediction = describePrediction(explanation, classes);
    if (prediction) parts.push(`the model predicts ${prediction}`);
    if (explanation.target && explanation.target !== explanation.prediction?.label) {
      parts.push(`explained for ${quote(answerName(explanation.target, classes))}`);
    }
    subtitle.textContent = parts.join(" · ");
  }

  function drawFindings() {
    said = findings(shown);
    finding.textContent = said[shown.state.method] ?? "";
    cards.draw(said);
    drawSaturation();
  }

  function drawSaturation() {
    saturation.textContent = saturationWords(shown);
    saturation.hidden = saturation.textContent === "";
  }

  // The rows that a figure has room for: what is chosen, and what scores highest.
  function figureRows() {
    const { state } = shown;
    const scores = shown.scores() ?? [];
    const every = Array.from({ length: numbers.tokens }, (_, i) => i);
    const all = every.map(() => true);
    const rank = new Map(highest(scores, all, numbers.tokens).map((token, i) => [token, i]));
    const order = (token) =>
      token === state.position || token === shown.sink ? -1 : (rank.get(token) ?? every.length);
    return every
      .sort((a, b) => order(a) - order(b))
      .slice(0, MOST_FIGURE_ROWS)
      .sort((a, b) => a - b);
  }

  return {
    elements: [
      make("div", { class: "question" }, title, subtitle),
      controls.element,
      tops?.element,
      text.element,
      make("section", { class: "answer", "aria-label": "What it shows" }, finding),
      compare,
      how,
      heads?.element,
      graph?.element ?? withoutGraph(frame),
      table.element,
    ].filter(Boolean),
    measure: heat.measure,
    draw() {
      flows.start();
      controls.draw();
      drawTitle();
      tops?.draw();
      text.draw();
      drawFindings();
      heat.draw();
      heads?.draw();
      graph?.draw();
      table.draw();
    },
    /** Draw the text in other colours; the rest follows. */
    restyle: () => text.draw(),
    finish: () => graph?.finish(),
    figure(width) {
      const rows = figureRows();
      const left = numbers.tokens - rows.length;
      return [
        { text: title.textContent, size: 20, weight: 700 },
        { text: subtitle.textContent, size: 13, quiet: true },
        { text: finding.textContent, size: 13 },
        heat.scene(width, rows),
        ...(left
          ? [
              {
                text: `${rows.length} of ${numbers.tokens} tokens are shown.`,
                size: 12,
                quiet: true,
              },
            ]
          : []),
        ...(heads?.figure(width) ?? []),
        ...(graph?.figure(width) ?? []),
        { text: saturation.textContent, size: 13 },
      ].filter((part) => part.shapes || part.text);
    },
    destroy() {
      flows.stop();
      if (!byToken) text.destroy();
    },
  };
}
