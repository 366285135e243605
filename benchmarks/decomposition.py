"""Contributions the long way: one vector for each input position, carried forward through a model.

This is DecompX (Modarressi et al., ACL 2023) without its shares of the biases. A value is written
as its parts, a tensor of shape (positions + 1, n, d): what each input position adds to it, and last
what biases add. It is written plainly, from the models' weights, and for one text. The benchmark of
contributions is timed against it, and the tests compare with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

# Modules are of the classes of transformers, which have no common type for what is read here.
Module = Any


class Parts:
    """A value as the sum of its parts."""

    def __init__(self, parts: torch.Tensor) -> None:
        self.parts = parts

    @property
    def total(self) -> torch.Tensor:
        """The value, of shape (n, d)."""
        return self.parts.sum(0)

    def __add__(self, other: Parts) -> Parts:
        return Parts(self.parts + other.parts)

    def at(self, position: int) -> Parts:
        """Return the value of one position, which stays a dimension."""
        return Parts(self.parts[:, [position]])

    def scaled(self, factor: torch.Tensor | float) -> Parts:
        """Return the value times a fixed factor."""
        return Parts(self.parts * factor)

    def with_bias(self, bias: torch.Tensor | None) -> Parts:
        """Return the value plus a bias."""
        parts = self.parts.clone()
        if bias is not None:
            parts[-1] += bias
        return Parts(parts)


# Operations ---------------------------------------------------------------------------------------


def embedded(embeddings: torch.Tensor, first: int = 0, positions: int | None = None) -> Parts:
    """Return the embeddings of n positions, numbered from `first` on, among `positions` in all."""
    count, size = embeddings.shape
    parts = torch.zeros((positions or count) + 1, count, size, dtype=embeddings.dtype)
    for index in range(count):
        parts[first + index, index] = embeddings[index]
    return Parts(parts)


def linear(value: Parts, layer: Module) -> Parts:
    """Apply a linear layer."""
    return Parts(value.parts @ layer.weight.T).with_bias(layer.bias)


def conv1d(value: Parts, layer: Module) -> Parts:
    """Apply a linear layer as GPT-2 stores it."""
    return Parts(value.parts @ layer.weight).with_bias(layer.bias)


def layer_norm(value: Parts, layer: Module) -> Parts:
    """Apply layer normalisation, with a fixed denominator."""
    centred = value.parts - value.parts.mean(-1, keepdim=True)
    size = (value.total.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()
    return Parts(centred / size * layer.weight).with_bias(layer.bias)


def rms_norm(value: Parts, layer: Module) -> Parts:
    """Apply RMS normalisation, with a fixed denominator."""
    size = (value.total.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon).sqrt()
    return value.scaled(layer.weight / size)


def activation(value: Parts, function: Callable[[torch.Tensor], torch.Tensor]) -> Parts:
    """Apply an activation, with a fixed slope."""
    total = value.total
    return value.scaled(torch.where(total == 0, 0.0, function(total) / total))


def gated(gate: Parts, value: Parts) -> Parts:
    """Multiply two values, and give half of the product to each factor."""
    return Parts((gate.parts * value.total + gate.total * value.parts) / 2)


def attention(weights: torch.Tensor, values: Parts) -> Parts:
    """Apply attention of shape (H, n, m) to values of m positions."""
    heads = len(weights)
    parts, positions, _ = values.parts.shape
    split = values.parts.reshape(parts, positions, -1, values.parts.shape[-1] // heads)
    groups = heads // split.shape[2]
    results = []
    for head in range(heads):
        results.append(weights[head] @ split[:, :, head // groups])
    return Parts(torch.cat(results, dim=-1))


def by_edge(
    weights: torch.Tensor, values: Parts, residual: Parts, project: Callable[[Parts], Parts]
) -> Parts:
    """Apply a layer's attention and its residual, with a part for every pair of positions.

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


def repeated(values: Parts, groups: int, size: int) -> Parts:
    """Return values of grouped heads, one for each head."""
    parts, positions, _ = values.parts.shape
    split = values.parts.reshape(parts, positions, -1, size)
    return Parts(split.repeat_interleave(groups, 2).flatten(2))


# Models -------------------------------------------------------------------------------------------

Layers = Sequence[torch.Tensor]
"""A tensor for each layer, for a batch of one: hidden states, or the attention weights."""


def bert(model: Module, hidden: Layers, weights: Layers) -> torch.Tensor:
    """Return the parts of the logits of a BERT classifier, of shape (positions + 1, classes)."""
    value = embedded(hidden[0][0])
    for layer, attended in zip(model.bert.encoder.layer, weights, strict=True):
        block = layer.attention
        context = attention(attended[0], linear(value, block.self.value))
        value = layer_norm(linear(context, block.output.dense) + value, block.output.LayerNorm)
        inner = activation(
            linear(value, layer.intermediate.dense), layer.intermediate.intermediate_act_fn
        )
        value = layer_norm(linear(inner, layer.output.dense) + value, layer.output.LayerNorm)
    pooled = activation(linear(value.at(0), model.bert.pooler.dense), torch.tanh)
    return linear(pooled, model.classifier).parts[:, 0]


def gpt2(
    model: Module, hidden: Layers, weights: Layers, start: int = 0, edges: bool = False
) -> torch.Tensor:
    """Return the parts of the last logits of GPT-2: of what enters layer `start`, or its edges."""
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
    return linear(layer_norm(value.at(-1), model.transformer.ln_f), model.lm_head).parts[:, 0]


def llama(model: Module, hidden: Layers, weights: Layers) -> torch.Tensor:
    """Return the parts of the last logits of Llama, of shape (positions + 1, vocabulary)."""
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
    return linear(rms_norm(value.at(-1), model.model.norm), model.lm_head).parts[:, 0]


def vit(model: Module, hidden: Layers, weights: Layers) -> torch.Tensor:
    """Return the parts of the logits of a ViT classifier, of shape (positions + 1, classes)."""
    value = embedded(hidden[0][0])
    for layer, attended in zip(model.vit.layers, weights, strict=True):
        block = layer.attention
        values = linear(layer_norm(value, layer.layernorm_before), block.v_proj)
        value = linear(attention(attended[0], values), block.o_proj) + value
        inner = linear(layer_norm(value, layer.layernorm_after), layer.mlp.fc1)
        value = linear(activation(inner, layer.mlp.activation_fn), layer.mlp.fc2) + value
    read = layer_norm(value.at(0), model.vit.layernorm)
    return linear(read, model.classifier).parts[:, 0]


def t5(
    model: Module,
    source: torch.Tensor,
    target: torch.Tensor,
    weights: tuple[Layers, Layers, Layers],
) -> torch.Tensor:
    """Return the parts of the last target position's logits: of the source, the target, biases."""
    encoder_weights, decoder_weights, cross_weights = weights
    positions = source.shape[1] + target.shape[1]
    value = embedded(source[0], 0, positions)
    for block, attended in zip(model.encoder.block, encoder_weights, strict=True):
        value = _t5_attention(value, block.layer[0], attended)
        value = _t5_feed_forward(value, block.layer[1])
    encoded = rms_norm(value, model.encoder.final_layer_norm)
    value = embedded(target[0], source.shape[1], positions)
    for block, own, cross in zip(model.decoder.block, decoder_weights, cross_weights, strict=True):
        value = _t5_attention(value, block.layer[0], own)
        context = attention(cross[0], linear(encoded, block.layer[1].EncDecAttention.v))
        value = linear(context, block.layer[1].EncDecAttention.o) + value
        value = _t5_feed_forward(value, block.layer[2])
    read = rms_norm(value.at(-1), model.decoder.final_layer_norm)
    if model.config.tie_word_embeddings:
        read = read.scaled(model.model_dim**-0.5)
    return linear(read, model.lm_head).parts[:, 0]


def _t5_attention(value: Parts, layer: Module, attended: torch.Tensor) -> Parts:
    block = layer.SelfAttention
    context = attention(attended[0], linear(rms_norm(value, layer.layer_norm), block.v))
    return linear(context, block.o) + value


def _t5_feed_forward(value: Parts, layer: Module) -> Parts:
    inner = linear(rms_norm(value, layer.layer_norm), layer.DenseReluDense.wi)
    return linear(activation(inner, torch.relu), layer.DenseReluDense.wo) + value
