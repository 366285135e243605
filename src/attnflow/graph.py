"""Attention weights in, layered attention graph out.

Every method of this package works on one graph. Node (l, k) is position k after layer l, node
(0, t) is input token t, and the edge from (l, k) to (l - 1, m) weighs ``A[l][k, m]``, where
``A[l] = (1 - r) W[l] + r I``. ``W[l]`` is the attention of layer l with its heads fused into one,
and r is the residual share (Abnar and Zuidema 2020, section 3): one number, or one for each layer
and position where it was measured.

An encoder-decoder makes such a graph too: its tokens are the source's and then the target's, and
each of its steps leaves one of the two sides as it is.

Layers count from 1, positions, tokens and heads from 0.
"""

import operator
import os
from collections.abc import Iterable
from functools import cached_property
from numbers import Real
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow._maxflow import UNLIMITED
from attnflow.errors import AttentionError, GraphSizeError, OptionError

__all__ = [
    "HEAD_FUSIONS",
    "ROW_TOLERANCE",
    "UNIT",
    "AttentionGraph",
    "add_residual",
    "as_graph",
    "encoder_decoder_graph",
    "head_capacities",
    "read_layers",
    "resolve_index",
    "resolve_layer",
    "resolve_layers",
    "resolve_position",
    "resolve_positions",
    "resolve_start_layer",
    "to_units",
]

HEAD_FUSIONS: Final = ("mean", "max", "min", "sum")

# How far a row of attention may be from summing to 1. Softmax in float32 or float16 stays well
# within this. bfloat16 does not: it keeps 8 significant bits, so that each weight, and with it the
# sum of a row, may be off by one part in 2**8 from rounding alone.
ROW_TOLERANCE: Final = 1e-3
BFLOAT16_ROW_TOLERANCE: Final = ROW_TOLERANCE + 2.0**-8

# Flow is computed on whole multiples of this. A float64 holds every multiple up to 8 exactly.
UNIT: Final = 2.0**-50

# The fused attention, the capacities, the integer capacities and their transpose, 8 bytes each.
BYTES_PER_EDGE: Final = 32

NO_WEIGHTS: Final = (
    "a fused attention kernel such as sdpa or flash attention returns no weights; "
    'load the model with attn_implementation="eager"'
)
LAYER_SHAPES: Final = "(n, n), (H, n, n) or (1, H, n, n)"
ARRAY_SHAPES: Final = "(L, n, n), (L, H, n, n) or (L, 1, H, n, n)"
CROSS_LAYER_SHAPES: Final = "(m, n), (H, m, n) or (1, H, m, n)"
CROSS_ARRAY_SHAPES: Final = "(L, m, n), (L, H, m, n) or (L, 1, H, m, n)"


class AttentionGraph:
    """The layered graph that attention makes of a text.

    The functions of this package build one from the attention they are given. Build it yourself to
    check and fuse the attention once and use it many times, or to name padded positions.

    Attention in float32 or less is enough for a right answer: heads are fused, and rows
    re-normalised to sum to 1, in float64. Both happen layer by layer, so that the attention of all
    heads is never held in float64.

    Args:
        attentions: Attention weights, as NumPy arrays, torch tensors (any float dtype, any
            device) or nested lists: one array of shape (L, n, n), (L, H, n, n) or
            (L, 1, H, n, n), or a list or tuple of L arrays of shape (n, n), (H, n, n) or
            (1, H, n, n). The last is what Hugging Face models return. Rows attend, columns are
            attended to.
        heads: How heads become one: "mean", "max", "min" or "sum" over the heads, re-normalised;
            or the index of one head.
        residual: The share r of the residual connection, from 0 to 1: a number, or an array of
            shape (L, n) with the share of each position in each layer.
        padding: Positions to leave out: their indices, or a boolean array of shape (n,), True
            where padded. Nothing flows through a padded position. Results keep their shape and
            are 0 there.

    Attributes:
        layers: The number of layers, L.
        tokens: The number of tokens, n, padded ones included.
        heads: The head fusion, or the index of the head.
        residual: The residual share r: a number, or a float64 array of shape (L, n), read-only.
        padding: Boolean array of shape (n,), True where padded, read-only.
        passing: Boolean array of shape (L, n), read-only. True where a position passes a layer
            unchanged, as one side of an encoder-decoder does where the other attends: the node is
            the one below, seen again. False throughout for any other graph.
        attention: The fused attention W, float64 of shape (L, n, n), read-only. Rows sum to 1;
            padded rows and columns are 0.

    Raises:
        AttentionError: If the attention is missing or of a wrong shape or type, or if it holds NaN,
            infinity, a negative weight or a row that does not sum to 1 within 1e-3 (5e-3 for
            bfloat16).
        OptionError: If `heads`, `residual` or `padding` is not valid.
        GraphSizeError: If the graph cannot fit into memory.

    Example:
        >>> import numpy as np
        >>> attention = np.array([[[0.5, 0.5], [0.25, 0.75]]])  # one layer, two tokens
        >>> graph = AttentionGraph(attention)
        >>> graph
        AttentionGraph(layers=1, tokens=2, heads='mean', residual=0.5)
        >>> graph.capacities
        array([[[0.75 , 0.25 ],
                [0.125, 0.875]]])
    """

    def __init__(
        self,
        attentions: Any,
        *,
        heads: str | int = "mean",
        residual: float | NDArray[np.floating[Any]] = 0.5,
        padding: Any = None,
    ) -> None:
        if isinstance(attentions, AttentionGraph):
            raise AttentionError(
                "attentions is an AttentionGraph already; pass the attention weights themselves"
            )
        given = attentions if isinstance(attentions, _Pair) else read_layers(attentions)
        self.layers: Final[int] = given.layers
        self.tokens: Final[int] = given.tokens
        self.heads: Final[str | int] = given.resolve_heads(heads)
        self.residual: Final[float | NDArray[np.float64]] = _resolve_residual(
            residual, self.layers, self.tokens
        )
        self.padding: Final[NDArray[np.bool_]] = _resolve_padding(padding, self.tokens)
        self.passing: Final[NDArray[np.bool_]] = given.passing()
        self._head_count: Final[int | None] = given.head_count
        _check_size(self.layers, self.tokens)
        self.attention: Final[NDArray[np.float64]] = given.fuse(self.heads, self.padding)

    @cached_property
    def capacities(self) -> NDArray[np.float64]:
        """The edge weights A, float64 of shape (L, n, n), read-only.

        ``capacities[l - 1][k, m]`` is the weight of the edge from (l, k) to (l - 1, m). Rows sum to
        1; padded rows and columns are 0. A position that passes a layer has all its weight on
        itself. Computed when first asked for.
        """
        capacities = add_residual(self.attention, self.residual, ~self.padding)
        # Not r + (1 - r), which may be off by a bit.
        np.einsum("lii->li", capacities)[self.passing] = 1.0
        capacities.flags.writeable = False
        return capacities

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """The edge weights in whole units of 2**-50, int64 of shape (L, n, n), read-only.

        These are the capacities of attention flow, so that its arithmetic is exact. An edge that
        weighs less than half a unit, about 4e-16, is no edge. Where a position passes a layer, its
        edge is unlimited: 2**61, more than any graph carries. Computed when first asked for.
        """
        units = to_units(self.capacities)
        np.einsum("lii->li", units)[self.passing] = UNLIMITED
        units.flags.writeable = False
        return units

    @cached_property
    def causal(self) -> bool:
        """Whether no position attends to a later one, in any layer.

        True if there are two tokens or more and every weight above the diagonal is exactly 0. Never
        true of an encoder-decoder: the order of its tokens, the source's first, is not one of time.
        """
        if self.passing.any():
            return False
        return self.tokens > 1 and not any(
            # The first row settles it for nearly every graph that is not causal.
            layer[0, 1:].any() or np.triu(layer, 1).any()
            for layer in self.attention
        )

    @cached_property
    def encoder(self) -> tuple[int, int] | None:
        """For an encoder-decoder, the layers of its encoder and the tokens of its source."""
        if not self.passing.any():
            return None
        # Targets pass the encoder, and sources all layers above it.
        return int(self.passing[:, -1].sum()), int((~self.passing[0]).sum())

    def residual_of(self, layer: int) -> float | NDArray[np.float64]:
        """Return the residual share of a layer, from 1: a number, or an array of shape (n,)."""
        return self.residual if isinstance(self.residual, float) else self.residual[layer - 1]

    def __repr__(self) -> str:
        return (
            f"AttentionGraph(layers={self.layers}, tokens={self.tokens}, "
            f"heads={self.heads!r}, residual={_describe_residual(self.residual)})"
        )


def as_graph(attentions: Any, heads: str | int = "mean", residual: float = 0.5) -> AttentionGraph:
    """Return the graph of some attention, or the graph itself if it is one already.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: The head fusion.
        residual: The residual share.

    Returns:
        The graph.

    Raises:
        OptionError: If `attentions` is a graph, and `heads` or `residual` is neither the default
            nor what the graph was built with.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> graph = as_graph([[[1.0, 0.0], [0.5, 0.5]]])
        >>> as_graph(graph) is graph
        True
    """
    if not isinstance(attentions, AttentionGraph):
        return AttentionGraph(attentions, heads=heads, residual=residual)
    graph = attentions
    if _resolve_heads(heads, graph._head_count) not in ("mean", graph.heads):
        raise OptionError(
            f"heads={heads!r} does not fit the AttentionGraph given, which was built with "
            f"heads={graph.heads!r}; build another graph"
        )
    share = _resolve_residual(residual, graph.layers, graph.tokens)
    default = isinstance(share, float) and share == 0.5
    if not default and not np.array_equal(share, graph.residual):
        raise OptionError(
            f"residual={_describe_residual(share)} does not fit the AttentionGraph given, which "
            f"was built with residual={_describe_residual(graph.residual)}; build another graph"
        )
    return graph


def encoder_decoder_graph(
    encoder: Any,
    decoder: Any,
    cross: Any,
    *,
    heads: str | int = "mean",
    residual: float | NDArray[np.floating[Any]] = 0.5,
    allow_empty: bool = False,
) -> AttentionGraph:
    """Return the graph of an encoder-decoder, of n source tokens and m target tokens.

    Its tokens are the source's, 0 to n - 1, and then the target's, n to n + m - 1. Its layers are
    the encoder's, of which there are E, and then two for each layer of the decoder:

    - layers 1 to E: source positions attend to each other;
    - layer E + 2 i - 1: the self-attention of decoder layer i, among target positions;
    - layer E + 2 i: its cross-attention. A target position gives r to itself, and shares out the
      other 1 - r among the encoder's outputs.

    So the output of decoder layer i, from 1, is that of graph layer E + 2 i, and target position k
    is position n + k. The side that does not attend in a layer passes it unchanged. Its nodes are
    those of the layer below, seen again: the edge between them weighs 1 in rollout and is
    unlimited in flow. A flow from a position that attended in that layer or below is at most 1.
    Only from a target token of layers 1 to E to itself there is no limit; that flow is given as
    2048, the 2**61 units of an unlimited edge.

    Args:
        encoder: The encoder's self-attention, as `AttentionGraph` takes it, for n tokens.
        decoder: The decoder's self-attention, as `AttentionGraph` takes it, for m tokens.
        cross: The decoder's attention to the encoder's outputs: as `decoder`, but of m rows and
            n columns.
        heads: How heads become one: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1. Self-attention and
            cross-attention have one each. A number, or an array of shape (E + 2 D, n + m) with the
            share of each position in each layer of the graph; D is the number of decoder layers.
            Where a position passes a layer, its share has no effect.
        allow_empty: Whether a row of `cross` may be all zeros: the position takes nothing from the
            source and keeps to itself. Otherwise such a row, which padding makes too, is an error.

    Returns:
        The graph. Leave padded positions out of what you pass.

    Raises:
        AttentionError: If one of the three is not what `AttentionGraph` takes, or if they do not
            fit each other.
        OptionError: If `heads` or `residual` is not valid.
        GraphSizeError: If the graph cannot fit into memory.

    Example:
        >>> import numpy as np
        >>> encoder = np.array([[[0.5, 0.5], [0.0, 1.0]]])  # one layer, two source tokens
        >>> decoder = np.array([[[1.0]]])  # one layer, one target token
        >>> cross = np.array([[[0.25, 0.75]]])
        >>> graph = encoder_decoder_graph(encoder, decoder, cross)
        >>> graph
        AttentionGraph(layers=3, tokens=3, heads='mean', residual=0.5)
        >>> graph.capacities[2]  # cross-attention; the source passes
        array([[1.   , 0.   , 0.   ],
               [0.   , 1.   , 0.   ],
               [0.125, 0.375, 0.5  ]])
    """
    pair = _Pair(
        read_layers(encoder, "encoder"),
        read_layers(decoder, "decoder"),
        read_layers(cross, "cross", square=False),
        allow_empty,
    )
    pair.check()
    return AttentionGraph(pair, heads=heads, residual=residual)


def head_capacities(
    attentions: Any, layer: int, head: int, residual: float = 0.5
) -> tuple[NDArray[np.float64], AttentionGraph]:
    """Return what the methods for a single head need (Abnar and Zuidema 2020, appendix A.1).

    A single head of a layer is followed through its own weights in that layer and through the
    fused heads in every layer below.

    Args:
        attentions: Attention weights with a head axis, as `AttentionGraph` takes them.
        layer: The layer, from 1; -1 is the last.
        head: The head, from 0; -1 is the last.
        residual: The residual share.

    Returns:
        The edge weights of that head, ``(1 - r) W[layer, head] + r I``, float64 of shape (n, n);
        and the graph of all layers with the mean over heads.

    Raises:
        AttentionError: If `attentions` has no head axis or is a graph, whose heads are fused.
        OptionError: If there is no such layer or head.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> attention = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]])
        >>> weights, graph = head_capacities(attention, layer=1, head=1)
        >>> weights
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """
    if isinstance(attentions, AttentionGraph):
        raise AttentionError(
            "attentions is an AttentionGraph, and its heads are gone after fusion; "
            "pass the attention weights themselves"
        )
    stack = read_layers(attentions)
    if stack.head_count is None:
        raise AttentionError(
            f"attentions has no head axis, so head={head!r} cannot be picked; "
            "expected (L, H, n, n), or a list or tuple of L arrays of (H, n, n) or (1, H, n, n)"
        )
    row = resolve_index(layer, len(stack.items), "layer", "layers", first=1) - 1
    column = resolve_index(head, stack.head_count, "head", "heads")
    graph = AttentionGraph(attentions, residual=residual)
    weights = stack.read(row)[column].astype(np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    return add_residual(weights, graph.residual_of(row + 1), ~graph.padding), graph


def to_units(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return weights as whole numbers of 2**-50.

    Example:
        >>> import numpy as np
        >>> to_units(np.array([0.5, 1.0, 1e-300])) == [2**49, 2**50, 0]
        array([ True,  True,  True])
    """
    return np.rint(weights * (1 / UNIT)).astype(np.int64)


def resolve_index(value: Any, count: int, name: str, what: str, *, first: int = 0) -> int:
    """Return an index that counts from `first`, with negative ones counted from the end.

    Args:
        value: The index given.
        count: How many there are.
        name: The argument's name, for the error.
        what: What is counted, in the plural, for the error.
        first: The index of the first one.

    Returns:
        The index, from `first` to ``first + count - 1``.

    Raises:
        OptionError: If `value` is not an integer or out of range.

    Example:
        >>> resolve_index(-1, 6, "layer", "layers", first=1)
        6
    """
    index = _integer(value, name)
    last = first + count - 1
    resolved = index + last + 1 if index < 0 else index
    if not first <= resolved <= last:
        raise OptionError(
            f"{name} is {index}, but there are {count} {what}: "
            f"expected {first} to {last}, or {-count} to -1 from the end"
        )
    return resolved


def resolve_layer(layer: Any, graph: AttentionGraph, name: str = "layer") -> int:
    """Return a layer's number, from 1 to L.

    Args:
        layer: The layer, from 1; -1 is the last.
        graph: The graph it belongs to.
        name: The argument's name, for the error.

    Returns:
        The layer's number.

    Raises:
        OptionError: If it is not an integer or there is no such layer.
    """
    return resolve_index(layer, graph.layers, name, "layers", first=1)


def resolve_layers(layers: Any, graph: AttentionGraph) -> NDArray[np.int64]:
    """Return the numbers of some layers, from 1 to L.

    Args:
        layers: The layers, from 1; -1 is the last. None means all.
        graph: The graph they belong to.

    Returns:
        The layers' numbers, in the order given.

    Raises:
        OptionError: If it is not a list of integers, empty, or there is no such layer.
    """
    if layers is None:
        return np.arange(1, graph.layers + 1, dtype=np.int64)
    items = _items(layers, "layers")
    return np.array(
        [resolve_layer(item, graph, f"layers[{i}]") for i, item in enumerate(items)],
        dtype=np.int64,
    )


def resolve_start_layer(start_layer: Any, graph: AttentionGraph) -> int:
    """Return the number of the layer that rollout ends in, from 0, the input, to L - 1.

    Args:
        start_layer: The layer; -1 is layer L, -2 the one below.
        graph: The graph it belongs to.

    Returns:
        The layer's number.

    Raises:
        OptionError: If it is not an integer, or there is no layer above it.
    """
    index = _integer(start_layer, "start_layer")
    resolved = index + graph.layers + 1 if index < 0 else index
    if not 0 <= resolved < graph.layers:
        raise OptionError(
            f"start_layer is {index}, but there are {graph.layers} layers and one must be above: "
            f"expected 0, the input, to {graph.layers - 1}"
        )
    return resolved


def resolve_position(position: Any, graph: AttentionGraph, name: str = "position") -> int:
    """Return the index of a position or token, from 0 to n - 1.

    Args:
        position: The index, from 0; negative ones count from the end.
        graph: The graph it belongs to.
        name: The argument's name, for the error.

    Returns:
        The index.

    Raises:
        OptionError: If it is not an integer, out of range, or names a padded position.
    """
    index = resolve_index(position, graph.tokens, name, "tokens")
    if graph.padding[index]:
        raise OptionError(f"{name} is {index}, which is a padded position of this AttentionGraph")
    return index


def resolve_positions(
    positions: Any, graph: AttentionGraph, name: str = "positions"
) -> NDArray[np.int64]:
    """Return the indices of some positions or tokens, from 0 to n - 1.

    Args:
        positions: The indices, from 0; negative ones count from the end. None means all, padded
            ones included.
        graph: The graph they belong to.
        name: The argument's name, for the error.

    Returns:
        The indices, in the order given.

    Raises:
        OptionError: If it is not a list of integers, empty, out of range, or names a padded
            position.
    """
    if positions is None:
        return np.arange(graph.tokens, dtype=np.int64)
    items = _items(positions, name)
    return np.array(
        [resolve_position(item, graph, f"{name}[{i}]") for i, item in enumerate(items)],
        dtype=np.int64,
    )


# ---- Reading arrays: shapes and types, without touching an element -------------------------------


class _Stack(NamedTuple):
    """Attention as given: one item a layer, each of the same heads, rows and tokens."""

    name: str
    items: list[Any]
    head_count: int | None
    rows: int
    tokens: int

    @property
    def layers(self) -> int:
        return len(self.items)

    def resolve_heads(self, heads: Any) -> str | int:
        return _resolve_heads(heads, self.head_count, self.name)

    def passing(self) -> NDArray[np.bool_]:
        passing = np.zeros((self.layers, self.tokens), dtype=np.bool_)
        passing.flags.writeable = False
        return passing

    def read(self, layer: int) -> NDArray[np.floating[Any]]:
        """Return a layer's weights, float32 or float64 of shape (H, rows, tokens)."""
        weights = _read_weights(self.items[layer], f"layer {layer + 1} of {self.name}")
        return weights.reshape(-1, self.rows, self.tokens)

    def fuse(self, heads: str | int, padding: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Check every layer and fuse its heads; one layer at a time, to hold no more than needed.

        Returns:
            Array of shape (L, n, n), read-only.
        """
        fused = np.zeros((self.layers, self.tokens, self.tokens))
        kept = np.flatnonzero(~padding)
        for layer in range(self.layers):
            if len(kept) == self.tokens:
                fused[layer] = self.fuse_layer(layer, heads)
            else:
                weights, tolerance = self.read(layer)[:, kept], self.tolerance(layer)
                places = _Places(layer, self.head_count is not None, kept)
                _check_weights(weights, tolerance, places)
                _check_padding(weights[:, :, padding], tolerance, places)
                fused[layer][np.ix_(kept, kept)] = _fuse_heads(weights[:, :, kept], heads, places)
        fused.flags.writeable = False
        return fused

    def fuse_layer(self, layer: int, heads: str | int) -> NDArray[np.float64]:
        """Check a layer without padding and fuse its heads, into shape (rows, tokens)."""
        weights = self.read(layer)
        places = _Places(layer, self.head_count is not None, np.arange(self.rows), self.name)
        _check_weights(weights, self.tolerance(layer), places)
        return _fuse_heads(weights, heads, places)

    def tolerance(self, layer: int) -> float:
        """Return how far a row of a layer may be from summing to 1."""
        is_bfloat16 = _dtype_name(self.items[layer]) == "bfloat16"
        return BFLOAT16_ROW_TOLERANCE if is_bfloat16 else ROW_TOLERANCE


class _Pair(NamedTuple):
    """The attention of an encoder-decoder as given, to be laid out as one graph."""

    encoder: _Stack
    decoder: _Stack
    cross: _Stack
    allow_empty: bool

    @property
    def stacks(self) -> tuple[_Stack, _Stack, _Stack]:
        return self.encoder, self.decoder, self.cross

    @property
    def layers(self) -> int:
        return self.encoder.layers + 2 * self.decoder.layers

    @property
    def tokens(self) -> int:
        return self.encoder.tokens + self.decoder.tokens

    @property
    def head_count(self) -> int | None:
        counts = [stack.head_count for stack in self.stacks]
        return None if None in counts else min(count for count in counts if count is not None)

    def check(self) -> None:
        """Check that the three fit each other."""
        encoder, decoder, cross = self.stacks
        if cross.layers != decoder.layers:
            raise AttentionError(
                f"cross has {cross.layers} layers, but decoder has {decoder.layers}; "
                "expected one for each layer of the decoder"
            )
        if cross.rows != decoder.tokens:
            raise AttentionError(
                f"cross has {cross.rows} rows, but decoder has {decoder.tokens} tokens; "
                "expected a row for each target token"
            )
        if cross.tokens != encoder.tokens:
            raise AttentionError(
                f"cross has {cross.tokens} columns, but encoder has {encoder.tokens} tokens; "
                "expected a column for each source token"
            )

    def resolve_heads(self, heads: Any) -> str | int:
        first, *others = (stack.resolve_heads(heads) for stack in self.stacks)
        if any(other != first for other in others):
            counts = ", ".join(f"{stack.name} has {stack.head_count}" for stack in self.stacks)
            raise OptionError(
                f"heads={heads} counts from the end, which is not the same head everywhere: "
                f"{counts} heads; count from 0"
            )
        return first

    def passing(self) -> NDArray[np.bool_]:
        passing = np.zeros((self.layers, self.tokens), dtype=np.bool_)
        depth, source = self.encoder.layers, self.encoder.tokens
        passing[:depth, source:] = True
        passing[depth:, :source] = True
        passing.flags.writeable = False
        return passing

    def fuse(self, heads: str | int, padding: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Check every layer, fuse its heads and put it in its place.

        Args:
            heads: The head fusion, or the index of the head.
            padding: All False: an encoder-decoder's padding is left out beforehand.

        Returns:
            Array of shape (L, n + m, n + m), read-only.
        """
        fused = np.zeros((self.layers, self.tokens, self.tokens))
        depth, source = self.encoder.layers, self.encoder.tokens
        for layer in range(depth):
            fused[layer, :source, :source] = self.encoder.fuse_layer(layer, heads)
        for layer in range(self.decoder.layers):
            own = depth + 2 * layer
            fused[own, source:, source:] = self.decoder.fuse_layer(layer, heads)
            attended = self._fuse_cross(layer, heads)
            fused[own + 1, source:, :source] = attended
            np.einsum("ii->i", fused[own + 1])[source:] = ~attended.any(axis=1)
        np.einsum("lii->li", fused)[self.passing()] = 1.0
        fused.flags.writeable = False
        return fused

    def _fuse_cross(self, layer: int, heads: str | int) -> NDArray[np.float64]:
        """Return the cross-attention of a layer, of shape (m, n), with rows of zeros if allowed."""
        if not self.allow_empty:
            return self.cross.fuse_layer(layer, heads)
        weights = self.cross.read(layer)
        kept = np.flatnonzero(weights.any(axis=(0, 2)))
        fused = np.zeros((self.cross.rows, self.cross.tokens))
        if len(kept):
            places = _Places(layer, self.cross.head_count is not None, kept, self.cross.name)
            rows = weights[:, kept]
            _check_weights(rows, self.cross.tolerance(layer), places)
            fused[kept] = _fuse_heads(rows, heads, places)
        return fused


def read_layers(attentions: Any, name: str = "attentions", *, square: bool = True) -> _Stack:
    """Split attention into layers and check every shape and type.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them.
        name: The argument's name, for errors.
        square: Whether there are as many rows as columns.

    Returns:
        The layers, with how many heads, rows and tokens they have.

    Raises:
        AttentionError: If it is not attention.
    """
    if attentions is None:
        raise AttentionError(f"{name} is None: {NO_WEIGHTS}")
    if isinstance(attentions, list | tuple):
        items = _read_sequence(attentions, name, square)
    else:
        items = _read_array(attentions, name, square)
    first = _layer_size(items[0], f"layer 1 of {name}", square)
    for layer, item in enumerate(items, 1):
        where = f"layer {layer} of {name}"
        size = _layer_size(item, where, square)
        if size != first:
            raise AttentionError(
                f"{where} has {_describe_size(size, square)}, "
                f"but layer 1 has {_describe_size(first, square)}; all layers must be alike"
            )
        _check_numeric(item, where)
    return _Stack(name, items, *first)


def _read_sequence(attentions: list[Any] | tuple[Any, ...], name: str, square: bool) -> list[Any]:
    if not attentions:
        raise AttentionError(f"{name} is an empty {type(attentions).__name__}: {NO_WEIGHTS}")
    missing = [layer for layer, item in enumerate(attentions, 1) if item is None]
    if missing:
        raise AttentionError(f"layer {missing[0]} of {name} is None: {NO_WEIGHTS}")
    items = [_with_shape(item, f"layer {i} of {name}") for i, item in enumerate(attentions, 1)]
    for layer, item in enumerate(items, 1):
        shape = tuple(item.shape)
        if len(shape) not in (2, 3, 4):
            expected = LAYER_SHAPES if square else CROSS_LAYER_SHAPES
            raise AttentionError(f"layer {layer} of {name} has shape {shape}; expected {expected}")
        if len(shape) == 4 and shape[0] != 1:
            raise AttentionError(
                f"layer {layer} of {name} has shape {shape}, a batch of {shape[0]} texts; "
                f"expected one: pick text k with [layer[k] for layer in {name}]"
            )
    return [item[0] if len(item.shape) == 4 else item for item in items]


def _read_array(attentions: Any, name: str, square: bool) -> list[Any]:
    if hasattr(attentions, "attentions"):
        raise AttentionError(
            f"{name} is a {type(attentions).__name__}, a model's whole output; "
            "pass its field, output.attentions"
        )
    if hasattr(attentions, "cross_attentions"):
        raise AttentionError(
            f"{name} is a {type(attentions).__name__}, an encoder-decoder's whole output; pass its "
            "fields: encoder_decoder_graph(output.encoder_attentions, output.decoder_attentions, "
            "output.cross_attentions)"
        )
    if not hasattr(attentions, "shape") and not hasattr(attentions, "__array__"):
        raise AttentionError(
            f"{name} must be an array, or a list or tuple of one array a layer; "
            f"got {type(attentions).__name__}"
        )
    array = _with_shape(attentions, name)
    shape = tuple(array.shape)
    if len(shape) not in (3, 4, 5):
        expected = ARRAY_SHAPES if square else CROSS_ARRAY_SHAPES
        raise AttentionError(f"{name} has shape {shape}; expected {expected}")
    if shape[0] == 0:
        raise AttentionError(f"{name} has shape {shape}, so there are no layers")
    if len(shape) == 5 and shape[1] != 1:
        raise AttentionError(
            f"{name} has shape {shape}, a batch of {shape[1]} texts in each layer; "
            f"expected one: pick text k with {name}[:, k]"
        )
    if len(shape) == 5:
        array = array[:, 0]
    return [array[layer] for layer in range(shape[0])]


def _with_shape(value: Any, name: str) -> Any:
    """Return `value` if it is an array of any library, else the NumPy array made of it."""
    if hasattr(value, "shape"):
        return value
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise AttentionError(f"{name} cannot be read as an array: {error}") from error


def _layer_size(item: Any, where: str, square: bool) -> tuple[int | None, int, int]:
    """Return the number of heads, None without a head axis, and those of rows and of tokens."""
    shape = tuple(item.shape)
    if square and shape[-1] != shape[-2]:
        raise AttentionError(
            f"{where} has {shape[-2]} rows and {shape[-1]} columns; "
            "expected as many of one as of the other, a row and a column for each token"
        )
    if 0 in shape:
        raise AttentionError(f"{where} is empty: its shape is {shape}")
    return (int(shape[0]) if len(shape) == 3 else None), int(shape[-2]), int(shape[-1])


def _describe_size(size: tuple[int | None, int, int], square: bool) -> str:
    heads, rows, tokens = size
    sides = f"{tokens} tokens" if square else f"{rows} rows of {tokens} columns"
    return f"{'no head axis' if heads is None else f'{heads} heads'} and {sides}"


def _dtype_name(item: Any) -> str:
    """Return the name of an array's type, such as "float32", for NumPy and torch alike."""
    dtype = getattr(item, "dtype", None)
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def _check_numeric(item: Any, where: str) -> None:
    name = _dtype_name(item)
    if not name.startswith(("float", "bfloat", "int", "uint")):
        raise AttentionError(f"{where} is of type {name}; expected real numbers")


# ---- Options -------------------------------------------------------------------------------------


def _integer(value: Any, name: str) -> int:
    # A boolean is an integer to Python, but nobody means position 1 by True.
    if isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(f"{name} must be an integer, got {value!r}") from None


def _items(values: Any, name: str) -> list[Any]:
    items = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise OptionError(f"{name} must be a list of integers, got {values!r}")
    items = list(items)
    if not items:
        raise OptionError(f"{name} is empty; None means all of them")
    return items


def _resolve_heads(heads: Any, head_count: int | None, name: str = "attentions") -> str | int:
    if isinstance(heads, str):
        if heads not in HEAD_FUSIONS:
            valid = ", ".join(repr(fusion) for fusion in HEAD_FUSIONS)
            raise OptionError(f"heads is {heads!r}; expected {valid} or the index of a head")
        return heads
    index = _integer(heads, "heads")
    if head_count is None:
        raise OptionError(f"heads={index} picks a head, but {name} has no head axis")
    return resolve_index(index, head_count, "heads", "heads")


def _resolve_residual(residual: Any, layers: int, tokens: int) -> float | NDArray[np.float64]:
    if getattr(residual, "ndim", 0) > 0 or isinstance(residual, list | tuple):
        return _resolve_shares(residual, layers, tokens)
    # The comparison is false for NaN too.
    if (
        not isinstance(residual, Real)
        or isinstance(residual, bool | np.bool_)
        or not 0.0 <= float(residual) <= 1.0
    ):
        raise OptionError(f"residual must be a number from 0 to 1, got {residual!r}")
    return float(residual)


def _resolve_shares(residual: Any, layers: int, tokens: int) -> NDArray[np.float64]:
    """Return a copy of residual shares of each layer and position, checked and read-only."""
    try:
        given = np.asarray(residual)
    except (RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"residual cannot be read as an array: {error}") from error
    if given.dtype.kind not in "fiu":
        raise OptionError(f"residual is an array of type {given.dtype}; expected real numbers")
    if given.shape != (layers, tokens):
        raise OptionError(
            f"residual is an array of shape {given.shape}; expected {(layers, tokens)}, a share "
            "for each layer and position, or one number"
        )
    shares = given.astype(np.float64)
    bad = np.argwhere(~((shares >= 0.0) & (shares <= 1.0)))  # NaN too
    if len(bad):
        layer, position = bad[0]
        raise OptionError(
            f"residual holds {shares[layer, position]} at layer {layer + 1}, position {position}; "
            "expected a number from 0 to 1"
        )
    shares.flags.writeable = False
    return shares


def _describe_residual(residual: float | NDArray[np.float64]) -> str:
    if isinstance(residual, float):
        return repr(residual)
    return f"array of shape {residual.shape}"


def _resolve_padding(padding: Any, tokens: int) -> NDArray[np.bool_]:
    mask = np.zeros(tokens, dtype=np.bool_)
    if padding is not None:
        values = padding.tolist() if hasattr(padding, "tolist") else padding
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise OptionError(
                f"padding must be a list of indices or a boolean array, got {padding!r}"
            )
        values = list(values)
        if values and all(isinstance(value, bool | np.bool_) for value in values):
            if len(values) != tokens:
                raise OptionError(
                    f"padding is a boolean array of {len(values)} entries; "
                    f"expected one for each of the {tokens} tokens"
                )
            mask[:] = values
        else:
            for i, value in enumerate(values):
                index = resolve_index(value, tokens, f"padding[{i}]", "tokens")
                if mask[index]:
                    # A mask of zeros and ones would otherwise be read as a list of indices.
                    raise OptionError(
                        f"padding names position {index} twice; a mask must be boolean, "
                        "True where padded, such as attention_mask == 0"
                    )
                mask[index] = True
        if mask.all():
            raise OptionError(f"padding names all {tokens} positions, so no token is left")
    mask.flags.writeable = False
    return mask


# ---- Memory --------------------------------------------------------------------------------------


def _available_memory() -> int | None:
    """Return the bytes of memory that are free to use, or None where that cannot be told."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _check_size(layers: int, tokens: int) -> None:
    needed = BYTES_PER_EDGE * layers * tokens * tokens
    available = _available_memory()
    if available is not None and needed > available:
        raise GraphSizeError(
            f"attentions of {tokens} tokens and {layers} layers need about "
            f"{needed / 1e9:,.1f} GB of memory, but {available / 1e9:,.1f} GB are available"
        )


# ---- Reading elements ----------------------------------------------------------------------------


def _read_weights(item: Any, where: str) -> NDArray[np.floating[Any]]:
    """Return a layer's weights, float32 or float64, copied only if need be."""
    try:
        if hasattr(item, "detach"):
            item = item.detach().cpu()
            if _dtype_name(item).startswith(("bfloat", "float8")):
                # NumPy does not know these types, and float32 holds them exactly.
                item = item.float()
            item = item.numpy()
        weights = np.asarray(item)
        if weights.dtype not in (np.float32, np.float64):
            weights = weights.astype(np.float32 if weights.dtype.itemsize < 4 else np.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        raise AttentionError(f"{where} cannot be read as an array: {error}") from error
    return weights


class _Places(NamedTuple):
    """Names places in a layer for errors; `kept` holds the positions the rows stand for."""

    layer: int
    has_heads: bool
    kept: NDArray[np.int64]
    argument: str = "attentions"

    def where(self) -> str:
        layer = f"layer {self.layer + 1}"
        return layer if self.argument == "attentions" else f"{layer} of {self.argument}"

    def name(self, head: int, row: int, column: int | None = None) -> str:
        parts = [f"layer {self.layer + 1}"]
        if self.has_heads:
            parts.append(f"head {head}")
        parts.append(f"row {self.kept[row]}")
        if column is not None:
            parts.append(f"column {column}")
        return ", ".join(parts)


def _check_weights(weights: NDArray[np.floating[Any]], tolerance: float, places: _Places) -> None:
    """Check the weights of a layer, of shape (H, rows, n)."""
    # As a product this takes a quarter of the time, and float32 is precise enough for 1e-3.
    with np.errstate(all="ignore"):
        sums = weights @ np.ones(weights.shape[2], weights.dtype)
    # A sum is NaN or infinite if one of its terms is, so that the terms need no pass of their own.
    if not np.isfinite(sums).all():
        bad = np.argwhere(~np.isfinite(weights))
        if len(bad):
            head, row, column = bad[0]
            raise AttentionError(
                f"{places.argument} holds {weights[head, row, column]} at "
                f"{places.name(head, row, column)}; expected a finite number"
            )
    if weights.min() < 0:
        head, row, column = np.argwhere(weights < 0)[0]
        raise AttentionError(
            f"{places.argument} holds a negative weight, {weights[head, row, column]:.6g}, at "
            f"{places.name(head, row, column)}; expected 0 or more"
        )
    if not sums.all():
        head, row = np.argwhere(sums == 0)[0]
        cure = (
            f"name it: AttentionGraph(attentions, padding=[{places.kept[row]}])"
            if places.argument == "attentions"
            else "leave it out"
        )
        raise AttentionError(
            f"{places.argument} holds a row of zeros at {places.name(head, row)}; if the position "
            f"is padded, {cure}"
        )
    off = np.abs(sums - 1.0)
    if off.max() > tolerance:
        head, row = np.unravel_index(off.argmax(), off.shape)
        raise AttentionError(
            f"{places.argument} has rows that do not sum to 1: the one at "
            f"{places.name(head, row)} sums to {sums[head, row]:.6g}, off by "
            f"{off[head, row]:.2g} where {tolerance:.1g} is allowed; a model in train mode does "
            "this, by dropout: call model.eval() first"
        )


def _check_padding(weights: NDArray[np.floating[Any]], tolerance: float, places: _Places) -> None:
    """Check that next to nothing of what the kept rows attend to is padded."""
    sums = weights.sum(axis=2, dtype=np.float64)
    if sums.max() > tolerance:
        head, row = np.unravel_index(sums.argmax(), sums.shape)
        raise AttentionError(
            f"attentions has weight on padded positions: {sums[head, row]:.6g} of the row at "
            f"{places.name(head, row)}; expected 0, as a model with an attention mask gives"
        )


def _fuse_heads(
    weights: NDArray[np.floating[Any]], heads: str | int, places: _Places
) -> NDArray[np.float64]:
    """Fuse weights of shape (H, rows, columns) into float64 rows that sum to 1."""
    fused: NDArray[np.float64]
    if isinstance(heads, int):
        fused = weights[heads].astype(np.float64)
    elif heads == "max":
        fused = weights.max(axis=0).astype(np.float64)
    elif heads == "min":
        fused = weights.min(axis=0).astype(np.float64)
    else:
        # The mean and the sum are the same once rows are re-normalised.
        fused = weights.sum(axis=0, dtype=np.float64)
    sums = fused.sum(axis=1, keepdims=True)
    if not sums.all():
        row = int(np.argmin(sums))
        raise AttentionError(
            f"heads='min' leaves nothing of {places.where()}, row {places.kept[row]}: "
            "there is no token that every head attends to; use heads='mean' or 'max'"
        )
    fused /= sums
    return fused


def add_residual(
    weights: NDArray[np.float64],
    residual: float | NDArray[np.float64],
    kept: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return ``(1 - r) W + r I`` for weights of shape (..., n, n), with I only where `kept`.

    r is a number, or an array of shape (..., n): a row of W and of I has a share of its own.

    Args:
        weights: The weights W.
        residual: The share r.
        kept: Where positions are not padded, of shape (..., n).
    """
    capacities = (1.0 - np.expand_dims(residual, -1)) * weights
    diagonal = np.einsum("...ii->...i", capacities)  # a view
    diagonal += residual * kept
    return capacities
