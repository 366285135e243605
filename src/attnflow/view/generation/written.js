// The answer, whose tokens are chosen: one by a click or Enter, several by dragging or with Shift.

import { shade } from "../page/colour.js";
import { between, has } from "./selection.js";

// A longer answer is set smaller, as text and no headline.
const MUCH = 240;

/**
 * Return the part with the answer: {element, draw, focus}. choose is given a selection, or null for
 * the whole answer, and preview the same while the pointer is on it, or undefined when it left.
 */
export function writtenPart(frame, { data, sources, choose, preview, chosen }) {
  const { make } = frame;
  const can = sources.count > 0;
  // The element that shows each token; several tokens share one that shows a character of theirs.
  const elements = [];
  const chips = [];
  const box = make("div", {
    class: data.generation.text.length > MUCH ? "written much" : "written",
    dir: data.answerDirection,
    role: can ? "listbox" : undefined,
    "aria-multiselectable": can ? "true" : undefined,
    "aria-label": can ? "The answer: choose tokens to see what they came from" : undefined,
  });
  let anchor = 0;
  let dragging = false;

  if (can) fill();
  else box.textContent = data.generation.text.trim();

  function fill() {
    const first = data.answer.findIndex(([text, tokens]) => tokens.length || text.trim());
    for (const [text, tokens] of data.answer.slice(Math.max(0, first))) {
      if (tokens.length === 0) {
        box.append(text);
        continue;
      }
      const blank = !text.trim();
      const element = make(
        "span",
        {
          class: "token",
          role: "option",
          tabindex: -1,
          "data-new": tokens[0],
          "aria-label": blank ? data.names[tokens[0]] : undefined,
        },
        blank ? text.replaceAll("\n", "↵") : text,
      );
      for (const token of tokens) elements[token] = element;
      chips.push({ element, tokens });
      box.append(element);
      if (blank && text.includes("\n")) box.append(text.replace(/[^\n]/g, ""));
    }
    if (elements[0]) elements[0].tabIndex = 0;
    frame.listen(box, "pointerover", (event) => {
      const chip = chipOf(event);
      if (!chip) return;
      if (dragging) extend(chip);
      else preview(span(chip));
    });
    frame.listen(box, "pointerleave", () => preview(undefined));
    frame.listen(box, "focusout", () => preview(undefined));
    frame.listen(box, "pointerdown", press);
    for (const end of ["pointerup", "pointercancel"]) {
      frame.listen(frame.window, end, () => {
        dragging = false;
      });
    }
    frame.listen(box, "keydown", move);
    frame.listen(box, "copy", (event) => {
      event.preventDefault();
      event.clipboardData.setData("text/plain", textOf(chosen()));
    });
  }

  const span = (chip) => [chip.tokens[0], chip.tokens.at(-1)];

  function chipOf(event) {
    const element = event.target.closest?.("[data-new]");
    return element && chips.find((chip) => chip.element === element);
  }

  function press(event) {
    const chip = chipOf(event);
    if (!chip || event.button !== 0) return;
    // Touch keeps the pointer on the first element; the next ones have to tell of it, too.
    if (event.target.hasPointerCapture?.(event.pointerId)) {
      event.target.releasePointerCapture(event.pointerId);
    }
    const [first, last] = span(chip);
    if (event.shiftKey) {
      if (chosen() === null) anchor = first;
      extend(chip);
    } else if (String(chosen()) === String([first, last])) {
      choose(null);
    } else {
      anchor = first;
      dragging = true;
      choose([first, last]);
    }
    focus(chip);
    event.preventDefault();
  }

  function extend(chip) {
    const [first, last] = span(chip);
    choose(between(anchor, first < anchor ? first : last));
    focus(chip);
  }

  function move(event) {
    const at = chips.findIndex((chip) => chip.element === frame.focused);
    if (at < 0) return;
    const rtl = frame.window.getComputedStyle(box).direction === "rtl";
    const to = {
      ArrowRight: at + (rtl ? -1 : 1),
      ArrowLeft: at + (rtl ? 1 : -1),
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      Home: 0,
      End: chips.length - 1,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      const chip = chips[Math.min(chips.length - 1, Math.max(0, to))];
      if (event.shiftKey) {
        if (chosen() === null) anchor = span(chips[at])[0];
        extend(chip);
        return;
      }
      focus(chip);
      preview(span(chip));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const [first, last] = span(chips[at]);
      anchor = first;
      choose(String(chosen()) === String([first, last]) ? null : [first, last]);
    } else if ((event.ctrlKey || event.metaKey) && event.key === "a") {
      event.preventDefault();
      anchor = 0;
      choose([0, sources.count - 1]);
    }
  }

  function focus(chip) {
    for (const other of chips) other.element.tabIndex = other === chip ? 0 : -1;
    chip.element.focus({ preventScroll: dragging });
  }

  /** Return the text of a selection, as it was written. */
  function textOf(selection) {
    if (selection === null) return data.generation.text;
    let text = "";
    let waiting = "";
    for (const [piece, tokens] of data.answer) {
      if (tokens.some((token) => has(selection, token))) {
        text += (text && waiting) + piece;
        waiting = "";
      } else waiting = tokens.length ? "" : waiting + piece;
    }
    return text;
  }

  return {
    element: box,
    textOf,
    /** selection is what is shown; its sources in the answer are shaded on a scale of their own. */
    draw({ selection, scores }) {
      const top = sources.ownColumns.reduce(
        (most, column) => Math.max(most, Math.abs(scores[column])),
        0,
      );
      for (const { element, tokens } of chips) {
        const on = tokens.some((token) => has(selection, token));
        // The last token was read to write none.
        const columns = tokens
          .map((token) => sources.ownColumns[token])
          .filter((column) => column !== undefined);
        const read =
          sources.byToken && !on && columns.length && sources.before(columns[0], selection);
        const sum = columns.reduce((total, column) => total + scores[column], 0);
        const share = read && top > 0 ? Math.max(-1, Math.min(1, sum / top)) : 0;
        const colour = shade(frame.theme, share);
        element.classList.toggle("chosen", on);
        element.classList.toggle("against", share < 0);
        element.setAttribute("aria-selected", String(on));
        element.style.backgroundColor = read ? colour.hex : "";
        element.style.color = read ? colour.ink : "";
      }
    },
  };
}
