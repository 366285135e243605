// A data set in the browser: its rows as a list that can be searched and ordered, and each of them
// on its own. The modules of the page show a row whose attention is there.

import { shade } from "../page/colour.js";
import { makeElement } from "../page/element.js";
import { THEMES } from "../page/frame.js";
import { mount } from "../page/page.js";
import {
  CONTRIBUTION,
  cutShort,
  formatScore,
  formatShare,
  formatSigned,
  METHODS,
  quote,
} from "../page/prose.js";
import { fromBase64 } from "../page/trace.js";
import { answersOf, found, ORDERS, paged, pieceScore, plain, searchText, select } from "./rows.js";

const SIZES = [25, 50, 100];
// A list shows the beginning of a text; more than this nobody reads there.
const MOST_PIECES = 160;
const MOST_ANSWERS = 200;

/** Return what was packed into a text: JSON, compressed, in base64. */
async function unpacked(text) {
  const stream = new Blob([fromBase64(text)])
    .stream()
    .pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// To a tenth, so that rows can be told apart; what is not all, or not nothing, is not said to be so.
function percent(share) {
  const rounded = (100 * share).toFixed(1);
  if (rounded === "100.0" && share < 1) return "> 99.9 %";
  return rounded === "0.0" && share > 0 ? "< 0.1 %" : `${rounded} %`;
}

/** Show a data set in an element; data is what attnflow.view.browse.data returns. */
export async function browse(element, data) {
  const rows = await unpacked(data.rows);
  for (const row of rows) row.search = searchText(row);
  const browser = new Browser(element, data, rows);
  await browser.go();
  return browser;
}

class Browser {
  constructor(root, data, rows) {
    this.root = root;
    this.document = root.ownerDocument;
    this.window = this.document.defaultView;
    this.data = data;
    this.signed = data.method === "contribution" || data.method === "alti_logit";
    this.method = this.signed ? CONTRIBUTION : METHODS[data.method];
    this.rows = rows;
    this.byNumber = new Map(rows.map((row) => [row.row, row]));
    this.state = { query: "", answer: null, order: "row", page: 1, size: SIZES[0], errors: false };
    this.theme = "auto";
    this.darkScheme = this.window.matchMedia("(prefers-color-scheme: dark)");
    this.darkScheme.addEventListener("change", () => this.draw());
    this.window.addEventListener("hashchange", () => this.go());
    this.document.addEventListener("keydown", (event) => this.keys(event));
    this.mounted = null;
    this.current = null;
    this.came = null;
    this.build();
  }

  make(name, attributes = {}, ...children) {
    return makeElement(this.document, name, attributes, children);
  }

  get shownTheme() {
    if (this.theme !== "auto") return this.theme;
    return this.darkScheme.matches ? "dark" : "light";
  }

  // ---- The list ----------------------------------------------------------------------------------

  build() {
    const make = this.make.bind(this);
    const { data } = this;
    this.list = make("div", {});
    this.status = make("p", { role: "status" });
    this.legend = make("canvas", { class: "scale", width: 240, height: 10, "aria-hidden": "true" });
    this.scale = make(
      "p",
      { class: "legend" },
      this.signed ? "against the answer, underlined" : "nothing",
      this.legend,
      this.signed ? "for the answer" : "the highest score of a text",
    );
    this.table = make("div", {});
    this.pager = make("nav", { class: "pager", "aria-label": "Pages" });
    this.list.append(
      this.masthead(),
      make(
        "div",
        { class: "question" },
        make("h1", { dir: "auto" }, data.name),
        make("p", { class: "subtitle" }, data.subtitle),
      ),
      ...data.part.map((sentence) => this.sentence(sentence, "part")),
      this.buildFields(),
      make("div", { class: "status" }, this.status, this.scale),
      this.table,
      this.pager,
      this.buildAbout(),
      make(
        "footer",
        {},
        "Colours compare the words of one text with each other. ",
        `${this.method.name}: ${this.method.about} `,
        "This page makes no network requests.",
      ),
    );
    this.root.replaceChildren(this.list);
    // The page of a row has the same class, and is beside this one.
    this.full = make("div", { hidden: true });
    this.root.after(this.full);
    // The bar above it has the same colours.
    new MutationObserver(() => {
      if (this.mounted && this.full.dataset.theme)
        this.root.dataset.theme = this.full.dataset.theme;
    }).observe(this.full, { attributes: true, attributeFilter: ["data-theme"] });
  }

  masthead() {
    const make = this.make.bind(this);
    const group = make("div", {
      class: "segments small",
      role: "radiogroup",
      "aria-label": "Theme",
    });
    for (const theme of THEMES) {
      group.append(
        make(
          "button",
          {
            type: "button",
            role: "radio",
            "data-theme-choice": theme,
            onclick: () => this.setTheme(theme),
          },
          { auto: "Auto", light: "Light", dark: "Dark" }[theme],
        ),
      );
    }
    this.radios(group);
    return make(
      "header",
      { class: "masthead" },
      make(
        "p",
        { class: "brand" },
        make("span", { class: "mark", "aria-hidden": "true" }),
        "attnflow",
      ),
      make("div", { class: "tools" }, group),
    );
  }

  // Arrow keys move within a group of radio buttons, of which one is in the order of tabs.
  radios(group) {
    group.addEventListener("keydown", (event) => {
      const all = Array.from(group.querySelectorAll('[role="radio"]'));
      const at = all.indexOf(this.document.activeElement);
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (at < 0 || step === undefined) return;
      event.preventDefault();
      const next = all[(at + step + all.length) % all.length];
      next.click();
      next.focus();
    });
  }

  setTheme(theme) {
    this.theme = theme;
    this.draw();
  }

  // Words between backquotes are what to type.
  sentence(text, kind) {
    const parts = text.split("`").map((part, i) => (i % 2 ? this.make("code", {}, part) : part));
    return this.make("p", { class: kind }, ...parts);
  }

  buildFields() {
    const make = this.make.bind(this);
    const { data, rows } = this;
    const change = (changes) => {
      Object.assign(this.state, { page: 1 }, changes);
      this.draw();
    };
    this.search = make("input", {
      type: "search",
      id: "browse-search",
      placeholder: "a word, an id, an answer",
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => change({ query: event.target.value }),
    });
    const field = (label, id, control, kind = "field") =>
      make("div", { class: kind }, make("label", { for: id }, label), control);
    const bar = make("div", { class: "controls", role: "search" });
    bar.append(field("Search", "browse-search", this.search, "field search"));
    const answers = answersOf(rows);
    if (answers.length > 1) {
      this.answers = make(
        "select",
        {
          id: "browse-answer",
          onchange: (event) => {
            const at = Number(event.target.value);
            change({ answer: at < 0 ? null : answers[at][0] });
          },
        },
        make("option", { value: -1 }, "any"),
        ...answers
          .slice(0, MOST_ANSWERS)
          .map(([answer, count], i) =>
            make("option", { value: i }, `${cutShort(answer, 30)} (${count.toLocaleString("en")})`),
          ),
      );
      bar.append(field("Answer", "browse-answer", this.answers));
    }
    const known = {
      unsure: rows.some((row) => row.probability !== null),
      saturated: rows.some((row) => row.saturation !== null),
    };
    this.orders = make(
      "select",
      { id: "browse-order", onchange: (event) => change({ order: event.target.value }) },
      ...Object.entries(ORDERS)
        .filter(([name]) =>
          name.endsWith("sure") ? known.unsure : !name.endsWith("saturated") || known.saturated,
        )
        .map(([name, order]) => make("option", { value: name }, order.name)),
    );
    bar.append(field("Order", "browse-order", this.orders));
    if (data.errors.length) {
      const group = make("div", {
        class: "segments small",
        role: "radiogroup",
        "aria-label": "What is listed",
      });
      for (const errors of [false, true]) {
        const count = errors ? data.failed : data.total;
        group.append(
          make(
            "button",
            {
              type: "button",
              role: "radio",
              "data-errors": String(errors),
              onclick: () => change({ errors }),
            },
            `${errors ? "Failed" : "Rows"} (${count.toLocaleString("en")})`,
          ),
        );
      }
      this.radios(group);
      this.kinds = group;
      bar.append(group);
    }
    return bar;
  }

  buildAbout() {
    const make = this.make.bind(this);
    return make(
      "section",
      { class: "about", "aria-labelledby": "browse-about" },
      make("h2", { id: "browse-about" }, "How it was made"),
      this.terms(this.data.about),
    );
  }

  terms(pairs) {
    const make = this.make.bind(this);
    return make(
      "dl",
      {},
      ...pairs.map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", { dir: "auto" }, value)),
      ),
    );
  }

  draw() {
    this.root.dataset.theme = this.theme;
    if (this.current) this.drawRow();
    else this.drawList();
    for (const button of this.root.querySelectorAll("[data-theme-choice]")) {
      const on = button.dataset.themeChoice === this.theme;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
  }

  drawList() {
    const { state, data } = this;
    const searching = plain(state.query.trim()) !== "";
    for (const option of this.orders.options)
      option.disabled = Boolean(ORDERS[option.value].searches) && !searching;
    if (ORDERS[state.order].searches && !searching) state.order = "row";
    this.orders.value = state.order;
    for (const button of this.kinds?.children ?? []) {
      const on = button.dataset.errors === String(state.errors);
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    this.orders.disabled = state.errors;
    if (this.answers) this.answers.disabled = state.errors;
    this.chosen = select(this.rows, state);
    const all = state.errors ? this.chosenErrors() : this.chosen;
    const whole = state.errors ? data.errors.length : this.rows.length;
    const { page, pages, items } = paged(all, state.page, state.size);
    state.page = page;
    const first = (page - 1) * state.size + 1;
    this.status.textContent = all.length
      ? `${first.toLocaleString("en")} to ${(first + items.length - 1).toLocaleString("en")} of ${all.length.toLocaleString("en")}` +
        (all.length < whole ? `, chosen from ${whole.toLocaleString("en")}` : "")
      : "";
    if (!all.length) {
      const what = searching ? ` with ${quote(state.query.trim())}` : "";
      this.table.replaceChildren(this.make("p", { class: "empty" }, `There is no row${what}.`));
    } else {
      this.table.replaceChildren(state.errors ? this.errorTable(items) : this.rowTable(items));
    }
    this.drawPager(pages);
    this.scale.hidden = state.errors;
    const context = this.legend.getContext("2d");
    for (let x = 0; x < this.legend.width; x += 1) {
      const share = x / (this.legend.width - 1);
      context.fillStyle = shade(this.shownTheme, this.signed ? 2 * share - 1 : share).hex;
      context.fillRect(x, 0, 1, this.legend.height);
    }
    Object.assign(this.root.dataset, {
      shown: all.length,
      page,
      view: state.errors ? "errors" : "rows",
    });
  }

  chosenErrors() {
    const wanted = plain(this.state.query.trim());
    return this.data.errors.filter(
      (error) => !wanted || plain(Object.values(error).join("\n")).includes(wanted),
    );
  }

  drawPager(pages) {
    const make = this.make.bind(this);
    const { state } = this;
    const turn = (step) => {
      state.page += step;
      this.draw();
      this.root.scrollIntoView();
      this.table.querySelector("a")?.focus({ preventScroll: true });
    };
    this.pager.hidden = pages === 1 && state.size === SIZES[0];
    this.pager.replaceChildren(
      make(
        "div",
        {},
        make(
          "button",
          {
            type: "button",
            class: "plain",
            "data-turn": "back",
            disabled: state.page === 1,
            onclick: () => turn(-1),
          },
          "Previous",
        ),
        make(
          "span",
          {},
          `Page ${state.page.toLocaleString("en")} of ${pages.toLocaleString("en")}`,
        ),
        make(
          "button",
          {
            type: "button",
            class: "plain",
            "data-turn": "next",
            disabled: state.page === pages,
            onclick: () => turn(1),
          },
          "Next",
        ),
      ),
      make(
        "div",
        { class: "field" },
        make("label", { for: "browse-size" }, "Rows a page"),
        make(
          "select",
          {
            id: "browse-size",
            onchange: (event) => {
              Object.assign(state, { size: Number(event.target.value), page: 1 });
              this.draw();
              this.document.getElementById("browse-size")?.focus();
            },
          },
          ...SIZES.map((size) =>
            make("option", { value: size, selected: size === state.size }, String(size)),
          ),
        ),
      ),
    );
  }

  rowTable(items) {
    const make = this.make.bind(this);
    const answered = this.rows.some((row) => row.answer !== null);
    const saturated = this.rows.some((row) => row.saturation !== null);
    const head = [
      make("th", { scope: "col" }, this.data.named ? "Id" : "Row"),
      make("th", { scope: "col", class: "wide" }, "Text"),
    ];
    if (answered)
      head.push(
        make("th", { scope: "col" }, "Answer"),
        make("th", { scope: "col", class: "number" }, "Probability"),
      );
    if (saturated) head.push(make("th", { scope: "col", class: "number" }, "Saturated"));
    const body = make("tbody", {
      onkeydown: (event) => this.moveInRows(event),
      onclick: (event) => {
        const line = event.target.closest("tr");
        // Who marks words to copy them does not want to leave.
        if (!line || event.target.closest("a") || this.window.getSelection()?.toString()) return;
        line.querySelector("a").click();
      },
    });
    for (const row of items) {
      const cells = [
        make(
          "th",
          { scope: "row" },
          make("a", { href: `#row=${row.row}`, "aria-label": `Open row ${row.id}` }, row.id),
        ),
        make("td", { class: "wide" }, this.shadedText(row, "line", MOST_PIECES), this.foundIn(row)),
      ];
      if (answered) {
        cells.push(
          make("td", { class: "answer-cell", dir: "auto" }, row.answer ?? ""),
          make("td", { class: "number" }, ...this.share(row.probability)),
        );
      }
      if (saturated) cells.push(make("td", { class: "number" }, ...this.share(row.saturation)));
      body.append(make("tr", {}, ...cells));
    }
    return make("table", { class: "rows" }, make("thead", {}, make("tr", {}, ...head)), body);
  }

  share(value) {
    if (value === null) return [];
    const bar = this.make("span", {});
    bar.style.width = `${100 * Math.min(1, Math.max(0, value))}%`;
    return [percent(value), this.make("span", { class: "meter", "aria-hidden": "true" }, bar)];
  }

  foundIn(row) {
    const { state } = this;
    if (!ORDERS[state.order].searches) return null;
    const word = found(row, plain(state.query.trim()));
    return (
      word &&
      this.make("span", { class: "found" }, `${quote(word.text)}: ${this.score(word.score)}`)
    );
  }

  score(value) {
    return this.signed ? formatSigned(value) : formatScore(value);
  }

  // How large a score is: of one with a sign, in either direction.
  size(score) {
    return this.signed ? Math.abs(score) : score;
  }

  // The text of a row, its tokens shaded by their share of the highest score.
  shadedText(row, kind, most = Infinity) {
    const { make, shownTheme } = this;
    const wanted = this.current ? "" : plain(this.state.query.trim());
    const special = new Set(row.special);
    const apart = (tokens) => tokens.every((token) => special.has(token));
    const scored = row.pieces.filter(([, tokens]) => tokens.length && !apart(tokens));
    const top = scored.reduce(
      (best, [, tokens]) => Math.max(best, this.size(pieceScore(row, tokens))),
      0,
    );
    const box = make.call(this, "div", { class: kind, dir: row.direction });
    for (const [text, tokens, label] of row.pieces.slice(0, most)) {
      if (!tokens.length) {
        box.append(label ? make.call(this, "b", {}, text) : text);
        continue;
      }
      const score = pieceScore(row, tokens);
      const grey = apart(tokens);
      const colour = shade(shownTheme, top > 0 ? score / top : 0, grey);
      const names = [
        "token",
        grey ? "special" : "",
        this.signed && score < 0 ? "against" : "",
        wanted && plain(text).includes(wanted) ? "hit" : "",
      ];
      const element = make.call(
        this,
        "span",
        { class: names.filter(Boolean).join(" "), title: this.score(score) },
        text,
      );
      element.style.backgroundColor = colour.hex;
      element.style.color = colour.ink;
      box.append(element);
    }
    if (row.pieces.length > most) box.append(" …");
    return box;
  }

  errorTable(items) {
    const make = this.make.bind(this);
    const names = {
      id: this.data.named ? "Id" : "Row",
      place: "Where",
      reason: "Why",
      text: "Text",
    };
    const body = make("tbody", {});
    for (const error of items) {
      body.append(
        make(
          "tr",
          {},
          make("th", { scope: "row" }, error.id),
          make("td", { class: "reason" }, error.place),
          make("td", { class: "wide reason" }, error.reason),
          make("td", { class: "reason", dir: "auto" }, cutShort(error.text ?? "", 120)),
        ),
      );
    }
    const head = Object.entries(names).map(([key, name]) =>
      make("th", { scope: "col", class: key === "reason" ? "wide" : undefined }, name),
    );
    return make(
      "table",
      { class: "rows errors" },
      make("thead", {}, make("tr", {}, ...head)),
      body,
    );
  }

  moveInRows(event) {
    const links = Array.from(this.table.querySelectorAll("tbody a"));
    const at = links.indexOf(this.document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const turn = to < 0 ? "back" : "next";
    if (links[to]) links[to].focus();
    else {
      const button = this.pager.querySelector(`[data-turn="${turn}"]`);
      if (button?.disabled !== false) return;
      button.click();
      if (to < 0) Array.from(this.table.querySelectorAll("tbody a")).pop().focus();
    }
  }

  keys(event) {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "/" && !typing && !this.current) {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "Escape" && this.current && !typing) {
      this.window.location.hash = "";
    }
  }

  // ---- One row -----------------------------------------------------------------------------------

  /** Show what the address asks for: a row, or the list. */
  async go() {
    const asked = /^#row=(\d+)$/.exec(this.window.location.hash);
    const before = this.current;
    this.current = asked ? (this.byNumber.get(Number(asked[1])) ?? null) : null;
    this.leaveFull();
    if (!this.current) {
      this.root.classList.remove("above");
      this.root.replaceChildren(this.list);
      this.document.title = this.data.title;
      this.draw();
      if (before) {
        this.window.scrollTo(0, this.came ?? 0);
        const link = this.table.querySelector(`a[href="#row=${before.row}"]`);
        (link ?? this.table.querySelector("a"))?.focus({ preventScroll: true });
      }
      return;
    }
    if (!before) this.came = this.window.scrollY;
    this.chosen ??= select(this.rows, this.state);
    this.document.title = `${this.title(this.current)}: ${this.data.title}`;
    const packed = this.packedOf(this.current);
    if (packed) await this.showFull(this.current, packed);
    else this.draw();
    this.window.scrollTo(0, 0);
    this.root.querySelector(".bar a").focus({ preventScroll: true });
  }

  leaveFull() {
    if (!this.mounted) return;
    if (THEMES.includes(this.full.dataset.theme)) this.theme = this.full.dataset.theme;
    this.mounted.destroy();
    this.mounted = null;
    this.full.hidden = true;
    delete this.full.dataset.theme;
  }

  bar() {
    const make = this.make.bind(this);
    const at = this.chosen.indexOf(this.current);
    const link = (to, name, kind) =>
      to
        ? make("a", { class: "plain", href: `#row=${to.row}`, "data-go": kind }, name)
        : make("button", { type: "button", class: "plain", disabled: true, "data-go": kind }, name);
    return make(
      "nav",
      { class: "bar", "aria-label": "Rows" },
      make("a", { class: "plain", href: "#", "data-go": "list" }, "← All rows"),
      make(
        "div",
        {},
        this.packedOf(this.current)
          ? make("strong", { dir: "auto" }, this.title(this.current))
          : null,
        link(at > 0 ? this.chosen[at - 1] : null, "Row before", "before"),
        link(at >= 0 ? this.chosen[at + 1] : null, "Row after", "after"),
      ),
    );
  }

  title(row) {
    return `${this.data.named ? "Id" : "Row"} ${row.id}`;
  }

  packedOf(row) {
    return this.document.getElementById(`attnflow-row-${row.row}`);
  }

  async showFull(row, packed) {
    const data = await unpacked(packed.textContent);
    if (this.current !== row) return;
    this.root.dataset.theme = this.theme;
    this.root.classList.add("above");
    this.root.replaceChildren(this.bar(), row.columns.length ? this.terms(row.columns) : "");
    this.full.hidden = false;
    this.mounted = await mount(this.full, data, { theme: this.theme });
    Object.assign(this.root.dataset, { view: "full", row: row.row });
  }

  drawRow() {
    if (this.mounted) return;
    const make = this.make.bind(this);
    const { current: row, data } = this;
    this.root.classList.remove("above");
    const parts = this.signed
      ? [`${this.method.name} to ${quote(row.target ?? "the answer")}`]
      : [`${this.method.name}, layer ${row.layer}, position ${row.position}`];
    if (this.signed && row.contrast !== null) parts.push(`not ${quote(row.contrast)}`);
    if (this.signed && row.value !== null)
      parts.push(`together ${this.score(row.value)}, of that biases ${this.score(row.bias)}`);
    if (row.answer !== null)
      parts.push(`the model predicts ${quote(row.answer)} (${formatShare(row.probability)})`);
    if (!this.signed && row.target !== null && row.target !== row.answer)
      parts.push(`explained for ${quote(row.target)}`);
    if (row.saturation !== null)
      parts.push(`flow is saturated for ${formatShare(row.saturation)} of the tokens`);
    this.root.replaceChildren(
      this.masthead(),
      this.bar(),
      make(
        "div",
        { class: "question" },
        make("h1", { dir: "auto" }, this.title(row)),
        make("p", { class: "subtitle" }, parts.join(" · ")),
      ),
      make(
        "section",
        { class: "text-part", "aria-label": "The text" },
        this.shadedText(row, "text"),
      ),
      row.notes.length
        ? make(
            "ul",
            { class: "notes" },
            ...row.notes.map((note) => make("li", { dir: "auto" }, note)),
          )
        : "",
      make(
        "section",
        { "aria-labelledby": "browse-scores" },
        make("h2", { id: "browse-scores" }, "Scores"),
        this.tokenTable(row),
      ),
      row.columns.length
        ? make(
            "section",
            { "aria-labelledby": "browse-columns" },
            make("h2", { id: "browse-columns" }, "Other columns"),
            this.terms(row.columns),
          )
        : "",
      this.sentence(data.hint.join(String(row.row)), "hint"),
    );
    Object.assign(this.root.dataset, { view: "row", row: row.row });
  }

  tokenTable(row) {
    const make = this.make.bind(this);
    const special = new Set(row.special);
    const lines = row.pieces
      .filter(([, tokens]) => tokens.length)
      .map(([text, tokens]) => ({
        text,
        score: pieceScore(row, tokens),
        apart: tokens.every((token) => special.has(token)),
      }))
      .sort((a, b) => a.apart - b.apart || this.size(b.score) - this.size(a.score));
    const top = lines.reduce(
      (best, { score, apart }) => (apart ? best : Math.max(best, this.size(score))),
      0,
    );
    const body = make("tbody", {});
    for (const { text, score, apart } of lines) {
      const bar = make("span", { class: this.signed && score < 0 ? "against" : undefined });
      bar.style.width = `${top > 0 ? Math.min(100, (100 * this.size(score)) / top) : 0}%`;
      body.append(
        make(
          "tr",
          { class: apart ? "special" : undefined },
          make("th", { scope: "row", dir: "auto" }, cutShort(text, 60)),
          make("td", {}, this.score(score)),
          make(
            "td",
            { class: "long" },
            apart
              ? "special, outside the scale"
              : make("span", { class: "meter", "aria-hidden": "true" }, bar),
          ),
        ),
      );
    }
    return make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of scores" },
      make(
        "table",
        { class: "tokens" },
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            make("th", { scope: "col" }, "token"),
            make("th", { scope: "col" }, "score"),
            make(
              "th",
              { scope: "col", class: "long" },
              this.signed ? "relative to the largest" : "relative to the highest",
            ),
          ),
        ),
        body,
      ),
    );
  }
}
