// The text, or the patches of an image: tokens are shaded by a method's scores, and chosen.

import { shade } from "./colour.js";
import { scaleOf } from "./heat.js";
import { cover, drawPicture, patchGrid, placePatch } from "./picture.js";
import { cutShort, formatScore, highest, METHODS } from "./prose.js";

/**
 * Return the part with the text: {element, draw}. set changes what is shown, and picture is the
 * image that the patches lie on, or null.
 */
export function textPart(frame, { data, picture, shown, set }) {
  const { make } = frame;
  const { numbers, patches } = shown;
  const { grid } = data.explanation;
  const can = Boolean(numbers.trace);
  // The elements that show each token: none where another token shows the same characters.
  const elements = Array.from({ length: numbers.tokens }, () => []);
  const box = make("div", {
    class: grid ? "image-text" : "text",
    dir: grid ? "ltr" : data.direction,
    role: can ? "radiogroup" : "group",
    "aria-label": can ? "The position that is explained" : "The tokens, shaded by score",
  });
  fill(box);
  const scale = frame.scale();
  const low = make("span", {}, "nothing");
  const legend = make("span", {});

  function chip(text, tokens) {
    const element = make(
      "span",
      {
        class: tokens.every((i) => numbers.special[i]) ? "token special" : "token",
        role: can ? "radio" : undefined,
        tabindex: can ? "-1" : undefined,
        "data-token": tokens[0],
      },
      text,
    );
    for (const i of tokens) elements[i].push(element);
    return element;
  }

  function write(element, parts) {
    for (const [text, tokens, label] of parts) {
      element.append(tokens.length ? chip(text, tokens) : label ? make("b", {}, text) : text);
    }
    return element;
  }

  function fill(element) {
    if (!grid) {
      write(element, data.pieces);
      return;
    }
    const cells = patchGrid(frame, grid, picture);
    for (const token of patches) {
      const patch = chip("", [token]);
      placePatch(patch, numbers.labels[token]);
      cells.append(patch);
    }
    const others = data.pieces.filter(([, tokens]) => !tokens.some((i) => patches.has(i)));
    if (data.explanation.text) {
      element.append(cells, write(make("div", { class: "text", dir: data.direction }), others));
    } else {
      const named = others.filter(([, tokens]) => tokens.length);
      element.append(write(make("div", { class: "specials" }), named), cells);
    }
    if (picture) element.append(drawPicture(frame, picture, "plain-picture"));
  }

  if (can) {
    frame.listen(box, "click", (event) => {
      const token = event.target.closest?.("[data-token]");
      if (token) set({ position: Number(token.dataset.token) });
    });
    frame.listen(box, "keydown", move);
  }
  frame.listen(box, "pointermove", (event) => {
    const token = event.target.closest?.("[data-token]");
    if (!token) return frame.hideTip();
    return frame.showTip(event, describe(Number(token.dataset.token)));
  });
  frame.listen(box, "pointerleave", () => frame.hideTip());

  function describe(token) {
    const parts = [cutShort(numbers.labels[token], 120)];
    for (const method of numbers.methods) {
      const scores = shown.scores(method);
      parts.push(`${METHODS[method].short} ${scores ? formatScore(scores[token]) : "…"}`);
    }
    return parts.join("\n");
  }

  function move(event) {
    const here = frame.focused?.dataset?.token;
    if (here === undefined) return;
    const at = Number(here);
    const rtl = frame.window.getComputedStyle(box).direction === "rtl";
    const last = numbers.tokens - 1;
    const columns = grid?.[1] ?? 1;
    const to = {
      ArrowRight: at + (rtl ? -1 : 1),
      ArrowLeft: at + (rtl ? 1 : -1),
      ArrowDown: at + columns,
      ArrowUp: at - columns,
      Home: 0,
      End: last,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focus(Math.min(last, Math.max(0, to)), at);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      set({ position: at });
      focus(at);
    }
  }

  function focus(token, before = -1) {
    // Tokens that share a character are one element, which bears the name of the first.
    let next = token;
    const step = before > token ? -1 : 1;
    while (elements[next] && elements[next].length === 0) next += step;
    let element = elements[next]?.[0];
    if (before >= 0 && element === elements[before]?.[0]) {
      const inside = () => next + step >= 0 && next + step < numbers.tokens;
      while (elements[next]?.[0] === element && inside()) next += step;
      element = elements[next]?.[0] ?? element;
    }
    if (!element) return;
    for (const other of box.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    element.tabIndex = 0;
    element.focus();
  }

  // Return for each element the sum of its tokens' shares and scores.
  function summed(scores) {
    const shares = scores ? shown.shares(scores) : null;
    const sums = new Map();
    for (let token = 0; token < numbers.tokens; token += 1) {
      for (const element of elements[token]) {
        const sum = sums.get(element) ?? { share: 0, score: 0, tokens: [] };
        sum.share += shares ? shares[token] : 0;
        sum.score += scores ? scores[token] : 0;
        sum.tokens.push(token);
        sums.set(element, sum);
      }
    }
    return sums;
  }

  function draw() {
    const { state, counted } = shown;
    const scores = shown.scores();
    const active = frame.focused;
    for (const [element, { share, score, tokens }] of summed(scores)) {
      const [token] = tokens;
      const unseen = tokens.every((i) => !shown.sees(i));
      const colour = shade(frame.theme, share, !counted[token]);
      const over = picture && patches.has(token) ? cover(share) : "";
      element.style.backgroundColor = unseen || !scores ? "" : `${colour.hex}${over}`;
      element.style.color = unseen || !scores ? "" : colour.ink;
      element.classList.toggle("unseen-token", unseen);
      const chosen = can && tokens.includes(state.position);
      element.classList.toggle("chosen", chosen);
      if (!can) continue;
      element.setAttribute("aria-checked", String(chosen));
      element.tabIndex = chosen ? 0 : -1;
      const known = scores ? formatScore(score) : "being computed";
      const value = unseen ? "not seen from here" : known;
      element.setAttribute("aria-label", `${cutShort(numbers.labels[token])}: ${value}`);
    }
    if (can && active && box.contains(active)) active.tabIndex = 0;
    drawLegend(scores, counted, state.relative);
  }

  function drawLegend(scores, counted, relative) {
    const [best] = scores ? highest(scores, counted, 1) : [];
    const { low: from, top } = scaleOf(scores ?? [], counted, relative);
    low.textContent =
      relative && scores ? `the text's median, ${formatScore(from)}, or less` : "nothing";
    const more = scores && relative && scores[best] > top;
    const words = more
      ? ` or more, up to ${formatScore(scores[best])}`
      : ", the highest in this layer";
    legend.textContent = best === undefined ? "" : `${formatScore(top)}${words}${shown.greyWords}`;
    scale.paint((x) => shade(frame.theme, x).hex);
  }

  const element = make(
    "section",
    { class: "text-part", "aria-label": grid && !data.explanation.text ? "The image" : "The text" },
    box,
    make("p", { class: "legend" }, low, scale.element, legend),
  );
  return { element, draw };
}
