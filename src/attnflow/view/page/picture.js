// An image, and its patches laid over it.

import { fromBase64 } from "./trace.js";

// How much of a picture the highest score covers.
const COVER = 0.82;

/** Return the small copy of an image that came with an explanation, or null. */
export async function readPicture(text) {
  if (!text) return null;
  try {
    // Bytes that are decoded here are no request, which the page's policy would not allow.
    return await createImageBitmap(new Blob([fromBase64(text)]));
  } catch {
    return null;
  }
}

/** Return a canvas that shows a picture. */
export function drawPicture(frame, picture, name) {
  const { width, height } = picture;
  const canvas = frame.make("canvas", { class: name, width, height, "aria-hidden": "true" });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return canvas;
}

/** Return the place of an image's patches, rows and columns of them, on the picture if there is one. */
export function patchGrid(frame, [rows, columns], picture) {
  const cells = frame.make("div", { class: "patches" });
  cells.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  if (picture) {
    cells.classList.add("on-picture");
    cells.style.gridTemplateRows = `repeat(${rows}, minmax(0, 1fr))`;
    cells.style.aspectRatio = `${picture.width} / ${picture.height}`;
    cells.append(drawPicture(frame, picture, "picture"));
  }
  return cells;
}

/** Put a patch into its place, by its name, such as "0,1". */
export function placePatch(element, name) {
  element.classList.add("patch");
  const [row, column] = name.split(",").map(Number);
  element.style.gridRow = String(row + 1);
  element.style.gridColumn = String(column + 1);
}

/** Return how far a colour covers a picture, as the last two digits of its name. */
export function cover(share) {
  const part = Math.round(255 * COVER * Math.min(1, Math.max(0, share)));
  return part.toString(16).padStart(2, "0");
}
