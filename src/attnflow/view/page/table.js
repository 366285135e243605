// The numbers of what is shown, as a table.

import { cutShort, formatScore, METHODS } from "./prose.js";

/** Return the table: {element, draw}. It is made when it is opened. */
export function tablePart(frame, { shown }) {
  const { make } = frame;
  const { numbers } = shown;
  const body = make("tbody", {});
  const head = make("tr", {});
  const caption = make("caption", {});
  const element = make(
    "details",
    { class: "numbers", ontoggle: draw },
    make("summary", {}, "The numbers, as a table"),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of scores" },
      make("table", {}, caption, make("thead", {}, head), body),
    ),
  );

  function draw() {
    if (!element.open) return;
    const columns = numbers.methods.map((method) => [method, shown.scores(method)]);
    caption.textContent = `Scores for ${shown.positionName}, ${shown.layerName()}`;
    head.replaceChildren(
      make("th", { scope: "col" }, numbers.groups ? "part of the text" : "token"),
      ...columns.map(([method]) => make("th", { scope: "col" }, METHODS[method].short)),
    );
    body.replaceChildren(
      ...numbers.labels.map((label, token) =>
        make(
          "tr",
          {},
          make("th", { scope: "row", dir: "auto" }, cutShort(label, 120)),
          ...columns.map(([, scores]) => make("td", {}, scores ? formatScore(scores[token]) : "…")),
        ),
      ),
    );
  }

  return { element, draw };
}
