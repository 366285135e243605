"""The text of an explanation, divided into its tokens."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from attnflow.explanation import Explanation
from attnflow.fields import Segment
from attnflow.options import ANSWER_METHODS
from attnflow.segment import clusters
from attnflow.tokens import Span, Tokens, readable

SPACE: Final = "\u2423"
"""What is shown for a space, where a blank label would say nothing."""


class Piece(NamedTuple):
    """A part of a text as a view shows it.

    Attributes:
        text: A part of the text, or the name of a token that is not in the text.
        tokens: The indices of the tokens shown: none for what lies between tokens, several where
            tokens share a character.
        label: Whether it is the name of a segment, with a colon and a space, and not of the text.
    """

    text: str
    tokens: tuple[int, ...]
    label: bool = False


def pieces(tokens: Tokens) -> list[Piece]:
    """Divide a text into its tokens and what lies between them.

    Args:
        tokens: The tokens, such as the `pieces` of an explanation.

    Returns:
        The pieces in the order of the text. Joined, they are the text, with the names of tokens
        that have no span set apart by spaces, each in its place among the tokens, and the name of
        each segment before it. The piece of a token has no whitespace around it, unless the token
        is whitespace, and never ends within what a reader sees as one character.
    """
    text, names = tokens.text, readable(tokens.names)
    placed: list[tuple[int, int, int]] = []
    named: dict[int, list[int]] = {}  # tokens without a span, by how many with one precede them
    for index, span in enumerate(_whole_spans(tokens)):
        if span is None:
            named.setdefault(len(placed), []).append(index)
        else:
            placed.append((*span, index))

    shown: list[Piece] = []
    waiting: list[int] = []  # tokens without characters of their own, before any piece
    last = -1  # the piece of the last token shown
    cursor = 0
    begin = _heads(tokens, placed)
    # The sort is stable: tokens that share a character keep their order.
    for rank, (start, end, index) in enumerate(sorted(placed, key=lambda item: item[0])):
        for segment in begin.get(index, ()):
            # A token that ends a segment, such as [SEP], stays with it.
            if rank:
                shown += [Piece(names[i], (i,)) for i in named.pop(rank, [])]
            shown.append(Piece(text[cursor : max(cursor, segment.start)], ()))
            cursor = max(cursor, segment.start)
            shown.append(Piece(f"{segment.name}: ", (), label=True))
        if start > cursor:
            shown.append(Piece(text[cursor:start], ()))
            cursor = start
        shown += [Piece(names[i], (i,)) for i in named.get(rank, [])]
        part = text[cursor:end]
        if not part:
            if last < 0:
                waiting.append(index)
            else:
                shown[last] = Piece(shown[last].text, (*shown[last].tokens, index))
            continue
        body = part.strip() or part
        before, _, after = part.partition(body)
        shown += [Piece(before, ()), Piece(body, (*waiting, index)), Piece(after, ())]
        last = len(shown) - 2
        waiting = []
        cursor = end
    shown.append(Piece(text[cursor:], ()))
    shown += [Piece(names[i], (i,)) for i in (*waiting, *named.get(len(placed), []))]
    return _set_apart([piece for piece in shown if piece.text], tokens.spans)


def _heads(tokens: Tokens, placed: Sequence[tuple[int, int, int]]) -> dict[int, list[Segment]]:
    """Return the segments that have a name, by their first tokens.

    `placed` has the start and end of tokens in the text, and their indices.
    """
    found: dict[int, list[Segment]] = {}
    for segment in sorted(tokens.segments, key=lambda segment: segment.start):
        inside = (i for start, end, i in sorted(placed) if segment.start <= start < segment.end)
        first = next(inside, None)
        if segment.name and first is not None:
            found.setdefault(first, []).append(segment)
    return found


def headed(tokens: Tokens, names: Sequence[str]) -> list[str]:
    """Return the names of tokens, that of the first in a segment with the segment's before it.

    Example:
        >>> from attnflow.tokens import joined
        >>> text, segments = joined(("keys open", "doors"))
        >>> spans = ((0, 4), (5, 9), (10, 15))
        >>> tokens = Tokens(text, ("keys", "open", "doors"), spans, (False,) * 3, segments)
        >>> headed(tokens, tokens.names)
        ['first: keys', 'open', 'second: doors']
    """
    shown = list(names)
    placed = [(*span, i) for i, span in enumerate(tokens.spans) if span is not None]
    for index, segments in _heads(tokens, placed).items():
        for segment in segments:
            if shown[index] != segment.name:
                shown[index] = f"{segment.name}: {shown[index]}"
    return shown


def _whole_spans(tokens: Tokens) -> list[Span | None]:
    """Return the tokens' spans, widened to what a reader sees as one character."""
    length = len(tokens.text)
    floor = list(range(length + 1))
    ceiling = list(range(length + 1))
    for start, end in clusters(tokens.text):
        floor[start:end] = [start] * (end - start)
        ceiling[start + 1 : end + 1] = [end] * (end - start)
    return [
        # An empty span stays empty.
        span if span is None or span[0] == span[1] else (floor[span[0]], ceiling[span[1]])
        for span in tokens.spans
    ]


def _set_apart(shown: list[Piece], spans: Sequence[Span | None]) -> list[Piece]:
    """Put a space between a token that is shown by name and what is beside it."""
    result: list[Piece] = []
    by_name_before = False
    for piece in shown:
        by_name = any(spans[i] is None for i in piece.tokens)
        seam = (result[-1].text[-1] + piece.text[0]) if result else " "
        if (by_name or by_name_before) and not any(side.isspace() for side in seam):
            result.append(Piece(" ", ()))
        result.append(piece)
        by_name_before = by_name
    return result


def has_sign(explanation: Explanation) -> bool:
    """Return whether the sign of a score has a meaning: for the answer, or against it."""
    return explanation.method in ANSWER_METHODS


def unread(explanation: Explanation) -> str:
    """Return the end of the text that was not read; empty if all was.

    It was written later, comes after the position explained, or was cut.
    """
    return explanation.text[_end(explanation) :].strip()


def as_read(explanation: Explanation) -> Explanation:
    """Return an explanation with its text as far as it was read, and without a trace.

    Example:
        >>> explanation = Explanation(
        ...     tokens=["the", "keys"], scores=[0.5, 2.0], layer_scores=[[0.5, 2.0]],
        ...     method="contribution", layer=1, position=1, text="the keys are", model="tiny",
        ...     spans=[(0, 3), (4, 8)], special=[False, False], task="causal-lm", target=" are",
        ...     value=2.5, bias=0.0, options={"read": 8},
        ... )
        >>> as_read(explanation).text, unread(explanation)
        ('the keys', 'are')
    """
    end = _end(explanation)
    return replace(
        explanation,
        text=explanation.text[:end],
        segments=tuple(
            one._replace(end=min(one.end, end)) for one in explanation.segments if one.start < end
        ),
        trace=None,
    )


def _end(explanation: Explanation) -> int:
    end = explanation.options.get("read")
    if not isinstance(end, int):
        return len(explanation.text)
    return max(end, *(span[1] for span in explanation.spans if span is not None), 0)


def shades(explanation: Explanation, shown: Sequence[Piece]) -> list[float | None]:
    """Return how strongly each piece is highlighted.

    Args:
        explanation: The explanation.
        shown: Its pieces.

    Returns:
        For each piece its score as a share of the highest, from 0 to 1; of scores with a sign, as a
        share of the largest, from -1 to 1. None for what lies between tokens, and for special
        tokens, whose scores often exceed all those of the text.
    """
    scores = [
        float(explanation.scores[list(piece.tokens)].sum())
        if piece.tokens and not all(explanation.special[i] for i in piece.tokens)
        else None
        for piece in shown
    ]
    lowest = -math.inf if has_sign(explanation) else 0.0
    known = [max(lowest, score) for score in scores if score is not None]
    largest = max(map(abs, known), default=0.0) or 1.0
    return [None if score is None else max(lowest, score) / largest for score in scores]


def labels(tokens: Tokens, *, numbered: bool = True) -> list[str]:
    """Return a name for each token that a reader recognises.

    Args:
        tokens: The tokens, such as the `pieces` of an explanation.
        numbered: Whether tokens with equal names are numbered in their order.

    Returns:
        The token's part of the text, or its name if that is empty, without the marks by which a
        vocabulary writes spaces and line breaks. A symbol stands for each space of a token that is
        nothing else.

    Example:
        >>> tokens = Tokens("to be", ("to", "\u0120", "be"), ((0, 2), (2, 3), (3, 5)), (False,) * 3)
        >>> labels(tokens)
        ['to', '\u2423', 'be']
    """
    names = []
    known = readable(tokens.names)
    for index, span in enumerate(_whole_spans(tokens)):
        part = "" if span is None else tokens.text[span[0] : span[1]]
        own = known[index]
        if span and any(
            one.name == own and one.start <= span[0] and span[1] <= one.end
            for one in tokens.segments
        ):
            part = own  # a whole segment goes by its name
        name = part.strip() or part or own
        names.append(name if name.strip(" ") else SPACE * len(name))
    counts = Counter(names if numbered else ())
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        if counts[name] > 1:
            seen[name] += 1
            names[index] = f"{name} ({_ordinal(seen[name])})"
    return names


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else ending}"
