// The messages of a chat, each with a role.

const ROLES = ["system", "user", "assistant"];
// As many as the server takes.
const MOST = 100;

/**
 * Return the messages as fields: {element, value, focus}. value is a list of {role, content}, keydown
 * is told of every key, and prefix begins the ids.
 */
export function chatPart(frame, { prefix, most, messages, keydown }) {
  const { make } = frame;
  const list = make("ol", { class: "chat-messages" });
  const add = make(
    "button",
    { type: "button", class: "plain", onclick: () => append({ role: next(), content: "" }, true) },
    "Add a message",
  );
  const element = make("div", { class: "chat" }, list, add);
  let made = 0;

  const rows = () => Array.from(list.children);
  const parts = (row) => [row.querySelector("select"), row.querySelector("textarea")];

  // The user and the assistant take turns.
  function next() {
    const last = rows().at(-1);
    return last && parts(last)[0].value === "user" ? "assistant" : "user";
  }

  function append({ role, content }, focus) {
    made += 1;
    const id = `${prefix}-message-${made}`;
    const roles = ROLES.includes(role) ? ROLES : [...ROLES, role];
    const row = make(
      "li",
      { class: "chat-message" },
      make(
        "select",
        { id: `${id}-role` },
        ...roles.map((one) => make("option", { value: one, selected: one === role }, one)),
      ),
      make(
        "textarea",
        { id, rows: 2, dir: "auto", spellcheck: "false", maxlength: most, onkeydown: keydown },
        content,
      ),
      make(
        "button",
        {
          type: "button",
          class: "plain",
          onclick: () => {
            const left = row.nextElementSibling ?? row.previousElementSibling;
            row.remove();
            number();
            (left?.querySelector("textarea") ?? add).focus();
          },
        },
        "Remove",
      ),
    );
    list.append(row);
    number();
    if (focus) row.querySelector("textarea").focus();
  }

  // What each field is called, by its place.
  function number() {
    rows().forEach((row, i) => {
      const [role, content] = parts(row);
      role.setAttribute("aria-label", `Role of message ${i + 1}`);
      content.setAttribute("aria-label", `Message ${i + 1}`);
      const remove = row.querySelector("button");
      remove.setAttribute("aria-label", `Remove message ${i + 1}`);
      remove.disabled = list.children.length === 1;
    });
    add.disabled = list.children.length >= MOST;
  }

  function fill(given) {
    list.replaceChildren();
    for (const message of given) append(message, false);
  }

  fill(messages);
  return {
    element,
    get value() {
      return rows().map((row) => {
        const [role, content] = parts(row);
        return { role: role.value, content: content.value };
      });
    },
    set value(given) {
      fill(given);
    },
    focus: () => list.querySelector("textarea").focus(),
  };
}
