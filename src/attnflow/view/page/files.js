// The page as a figure, in files, and on paper.

import { INKS } from "./colour.js";
import { finish } from "./flow.js";
import { heatLayout, heatScene } from "./heat.js";
import { graphScene } from "./layered.js";
import { highest } from "./prose.js";
import { toCanvas, toSvg } from "./scene.js";
import { unpackRows } from "./trace.js";

// More rows than this make no figure that fits on paper.
const MOST_FIGURE_ROWS = 48;

/** What a page does for files and paper; `this` is the page. */
export const filesPart = {
  /** Return the whole figure as a drawing: the question, the heat maps, the graph, the sentence. */
  figure() {
    const { numbers, state, theme } = this;
    const ink = INKS[theme];
    const width = 960;
    const margin = 28;
    const inner = width - 2 * margin;
    const shapes = [];
    let y = margin + 14;
    const write = (text, size, weight, fill) => {
      for (const line of wrap(text, (part) => this.fit(part, inner, size, weight) === part)) {
        shapes.push({ text: line, x: margin, y, size, weight, fill });
        y += size * 1.45;
      }
    };
    const place = (scene) => {
      shapes.push(...scene.shapes.map((shape) => moved(shape, margin, y)));
      y += scene.height + 18;
    };
    const end = () => {
      const height = y + margin / 2;
      const paper = { rect: [0, 0, width, height], fill: ink.paper };
      return { width, height, shapes: [paper, ...shapes] };
    };
    if (this.data.contribution) {
      write(this.contributionTitle.textContent, 20, 700, ink.ink);
      write(this.contributionSubtitle.textContent, 13, 400, ink.muted);
      y += 8;
      place(this.contributionDrawing(inner));
      write(`Sum: ${this.data.contribution.sum}.`, 13, 400, ink.ink);
      if (this.data.verdict) write(`Check: ${this.data.verdict}`, 13, 400, ink.ink);
      write(this.data.contribution.reading, 12, 400, ink.muted);
      y += 18;
    }
    if (!this.attention) return end();
    write(this.title.textContent, 20, 700, ink.ink);
    write(this.subtitle.textContent, 13, 400, ink.muted);
    write(this.findings.textContent, 13, 400, ink.ink);
    y += 8;
    const methods = numbers.methods.filter((method) => this.shownMethods.has(method));
    const scores = this.scores();
    const { counted } = this;
    const every = Array.from({ length: numbers.tokens }, (_, i) => i);
    const rank = new Map(
      highest(
        scores ?? [],
        every.map(() => true),
        numbers.tokens,
      ).map((t, i) => [t, i]),
    );
    const order = (token) =>
      token === state.position || token === this.sink ? -1 : (rank.get(token) ?? numbers.tokens);
    const rows = every
      .sort((a, b) => order(a) - order(b))
      .slice(0, MOST_FIGURE_ROWS)
      .sort((a, b) => a - b);
    place(
      heatScene({
        layout: heatLayout(inner, this.layers, methods, this.labelWidth),
        numbers,
        state: this.marks,
        theme,
        rows,
        counted,
        fit: this.fit,
        rowScores: (method, layer) => this.scores(method, layer),
        head: true,
      }),
    );
    if (rows.length < numbers.tokens) {
      write(`${rows.length} of ${numbers.tokens} tokens are shown.`, 12, 400, ink.muted);
    }
    if (numbers.trace) {
      const sink = state.method === "flow" ? this.sink : state.token;
      place(
        graphScene({
          numbers,
          state: { ...state, token: sink },
          theme,
          width: inner,
          cut: this.cut,
          fit: this.fit,
          labelWidth: this.labelWidth,
        }),
      );
      if (state.method === "flow") write(this.cutWords.textContent, 13, 400, ink.ink);
    }
    write(this.saturation.textContent, 13, 400, ink.ink);
    return end();
  },

  savePng() {
    toCanvas(this.document, this.figure(), 2).toBlob((blob) => this.download(blob, "png"));
  },

  saveSvg() {
    const text = new XMLSerializer().serializeToString(toSvg(this.document, this.figure()));
    this.download(new Blob([text], { type: "image/svg+xml" }), "svg");
  },

  async saveJson() {
    const { trace, picture } = this.data;
    const { layer_scores: packed, ...rest } = this.data.explanation;
    const saved = { ...rest, ...(trace ? { trace } : {}), ...(picture ? { picture } : {}) };
    const parts = [JSON.stringify(saved).slice(0, -1), ',"layer_scores":['];
    for (const [i, row] of (await unpackRows(packed)).entries()) {
      parts.push(i ? "," : "", JSON.stringify(Array.from(row)));
      // Those of a long text take a while, in which the page stays responsive.
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
    parts.push("]}");
    this.download(new Blob(parts, { type: "application/json" }), "json");
  },

  download(blob, ending) {
    const address = URL.createObjectURL(blob);
    const link = this.make("a", { href: address, download: `attnflow.${ending}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
    this.live.textContent = `Saved attnflow.${ending}`;
  },

  print(on) {
    this.printing = on;
    this.root.classList.toggle("printing", on);
    this.callOff("resize");
    this.show();
    if (on && this.graphBox) {
      this.callOff("cut");
      const sink = this.state.method === "flow" ? this.sink : null;
      const { layer, position, head } = this.state;
      if (sink !== null) this.cut = finish(this.numbers.cutSteps(layer, position, sink, head));
      this.drawGraph();
    }
  },
};

function wrap(text, fits) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (line && !fits(longer)) {
      lines.push(line);
      line = word;
    } else line = longer;
  }
  return line ? [...lines, line] : lines;
}

function moved(shape, x, y) {
  if (shape.rect) {
    const [left, top, width, height] = shape.rect;
    return { ...shape, rect: [left + x, top + y, width, height] };
  }
  if (shape.circle) {
    const [cx, cy, r] = shape.circle;
    return { ...shape, circle: [cx + x, cy + y, r] };
  }
  if (shape.curve) {
    const [x1, y1, x2, y2] = shape.curve;
    return { ...shape, curve: [x1 + x, y1 + y, x2 + x, y2 + y] };
  }
  return { ...shape, x: shape.x + x, y: shape.y + y };
}
