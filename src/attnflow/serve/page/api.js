// What the server is asked, and what it answers.

/** The server wants a token, or another one. */
export class TokenNeeded extends Error {}

/** The server that this page came from. */
export class Api {
  /** token is what the server was started with, or empty. It stays in memory. */
  constructor(token = "") {
    this.token = token;
    // Names this page among the clients that take turns. It says nothing about who reads it.
    this.client = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
      byte.toString(16).padStart(2, "0"),
    ).join("");
  }

  headers(more = {}) {
    return {
      "Attnflow-Client": this.client,
      ...(this.token ? { Authorization: `Bearer ${this.token}` } : {}),
      ...more,
    };
  }

  /** Return what there is to know about the model. */
  async model() {
    const response = await fetch("/api/model", { headers: this.headers() });
    if (response.status === 401) throw new TokenNeeded();
    if (!response.ok) throw new Error(await reason(response));
    return response.json();
  }

  /**
   * Ask a question at a path, and return the body of the answer. told is given a sentence whenever
   * there is news, and signal stops it.
   */
  async ask(path, question, { signal, told }) {
    let response;
    try {
      response = await fetch(path, {
        method: "POST",
        headers: this.headers({
          "Content-Type": "application/json",
          Accept: "application/x-ndjson",
        }),
        body: JSON.stringify(question),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is it still running?", { cause: error });
    }
    if (!response.ok) throw new Error(await reason(response));
    let answer = null;
    for await (const event of lines(response.body)) {
      if (event.event === "answer") answer = event;
      else told(inWords(event));
    }
    if (answer === null) throw new Error("The server ended before it had answered.");
    if (answer.status !== 200) throw new Error(answer.body.error.message);
    return answer.body;
  }
}

/** Yield what a stream holds, a line of JSON each. */
async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const whole = text.split("\n");
    text = whole.pop();
    for (const line of whole) if (line) yield JSON.parse(line);
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

function inWords({ event, ahead, stage, text, texts, token, tokens, seconds }) {
  const time = seconds >= 1 ? ` (${Math.round(seconds)} s)` : "";
  if (event === "waiting") {
    return `${ahead ? `Waiting; ${ahead} ${ahead === 1 ? "request comes" : "requests come"} first` : "Waiting for the model"}${time} …`;
  }
  const which = texts > 1 ? ` text ${text} of ${texts}` : " the text";
  const said = {
    model: `The model reads${which}`,
    scores: `Scoring the tokens of${which}`,
    writing: `The model writes: ${token} of at most ${tokens} tokens`,
    explaining: `Explaining what it wrote: ${token} of ${tokens} tokens`,
    answer: "Writing the answer",
  }[stage];
  return `${said}${time} …`;
}
