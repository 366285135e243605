// The rows of a data set: which of them are shown, and in which order.

/** The orders to choose from: what they are called, and whether they go by what is searched for. */
export const ORDERS = {
  row: { name: "as in the data set" },
  unsure: { name: "least sure first" },
  sure: { name: "surest first" },
  saturated: { name: "most saturated first" },
  unsaturated: { name: "least saturated first" },
  found: { name: "searched word: highest score", searches: true },
  missed: { name: "searched word: lowest score", searches: true },
};

/** Return a text as it is searched: in lower case, without regard to how accents are written. */
export function plain(text) {
  return text.normalize("NFC").toLowerCase();
}

/**
 * Return the text of a row as it is searched: its text, its id and its answer.
 *
 * A row is {row, id, pieces, scores, special, answer, probability, saturation, ...}; pieces are pairs
 * of a part of the text and the tokens that it stands for; the name of a segment has true after these.
 */
export function searchText(row) {
  const isSpecial = (token) => row.special.includes(token);
  const text = row.pieces
    .filter(([, tokens, label]) => !label && (!tokens.length || !tokens.every(isSpecial)))
    .map(([part]) => part)
    .join("");
  return plain(`${text}\n${row.id}\n${row.answer ?? ""}`);
}

/** Return the score of a piece: the sum over its tokens. */
export function pieceScore(row, tokens) {
  return tokens.reduce((sum, token) => sum + row.scores[token], 0);
}

/**
 * Return the token of a row that is what is searched for, or, where none is, one that has it in it:
 * {text, score, whole}, that with the highest score. Null where there is none.
 */
export function found(row, query) {
  let best = null;
  for (const [text, tokens] of row.pieces) {
    const own = tokens.length ? plain(text) : "";
    if (!own.includes(query)) continue;
    const next = { text, score: pieceScore(row, tokens), whole: own === query };
    if (
      !best ||
      next.whole > best.whole ||
      (next.whole === best.whole && next.score > best.score)
    ) {
      best = next;
    }
  }
  return best;
}

function searched(word) {
  return word === null ? [2, 0] : [word.whole ? 0 : 1, word.score];
}

/**
 * Return the rows that have a text in them and were answered so, in an order.
 *
 * rows have a field search, of searchText. answer is null for any. Rows that lack what the order goes
 * by come last, and equal ones stay as they are.
 */
export function select(rows, { query = "", answer = null, order = "row" }) {
  const wanted = plain(query.trim());
  const kept = rows.filter(
    (row) => (!wanted || row.search.includes(wanted)) && (answer === null || row.answer === answer),
  );
  if (order === "row" || (ORDERS[order].searches && !wanted)) return kept;
  const sign = ["sure", "saturated", "found"].includes(order) ? -1 : 1;
  // Pairs of what is missing, or is only a part of a word, which comes later, and of a number.
  const value = {
    unsure: ({ probability }) => [probability === null, probability],
    sure: ({ probability }) => [probability === null, probability],
    saturated: ({ saturation }) => [saturation === null, saturation],
    unsaturated: ({ saturation }) => [saturation === null, saturation],
    found: (row) => searched(found(row, wanted)),
    missed: (row) => searched(found(row, wanted)),
  }[order];
  return kept
    .map((row) => ({ row, key: value(row) }))
    .sort(({ key: a }, { key: b }) => a[0] - b[0] || sign * (a[1] - b[1]))
    .map(({ row }) => row);
}

/** Return how often each answer is given, the most frequent first: pairs of an answer and a number. */
export function answersOf(rows) {
  const counts = new Map();
  for (const { answer } of rows) {
    if (answer !== null) counts.set(answer, (counts.get(answer) ?? 0) + 1);
  }
  return Array.from(counts).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

/** Return the number of a page that there is, from 1, and the items on it. */
export function paged(items, number, size) {
  const pages = Math.max(1, Math.ceil(items.length / size));
  const page = Math.min(pages, Math.max(1, number));
  return { page, pages, items: items.slice((page - 1) * size, page * size) };
}
