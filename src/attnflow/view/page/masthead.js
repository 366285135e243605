// The head of a page: its name, its theme, and what it can be saved as.

import { THEMES } from "./frame.js";
import { toCanvas, toSvg } from "./scene.js";

const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };

/** Return the name of the page. */
export function brand({ make }) {
  return make(
    "p",
    { class: "brand" },
    make("span", { class: "mark", "aria-hidden": "true" }),
    "attnflow",
  );
}

/** Return the choice of the theme: {element, mark}. changed is called when another one is chosen. */
export function themeChoice(frame, changed) {
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
  return themes;
}

/**
 * Return {element, draw}. changed is called when another theme is chosen; figure returns what is shown
 * as a scene, and json a promise of it as the parts of a file. inside is whether the page is part of
 * another, which has the name and the theme.
 */
export function masthead(frame, { changed, figure, json, inside = false }) {
  const { make } = frame;
  const saves = {
    png: () => toCanvas(frame.document, figure(), 2).toBlob((blob) => frame.download(blob, "png")),
    svg: () => {
      const text = new XMLSerializer().serializeToString(toSvg(frame.document, figure()));
      frame.download(new Blob([text], { type: "image/svg+xml" }), "svg");
    },
    json: async () => {
      frame.download(new Blob(await json(), { type: "application/json" }), "json");
    },
  };
  const themes = inside ? null : themeChoice(frame, changed);
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
    inside ? null : brand(frame),
    make("div", { class: "tools" }, themes?.element, downloads),
  );
  return { element, draw: () => themes?.mark(frame.themeChoice) };
}
