"""Tokens, and how they group into words and sentences."""

import dataclasses

import numpy as np
import pytest

from attnflow import OptionError
from attnflow.fields import Segment
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


def test_a_line_break_in_the_middle_of_a_sentence_is_part_of_it():
    text = "A b. C\nd. E"
    names = ("A", "b.", "C", "\n", "d.", "E")
    spans = ((0, 1), (1, 4), (5, 6), (6, 7), (7, 9), (10, 11))
    found, groups = Tokens(text, names, spans, (False,) * 6).grouped("sentences")
    assert found.names == ("A b.", "C\nd.", "E")
    assert groups == [[0, 1], [2, 3, 4], [5]]


def test_unknown_units_are_refused():
    with pytest.raises(OptionError, match=r"units.*'letters'"):
        TOKENS.grouped("letters")


def test_sums_over_groups():
    values = np.arange(6.0).reshape(2, 3)
    assert summed(values, [[0, 2], [1]]).tolist() == [[2.0, 1.0], [8.0, 4.0]]


def pair():
    text = "the keys\nto open. It is"
    return Tokens(
        text,
        ("[CLS]", "the", "keys", "[SEP]", "to", "open", ".", "It", "is"),
        (None, (0, 3), (4, 8), None, (9, 11), (12, 16), (16, 17), (18, 20), (21, 23)),
        (True, False, False, True, False, False, False, False, False),
        (Segment("first", 0, 8), Segment("second", 9, 23)),
    )


def test_no_sentence_is_in_two_segments():
    # Without segments, the line break does not end a sentence.
    sentences, groups = pair().grouped("sentences")
    assert sentences.names == ("[CLS]", "the keys", "[SEP]", "to open.", "It is")
    assert groups == [[0], [1, 2], [3], [4, 5, 6], [7, 8]]
    whole = dataclasses.replace(pair(), segments=())
    assert whole.grouped("sentences")[0].names[1] == "the keys\nto open."


def test_segments_have_their_names():
    segments, groups = pair().grouped("segments")
    assert segments.names == ("[CLS]", "first", "[SEP]", "second")
    assert groups == [[0], [1, 2], [3], [4, 5, 6, 7, 8]]


def test_what_is_between_stretches_is_a_unit_too():
    units, groups = pair().grouped([("title", 0, 3), (9, 16)])
    assert units.names == ("[CLS]", "title", "keys", "[SEP]", "to open", ". It is")
    assert sorted(i for group in groups for i in group) == list(range(9))


def test_a_token_that_reaches_into_two_stretches_joins_them():
    units, _ = pair().grouped([("a", 0, 2), ("b", 2, 8)])
    assert units.names[1] == "the keys"


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([(0, 4), (3, 8)], "overlap"),
        ([(0, 90)], r"units\[0\] is \(0, 90\).*23"),
        ([(4, 4)], r"units\[0\] is \(4, 4\)"),
        ([(1, 2, 3, 4)], r"units\[0\]"),
        ([("a", "b")], r"units\[0\]"),
        ("lines", "units is 'lines'"),
    ],
)
def test_stretches_that_are_none(units, message):
    with pytest.raises(OptionError, match=message):
        pair().grouped(units)


def test_a_text_without_parts_has_no_segments():
    with pytest.raises(OptionError, match="segments"):
        dataclasses.replace(pair(), segments=()).grouped("segments")
