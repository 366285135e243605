// The form: what the model does, what it reads, and how that is explained.

import { controlsPart } from "./controls.js";
import { radioSet } from "./radios.js";
import { readingPart } from "./reading.js";

const KINDS = { text: "A text", pair: "Two texts, as a pair", chat: "A chat" };
const ANOTHER = { text: "another text", pair: "another pair", chat: "another chat" };
const ANSWERS = { "causal-lm": "its next word", "masked-lm": "the masked word" };

/**
 * Return the form: {element, path, question, choices, typed, controls, say, complain, busy}. choices and
 * typed are what it begins with. ask is called when it is sent, stop when that is called off, and
 * changed with the name of an option that was changed.
 */
export function formPart(frame, { model, choices, typed, ask, stop, changed }) {
  const { make } = frame;
  const known = (values, value) => (values.includes(value) ? value : values[0]);
  const doings = [
    [
      "explain",
      `Explain ${model.answers ? (ANSWERS[model.task] ?? "its answer") : "what it reads"}`,
    ],
    ...(model.writes ? [["write", "Let it write, and explain what it wrote"]] : []),
  ];
  const doing = radioSet(frame, {
    name: "doing",
    legend: "What to do",
    choices: doings,
    value: known(
      doings.map(([name]) => name),
      choices.doing,
    ),
    changed: allow,
  });
  const kind = radioSet(frame, {
    name: "kind",
    legend: "What the model reads",
    choices: model.inputs.map((name) => [name, KINDS[name]]),
    value: known(model.inputs, choices.kind),
    changed: allow,
  });
  const reading = (id, label, value) =>
    readingPart(frame, { id, label, model, kind: kind.value, value, submit: ask });
  const first = reading("text", "Text", typed.first);
  const second = reading("compare", "Compared with", typed.second ?? typed.first);
  const secondBox = make(
    "fieldset",
    { class: "second" },
    make("legend", { class: "unseen" }, "What it is compared with"),
    second.element,
  );
  const comparing = frame.check("comparing", "", {
    checked: Boolean(choices.comparing),
    onchange: () => {
      allow();
      if (comparing.input.checked) {
        second.value = first.value;
        second.focus();
      }
      changed("comparing");
    },
  });
  const controls = controlsPart(frame, {
    model,
    given: { ...choices.options, ...typed.options },
    changed(name) {
      allow();
      changed(name);
    },
  });
  const button = make("button", { type: "submit", class: "primary" }, "Explain");
  const stopButton = make(
    "button",
    { type: "button", class: "secondary", hidden: true, onclick: stop },
    "Stop",
  );
  const progress = make("p", { class: "progress", role: "status" });
  const problem = make("p", { class: "problem", role: "alert" });
  const hint = model.mask ? `Write ${model.mask} where a word is to be predicted. ` : "";
  const element = make(
    "form",
    {
      "aria-label": "What to explain",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        ask();
      },
    },
    make("div", { class: "questions" }, doing.element, kind.element),
    make("div", { class: "readings" }, first.element, secondBox),
    make("p", { class: "caption" }, `${hint}Enter sends it, Shift and Enter begin a new line.`),
    controls.element,
    make(
      "div",
      { class: "row last" },
      comparing.element,
      make("div", { class: "send" }, button, stopButton),
    ),
    progress,
    problem,
  );

  // Show what the choices leave open.
  function allow() {
    const writes = doing.value === "write";
    first.kind = kind.value;
    second.kind = kind.value;
    comparing.element.hidden = writes;
    comparing.element.querySelector("label").textContent = `Compare with ${ANOTHER[kind.value]}`;
    secondBox.hidden = writes || !comparing.input.checked;
    controls.allow({ doing: doing.value, kind: kind.value });
    button.textContent = writes ? "Let it write" : "Explain";
  }
  allow();

  const form = {
    element,
    controls,
    get writes() {
      return doing.value === "write";
    },
    get comparing() {
      return !secondBox.hidden && !second.empty;
    },
    /** What the server is asked. */
    get question() {
      const options = controls.value;
      // Without the heads there are none to look at.
      const heads = !form.writes && (options.edges ?? "attention") === "attention";
      return {
        text: first.item,
        ...(form.comparing ? { compare: second.item } : {}),
        ...options,
        ...(heads && model.heads !== null ? { keep_heads: true } : {}),
        page: true,
      };
    },
    get choices() {
      const options = Object.entries(controls.chosen).filter(([name]) => !controls.isTyped(name));
      return {
        doing: form.writes ? "write" : "",
        kind: kind.value === model.inputs[0] ? "" : kind.value,
        comparing: comparing.input.checked ? "1" : "",
        options: Object.fromEntries(options),
      };
    },
    get typed() {
      const options = Object.entries(controls.chosen).filter(([name]) => controls.isTyped(name));
      return {
        first: first.value,
        second: second.value,
        options: Object.fromEntries(options),
      };
    },
    say(text) {
      progress.textContent = text;
      problem.textContent = "";
    },
    complain(text) {
      progress.textContent = "";
      problem.textContent = sentence(controls.inWords(text));
    },
    busy(on) {
      stopButton.hidden = !on;
    },
  };
  return form;
}

function sentence(text) {
  const ended = /[.!?]$/.test(text) ? text : `${text}.`;
  return ended[0].toUpperCase() + ended.slice(1);
}
