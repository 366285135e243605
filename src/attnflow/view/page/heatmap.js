// The heat maps on the page: drawn as far as they are seen, and used.

import { heatAt, heatLayout, heatScene } from "./heat.js";
import { cutShort, formatScore, METHODS } from "./prose.js";
import { paint } from "./scene.js";

/**
 * Return the heat maps: {element, measure, draw, scene}. set changes what is shown, and methods says
 * which methods are drawn. measure is called before anything else changes: afterwards the browser
 * would have to lay out all that did.
 */
export function heatPart(frame, { shown, set, methods }) {
  const { make } = frame;
  const { numbers } = shown;
  const labelWidth = frame.fit.widest(numbers.labels, 12.5, 700);
  const canvas = make("canvas", {});
  const head = make("canvas", { class: "heat-head", "aria-hidden": "true" });
  const space = make("div", { class: "heat-space" }, canvas);
  const heat = make(
    "div",
    {
      class: "heat",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label":
        "Scores of each token, a row, in each layer, a column, by each method. Arrow keys move the cell; the same numbers are in the table below.",
    },
    space,
  );
  let place = { width: 0, height: 0, scrolled: 0 };
  let layout = null;

  frame.listen(heat, "scroll", () => {
    frame.later("scroll", () => {
      measure();
      draw();
    });
  });
  frame.listen(heat, "pointermove", (event) => {
    const at = atPointer(event);
    if (!at?.method) return frame.hideTip();
    return frame.showTip(event, describe(at));
  });
  frame.listen(heat, "pointerleave", () => frame.hideTip());
  frame.listen(heat, "click", (event) => {
    const at = atPointer(event);
    if (at) set(at.method ? at : { token: at.token });
  });
  frame.listen(heat, "keydown", move);

  function measure() {
    const { clientWidth: width, clientHeight: height, scrollTop: scrolled } = heat;
    place = { width, height, scrolled };
  }

  // What scenes of any size share.
  function drawing() {
    return {
      numbers,
      state: shown.marks,
      theme: frame.theme,
      counted: shown.counted,
      fit: frame.fit,
    };
  }

  const sharesOf = (scores) => (method, layer) => {
    const found = scores(method, layer);
    return found && shown.shares(found);
  };

  function draw() {
    const { width } = place;
    if (width === 0) return;
    layout = heatLayout(width, shown.layers, methods(), labelWidth);
    const total = numbers.tokens * layout.row;
    if (space.style.height !== `${total}px`) {
      space.style.height = `${total}px`;
      measure();
    }
    const { height, scrolled } = place;
    // A long text is not drawn as a whole, which no canvas could hold.
    const whole = frame.printing && !numbers.groups;
    const visible = whole ? total : Math.min(total, height || 560);
    const first = whole ? 0 : Math.floor(scrolled / layout.row);
    const last = Math.min(numbers.tokens, first + Math.ceil(visible / layout.row) + 1);
    const rows = Array.from({ length: last - first }, (_, i) => first + i);
    const rowShares = sharesOf((method, layer) => shown.knownScores(method, layer));
    const given = { ...drawing(), layout, rowShares };
    const offset = whole ? 0 : scrolled - first * layout.row;
    onCanvas(canvas, visible, -offset, heatScene({ ...given, rows }).shapes);
    onCanvas(head, layout.head, 0, heatScene({ ...given, rows: [], head: true }).shapes);
  }

  function onCanvas(target, height, offset, shapes) {
    const scale = frame.printing ? 2 : Math.min(2, frame.window.devicePixelRatio || 1);
    target.width = Math.max(1, Math.ceil(layout.width * scale));
    target.height = Math.max(1, Math.ceil(height * scale));
    target.style.width = `${layout.width}px`;
    target.style.height = `${height}px`;
    const context = target.getContext("2d");
    context.scale(scale, scale);
    context.translate(0, offset);
    paint(context, shapes);
  }

  function atPointer(event) {
    if (!layout) return null;
    const box = heat.getBoundingClientRect();
    const x = event.clientX - box.left - heat.clientLeft;
    const y = event.clientY - box.top - heat.clientTop + heat.scrollTop;
    return heatAt(layout, numbers, x, y);
  }

  function describe({ method, layer, token }) {
    const scores = shown.scores(method, layer);
    const value = scores ? formatScore(scores[token]) : "being computed";
    return `${cutShort(numbers.labels[token], 120)}\n${METHODS[method].short}, ${shown.layerName(layer)}: ${value}`;
  }

  function move(event) {
    const { state, layers } = shown;
    const drawn = methods();
    const column = drawn.indexOf(state.method) * layers + state.layer - 1;
    const token = state.token ?? Math.max(0, shown.marks.position);
    const step = Math.max(1, Math.floor(heat.clientHeight / (layout?.row ?? 22)) - 1);
    const to = {
      ArrowUp: [token - 1, column],
      ArrowDown: [token + 1, column],
      PageUp: [token - step, column],
      PageDown: [token + step, column],
      ArrowLeft: [token, column - 1],
      ArrowRight: [token, column + 1],
      Home: [0, column],
      End: [numbers.tokens - 1, column],
    }[event.key];
    if (!to || drawn.length === 0) return;
    event.preventDefault();
    const row = Math.min(numbers.tokens - 1, Math.max(0, to[0]));
    const cell = Math.min(drawn.length * layers - 1, Math.max(0, to[1]));
    const at = { method: drawn[Math.floor(cell / layers)], layer: (cell % layers) + 1, token: row };
    set(at);
    reveal(row);
    frame.say(describe(at).replace("\n", ", "));
  }

  // Scroll the heat map so that a row can be seen.
  function reveal(token) {
    const { row } = layout;
    const above = token * row;
    if (above < heat.scrollTop) heat.scrollTop = above;
    const below = above + row - heat.clientHeight;
    if (below > heat.scrollTop) heat.scrollTop = below;
  }

  return {
    element: make("div", { class: "heat-frame" }, head, heat),
    measure,
    draw,
    /** Return the drawing of some rows with their head, for a width. */
    scene: (width, rows) =>
      heatScene({
        ...drawing(),
        layout: heatLayout(width, shown.layers, methods(), labelWidth),
        rows,
        rowShares: sharesOf((method, layer) => shown.scores(method, layer)),
        head: true,
      }),
  };
}
