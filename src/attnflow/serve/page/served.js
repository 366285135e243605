// The served page: a form, and below it the pages of one text or of two that are compared.

import { makeElement } from "../../view/page/element.js";
import { mount } from "../../view/page/page.js";
import { describePrediction, METHODS, quote } from "../../view/page/prose.js";

const EDGE_NAMES = {
  attention: "attention",
  gradient: "gradient-weighted attention",
  effective: "effective attention",
  value_norm: "norms of values",
  alti: "vectors that are mixed (ALTI)",
};

const RESULT_NAMES = ["first text", "second text"];

/** Pair the tokens of two texts: equal ones with each other, and what differs between them in order. */
function align(first, second) {
  const longest = Array.from(
    { length: first.length + 1 },
    () => new Uint16Array(second.length + 1),
  );
  for (let i = first.length - 1; i >= 0; i -= 1) {
    for (let j = second.length - 1; j >= 0; j -= 1) {
      longest[i][j] =
        first[i] === second[j]
          ? longest[i + 1][j + 1] + 1
          : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const pairs = [];
  let [left, right] = [[], []];
  const flush = () => {
    for (let k = 0; k < Math.max(left.length, right.length); k += 1) {
      pairs.push([left[k] ?? null, right[k] ?? null]);
    }
    [left, right] = [[], []];
  };
  let [i, j] = [0, 0];
  while (i < first.length && j < second.length) {
    if (first[i] === second[j]) {
      flush();
      pairs.push([i, j]);
      i += 1;
      j += 1;
    } else if (longest[i + 1][j] >= longest[i][j + 1]) {
      left.push(i);
      i += 1;
    } else {
      right.push(j);
      j += 1;
    }
  }
  for (; i < first.length; i += 1) left.push(i);
  for (; j < second.length; j += 1) right.push(j);
  flush();
  return pairs;
}

/** The served page in an element. */
export class Served {
  constructor(main) {
    this.main = main;
    this.ask = main.querySelector(".ask");
    // Names this page among the clients that take turns. It says nothing about who reads it.
    this.client = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
      byte.toString(16).padStart(2, "0"),
    ).join("");
    this.shown = [];
    this.asked = null;
    // A token stays in memory: not in the address, where others may see it, nor in a cookie.
    this.token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
    if (this.token) history.replaceState(null, "", location.pathname);
  }

  make(name, attributes = {}, ...children) {
    return makeElement(document, name, attributes, children);
  }

  headers(more = {}) {
    return {
      "Attnflow-Client": this.client,
      ...(this.token ? { Authorization: `Bearer ${this.token}` } : {}),
      ...more,
    };
  }

  async start() {
    const response = await fetch("/api/model", { headers: this.headers() });
    if (response.status === 401) {
      this.askForToken(this.token ? "This is not the token of the server." : "");
      return;
    }
    if (!response.ok) throw new Error(await reason(response));
    this.model = await response.json();
    document.title = `attnflow: ${this.model.model}`;
    this.build();
    await this.explain();
  }

  askForToken(complaint) {
    const make = this.make.bind(this);
    const field = make("input", {
      id: "token",
      type: "password",
      autocomplete: "off",
      required: true,
      "aria-describedby": "token-about",
    });
    const form = make(
      "form",
      {
        class: "token-form",
        onsubmit: (event) => {
          event.preventDefault();
          this.token = field.value.trim();
          this.start().catch((error) => this.complain(error.message));
        },
      },
      make("label", { for: "token" }, "Token"),
      field,
      make("button", { type: "submit", class: "primary" }, "Go on"),
      make(
        "p",
        { id: "token-about", class: "caption" },
        "The server was started with a token. This page keeps it until it is closed.",
      ),
    );
    this.problem = make("p", { class: "problem", role: "alert" });
    this.fill(form, this.problem);
    this.problem.textContent = complaint;
    field.focus();
  }

  fill(...children) {
    this.ask.replaceChildren(this.ask.querySelector("h1"), ...children);
  }

  select(id, label, choices, chosen) {
    const make = this.make.bind(this);
    const select = make(
      "select",
      { id, onchange: () => this.changed(id) },
      ...choices.map(([value, words]) =>
        make("option", { value, selected: value === chosen }, words),
      ),
    );
    return [make("div", { class: "choice" }, make("label", { for: id }, label), select), select];
  }

  build() {
    const make = this.make.bind(this);
    const { model } = this;
    const area = (id, value) =>
      make(
        "textarea",
        {
          id,
          rows: 2,
          dir: "auto",
          spellcheck: "false",
          maxlength: model.characters,
          onkeydown: (event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              this.explain();
            }
          },
        },
        value,
      );
    this.first = area("text", model.example);
    this.second = area("compare", "");
    this.secondBox = make(
      "div",
      { class: "text-field", hidden: true },
      make("label", { for: "compare" }, "Compared with"),
      this.second,
    );
    this.pair = area("pair", "");
    this.pairBox = make(
      "div",
      { class: "text-field", hidden: !model.pairs },
      make("label", { for: "pair" }, "Second text of a pair, such as a hypothesis (optional)"),
      this.pair,
    );
    this.compareBox = make("input", {
      type: "checkbox",
      id: "comparing",
      onchange: () => this.compare(),
    });
    const layers = Array.from({ length: model.layers }, (_, i) => [String(i + 1), String(i + 1)]);
    const heads = [
      ["mean", "mean of all"],
      ["max", "maximum of all"],
      ["min", "minimum of all"],
      ["sum", "sum of all"],
      ...Array.from({ length: model.heads ?? 0 }, (_, i) => [String(i), `head ${i} alone`]),
    ];
    let methods, edges, layer, fused;
    [methods, this.methodChoice] = this.select(
      "method",
      "Method",
      Object.entries(METHODS).map(([name, { short }]) => [name, short]),
      "rollout",
    );
    [layer, this.layerChoice] = this.select("layer", "Layer", layers, String(model.layers));
    [edges, this.edgeChoice] = this.select(
      "edges",
      "Edges",
      model.edges.map((name) => [name, EDGE_NAMES[name] ?? name]),
      "attention",
    );
    [fused, this.headChoice] = this.select("heads", "Heads", heads, "mean");
    this.button = make("button", { type: "submit", class: "primary" }, "Explain");
    this.stopButton = make(
      "button",
      { type: "button", class: "plain", hidden: true, onclick: () => this.asked?.abort() },
      "Stop",
    );
    this.progress = make("p", { class: "progress", role: "status" });
    this.problem = make("p", { class: "problem", role: "alert" });
    const hint = model.mask ? `Write ${model.mask} where a token is to be predicted. ` : "";
    const form = make(
      "form",
      {
        "aria-label": "What to explain",
        onsubmit: (event) => {
          event.preventDefault();
          this.explain();
        },
      },
      make(
        "div",
        { class: "texts" },
        make("div", { class: "text-field" }, make("label", { for: "text" }, "Text"), this.first),
        this.pairBox,
        this.secondBox,
      ),
      make(
        "p",
        { class: "caption" },
        `${hint}Enter explains it, Shift and Enter begin a new line.`,
      ),
      make(
        "div",
        { class: "row" },
        methods,
        layer,
        edges,
        fused,
        make(
          "div",
          { class: "check" },
          this.compareBox,
          make("label", { for: "comparing" }, "Compare with another text"),
        ),
        make("div", { class: "send" }, this.button, this.stopButton),
      ),
      this.progress,
      this.problem,
    );
    const about = make(
      "p",
      { class: "caption about-server" },
      `Model: ${model.model} (${model.task}, ${model.layers} layers). Nothing leaves the server that this page came from. `,
      make("a", { href: "/docs" }, "The interface for programs"),
    );
    this.comparison = make("section", {
      class: "comparison",
      "aria-label": "Comparison",
      hidden: true,
    });
    this.results = this.make("div", { class: "results" });
    this.main.querySelector(".results")?.remove();
    const brand = make(
      "p",
      { class: "brand" },
      make("span", { class: "mark", "aria-hidden": "true" }),
      "attnflow",
    );
    this.fill(brand, form, about, this.comparison);
    this.main.append(this.results);
    this.allow();
  }

  // Choices that other choices leave open.
  allow() {
    const edges = this.edgeChoice.value;
    for (const option of this.headChoice.options) {
      const one = /^\d+$/.test(option.value);
      const possible =
        edges === "value_norm"
          ? one || option.value === "mean"
          : !["gradient", "alti"].includes(edges) || option.value === "mean";
      option.disabled = !possible;
      if (!possible && option.selected) this.headChoice.value = "mean";
    }
  }

  compare() {
    const on = this.compareBox.checked;
    this.secondBox.hidden = !on;
    if (on && !this.second.value) this.second.value = this.first.value;
    if (on) {
      this.second.focus();
      this.second.select();
    } else if (this.shown.length > 1) this.explain();
  }

  changed(name) {
    this.allow();
    const live = this.shown.length > 0 && this.pages.every((page) => page.trace);
    if (name === "layer" && this.shown.length > 0) {
      this.setAll({ layer: Number(this.layerChoice.value) });
    } else if (name === "method" && live) this.setAll({ method: this.methodChoice.value });
    else this.explain();
  }

  // All pages at once: each told by itself would tell the others, and all would be drawn twice.
  setAll(changes, but = -1) {
    this.following = true;
    this.shown.forEach(({ view }, index) => {
      if (index !== but) view.set(changes);
    });
    this.following = false;
    const { method, layer } = this.shown[Math.max(but, 0)].view.state;
    this.methodChoice.value = method;
    this.layerChoice.value = String(layer);
    this.drawComparison();
  }

  complain(message) {
    if (this.progress) this.progress.textContent = "";
    if (!this.problem) {
      this.problem = this.make("p", { class: "problem", role: "alert" });
      this.fill(this.problem);
    }
    this.problem.textContent = message;
  }

  /** Ask the server, and show what it answers. */
  async explain() {
    this.asked?.abort();
    const asked = new AbortController();
    this.asked = asked;
    const comparing = this.compareBox.checked && this.second.value.trim() !== "";
    const heads = this.headChoice.value;
    const edges = this.edgeChoice.value;
    // Both texts that are compared are read with the same second text.
    const second = this.pair.value;
    const asPair = (text) => (second.trim() === "" ? text : [text, second]);
    const question = {
      text: asPair(this.first.value),
      ...(comparing ? { compare: asPair(this.second.value) } : {}),
      method: this.methodChoice.value,
      layer: Number(this.layerChoice.value),
      edges,
      heads: /^\d+$/.test(heads) ? Number(heads) : heads,
      keep_heads: edges === "attention" && this.model.heads !== null,
      page: true,
    };
    this.problem.textContent = "";
    this.progress.textContent = "Asking …";
    this.ask.setAttribute("aria-busy", "true");
    this.stopButton.hidden = false;
    try {
      const answer = await this.send(question, asked.signal);
      if (this.asked !== asked) return;
      await this.show(answer);
      this.progress.textContent = `Explained in ${answer.seconds.toFixed(2)} seconds.`;
    } catch (error) {
      if (this.asked !== asked) return;
      if (error.name === "AbortError") this.progress.textContent = "Stopped.";
      else this.complain(error.message);
    } finally {
      if (this.asked === asked) {
        this.asked = null;
        this.ask.removeAttribute("aria-busy");
        this.stopButton.hidden = true;
      }
    }
  }

  async send(question, signal) {
    let response;
    try {
      response = await fetch("/api/explain", {
        method: "POST",
        headers: this.headers({
          "Content-Type": "application/json",
          Accept: "application/x-ndjson",
        }),
        body: JSON.stringify(question),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is it still running?", { cause: error });
    }
    if (!response.ok) throw new Error(await reason(response));
    let answer = null;
    for await (const event of lines(response.body)) {
      if (event.event === "answer") answer = event;
      else this.progress.textContent = inWords(event);
    }
    if (answer === null) throw new Error("The server ended before it had answered.");
    if (answer.status !== 200) throw new Error(sentence(answer.body.error.message));
    return answer.body;
  }

  async show({ pages }) {
    const old = this.shown.splice(0);
    const before = this.pages ?? [];
    const states = old.map(({ view }) => view.state);
    for (const { view, watch } of old) {
      watch.disconnect();
      view.destroy();
    }
    this.results.replaceChildren(
      ...RESULT_NAMES.map((name, index) =>
        this.make("span", { id: `result-${index}`, hidden: true }, name),
      ),
    );
    this.results.classList.toggle("two", pages.length > 1);
    this.pages = pages;
    this.buildComparison();
    for (const [index, page] of pages.entries()) {
      const element = this.make("div", { "data-result": index });
      this.results.append(element);
      const view = await mount(element, page, {
        theme: this.ask.dataset.theme,
        state: {
          method: this.methodChoice.value,
          layer: Number(this.layerChoice.value),
          special: states[0]?.special,
          // The same text, asked about in another way: the same position is looked at.
          position:
            String(before[index]?.labels) === String(page.labels)
              ? states[index]?.position
              : undefined,
        },
        onChange: (changed) => this.follow(index, changed),
      });
      if (pages.length > 1) nameParts(element, `result-${index}`);
      const watch = new MutationObserver(() => this.observed(element));
      watch.observe(element, { attributes: true, attributeFilter: ["data-theme", "data-flow"] });
      this.shown.push({ view, watch, element });
    }
    this.drawComparison();
  }

  // What is chosen in one page is chosen in the form, and in the other page.
  follow(index, state) {
    if (this.following || index >= this.shown.length) return;
    const { method, layer, head, special } = state;
    const changes = { method, layer, head, special };
    const counts = this.pages.map((page) => page.labels.length);
    if (counts.every((count) => count === counts[0])) {
      Object.assign(changes, { position: state.position, token: state.token });
    }
    this.setAll(changes, index);
  }

  observed(element) {
    const { theme } = element.dataset;
    if (theme !== this.ask.dataset.theme) {
      this.ask.dataset.theme = theme;
      for (const { element: other } of this.shown) {
        if (other !== element) other.querySelector(`[data-theme-choice="${theme}"]`)?.click();
      }
    }
    this.drawComparison();
  }

  /** Make the table of two texts. Which tokens it pairs, no choice changes. */
  buildComparison() {
    this.comparison.hidden = this.pages.length < 2;
    this.pairs = [];
    this.drawn = [];
    if (this.pages.length < 2) return;
    const make = this.make.bind(this);
    const [left, right] = this.pages.map((page) => page.labels);
    const bar = (side) => {
      const fill = make("span", { class: "fill", "aria-hidden": "true" });
      const value = make("span", { class: "value" });
      return { box: make("div", { class: `bar ${side}` }, fill, value), fill, value };
    };
    const body = make("tbody");
    for (const [i, j] of align(left, right)) {
      const [one, two] = [i === null ? null : bar("one"), j === null ? null : bar("two")];
      const change = make("td", { class: "change" }, "–");
      const differs = i === null || j === null || left[i] !== right[j];
      body.append(
        make(
          "tr",
          differs ? { class: "differs" } : {},
          make("th", { scope: "row", dir: "auto" }, i === null ? "–" : left[i]),
          make("td", {}, one?.box ?? ""),
          make("td", {}, two?.box ?? ""),
          make("td", { class: "name", dir: "auto" }, j === null ? "–" : right[j]),
          change,
        ),
      );
      this.pairs.push({ i, j, one, two, change });
    }
    const header = (text) => make("th", { scope: "col" }, text);
    this.caption = make("caption");
    this.finding = make("p", { class: "finding" });
    this.comparison.replaceChildren(
      make("h2", {}, "What the difference makes"),
      this.finding,
      make(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Scores of both texts" },
        make(
          "table",
          { class: "pairs" },
          this.caption,
          make(
            "thead",
            {},
            make(
              "tr",
              {},
              ...["Text", "Its scores", "Scores of the other", "Compared with", "Change"].map(
                header,
              ),
            ),
          ),
          body,
        ),
      ),
    );
  }

  drawComparison() {
    if (this.shown.length < 2) return;
    const [one, two] = this.shown.map(({ view }) => view.scores());
    if (one === null || two === null) return;
    const { method, layer } = this.shown[0].view.state;
    // Pages also tell of what changes no score.
    const drawn = [method, layer, ...one, ...two];
    if (drawn.length === this.drawn.length && drawn.every((value, at) => value === this.drawn[at]))
      return;
    this.drawn = drawn;
    const most = Math.max(1e-12, ...one, ...two);
    const draw = (bar, value) => {
      if (bar === null) return;
      bar.fill.style.width = `${(100 * value) / most}%`;
      bar.value.textContent = value.toFixed(3);
    };
    const changed = [];
    for (const pair of this.pairs) {
      const [a, b] = [one[pair.i], two[pair.j]];
      draw(pair.one, a);
      draw(pair.two, b);
      if (pair.one === null || pair.two === null) continue;
      changed.push({ ...pair, a, b, by: Math.abs(b - a) });
      pair.change.textContent = `${b < a ? "−" : "+"}${Math.abs(b - a).toFixed(3)}`;
    }
    this.caption.textContent = `${METHODS[method].name}, layer ${layer}`;
    this.finding.textContent = this.inShort(changed);
  }

  inShort(changed) {
    const said = this.pages.map(({ explanation, classes }) =>
      describePrediction(explanation, classes),
    );
    const { labels: left, special } = this.pages[0];
    const { labels: right } = this.pages[1];
    const ordinary = changed.filter(({ i }) => !special[i]);
    const [largest] = (ordinary.length > 0 ? ordinary : changed).sort((x, y) => y.by - x.by);
    const words = [];
    if (said.every(Boolean)) {
      words.push(
        said[0] === said[1]
          ? `Both are answered with ${said[0]}.`
          : `The answer goes from ${said[0]} to ${said[1]}.`,
      );
    }
    if (largest) {
      const { i, j, a, b } = largest;
      const name = left[i] === right[j] ? quote(left[i]) : `${quote(left[i])} / ${quote(right[j])}`;
      words.push(
        `The score that changes most is that of ${name}: ${a.toFixed(3)} and ${b.toFixed(3)}.`,
      );
    }
    return words.join(" ");
  }
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

/** Yield what a stream holds, a line of JSON each. */
async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const whole = text.split("\n");
    text = whole.pop();
    for (const line of whole) if (line) yield JSON.parse(line);
  }
}

async function reason(response) {
  try {
    return sentence((await response.json()).error.message);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

function sentence(text) {
  const ended = /[.!?]$/.test(text) ? text : `${text}.`;
  return ended[0].toUpperCase() + ended.slice(1);
}

function inWords({ event, ahead, stage, text, texts, seconds }) {
  const time = seconds >= 1 ? ` (${Math.round(seconds)} s)` : "";
  if (event === "waiting") {
    return `${ahead ? `Waiting; ${ahead} ${ahead === 1 ? "request comes" : "requests come"} first` : "Waiting for the model"}${time} …`;
  }
  const which = texts > 1 ? ` text ${text} of ${texts}` : " the text";
  return `${{ model: `The model reads${which}`, scores: `Scoring the tokens of${which}`, answer: "Writing the answer" }[stage]}${time} …`;
}
