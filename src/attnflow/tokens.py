"""Tokens: the pieces of an input that are scored, and how they group into words and sentences."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import choice
from attnflow.errors import OptionError
from attnflow.fields import Segment, segments_in
from attnflow.options import UNITS
from attnflow.segment import clusters, sentences, words

Span = tuple[int, int]
"""The start and end of a piece of a text, counted in characters."""

PAIR: Final = ("first", "second")
"""What the two texts of a pair are called."""


@dataclass(frozen=True)
class Tokens:
    r"""The tokens of an input, in their order.

    Attributes:
        text: The text they are of; empty for an image.
        names: What a reader is shown for each.
        spans: The place of each in the text; None for a token that is not part of it.
        special: Whether each was added by the tokenizer, or has a special meaning.
        segments: The parts of the text that have a name: the two texts of a pair, the messages of
            a chat. Empty for a text that has no parts.

    Example:
        >>> tokens = Tokens(
        ...     "the keys", ("[CLS]", "the", "key", "##s"), (None, (0, 3), (4, 7), (7, 8)),
        ...     (True, False, False, False),
        ... )
        >>> tokens.grouped("words")[0].names
        ('[CLS]', 'the', 'keys')
        >>> tokens.grouped("words")[1]
        [[0], [1], [2, 3]]
    """

    text: str
    names: tuple[str, ...]
    spans: tuple[Span | None, ...]
    special: tuple[bool, ...]
    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def select(self, kept: Sequence[int]) -> Tokens:
        """Return some of the tokens, by index."""
        return replace(
            self,
            names=tuple(self.names[i] for i in kept),
            spans=tuple(self.spans[i] for i in kept),
            special=tuple(self.special[i] for i in kept),
        )

    @property
    def patches(self) -> tuple[int, ...]:
        """The indices of tokens that are neither special nor text: in an image, its patches."""
        marks = zip(self.special, self.spans, strict=True)
        return tuple(i for i, (special, span) in enumerate(marks) if not special and span is None)

    def first(self, count: int) -> Tokens:
        """Return the first tokens."""
        return self.select(range(min(count, len(self))))

    def with_sink(self) -> Tokens:
        """Return the tokens with a learned sink before the first."""
        return replace(
            self,
            names=("sink", *self.names),
            spans=(None, *self.spans),
            special=(True, *self.special),
        )

    def grouped(self, units: str | Sequence[Any]) -> tuple[Tokens, list[list[int]]]:
        """Group tokens into words, sentences or segments.

        Tokens belong to a word or sentence by their spans. A token that reaches into several words
        makes them one. What a reader sees as one character, such as an emoji with joiners or a
        letter with combining marks, is never divided. A token of spaces counts for the word that
        follows it, and one with a line break stands for itself; in sentences both count for the
        sentence that they are in or follow. Special tokens, and tokens without a span, stay as they
        are. No word or sentence is in two segments of the text.

        Args:
            units: "tokens", "words", "sentences" or "segments"; or stretches of the text, as
                `attnflow.fields.segments_in` takes them. What is between segments is a unit of its
                own.

        Returns:
            The units, as tokens; and for each the indices of its tokens here.

        Raises:
            OptionError: If `units` is none of these, or a stretch is not part of the text.
        """
        if units == "tokens":
            return self, [[i] for i in range(len(self))]
        segments = self.segments
        if not isinstance(units, str):
            segments = segments_in(units, "units", len(self.text))
        elif choice(units, "units", UNITS) == "segments" and not segments:
            raise OptionError(
                "units is 'segments', but the text has no parts; expected tokens, words or "
                "sentences, or a list of (start, end)"
            )
        split = {"words": words, "sentences": sentences}.get(str(units))
        parts = _parts(self.text, segments)
        groups, spans = _grouped(self, _numbers(self.text, parts, split), alone=units == "words")
        names = []
        for group, span in zip(groups, spans, strict=True):
            first = group[0]
            own = "" if span is None or self.special[first] else self.text[span[0] : span[1]]
            if span is not None and own and split is None:
                part = parts[bisect(parts, span[0], key=lambda part: part.start) - 1]
                own = part.name if part.name and span[1] <= part.end else own
            # A group without text of its own is a single token, and keeps its name.
            names.append(own or self.names[first])
        special = tuple(self.special[group[0]] for group in groups)
        return replace(self, names=tuple(names), spans=tuple(spans), special=special), groups


def joined(texts: Sequence[str]) -> tuple[str, tuple[Segment, ...]]:
    r"""Return the two texts of a pair as one text, a line each, with its segments.

    Example:
        >>> joined(("the keys", "the dog"))[0]
        'the keys\nthe dog'
        >>> joined(("the keys", "the dog"))[1][1]
        Segment(name='second', start=9, end=16)
    """
    first, second = texts
    start = len(first) + 1
    ends = (Segment(PAIR[0], 0, len(first)), Segment(PAIR[1], start, start + len(second)))
    return f"{first}\n{second}", ends


def _parts(text: str, segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments of a text, and what is between them, in their order."""
    found, end = [], 0
    for segment in sorted(segments, key=lambda segment: segment.start):
        if segment.start > end:
            found.append(Segment("", end, segment.start))
        found.append(segment)
        end = segment.end
    return [*found, Segment("", end, len(text))] if end < len(text) else found


def _numbers(
    text: str, parts: Sequence[Segment], split: Callable[[str], list[int]] | None
) -> list[int]:
    """Number the units of each part of a text, on from those before; without `split`, the parts.

    Returns:
        For each character the number of its unit; -1 for whitespace.
    """
    numbers: list[int] = []
    for _, start, end in parts:
        first = max(numbers, default=-1) + 1
        if split is None:
            own = [-1 if character.isspace() else 0 for character in text[start:end]]
        else:
            own = split(text[start:end])
        numbers += [first + number if number >= 0 else -1 for number in own]
    return numbers


def summed(values: NDArray[np.float64], groups: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Sum the last axis over groups of its entries.

    Args:
        values: Array of shape (..., T).
        groups: The indices of each group's entries.

    Returns:
        Array of shape (..., len(groups)).

    Example:
        >>> summed(np.array([0.5, 0.25, 0.25]), [[0], [1, 2]])
        array([0.5, 0.5])
    """
    result: NDArray[np.float64] = np.empty((*values.shape[:-1], len(groups)))
    for column, group in enumerate(groups):
        result[..., column] = values[..., list(group)].sum(axis=-1)
    return result


def _grouped(
    tokens: Tokens, numbers: Sequence[int], *, alone: bool
) -> tuple[list[list[int]], list[Span | None]]:
    """Return the tokens of each unit, and its span, in the order of their first tokens.

    `numbers` has the unit of each character, -1 for whitespace. With `alone`, a token with a line
    break stands for itself.
    """
    cluster_of = [bounds for bounds in clusters(tokens.text) for _ in range(*bounds)]
    # Per token the characters it stands for: whole clusters, without whitespace around them.
    extents: dict[int, Span] = {}
    blanks: dict[int, Span] = {}
    for token, span in enumerate(tokens.spans):
        if span is None or tokens.special[token]:
            continue
        visible = [i for i in range(*span) if numbers[i] >= 0]
        if visible:
            extents[token] = (cluster_of[visible[0]][0], cluster_of[visible[-1]][1])
        else:
            blanks[token] = span

    # A token that reaches into several units makes them one.
    joined: set[int] = set()
    for start, end in extents.values():
        joined.update(range(numbers[start] + 1, numbers[end - 1] + 1))
    unit_of = {}
    unit = -1
    for number in range(max(numbers, default=-1) + 1):
        unit += number not in joined
        unit_of[number] = unit

    units = {token: unit_of[numbers[start]] for token, (start, _) in extents.items()}
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for token, (start, end) in extents.items():
        begins[units[token]] = min(start, begins.get(units[token], start))
        ends[units[token]] = max(end, ends.get(units[token], 0))
    for token, (start, end) in blanks.items():
        if not ends:
            continue
        if not alone:
            # A line break may stand in the middle of a sentence.
            units[token] = max((u for u in begins if begins[u] <= start), default=min(begins))
        elif not any(character in "\n\r" for character in tokens.text[start:end]):
            # The first word that ends after the token, or else the last.
            units[token] = min((u for u in ends if ends[u] > start), default=max(ends))

    members: dict[Any, list[int]] = {}
    for token in range(len(tokens)):
        key = ("unit", units[token]) if token in units else ("token", token)
        members.setdefault(key, []).append(token)
    groups = list(members.values())
    return groups, [_extent(group, extents, tokens.spans) for group in groups]


def _extent(
    group: Sequence[int], extents: Mapping[int, Span], spans: Sequence[Span | None]
) -> Span | None:
    inside = [extents[token] for token in group if token in extents]
    if not inside:
        return spans[group[0]]
    return min(start for start, _ in inside), max(end for _, end in inside)
