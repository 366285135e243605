// The matrix on the page: drawn as far as it is seen, and used.

import { shade } from "../page/colour.js";
import { cutShort } from "../page/prose.js";
import { paint } from "../page/scene.js";
import { Cells, matrixAt, matrixLayout, matrixScene } from "./matrix.js";
import { between } from "./selection.js";
import { writer } from "./words.js";

// More cells than these make no figure.
const MOST_IN_FIGURE = 12_000;

/** Return the part with the matrix: {element, measure, draw, scene}. choose is given a selection. */
export function matrixPart(frame, { data, sources, choose, chosen }) {
  const { make } = frame;
  const cells = new Cells(data, sources);
  const write = writer(data.signed, cells.largest);
  const canvas = make("canvas", {});
  const head = make("canvas", { class: "heat-head", "aria-hidden": "true" });
  const space = make("div", { class: "heat-space" }, canvas);
  const heat = make(
    "div",
    {
      class: "heat matrix",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `What each new token, a row, came from: a column for each ${data.sentences ? "sentence" : data.unit} before it. Arrow keys move the cell and choose its row.`,
    },
    space,
  );
  const scale = frame.scale();
  const low = make("span", {});
  const high = make("span", {});
  const element = make(
    "section",
    { class: "matrix-part", "aria-labelledby": frame.id("matrix") },
    make("h2", { id: frame.id("matrix") }, `Token by token`),
    make(
      "p",
      { class: "caption" },
      `A row is a token of the answer, a column ${data.sentences ? "a sentence of the prompt, or a token of the answer," : "a token"} that was there before it. Choose a row to see its sources above.`,
    ),
    make("div", { class: "heat-frame", dir: "ltr" }, head, heat),
    make("p", { class: "legend" }, low, scale.element, high),
  );
  let layout = null;
  let place = { width: 0, height: 0, down: 0, left: 0 };
  let cursor = null;

  frame.listen(heat, "scroll", () => {
    frame.later("scroll", () => {
      measure();
      draw();
    });
  });
  frame.listen(heat, "pointermove", (event) => {
    const at = atPointer(event);
    if (!at) return frame.hideTip();
    return frame.showTip(event, describe(at));
  });
  frame.listen(heat, "pointerleave", () => frame.hideTip());
  frame.listen(heat, "click", (event) => {
    const at = atPointer(event);
    if (!at) return;
    cursor = at.column === null ? null : at;
    const from = chosen();
    choose(event.shiftKey && from ? extended(from, at.row) : [at.row, at.row]);
  });
  frame.listen(heat, "keydown", move);
  frame.listen(heat, "blur", () => {
    cursor = null;
    draw();
  });

  const extended = (from, row) => [Math.min(from[0], row), Math.max(from[1], row)];

  function measure() {
    const { clientWidth: width, clientHeight: height, scrollTop: down, scrollLeft: left } = heat;
    place = { width, height, down, left };
  }

  function drawing() {
    return { cells, theme: frame.theme, fit: frame.fit, selection: chosen() };
  }

  function draw() {
    if (place.width === 0) return;
    layout = matrixLayout(place.width, cells, frame.fit);
    const across = `${layout.label + 6 + layout.across}px`;
    if (space.style.height !== `${layout.down}px` || space.style.width !== across) {
      space.style.height = `${layout.down}px`;
      space.style.width = across;
      measure();
    }
    const { height, down, left } = place;
    const whole = frame.printing;
    const visible = whole ? layout.down : Math.min(layout.down, height || 560);
    const first = whole ? 0 : Math.floor(down / layout.row);
    const last = Math.min(cells.rows.length, first + Math.ceil(visible / layout.row) + 1);
    const rows = Array.from({ length: last - first }, (_, i) => first + i);
    const given = { ...drawing(), layout, left, cursor };
    const offset = whole ? 0 : down - first * layout.row;
    onCanvas(canvas, visible, -offset, matrixScene({ ...given, rows }).shapes);
    onCanvas(head, layout.head, 0, matrixScene({ ...given, rows: [], head: true }).shapes);
    drawLegend();
  }

  function onCanvas(target, height, offset, shapes) {
    const ratio = frame.printing ? 2 : Math.min(2, frame.window.devicePixelRatio || 1);
    target.width = Math.max(1, Math.ceil(layout.width * ratio));
    target.height = Math.max(1, Math.ceil(height * ratio));
    target.style.width = `${layout.width}px`;
    target.style.height = `${height}px`;
    const context = target.getContext("2d");
    context.scale(ratio, ratio);
    context.translate(0, offset);
    paint(context, shapes);
  }

  function drawLegend() {
    const { low: from, top } = cells.scale;
    const more =
      cells.largest > top ? ` or more, up to ${write(cells.largest).replace("+", "")}` : "";
    const apart = cells.columns.some((column) => column.special)
      ? "; special tokens are in grey, outside the scale"
      : "";
    if (data.signed) {
      low.textContent = "against";
      high.textContent = `for; full colour is ${write(top).replace("+", "")}${more}${apart}`;
    } else {
      low.textContent = from > 0 ? `the median, ${write(from)}, or less` : "nothing";
      high.textContent = `${write(top)}${more}${apart}`;
    }
    scale.paint((x) => shade(frame.theme, data.signed ? 2 * x - 1 : x).hex);
  }

  function atPointer(event) {
    if (!layout) return null;
    const box = heat.getBoundingClientRect();
    const x = event.clientX - box.left - heat.clientLeft;
    const y = event.clientY - box.top - heat.clientTop + heat.scrollTop;
    return matrixAt(layout, cells, x, y, heat.scrollLeft);
  }

  function describe({ row, column }) {
    const name = cells.names[row];
    if (column === null) return name;
    const score = cells.rows[row][column];
    const value = !Number.isNaN(score) ? write(score) : "not written yet";
    return `${name} from ${cutShort(cells.columns[column].name, 160)}: ${value}`;
  }

  function move(event) {
    const from = chosen();
    const { row, column } = cursor ?? { row: from?.[0] ?? 0, column: 0 };
    const step = Math.max(1, Math.floor(heat.clientHeight / ROW_STEP()) - 1);
    const to = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      PageUp: [row - step, column],
      PageDown: [row + step, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, cells.columns.length - 1],
      Enter: [row, column],
      " ": [row, column],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const inside = (value, count) => Math.min(count - 1, Math.max(0, value));
    // The first key only shows where the cell is.
    cursor = cursor
      ? { row: inside(to[0], cells.rows.length), column: inside(to[1], cells.columns.length) }
      : { row, column: inside(column, cells.columns.length) };
    choose(
      event.shiftKey && from
        ? cursor.row < from[0] || row === from[0]
          ? between(cursor.row, from[1])
          : between(from[0], cursor.row)
        : [cursor.row, cursor.row],
    );
    reveal();
    frame.say(describe(cursor));
  }

  const ROW_STEP = () => layout?.row ?? 20;

  // Scroll the matrix so that the cell can be seen.
  function reveal() {
    const above = cursor.row * layout.row;
    if (above < heat.scrollTop) heat.scrollTop = above;
    const below = above + layout.row - heat.clientHeight;
    if (below > heat.scrollTop) heat.scrollTop = below;
    const start = cursor.column * layout.cell;
    if (start < heat.scrollLeft) heat.scrollLeft = start;
    const end = layout.label + 6 + start + layout.cell - heat.clientWidth;
    if (end > heat.scrollLeft) heat.scrollLeft = end;
  }

  return {
    element,
    measure,
    draw,
    /** Return the drawing of as many rows as a figure takes, for a width. */
    scene(width) {
      const most = Math.max(1, Math.floor(MOST_IN_FIGURE / cells.columns.length));
      const [first] = chosen() ?? [0];
      const begin = Math.max(0, Math.min(first, cells.rows.length - most));
      const count = Math.min(most, cells.rows.length);
      const rows = Array.from({ length: count }, (_, i) => begin + i);
      const shape = matrixLayout(width, cells, frame.fit, 0.5);
      return matrixScene({ ...drawing(), layout: shape, rows, head: true });
    },
  };
}
