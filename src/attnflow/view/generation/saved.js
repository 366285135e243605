// The generation as a file that Generation.load reads.

import { unpackRows } from "../page/trace.js";

const pause = () => new Promise((resolve) => setTimeout(resolve, 0));

/**
 * Return the parts of a JSON text: the generation that Python put into the page. A function, as that
 * of a long answer takes a while, in which the page stays responsive.
 */
export async function generationJson(data, matrix) {
  const { whole, explanations, layers: packed, leftOut, ...given } = data.generation;
  const shared = { ...whole, layer_scores: await rowsOf(whole.layer_scores) };
  if (data.picture) shared.picture = data.picture;
  const [layers] = packed ? await unpackRows(packed) : [null];
  const parts = [`${JSON.stringify({ ...given, whole: shared }).slice(0, -1)},"explanations":[`];
  let from = 0;
  for (const [i, step] of explanations.entries()) {
    const { depth, tokens, spans, special, scores, ...own } = step;
    const all = (name, [same, rest]) => [...whole[name].slice(0, same), ...rest];
    const made = {
      ...whole,
      ...own,
      tokens: all("tokens", tokens),
      spans: all("spans", spans),
      special: all("special", special),
    };
    const count = made.tokens.length;
    made.scores = scores ?? Array.from(matrix[i].subarray(0, count));
    if (layers) {
      made.layer_scores = Array.from({ length: depth }, (_, layer) =>
        Array.from(layers.subarray(from + layer * count, from + (layer + 1) * count)),
      );
      from += depth * count;
    } else {
      made.layer_scores = [made.scores];
      made.layer = 1;
      made.notes = [...made.notes, leftOut];
    }
    parts.push(i ? "," : "", JSON.stringify(made));
    await pause();
  }
  parts.push("]}");
  return parts;
}

const rowsOf = async (rows) => (await unpackRows(rows)).map((row) => Array.from(row));
