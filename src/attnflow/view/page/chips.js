// A text whose tokens are shaded by scores with a sign. Blue speaks for the answer, orange and
// underlined against it.

import { shade } from "./colour.js";
import { cover, patchGrid, placePatch } from "./picture.js";

// A patch below 0 has a dash unless its colour is almost none.
const DASHED_BELOW = -0.08;

/**
 * Return {element, draw}: the text, or the patches of an image, with a shade for each piece.
 *
 * pieces are [text, share, score in words, label, patch]: the share of the largest score from -1 to
 * 1, or null for a special token; score is null between tokens, label true for the name of a
 * segment, and patch true for a patch. grid is [rows, columns] of an image, or null, and words is
 * whether there is text beside it.
 */
export function signedText(frame, { pieces, grid, picture, direction, words = true, label }) {
  const { make } = frame;
  const chips = [];
  const chip = (text, share, score) => {
    const element = make("span", { class: "token", title: score }, text);
    element.classList.toggle("special", share === null);
    element.classList.toggle("against", share < 0);
    chips.push({ element, share, patch: false });
    return element;
  };
  const box = make("div", {
    class: grid ? "image-text contributed" : "text contributed",
    dir: grid ? "ltr" : direction,
    role: "group",
    "aria-label": label,
  });
  if (grid) {
    const cells = patchGrid(frame, grid, picture);
    for (const [name, share, score, , isPatch] of pieces) {
      if (!isPatch) continue;
      const patch = chip(share < DASHED_BELOW ? "−" : "", share, `${name}: ${score}`);
      placePatch(patch, name);
      cells.append(patch);
      chips.at(-1).patch = true;
    }
    box.append(cells);
  }
  if (words) {
    const text = grid ? make("div", { class: "text", dir: direction }) : box;
    for (const [piece, share, score, isLabel, isPatch] of pieces) {
      if (isPatch) continue;
      const between = isLabel ? make("b", {}, piece) : piece;
      text.append(score === null ? between : chip(piece, share, score));
    }
    if (grid) box.append(text);
  }
  const draw = () => {
    for (const { element, share, patch } of chips) {
      const colour = shade(frame.theme, share ?? 0, share === null);
      const over = picture && patch ? cover(Math.abs(share)) : "";
      element.style.backgroundColor = share === null ? "" : `${colour.hex}${over}`;
      element.style.color = share === null ? "" : colour.ink;
    }
  };
  return { element: box, draw };
}
