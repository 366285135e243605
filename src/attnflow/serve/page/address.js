// What is chosen, kept over a reload: choices in the address, so that a link has them, and what was
// typed in the history of this tab alone, so that no link has it.

const PLACE = { doing: "do", kind: "input", comparing: "compare", view: "view" };

/**
 * Return {choices, typed, token} of a window: choices are {doing, kind, comparing, view, options}. The
 * token, with which a page may be opened, is taken out of the address.
 */
export function readAddress(window) {
  const words = new URLSearchParams(window.location.hash.slice(1));
  const token = words.get("token") ?? "";
  if (token) {
    words.delete("token");
    write(window, words, window.history.state);
  }
  const choices = { options: {} };
  for (const [name, key] of Object.entries(PLACE)) {
    if (words.has(key)) choices[name] = words.get(key);
    words.delete(key);
  }
  Object.assign(choices.options, Object.fromEntries(words));
  return { choices, typed: window.history.state?.typed ?? {}, token };
}

/** Keep what is chosen, {doing, kind, comparing, view, options}, and what was typed. */
export function keepAddress(window, { options, ...places }, typed) {
  const words = new URLSearchParams();
  for (const [name, key] of Object.entries(PLACE)) if (places[name]) words.set(key, places[name]);
  for (const [name, value] of Object.entries(options)) words.set(name, String(value));
  write(window, words, { typed });
}

function write(window, words, state) {
  const hash = words.toString();
  const { pathname, search } = window.location;
  window.history.replaceState(state, "", hash ? `#${hash}` : `${pathname}${search}`);
}
