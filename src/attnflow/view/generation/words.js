// Sentences about what an answer came from.

import { cutShort, formatAmong, formatScore, quote } from "../page/prose.js";

// How many sources a sentence names.
const NAMED = 3;

function list(items) {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

/** Return how scores are written among others up to a largest one. */
export function writer(signed, largest) {
  return (score) => (signed ? formatAmong(score, largest) : formatScore(score));
}

/** Return what a selection is called: the token, or the words of a span. */
export function selectionName(text) {
  return text.trim() ? quote(text.trim(), 60) : quote(text.replaceAll("\n", "↵"));
}

/**
 * Describe what an answer came from. name is what is chosen, or null for the whole answer; tops are
 * names and scores of the prompt, the largest first; against is the name and score of what speaks
 * most against it, or null; own is what the answer's own tokens add; signed whether scores add up.
 */
export function originSentence({ name, tops, against, own, signed, write }) {
  const subject = name === null ? "The answer" : name;
  if (tops.length === 0) {
    return against
      ? `Nothing in the prompt speaks for ${name === null ? "the answer" : name}; ${against[0]} speaks most against it (${write(against[1])}).`
      : `${subject} came from nothing in the prompt.`;
  }
  const named = list(tops.slice(0, NAMED).map(([top, score]) => `${top} (${write(score)})`));
  const parts = [`Of the prompt, ${lower(subject)} came most from ${named}.`];
  if (against) parts.push(`${against[0]} speaks most against it (${write(against[1])}).`);
  if (own !== null && own !== 0) {
    const what = name === null ? "What was already written" : "The answer before it";
    parts.push(
      `${what} ${signed ? "added" : "has"} ${write(own)}${signed ? "" : " of the attention"}.`,
    );
  }
  return parts.join(" ");
}

const lower = (subject) => (subject === "The answer" ? "the answer" : subject);

/**
 * Return what a selection adds up to, in one line. parts are names and scores, value what they are
 * together. What they leave out is a part of its own.
 */
export function sumSentence(parts, value, { sizes, leftOut }) {
  const rest = value - parts.reduce((total, [, score]) => total + score, 0);
  // What rounding to two digits hides is not worth a word.
  const every =
    Math.abs(rest) > 0.005 * Math.max(1, sizes)
      ? [...parts, [leftOut ? "tokens left out" : "not accounted for", rest]]
      : parts;
  const all = [...every, ["together", value]];
  const largest = Math.max(...all.map(([, score]) => Math.abs(score)));
  return all.map(([name, score]) => `${name} ${formatAmong(score, largest)}`).join(", ");
}

/** Return the label of a source of a bar. */
export const barName = (label) => cutShort(label.replaceAll("\n", "↵"));
