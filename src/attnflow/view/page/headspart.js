// Heads at a glance: a small map of each head of each layer, in the order of the layers or of what
// each adds to the answer; those that are chosen are opened below, laid over each other.

import { HEAD_INKS, headsInOrder, overlayRows, overlayScene, paintHead } from "./heads.js";
import { formatAmong } from "./prose.js";
import { toSvg } from "./scene.js";
import { MOST_OPENED } from "./shown.js";

// Of a longer text, the heads that add most are shown at first, so many of them.
const SHORT = 64;
const FEW = 24;

/** Return the part of a page with the heads: {element, draw, figure}. set changes what is shown. */
export function headsPart(frame, { shown, set }) {
  const { make } = frame;
  const { numbers } = shown;
  const { heads, headValues: values } = numbers;
  const layers = numbers.trace.heads.length;
  const largest = values ? Math.max(...values.flat().map(Math.abs)) || 1 : 1;
  let order = values ? "answer" : "layer";
  let every = !values || numbers.tokens <= SHORT || layers * heads <= FEW;
  let several = false;
  let only = null;
  let painted = "";
  let buttons = [];

  const orders = values
    ? frame.radios({
        label: "The order of the heads",
        attribute: "data-heads-order",
        choices: [
          ["answer", "By what they add"],
          ["layer", "By layer"],
        ],
        choose: (next) => {
          order = next;
          build();
          draw();
        },
      })
    : null;
  const grid = make("div", { class: "head-grid", role: "group", "aria-label": "Heads" });
  const overlay = frame.check("several", "Lay several over each other", {
    onchange: (event) => {
      several = event.target.checked;
    },
  });
  const more = make("button", { type: "button", class: "plain", onclick: showAll }, "");
  const names = make("ul", { class: "opened" });
  const lines = make("div", { class: "overlay" });
  const hint = make("p", { class: "caption" });
  const element = make(
    "section",
    { class: "heads", "aria-labelledby": frame.id("heads") },
    make(
      "div",
      { class: "section-head" },
      make("h2", { id: frame.id("heads") }, "Heads at a glance"),
      make("div", { class: "switches" }, orders?.element, overlay.element),
    ),
    make(
      "p",
      { class: "caption" },
      "Each square is one head: a row attends, a column is attended to. " +
        (values
          ? "Blue heads add to the answer, orange ones take from it; the stronger the colour, the more. "
          : "") +
        "Choose a head to open it.",
    ),
    grid,
    more,
    names,
    lines,
    hint,
  );

  frame.listen(grid, "keydown", move);
  frame.listen(lines, "pointermove", (event) => point(event.target));
  frame.listen(lines, "pointerleave", () => point(null));

  function showAll() {
    every = true;
    build();
    draw();
    buttons[0]?.element.focus();
  }

  function label({ layer, head, value }) {
    const adds = value === null ? "" : `: ${formatAmong(value, largest)}`;
    return `Layer ${layer}, head ${head}${adds}`;
  }

  function build() {
    const all = headsInOrder(layers, heads, values, order);
    const most = headsInOrder(layers, heads, values, "answer").slice(0, FEW);
    const names = new Set(most.map(({ layer, head }) => `${layer}.${head}`));
    const listed = every ? all : all.filter(({ layer, head }) => names.has(`${layer}.${head}`));
    buttons = listed.map((one) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      const button = make(
        "button",
        {
          type: "button",
          class: "head",
          tabindex: -1,
          title: label(one),
          "aria-label": label(one),
          "data-head": `${one.layer}.${one.head}`,
          onclick: () => open(one),
        },
        canvas,
        make("span", { "aria-hidden": "true" }, `${one.layer}.${one.head}`),
      );
      return { ...one, canvas, element: button };
    });
    grid.classList.toggle("by-layer", order === "layer" && every);
    grid.style.setProperty("--heads", heads);
    grid.replaceChildren(...buttons.map((button) => button.element));
    if (buttons.length) buttons[0].element.tabIndex = 0;
    more.hidden = every;
    more.textContent = `All ${layers * heads} heads`;
    orders?.mark(order);
    painted = "";
  }

  function open({ layer, head }) {
    const { opened } = shown.state;
    const rest = opened.filter(([l, h]) => l !== layer || h !== head);
    const was = rest.length < opened.length;
    only = null;
    if (several) {
      set({ opened: was ? rest : [...rest, [layer, head]].slice(-MOST_OPENED) });
    } else set({ opened: was && opened.length === 1 ? [] : [[layer, head]] });
  }

  function move(event) {
    const at = buttons.findIndex((button) => button.element === frame.focused);
    const columns = grid.classList.contains("by-layer") ? heads : columnsOf(grid);
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
      Home: -at,
      End: buttons.length - 1 - at,
    }[event.key];
    if (at < 0 || step === undefined) return;
    event.preventDefault();
    const next = buttons[Math.min(buttons.length - 1, Math.max(0, at + step))];
    for (const button of buttons) button.element.tabIndex = -1;
    next.element.tabIndex = 0;
    next.element.focus();
  }

  function point(target) {
    const key = target?.dataset?.key;
    const next = key === undefined ? null : Number(key);
    if (target !== null && key === undefined) return;
    if (next === only) return;
    only = next;
    drawOpened();
  }

  function drawn() {
    const { opened } = shown.state;
    return opened.map(([layer, head], i) => ({
      layer,
      head,
      value: values?.[layer - 1]?.[head] ?? null,
      weights: numbers.trace.heads[layer - 1][head],
      ink: HEAD_INKS[frame.theme][i],
    }));
  }

  function sceneOf(width, found) {
    const rows = overlayRows(found, numbers.tokens, null);
    return overlayScene({
      heads: found,
      labels: numbers.labels,
      special: numbers.special,
      rows,
      position: only,
      theme: frame.theme,
      width,
      fit: frame.fit,
    });
  }

  function drawOpened() {
    const found = drawn();
    const width = element.clientWidth;
    if (found.length === 0 || width === 0) {
      names.replaceChildren();
      lines.replaceChildren();
      hint.textContent = "";
      return;
    }
    names.replaceChildren(
      ...found.map((one) => {
        const { layer, head, ink } = one;
        const mark = make("span", { class: "swatch", "aria-hidden": "true" });
        mark.style.backgroundColor = ink;
        return make(
          "li",
          {},
          mark,
          label(one),
          make(
            "button",
            { type: "button", class: "plain", onclick: () => set({ layer, head }) },
            "Explain by this head alone",
          ),
          make(
            "button",
            {
              type: "button",
              class: "plain",
              "aria-label": `Close layer ${layer}, head ${head}`,
              onclick: () =>
                set({ opened: shown.state.opened.filter(([l, h]) => l !== layer || h !== head) }),
            },
            "Close",
          ),
        );
      }),
    );
    const scene = sceneOf(width, found);
    const svg = toSvg(frame.document, scene);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `Attention of ${found.map(label).join(", ")}`);
    for (const shape of svg.querySelectorAll("[data-key]")) shape.classList.add("from");
    lines.replaceChildren(svg);
    const rows = overlayRows(found, numbers.tokens, null).length;
    const hidden = numbers.tokens - rows;
    hint.textContent =
      "The tokens at the left attend to those at the right. Point at one at the left to see its lines alone." +
      (hidden > 0 ? ` Of all tokens, the ${hidden} that get least are not drawn.` : "");
  }

  function draw() {
    const { opened } = shown.state;
    for (const { element: button, layer, head } of buttons) {
      const on = opened.some(([l, h]) => l === layer && h === head);
      button.setAttribute("aria-pressed", String(on));
    }
    if (painted !== frame.theme) {
      painted = frame.theme;
      frame.later("heads", () => {
        for (const { canvas, layer, head, value } of buttons) {
          const share = value === null ? 1 : value / largest;
          const weights = numbers.trace.heads[layer - 1][head];
          paintHead(canvas, weights, numbers.tokens, frame.theme, share);
        }
      });
    }
    drawOpened();
  }

  build();
  return {
    element,
    draw,
    figure: (width) => {
      const found = drawn();
      if (found.length === 0) return [];
      return [{ text: found.map(label).join("; "), size: 13 }, sceneOf(width, found)];
    },
  };
}

// How many squares stand side by side.
function columnsOf(grid) {
  const [first, ...rest] = grid.children;
  const below = rest.findIndex((element) => element.offsetTop > first.offsetTop);
  return below < 0 ? rest.length + 1 : below + 1;
}
