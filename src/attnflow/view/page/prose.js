// Sentences that describe the numbers.

/** The names of the methods, and what each does in one sentence. */
export const METHODS = {
  raw: {
    name: "Raw attention",
    short: "Raw",
    about:
      "Where the position attends in this one layer: a single step, not the path to the words.",
  },
  rollout: {
    name: "Attention rollout",
    short: "Rollout",
    about:
      "Follows every path from the position down to the words and multiplies the weights along it.",
  },
  flow: {
    name: "Attention flow",
    short: "Flow",
    about: "Treats the weights as widths of pipes: how much could reach the position from a word?",
  },
};

/** The same of contributions, which are read off the answer and not off attention alone. */
export const CONTRIBUTION = {
  name: "Contributions",
  short: "Contribution",
  about:
    "What each word adds to the answer: a positive number speaks for it, a negative one against it.",
};

/** What is explained, and what its parts are called. */
export const TEXT = { whole: "text", part: "word", parts: "words" };
export const IMAGE = { whole: "image", part: "patch", parts: "patches" };

/**
 * Return the paragraph that explains how to read the page.
 *
 * special is the name of the explained position, if it is a special token. relative is whether
 * scores are relative to uniform attention, fixed whether only the layer can be chosen.
 */
export function howToRead(
  { whole, part, parts },
  { special = null, relative = false, fixed = false } = {},
) {
  const apart = special
    ? ` ${special} is not a ${part}: it stands for the whole ${whole}, and a model may read its answer from it.`
    : "";
  const sums = relative
    ? `Early ${parts} can be reached from everywhere, so rollout and flow are divided by the scores of ` +
      "uniform attention, and then add up to 1; the graph below shows them undivided. "
    : `Rollout distributes 1 over all ${parts}; flow is the most that all paths to one ${part} can ` +
      "carry together, so flows do not add up to 1. ";
  const choose = fixed
    ? "Choose a layer"
    : `Choose a ${part} in the ${whole} to explain its position, a layer, and a method`;
  return (
    `Each layer of a Transformer mixes the positions of ${whole === "image" ? "an" : "a"} ${whole}, so ` +
    `after a few layers a position holds a blend of many ${parts}. Raw attention of a high layer shows ` +
    `which blends it attends to, so it often says little about single ${parts}. Rollout and flow go all ` +
    `the way down to the ${parts}.${apart} ${choose}: the stronger the colour of a ${part}, the more the position gets from it. Colours ` +
    `compare ${parts} within one layer and one method. ${sums}` +
    `None of the three proves that the model needs a ${part}: only changing the ${whole} can.`
  );
}

/** Return a number with three digits. */
export function formatScore(score) {
  if (score === 0) return "0";
  return Math.abs(score) >= 1e-3 ? score.toPrecision(3) : score.toExponential(2);
}

/** Return a number with three digits and its sign. */
export function formatSigned(score) {
  return `${score > 0 ? "+" : ""}${formatScore(score)}`;
}

/** Return a number with its sign, and as many digits as the largest beside it needs. */
export function formatAmong(score, largest) {
  const sign = score > 0 ? "+" : "";
  if (largest >= 1e6 || (largest > 0 && largest < 1e-5)) return `${sign}${score.toExponential(2)}`;
  let decimals = 2;
  while (largest > 0 && largest * 10 ** decimals < 100 && decimals < 7) decimals += 1;
  const shown = score.toFixed(decimals);
  return Number(shown) === 0 ? shown.replace("-", "") : `${sign}${shown}`;
}

/** Return a share in per cent; one that is close to 0 or 1 is never rounded to it. */
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
 * Describe what raw attention of a layer shows.
 *
 * where is the layer's name. own is the share of the position most attended to that still comes
 * from its own token, by rollout to the layer below; null if that is the token itself. sink is
 * whether it is the first token of a text that is read in one direction only.
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
    ? `attends almost uniformly (effectively ${Math.round(effective)} of ${count} tokens)`
    : `attends to about ${Math.max(1, Math.round(effective))} of ${count} tokens`;
  const most = top === null ? "" : `, most to ${top} (${formatScore(weight)})`;
  const start = `In ${where}, ${position} ${how}${most}.`;
  if (own === null) return `${start} Below ${where} there are only the ${things.parts} themselves.`;
  if (top === null) return start;
  if (sink) {
    return (
      `${start} But that is the first token, which a decoder often attends to when no other token ` +
      `matters, so the weight may say little about the ${things.part}.`
    );
  }
  const share = formatShare(own);
  if (own >= 0.9) {
    return `${start} ${share} of that position still comes from its own token, so here the weight is about the ${things.part}.`;
  }
  if (own >= 0.5) {
    return `${start} By then only ${share} of that position comes from its own token, so the weight is only partly about the ${things.part}.`;
  }
  return (
    `${start} But by then that position is a blend: only ${share} of it comes from its own token, so ` +
    `the weight says little about ${things.parts}.`
  );
}

/**
 * Describe which words score highest by rollout or flow.
 *
 * where is the layer's name. tops are names and scores, the highest first; alike is how many tokens
 * have the highest score. apart is the share of the scores that special tokens have, which are not
 * named; lowest is the lowest score of the others, and low the score that nine of ten of them reach.
 * saturated is whether flow would be the same from any position.
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
  const unit = relative ? ", relative to uniform attention" : "";
  const names =
    alike > tops.length
      ? `${alike} ${things.parts} equally, ${list([...tops.map(([name]) => name), `${alike - tops.length} more`])} ` +
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

// Flows that are nearly equal say as little as their colours do.
function nearlyAlike(tops, lowest, low, things) {
  const [[, most]] = tops;
  if (tops.length < 2 || low < 0.85 * most) return "";
  const all = lowest >= 0.85 * most;
  return (
    ` But it hardly distinguishes the ${things.parts}: for ${all ? "all" : "nine of ten"} of them it is ` +
    `between ${formatScore(all ? lowest : low)} and ${formatScore(most)}.`
  );
}

/** From this share on, flow says almost nothing about the position. */
export const SATURATED = 0.95;

/**
 * Describe how far flow still depends on the position. share is null while it is not known; called
 * returns the name of a layer.
 */
export function saturationSentence(layer, share, first, called = (l) => `layer ${l}`) {
  if (share === null) return "";
  if (share >= SATURATED) {
    const since =
      first !== null && first < layer ? `From ${called(first)} on` : `In ${called(layer)}`;
    return (
      `${since}, flow is saturated: for ${formatShare(share)} of the tokens it is as large as it ` +
      "could be from any position, so it no longer depends on the position chosen. A lower " +
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
 * Describe what limits the flow to a token.
 *
 * cut is what Network.trace returned, where is the layer's name, names returns the name of a
 * position, and called the name of a layer of the graph.
 */
export function cutSentence(cut, where, position, token, names, called = (l) => `layer ${l}`) {
  const amount = formatScore(cut.value);
  if (cut.value === 0) {
    return `Nothing can flow from ${names(token)} to ${names(position)} in ${where}.`;
  }
  const start = `At most ${amount} can flow from ${names(token)} to ${names(position)} in ${where}.`;
  if (cut.kind === "token") {
    return (
      `${start} The token itself limits it: that is all that ${called(1)} takes from ` +
      `${names(token)}, by ${count(cut.cut.length, "edge")}, so every position that uses it up gets the same.`
    );
  }
  if (cut.kind === "position") {
    return (
      `${start} The position limits it: that is all that ${names(position)} takes in from the layer ` +
      "below, and this one token could fill it."
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
    `${start} A bottleneck on the way limits it: ${list(groups)}. The widest of them, ` +
    `${formatScore(capacity)}, goes from ${names(to)} to ${names(from)} in ${called(l)}.`
  );
}

const GRAPH_WORDS = {
  answer:
    "What flowed: the width of an edge is the part of the answer that came along it. Blue speaks for " +
    "the answer, orange and dotted against it. All edges into a layer add up to the answer, but for " +
    "what biases add. Choose a node to see what passes through it.",
  raw:
    "Raw attention: every step is drawn by its weight alone. The chosen position's own step is in " +
    "colour; the steps below it, in grey, are what raw attention leaves out. Choose a node to trace " +
    "what reaches it.",
  rollout:
    "Rollout: the width of an edge is the share of the chosen position that comes along it. All " +
    "edges into a layer sum to 1. Choose a node to trace what reaches it.",
  flow:
    "Flow: one way to send the most from the ringed token to the ringed position. Dashed edges are " +
    "the minimum cut: they are full, and widening anything else would change nothing. Choose a node " +
    "to trace what reaches it.",
};

/**
 * Describe what the layered graph draws. method is a method or "answer", twice whether a layer is
 * two steps, and hidden how many tokens are not drawn.
 */
export function graphWords({ method, twice, hidden }) {
  const parts = [GRAPH_WORDS[method]];
  if (twice) {
    parts.push(
      "A layer of the decoder is two steps: it attends to the target so far, then to the source.",
    );
  }
  if (hidden === 1) parts.push("The token that matters least here is not drawn.");
  if (hidden > 1) parts.push(`Of all tokens, the ${hidden} that matter least here are not drawn.`);
  return parts.join(" ");
}

/** Describe how much the routes carry that are left above a threshold. */
export function keptSentence(method, kept, threshold) {
  const above = `${(100 * threshold).toPrecision(2)} %`;
  if (kept === null) return `Edges that weigh less than ${above} are not drawn.`;
  const share = formatShare(kept);
  if (kept === 0) return `No route from the top to the input has only edges above ${above}.`;
  return {
    answer: `The routes drawn carry at least ${share} of all that flowed to the answer in any layer, both signs counted.`,
    rollout: `The routes drawn bring ${share} of the chosen position from the input.`,
    flow: `The routes drawn carry at most ${share} of this flow: that is what is left in the layer where least is.`,
  }[method];
}

/**
 * Describe what passes through a node. came and went are names and amounts: from where it came below,
 * and to where it went above. all is the whole answer, in words, or null.
 */
export function throughSentence({ answer, name, place, mass, all, came, went, top }) {
  const what = answer ? `${mass}${all === null ? "" : ` of the answer's ${all}`}` : mass;
  const named = (ends) => list(ends.map(([end, amount]) => `${end} (${amount})`));
  const parts = [`Through ${name} ${place} passes ${what}.`];
  if (came.length) parts.push(`It came from ${named(came)}.`);
  if (went.length) parts.push(`It went to ${named(went)}.`);
  else if (top && answer) parts.push("The answer is read there.");
  return parts.join(" ");
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Shorten a name. */
export function cutShort(text, most = 60) {
  const parts = Array.from(text);
  return parts.length > most ? `${parts.slice(0, most - 1).join("")}…` : text;
}

/**
 * Return an answer as it is shown: by what classes says of it, or without the space that a language
 * model's words begin with.
 */
export function answerName(label, classes = {}) {
  return classes[label] ?? label.trim();
}

/** Return what the model predicts, or null. */
export function describePrediction(explanation, classes = {}) {
  const { prediction } = explanation;
  if (!prediction) return null;
  return `${quote(answerName(prediction.label, classes))} (${formatShare(prediction.probability)})`;
}
