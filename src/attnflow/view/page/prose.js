// What the numbers say, in words.

/** The names of the methods, and what each does in one sentence. */
export const METHODS = {
  raw: {
    name: "Raw attention",
    short: "Raw",
    about: "Where the position looks in this one layer: a single step, not the way to the words.",
  },
  rollout: {
    name: "Attention rollout",
    short: "Rollout",
    about:
      "Follows every path from the position down to the words, and multiplies the weights along it.",
  },
  flow: {
    name: "Attention flow",
    short: "Flow",
    about: "Takes the weights for widths of pipes: how much could reach the position from a word?",
  },
};

/** What is explained, and what its parts are called. */
export const TEXT = { whole: "text", part: "word", parts: "words" };
export const IMAGE = { whole: "image", part: "patch", parts: "patches" };

/**
 * Return the paragraph that says how to read the page.
 *
 * special is the name of the explained position, if it is a special token. relative is whether
 * scores are measured against attention that prefers nothing.
 */
export function howToRead({ whole, part, parts }, { special = null, relative = false } = {}) {
  const apart = special
    ? ` ${special} is no ${part}: it stands for the ${whole}, and a model may read its answer off it.`
    : "";
  const sums = relative
    ? `Early ${parts} can be reached from everywhere, so rollout and flow are divided by what attention ` +
      "that prefers nothing would give, and add up to 1; the graph below has them undivided. "
    : `Rollout shares out 1 among all ${parts}; flow is the most that all paths to one ${part} can ` +
      "carry together, so that flows do not add up to 1. ";
  return (
    `Each layer of a Transformer mixes the positions of ${whole === "image" ? "an" : "a"} ${whole}, so that ` +
    `after a few layers a position holds a blend of many ${parts}. Raw attention of a high layer says ` +
    "which blends it looks at, and that is why it often points nowhere. Rollout and flow go all the " +
    `way down to the ${parts}.${apart} Choose a ${part} in the ${whole} to ask about its position, a layer, and ` +
    `a method: the stronger the colour of a ${part}, the more the position gets from it. Colours ` +
    `compare ${parts} within one layer and one method. ${sums}` +
    `None of the three proves that the model needs a ${part}: only changing the ${whole} can.`
  );
}

/** Return a number as people write it, in three digits. */
export function formatScore(score) {
  if (score === 0) return "0";
  return Math.abs(score) >= 1e-3 ? score.toPrecision(3) : score.toExponential(2);
}

/** Return a share as per cent; what is less than one is said to be so. */
export function formatShare(share) {
  if (share > 0 && share < 0.01) return "under 1 %";
  if (share < 1 && share > 0.99) return "over 99 %";
  return `${Math.round(100 * share)} %`;
}

/** Return a name that fits into a sentence: quoted, and not long. */
export function quote(label, most = 40) {
  const characters = Array.from(label);
  const short = characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : label;
  // Isolated, so that a name in another direction does not turn the sentence around.
  return `\u201c\u2068${short}\u2069\u201d`;
}

function list(items) {
  if (items.length < 2) return items.join("");
  return `${items.slice(0, -1).join(", ")} and ${items[items.length - 1]}`;
}

/** Return the indices of the highest scores among those counted, highest first. */
export function highest(scores, counted, most) {
  return Array.from(scores.keys())
    .filter((i) => counted[i] && scores[i] > 0)
    .sort((a, b) => scores[b] - scores[a] || a - b)
    .slice(0, most);
}

/**
 * Say what raw attention of a layer shows.
 *
 * where is the layer's name. own is how much of the position most attended to still comes from its
 * own token, by rollout to the layer below; null where that is the token itself. sink is whether it
 * is the first token of a text that is read in one direction only.
 */
export function rawFinding({
  where,
  position,
  top,
  weight,
  effective,
  count,
  own,
  sink = false,
  things = TEXT,
}) {
  const even = effective >= 0.75 * count;
  const how = even
    ? `looks almost everywhere alike, as if at ${Math.round(effective)} of ${count} tokens`
    : `looks at about ${Math.max(1, Math.round(effective))} of ${count} tokens`;
  const most = top === null ? "" : `, most at ${top} (${formatScore(weight)})`;
  const start = `In ${where}, ${position} ${how}${most}.`;
  if (own === null)
    return `${start} Below ${where} there is nothing but the ${things.parts} themselves.`;
  if (top === null) return start;
  if (sink) {
    return (
      `${start} But that is the first token, where a decoder's attention often goes when it has ` +
      `nowhere else to go, so the weight may say little about the ${things.part}.`
    );
  }
  const share = formatShare(own);
  if (own >= 0.9) {
    return `${start} That position still is its own token, to ${share}, so here the weight speaks of the ${things.part}.`;
  }
  if (own >= 0.5) {
    return `${start} By then that position is its own token to ${share} only: the weight speaks of the ${things.part} in part.`;
  }
  return (
    `${start} But that position is a blend by then: only ${share} of it is still its own token, so ` +
    `the weight says little about ${things.parts}.`
  );
}

/**
 * Say which words rollout or flow name.
 *
 * where is the layer's name. tops are names and scores, the highest first; alike is how many tokens
 * score as the highest does. apart is the share of the scores that special tokens have, which are
 * not among those named; lowest is the lowest score of the others, and low that which nine of ten of
 * them reach. saturated is whether flow would be the same from any position.
 */
export function topFinding({
  method,
  where,
  position,
  tops,
  alike = 1,
  relative,
  lowest,
  low = lowest,
  apart,
  saturated = false,
  things = TEXT,
}) {
  if (tops.length === 0) return `Nothing reaches ${position} in ${where}.`;
  const unit = relative ? ", measured against attention that prefers nothing" : "";
  const names =
    alike > tops.length
      ? `${alike} ${things.parts} alike, ${list([...tops.map(([name]) => name), `${alike - tops.length} more`])} ` +
        `(${formatScore(tops[0][1])} each)`
      : list(tops.map(([name, score]) => `${name} (${formatScore(score)})`));
  if (method === "rollout" && apart >= 0.01) {
    return (
      `Over all paths, ${formatShare(apart)} of ${position} in ${where} comes from special ` +
      `tokens; of the ${things.parts}, the most comes from ${names}${unit}.`
    );
  }
  if (method === "rollout") {
    return `Over all paths, the most of ${position} in ${where} comes from ${names}${unit}.`;
  }
  const full = saturated ? " It would be the same for any other position: flow is saturated." : "";
  return `Most could flow to ${position} in ${where} from ${names}${unit}.${nearlyAlike(tops, lowest, low, things)}${full}`;
}

// Flows that are nearly the same are told apart by colour no more than by sense.
function nearlyAlike(tops, lowest, low, things) {
  const [[, most]] = tops;
  if (tops.length < 2 || low < 0.85 * most) return "";
  const all = lowest >= 0.85 * most;
  return (
    ` But it hardly tells the ${things.parts} apart: for ${all ? "all" : "nine of ten"} of them it is ` +
    `between ${formatScore(all ? lowest : low)} and ${formatScore(most)}.`
  );
}

/** From this share on, flow says next to nothing about the position. */
export const SATURATED = 0.95;

/**
 * Say how far flow still depends on the position. share is null while it is not known; called says
 * what a layer is called.
 */
export function saturationSentence(layer, share, first, called = (l) => `layer ${l}`) {
  if (share === null) return "";
  if (share >= SATURATED) {
    const since =
      first !== null && first < layer ? `From ${called(first)} on` : `In ${called(layer)}`;
    return (
      `${since}, flow is saturated: for ${formatShare(share)} of the tokens it is as large as it ` +
      "could be from any position, so that it no longer depends on the position chosen. A lower " +
      "layer, or rollout, says more."
    );
  }
  if (share >= 0.5) {
    return (
      `In ${called(layer)}, ${formatShare(share)} of the flows are saturated, as large as they could ` +
      "be from any position; only the others depend on the position chosen."
    );
  }
  return (
    `In ${called(layer)}, flow still depends on the position chosen: ${formatShare(share)} of the ` +
    "flows are saturated."
  );
}

/**
 * Say what limits the flow to a token.
 *
 * cut is what Network.trace returned, where is the layer's name, names says what a position is
 * called, and called what a layer of the graph is.
 */
export function cutSentence(cut, where, position, token, names, called = (l) => `layer ${l}`) {
  const amount = formatScore(cut.value);
  if (cut.value === 0) {
    return `Nothing can flow from ${names(token)} to ${names(position)} in ${where}.`;
  }
  const start = `At most ${amount} can flow from ${names(token)} to ${names(position)} in ${where}.`;
  if (cut.kind === "token") {
    return (
      `${start} What limits it is the token itself: that is all that ${called(1)} takes from ` +
      `${names(token)}, by ${count(cut.cut.length, "edge")}, so every position that uses it up gets the same.`
    );
  }
  if (cut.kind === "position") {
    return (
      `${start} What limits it is the position: that is all that ${names(position)} takes in from ` +
      "the layer below, and this one token could fill it."
    );
  }
  const byLayer = new Map();
  for (const [l, , , capacity] of cut.cut) {
    const sum = byLayer.get(l) ?? [0, 0];
    byLayer.set(l, [sum[0] + 1, sum[1] + capacity]);
  }
  const groups = Array.from(byLayer)
    .filter(([, [, capacity]]) => capacity >= 0.01 * cut.value)
    .sort((a, b) => b[1][1] - a[1][1])
    .slice(0, 3)
    .map(
      ([l, [edges, capacity]]) =>
        `${count(edges, "edge")} into ${called(l)} (${formatScore(capacity)} together)`,
    );
  const [l, from, to, capacity] = cut.cut.reduce((a, b) => (b[3] > a[3] ? b : a));
  return (
    `${start} What limits it is a bottleneck on the way: ${list(groups)}. The widest of them, ` +
    `${formatScore(capacity)}, goes from ${names(to)} to ${names(from)} in ${called(l)}.`
  );
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Shorten a name. */
export function cutShort(text, most = 60) {
  const parts = Array.from(text);
  return parts.length > most ? `${parts.slice(0, most - 1).join("")}…` : text;
}

/** Return an answer as a reader sees it: a language model's words begin with a space. */
export function answerName(label) {
  return label.trim() || JSON.stringify(label);
}

/** Return what the model predicts, or null. */
export function describePrediction(explanation) {
  const { prediction } = explanation;
  if (!prediction) return null;
  return `${quote(answerName(prediction.label))} (${formatShare(prediction.probability)})`;
}
