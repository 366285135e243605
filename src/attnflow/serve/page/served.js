// The served page: the form, and below it what the server answered.

import { Frame } from "../../view/page/frame.js";
import { brand, themeChoice } from "../../view/page/masthead.js";
import { keepAddress, readAddress } from "./address.js";
import { Api, TokenNeeded } from "./api.js";
import { formPart } from "./form.js";
import { resultsPart } from "./results.js";
import { tokenForm } from "./token.js";

const ATTENTION = ["raw", "rollout", "flow"];

/** Fill an element that has one of the class "ask" with the served page. */
export async function serve(main) {
  const root = main.querySelector(".ask");
  const frame = new Frame(root);
  const { make } = frame;
  // The token stays in memory: not in the address, where others may see it, nor in a cookie.
  const { choices, typed, token } = readAddress(frame.window);
  const api = new Api(token);
  const title = root.querySelector("h1");
  const results = resultsPart(frame, { followed: follow });
  const themes = themeChoice(frame, () => results.setTheme());
  themes.mark(frame.themeChoice);
  const head = make("header", { class: "masthead" }, brand(frame), themes.element);
  let form = null;
  let asked = null;
  // The view that the address tells of, until something else is asked.
  let view = choices.view;

  async function start() {
    let model;
    try {
      model = await api.model();
    } catch (error) {
      if (!(error instanceof TokenNeeded)) throw error;
      askForToken();
      return;
    }
    frame.document.title = `attnflow: ${model.model}`;
    form = formPart(frame, {
      model,
      choices,
      typed,
      ask,
      stop: () => asked?.abort(),
      changed,
    });
    const about = make(
      "p",
      { class: "caption about-server" },
      `Model: ${model.model} (${model.task}, ${model.layers} layers). Nothing leaves the server that this page came from. `,
      make("a", { href: "/docs" }, "The interface for programs"),
    );
    root.replaceChildren(head, title, form.element, about);
    main.append(results.element);
    await ask();
  }

  function askForToken() {
    const asking = tokenForm(frame, {
      send: (given) => {
        api.token = given;
        start().catch((error) => asking.complain(error.message));
      },
    });
    root.replaceChildren(head, title, asking.element);
    asking.complain(api.token ? "This is not the token of the server." : "");
    asking.focus();
  }

  /** Ask the server, and show what it answers. */
  async function ask() {
    asked?.abort();
    const mine = new AbortController();
    asked = mine;
    form.say("Asking …");
    form.busy(true);
    root.setAttribute("aria-busy", "true");
    try {
      const { writes, question } = form;
      const path = writes ? "/api/generate" : "/api/explain";
      const answer = await api.ask(path, question, { signal: mine.signal, told: form.say });
      if (asked !== mine) return;
      await results.show(answer, { state: begin(), hash: view });
      view = "";
      form.say(
        `${writes ? "Written and explained" : "Explained"} in ${answer.seconds.toFixed(2)} seconds.`,
      );
    } catch (error) {
      if (asked !== mine) return;
      if (error.name === "AbortError") form.say("Stopped.");
      else {
        // What is shown would be taken for the answer.
        results.clear();
        form.complain(error.message);
      }
    } finally {
      if (asked === mine) {
        asked = null;
        root.removeAttribute("aria-busy");
        form.busy(false);
        keep();
      }
    }
  }

  // What the page of an explanation by attention begins with.
  function begin() {
    const { method, layer } = form.controls.value;
    return ATTENTION.includes(method) ? { method, layer } : {};
  }

  // What was changed in the form is asked at once, unless the page can show it by itself.
  function changed(name) {
    keep();
    if (form.writes) return;
    const { method, layer } = begin();
    if (["method", "layer"].includes(name) && method && results.live) {
      results.set(name === "method" ? { method } : { layer });
    } else if (name !== "comparing" || !form.comparing) ask();
  }

  // What is chosen in a page of attention is chosen in the form.
  function follow({ method, layer }) {
    if (begin().method) {
      form.controls.set("method", method);
      form.controls.set("layer", layer);
    }
    keep();
  }

  function keep() {
    frame.later(
      "address",
      () => keepAddress(frame.window, { ...form.choices, view: results.hash || view }, form.typed),
      150,
    );
  }

  // Another address of this page, such as that of a link, is another state.
  frame.listen(frame.window, "hashchange", () => frame.window.location.reload());
  await start();
}
