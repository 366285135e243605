// The head of a page: its name, its theme, and what it can be saved as.

import { THEMES } from "./frame.js";

const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };

/**
 * Return {element, draw}. changed is called when another theme is chosen; saves are names of files'
 * endings with the functions that save them.
 */
export function masthead(frame, { changed, saves }) {
  const { make } = frame;
  const themes = frame.radios({
    label: "Theme",
    attribute: "data-theme-choice",
    choices: THEMES.map((theme) => [theme, NAMES[theme]]),
    choose: (theme) => {
      frame.themeChoice = theme;
      frame.applyTheme();
      themes.mark(theme);
      changed();
    },
  });
  const downloads = make(
    "div",
    { class: "segments small", role: "group", "aria-label": "Save as" },
    ...Object.entries(saves).map(([kind, save]) =>
      make(
        "button",
        {
          type: "button",
          "data-save": kind,
          "aria-label": `Save as ${kind.toUpperCase()}`,
          onclick: save,
        },
        kind.toUpperCase(),
      ),
    ),
  );
  const element = make(
    "header",
    { class: "masthead" },
    make(
      "p",
      { class: "brand" },
      make("span", { class: "mark", "aria-hidden": "true" }),
      "attnflow",
    ),
    make("div", { class: "tools" }, themes.element, downloads),
  );
  return { element, draw: () => themes.mark(frame.themeChoice) };
}
