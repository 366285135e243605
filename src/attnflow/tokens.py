"""Tokens: the pieces of an input that are scored, and how they group into words and sentences."""

from __future__ import annotations

import codecs
import re
import unicodedata
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

CLS: Final = ("[CLS]", "<s>", "<cls>")
"""What the token at the beginning of a classifier's text is called."""

ADDED: Final = (
    *CLS, "[SEP]", "</s>", "<sep>", "[PAD]", "<pad>", "[BOS]", "<bos>", "[EOS]", "<eos>",
    "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>",
)  # fmt: skip
"""What tokens are called that tokenizers add to a text."""

# How SentencePiece writes a space, and a byte that is no token.
_SPACE: Final = "\u2581"
_BYTE: Final = re.compile("<0x([0-9A-F]{2})>")
# How byte-level vocabularies write a space and a line break, and their other bytes: those that are
# a visible character of Latin-1 as that character, and the rest as the letters from U+0100 on.
_BYTE_MARKS: Final = ("\u0120", "\u010a")
_SHOWN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = tuple(byte for byte in range(256) if byte not in _SHOWN)
_BYTES: Final = {chr(byte): byte for byte in _SHOWN} | {
    chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)
}


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


def laid_out(names: Sequence[str]) -> tuple[str, list[Span | None]]:
    r"""Return a text that tokens may be of, and where they stand in it.

    Tokens form words where their names say how: "##" continues a word; a space, or the mark of a
    vocabulary of SentencePiece or of bytes, begins one. Otherwise each token is a word.

    Args:
        names: The tokens, as their tokenizer names them.

    Returns:
        The text, and for each token its start and end there; None for one that a tokenizer adds.
        Tokens that have parts of one character share it.

    Example:
        >>> laid_out(["[CLS]", "key", "##s", "open"])
        ('keys open', [None, (0, 3), (3, 4), (5, 9)])
        >>> laid_out(["\u2581key", "s", "\u2581open", "<0x0A>"])
        ('keys open\n', [(0, 3), (3, 4), (5, 9), (9, 10)])
        >>> laid_out(["It", "\u00e2\u0122", "\u013b", "s", "\u0120open", "\u010a"])
        ('It\u2019s open\n', [(0, 2), (2, 3), (2, 3), (3, 4), (5, 9), (9, 10)])
    """
    octets = _byte_level(names)
    pieced = any(_SPACE in name for name in names)
    # Some tools give each token as its part of the text.
    spaced = any(name.startswith(" ") for name in names)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    spans: list[Span | None] = []
    waiting: list[int] = []  # tokens with the first bytes of a character

    def settle() -> None:
        """Show the bytes that are no character as damaged."""
        nonlocal text
        start = len(text)
        text += decoder.decode(b"", final=True)
        for earlier in waiting:
            spans[earlier] = (start, len(text))
        waiting.clear()

    for index, name in enumerate(names):
        if name in ADDED:
            spans.append(None)
            continue
        goes_on = name.startswith("##") and len(name) > 2
        own: bytes | str
        if octets:
            own = _octets(name)
            begins = own.startswith(b" ")
            own = own[begins:]
        elif pieced:
            begins = name.startswith(_SPACE)
            byte = _BYTE.fullmatch(name)
            own = bytes([int(byte[1], 16)]) if byte else name[begins:].replace(_SPACE, " ")
        elif spaced:
            begins = name.startswith(" ")
            own = name[begins:]
        else:
            begins = not goes_on
            own = name[2:] if goes_on else name
        if isinstance(own, str) or begins:
            settle()
        start = len(text)
        if begins and text:
            text += " "
            # The space before a word is not part of it.
            start += bool(own)
        text += own if isinstance(own, str) else decoder.decode(own)
        spans.append((start, len(text)))
        if own and start == len(text):
            waiting.append(index)
        elif waiting:
            for earlier in waiting:
                spans[earlier] = (start, start + 1)
            waiting.clear()
    settle()
    return text, spans


def readable(names: Sequence[str]) -> list[str]:
    r"""Return what tokens stand for: their names without the marks of their vocabulary.

    Args:
        names: The tokens, as their tokenizer names them.

    Returns:
        The text of each, as `laid_out` finds it; its name if it has no text. A token of spaces or
        line breaks is that. Names without marks of spaces are returned as they are.

    Example:
        >>> readable(["<s>", "\u2581The", "\u2581key", "s", "\u2581"])
        ['<s>', 'The', 'key', 's', ' ']
        >>> readable(["\u0120keys", "\u010a\u010a"])
        ['keys', '\n\n']
    """
    if not _byte_level(names) and not any(_SPACE in name for name in names):
        return list(names)
    text, spans = laid_out(names)
    found = ["" if span is None else text[slice(*span)] for span in spans]
    marks = (*_BYTE_MARKS, _SPACE)
    return [
        part.strip() or part or (" " if name in marks else name)
        for part, name in zip(found, names, strict=True)
    ]


def in_text(text: str, names: Sequence[str], spans: Sequence[Span | None]) -> tuple[str, ...]:
    """Return what stands in a text for each token; for one without text, its `readable` name.

    Example:
        >>> in_text("the keys", ("[CLS]", "the", "\u0120keys"), (None, (0, 3), (3, 8)))
        ('[CLS]', 'the', 'keys')
    """
    parts = ["" if span is None else text[slice(*span)] for span in spans]
    return tuple(
        part.strip() or part or readable([name])[0] for part, name in zip(parts, names, strict=True)
    )


def _byte_level(names: Sequence[str]) -> bool:
    """Return whether names are of a vocabulary of bytes, and not words with letters like its marks.

    Example:
        >>> _byte_level(["\u0120keys"]), _byte_level(["\u0120or\u0121", "\u0127obz"])  # Maltese
        (True, False)
    """
    if not any(name.startswith(_BYTE_MARKS) for name in names):
        return False
    text = b"".join(map(_octets, names)).decode("utf-8", "replace")
    return all(unicodedata.category(one) != "Cc" or one in "\t\n\r" for one in text)


def _octets(name: str) -> bytes:
    """Return the bytes of a token of a byte-level vocabulary; of any other character its own."""
    found = bytearray()
    for character in name.replace(_SPACE, " "):
        byte = _BYTES.get(character)
        found += character.encode("utf-8", "replace") if byte is None else bytes([byte])
    return bytes(found)


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
