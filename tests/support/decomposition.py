"""Contributions the long way: one vector for each input position, carried forward through a model.

A value is written as its parts, a tensor of shape (positions + 1, n, d): what each input position
adds to it, and last what biases add. Written plainly, from the models' weights, and for one text.
"""

from functools import partial

import torch


class Parts:
    """A value as the sum of its parts."""

    def __init__(self, parts):
        self.parts = parts

    @property
    def total(self):
        return self.parts.sum(0)

    def __add__(self, other):
        return Parts(self.parts + other.parts)

    def scaled(self, factor):
        return Parts(self.parts * factor)

    def with_bias(self, bias):
        parts = self.parts.clone()
        if bias is not None:
            parts[-1] += bias
        return Parts(parts)


def embedded(embeddings, first=0, positions=None):
    """The embeddings of n positions, numbered from `first` on, among `positions` in all."""
    count, size = embeddings.shape
    parts = torch.zeros((positions or count) + 1, count, size, dtype=embeddings.dtype)
    for index in range(count):
        parts[first + index, index] = embeddings[index]
    return Parts(parts)


def linear(value, layer):
    return Parts(value.parts @ layer.weight.T).with_bias(layer.bias)


def conv1d(value, layer):
    """A linear layer as GPT-2 stores it."""
    return Parts(value.parts @ layer.weight).with_bias(layer.bias)


def layer_norm(value, layer):
    centred = value.parts - value.parts.mean(-1, keepdim=True)
    size = (value.total.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()
    return Parts(centred / size * layer.weight).with_bias(layer.bias)


def rms_norm(value, layer):
    size = (value.total.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon).sqrt()
    return value.scaled(layer.weight / size)


def activation(value, function):
    total = value.total
    return value.scaled(function(total) / total)


def gated(gate, value):
    """Half of a product to each factor."""
    return Parts((gate.parts * value.total + gate.total * value.parts) / 2)


def attention(weights, values):
    """Attention of shape (H, n, m) over values of m positions."""
    heads = len(weights)
    parts, positions, _ = values.parts.shape
    split = values.parts.reshape(parts, positions, -1, values.parts.shape[-1] // heads)
    groups = heads // split.shape[2]
    results = []
    for head in range(heads):
        results.append(weights[head] @ split[:, :, head // groups])
    return Parts(torch.cat(results, dim=-1))


def by_edge(weights, values, residual, project):
    """A layer's attention and its residual, with a part for every pair of positions.

    The parts of the result: each pair (i, j), what position i got from j; then what each position
    keeps; then biases.
    """
    size = weights.shape[-1]
    pairs = torch.zeros(size * size + 1, *values.parts.shape[1:], dtype=values.parts.dtype)
    for i in range(size):
        for j in range(size):
            alone = torch.zeros_like(weights)
            alone[:, i, j] = weights[:, i, j]
            pairs[i * size + j] = attention(alone, values).parts[j]
    pairs[-1] = attention(weights, values).parts[-1]
    moved = project(Parts(pairs)).parts
    biases = moved[-1] + residual.parts[-1]
    return Parts(torch.cat([moved[:-1], residual.parts[:-1], biases[None]]))


def repeated(values, groups, size):
    """Values of grouped heads, one for each head."""
    parts, positions, _ = values.parts.shape
    split = values.parts.reshape(parts, positions, -1, size)
    return Parts(split.repeat_interleave(groups, 2).flatten(2))


def bert(model, hidden, weights):
    value = embedded(hidden[0][0])
    for layer, attended in zip(model.bert.encoder.layer, weights, strict=True):
        block = layer.attention
        context = attention(attended[0], linear(value, block.self.value))
        value = layer_norm(linear(context, block.output.dense) + value, block.output.LayerNorm)
        inner = activation(
            linear(value, layer.intermediate.dense), layer.intermediate.intermediate_act_fn
        )
        value = layer_norm(linear(inner, layer.output.dense) + value, layer.output.LayerNorm)
    pooled = activation(linear(Parts(value.parts[:, :1]), model.bert.pooler.dense), torch.tanh)
    return linear(pooled, model.classifier).parts[:, 0]


def gpt2(model, hidden, weights, start=0, edges=False):
    """The parts of the last position's logits: of what enters layer `start`, or of its edges."""
    value = embedded(hidden[start][0])
    for number, layer in enumerate(model.transformer.h[start:], start):
        normed = layer_norm(value, layer.ln_1)
        values = Parts(conv1d(normed, layer.attn.c_attn).parts.chunk(3, -1)[2])
        if edges and number == start:
            project = partial(conv1d, layer=layer.attn.c_proj)
            value = by_edge(weights[number][0], values, value, project)
        else:
            value = conv1d(attention(weights[number][0], values), layer.attn.c_proj) + value
        inner = conv1d(layer_norm(value, layer.ln_2), layer.mlp.c_fc)
        value = conv1d(activation(inner, layer.mlp.act), layer.mlp.c_proj) + value
    return linear(layer_norm(value, model.transformer.ln_f), model.lm_head).parts[:, -1]


def llama(model, hidden, weights):
    value = embedded(hidden[0][0])
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    for layer, attended in zip(model.model.layers, weights, strict=True):
        block = layer.self_attn
        values = linear(rms_norm(value, layer.input_layernorm), block.v_proj)
        context = attention(attended[0], repeated(values, groups, block.head_dim))
        value = linear(context, block.o_proj) + value
        read = rms_norm(value, layer.post_attention_layernorm)
        gate = activation(linear(read, layer.mlp.gate_proj), layer.mlp.act_fn)
        value = linear(gated(gate, linear(read, layer.mlp.up_proj)), layer.mlp.down_proj) + value
    return linear(rms_norm(value, model.model.norm), model.lm_head).parts[:, -1]


def vit(model, hidden, weights):
    value = embedded(hidden[0][0])
    for layer, attended in zip(model.vit.layers, weights, strict=True):
        block = layer.attention
        values = linear(layer_norm(value, layer.layernorm_before), block.v_proj)
        value = linear(attention(attended[0], values), block.o_proj) + value
        inner = linear(layer_norm(value, layer.layernorm_after), layer.mlp.fc1)
        value = linear(activation(inner, layer.mlp.activation_fn), layer.mlp.fc2) + value
    read = layer_norm(Parts(value.parts[:, :1]), model.vit.layernorm)
    return linear(read, model.classifier).parts[:, 0]


def t5(model, source, target, weights):
    """The parts of the last target position's logits: of the source, the target and biases."""
    encoder_weights, decoder_weights, cross_weights = weights
    positions = source.shape[1] + target.shape[1]
    value = embedded(source[0], 0, positions)
    for block, attended in zip(model.encoder.block, encoder_weights, strict=True):
        value = _t5_attention(value, value, block.layer[0], block.layer[0].SelfAttention, attended)
        value = _t5_feed_forward(value, block.layer[1])
    encoded = rms_norm(value, model.encoder.final_layer_norm)
    value = embedded(target[0], source.shape[1], positions)
    for block, own, cross in zip(model.decoder.block, decoder_weights, cross_weights, strict=True):
        value = _t5_attention(value, value, block.layer[0], block.layer[0].SelfAttention, own)
        context = attention(cross[0], linear(encoded, block.layer[1].EncDecAttention.v))
        value = linear(context, block.layer[1].EncDecAttention.o) + value
        value = _t5_feed_forward(value, block.layer[2])
    read = rms_norm(value, model.decoder.final_layer_norm)
    if model.config.tie_word_embeddings:
        read = read.scaled(model.model_dim**-0.5)
    return linear(read, model.lm_head).parts[:, -1]


def _t5_attention(value, read, layer, block, attended):
    context = attention(attended[0], linear(rms_norm(read, layer.layer_norm), block.v))
    return linear(context, block.o) + value


def _t5_feed_forward(value, layer):
    inner = linear(rms_norm(value, layer.layer_norm), layer.DenseReluDense.wi)
    return linear(activation(inner, torch.relu), layer.DenseReluDense.wo) + value
