"""The layered graph of attention weights, on which every method works.

Node (l, k) is position k after layer l, node (0, t) is input token t, and the edge from (l, k) to
(l - 1, m) weighs ``A[l][k, m]``, where ``A[l] = (1 - r) W[l] + r I``. ``W[l]`` is the attention of
layer l with its heads fused into one, and r is the residual share (Abnar and Zuidema 2020, section
3): one number, or one for each layer and position where it was measured.

The graph of an encoder-decoder has the tokens of the source and then those of the target. Each of
its layers leaves one of the two sides unchanged.

Layers count from 1; positions, tokens and heads count from 0.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow._maxflow import UNLIMITED, round_rows
from attnflow.checks import (
    Stack,
    check_memory,
    read_layers,
    resolve_heads,
    resolve_index,
    resolve_padding,
    resolve_residual,
)
from attnflow.errors import AttentionError, OptionError

# Flow is computed in multiples of this. float64 represents every multiple up to 8 exactly.
UNIT: Final = 2.0**-50


class AttentionGraph:
    """The layered graph of a text's attention.

    The functions of this package build one from the attention they are given. Build it yourself to
    check and fuse the attention once and use it many times, or to mark padded positions.

    Attention in float32 or less is precise enough: heads are fused, and rows normalised to sum to
    1, in float64. Both happen layer by layer, so the attention of all heads is never held in
    float64.

    Args:
        attentions: Attention weights, as NumPy arrays, torch tensors (any float dtype, any
            device) or nested lists: one array of shape (L, n, n), (L, H, n, n) or
            (L, 1, H, n, n), or a list or tuple of L arrays of shape (n, n), (H, n, n) or
            (1, H, n, n). The last is what Hugging Face models return. Or the cache of a
            TransformerLens model. Rows attend, columns are attended to.
        heads: How heads are fused: "mean", "max", "min" or "sum" over the heads, with rows
            normalised; or the index of one head.
        residual: The share r of the residual connection, from 0 to 1: a number, or an array of
            shape (L, n) with the share of each position in each layer.
        padding: The padded positions: their indices, or a boolean array of shape (n,), True where
            padded. Nothing flows through a padded position. Results keep their shape and are 0
            there.
        sink: Whether position 0 is no token but a learned sink, which has a share of each row and
            attends to itself alone.

    Attributes:
        layers: The number of layers, L.
        tokens: The number of tokens, n, padded ones included.
        heads: The head fusion, or the index of the head.
        head_count: The number of heads of the attention given, None if it has no head axis. For an
            encoder-decoder, the smallest of its three numbers of heads.
        residual: The residual share r: a number, or a float64 array of shape (L, n), read-only.
        padding: Boolean array of shape (n,), True where padded, read-only.
        passing: Boolean array of shape (L, n), read-only. True where a layer leaves a position
            unchanged, as it does with one side of an encoder-decoder while the other attends.
            False everywhere for any other graph.
        attention: The fused attention W, float64 of shape (L, n, n), read-only. Rows sum to 1;
            padded rows and columns are 0.
        sink: Whether position 0 is a learned sink.

    Raises:
        AttentionError: If the attention is missing or has a wrong shape or type, or if it contains
            NaN, infinity, a negative weight or a row that does not sum to 1 within 1e-3 (5e-3 for
            bfloat16); or if a learned sink attends to a token.
        OptionError: If `heads`, `residual` or `padding` is not valid.
        GraphSizeError: If the graph does not fit into memory.

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
        sink: bool = False,
    ) -> None:
        if isinstance(attentions, AttentionGraph):
            raise AttentionError(
                "attentions is an AttentionGraph already; pass the attention weights themselves"
            )
        given = attentions if isinstance(attentions, _Layout) else _single(read_layers(attentions))
        self.layers: Final[int] = given.layers
        self.tokens: Final[int] = given.tokens
        self.heads: Final[str | int] = given.resolve_heads(heads)
        self.head_count: Final[int | None] = given.head_count
        self.residual: Final[float | NDArray[np.float64]] = resolve_residual(
            residual, self.layers, self.tokens
        )
        self.padding: Final[NDArray[np.bool_]] = resolve_padding(padding, self.tokens)
        self.passing: Final[NDArray[np.bool_]] = given.passing
        self.passing.flags.writeable = False
        check_memory(self.layers, self.tokens)
        self.attention: Final[NDArray[np.float64]] = given.fuse(self.heads, self.padding)
        self.attention.flags.writeable = False
        self.sink: Final[bool] = sink
        if sink and self.attention[:, 0, 1:].any():
            raise AttentionError(
                "sink is True, but position 0 attends to others; a learned sink attends to itself"
            )

    @cached_property
    def capacities(self) -> NDArray[np.float64]:
        """The edge weights A, float64 of shape (L, n, n), read-only.

        ``capacities[l - 1][k, m]`` is the weight of the edge from (l, k) to (l - 1, m). Rows sum to
        1; padded rows and columns are 0. A position that a layer leaves unchanged has all its
        weight on itself. Computed at the first access.
        """
        capacities = add_residual(self.attention, self.residual, ~self.padding)
        # r + (1 - r) may be off by one bit.
        np.einsum("lii->li", capacities)[self.passing] = 1.0
        capacities.flags.writeable = False
        return capacities

    def _capacities_of(self, layer: int) -> NDArray[np.float64]:
        """Return the edge weights of one layer, from 1, without those of the others."""
        weights = self.attention[layer - 1]
        capacities = add_residual(weights, self.residual_of(layer), ~self.padding)
        np.einsum("ii->i", capacities)[self.passing[layer - 1]] = 1.0
        return capacities

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """The edge weights in whole units of 2**-50, int64 of shape (L, n, n), read-only.

        These are the capacities of attention flow, whose arithmetic is exact. Every row sums to
        exactly 2**50 (see `to_units`), and padded rows are 0. Where a layer leaves a position
        unchanged, its edge is unlimited: 2**61, more than any graph carries. Computed at the first
        access.
        """
        units = np.empty(self.attention.shape, np.int64)
        # Layer by layer, because `capacities` would take as much memory again.
        for layer in range(self.layers):
            units[layer] = to_units(self._capacities_of(layer + 1))
        np.einsum("lii->li", units)[self.passing] = UNLIMITED
        units.flags.writeable = False
        return units

    @cached_property
    def causal(self) -> bool:
        """Whether no position attends to a later one, in any layer.

        True if there are two tokens or more and every weight above the diagonal is exactly 0. A
        learned sink comes before all tokens, and does not change this. Never true for an
        encoder-decoder, whose tokens are not in the order of one text.
        """
        if self.passing.any():
            return False
        return self.tokens > 1 + self.sink and not any(
            # For nearly every graph that is not causal, the first row shows it.
            layer[0, 1:].any() or np.triu(layer, 1).any()
            for layer in self.attention
        )

    @cached_property
    def encoder(self) -> tuple[int, int] | None:
        """For an encoder-decoder, the number of encoder layers and of source tokens, else None."""
        if not self.passing.any():
            return None
        # The encoder leaves target positions unchanged, and the decoder source positions.
        return int(self.passing[:, -1].sum()), int((~self.passing[0]).sum())

    @cached_property
    def sunk(self) -> NDArray[np.bool_] | None:
        """For a graph with a learned sink, which layers attend to it, of shape (L,), else None."""
        return np.asarray(self.attention[:, 1:, 0].any(axis=1)) if self.sink else None

    def residual_of(self, layer: int) -> float | NDArray[np.float64]:
        """Return the residual share of a layer, from 1: a number, or an array of shape (n,)."""
        return self.residual if isinstance(self.residual, float) else self.residual[layer - 1]

    def __repr__(self) -> str:
        return (
            f"AttentionGraph(layers={self.layers}, tokens={self.tokens}, "
            f"heads={self.heads!r}, residual={_describe_residual(self.residual)})"
        )


def as_graph(attentions: Any, heads: str | int = "mean", residual: float = 0.5) -> AttentionGraph:
    """Return the graph of attention weights, or the graph itself if it is one already.

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
    if resolve_heads(heads, graph.head_count) not in ("mean", graph.heads):
        raise OptionError(
            f"heads={heads!r} does not match the AttentionGraph given, which was built with "
            f"heads={graph.heads!r}; build another graph"
        )
    share = resolve_residual(residual, graph.layers, graph.tokens)
    default = isinstance(share, float) and share == 0.5
    if not default and not np.array_equal(share, graph.residual):
        raise OptionError(
            f"residual={_describe_residual(share)} does not match the AttentionGraph given, which "
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
    """Return the graph of an encoder-decoder with n source tokens and m target tokens.

    Its tokens are those of the source, 0 to n - 1, and then those of the target, n to n + m - 1.
    Its layers are the E layers of the encoder, and then two for each layer of the decoder:

    - layers 1 to E: source positions attend to each other;
    - layer E + 2 i - 1: the self-attention of decoder layer i, among target positions;
    - layer E + 2 i: its cross-attention. A target position gives r to itself, and the other 1 - r
      to the encoder's outputs.

    So the output of decoder layer i, from 1, is that of graph layer E + 2 i, and target position k
    is position n + k. A layer leaves the side that does not attend unchanged: the edge from a node
    of that side to the same position below weighs 1 in rollout and is unlimited in flow. A flow
    from a position that attended in that layer or below is at most 1. Only the flow from a target
    token of layers 1 to E to itself is unlimited; it is given as 2048, the 2**61 units of an
    unlimited edge.

    Args:
        encoder: The encoder's self-attention, as `AttentionGraph` takes it, for n tokens.
        decoder: The decoder's self-attention, as `AttentionGraph` takes it, for m tokens.
        cross: The decoder's attention to the encoder's outputs: like `decoder`, with m rows and n
            columns.
        heads: How heads are fused: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1. Self-attention and
            cross-attention have one each. A number, or an array of shape (E + 2 D, n + m) with the
            share of each position in each layer of the graph; D is the number of decoder layers.
            Where a layer leaves a position unchanged, its share has no effect.
        allow_empty: Whether a row of `cross` may be all zeros. Such a position takes nothing from
            the source and gives all its weight to itself. By default such a row, which padding
            makes too, is an error.

    Returns:
        The graph. Remove padded positions before you pass the arrays.

    Raises:
        AttentionError: If one of the three is not what `AttentionGraph` takes, or if they do not
            match.
        OptionError: If `heads` or `residual` is not valid.
        GraphSizeError: If the graph does not fit into memory.

    Example:
        >>> import numpy as np
        >>> encoder = np.array([[[0.5, 0.5], [0.0, 1.0]]])  # one layer, two source tokens
        >>> decoder = np.array([[[1.0]]])  # one layer, one target token
        >>> cross = np.array([[[0.25, 0.75]]])
        >>> graph = encoder_decoder_graph(encoder, decoder, cross)
        >>> graph
        AttentionGraph(layers=3, tokens=3, heads='mean', residual=0.5)
        >>> graph.capacities[2]  # cross-attention, which leaves the source unchanged
        array([[1.   , 0.   , 0.   ],
               [0.   , 1.   , 0.   ],
               [0.125, 0.375, 0.5  ]])
    """
    pair = _pair(
        read_layers(encoder, "encoder"),
        read_layers(decoder, "decoder"),
        read_layers(cross, "cross", square=False),
        allow_empty,
    )
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
            "attentions is an AttentionGraph, whose heads are fused; pass the attention weights "
            "themselves"
        )
    stack = read_layers(attentions)
    if stack.head_count is None:
        raise AttentionError(
            f"attentions has no head axis, so head={head!r} cannot be selected; "
            "expected (L, H, n, n), or a list or tuple of L arrays of (H, n, n) or (1, H, n, n)"
        )
    row = resolve_index(layer, stack.layers, "layer", "layers", first=1) - 1
    column = resolve_index(head, stack.head_count, "head", "heads")
    graph = AttentionGraph(attentions, residual=residual)
    weights = stack.read(row)[column].astype(np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    return add_residual(weights, graph.residual_of(row + 1), ~graph.padding), graph


def to_units(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return rows of weights that sum to 1 as integers, in units of 2**-50, that sum to 2**50.

    Rows are rounded by largest remainder: every integer is the weight rounded down or up, and those
    with the largest remainders are rounded up. Of equal remainders, those of the largest weights
    are, and of equal weights the first. So all rows have exactly the same sum, and two cuts that
    are equal by these sums are equal in integers too. A row that is off by more than rounding
    errors is divided by its sum first. A weight of 0 stays 0, and so does a row of zeros.

    Args:
        weights: Weights of 0 or more, of shape (..., n).

    Returns:
        Array of the same shape.

    Example:
        >>> import numpy as np
        >>> units = to_units(np.array([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]))
        >>> units
        array([[375299968947542, 375299968947541, 375299968947541],
               [562949953421312, 562949953421312,               0],
               [              0,               0,               0]])
        >>> units.sum(axis=1) == [2**50, 2**50, 0]
        array([ True,  True,  True])
    """
    rows = np.ascontiguousarray(weights).reshape(-1, weights.shape[-1])
    # NumPy's own int64, which the C++ type may only be equivalent to.
    return round_rows(rows).reshape(weights.shape).view(np.int64)


def add_residual(
    weights: NDArray[np.float64],
    residual: float | NDArray[np.float64],
    kept: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the edge weights ``(1 - r) W + r I``.

    Args:
        weights: The attention W, of shape (..., n, n).
        residual: The residual share r: a number, or an array of shape (..., n) with one for each
            row.
        kept: Boolean array that broadcasts to shape (..., n), False for padded positions, whose
            diagonal stays 0.

    Returns:
        Array of the shape of `weights`.

    Example:
        >>> add_residual(np.array([[0.5, 0.5], [1.0, 0.0]]), 0.5, np.array([True, True]))
        array([[0.75, 0.25],
               [0.5 , 0.5 ]])
    """
    capacities = (1.0 - np.expand_dims(residual, -1)) * weights
    diagonal = np.einsum("...ii->...i", capacities)  # a view
    diagonal += residual * kept
    return capacities


class _Layout(NamedTuple):
    """Attention as given, and how it is laid out as a graph.

    `fuse` takes the head fusion and the padding, checks every layer, and returns the fused
    attention of the graph, float64 of shape (L, n, n).
    """

    stacks: tuple[Stack, ...]
    layers: int
    tokens: int
    passing: NDArray[np.bool_]
    fuse: Callable[[str | int, NDArray[np.bool_]], NDArray[np.float64]]

    @property
    def head_count(self) -> int | None:
        counts = [stack.head_count for stack in self.stacks]
        return None if None in counts else min(count for count in counts if count is not None)

    def resolve_heads(self, heads: Any) -> str | int:
        first, *others = (
            resolve_heads(heads, stack.head_count, stack.name) for stack in self.stacks
        )
        if any(other != first for other in others):
            counts = ", ".join(f"{stack.name} has {stack.head_count}" for stack in self.stacks)
            raise OptionError(
                f"heads={heads} counts from the end and selects different heads: {counts} heads; "
                "count from 0"
            )
        return first


def _single(stack: Stack) -> _Layout:
    """Return the layout of the attention of one text."""
    layers, tokens = stack.layers, stack.tokens

    def fuse(heads: str | int, padding: NDArray[np.bool_]) -> NDArray[np.float64]:
        fused = np.zeros((layers, tokens, tokens))
        kept = np.flatnonzero(~padding)
        for layer in range(layers):
            if len(kept) == tokens:
                fused[layer] = stack.fuse_layer(layer, heads)
            else:
                part = stack.fuse_layer(layer, heads, rows=kept, columns=kept)
                fused[layer][np.ix_(kept, kept)] = part
        return fused

    return _Layout((stack,), layers, tokens, np.zeros((layers, tokens), dtype=np.bool_), fuse)


def _pair(encoder: Stack, decoder: Stack, cross: Stack, allow_empty: bool) -> _Layout:
    """Return the layout of the attention of an encoder-decoder, whose padding was removed."""
    for what, found, expected, whole in (
        ("layers", cross.layers, decoder.layers, "decoder"),
        ("rows", cross.rows, decoder.tokens, "decoder"),
        ("columns", cross.tokens, encoder.tokens, "encoder"),
    ):
        if found != expected:
            counted = "layers" if what == "layers" else "tokens"
            raise AttentionError(
                f"cross has {found} {what}, but {whole} has {expected} {counted}; expected as many"
            )
    depth, source = encoder.layers, encoder.tokens
    layers, tokens = depth + 2 * decoder.layers, source + decoder.tokens
    passing = np.zeros((layers, tokens), dtype=np.bool_)
    passing[:depth, source:] = True
    passing[depth:, :source] = True

    def fuse(heads: str | int, padding: NDArray[np.bool_]) -> NDArray[np.float64]:
        fused = np.zeros((layers, tokens, tokens))
        for layer in range(depth):
            fused[layer, :source, :source] = encoder.fuse_layer(layer, heads)
        for layer in range(decoder.layers):
            own = depth + 2 * layer
            fused[own, source:, source:] = decoder.fuse_layer(layer, heads)
            attended = np.zeros((cross.rows, cross.tokens))
            rows = np.arange(cross.rows)
            if allow_empty:
                rows = np.flatnonzero(cross.read(layer).any(axis=(0, 2)))
            if len(rows):
                attended[rows] = cross.fuse_layer(layer, heads, rows=rows)
            fused[own + 1, source:, :source] = attended
            np.einsum("ii->i", fused[own + 1])[source:] = ~attended.any(axis=1)
        np.einsum("lii->li", fused)[passing] = 1.0
        return fused

    return _Layout((encoder, decoder, cross), layers, tokens, passing, fuse)


def _describe_residual(residual: float | NDArray[np.float64]) -> str:
    if isinstance(residual, float):
        return repr(residual)
    return f"array of shape {residual.shape}"
