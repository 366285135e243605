// What an answer adds up to: the largest sources in the prompt as bars, and the sum of all parts.

import { barScene } from "../page/bars.js";
import { quote } from "../page/prose.js";
import { toSvg } from "../page/scene.js";
import { barName, NAMED, originSentence, writer } from "./words.js";

// How many sources are drawn as bars.
const MOST_BARS = 12;

/**
 * Return what is said and drawn of a selection that is called name, or of the whole answer:
 * {sentence, sources, parts}. sources and parts are the rows of bars, with the value of the parts.
 */
export function tell(data, sources, selection, name) {
  const { scores, value, bias } = sources.of(selection);
  const { signed } = data;
  const sum = (columns) => columns.reduce((total, column) => total + scores[column], 0);
  const own = sources.ownColumns.some((column) => scores[column] !== 0)
    ? sum(sources.ownColumns)
    : null;
  const ranked = data.sentences
    ? rankedSentences(data, scores)
    : rankedTokens(data, sources, scores);
  const write = writer(signed, ranked.length ? Math.abs(ranked[0].score) : 0);
  const quoted = ({ label, quote: most, patch, score }) => {
    const said = quote(label().replace(/\s+/g, " "), most);
    return [patch ? `patch ${said}` : said, score];
  };
  const against = ranked.find(({ score }) => score < 0);
  const sentence = originSentence({
    name,
    tops: ranked
      .filter(({ score }) => score > 0)
      .slice(0, NAMED)
      .map(quoted),
    against: against ? quoted(against) : null,
    own,
    sink: !data.sentences && sources.isSink(scores),
    signed,
    write,
  });

  const rest = ranked.slice(MOST_BARS);
  const rows = ranked
    .slice(0, MOST_BARS)
    .map(({ label, patch, score }) => [patch ? `patch ${label()}` : label(), score]);
  if (rest.length) {
    const others = rest.reduce((total, { score }) => total + score, 0);
    rows.push([`${rest.length} other ${data.unit}${rest.length > 1 ? "s" : ""}`, others]);
  }
  const parts = partsOf(data, sources, scores, bias, own, selection);
  return { sentence, sources: written(rows, write), parts: added(data, scores, parts, value) };
}

// Tokens of the prompt by the size of their scores, the largest first.
function rankedTokens({ labels }, sources, scores) {
  return Array.from(scores.keys())
    .filter((column) => sources.usual(column) && scores[column] !== 0)
    .map((column) => ({
      label: () => labels[column].replaceAll("\n", "↵"),
      patch: sources.patches.has(column),
      score: scores[column],
    }))
    .sort((a, b) => Math.abs(b.score) - Math.abs(a.score));
}

// The same of the sentences of a long prompt.
function rankedSentences({ sentences }, scores) {
  return sentences.rows
    .filter(({ unit }) => unit !== undefined)
    .map(({ unit, pieces }) => ({
      label: () =>
        pieces
          .map(([text]) => text)
          .join("")
          .trim(),
      quote: 70,
      score: sentences.groups[unit].reduce((total, column) => total + scores[column], 0),
    }))
    .sort((a, b) => Math.abs(b.score) - Math.abs(a.score));
}

const written = (rows, write) => ({
  rows: rows.map(([label, score]) => [barName(label), score, write(score)]),
  value: null,
});

// The parts of all that was scored: messages or the prompt, what surrounds them, and the answer.
function partsOf(data, sources, scores, bias, own, selection) {
  const waiting = new Set(scores.keys());
  const parts = [];
  const take = (name, columns) => {
    const found = columns.filter((column) => waiting.has(column));
    if (found.length === 0) return;
    for (const column of found) waiting.delete(column);
    parts.push([name, found.reduce((total, column) => total + scores[column], 0)]);
  };
  const all = Array.from(scores.keys());
  if (own === null) for (const column of sources.ownColumns) waiting.delete(column);
  take(selection === null ? "the answer itself" : "the answer before it", sources.ownColumns);
  take(
    data.special,
    all.filter((column) => sources.special[column]),
  );
  const after = parts.splice(0);
  take("the image", data.patches);
  take("the sound", data.stretches);
  for (const [role, columns] of data.messages) take(role, columns);
  take(data.messages.length ? "other text" : "the prompt", all);
  parts.push(...after.reverse());
  if (bias !== null && bias !== 0) {
    const { method } = data.generation.whole;
    parts.push([method === "contribution" ? "biases of the model" : "everything else", bias]);
  }
  return parts;
}

function added(data, scores, parts, value) {
  const signed = data.signed && value !== null;
  if (signed) {
    const { options } = data.generation.whole;
    const rest = value - parts.reduce((total, [, score]) => total + score, 0);
    const sizes = scores.reduce((total, score) => total + Math.abs(score), 0);
    // What rounding to two digits hides is not worth a word.
    if (Math.abs(rest) > 0.005 * Math.max(1, sizes)) {
      const leftOut = options.special_tokens === false || options.drop_sink === true;
      parts.push([leftOut ? "tokens left out" : "not accounted for", rest]);
    }
  }
  const write = writer(data.signed, Math.max(0, ...parts.map(([, score]) => Math.abs(score))));
  return { ...written(parts, write), value: signed ? write(value) : null };
}

/** Return the part with the bars: {element, draw, scenes}. */
export function addedPart(frame, { data }) {
  const { make } = frame;
  const title = make("h2", { id: frame.id("added") });
  // A long prompt has its sentences as bars.
  const charts = [
    data.sentences ? null : { name: "sources", title: `The largest ${data.unit}s of the prompt` },
    { name: "parts", title: data.signed ? "All together" : "All parts" },
  ].filter(Boolean);
  for (const chart of charts) {
    chart.box = make("div", { class: "bars" });
    chart.element = make(
      "div",
      { class: `chart ${chart.name}` },
      make("h3", {}, chart.title),
      chart.box,
    );
  }
  const element = make(
    "section",
    { class: "added", "aria-labelledby": frame.id("added") },
    title,
    make("div", { class: "charts" }, ...charts.map((chart) => chart.element)),
    make("p", { class: "caption" }, data.reading),
  );
  const sceneOf = (told, { name }, width) =>
    barScene({ ...told[name], theme: frame.theme, width, fit: frame.fit, most: 0.42 });
  return {
    element,
    /** Return the drawings for a width. */
    scenes: (told, width) => charts.map((chart) => sceneOf(told, chart, width)),
    draw(told, name) {
      title.textContent = data.signed
        ? `What added up to ${name ?? "the answer"}`
        : `What ${name ?? "the answer"} came from`;
      for (const chart of charts) {
        const width = chart.box.clientWidth;
        if (width === 0) continue;
        const svg = toSvg(frame.document, sceneOf(told, chart, width));
        const { rows, value } = told[chart.name];
        const said = rows.map(([label, , words]) => `${label} ${words}`);
        svg.setAttribute("role", "img");
        svg.setAttribute(
          "aria-label",
          `${chart.title}: ${[...said, ...(value === null ? [] : [`together ${value}`])].join(", ")}`,
        );
        chart.box.replaceChildren(svg);
      }
    },
  };
}
