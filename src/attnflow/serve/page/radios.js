// A choice between a few things, as radio buttons of the browser.

/**
 * Return {element, value}: choices are [value, words]. A single choice is not shown. changed is
 * called when another one is chosen.
 */
export function radioSet(frame, { name, legend, choices, value, changed }) {
  const { make } = frame;
  const inputs = choices.map(([one]) =>
    make("input", {
      type: "radio",
      name,
      value: one,
      id: `${name}-${one}`,
      checked: one === value,
      onchange: () => changed(),
    }),
  );
  const element = make(
    "fieldset",
    { class: "radios", hidden: choices.length < 2 },
    make("legend", {}, legend),
    ...choices.map(([one, words], i) =>
      make("div", { class: "check" }, inputs[i], make("label", { for: `${name}-${one}` }, words)),
    ),
  );
  return {
    element,
    get value() {
      return inputs.find((input) => input.checked)?.value ?? value;
    },
  };
}
