// The prompt, shaded by what an answer came from: its tokens, an image's patches, the stretches of a
// sound, the messages of a chat, or the sentences of a long text.

import { signedText } from "../page/chips.js";
import { shade } from "../page/colour.js";
import { relativeShades, scaleOf } from "../page/heat.js";
import { sentenceList } from "../page/sentences.js";
import { writer } from "./words.js";

// From this many tokens on, attention is shown from its median up, as it differs little.
const MANY_TOKENS = 100;
// A stretch below 0 has a dash unless its colour is almost none.
const DASHED_BELOW = -0.08;

/** Return the part with the prompt: {element, draw, destroy}. shown gives what is shown. */
export function promptPart(frame, { data, sources, picture, shown }) {
  const { make } = frame;
  if (data.sentences) {
    const list = sentenceList(frame, {
      sentences: data.sentences,
      direction: data.direction,
      signed: data.signed,
      scoresOf: () => shown().scores,
      isSpecial: (column) => !sources.usual(column),
      title: "The prompt",
    });
    return { element: list.element, draw: list.draw, destroy: list.destroy };
  }

  const parts = messagesOf(data);
  const texts = parts.map(({ role, pieces, grid }) => {
    const text = signedText(frame, {
      pieces: pieces.map(([piece, columns]) => [
        piece.trim() || !columns.length ? piece : piece.replaceAll("\n", "↵\n"),
        null,
        columns.length ? "" : null,
        false,
        columns.some((column) => sources.patches.has(column)),
      ]),
      grid,
      picture,
      direction: data.direction,
      words: !grid || pieces.some(([, columns]) => !columns.some((i) => sources.patches.has(i))),
      label: role ? `What the ${role} said, shaded by what it adds` : "The prompt, shaded",
    });
    return { pieces, text, role };
  });
  const sound = data.stretches.length ? soundStrip(frame, data) : null;
  const scale = frame.scale();
  const low = make("span", {});
  const high = make("span", {});
  const element = make(
    "section",
    { class: "prompt", "aria-labelledby": frame.id("prompt") },
    make("h2", { id: frame.id("prompt") }, sound ? "The sound" : "The prompt"),
    sound?.element,
    make(
      "div",
      { class: "said-parts" },
      ...texts.filter(({ role }) => !role).map(({ text }) => text.element),
      make(
        "div",
        { class: "messages" },
        ...texts
          .filter(({ role }) => role)
          .map(({ text, role }) =>
            make("div", { class: "message" }, make("p", { class: "role" }, role), text.element),
          ),
      ),
    ),
    make("p", { class: "legend" }, low, scale.element, high),
  );

  // The share of each column of the colours' scale, and what the scale says.
  function scaled() {
    const { scores } = shown();
    const counted = Array.from(scores, (_, column) => sources.usual(column));
    if (data.signed) {
      const top = sources.top(scores);
      return { shares: Array.from(scores, (score) => (top > 0 ? score / top : 0)), top, low: 0 };
    }
    const relative = counted.filter(Boolean).length >= MANY_TOKENS;
    const { low: from, top } = scaleOf(scores, counted, relative);
    return { shares: relativeShades(scores, counted, relative), top, low: from };
  }

  function draw() {
    const { scores } = shown();
    const { shares, top, low: from } = scaled();
    const largest = sources.largest(scores);
    const write = writer(data.signed, largest);
    const capped = (share) => Math.max(-1, Math.min(1, share));
    const sum = (columns, of) => columns.reduce((total, column) => total + of[column], 0);
    for (const { pieces, text } of texts) {
      text.draw(
        pieces.map(([piece, columns]) => {
          if (columns.length === 0) return [piece, null, null];
          const apart = columns.every((column) => sources.special[column]);
          return [piece, apart ? null : capped(sum(columns, shares)), write(sum(columns, scores))];
        }),
      );
    }
    sound?.draw(shares, scores, write);
    const more = largest > top ? " or more" : "";
    const full = `${write(top).replace("+", "")}${more}`;
    if (data.signed) {
      low.textContent = "against";
      const marked = data.prompt.length ? "; what speaks against the answer is underlined" : "";
      high.textContent = `for; full colour is ${full}${marked}`;
    } else {
      low.textContent = from > 0 ? `the median, ${write(from)}, or less` : "nothing";
      high.textContent = `${full}, the highest`;
    }
    scale.paint((x) => shade(frame.theme, data.signed ? 2 * x - 1 : x).hex);
  }

  return { element, draw, destroy: () => {} };
}

// The pieces of the prompt, for each message of a chat; without the tokens of the chat template,
// which are many and say nothing to a reader. An image is beside the first text.
function messagesOf(data) {
  const { grid } = data.generation.whole;
  const patches = new Set(data.patches);
  if (data.messages.length === 0) return [{ role: null, pieces: data.prompt, grid }];
  const parts = [];
  const special = (columns) => columns.every((column) => data.generation.whole.special[column]);
  for (const piece of data.prompt) {
    const [text, columns, isLabel] = piece;
    if (isLabel) parts.push({ role: text.replace(/: $/, ""), pieces: [], grid: null });
    else if (columns.length ? !special(columns) : parts.length) {
      if (parts.length === 0) parts.push({ role: null, pieces: [], grid: null });
      parts.at(-1).pieces.push(piece);
    }
  }
  for (const part of parts) {
    if (part.pieces.some(([, columns]) => columns.some((i) => patches.has(i)))) part.grid = grid;
    while (part.pieces.length && !part.pieces.at(-1)[1].length) part.pieces.pop();
  }
  return parts.filter(({ pieces }) => pieces.length);
}

// A sound from its begin to its end, a stretch a bar.
function soundStrip(frame, data) {
  const { make } = frame;
  const chips = data.stretches.map((column) => {
    const element = make("span", { class: "token stretch" });
    return { element, column };
  });
  const name = (column) => data.labels[column];
  const strip = make(
    "div",
    { class: "sound", role: "img" },
    ...chips.map(({ element: chip }) => chip),
  );
  const ends = [data.stretches[0], data.stretches.at(-1)].map((column) =>
    make("span", {}, name(column)),
  );
  return {
    element: make("div", {}, strip, make("p", { class: "sound-ends" }, ...ends)),
    draw(shares, scores, write) {
      for (const { element: chip, column } of chips) {
        const share = Math.max(-1, Math.min(1, shares[column]));
        chip.style.backgroundColor = shade(frame.theme, share).hex;
        chip.style.color = shade(frame.theme, share).ink;
        chip.textContent = share < DASHED_BELOW ? "−" : "";
        chip.title = `${name(column)}: ${write(scores[column])}`;
      }
      const best = chips.reduce((a, b) => (scores[b.column] > scores[a.column] ? b : a));
      strip.setAttribute(
        "aria-label",
        `The sound, ${chips.length} stretches; the most comes from ${name(best.column)}`,
      );
    },
  };
}
