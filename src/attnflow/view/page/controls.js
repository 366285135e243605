// The controls: method, layer, head, theme, and what can be saved.

import { answerName, describePrediction, METHODS, quote } from "./prose.js";

/** The themes to choose from. */
export const THEMES = ["auto", "light", "dark"];

/** What a page does for the controls; `this` is the page. */
export const controlsPart = {
  buildThemes() {
    const make = this.make.bind(this);
    const group = make("div", {
      class: "segments small",
      role: "radiogroup",
      "aria-label": "Theme",
    });
    for (const theme of THEMES) {
      const button = make(
        "button",
        {
          type: "button",
          role: "radio",
          "data-theme-choice": theme,
          onclick: () => {
            this.themeChoice = theme;
            this.applyTheme();
            this.drawControls();
            if (this.attention) this.drawText();
            // All colours change, which is much to draw: the rest comes with the next frame.
            this.afterFrame("theme", () => this.show());
          },
        },
        { auto: "Auto", light: "Light", dark: "Dark" }[theme],
      );
      group.append(button);
    }
    this.themes = group;
    this.arrows(group);
    return group;
  },

  buildDownloads() {
    const make = this.make.bind(this);
    const group = make("div", { class: "segments small", role: "group", "aria-label": "Save as" });
    for (const [kind, work] of [
      ["PNG", () => this.savePng()],
      ["SVG", () => this.saveSvg()],
      ["JSON", () => this.saveJson()],
    ]) {
      group.append(
        make(
          "button",
          {
            type: "button",
            "data-save": kind.toLowerCase(),
            "aria-label": `Save as ${kind}`,
            onclick: work,
          },
          kind,
        ),
      );
    }
    return group;
  },

  // Arrow keys move within a group of radio buttons, of which one is in the order of tabs.
  arrows(group) {
    this.listen(group, "keydown", (event) => {
      const radios = Array.from(group.querySelectorAll('[role="radio"]:not([disabled])'));
      const at = radios.indexOf(this.focused);
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (at < 0 || step === undefined) return;
      event.preventDefault();
      const next = radios[(at + step + radios.length) % radios.length];
      next.focus();
      next.click();
    });
  },

  buildControls() {
    const make = this.make.bind(this);
    const { numbers } = this;
    const bar = make("div", { class: "controls", role: "group", "aria-label": "What is shown" });
    const methods = make("div", { class: "segments", role: "radiogroup", "aria-label": "Method" });
    for (const method of Object.keys(METHODS)) {
      methods.append(
        make(
          "button",
          {
            type: "button",
            role: "radio",
            "data-method-choice": method,
            title: METHODS[method].about,
            disabled: !numbers.methods.includes(method),
            onclick: () => this.set({ method }),
          },
          METHODS[method].short,
        ),
      );
    }
    this.arrows(methods);
    this.methodButtons = methods;
    this.layerInput = make("input", {
      type: "range",
      min: 1,
      step: 1,
      id: this.id("layer"),
      oninput: (event) => this.set({ layer: Number(event.target.value) }),
    });
    this.layerWords = make("output", { for: this.id("layer") });
    bar.append(
      methods,
      make(
        "div",
        { class: "slider" },
        make("label", { for: this.id("layer") }, "Layer"),
        this.layerInput,
        this.layerWords,
      ),
    );
    if (numbers.heads) {
      this.headInput = make("select", {
        id: this.id("head"),
        onchange: (event) => this.set({ head: Number(event.target.value) }),
      });
      this.headInput.append(make("option", { value: -1 }, "all"));
      for (let head = 0; head < numbers.heads; head += 1) {
        this.headInput.append(make("option", { value: head }, `${head}`));
      }
      bar.append(
        make(
          "div",
          { class: "slider" },
          make("label", { for: this.id("head") }, "Head"),
          this.headInput,
        ),
      );
    }
    if (numbers.special.some(Boolean) && !numbers.special.every(Boolean)) {
      this.specialInput = make("input", {
        type: "checkbox",
        id: this.id("special"),
        onchange: (event) => this.set({ special: event.target.checked }),
      });
      bar.append(
        make(
          "div",
          { class: "check" },
          this.specialInput,
          make("label", { for: this.id("special") }, "Special tokens in the scale"),
        ),
      );
    }
    return bar;
  },

  drawControls() {
    const { numbers, state } = this;
    const { explanation } = this.data;
    const choose = (group, attribute, value) => {
      for (const button of group.querySelectorAll("button")) {
        const on = button.getAttribute(attribute) === value;
        button.setAttribute("aria-checked", String(on));
        button.tabIndex = on ? 0 : -1;
      }
    };
    choose(this.themes, "data-theme-choice", this.themeChoice);
    if (!this.attention) return;
    choose(this.methodButtons, "data-method-choice", state.method);
    this.layerInput.max = String(this.layers);
    this.layerInput.value = String(state.layer);
    this.layerInput.setAttribute("aria-valuetext", `${this.layerName()} of ${this.layers}`);
    const side = numbers.side(state.position);
    this.layerWords.textContent = `${state.layer} of ${this.layers}${side && ` of the ${side}`}`;
    if (this.headInput) this.headInput.value = String(state.head);
    if (this.specialInput) this.specialInput.checked = state.special;
    this.title.textContent = this.data.contribution
      ? `Where could ${this.positionName} get its information from?`
      : `Where does ${this.positionName} get its information from?`;
    const parts = [`${METHODS[state.method].name}, ${this.layerName()} of ${this.layers}`];
    if (state.head >= 0) parts.push(`head ${state.head}`);
    const prediction = describePrediction(explanation, this.data.classes);
    if (prediction) parts.push(`the model predicts ${prediction}`);
    if (explanation.target && explanation.target !== explanation.prediction?.label) {
      parts.push(`explained for ${quote(answerName(explanation.target, this.data.classes))}`);
    }
    this.subtitle.textContent = `${parts.join(" · ")}`;
  },
};
