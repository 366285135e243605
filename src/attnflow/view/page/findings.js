// What each method finds, in a sentence beside a small copy of the text.

import { shade } from "./colour.js";
import { shares, spread } from "./graph.js";
import {
  cutShort,
  highest,
  METHODS,
  rawFinding,
  SATURATED,
  saturationSentence,
  topFinding,
} from "./prose.js";

// A longer text does not fit into a card.
const MOST_IN_STRIP = 48;

/** Return what each method finds, in a sentence: an object with a name for each method. */
export function findings(shown) {
  const said = {};
  for (const method of shown.numbers.methods) {
    const scores = shown.scores(method);
    if (!scores) said[method] = "Being computed …";
    else said[method] = method === "raw" ? ofRaw(shown, scores) : ofPaths(shown, method, scores);
  }
  return said;
}

function ofRaw(shown, scores) {
  const { numbers, state } = shown;
  const seen = scores.map((_, token) => shown.sees(token));
  const [first] = highest(scores, seen, 1);
  const own =
    !numbers.graph || first === undefined
      ? null
      : numbers.ownShare(state.layer, state.position, first);
  return rawFinding({
    things: shown.things,
    where: shown.layerName(),
    position: shown.positionName,
    top: first === undefined ? null : shown.name(first),
    weight: first === undefined ? 0 : scores[first],
    effective: spread(scores),
    count: scores.filter((_, token) => shown.sees(token)).length,
    own: numbers.graph || state.layer === 1 ? own : 1,
    sink: numbers.causal && !numbers.encoder && first === 0 && state.position > 0,
  });
}

function ofPaths(shown, method, scores) {
  const { numbers, counted } = shown;
  const others = scores.filter((_, i) => counted[i]).sort();
  const tops = highest(scores, counted, 3).map((token) => [shown.name(token), scores[token]]);
  return topFinding({
    things: shown.things,
    method,
    where: shown.layerName(),
    position: shown.positionName,
    tops,
    alike: scores.filter((score, i) => counted[i] && score > 0.995 * tops[0]?.[1]).length,
    saturated: method === "flow" && shown.saturation() >= SATURATED,
    relative: numbers.relative || shown.data.explanation.options.receptive_field === true,
    lowest: others[0] ?? Infinity,
    low: others[Math.floor(0.1 * others.length)] ?? Infinity,
    apart: shares(scores).reduce((sum, share, i) => (counted[i] ? sum : sum + share), 0),
  });
}

/** Return how far flow still depends on the position, in words; empty if that is not known. */
export function saturationWords(shown) {
  const { numbers, state } = shown;
  if (!numbers.methods.includes("flow")) return "";
  const found = Array.from({ length: shown.layers }, (_, i) => shown.saturation(i + 1));
  let first = null;
  for (let layer = shown.layers; layer > 0; layer -= 1) {
    if (found[layer - 1] === null || found[layer - 1] < SATURATED) break;
    first = layer;
  }
  const called = (layer) => shown.layerName(layer);
  return saturationSentence(state.layer, found[state.layer - 1], first, called);
}

/** Return the cards of the methods, side by side: {element, draw}. methods says which are drawn. */
export function cardsPart(frame, { data, shown, methods }) {
  const { make } = frame;
  const element = make("div", { class: "findings" });

  // The text once more, small, as a method shades it: the whole of a short one, of a long one the
  // words that score highest. Hidden from screen readers, who get the sentence below it.
  function strip(method) {
    const { counted } = shown;
    const { grid, text } = data.explanation;
    const scores = shown.scores(method);
    if (!scores) return null;
    const shades = shown.shares(scores);
    if (grid && !text) return smallMap(shades);
    const line = make("p", { class: "strip", "aria-hidden": "true", dir: data.direction });
    const bit = (piece, tokens) => {
      const share = tokens.reduce((sum, token) => sum + shades[token], 0);
      const grey = tokens.every((token) => !counted[token]);
      const colour = shade(frame.theme, share, grey);
      const span = make("span", {}, cutShort(piece, 40));
      if (tokens.some((token) => shown.sees(token))) {
        span.style.backgroundColor = colour.hex;
        span.style.color = colour.ink;
      }
      return span;
    };
    if (shown.numbers.tokens <= MOST_IN_STRIP) {
      line.append(
        ...data.pieces
          .filter(([, tokens]) => !tokens.some((token) => shown.patches.has(token)))
          .map(([piece, tokens]) => (tokens.length ? bit(piece, tokens) : piece)),
      );
    } else {
      for (const token of highest(scores, counted, 6)) {
        line.append(bit(shown.numbers.labels[token], [token]), " ");
      }
    }
    return grid ? make("div", { class: "image-text" }, smallMap(shades), line) : line;
  }

  // The patches of an image, small, as a method shades them.
  function smallMap(shades) {
    const [rows, columns] = data.explanation.grid;
    const size = Math.max(1, Math.floor(96 / Math.max(rows, columns)));
    const canvas = make("canvas", {
      class: "small-map",
      width: columns * size,
      height: rows * size,
      "aria-hidden": "true",
    });
    const context = canvas.getContext("2d");
    for (const token of shown.patches) {
      const [row, column] = shown.numbers.labels[token].split(",").map(Number);
      context.fillStyle = shade(frame.theme, shades[token]).hex;
      context.fillRect(column * size, row * size, size, size);
    }
    return canvas;
  }

  return {
    element,
    draw(said) {
      element.replaceChildren(
        ...methods().map((method) =>
          make(
            "div",
            { class: method === shown.state.method ? "card on" : "card" },
            make("h3", {}, METHODS[method].name),
            make("p", { class: "muted" }, METHODS[method].about),
            strip(method),
            make("p", {}, said[method]),
          ),
        ),
      );
    },
  };
}
