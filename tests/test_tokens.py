"""Tokens, and how they group into words and sentences."""

import numpy as np
import pytest

from attnflow import OptionError
from attnflow.segment import sentences, words
from attnflow.tokens import Tokens, summed


def split(text, numbers):
    """The pieces of a text that share a number, without whitespace."""
    found = {}
    for character, number in zip(text, numbers, strict=True):
        if number >= 0:
            found[number] = found.get(number, "") + character
    assert list(found) == list(range(len(found)))
    return list(found.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("I don't know.", ["I", "don't", "know", "."]),
        ("an e-mail, 3.14 or 1,000!!", ["an", "e-mail", ",", "3.14", "or", "1,000", "!!"]),
        ("naïve 😀😀", ["naïve", "😀", "😀"]),
        ("我来", ["我", "来"]),
    ],
)
def test_words(text, expected):
    assert split(text, words(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. J. Smith left. Why?", ["Dr.J.Smithleft.", "Why?"]),
        ('He said "No." Then he left.', ['Hesaid"No."', "Thenheleft."]),
        ("It costs 3.50 e.g. here", ["Itcosts3.50e.g.here"]),
        ("wait... what", ["wait...what"]),
        ("a title\n\nA text.", ["atitle", "Atext."]),
        ("他来了。我走了。", ["他来了。", "我走了。"]),
    ],
)
def test_sentences(text, expected):
    assert split(text, sentences(text)) == expected


TEXT = "The keys. They fit."
TOKENS = Tokens(
    TEXT,
    ("[CLS]", "The", "key", "s", ".", "They", "fit", ".", "[SEP]"),
    (None, (0, 3), (4, 7), (7, 8), (8, 9), (10, 14), (15, 18), (18, 19), None),
    (True, *[False] * 7, True),
)


def test_tokens_group_into_units():
    assert TOKENS.grouped("tokens")[0] is TOKENS
    found, groups = TOKENS.grouped("words")
    assert found.names == ("[CLS]", "The", "keys", ".", "They", "fit", ".", "[SEP]")
    assert found.spans[2] == (4, 8)
    found, groups = TOKENS.grouped("sentences")
    assert found.names == ("[CLS]", "The keys.", "They fit.", "[SEP]")
    assert groups == [[0], [1, 2, 3, 4], [5, 6, 7], [8]]
    assert found.special == (True, False, False, True)


def test_every_token_is_in_exactly_one_unit():
    for units in ("tokens", "words", "sentences"):
        _, groups = TOKENS.grouped(units)
        assert sorted(token for group in groups for token in group) == list(range(len(TOKENS)))


def test_a_token_of_whitespace_joins_the_sentence_before_it():
    tokens = Tokens(
        "A b.\nC.", ("A", "b.", "\n", "C."), ((0, 1), (1, 4), (4, 5), (5, 7)), (False,) * 4
    )
    assert tokens.grouped("sentences")[1] == [[0, 1, 2], [3]]
    assert tokens.grouped("words")[1] == [[0], [1], [2], [3]]


def test_unknown_units_are_refused():
    with pytest.raises(OptionError, match=r"units.*'letters'"):
        TOKENS.grouped("letters")


def test_sums_over_groups():
    values = np.arange(6.0).reshape(2, 3)
    assert summed(values, [[0, 2], [1]]).tolist() == [[2.0, 1.0], [8.0, 4.0]]
