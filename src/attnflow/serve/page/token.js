// The form that asks for the token of the server.

/** Return the form: {element, focus, complain}. send is called with the token. */
export function tokenForm(frame, { send }) {
  const { make } = frame;
  const field = make("input", {
    id: "token",
    type: "password",
    autocomplete: "off",
    required: true,
    "aria-describedby": "token-about",
  });
  const problem = make("p", { class: "problem", role: "alert" });
  const element = make(
    "form",
    {
      class: "token-form",
      onsubmit: (event) => {
        event.preventDefault();
        send(field.value.trim());
      },
    },
    make("label", { for: "token" }, "Token"),
    field,
    make("button", { type: "submit", class: "primary" }, "Go on"),
    make(
      "p",
      { id: "token-about", class: "caption" },
      "The server was started with a token. This page keeps it until it is closed.",
    ),
    problem,
  );
  const complain = (message) => {
    problem.textContent = message;
  };
  return { element, complain, focus: () => field.focus() };
}
