// The page of a generation: the answer, and what it came from; as a whole, or a token or a span of
// it. Each part is a component in a module of its own, which is given all that it needs.

import { figureOf, INNER } from "../page/figure.js";
import { Frame } from "../page/frame.js";
import { masthead } from "../page/masthead.js";
import { readPicture } from "../page/picture.js";
import { cutShort } from "../page/prose.js";
import { addedPart, tell } from "./added.js";
import { matrixPart } from "./matrixpart.js";
import { promptPart } from "./prompt.js";
import { generationJson } from "./saved.js";
import { fromHash, toHash } from "./selection.js";
import { Sources } from "./sources.js";
import { selectionName } from "./words.js";
import { writtenPart } from "./written.js";

/**
 * Show a generation in an element.
 *
 * data is what attnflow.view.generation.data returns. options may have state, {selection}, to begin
 * with: the first and last of the new tokens that are chosen, or null for the whole answer; theme,
 * "auto", "light" or "dark"; onChange, a function that is given the state whenever it changes;
 * address, whether the state is kept in the address of the document, or hash, what an address keeps of
 * it; and inside, whether the page is part of another, which has the name, the theme and the footer.
 * Returns a promise of {state, hash, set, setTheme, scores, destroy}: the present state, also as an
 * address keeps it, functions that change it and the theme, one that returns the scores shown, and one
 * that takes everything away again.
 */
export async function mountGeneration(element, data, options = {}) {
  if (data.nothing) return mountNothing(element, data, options);
  const [sources, picture] = await Promise.all([Sources.read(data), readPicture(data.picture)]);
  const frame = new Frame(element, options.theme);
  const page = assemble(frame, data, sources, picture, options);
  page.begin();
  return {
    get state() {
      return page.state();
    },
    get hash() {
      return toHash(page.state().selection);
    },
    set: page.set,
    setTheme: page.setTheme,
    scores: page.scores,
    destroy: page.destroy,
  };
}

// Put the parts together.
function assemble(
  frame,
  data,
  sources,
  picture,
  { state: first, onChange, address, hash, inside },
) {
  const { make, root, window } = frame;
  let selection = null;
  // What the pointer is on, until it leaves.
  let preview;
  const shownSelection = () => (preview === undefined ? selection : preview);
  const present = () => sources.of(shownSelection());
  const choose = (next) => set({ selection: next });

  const written = writtenPart(frame, {
    data,
    sources,
    choose,
    preview: (next) => {
      if (String(next) === String(preview)) return;
      preview = next;
      showSources();
      // Who passes over many tokens hears of the one where they stay.
      if (next === undefined) frame.callOff("say");
      else frame.later("say", () => frame.say(origin.textContent), 400);
    },
    chosen: () => selection,
  });
  const prompt =
    data.generation.prompt || data.stretches.length || data.patches.length
      ? promptPart(frame, { data, sources, picture, shown: present })
      : null;
  const added = addedPart(frame, { data });
  const matrix = sources.count
    ? matrixPart(frame, { data, sources, choose, chosen: () => selection })
    : null;
  const origin = make("p", { class: "finding origin" });
  const whole = make(
    "button",
    { type: "button", class: "plain", onclick: () => choose(null) },
    "Whole answer",
  );
  const hint = sources.count
    ? "Point at a token of the answer to see what it came from; click to keep it, drag or use Shift for several."
    : "Only the answer as a whole was explained, not its tokens one by one.";
  const head = masthead(frame, {
    inside,
    changed: () => frame.afterFrame("theme", show),
    figure,
    json: () => generationJson(data, sources.matrix),
  });
  const about = [data.contrast, data.method, data.generation.whole.model].filter(Boolean);
  root.replaceChildren(
    head.element,
    make(
      "h1",
      { class: "kicker" },
      data.messages.length ? "The model answered" : "The model wrote",
    ),
    make(
      "div",
      { class: "answer-bar" },
      written.element,
      make("div", { class: "chosen-line" }, origin, sources.count ? whole : null),
    ),
    make("p", { class: "subtitle" }, `${about.join(" \u00b7 ")}`),
    make("p", { class: "caption hint" }, hint),
    ...(prompt ? [prompt.element] : []),
    added.element,
    ...(matrix ? [matrix.element] : []),
    aboutSection(frame, data),
    ...(inside ? [] : [make("footer", {}, "This page makes no network requests.")]),
    frame.live,
    frame.tip,
  );
  root.classList.add("attnflow", "generation");
  frame.applyTheme();
  frame.listen(frame.darkScheme, "change", show);
  frame.listen(window, "resize", () => frame.later("resize", show, 60));
  frame.listen(window, "beforeprint", () => print(true));
  frame.listen(window, "afterprint", () => print(false));
  // A page of its own has the key wherever the focus is.
  frame.listen(address ? window : root, "keydown", (event) => {
    if (event.key !== "Escape" || (selection === null && preview === undefined)) return;
    event.preventDefault();
    preview = undefined;
    choose(null);
  });
  if (address) {
    frame.listen(window, "hashchange", () => {
      selection = sources.checked(fromHash(window.location.hash.slice(1)));
      show();
    });
  }

  function begin() {
    selection = sources.checked(first?.selection);
    const kept = address ? window.location.hash.slice(1) : hash;
    if (kept) selection = sources.checked(fromHash(kept)) ?? selection;
    show();
  }

  function set(changes) {
    if (changes.selection === null) selection = null;
    else selection = sources.checked(changes.selection) ?? selection;
    show();
    frame.say(origin.textContent);
    if (address) keepAddress();
    onChange?.(state());
  }

  const state = () => ({ selection: selection && [...selection] });

  // A moment later, as browsers allow only so many changes in a second.
  function keepAddress() {
    frame.later(
      "address",
      () => window.history.replaceState(null, "", `#${toHash(selection)}`),
      150,
    );
  }

  function described() {
    const now = shownSelection();
    const text = now === null ? "" : written.textOf(now).trim();
    const name = now === null ? null : text ? selectionName(text) : data.names[now[0]];
    return { now, name, told: tell(data, sources, now, name) };
  }

  function show() {
    // Before anything changes: afterwards the browser would have to lay out all that did.
    matrix?.measure();
    frame.applyTheme();
    head.draw();
    showSources();
    matrix?.draw();
  }

  // All but the matrix, which shows every token, whatever the pointer is on.
  function showSources() {
    const { now, name, told } = described();
    written.draw({ selection: now, scores: present().scores });
    origin.textContent = told.sentence;
    whole.hidden = selection === null;
    prompt?.draw();
    added.draw(told, name);
    root.dataset.selection = now === null ? "" : now.join("-");
    root.dataset.flow = "done";
  }

  function figure() {
    const { name, told } = described();
    const text = cutShort(data.generation.text.trim().replace(/\s+/g, " "), 400);
    const parts = [
      { text, size: 20, weight: 700 },
      { text: about.join(" \u00b7 "), size: 13, quiet: true },
      ...(name === null ? [] : [{ text: `Chosen: ${name}`, size: 13, weight: 600 }]),
      { text: told.sentence, size: 13 },
      ...added.scenes(told, INNER),
      ...(matrix ? [matrix.scene(INNER)] : []),
      { text: data.reading, size: 12, quiet: true },
    ];
    return figureOf(parts, { theme: frame.theme, fit: frame.fit });
  }

  function print(on) {
    frame.printing = on;
    root.classList.toggle("printing", on);
    frame.callOff("resize");
    preview = undefined;
    show();
  }

  function setTheme(theme) {
    frame.themeChoice = theme;
    show();
  }

  function destroy() {
    prompt?.destroy();
    root.classList.remove("generation");
    frame.destroy();
  }

  return { begin, set, setTheme, state, scores: () => present().scores, destroy };
}

function aboutSection(frame, data) {
  const { make } = frame;
  const name = frame.id("about");
  return make(
    "section",
    { class: "about", "aria-labelledby": name },
    make("h2", { id: name }, "How it was made"),
    make(
      "dl",
      {},
      ...data.facts.map(([term, value]) =>
        make("div", {}, make("dt", {}, term), make("dd", { dir: "auto" }, value)),
      ),
    ),
    data.notes.length
      ? make("ul", { class: "notes" }, ...data.notes.map((note) => make("li", {}, note)))
      : null,
  );
}

// The model wrote nothing, and there is nothing to explain.
function mountNothing(element, data, { theme }) {
  const frame = new Frame(element, theme);
  element.replaceChildren(frame.make("p", {}, data.nothing));
  element.classList.add("attnflow");
  frame.applyTheme();
  element.dataset.flow = "done";
  const state = { selection: null };
  const setTheme = (choice) => {
    frame.themeChoice = choice;
    frame.applyTheme();
  };
  return {
    state,
    hash: "",
    set: () => {},
    setTheme,
    scores: () => [],
    destroy: () => frame.destroy(),
  };
}
