"""Where a text divides: characters as a reader sees them, words and sentences.

Python's standard library has neither grapheme clusters nor word or sentence boundaries. This module
follows Unicode's annex 29 as far as grouping tokens needs it.
"""

import re
import unicodedata

_ZERO_WIDTH_SPACE = "\u200b"
_ZERO_WIDTH_JOINER = "\u200d"
# Letters that are written as part of the letter before, although Unicode does not call them marks:
# Thai and Lao "am", the halfwidth voicing marks of Kana, and skin tones.
_EXTENDING = frozenset("\u0e33\u0eb3\uff9e\uff9f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
# Between two letters or digits these are part of the word; the others are so between two digits.
_WITHIN_WORDS = frozenset("'\u2019.\u2024\u00b7-\u2010\u2011\u05f3\u05f4")
_WITHIN_NUMBERS = frozenset(",:\u066b\u066c")
# Scripts that are written without a space between words.
_WITHOUT_SPACES = (
    (0x0E01, 0x0EDF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17D3),  # Khmer
    (0x2E80, 0x2FDF),  # radicals of Han
    (0x3005, 0x3007),  # marks and numbers of Han
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303C),
    (0x3041, 0x309F),  # Hiragana
    (0x30A1, 0x30FA),  # Katakana, but for its middle dot
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FE),  # Myanmar
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x1AFF0, 0x1B16F),  # Kana
    (0x20000, 0x3FFFF),  # Han
)

# A mark that may end a sentence, with what closes after it.
_SENTENCE_END = re.compile(
    r"""(?:(?P<wide>[\u3002\uff01\uff1f\uff61])|(?P<mark>[.!?\u2026\u061f\u06d4\u0964]+))["')\]\u201d\u2019\u00bb\u300d\u300f]*"""
)
_EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")
# Abbreviations that come before a capital letter in the middle of a sentence.
_ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "jr", "sr", "vs", "e.g", "i.e", "cf", "fig", "vol", "pp")
)


def clusters(text: str) -> list[tuple[int, int]]:
    r"""Divide a text into the characters that a reader sees.

    A letter with its combining marks, an emoji with its joiners, skin tone or variation selector,
    a flag, and a syllable of Hangul letters are one such character each.

    Args:
        text: Any text.

    Returns:
        The start and end of each, in order and without gaps.

    Example:
        >>> clusters("ne\u0301e")  # an e with a combining accent, and one without
        [(0, 1), (1, 3), (3, 4)]
    """
    starts: list[int] = []
    half_flag = False
    for index, character in enumerate(text):
        before = text[index - 1] if index else " "
        flag = "\U0001f1e6" <= character <= "\U0001f1ff"
        other_half = flag and half_flag
        half_flag = flag and not other_half
        if _is_space(before) or not (other_half or _extends(character, before)):
            starts.append(index)
    return list(zip(starts, [*starts[1:], len(text)], strict=True)) if text else []


def _extends(character: str, before: str) -> bool:
    if character.isascii() or _is_space(character):
        # Nothing in ASCII is a mark, and a joiner before it has nothing to join.
        return False
    return (
        unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf")
        or character in _EXTENDING
        or before == _ZERO_WIDTH_JOINER
        or (_is_inner_jamo(character) and _is_hangul(before))
    )


def _is_inner_jamo(character: str) -> bool:
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"


def _is_hangul(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff" or "\ua960" <= character <= "\ud7fb"


def _is_space(character: str) -> bool:
    return character.isspace() or character == _ZERO_WIDTH_SPACE


def _kind(character: str) -> str:
    """Say what a character does to words: "space", "alone", "word" or "other"."""
    if _is_space(character):
        return "space"
    code = ord(character)
    if code >= 0x0E01 and any(first <= code <= last for first, last in _WITHOUT_SPACES):
        return "alone"
    category = unicodedata.category(character)
    return "word" if category[0] in "LNM" or category == "Pc" else "other"


def words(text: str) -> list[int]:
    r"""Number the words of a text, and the punctuation and symbols beside them.

    "don't", "e-mail" and "3.14" are words, and "table." is a word and a full stop. A run of the
    same punctuation, such as an ellipsis, counts as one; each emoji as one of its own. In scripts
    that do not mark where words end (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character
    counts by itself.

    Args:
        text: Any text.

    Returns:
        For each character the number of its word, from 0 in order; -1 for whitespace.

    Example:
        >>> words("I don't.")
        [0, -1, 1, 1, 1, 1, 1, 2]
    """
    parts = [text[start:end] for start, end in clusters(text)]
    kinds = [_kind(part[0]) for part in parts]

    def inside(i: int) -> bool:
        """Whether the cluster is punctuation between two parts of a word."""
        if not (0 < i < len(parts) - 1 and kinds[i - 1] == kinds[i + 1] == "word"):
            return False
        if parts[i][0] in _WITHIN_WORDS:
            return True
        digits = parts[i - 1][0].isdigit() and parts[i + 1][0].isdigit()
        return digits and parts[i][0] in _WITHIN_NUMBERS

    numbers: list[int] = []
    number = -1
    for i, part in enumerate(parts):
        if kinds[i] == "space":
            numbers += [-1] * len(part)
            continue
        if kinds[i] == "word":
            joined = i > 0 and (kinds[i - 1] == "word" or inside(i - 1))
        else:
            repeated = i > 0 and kinds[i] == "other" and part == parts[i - 1]
            joined = inside(i) or (repeated and unicodedata.category(part[0]) != "So")
        number += not joined
        numbers += [number] * len(part)
    return numbers


def sentences(text: str) -> list[int]:
    r"""Number the sentences of a text.

    A sentence ends after a full stop, a question or exclamation mark or an ellipsis, with the
    quotes and brackets that close there, if whitespace follows and then no lower-case letter; after
    the full-width marks of Chinese and Japanese; and at an empty line. A full stop after a single
    capital letter (an initial) or a common abbreviation ends no sentence.

    Args:
        text: Any text.

    Returns:
        For each character the number of its sentence, from 0 in order; -1 for whitespace.

    Example:
        >>> sentences("No. Yes!")
        [0, 0, 0, -1, 1, 1, 1, 1]
        >>> max(sentences("Dr. J. Smith left. Why?"))
        1
    """
    numbers: list[int] = []
    number, begun = 0, False
    breaks = {match.end() for match in _SENTENCE_END.finditer(text) if _ends(text, match)}
    breaks |= {match.end() for match in _EMPTY_LINE.finditer(text)}
    for place, character in enumerate(text):
        if place in breaks and begun:
            number, begun = number + 1, False
        if _is_space(character):
            numbers.append(-1)
        else:
            begun = True
            numbers.append(number)
    return numbers


def _ends(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends with a mark and what closes after it."""
    if match["wide"]:
        return True
    following = text[match.end() :].lstrip()
    if match.end() < len(text) and not _is_space(text[match.end()]):
        return False
    if following and following[0].islower():
        return False
    before = text[: match.start()].rsplit(maxsplit=1)[-1:] or [""]
    last = before[0].lstrip("([\"'\u201c\u2018")
    initial = len(last) == 1 and last.isupper()
    return match["mark"] != "." or not (initial or last.casefold() in _ABBREVIATIONS)
