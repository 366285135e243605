// How it is explained, and how a model writes: a field for each option, as /api/model describes it.

// What each option is called in the form, in their order, in groups of which the first is always seen.
const GROUPS = {
  "": {
    method: "Method",
    units: "Scores of",
    target: "Answer",
    contrast: "Rather than",
    max_new_tokens: "Write at most (tokens)",
    check: "Check by blanking out each part",
    truncate: "Cut a text that is too long",
    do_sample: "Draw words at random",
  },
  "Attention methods": { layer: "Layer", edges: "Edges weigh", heads: "Heads" },
  "Words drawn at random": {
    temperature: "Temperature",
    top_p: "Top p",
    top_k: "Top k",
    seed: "Seed",
  },
};
const WRITING = ["max_new_tokens", "do_sample"];
const SAMPLING = ["temperature", "top_p", "top_k", "seed"];
const ASKED = ["target", "contrast"];
const ANSWERING = ["contribution", "alti_logit"];
// What a field shows that is left empty.
const EMPTY = {
  target: "what the model predicts",
  contrast: "all others",
  seed: "a new one",
};
const SPACED = "With the space before it, if it is a new word.";

/**
 * Return the fields: {element, value, chosen, typed, allow, inWords}. value is what the server is sent,
 * chosen what differs from the defaults, and typed the words of a language model among it. given is
 * what was chosen before. changed is called with the name of an option.
 */
export function controlsPart(frame, { model, given, changed }) {
  const { make } = frame;
  const rows = new Map(model.options.map((row) => [row.name, row]));
  const fields = new Map();
  const groups = Object.entries(GROUPS).map(([title, names]) => groupOf(title, names));

  function groupOf(title, names) {
    const row = make("div", { class: "row" });
    const ticks = make("div", { class: "row ticks" });
    const own = [];
    for (const [name, label] of Object.entries(names)) {
      const option = rows.get(name);
      if (!option || (ASKED.includes(name) && !model.answers)) continue;
      const field = fieldOf(frame, { row: option, label, model, changed });
      if (given[name] !== undefined) field.value = given[name];
      fields.set(name, field);
      own.push(name);
      (typeof option.default === "boolean" ? ticks : row).append(field.element);
    }
    const note = make("p", { class: "reason", hidden: true });
    const legend = title ? make("legend", {}, title) : null;
    const element = make(title ? "fieldset" : "div", {}, legend, note, row, ticks);
    return { element, note, own };
  }

  const [main, ...advanced] = groups.map(({ element }) => element);
  const help = make(
    "details",
    { class: "help" },
    make("summary", {}, "What these do"),
    make(
      "dl",
      {},
      ...Array.from(fields, ([name, { label }]) => [
        make("dt", {}, label),
        make("dd", {}, rows.get(name).help),
      ]).flat(),
    ),
  );
  const more = make(
    "details",
    { class: "advanced" },
    make("summary", {}, "Advanced"),
    ...advanced,
    help,
  );
  const get = (name) => fields.get(name)?.value;

  // Why an option has no effect; empty if it has one.
  function reason(name, { doing, kind }) {
    const method = get("method");
    const writes = doing === "write";
    if (WRITING.includes(name)) return writes ? "" : "hidden";
    if (SAMPLING.includes(name)) {
      if (!writes) return "hidden";
      return get("do_sample") ? "" : "No effect unless words are drawn at random.";
    }
    if (writes && name === "target") return "hidden";
    if (name === "check" && writes) return "Takes too long for an answer that is written.";
    if (name === "check" && !model.answers) return "The model gives no answer to check.";
    if (name === "truncate" && kind === "chat")
      return "A chat is not cut: its end is the question.";
    const gradient = get("edges") === "gradient" && !ANSWERING.includes(method);
    const asked = gradient && ASKED.includes(name);
    if (!rows.get(name).methods.includes(method) && !asked) {
      return `No effect on ${words("method", method)}.`;
    }
    return "";
  }

  function words(name, value) {
    const found = rows.get(name).values?.find(([one]) => one === value);
    return found ? found[1] : String(value);
  }

  // Which values other choices leave open.
  function possible(name, value, { kind }) {
    if (name === "units") return value !== "segments" || kind !== "text";
    if (name !== "heads" || value === "mean") return true;
    const edges = get("edges");
    if (edges === "value_norm") return Number.isInteger(value);
    return !["gradient", "alti"].includes(edges);
  }

  const enabled = () => Array.from(fields).filter(([, field]) => !field.disabled);
  const differs = ([name, field]) => field.value !== rows.get(name).default;

  return {
    element: make("div", { class: "options" }, main, more),
    /** See which options have an effect; situation is {doing, kind}. */
    allow(situation) {
      for (const { element, note, own } of groups) {
        const reasons = own.map((name) => reason(name, situation));
        // The same reason for a whole group is said once.
        const shared = element !== main && reasons.every((why) => why === reasons[0]);
        own.forEach((name, i) => {
          const field = fields.get(name);
          field.allow((value) => possible(name, value, situation));
          field.disable(reasons[i], shared);
        });
        element.hidden = reasons.every((why) => why === "hidden");
        note.textContent = shared ? reasons[0] : "";
        note.hidden = note.textContent === "";
      }
    },
    get value() {
      return Object.fromEntries(enabled().map(([name, field]) => [name, field.value]));
    },
    get chosen() {
      return Object.fromEntries(
        Array.from(fields)
          .filter(differs)
          .map(([name, field]) => [name, field.value]),
      );
    },
    /** Whether an option is what somebody typed, and not one of some values. */
    isTyped: (name) => fields.get(name)?.typed ?? false,
    get,
    set(name, value) {
      if (fields.has(name)) fields.get(name).value = value;
    },
    /** Return an error of the server, with options as they are called here. */
    inWords(message) {
      return message.replace(
        /\b(?:pass )?(\w+)=('[^']*'|True|False|\d+)/g,
        (whole, name, given) => {
          const field = fields.get(name);
          if (!field) return whole;
          if (given === "True" || given === "False") {
            return `${given === "True" ? "tick" : "untick"} “${field.label}”`;
          }
          const value = given.startsWith("'") ? given.slice(1, -1) : Number(given);
          return `set “${field.label}” to ${words(name, value)}`;
        },
      );
    },
  };
}

/** Return the field of one option: {element, label, value, typed, disabled, disable, allow}. */
function fieldOf(frame, { row, label, model, changed }) {
  const { make } = frame;
  const { name } = row;
  const note = make("p", { class: "reason", id: `${name}-reason`, hidden: true });
  const attributes = { id: name, "aria-describedby": note.id, onchange: () => changed(name) };
  const values = row.values ?? classValues(row, model.classes);
  const open = !values && typeof row.default !== "boolean";
  const words = open && ASKED.includes(row.name);
  let input;
  if (values) {
    input = make(
      "select",
      attributes,
      ...values.map(([, words], i) => make("option", { value: i }, words)),
    );
  } else if (open) {
    const number = !words;
    input = make("input", {
      ...attributes,
      type: number ? "number" : "text",
      step: number ? "any" : undefined,
      min: number ? 0 : undefined,
      maxlength: number ? undefined : 200,
      autocomplete: "off",
      placeholder: EMPTY[name] ?? (row.default === null ? "the model's own" : undefined),
    });
  } else input = make("input", { ...attributes, type: "checkbox" });
  const named = make("label", { for: name }, label);
  const check = input.type === "checkbox";
  const spaced = words && model.task === "causal-lm";
  const hint = make("p", { class: "reason", id: `${name}-hint` }, SPACED);
  if (spaced) input.setAttribute("aria-describedby", `${hint.id} ${note.id}`);
  const element = make(
    "div",
    { class: check ? "choice tick" : "choice" },
    ...(check ? [make("div", { class: "check" }, input, named)] : [named, input]),
    spaced ? hint : null,
    note,
  );
  const field = {
    element,
    label,
    typed: words,
    get disabled() {
      return input.disabled;
    },
    get value() {
      if (values) return values[Number(input.value)][0];
      if (check) return input.checked;
      const text = input.value.trim();
      if (text === "") return row.default;
      return input.type === "number" ? Number(text) : input.value;
    },
    set value(value) {
      // In an address every value is a text.
      if (check) input.checked = String(value) === "true";
      else if (!values) input.value = value ?? "";
      else {
        const at = values.findIndex(([one]) => String(one) === String(value));
        if (at >= 0) input.value = String(at);
      }
    },
    /** Say why it has no effect; quietly, if that is said of a whole group. */
    disable(why, quietly) {
      input.disabled = why !== "";
      element.hidden = why === "hidden";
      note.textContent = why;
      note.hidden = why === "";
      note.classList.toggle("unseen", quietly);
      hint.hidden = why !== "";
    },
    allow(possible) {
      if (!row.values) return;
      for (const option of input.options) {
        option.disabled = !possible(values[Number(option.value)][0]);
        if (option.disabled && option.selected) field.value = row.default;
      }
    },
  };
  field.value = row.default;
  return field;
}

// The answers of a classifier are chosen, those of a language model typed.
function classValues({ name }, classes) {
  if (!ASKED.includes(name) || classes.length === 0) return null;
  return [[null, EMPTY[name]], ...classes.map(({ index, name: words }) => [index, words])];
}
