// Sentences about what an answer came from.

import { cutShort, formatAmong, formatScore, quote } from "../page/prose.js";

/** How many sources a sentence names. */
export const NAMED = 3;

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function list(items) {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

/** Return how scores are written among others up to a largest one. */
export function writer(signed, largest) {
  return (score) => (signed ? formatAmong(score, largest) : formatScore(score));
}

/** Return what the text of a selection is called in a sentence. */
export const selectionName = (text) => quote(text.replace(/\s+/g, " "));

/**
 * Describe what an answer came from. name is what is chosen, or null for the whole answer; tops are
 * names and scores of the prompt, the largest first; against is the name and score of what speaks
 * most against it, or null; own is what the answer's own tokens add, or null; sink whether the first
 * of tops is the first token, far above the others; signed whether scores add up.
 */
export function originSentence({ name, tops, against, own, sink, signed, write }) {
  const subject = name ?? "the answer";
  const parts = [];
  if (tops.length) {
    const named = list(tops.map(([top, score]) => `${top} (${write(score)})`));
    parts.push(`Of the prompt, ${subject} came most from ${named}.`);
  } else parts.push(`Nothing in the prompt speaks for ${subject}.`);
  if (sink) parts.push("The first token often has what belongs to no word.");
  if (against) parts.push(`${capital(against[0])} speaks most against it (${write(against[1])}).`);
  if (own !== null) {
    const what = name === null ? "What was already written" : "The answer before it";
    parts.push(signed ? `${what} added ${write(own)}.` : `${what} has ${write(own)}.`);
  }
  return parts.join(" ");
}

/** Return the label of a source of a bar. */
export const barName = (label) => cutShort(label.replaceAll("\n", "↵"));
