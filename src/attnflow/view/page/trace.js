// From the text that stands for weights in a file to the weights themselves.

/** Return the bytes that base64 stands for. */
export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Return the whole numbers that a text stands for: for each byte of a number, from the highest
 * down, that byte of every number, compressed, in base64.
 */
export async function unpack(text, count, bits) {
  const bytes = await inflate(fromBase64(text));
  const width = Math.ceil(bits / 8);
  if (bytes.length !== width * count) throw new Error("the weights of this page are incomplete");
  const codes = new Uint32Array(count);
  for (let plane = 0; plane < width; plane += 1) {
    const offset = plane * count;
    for (let i = 0; i < count; i += 1) codes[i] = codes[i] * 256 + bytes[offset + i];
  }
  return codes;
}

/** Return the rows of numbers, a Float64Array each, that Python packed; or lists as they are. */
export async function unpackRows(rows) {
  if (!rows?.packed) return (rows ?? []).map((row) => Float64Array.from(row));
  const [count, width] = rows.shape;
  const octets = await inflate(fromBase64(rows.packed));
  const bytes = new Uint8Array(octets.length);
  const numbers = octets.length / 8;
  for (let plane = 0; plane < 8; plane += 1) {
    for (let i = 0; i < numbers; i += 1) bytes[8 * i + plane] = octets[plane * numbers + i];
  }
  const values = new Float64Array(bytes.buffer);
  return Array.from({ length: count }, (_, i) => values.subarray(i * width, (i + 1) * width));
}

// Rows of whole numbers, which are in proportion, as rows that sum to 1.
function normalised(codes, start, tokens) {
  const weights = new Float32Array(tokens * tokens);
  for (let row = 0; row < tokens; row += 1) {
    let sum = 0;
    const from = start + row * tokens;
    for (let i = 0; i < tokens; i += 1) sum += codes[from + i];
    for (let i = 0; i < tokens; i += 1) weights[row * tokens + i] = codes[from + i] / sum;
  }
  return weights;
}

/**
 * Read the trace of an explanation.
 *
 * Returns {tokens, attention, heads, values, carried, residual, mask, encoder, sunk}: attention has a
 * Float32Array of n x n for each layer, heads one for each head of each layer or is null, residual has for each layer the
 * share of each position, and mask for each layer which offsets from -(n - 1) to n - 1 it attends
 * over, or is null. carried has what each edge carried to the answer, like attention, and values what
 * each head of each layer added to it; either may be null. Of an encoder-decoder, encoder is [its layers, the tokens of the source].
 */
export async function readTrace(trace) {
  const tokens = trace.tokens.length;
  const { layers } = trace;
  const size = tokens * tokens;
  const codes = await unpack(trace.weights, layers * size, trace.bits);
  const attention = [];
  for (let layer = 0; layer < layers; layer += 1) {
    attention.push(normalised(codes, layer * size, tokens));
  }
  let heads = null;
  if (trace.heads) {
    const { count, bits } = trace.heads;
    const every = await unpack(trace.heads.weights, layers * count * size, bits ?? 16);
    heads = attention.map((_, layer) =>
      Array.from({ length: count }, (__, head) =>
        normalised(every, (layer * count + head) * size, tokens),
      ),
    );
  }
  let mask = null;
  if (trace.mask) {
    const offsets = 2 * tokens - 1;
    const flags = await unpack(trace.mask, layers * offsets, 8);
    mask = attention.map((_, layer) =>
      Array.from(flags.subarray(layer * offsets, (layer + 1) * offsets), (flag) => flag > 0),
    );
  }
  let carried = null;
  if (trace.carried) {
    const { scale, bits, values } = trace.carried;
    const signed = await unpack(values, layers * size, bits);
    const middle = 2 ** (bits - 1) - 1;
    carried = attention.map((_, layer) =>
      Float32Array.from(
        signed.subarray(layer * size, (layer + 1) * size),
        (code) => scale * (code / middle - 1),
      ),
    );
  }
  const residual = attention.map((_, layer) =>
    Float64Array.from({ length: tokens }, (__, k) =>
      typeof trace.residual === "number" ? trace.residual : trace.residual[layer][k],
    ),
  );
  // Which layers attend to a learned sink, the first of the tokens, if there is one.
  const sunk = trace.sink ? attention.map((weights) => attends(weights, tokens)) : null;
  return {
    tokens,
    attention,
    heads,
    values: trace.heads?.values ?? null,
    carried,
    residual,
    mask,
    encoder: trace.encoder ?? null,
    sunk,
  };
}

/** Return whether a position passes a layer of an encoder-decoder's graph, and does not attend. */
export function passes(encoder, layer, position) {
  return encoder !== null && layer <= encoder[0] === position >= encoder[1];
}

// Where a position attends in a layer: from one token up to another.
function reach(encoder, layer, tokens) {
  if (encoder === null) return [0, tokens];
  const [below, source] = encoder;
  const own = layer > below && (layer - below) % 2 === 1;
  return own ? [source, tokens] : [0, source];
}

// Whether any token attends to the first one.
function attends(weights, tokens) {
  for (let row = 1; row < tokens; row += 1) if (weights[row * tokens] > 0) return true;
  return false;
}

/**
 * Return the uniform attention over the same mask. A learned sink, the first position, counts as
 * one more position that the layers of sunk attend to.
 */
export function uniformAttention(mask, tokens, encoder = null, sunk = null) {
  return mask.map((allowed, index) => {
    const weights = new Float32Array(tokens * tokens);
    const [first, end] = reach(encoder, index + 1, tokens);
    for (let row = 0; row < tokens; row += 1) {
      if (passes(encoder, index + 1, row)) {
        weights[row * tokens + row] = 1;
        continue;
      }
      const seen = (i) => {
        if (sunk === null || (i > 0 && row > 0)) return allowed[i - row + tokens - 1];
        return row === 0 ? i === 0 : sunk[index];
      };
      let count = 0;
      for (let i = first; i < end; i += 1) if (seen(i)) count += 1;
      for (let i = first; i < end; i += 1) if (seen(i)) weights[row * tokens + i] = 1 / count;
    }
    return weights;
  });
}
