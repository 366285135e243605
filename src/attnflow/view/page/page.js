// The page: the answer and what it came from, if there is one; then what attention says; then how it
// was made. Each part is a component in a module of its own, which is given all that it needs.

import { aboutPart } from "./about.js";
import { answerPart } from "./answer.js";
import { attentionPart } from "./attention.js";
import { figureOf, INNER } from "./figure.js";
import { Frame } from "./frame.js";
import { fromHash, toHash } from "./hash.js";
import { masthead } from "./masthead.js";
import { Numbers } from "./numbers.js";
import { readPicture } from "./picture.js";
import { explanationJson } from "./saved.js";
import { Shown } from "./shown.js";

/**
 * Show an explanation in an element.
 *
 * data is what attnflow.view.page.data returns. options may have state, an object with some of what
 * Shown.state has, to begin with; theme, "auto", "light" or "dark"; onChange, a function that is
 * given the state whenever it changes; address, whether the state is kept in the address of the
 * document, or hash, what an address keeps of it; and inside, whether the page is part of another, which
 * has the name, the theme and the footer. Returns a promise of {state, hash, set, setTheme, scores,
 * destroy}: the present state, also as an address keeps it, functions that change some of it and the
 * theme, one that returns the scores shown (null while they are computed), and one that takes
 * everything away again.
 */
export async function mount(element, data, options = {}) {
  const [numbers, picture] = await Promise.all([Numbers.read(data), readPicture(data.picture)]);
  const frame = new Frame(element, options.theme);
  const shown = new Shown(data, numbers);
  const page = assemble(frame, shown, picture, options);
  shown.set(options.state ?? {});
  const hash = options.address ? frame.window.location.hash.slice(1) : options.hash;
  if (hash) shown.set(fromHash(hash));
  page.show();
  return {
    get state() {
      return { ...shown.state };
    },
    get hash() {
      return toHash(shown.state, shown.first);
    },
    set: page.set,
    setTheme: page.setTheme,
    scores: () => shown.scores(),
    destroy: page.destroy,
  };
}

// Put the parts together; returns {show, set, setTheme, destroy}.
function assemble(frame, shown, picture, { onChange, address, inside }) {
  const { root, window } = frame;
  const { data, numbers } = shown;
  const given = { data, picture, shown };
  const answer = data.contribution ? answerPart(frame, given) : null;
  const attention = shown.attention
    ? attentionPart(frame, { ...given, set, redraw: show, isFirst: !answer })
    : null;
  const about = aboutPart(frame, given);
  const head = masthead(frame, {
    inside,
    changed: restyle,
    figure,
    json: () => explanationJson(shown),
  });

  root.replaceChildren(
    head.element,
    ...(answer ? [answer.element] : []),
    ...(attention?.elements ?? []),
    about.element,
    ...(inside ? [] : [footer(frame, Boolean(attention))]),
    frame.live,
    frame.tip,
  );
  root.classList.add("attnflow");
  frame.applyTheme();
  frame.listen(frame.darkScheme, "change", show);
  frame.listen(window, "resize", () => frame.later("resize", show, 60));
  frame.listen(window, "beforeprint", () => print(true));
  frame.listen(window, "afterprint", () => print(false));
  if (address) {
    frame.listen(window, "hashchange", () => {
      shown.set({ ...shown.first, ...fromHash(window.location.hash.slice(1)) });
      show();
    });
  }

  function set(changes) {
    shown.set(changes);
    show();
    if (address) keepAddress();
    onChange?.({ ...shown.state });
  }

  function restyle() {
    attention?.restyle();
    // All colours change, which is much to draw: the rest comes with the next frame.
    frame.afterFrame("theme", show);
  }

  function setTheme(theme) {
    frame.themeChoice = theme;
    frame.applyTheme();
    restyle();
  }

  // A moment later, as browsers allow only so many changes in a second.
  function keepAddress() {
    frame.later(
      "address",
      () => {
        const hash = toHash(shown.state, shown.first);
        window.history.replaceState(null, "", hash ? `#${hash}` : "#");
      },
      150,
    );
  }

  function show() {
    // Before anything changes: afterwards the browser would have to lay out all that did.
    attention?.measure();
    frame.applyTheme();
    head.draw();
    answer?.draw();
    attention?.draw();
    about.draw();
    const { method, layer, position, token, head: one } = shown.state;
    Object.assign(root.dataset, { method, layer, position, token: token ?? "", head: one });
    root.dataset.flow = numbers.job ? "computing" : "done";
  }

  function figure() {
    const parts = [...(answer?.figure(INNER) ?? []), ...(attention?.figure(INNER) ?? [])];
    return figureOf(parts, { theme: frame.theme, fit: frame.fit });
  }

  function print(on) {
    frame.printing = on;
    root.classList.toggle("printing", on);
    frame.callOff("resize");
    show();
    if (on) attention?.finish();
  }

  function destroy() {
    answer?.destroy();
    attention?.destroy();
    frame.destroy();
  }

  return { show, set, setTheme, destroy };
}

function footer({ make }, attention) {
  const paper = [
    "Raw attention, attention rollout and attention flow: Abnar and Zuidema, ",
    make("cite", {}, "Quantifying Attention Flow in Transformers"),
    ", ACL 2020. ",
  ];
  return make("footer", {}, ...(attention ? paper : []), "This page makes no network requests.");
}
