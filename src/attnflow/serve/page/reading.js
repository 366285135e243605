// What the model reads: a text, two texts as a pair, or a chat.

import { chatPart } from "./chat.js";

const NAMES = {
  "question-answering": ["Question", "Text that answers it"],
  "seq2seq-lm": ["Source", "Answer so far"],
};

/**
 * Return the fields of one input: {element, kind, value, item, empty, focus}. value is an object with
 * what every kind has been given, item what the server is sent. submit is called on Enter.
 */
export function readingPart(frame, { id, label, model, kind, value, submit }) {
  const { make } = frame;
  const most = model.characters;
  const keydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  };
  const area = (name, words, content) => {
    const field = make(
      "textarea",
      { id: name, rows: 2, dir: "auto", spellcheck: "false", maxlength: most, onkeydown: keydown },
      content,
    );
    const box = make("div", { class: "text-field" }, make("label", { for: name }, words), field);
    return { field, box };
  };
  const [one, two] = NAMES[model.task] ?? ["First text", "Second text"];
  const { examples } = model;
  const text = area(id, label, value?.text ?? examples.text ?? "");
  const pair = [one, two].map((words, i) =>
    area(`${id}-${i ? "second" : "first"}`, words, value?.pair?.[i] ?? examples.pair?.[i] ?? ""),
  );
  const chat = chatPart(frame, {
    prefix: id,
    most,
    messages: value?.chat ?? examples.chat ?? [{ role: "user", content: "" }],
    keydown,
  });
  const boxes = {
    text: text.box,
    pair: make("div", { class: "texts" }, ...pair.map(({ box }) => box)),
    chat: make(
      "div",
      { class: "text-field", role: "group", "aria-label": `${label}: messages` },
      chat.element,
    ),
  };
  const element = make("div", { class: "reading" }, ...Object.values(boxes));
  let chosen;

  const reading = {
    element,
    get kind() {
      return chosen;
    },
    set kind(next) {
      chosen = next;
      for (const [name, box] of Object.entries(boxes)) box.hidden = name !== next;
    },
    get value() {
      return {
        text: text.field.value,
        pair: pair.map(({ field }) => field.value),
        chat: chat.value,
      };
    },
    set value(given) {
      text.field.value = given.text;
      pair.forEach(({ field }, i) => {
        field.value = given.pair[i];
      });
      chat.value = given.chat;
    },
    get item() {
      return reading.value[chosen];
    },
    get empty() {
      const item = reading.item;
      const parts = Array.isArray(item) ? item.map((part) => part.content ?? part) : [item];
      return !parts.some((part) => part.trim());
    },
    focus() {
      if (chosen === "chat") {
        chat.focus();
        return;
      }
      const field = chosen === "pair" ? pair[0].field : text.field;
      field.focus();
      field.select();
    },
  };
  reading.kind = kind;
  return reading;
}
