"""From a graph to the scores of an explanation.

This is the only code that knows receptive fields, attention sinks, saturation and which layers of a
graph a model's layers are. It serves one input at a time (`score`), with every layer and several
positions; and batches of texts (`Batch`), with one layer and one position each, where rollout
carries one row a text down the layers in one product a layer. Both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import ROW_TOLERANCE
from attnflow.errors import AttentionError
from attnflow.flow import attention_flow, flow_bound, solve_units
from attnflow.graph import UNIT, AttentionGraph, add_residual, to_units
from attnflow.options import ANSWER_METHODS, Options
from attnflow.rollout import attention_rollout
from attnflow.streamed import Streamed, Swept
from attnflow.tokens import Tokens, summed
from attnflow.uniform import uniform_graph, uniform_rollout

# From this share of saturated tokens on, flow hardly depends on the position.
SATURATED: Final = 0.95
# A token with more than this share of the scores, and most of the attention, is named as a sink.
SINK: Final = 0.5
# How many results for uniform attention are kept.
MOST_UNIFORM: Final = 64
# A pass over attention that is not held gives this many scores at most.
MOST_SWEPT: Final = 2**23

Uniform = dict[Any, NDArray[np.float64]]
"""The scores of uniform attention, kept for the next input of the same size and mask."""


class Scored(NamedTuple):
    """The scores of one position of an input.

    Attributes:
        scores: For each layer, lowest first, the scores of the T tokens that the position can see,
            of shape (L, T). A batch has one layer only.
        position: The position, as an index among the tokens.
        saturation: For flow, the share of tokens whose flow is as large as it can be from any
            position. None for other methods.
        sinks: The tokens that receive most attention from the others: one, or for an
            encoder-decoder one of the source and one of the target. None for contributions.
        relative: Whether scores are divided by those of uniform attention.
    """

    scores: NDArray[np.float64]
    position: int
    saturation: float | None
    sinks: tuple[int, ...]
    relative: bool


class Finished(NamedTuple):
    """Scores as an explanation shows them.

    Attributes:
        tokens: The tokens, words or sentences that are scored.
        layer_scores: Their scores in each layer, of shape (L, T).
        notes: What a reader of the scores has to be warned of.
        groups: For each of them the tokens of the input that it has, by index.
    """

    tokens: Tokens
    layer_scores: NDArray[np.float64]
    notes: tuple[str, ...]
    groups: list[list[int]]


def weights_at(place: int, count: int) -> NDArray[np.float64]:
    """Return the weights of the positions of a graph of which one is explained.

    Example:
        >>> weights_at(1, 3)
        array([0., 1., 0.])
    """
    weights = np.zeros(count)
    weights[place] = 1.0
    return weights


def mixed(found: Sequence[Scored], weights: Sequence[float]) -> Scored:
    """Return the weighted mean of the scores of several positions.

    Args:
        found: The scores of each position.
        weights: Its weight; together they are 1.

    Returns:
        The mean. Its position is the one with the largest weight, the first of several.

    Example:
        >>> one = Scored(np.array([[0.5, 0.5]]), 0, None, (0,), False)
        >>> other = Scored(np.array([[1.0, 0.0]]), 1, None, (0,), False)
        >>> mixed([one, other], [0.25, 0.75]).scores
        array([[0.875, 0.125]])
    """
    first = found[int(np.argmax(weights))]
    if len(found) == 1:
        return first
    # A position of a causal model sees less than a later one.
    scores = np.zeros((len(first.scores), max(one.scores.shape[1] for one in found)))
    for one, weight in zip(found, weights, strict=True):
        scores[:, : one.scores.shape[1]] += weight * one.scores
    saturation = None
    if first.saturation is not None:
        shares = [0.0 if one.saturation is None else one.saturation for one in found]
        saturation = min(1.0, float(np.dot(shares, weights)))
    last = max(found, key=lambda one: one.scores.shape[1])
    return first._replace(scores=scores, saturation=saturation, sinks=last.sinks)


class Scorer:
    """Scores positions of one graph, by any method.

    Args:
        graph: The graph, or attention that is not held as a whole, for raw attention and rollout.
        mask: The offsets that each layer attends over, as `mask_of` gives it. None reads it off the
            attention when it is needed.
        sizes: How many positions of the graph each token has, as a stretch of sound has several.
            None is one each.
        uniform: Where the scores of uniform attention are kept.
        num_threads: How many threads compute flows. None is one for each CPU.

    Attributes:
        graph: The graph.
        encoder: Of an encoder-decoder's graph, as `AttentionGraph.encoder`; else None.
        depth: How many layers can be explained. The steps of an encoder-decoder's graph are not
            its layers: the encoder comes first, and a decoder layer takes two steps.

    Example:
        >>> graph = AttentionGraph([[[0.5, 0.5], [0.0, 1.0]]])
        >>> Scorer(graph).scores("raw", [0])
        array([[[0.5, 0.5]]])
    """

    def __init__(
        self,
        graph: AttentionGraph | Streamed,
        *,
        mask: NDArray[np.bool_] | None = None,
        sizes: Sequence[int] | None = None,
        uniform: Uniform | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.graph: Final = graph
        self.encoder: Final = graph.encoder if isinstance(graph, AttentionGraph) else None
        self._mask = mask
        self._starts: Final = token_starts(sizes, graph.tokens)
        self._uniform: Uniform = {} if uniform is None else uniform
        self._threads = num_threads
        self._rows: dict[bytes, _Row] = {}
        self._sunk: NDArray[np.bool_] | None = None
        self._steps: list[tuple[int, ...]]
        if self.encoder is None:
            self._steps = [(step,) for step in range(1, graph.layers + 1)]
        else:
            # A decoder layer attends twice, to the target and to the source.
            below = self.encoder[0]
            self._steps = [(step - 1, step) for step in range(below + 2, graph.layers + 1, 2)]

    @property
    def depth(self) -> int:
        """How many layers can be explained."""
        return len(self._steps)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The offsets that each layer of the graph attends over, of shape (L, 2 n - 1)."""
        if self._mask is None:
            if not isinstance(self.graph, AttentionGraph):
                raise ValueError("attention that is not held has a mask after the first pass")
            self._mask = mask_of(self.graph)
        return self._mask

    def is_relative(self, method: str, receptive_field: str | bool) -> bool:
        """Whether scores are to be divided by those of uniform attention."""
        # A row of raw attention over a uniform row is the same row once it is normalised.
        return method != "raw" and self.has_receptive_field(receptive_field)

    def has_receptive_field(self, receptive_field: str | bool) -> bool:
        """Whether the option asks for a receptive field.

        "auto" does for causal graphs whose residual is apart from their rows.
        """
        auto = self.graph.causal and _residual_is_apart(self.graph.residual)
        return receptive_field is True or (receptive_field == "auto" and auto)

    def sees(self, position: int) -> int:
        """Return how many positions of the graph one can see, itself and all before included."""
        ordered = self.graph.causal or self.encoder is not None
        return position + 1 if ordered else self.graph.tokens

    def scores(
        self, method: str, positions: Sequence[int], *, relative: bool = False
    ) -> NDArray[np.float64]:
        """Return the scores of every layer.

        Args:
            method: "raw", "rollout" or "flow".
            positions: The positions, as indices of the graph.
            relative: Whether to divide by the scores of uniform attention.

        Returns:
            Array of shape (depth, P, T).
        """
        scores = self._plain(method, positions)
        return self._related(scores, method, positions, relative)

    def score(self, options: Options, layer: int, positions: Sequence[int]) -> list[Scored]:
        """Score positions as an explanation asks for it.

        Args:
            options: The options.
            layer: The layer explained, from 1 to `depth`; saturation is measured there.
            positions: The positions, as indices of the graph.
        """
        relative = self.is_relative(options.method, options.receptive_field)
        plain = self._plain(options.method, positions)
        saturation: list[float | None] = [None] * len(positions)
        if options.method == "flow" and isinstance(self.graph, AttentionGraph):
            bound = flow_bound(self.graph, positions)[self._steps[layer - 1][-1] - 1]
            saturation = [float(row.mean()) for row in plain[layer - 1] == settled(bound)]
        scores = self._related(plain, options.method, positions, relative)
        found = []
        for i, position in enumerate(positions):
            seen = self.seen(position)
            found.append(
                Scored(
                    scores[:, i, :seen],
                    self.token(position),
                    saturation[i],
                    self.sinks(position),
                    relative,
                )
            )
        return found

    def score_means(
        self, options: Options, layer: int, weights: Sequence[NDArray[np.float64]]
    ) -> list[Scored]:
        """Score weighted means of positions, as explanations ask for it.

        Args:
            options: The options.
            layer: The layer explained, from 1 to `depth`.
            weights: For each mean the weight of every position of the graph, of shape (n,); their
                sum is 1.
        """
        places = [[int(place) for place in np.flatnonzero(each)] for each in weights]
        if not isinstance(self.graph, AttentionGraph):
            return self._score_streamed(options, layer, weights, places)
        every = sorted({place for own in places for place in own})
        found = dict(zip(every, self.score(options, layer, every), strict=True))
        return [
            mixed([found[place] for place in own], each[own].tolist())
            for own, each in zip(places, weights, strict=True)
        ]

    def _score_streamed(
        self,
        options: Options,
        layer: int,
        weights: Sequence[NDArray[np.float64]],
        places: Sequence[Sequence[int]],
    ) -> list[Scored]:
        """Score weighted means; each is one row of a pass, however many positions it is over."""
        if not self.is_relative(options.method, options.receptive_field):
            rows = self._swept(weights)
            return [
                Scored(
                    self._added(row.of(options.method))[:, : self.seen(own[-1])],
                    self.token(int(np.argmax(each))),
                    None,
                    self._attracting(row.received, own[-1]),
                    False,
                )
                for row, each, own in zip(rows, weights, places, strict=True)
            ]
        if all(len(own) == 1 for own in places):
            return self.score(options, layer, [place for (place,) in places])
        return [
            self._relative_mean(options, layer, each, own)
            for each, own in zip(weights, places, strict=True)
        ]

    def _relative_mean(
        self, options: Options, layer: int, weights: NDArray[np.float64], places: Sequence[int]
    ) -> Scored:
        """Divide each position by what it would have from uniform attention, and add them up.

        Only some positions are held at a time: all of a long text would be its square.
        """
        scores = np.zeros((self.depth, self.seen(places[-1])))
        most = self._most
        for start in range(0, len(places), most):
            part = places[start : start + most]
            found = self.score(options, layer, part)
            for place, one in zip(part, found, strict=True):
                scores[:, : one.scores.shape[1]] += weights[place] * one.scores
            self._rows.clear()
        first = self.token(int(np.argmax(weights)))
        return found[-1]._replace(scores=scores, position=first)

    @property
    def _most(self) -> int:
        """How many positions a pass over attention that is not held may be about."""
        return max(1, MOST_SWEPT // (self.graph.layers * self.graph.tokens))

    def by_token(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up the weights of each token's positions."""
        return self._added(weights)

    def sinks(self, position: int) -> tuple[int, ...]:
        """Return the tokens that receive most attention from the others, over all layers.

        Only the tokens that a position can see are looked at.
        """
        if not isinstance(self.graph, AttentionGraph):
            [row] = self._swept([weights_at(position, self.graph.tokens)])
            return self._attracting(row.received, position)
        count = self.sees(position)
        attention = self.graph.attention[:, :count, :count]
        received = attention.sum(axis=(0, 1)) - np.einsum("lkk->k", attention)
        return self._attracting(received, position)

    def _attracting(self, received: NDArray[np.float64], position: int) -> tuple[int, ...]:
        """Return the tokens that receive most; of an encoder-decoder one of each side."""
        received = received[: self.sees(position)]
        if self.encoder is None:
            return (int(np.argmax(self._added(received))),)
        source = self.encoder[1]
        by_token = self._added(received[:source])
        found = [int(np.argmax(by_token))]
        target = received[source:]
        if target.max() > 0:
            found.append(len(by_token) + int(np.argmax(target)))
        return tuple(found)

    def _swept(self, weights: Sequence[NDArray[np.float64]]) -> list[_Row]:
        """Return what weighted means of positions read, each of them read only once."""
        keys = [each.tobytes() for each in weights]
        left = {key: each for key, each in zip(keys, weights, strict=True) if key not in self._rows}
        if isinstance(self.graph, AttentionGraph):
            raise ValueError("a graph is read as it is")
        waiting = iter(left)
        while names := list(islice(waiting, self._most)):
            part = np.stack([left[key] for key in names])
            seen = np.array([self.sees(int(np.flatnonzero(row)[-1])) for row in part])
            found: Swept = self.graph.sweep(part, seen)
            self._mask, self._sunk = found.mask, found.sunk
            for i, key in enumerate(names):
                self._rows[key] = _Row(found.raw[:, i], found.rollout[:, i], found.received[i])
        return [self._rows[key] for key in keys]

    def _plain(self, method: str, positions: Sequence[int]) -> NDArray[np.float64]:
        if isinstance(self.graph, AttentionGraph):
            return _graph_scores(self.graph, method, positions, self._steps, self._threads)
        rows = self._swept([weights_at(place, self.graph.tokens) for place in positions])
        return np.stack([row.of(method) for row in rows], axis=1)

    def _related(
        self,
        scores: NDArray[np.float64],
        method: str,
        positions: Sequence[int],
        relative: bool,
    ) -> NDArray[np.float64]:
        if not relative or method == "raw":
            return self._added(scores)
        uniform = _uniform_scores(
            self.mask,
            self.graph.residual,
            method,
            positions,
            self._uniform,
            encoder=self.encoder,
            sunk=self.graph.sunk if isinstance(self.graph, AttentionGraph) else self._sunk,
            steps=self._steps,
            num_threads=self._threads,
        )
        return _relative_to(self._added(uniform), self._added(scores))

    def _added(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up the positions of each token; the last axis may have the first ones only."""
        if self._starts is None:
            return values
        starts = self._starts[self._starts < values.shape[-1]]
        result: NDArray[np.float64] = np.add.reduceat(values, starts, axis=-1)
        return result

    def token(self, position: int) -> int:
        """Return the token that a position of the graph belongs to."""
        if self._starts is None:
            return position
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def seen(self, position: int) -> int:
        """Return how many tokens a position can see."""
        return self.token(self.sees(position) - 1) + 1


class _Row(NamedTuple):
    """What a weighted mean of positions read: raw attention and rollout, (L, n), and `received`."""

    raw: NDArray[np.float64]
    rollout: NDArray[np.float64]
    received: NDArray[np.float64]

    def of(self, method: str) -> NDArray[np.float64]:
        """Return the scores of a method in every layer."""
        return self.raw if method == "raw" else self.rollout


class Batch:
    """Scores one position of each of several texts that ran through a model together.

    Args:
        layers: The attention of each layer, lowest first, of shape (B, N, N): heads fused, texts
            padded to N tokens. Gradient-weighted attention need not be normalised.
        lengths: How many tokens each text has.
        residual: The residual share: a number, or for each layer an array of shape (B, N).
        gradient: Whether the layers are gradient-weighted attention.
        sink: Whether position 0 of the layers is a learned sink. Lengths and positions count it.

    Attributes:
        causal: For each text whether no position attends to a later one, in any layer.

    Example:
        >>> layers = [np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 0.0]]])]
        >>> batch = Batch(layers, lengths=[2, 1])
        >>> [found.scores.tolist() for found in batch.score(Options(method="raw"), 1, [1, 0])]
        [[[0.5, 0.5]], [[1.0]]]
    """

    def __init__(
        self,
        layers: Sequence[NDArray[np.floating[Any]]],
        lengths: Sequence[int],
        *,
        residual: float | Sequence[NDArray[np.float64]] = 0.5,
        gradient: bool = False,
        sink: bool = False,
    ) -> None:
        self._layers = layers
        self._lengths = lengths
        self._residual = residual
        self._gradient = gradient
        self._sink = sink
        self._real = np.arange(layers[0].shape[-1]) < np.asarray(lengths)[:, None]
        self.causal: Final = self._causal()

    def score(
        self,
        options: Options,
        layer: int,
        positions: Sequence[int],
        uniform: Uniform | None = None,
        weights: Sequence[NDArray[np.float64]] | None = None,
    ) -> list[Scored]:
        """Score one position of each text, or the weighted mean of several.

        Args:
            options: The options.
            layer: The layer, from 1.
            positions: The position of each text; of a mean, the one with the largest weight.
            uniform: Where the scores of uniform attention are kept.
            weights: The weight of each of a text's positions, if it is a mean; not for scores that
                are divided by those of uniform attention.

        Returns:
            The scores of each text, of one layer.

        Raises:
            AttentionError: If the weights of any text are not attention.
        """
        seen = [
            position + 1 if causal else length
            for position, length, causal in zip(positions, self._lengths, self.causal, strict=True)
        ]
        apart = _residual_is_apart(self._residual)
        relative = [
            options.method != "raw"
            and (
                options.receptive_field is True
                or (options.receptive_field == "auto" and causal and apart)
            )
            for causal in self.causal
        ]
        if weights is None:
            weights = [
                weights_at(place, length)
                for place, length in zip(positions, self._lengths, strict=True)
            ]
        read = self._read(options.method, layer, weights, seen, masks=any(relative))
        size = self._real.shape[1]
        found = []
        for row, (position, length) in enumerate(zip(positions, self._lengths, strict=True)):
            scores, saturation = read.rows[row, :length], None
            if options.method == "flow":
                units = [x[row, :length, :length] for x in read.units]
                scores, saturation = _mean_flow(units, weights[row])
            if relative[row]:
                even = _uniform_scores(
                    read.masks[:, row, size - length : size + length - 1],
                    self._residual_of(row, length),
                    options.method,
                    [position],
                    {} if uniform is None else uniform,
                    sunk=read.sunk[:, row] if self._sink else None,
                    num_threads=1,
                )
                scores = _relative_to(even[layer - 1, 0], scores)
            scored = scores[None, : seen[row]]
            found.append(Scored(scored, position, saturation, (read.sinks[row],), relative[row]))
        return found

    def _residual_of(self, row: int, length: int) -> float | NDArray[np.float64]:
        if isinstance(self._residual, float):
            return self._residual
        return np.stack([share[row, :length] for share in self._residual])

    def _causal(self) -> list[bool]:
        real = self._real
        causal: NDArray[np.bool_] = np.asarray(real[:, 1 + self._sink :].any(axis=1))
        for layer in self._layers:
            # The first row settles it for nearly every text that is not.
            causal &= ~((layer[:, 0, 1:] != 0) & real[:, 1:]).any(axis=1)
        for layer in self._layers:
            if not causal.any():
                break
            above = np.triu(layer != 0, 1) & real[:, :, None] & real[:, None, :]
            causal &= ~above.any(axis=(1, 2))
        return [bool(item) for item in causal]

    def _read(
        self,
        method: str,
        layer: int,
        reads: Sequence[NDArray[np.float64]],
        seen: Sequence[int],
        *,
        masks: bool,
    ) -> _Read:
        """Go through the layers from the top down."""
        real = self._real
        size = real.shape[1]
        inside = None if real.all() else real[:, :, None] & real[:, None, :]
        carried = np.zeros(real.shape)
        for row, own in enumerate(reads):
            carried[row, : len(own)] = own
        counted = (np.arange(size) < np.asarray(seen)[:, None]).astype(np.float64)
        attracted = np.zeros(real.shape)
        units: list[NDArray[np.int64]] = []
        offsets: list[NDArray[np.bool_]] = []
        sunk: list[NDArray[np.bool_]] = []
        for number in range(len(self._layers), 0, -1):
            weights = self._layers[number - 1].astype(np.float64)
            if inside is not None:
                weights *= inside
            sums = weights.sum(axis=-1)
            if self._gradient:
                # A position without any positive gradient attends to itself.
                empty = (sums <= 0) & real
                np.einsum("bii->bi", weights)[empty] = 1.0
                sums[empty] = 1.0
            self._check(weights, sums, number)
            share: Any = self._residual
            if not isinstance(share, float):
                share = np.where(real, share[number - 1], 0.0)
            scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=real)
            rows = [counted * scale]
            if method == "raw" and number == layer:
                rows.append(carried * scale)
            elif method == "rollout" and number <= layer:
                rows.append(carried * scale * (1.0 - share))
            product = np.stack(rows, axis=1) @ weights
            attracted += product[:, 0] - rows[0] * np.einsum("bii->bi", weights)
            if len(rows) > 1:
                carried = product[:, 1] + (0.0 if method == "raw" else share * carried)
            if masks:
                offsets.insert(0, _offsets(weights != 0, self._sink))
                sunk.insert(0, np.asarray(weights[:, 1:, 0].any(axis=1)))
            if method == "flow" and number <= layer:
                weights *= scale[:, :, None]
                units.insert(0, to_units(add_residual(weights, share, real)))
        attracted[counted == 0] = -1.0
        every = np.stack(offsets) if masks else np.zeros((0, 0, 0), dtype=np.bool_)
        return _Read(carried, attracted.argmax(axis=1).tolist(), units, every, np.array(sunk))

    def _check(self, weights: NDArray[np.float64], sums: NDArray[np.float64], number: int) -> None:
        """Check rows as a graph does; the graph of the text in question says more."""
        near = self._gradient or bool(((np.abs(sums - 1.0) <= ROW_TOLERANCE) | ~self._real).all())
        if not near or not (weights >= 0).all():
            raise AttentionError(
                f"layer {number} of a text of the batch has rows that are not shares of 1"
            )


class _Read(NamedTuple):
    """What was read off the attention of B texts, padded to N tokens.

    `rows` are the scores of raw attention and of rollout, (B, N); `units` the integer capacities
    for flow, (B, N, N) for each layer up to the one asked for; `masks` the offsets that each layer
    attends over, (L, B, 2 N - 1), and `sunk` whether it attends to position 0, (L, B), if they were
    asked for.
    """

    rows: NDArray[np.float64]
    sinks: list[int]
    units: list[NDArray[np.int64]]
    masks: NDArray[np.bool_]
    sunk: NDArray[np.bool_]


def finish(tokens: Tokens, scored: Scored, row: int, layer: int, options: Options) -> Finished:
    """Leave out what is not wanted, and group tokens into the units asked for.

    Args:
        tokens: All tokens of the input.
        scored: The scores of one position.
        row: Which of the layers of `scored` is explained, from 0.
        layer: Its number in the model, for notes.
        options: The options.
    """
    scores = scored.scores
    tokens = tokens.first(scores.shape[1])
    notes = _notes(tokens, scored, row, layer, options)
    dropped = scored.sinks if options.drop_sink else ()
    kept = [
        i
        for i, special in enumerate(tokens.special)
        if i not in dropped and (options.special_tokens or not special)
    ]
    if dropped and scored.relative:
        scores = shares(np.where(np.isin(np.arange(len(tokens)), dropped), 0.0, scores))
    tokens, scores = tokens.select(kept), scores[:, kept]
    if options.units == "tokens":
        return Finished(tokens, scores, notes, [[i] for i in kept])
    tokens, groups = tokens.grouped(options.units)
    return Finished(
        tokens, summed(scores, groups), notes, [[kept[i] for i in group] for group in groups]
    )


def _notes(
    tokens: Tokens, scored: Scored, row: int, layer: int, options: Options
) -> tuple[str, ...]:
    """Return, in words, what a reader of the scores has to be warned of."""
    notes: list[str] = []
    scores, saturation = scored.scores[row], scored.saturation
    for name in options.without_effect():
        other = "rollout" if options.method in ANSWER_METHODS else "contribution"
        notes.append(
            f"{name} is {options[name]!r}, which has no effect on {options.method}. "
            f"method={other!r} depends on it."
        )
    if not scored.sinks:
        return tuple(notes)
    if saturation is not None and saturation >= SATURATED:
        notes.append(
            f"Flow is saturated for {saturation:.0%} of the tokens in layer {layer}: they receive "
            "as much as they could from any position, so these scores say little about this one. "
            "A lower layer, or rollout, says more."
        )
    if options.drop_sink:
        named = " and ".join(f"token {i}, {tokens.names[i]!r}" for i in scored.sinks)
        several = len(scored.sinks) > 1
        what = "attention sinks of the source and of the target" if several else "attention sink"
        notes.append(f"Left out as {what}, which most positions attend to: {named}.")
        return tuple(notes)
    sink = max(scored.sinks, key=lambda index: float(scores[index]))
    total = scores.sum()
    # The position explained is not a sink, even if it scores high.
    if sink != scored.position and total > 0 and scores[sink] / total > SINK:
        notes.append(
            f"Token {sink}, {tokens.names[sink]!r}, takes {scores[sink] / total:.0%} of the "
            "scores. It is an attention sink: most positions attend to it regardless of content. "
            "drop_sink=True leaves it out."
        )
    return tuple(notes)


# ---- Arithmetic ----------------------------------------------------------------------------------


def token_starts(sizes: Sequence[int] | None, positions: int) -> NDArray[np.int64] | None:
    """Return the first position of each token; None if every token has one.

    Args:
        sizes: How many positions each of the first tokens has; the others have one.
        positions: How many positions there are.

    Example:
        >>> token_starts([2, 3], 6)
        array([0, 2, 5])
    """
    if sizes is None or max(sizes) == 1:
        return None
    every = [*sizes, *[1] * (positions - sum(sizes))]
    return np.cumsum([0, *every[:-1]])


def shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows divided by their sums; a row of zeros stays one.

    Example:
        >>> shares(np.array([[1.0, 3.0], [0.0, 0.0]]))
        array([[0.25, 0.75],
               [0.  , 0.  ]])
    """
    sums = scores.sum(axis=-1, keepdims=True)
    result: NDArray[np.float64] = scores / np.where(sums > 0, sums, 1.0)
    return result


def gradient_rows(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gradient-weighted attention of shape (n, n) as rows that sum to 1.

    A position without any positive gradient attends to itself.

    Example:
        >>> gradient_rows(np.array([[0.1, 0.3], [0.0, 0.0]]))
        array([[0.25, 0.75],
               [0.  , 1.  ]])
    """
    empty = weights.sum(axis=-1, keepdims=True) <= 0
    result: NDArray[np.float64] = np.where(empty, np.eye(len(weights)), shares(weights))
    return result


def settled(flow: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round flows to multiples of 2**-40, about 1e-12.

    Flow is exact in units of 2**-50, but a row of equal weights is not one of equal units: some get
    one more than others, to make the sum of the row exact. Without rounding, ranks would differ.

    Example:
        >>> bool(np.ptp(settled(np.array([0.25, 0.25 + 2.0**-50]))) == 0)
        True
    """
    result: NDArray[np.float64] = np.rint(flow * 2.0**40) * 2.0**-40
    return result


def mask_of(graph: AttentionGraph) -> NDArray[np.bool_]:
    """Return the offsets that any position of a layer attends over, of shape (L, 2 n - 1).

    Offsets go from -(n - 1) to n - 1. A single weight may be 0 because softmax has run out of
    digits. An offset at which no position attends to anything is masked: a later token, or one
    outside a sliding window. A learned sink, which has no offset, is left out.

    Example:
        >>> mask_of(AttentionGraph([[[1.0, 0.0], [0.5, 0.5]]]))
        array([[ True,  True, False]])
    """
    return np.stack([_offsets((layer != 0)[None], graph.sink)[0] for layer in graph.attention])


def _offsets(attended: NDArray[np.bool_], sink: bool = False) -> NDArray[np.bool_]:
    """Return over which offsets, from -(N - 1) to N - 1, each of (B, N, N) masks attends.

    Rows are written one place longer than they are read, upside down, which puts every diagonal
    into a column. With a learned sink, position 0 is left out.
    """
    if sink:
        return np.pad(_offsets(attended[:, 1:, 1:]), ((0, 0), (1, 1)))
    batch, size, _ = attended.shape
    wide = np.zeros((batch, size, 2 * size), dtype=np.bool_)
    wide[:, :, :size] = attended[:, ::-1]
    shifted = wide.reshape(batch, -1)[:, : size * (2 * size - 1)]
    return np.asarray(shifted.reshape(batch, size, 2 * size - 1).any(axis=1))


def _residual_is_apart(
    residual: float | Sequence[NDArray[np.float64]] | NDArray[np.float64],
) -> bool:
    """Whether the residual has a share of its own; ALTI's rows hold it, and its share is 0.

    Uniform attention without a residual would put nearly all of a deep rollout on the first token,
    and is nothing to compare such rows with.
    """
    return isinstance(residual, float) or any(bool(layer.any()) for layer in residual)


def _relative_to(uniform: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores over those of uniform attention, as shares."""
    return shares(np.divide(scores, uniform, out=np.zeros_like(scores), where=uniform > 0))


def _graph_scores(
    graph: AttentionGraph,
    method: str,
    positions: Sequence[int],
    steps: Sequence[tuple[int, ...]],
    num_threads: int | None,
) -> NDArray[np.float64]:
    """Return the scores of the layers that `steps` of the graph make up, of shape (D, P, n)."""
    rows, tops = list(positions), [step[-1] for step in steps]
    if method == "raw":
        # Self- and cross-attention of a decoder layer count half each, so the sum is 1.
        return np.stack(
            [np.mean([graph.attention[i - 1, rows] for i in step], axis=0) for step in steps]
        )
    if method == "flow":
        return settled(attention_flow(graph, layers=tops, positions=rows, num_threads=num_threads))
    rollout = attention_rollout(graph, positions=rows)
    return rollout if len(tops) == graph.layers else rollout[[top - 1 for top in tops]]


def _uniform_scores(
    mask: NDArray[np.bool_],
    residual: float | NDArray[np.float64],
    method: str,
    positions: Sequence[int],
    known: Uniform,
    *,
    encoder: tuple[int, int] | None = None,
    sunk: NDArray[np.bool_] | None = None,
    steps: Sequence[tuple[int, ...]] | None = None,
    num_threads: int | None = None,
) -> NDArray[np.float64]:
    """Return the scores of uniform attention over a mask, of shape (D, P, n).

    The residual connection keeps its share, also where that was measured.
    """
    key = (
        mask.shape,
        encoder,
        None if sunk is None else sunk.tobytes(),
        residual if isinstance(residual, float) else residual.tobytes(),
        method,
        tuple(positions),
        np.packbits(mask).tobytes(),
    )
    # Read once, and not read back: another thread may empty the table in between.
    found = known.get(key)
    if found is None:
        found = _uniform(mask, residual, method, positions, encoder, sunk, steps, num_threads)
        if len(known) >= MOST_UNIFORM:
            known.clear()
        known[key] = found
    return found


def _uniform(
    mask: NDArray[np.bool_],
    residual: float | NDArray[np.float64],
    method: str,
    positions: Sequence[int],
    encoder: tuple[int, int] | None,
    sunk: NDArray[np.bool_] | None,
    steps: Sequence[tuple[int, ...]] | None,
    num_threads: int | None,
) -> NDArray[np.float64]:
    if method == "rollout" and encoder is None:
        starts = np.stack([weights_at(place, (mask.shape[1] + 1) // 2) for place in positions])
        return uniform_rollout(mask, starts, residual=residual, sunk=sunk)
    graph = uniform_graph(mask, residual=residual, encoder=encoder, sunk=sunk)
    steps = steps or [(step,) for step in range(1, graph.layers + 1)]
    return _graph_scores(graph, method, positions, steps, num_threads)


def _mean_flow(
    units: list[NDArray[np.int64]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the weighted mean of the flows from positions, and of the shares saturated."""
    places = [int(place) for place in np.flatnonzero(weights)]
    found = [_flow(units, place) for place in places]
    if len(found) == 1:
        return found[0]
    flows = np.stack([flow for flow, _ in found])
    return weights[places] @ flows, float(weights[places] @ [share for _, share in found])


def _flow(units: list[NDArray[np.int64]], position: int) -> tuple[NDArray[np.float64], float]:
    """Return the flows from a position of the top layer, and the share that is saturated."""
    stack = [np.ascontiguousarray(layer) for layer in units]
    top, tokens = np.array([len(stack)]), np.arange(len(stack[0]))
    # One thread: there are as many texts at work as there are CPUs to use.
    flow = solve_units(stack, top, np.array([position]), tokens, 1)[0, 0]
    bound = np.minimum(stack[-1][position].sum(), stack[0].sum(axis=0))
    found = settled(flow * UNIT)
    return found, float((found == settled(bound * UNIT)).mean())
