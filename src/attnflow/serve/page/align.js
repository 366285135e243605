// Which tokens of two texts correspond.

// Longer stretches that differ are paired in their order: a table of so many cells is too large.
const MOST_CELLS = 2 ** 22;

/** Pair the tokens of two texts: equal ones with each other, and what differs between them in order. */
export function align(first, second) {
  let [start, ends] = [0, 0];
  const shorter = Math.min(first.length, second.length);
  while (start < shorter && first[start] === second[start]) start += 1;
  while (ends < shorter - start && first.at(-1 - ends) === second.at(-1 - ends)) ends += 1;
  const left = first.slice(start, first.length - ends);
  const right = second.slice(start, second.length - ends);
  const both = (count, i, j) => Array.from({ length: count }, (_, k) => [i + k, j + k]);
  const shift = (place) => (place === null ? null : place + start);
  return [
    ...both(start, 0, 0),
    ...between(left, right).map((pair) => pair.map(shift)),
    ...both(ends, first.length - ends, second.length - ends),
  ];
}

function between(first, second) {
  const pairs = [];
  let [left, right] = [[], []];
  const flush = () => {
    for (let k = 0; k < Math.max(left.length, right.length); k += 1) {
      pairs.push([left[k] ?? null, right[k] ?? null]);
    }
    [left, right] = [[], []];
  };
  const longest = common(first, second);
  let [i, j] = [0, 0];
  while (longest && i < first.length && j < second.length) {
    if (first[i] === second[j]) {
      flush();
      pairs.push([i, j]);
      i += 1;
      j += 1;
    } else if (longest[i + 1][j] >= longest[i][j + 1]) {
      left.push(i);
      i += 1;
    } else {
      right.push(j);
      j += 1;
    }
  }
  for (; i < first.length; i += 1) left.push(i);
  for (; j < second.length; j += 1) right.push(j);
  flush();
  return pairs;
}

// How many tokens in a row the rests of two texts have in common, for each place in both.
function common(first, second) {
  if (first.length * second.length > MOST_CELLS) return null;
  const row = () => new Uint16Array(second.length + 1);
  const longest = Array.from({ length: first.length + 1 }, row);
  for (let i = first.length - 1; i >= 0; i -= 1) {
    for (let j = second.length - 1; j >= 0; j -= 1) {
      longest[i][j] =
        first[i] === second[j]
          ? longest[i + 1][j + 1] + 1
          : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  return longest;
}
