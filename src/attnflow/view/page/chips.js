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
 * whether there is text beside it. draw is given the pieces once more, if their shares changed.
 */
export function signedText(frame, { pieces, grid, picture, direction, words = true, label }) {
  const { make } = frame;
  const chips = [];
  const chip = (index, patch) => {
    const element = make("span", { class: "token" }, patch ? "" : pieces[index][0]);
    chips.push({ element, index, patch });
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
    pieces.forEach(([name, , , , isPatch], index) => {
      if (!isPatch) return;
      const patch = chip(index, true);
      placePatch(patch, name);
      cells.append(patch);
    });
    box.append(cells);
  }
  if (words) {
    const text = grid ? make("div", { class: "text", dir: direction }) : box;
    pieces.forEach(([piece, , score, isLabel, isPatch], index) => {
      if (isPatch) return;
      const between = isLabel ? make("b", {}, piece) : piece;
      text.append(score === null ? between : chip(index, false));
    });
    if (grid) box.append(text);
  }
  const draw = (shown = pieces) => {
    for (const { element, index, patch } of chips) {
      const [name, share, score] = shown[index];
      const colour = shade(frame.theme, share ?? 0, share === null);
      const over = picture && patch ? cover(Math.abs(share)) : "";
      element.style.backgroundColor = share === null ? "" : `${colour.hex}${over}`;
      element.style.color = share === null ? "" : colour.ink;
      element.classList.toggle("special", share === null);
      element.classList.toggle("against", share < 0);
      element.title = patch ? `${name}: ${score}` : score;
      if (patch) element.textContent = share < DASHED_BELOW ? "−" : "";
    }
  };
  return { element: box, draw };
}
