// Which tokens of an answer are chosen: [first, last], or null for the whole answer.

/** Return a selection as the text after the # of an address. */
export function toHash(selection) {
  if (selection === null) return "";
  const [first, last] = selection;
  return `tokens=${first === last ? first : `${first}-${last}`}`;
}

/** Return the selection that the text after the # of an address stands for. */
export function fromHash(text) {
  const found = /^(\d+)(?:-(\d+))?$/.exec(new URLSearchParams(text).get("tokens") ?? "");
  if (!found) return null;
  const first = Number(found[1]);
  return [first, Number(found[2] ?? first)];
}

/** Return the selection from one token to another, in either direction. */
export const between = (a, b) => [Math.min(a, b), Math.max(a, b)];

/** Whether a token is selected. */
export const has = (selection, token) =>
  selection !== null && token >= selection[0] && token <= selection[1];
