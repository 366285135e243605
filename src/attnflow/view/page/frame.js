// What surrounds the parts of a page: the document, its theme, things done later, and what is said.

import { makeElement } from "./element.js";
import { afterFrame } from "./numbers.js";
import { fitter } from "./scene.js";

/** The themes to choose from. */
export const THEMES = ["auto", "light", "dark"];

/** The surroundings of the parts of a page, which are all given it. */
export class Frame {
  /** root is the element that the page fills, theme one of THEMES to begin with. */
  constructor(root, theme) {
    this.root = root;
    this.document = root.ownerDocument;
    this.window = this.document.defaultView;
    this.fit = fitter(this.document);
    this.themeChoice = THEMES.includes(theme) ? theme : "auto";
    this.printing = false;
    this.darkScheme = this.window.matchMedia("(prefers-color-scheme: dark)");
    this.leave = new AbortController();
    this.waiting = {};
    this.prefix = `attnflow-${Math.random().toString(36).slice(2, 8)}`;
    this.make = (name, attributes = {}, ...children) =>
      makeElement(this.document, name, attributes, children, this.leave.signal);
    this.live = this.make("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.tip = this.make("div", { class: "tip", "aria-hidden": "true", hidden: true });
  }

  /** Return an id for an element of this page, of which a document may have several. */
  id(name) {
    return `${this.prefix}-${name}`;
  }

  listen(target, name, handler) {
    target.addEventListener(name, handler, { signal: this.leave.signal });
  }

  /** Do something in a moment, in the place of what else was to be done under the name. */
  later(name, work, wait = 0) {
    this.callOff(name);
    const timer = setTimeout(work, wait);
    this.waiting[name] = () => clearTimeout(timer);
  }

  /** The same, once what has changed is seen. */
  afterFrame(name, work) {
    this.callOff(name);
    this.waiting[name] = afterFrame(work);
  }

  callOff(name) {
    this.waiting[name]?.();
    delete this.waiting[name];
  }

  /** Whether something is to be done under the name. */
  waits(name) {
    return Boolean(this.waiting[name]);
  }

  // In a notebook the page is in a tree of its own, whose focus the document does not tell.
  get focused() {
    return this.root.getRootNode().activeElement ?? null;
  }

  /** The theme that drawings have: "light" or "dark". */
  get theme() {
    if (this.printing) return "light";
    if (this.themeChoice !== "auto") return this.themeChoice;
    return this.darkScheme.matches ? "dark" : "light";
  }

  applyTheme() {
    this.root.dataset.theme = this.printing ? "light" : this.themeChoice;
  }

  /** Show a text beside the pointer. */
  showTip(event, text) {
    const { tip } = this;
    tip.textContent = text;
    tip.hidden = false;
    const { clientWidth, clientHeight } = this.document.documentElement;
    const x = Math.min(event.clientX + 14, clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < clientHeight;
    const y = below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10;
    tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  /** Say something to screen readers. */
  say(text) {
    this.live.textContent = text;
  }

  /**
   * Return a group of radio buttons: choices are [value, words, title], attribute bears the value,
   * and choose is called with it. The group's function mark shows which one is chosen.
   */
  radios({ label, attribute, choices, choose, small = true, disabled = () => false }) {
    const group = this.make(
      "div",
      { class: small ? "segments small" : "segments", role: "radiogroup", "aria-label": label },
      ...choices.map(([value, words, title]) =>
        this.make(
          "button",
          {
            type: "button",
            role: "radio",
            [attribute]: value,
            title,
            disabled: disabled(value),
            onclick: () => choose(value),
          },
          words,
        ),
      ),
    );
    this.arrows(group);
    const mark = (value) => {
      for (const button of group.children) {
        const on = button.getAttribute(attribute) === value;
        button.setAttribute("aria-checked", String(on));
        button.tabIndex = on ? 0 : -1;
      }
    };
    return { element: group, mark };
  }

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
  }

  /** Return a check box with its label: {element, input}. */
  check(name, label, attributes) {
    const input = this.make("input", { type: "checkbox", id: this.id(name), ...attributes });
    const element = this.make(
      "div",
      { class: "check" },
      input,
      this.make("label", { for: this.id(name) }, label),
    );
    return { element, input };
  }

  /** Return a canvas that shows a scale of colours; its function paint draws it. */
  scale() {
    const element = this.make("canvas", {
      class: "scale",
      width: 240,
      height: 10,
      "aria-hidden": "true",
    });
    const paint = (colour) => {
      const context = element.getContext("2d");
      for (let x = 0; x < element.width; x += 1) {
        context.fillStyle = colour(x / (element.width - 1));
        context.fillRect(x, 0, 1, element.height);
      }
    };
    return { element, paint };
  }

  /** Give a file to the browser to save. */
  download(blob, ending) {
    const address = URL.createObjectURL(blob);
    this.make("a", { href: address, download: `attnflow.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
    this.say(`Saved attnflow.${ending}`);
  }

  destroy() {
    this.leave.abort();
    for (const name of Object.keys(this.waiting)) this.callOff(name);
    this.root.replaceChildren();
    this.root.classList.remove("attnflow", "printing");
  }
}
