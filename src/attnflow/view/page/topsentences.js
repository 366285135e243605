// The sentences of a long text that score highest, above the text itself.

import { shade } from "./colour.js";
import { median } from "./heat.js";

const MOST = 6;

/**
 * Return the part with the sentences of the highest mean score: {element, draw}. data.stretches has
 * the tokens of each sentence; set changes what is shown.
 */
export function topSentences(frame, { data, shown, set }) {
  const { make } = frame;
  const list = make("ol", { class: "tops" });
  const words = make("p", { class: "caption" });
  const element = make(
    "section",
    { class: "by-sentence", "aria-labelledby": frame.id("tops") },
    make("h2", { id: frame.id("tops") }, "The sentences with the highest scores"),
    list,
    words,
  );

  function draw() {
    const scores = shown.scores();
    const { counted } = shown;
    if (!scores) {
      words.textContent = "Being computed …";
      return;
    }
    const middle = median(scores.filter((_, token) => counted[token]));
    const means = data.stretches
      .map(([text, tokens]) => {
        const seen = tokens.filter((token) => counted[token]);
        const sum = seen.reduce((total, token) => total + scores[token], 0);
        return { text, tokens: seen, mean: seen.length ? sum / seen.length : 0 };
      })
      .filter(({ tokens }) => tokens.length)
      .sort((a, b) => b.mean - a.mean)
      .slice(0, MOST);
    const top = means[0]?.mean || 1;
    list.replaceChildren(
      ...means.map(({ text, tokens, mean }) => {
        const bar = make("span", { class: "bar" });
        bar.style.width = `${(100 * mean) / top}%`;
        bar.style.insetInlineStart = "0";
        bar.style.backgroundColor = shade(frame.theme, 0.75).hex;
        const best = tokens.reduce((a, b) => (scores[b] > scores[a] ? b : a));
        const times = middle > 0 ? `${(mean / middle).toFixed(2)} ×` : "";
        return make(
          "li",
          {},
          make(
            "button",
            { type: "button", class: "top", onclick: () => set({ token: best }) },
            make("span", { class: "track", "aria-hidden": "true" }, bar),
            make("span", { class: "number" }, times),
            make("span", { class: "sentence", dir: "auto" }, text),
          ),
        );
      }),
    );
    words.textContent =
      "The mean score of a sentence's tokens, as a multiple of the median token of this text. Choose " +
      "a sentence to mark its highest token in the heat maps and the graph.";
  }

  return { element, draw };
}
