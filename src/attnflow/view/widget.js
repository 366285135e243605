// The page in a notebook: what it shows and a widget's model are kept in step.

import { mountGeneration } from "./generation/generation.js";
import { mount } from "./page/page.js";

// What shows each kind of result, and which names of its state the model shares.
const PAGES = {
  explanation: { mounted: mount, shared: ["method", "layer", "position"] },
  generation: { mounted: mountGeneration, shared: ["selection"] },
};

/** Show a widget's model in an element; returns a function that takes everything away again. */
function render({ model, el }) {
  const document = el.ownerDocument;
  const host = document.createElement("div");
  // Arrow keys are the page's while it has the focus, not JupyterLab's.
  host.dataset.lmSuppressShortcuts = "true";
  // In a tree of its own, neither the notebook's style sheets nor the page's reach the other.
  const tree = host.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = model.get("_style");
  const root = document.createElement("div");
  tree.append(style, root);
  el.append(host);

  const { mounted, shared } = PAGES[model.get("_kind")];
  let page = null;
  let gone = false;
  let width = 0;
  const chosen = () => Object.fromEntries(shared.map((name) => [name, model.get(name)]));
  const differs = (state, name) => JSON.stringify(state[name]) !== JSON.stringify(model.get(name));
  const follow = () => {
    if (page && shared.some((name) => differs(page.state, name))) page.set(chosen());
  };
  const tell = (state) => {
    const changed = shared.filter((name) => differs(state, name));
    for (const name of changed) model.set(name, state[name]);
    if (changed.length > 0) model.save_changes();
  };
  const start = async () => {
    try {
      page = await mounted(root, model.get("_data"), {
        state: chosen(),
        theme: themeOf(host),
        onChange: tell,
      });
      if (gone) page.destroy();
      else follow();
    } catch (error) {
      root.append(`This result cannot be shown: ${error.message}`);
    }
  };
  // A notebook makes an output before it has a place for it, and changes its width at any time.
  const observer = new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width || contentRect.width === 0) return;
    const first = width === 0;
    width = contentRect.width;
    if (first) start();
    else page?.set({});
  });
  observer.observe(host);
  for (const name of shared) model.on(`change:${name}`, follow);
  return () => {
    gone = true;
    observer.disconnect();
    for (const name of shared) model.off(`change:${name}`, follow);
    page?.destroy();
    host.remove();
  };
}

// Notebooks have themes of their own: where text is light, the rest is dark.
function themeOf(element) {
  const colour = element.ownerDocument.defaultView.getComputedStyle(element).color;
  const [red, green, blue] = (/^rgba?\(([^)]*)\)/.exec(colour)?.[1] ?? "").match(/[\d.]+/g) ?? [];
  if (blue === undefined) return "auto";
  return 0.299 * red + 0.587 * green + 0.114 * blue > 127 ? "dark" : "light";
}

export default { render };
