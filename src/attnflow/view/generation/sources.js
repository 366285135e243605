// What a generation came from: the scores of the whole answer, of a token, or of a span of tokens.

import { unpackRows } from "../page/trace.js";

/** The numbers of a generation. A selection is [first, last] of the new tokens, or null: all. */
export class Sources {
  /** data is what attnflow.view.generation.data returns. */
  static async read(data) {
    return new Sources(data, await unpackRows(data.matrix));
  }

  constructor(data, matrix) {
    const { whole, explanations, written } = data.generation;
    this.matrix = matrix;
    this.whole = whole;
    this.steps = explanations;
    this.count = matrix.length;
    this.columns = whole.tokens.length;
    this.signed = data.signed;
    this.special = whole.special;
    this.own = written;
    this.patches = new Set(data.patches);
    // The columns of the answer's own tokens, in the order in which they were written.
    this.ownColumns = Array.from(written.keys()).filter((column) => written[column]);
    this.known = { name: null };
  }

  /** Return a selection, or null for one that is not valid. */
  checked(selection) {
    const [first, last] = Array.isArray(selection) ? selection : [];
    const inside = (token) => Number.isInteger(token) && token >= 0 && token < this.count;
    return inside(first) && inside(last) && first <= last ? [first, last] : null;
  }

  /**
   * Return what a selection came from: {scores, value, bias}. scores has a number for each column:
   * the sum over the tokens selected, or the mean of attention, in which a token that was not there
   * yet counts as 0. value and bias are null for attention.
   */
  of(selection) {
    const name = String(selection);
    if (this.known.name !== name) this.known = { name, found: this.compute(selection) };
    return this.known.found;
  }

  compute(selection) {
    if (selection === null) {
      const { scores, value, bias } = this.whole;
      return { scores: Float64Array.from(scores), value, bias };
    }
    const [first, last] = selection;
    const scores = new Float64Array(this.columns);
    for (let row = first; row <= last; row += 1) {
      const values = this.matrix[row];
      // NaN stands for what was not written yet.
      for (let i = 0; i < scores.length; i += 1) scores[i] += values[i] || 0;
    }
    if (!this.signed) {
      for (let i = 0; i < scores.length; i += 1) scores[i] /= last - first + 1;
      return { scores, value: null, bias: null };
    }
    const steps = this.steps.slice(first, last + 1);
    const sum = (name) =>
      steps.some((step) => step[name] === null)
        ? null
        : steps.reduce((total, step) => total + this.field(step, name), 0);
    return { scores, value: sum("value"), bias: sum("bias") };
  }

  /** Return a field of the explanation of a token, which has what differs from the whole's. */
  field(step, name) {
    return name in step ? step[name] : this.whole[name];
  }

  /** Whether a column is of the prompt, and no special token. */
  usual(column) {
    return !this.own[column] && !this.special[column];
  }

  /** Whether a token of the answer was there when a selection was written. */
  before(column, selection) {
    return selection !== null && this.own[column] && this.ownRank(column) < selection[1];
  }

  ownRank(column) {
    return this.ownColumns.indexOf(column);
  }

  /** Whether the answer's own columns are its tokens, but for the last; not words of them. */
  get byToken() {
    return this.ownColumns.length === this.count - 1;
  }

  /** Whether the first token has far more than any other: it often has what belongs to no word. */
  isSink(scores) {
    return this.usual(0) && Math.abs(scores[0]) > 2 * this.largest(scores, 1);
  }

  /** Return the size of the largest score of the prompt, from a column on. */
  largest(scores, first = 0) {
    return scores.reduce(
      (most, score, column) =>
        column >= first && this.usual(column) ? Math.max(most, Math.abs(score)) : most,
      0,
    );
  }

  /** Return the score of the prompt that has the full colour: that of a sink would leave none. */
  top(scores) {
    const others = this.largest(scores, 1);
    return this.isSink(scores) && others > 0 ? others : this.largest(scores);
  }
}

// From this many cells on, a few may exceed the scale.
const MANY = 50;
const BELOW_TOP = 0.98;

/**
 * Return the size that has the full colour among the cells of a matrix, NaN left out: the largest, or
 * of many that which one in fifty exceeds, as a few would leave one colour for all others.
 */
export function topOf(scores) {
  const known = scores.filter((score) => !Number.isNaN(score));
  const sizes = Float64Array.from(known, Math.abs).sort();
  const largest = sizes.at(-1) ?? 0;
  if (sizes.length < MANY) return largest;
  return sizes[Math.ceil(BELOW_TOP * sizes.length) - 1] || largest;
}
