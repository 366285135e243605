// The heat maps on the page: drawn as far as they are seen, and used.

import { heatAt, heatLayout, heatScene } from "./heat.js";
import { cutShort, formatScore, METHODS } from "./prose.js";
import { paint } from "./scene.js";

/** What a page does for the heat maps; `this` is the page. */
export const heatmapPart = {
  buildHeat() {
    const make = this.make.bind(this);
    const { numbers } = this;
    this.heatCanvas = make("canvas", {});
    this.heatHead = make("canvas", { class: "heat-head", "aria-hidden": "true" });
    this.heatSpace = make("div", { class: "heat-space" }, this.heatCanvas);
    this.heat = make(
      "div",
      {
        class: "heat",
        tabindex: 0,
        role: "application",
        "aria-roledescription": "heat map",
        "aria-label":
          "Scores of each token, a row, in each layer, a column, by each method. Arrow keys move the cell; the same numbers are in the table below.",
      },
      this.heatSpace,
    );
    this.listen(this.heat, "scroll", () => {
      this.later("scroll", () => {
        this.measureHeat();
        this.drawHeat();
      });
    });
    this.listen(this.heat, "pointermove", (event) => this.hoverHeat(event));
    this.listen(this.heat, "pointerleave", () => this.hideTip());
    this.listen(this.heat, "click", (event) => {
      const at = this.atHeat(event);
      if (at) this.set(at.method ? at : { token: at.token });
    });
    this.listen(this.heat, "keydown", (event) => this.moveInHeat(event));
    const switches = make("div", {
      class: "switches",
      role: "group",
      "aria-label": "Methods compared",
    });
    for (const method of Object.keys(METHODS)) {
      const has = numbers.methods.includes(method);
      const input = make("input", {
        type: "checkbox",
        id: this.id(`show-${method}`),
        "data-show": method,
        disabled: !has,
        onchange: (event) => {
          if (event.target.checked) this.shownMethods.add(method);
          else this.shownMethods.delete(method);
          this.show();
        },
      });
      input.checked = has;
      switches.append(
        make(
          "div",
          { class: "check" },
          input,
          make("label", { for: this.id(`show-${method}`) }, METHODS[method].short),
        ),
      );
    }
    this.findingList = make("div", { class: "findings" });
    return make(
      "section",
      { class: numbers.groups ? "compare long" : "compare", "aria-labelledby": this.id("compare") },
      make(
        "div",
        { class: "section-head" },
        make("h2", { id: this.id("compare") }, "Three answers, layer by layer"),
        switches,
      ),
      this.findingList,
      make("div", { class: "heat-frame" }, this.heatHead, this.heat),
      this.saturation,
    );
  },

  // What drawHeat needs to know of its place.
  measureHeat() {
    const { clientWidth: width, clientHeight: height, scrollTop: scrolled } = this.heat;
    this.heatPlace = { width, height, scrolled };
  },

  drawHeat() {
    const { numbers } = this;
    const methods = numbers.methods.filter((method) => this.shownMethods.has(method));
    const { width } = this.heatPlace;
    if (width === 0) return;
    const layout = heatLayout(width, this.layers, methods, this.labelWidth);
    this.heatLayout = layout;
    const total = numbers.tokens * layout.row;
    if (this.heatSpace.style.height !== `${total}px`) {
      this.heatSpace.style.height = `${total}px`;
      this.measureHeat();
    }
    const { height, scrolled } = this.heatPlace;
    // A long text is not drawn as a whole, which no canvas could hold.
    const whole = this.printing && !numbers.groups;
    const visible = whole ? total : Math.min(total, height || 560);
    const first = whole ? 0 : Math.floor(scrolled / layout.row);
    const last = Math.min(numbers.tokens, first + Math.ceil(visible / layout.row) + 1);
    const rows = Array.from({ length: last - first }, (_, i) => first + i);
    const shared = {
      layout,
      numbers,
      state: this.marks,
      theme: this.theme,
      counted: this.counted,
      fit: this.fit,
      rowScores: (method, layer) => this.knownScores(method, layer),
    };
    const offset = whole ? 0 : scrolled - first * layout.row;
    this.paintCanvas(
      this.heatCanvas,
      layout.width,
      visible,
      -offset,
      heatScene({ ...shared, rows }).shapes,
    );
    const head = heatScene({ ...shared, rows: [], head: true });
    this.paintCanvas(this.heatHead, layout.width, layout.head, 0, head.shapes);
  },

  paintCanvas(canvas, width, height, offset, shapes) {
    const scale = this.printing ? 2 : Math.min(2, this.window.devicePixelRatio || 1);
    canvas.width = Math.max(1, Math.ceil(width * scale));
    canvas.height = Math.max(1, Math.ceil(height * scale));
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.translate(0, offset);
    paint(context, shapes);
  },

  atHeat(event) {
    if (!this.heatLayout) return null;
    const box = this.heat.getBoundingClientRect();
    const x = event.clientX - box.left - this.heat.clientLeft;
    const y = event.clientY - box.top - this.heat.clientTop + this.heat.scrollTop;
    return heatAt(this.heatLayout, this.numbers, x, y);
  },

  hoverHeat(event) {
    const at = this.atHeat(event);
    if (!at?.method) return this.hideTip();
    return this.showTip(event, this.describeCell(at));
  },

  describeCell({ method, layer, token }) {
    const scores = this.scores(method, layer);
    const value = scores ? formatScore(scores[token]) : "being computed";
    return `${cutShort(this.numbers.labels[token], 120)}\n${METHODS[method].short}, ${this.layerName(layer)}: ${value}`;
  },

  moveInHeat(event) {
    const { numbers, state } = this;
    const methods = numbers.methods.filter((method) => this.shownMethods.has(method));
    const column = methods.indexOf(state.method) * this.layers + state.layer - 1;
    const token = state.token ?? Math.max(0, this.marks.position);
    const step = Math.max(1, Math.floor(this.heat.clientHeight / (this.heatLayout?.row ?? 22)) - 1);
    const moves = {
      ArrowUp: [token - 1, column],
      ArrowDown: [token + 1, column],
      PageUp: [token - step, column],
      PageDown: [token + step, column],
      ArrowLeft: [token, column - 1],
      ArrowRight: [token, column + 1],
      Home: [0, column],
      End: [numbers.tokens - 1, column],
    };
    const move = moves[event.key];
    if (!move || methods.length === 0) return;
    event.preventDefault();
    const row = Math.min(numbers.tokens - 1, Math.max(0, move[0]));
    const cell = Math.min(methods.length * this.layers - 1, Math.max(0, move[1]));
    const method = methods[Math.floor(cell / this.layers)];
    const layer = (cell % this.layers) + 1;
    this.set({ method, layer, token: row });
    this.reveal(row);
    this.live.textContent = this.describeCell({ method, layer, token: row }).replace("\n", ", ");
  },

  // Scroll the heat map so that a row can be seen.
  reveal(token) {
    const { row } = this.heatLayout;
    const above = token * row;
    if (above < this.heat.scrollTop) this.heat.scrollTop = above;
    const below = above + row - this.heat.clientHeight;
    if (below > this.heat.scrollTop) this.heat.scrollTop = below;
  },
};
