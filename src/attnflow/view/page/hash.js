// What is chosen, in the address of a page, so that a link shows the same.

const NUMBERS = ["layer", "position", "token", "head"];
const SWITCHES = ["special", "relative"];

const pairs = (text) =>
  text
    .split(",")
    .filter(Boolean)
    .map((part) => part.split(".").map(Number));

/** Return a state as the text after the # of an address: what differs from the first one. */
export function toHash(state, first) {
  const words = new URLSearchParams();
  const changed = (name) => JSON.stringify(state[name]) !== JSON.stringify(first[name]);
  const put = (name, value) => {
    if (changed(name)) words.set(name, value);
  };
  put("method", state.method);
  for (const name of NUMBERS) put(name, state[name] ?? "");
  for (const name of SWITCHES) put(name, state[name] ? "1" : "0");
  put("graph", state.graph);
  put("threshold", String(Number((state.threshold ?? 0).toPrecision(6))));
  put("node", state.node?.join(".") ?? "");
  put("opened", state.opened?.map((head) => head.join(".")).join(",") ?? "");
  return words.toString();
}

/** Return the changes that the text after the # of an address stands for. */
export function fromHash(text) {
  const words = new URLSearchParams(text);
  const changes = {};
  for (const name of ["method", "graph"]) if (words.has(name)) changes[name] = words.get(name);
  for (const name of NUMBERS) {
    if (words.has(name)) changes[name] = words.get(name) === "" ? null : Number(words.get(name));
  }
  for (const name of SWITCHES) if (words.has(name)) changes[name] = words.get(name) === "1";
  if (words.has("threshold")) changes.threshold = Number(words.get("threshold"));
  if (words.has("node")) changes.node = pairs(words.get("node"))[0] ?? null;
  if (words.has("opened")) changes.opened = pairs(words.get("opened"));
  return changes;
}
