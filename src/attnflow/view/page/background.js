// Flows that are computed in the background, the chosen layer first.

/**
 * Return {start, stop}. arrived is called when scores are known that were not: with whether those of
 * the chosen layer are among them.
 */
export function background(frame, { shown, arrived }) {
  const { numbers } = shown;
  const news = new Set();
  let wanted = null;

  const layers = () => Array.from({ length: shown.layers }, (_, i) => i + 1);

  function missing(layer) {
    const { position, head } = shown.state;
    return (
      !numbers.scores("flow", layer, position, head) ||
      !numbers.knownScores("rollout", layer, position, head)
    );
  }

  function tell() {
    frame.callOff("flows");
    arrived(news.has(shown.state.layer));
    news.clear();
  }

  function start() {
    if (!numbers.trace) return;
    const { layer: chosen, position, head, method } = shown.state;
    const name = `${position} ${head}`;
    if (wanted === name && (numbers.job || !layers().some(missing))) return;
    wanted = name;
    const todo = layers()
      .sort((a, b) => Math.abs(a - chosen) - Math.abs(b - chosen) || a - b)
      .filter(missing);
    numbers.stop();
    if (todo.length === 0) return;
    news.clear();
    const arrive = (layer) => {
      news.add(layer);
      // What is looked at comes at once, and the rest not oftener than the eye can follow.
      const wait = news.has(shown.state.layer) ? 0 : 80;
      if (wait === 0 || !frame.waits("flows")) frame.later("flows", tell, wait);
    };
    numbers.computeFlows(position, todo, head, arrive, method === "flow");
  }

  return { start, stop: () => numbers.stop() };
}
