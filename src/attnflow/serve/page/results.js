// What the server answered: the page of a text, those of two texts with what changed between them, or
// that of what the model wrote.

import { mountGeneration } from "../../view/generation/generation.js";
import { mount } from "../../view/page/page.js";
import { METHODS } from "../../view/page/prose.js";
import { comparisonPart, RESULT_NAMES } from "./comparison.js";

/**
 * Return {element, show, clear, set, setTheme, hash, live}. followed is called with the state of the
 * first page whenever it changes.
 */
export function resultsPart(frame, { followed }) {
  const { make } = frame;
  const above = make("div", { class: "attnflow above", hidden: true });
  const pagesBox = make("div", { class: "results" });
  const element = make("div", {}, above, pagesBox);
  let shown = [];
  let watches = [];
  let pages = [];
  let comparison = null;
  let following = false;
  // What is shown while another answer comes is not shown any more.
  let turn = 0;

  function clear() {
    turn += 1;
    for (const watch of watches) watch.disconnect();
    for (const view of shown) view.destroy();
    [shown, watches] = [[], []];
    pages = [];
    comparison = null;
    above.hidden = true;
    above.replaceChildren();
    pagesBox.replaceChildren();
    pagesBox.className = "results";
  }

  // What is chosen in one page is chosen in the other.
  function follow(index, state) {
    if (following || index >= shown.length) return;
    const { method, layer, head, special } = state;
    const changes = { method, layer, head, special };
    const [count] = pages.map((page) => page.labels.length);
    if (pages.every((page) => page.labels.length === count)) {
      Object.assign(changes, { position: state.position, token: state.token });
    }
    set(changes, index);
    followed(shown[0].state);
  }

  // All pages at once: each told by itself would tell the others, and all would be drawn twice.
  function set(changes, but = -1) {
    following = true;
    shown.forEach((view, index) => {
      if (index !== but) view.set(changes);
    });
    following = false;
    draw();
  }

  function draw() {
    if (!comparison || shown.length < pages.length) return;
    const { method, layer } = shown[0].state;
    comparison.draw(
      shown.map((view) => view.scores()),
      `${METHODS[method].name}, layer ${layer}`,
    );
  }

  async function showPages(given, { state, hash }) {
    // The same texts, asked about in another way: the same position is looked at.
    const before = pages.map((page) => String(page.labels));
    const states = shown.map((view) => view.state);
    clear();
    const mine = turn;
    pages = given;
    const two = pages.length > 1;
    if (two) {
      comparison = comparisonPart(frame, { pages });
      above.replaceChildren(comparison.element);
      above.dataset.theme = frame.themeChoice;
      above.hidden = false;
      pagesBox.classList.add("two");
    }
    for (const [index, page] of pages.entries()) {
      const box = make("div", { "data-result": index });
      if (two) pagesBox.append(titleOf(index));
      pagesBox.append(box);
      const same = before[index] === String(page.labels);
      const view = await mount(box, page, {
        theme: frame.themeChoice,
        inside: true,
        state: { ...state, ...(same ? pick(states[index]) : {}) },
        hash,
        onChange: (changed) => follow(index, changed),
      });
      if (turn !== mine) {
        view.destroy();
        return;
      }
      if (two) nameParts(box, `result-${index}`);
      // Flows arrive later.
      const watch = new MutationObserver(draw);
      watch.observe(box, { attributes: true, attributeFilter: ["data-flow"] });
      shown.push(view);
      watches.push(watch);
    }
    draw();
  }

  // The names of both texts stand above their pages, each of which fills an element.
  function titleOf(index) {
    const name = make("h2", { id: `result-${index}` }, RESULT_NAMES[index]);
    return make("div", { class: "attnflow which", "data-theme": frame.themeChoice }, name);
  }

  async function showWritten(page, hash) {
    clear();
    const mine = turn;
    const box = make("div", { "data-result": 0 });
    pagesBox.append(box);
    const { themeChoice: theme } = frame;
    const view = await mountGeneration(box, page, {
      theme,
      inside: true,
      hash,
      onChange: followed,
    });
    if (turn === mine) shown.push(view);
    else view.destroy();
  }

  return {
    element,
    clear,
    set,
    /** Show an answer; state and hash are what its page begins with. */
    show: ({ pages: given, page }, begin) =>
      given ? showPages(given, begin) : showWritten(page, begin.hash),
    setTheme() {
      for (const view of shown) view.setTheme(frame.themeChoice);
      for (const part of element.querySelectorAll(".above, .which")) {
        part.dataset.theme = frame.themeChoice;
      }
    },
    /** What the address keeps of the first page. */
    get hash() {
      return shown[0]?.hash ?? "";
    },
    /** Whether what is shown is attention, which can be drawn by any method. */
    get live() {
      return pages.length > 0 && pages.every((page) => page.trace && !page.contribution);
    },
  };
}

function pick({ special, position, token }) {
  return { special, position, token };
}

/** Say to which of two pages each part belongs, so that a list of the parts tells them apart. */
function nameParts(element, name) {
  element.querySelectorAll("section").forEach((part, index) => {
    part.id ||= `${name}-part-${index}`;
    part.setAttribute(
      "aria-labelledby",
      `${part.getAttribute("aria-labelledby") ?? part.id} ${name}`,
    );
  });
}
