// What an answer adds up to: its largest sources as bars, the sum, and what each message adds.

import { barScene } from "../page/bars.js";
import { quote } from "../page/prose.js";
import { toSvg } from "../page/scene.js";
import { barName, originSentence, sumSentence, writer } from "./words.js";

// How many sources are drawn as bars.
const MOST_BARS = 12;

/** Return what is said and drawn of a selection: {rows, value, sentence, sum, messages}. */
export function tell(data, sources, selection, name) {
  const { scores, value, bias } = sources.of(selection);
  const { signed, labels, unit } = data;
  const ranked = sources.ranked(scores);
  const sums = sources.sums(scores);
  const largest = ranked.length ? Math.abs(scores[ranked[0]]) : 0;
  const write = writer(signed, largest);
  const itself = selection === null ? "the answer itself" : "the answer before it";
  const hasOwn = sources.ownColumns.some((column) => scores[column] !== 0);
  const hasSpecial = scores.some((_, column) => sources.special[column] && !sources.own[column]);

  const listed = ranked.slice(0, MOST_BARS);
  const rest = ranked.slice(MOST_BARS);
  const restSum = rest.reduce((total, column) => total + scores[column], 0);
  const rows = listed.map((column) => [barName(labels[column]), scores[column]]);
  if (rest.length)
    rows.push([`${rest.length} other ${unit}${rest.length > 1 ? "s" : ""}`, restSum]);
  if (hasSpecial) rows.push([data.special, sums.special]);
  if (hasOwn) rows.push([itself, sums.own]);
  if (bias) rows.push(["biases of the model", bias]);

  const quoted = (column) =>
    `${sources.patches.has(column) ? "patch " : ""}${quote(labels[column].replaceAll("\n", "↵"))}`;
  const above = ranked.filter((column) => scores[column] > 0);
  const below = ranked.filter((column) => scores[column] < 0);
  const sentence = originSentence({
    name,
    tops: above.map((column) => [quoted(column), scores[column]]),
    against: below.length ? [quoted(below[0]), scores[below[0]]] : null,
    own: hasOwn ? sums.own : null,
    signed,
    write,
  });

  const parts = [
    ["prompt", sums.prompt],
    ...(hasSpecial ? [[data.special, sums.special]] : []),
    ...(hasOwn ? [[itself, sums.own]] : []),
    [biasName(data), bias],
  ];
  const options = data.generation.whole.options;
  const sum =
    signed && value !== null && bias !== null
      ? sumSentence(parts, value, {
          sizes: scores.reduce((total, score) => total + Math.abs(score), 0),
          leftOut: options.special_tokens === false || options.drop_sink === true,
        })
      : "";
  const total = Math.abs(sums.prompt) || largest;
  const messages = data.messages.map(([role, columns]) => {
    const score = columns.reduce((all, column) => all + scores[column], 0);
    return [role, score, writer(signed, total)(score)];
  });
  return {
    rows: rows.map(([label, score]) => [label, score, write(score)]),
    value: signed && value !== null ? write(value) : null,
    sentence,
    sum,
    messages,
  };
}

const biasName = (data) =>
  data.generation.whole.method === "contribution" ? "biases" : "everything else";

/** Return the part with the bars and the sum: {element, draw, scene}. */
export function addedPart(frame, { data }) {
  const { make } = frame;
  const bars = make("div", { class: "bars" });
  const sum = make("p", { class: "finding sum" });
  const messages = make("p", { class: "finding messages" });
  const title = make("h2", { id: frame.id("added") });
  // A long prompt has its sentences as bars.
  const long = Boolean(data.sentences);
  const element = make(
    "section",
    { class: "contribution added", "aria-labelledby": frame.id("added") },
    title,
    long ? null : bars,
    messages,
    sum,
    make("p", { class: "caption" }, data.reading),
  );
  const scene = (told, width) =>
    barScene({ ...told, theme: frame.theme, width, fit: frame.fit, most: 0.35 });
  return {
    element,
    scene,
    draw(told, name) {
      title.textContent = data.signed
        ? `What added up to ${name ?? "the answer"}`
        : `The largest sources of ${name ?? "the answer"}`;
      sum.textContent = told.sum ? `Sum: ${told.sum}.` : "";
      messages.textContent = told.messages.length
        ? `By message: ${told.messages.map(([role, , words]) => `${role} ${words}`).join(", ")}.`
        : "";
      const width = bars.clientWidth;
      if (long || width === 0) return;
      const svg = toSvg(frame.document, scene(told, width));
      svg.setAttribute("role", "img");
      const said = told.rows.map(([label, , words]) => `${label} ${words}`).join(", ");
      svg.setAttribute("aria-label", `The largest sources: ${said}`);
      bars.replaceChildren(svg);
    },
  };
}
