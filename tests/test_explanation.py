"""Explanation: what it holds, words, files, and the comparison of two."""

import copy
import csv
import html.parser
import json
import math
import os
import pickle
import stat
import sys
import types
import unicodedata

import numpy as np
import pandas
import pytest
import regex
import scipy.stats
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from attnflow.errors import MissingExtraError, OptionError
from attnflow.explanation import Comparison, Explanation, Prediction
from attnflow.segment import clusters
from tests.support.pages import contribute

TEXT = "The keys to the cabinets are on the table."


def arguments(**changed):
    """What an explanation of the sentence is made from, with one word in two tokens."""
    tokens = ["[CLS]", *TEXT.lower().replace("s a", " ##s a").replace(".", " .").split(), "[SEP]"]
    spans = [
        *[None, (0, 3), (4, 8), (9, 11), (12, 15), (16, 23), (23, 24), (25, 28), (29, 31)],
        *[(32, 35), (36, 41), (41, 42), None],
    ]
    scores = np.array([40, 2, 50, 4, 3, 20, 10, 24, 6, 5, 12, 1, 23]) / 200
    given = {
        "tokens": tokens,
        "scores": scores,
        "layer_scores": np.stack([scores[::-1], scores]),
        "method": "flow",
        "layer": 2,
        "position": 0,
        "target": "plural",
        "prediction": Prediction("plural", 1, 0.982),
        "text": TEXT,
        "spans": spans,
        "special": [token.startswith("[") for token in tokens],
        "model": "verb-number",
        "task": "classification",
        "options": {
            "edges": "attention",
            "heads": "mean",
            "units": "tokens",
            "special_tokens": True,
        },
        "saturation": 0.25,
        "notes": ["Most flows no longer depend on the position."],
    }
    return given | changed


@pytest.fixture
def keys():
    return Explanation(**arguments())


def explained(text, spans, special=None, scores=None, tokens=None):
    """An explanation of any text by any spans."""
    count = len(spans)
    scores = np.arange(1.0, count + 1) if scores is None else np.array(scores)
    return Explanation(
        tokens=tokens or [f"t{i}" for i in range(count)],
        scores=scores,
        layer_scores=np.stack([scores, 2 * scores]),
        method="rollout",
        layer=1,
        position=0,
        text=text,
        spans=spans,
        special=special or [False] * count,
        model="",
        task="encoder",
    )


def by_character(text):
    """An explanation with one token for each character that is not a space."""
    return explained(text, [(i, i + 1) for i, c in enumerate(text) if not c.isspace()])


# What it holds


def test_it_holds_what_it_was_given(keys):
    given = arguments()
    assert keys.tokens == tuple(given["tokens"])
    assert keys.spans == tuple(given["spans"])
    assert keys.prediction.probability == 0.982
    assert keys.options == given["options"]
    assert keys.scores.dtype == keys.layer_scores.dtype == np.float64
    np.testing.assert_array_equal(keys.layer_scores[keys.layer - 1], keys.scores)


def test_it_cannot_be_changed():
    scores = np.array([0.5, 0.5])
    options = {"heads": [1, 2], "more": {"a": [1]}}
    given = arguments(
        tokens=["a", "b"],
        scores=scores,
        layer_scores=[scores],
        layer=1,
        spans=[None, None],
        special=[False, False],
        options=options,
    )
    explanation = Explanation(**given)
    before = explanation.to_dict()
    scores[:] = 7.0
    options["heads"].append(3)
    options["more"]["a"].append(3)
    explanation.to_dict()["options"]["heads"].append(4)
    assert explanation.to_dict() == before
    with pytest.raises(ValueError, match="read-only"):
        explanation.scores[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        explanation.layer_scores[0, 0] = 1.0
    with pytest.raises(AttributeError, match="'layer'"):
        explanation.layer = 2
    with pytest.raises(AttributeError, match="'colour'"):
        explanation.colour = "blue"
    with pytest.raises(AttributeError, match="'layer'"):
        del explanation.layer
    with pytest.raises(TypeError):
        explanation.options["heads"] = "max"
    with pytest.raises(TypeError):
        explanation.options["more"]["a"] = 1


def test_equal_explanations_are_equal_and_hash_alike(keys):
    same = Explanation(**arguments())
    assert keys == same
    assert len({keys, same}) == 1
    assert keys != Explanation(**arguments(layer=1))
    assert keys != Explanation(**arguments(scores=np.nextafter(arguments()["scores"], 1)))
    assert keys != Explanation(**arguments(notes=[]))
    assert keys != "keys"


def test_a_copy_and_a_pickle_are_equal_to_it(keys):
    assert copy.copy(keys) == copy.deepcopy(keys) == pickle.loads(pickle.dumps(keys)) == keys


def test_repr_names_the_method_and_the_highest_tokens(keys):
    assert repr(keys) == (
        "Explanation(method='flow', layer=2, position=0, 13 tokens, "
        "highest: 'keys' 0.25, '[CLS]' 0.2, 'are' 0.12)"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": "abc"}, "tokens.*'abc'"),
        ({"tokens": ["a", 1]}, r"tokens\[1\].*1"),
        ({"tokens": ["a"]}, "scores.*13.*1 token"),
        ({"scores": [[0.5]]}, r"scores.*\(1, 1\).*\(T,\)"),
        ({"scores": ["0.5"] * 13}, r"scores.*\(T,\)"),
        ({"scores": [True] * 13}, "scores"),
        ({"scores": [0.1] * 12 + [math.nan]}, r"scores\[12\].*nan"),
        ({"layer_scores": [[0.1] * 12 + [math.inf]]}, r"layer_scores\[0, 12\].*inf"),
        ({"layer_scores": [0.1] * 13}, r"layer_scores.*\(13,\).*\(L, T\)"),
        ({"layer_scores": [[0.1]]}, r"layer_scores.*\(1, 1\).*\(L, 13\)"),
        ({"layer_scores": [[0.1], [0.1, 0.2]]}, "layer_scores.*array"),
        ({"method": "lime"}, "method(?=.*'lime').*raw.*rollout.*flow"),
        ({"layer": 0}, "layer.*0.*2"),
        ({"layer": 3}, "layer.*3.*2 layers"),
        ({"layer": True}, "layer.*True"),
        ({"position": -1}, "position.*-1"),
        ({"position": "cls"}, "position.*'cls'"),
        ({"target": 1}, "target.*1"),
        ({"prediction": "plural"}, "prediction.*'plural'"),
        (
            {"prediction": Prediction("plural", 1, 98.2)},
            r"prediction\.probability.*98\.2",
        ),
        ({"text": None}, "text.*None"),
        ({"text": TEXT + "\ud800"}, "text.*42"),
        ({"spans": [None]}, "spans.*1.*13 tokens"),
        ({"spans": [(0, 1, 2)] * 13}, r"spans\[0\].*\(0, 1, 2\)"),
        ({"spans": [(0, 43)] * 13}, r"spans\[0\].*\(0, 43\).*42"),
        ({"spans": [(2, 1)] * 13}, r"spans\[0\].*\(2, 1\).*0.*42"),
        ({"special": [True]}, "special.*1.*13 tokens"),
        ({"special": [0] * 13}, r"special\[0\].*0"),
        ({"options": ["heads"]}, "options.*dictionary"),
        ({"options": {1: "a"}}, "options.*1"),
        ({"options": {"a": [1, {2}]}}, r"options\['a'\]\[1\].*JSON"),
        ({"options": {"a": math.nan}}, r"options\['a'\].*nan"),
        ({"saturation": 1.5}, r"saturation.*1\.5"),
        ({"notes": "careful"}, "notes.*'careful'"),
    ],
)
def test_a_wrong_argument_is_named(changed, message):
    with pytest.raises(OptionError, match=message):
        Explanation(**arguments(**changed))


def test_numpy_numbers_are_taken_as_numbers():
    explanation = Explanation(
        **arguments(
            layer=np.int64(2),
            scores=np.ones(13, np.float32),
            saturation=np.float32(0.5),
            options={"heads": np.int64(3), "residual": np.float64(0.5)},
            special=np.zeros(13, bool),
        )
    )
    assert json.loads(json.dumps(explanation.to_dict()))["options"] == {"heads": 3, "residual": 0.5}


# The highest tokens


def test_top_gives_the_highest_first_and_ties_in_order():
    explanation = explained("abc", [None] * 4, scores=[1.0, 3.0, 1.0, 3.0])
    assert explanation.top(3) == [("t1", 3.0), ("t3", 3.0), ("t0", 1.0)]
    assert len(explanation.top(99)) == 4
    with pytest.raises(OptionError, match=r"\bk\b.*0"):
        explanation.top(0)
    with pytest.raises(OptionError, match=r"\bk\b.*2\.0"):
        explanation.top(2.0)


# Special tokens


def test_special_tokens_are_left_out_and_scores_stay_what_they_were(keys):
    text_only = keys.without_special_tokens()
    assert text_only.tokens == keys.tokens[1:-1]
    assert text_only.spans == keys.spans[1:-1]
    assert not any(text_only.special)
    np.testing.assert_array_equal(text_only.scores, keys.scores[1:-1])
    np.testing.assert_array_equal(text_only.layer_scores, keys.layer_scores[:, 1:-1])
    assert text_only.options["special_tokens"] is False
    assert (text_only.position, text_only.notes) == (keys.position, keys.notes)


def test_nothing_but_special_tokens_leaves_an_explanation_without_tokens():
    empty = explained("", [None, None], special=[True, True]).without_special_tokens()
    assert empty.tokens == ()
    assert empty.layer_scores.shape == (2, 0)
    assert empty.top() == []
    assert empty.by_unit("words").tokens == ()
    assert Explanation.from_dict(empty.to_dict()) == empty
    assert math.isnan(empty.compare(empty).top_k_overlap)


# Words


def test_the_scores_of_a_word_are_the_sums_of_its_tokens(keys):
    words = keys.by_unit("words")
    assert words.tokens == (
        *("[CLS]", "The", "keys", "to", "the", "cabinets", "are", "on", "the", "table", "."),
        "[SEP]",
    )
    assert words.scores[5] == keys.scores[5] + keys.scores[6]
    np.testing.assert_array_equal(words.layer_scores[:, 5], keys.layer_scores[:, 5:7].sum(axis=1))
    assert words.spans[0] is None
    assert words.spans[5] == (16, 24)
    assert words.special == (True, *[False] * 10, True)
    assert words.options == {**keys.options, "units": "words"}
    assert (words.position, words.layer, words.prediction) == (0, 2, keys.prediction)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on the table.", "on|the|table|."),
        ("don't e-mail 3.14, O\u2019Neill!", "don't|e-mail|3.14|,|O\u2019Neill|!"),
        ("1,000.50 at 12:30; a,b", "1,000.50|at|12:30|;|a|,|b"),
        ("'tis the dogs' (own)", "'|tis|the|dogs|'|(|own|)"),
        ("wait... what?! yes -- no", "wait|...|what|?|!|yes|--|no"),
        ("snake_case x2 C++", "snake_case|x2|C|++"),
        ("$5 50% a@b.org", "$|5|50|%|a|@|b.org"),
        ("col·legi L\u2019été", "col·legi|L\u2019été"),
        # Each ideograph and each Kana stands for itself.
        ("我爱 北京。", "我|爱|北|京|。"),
        ("カナ and ひら", "カ|ナ|and|ひ|ら"),
        ("GPT模型2代", "GPT|模|型|2|代"),
        # Korean has spaces, and its words are what lies between them.
        ("열쇠가 책상에", "열쇠가|책상에"),
        (unicodedata.normalize("NFD", "열쇠"), unicodedata.normalize("NFD", "열쇠")),
        # Thai has none; a letter keeps its vowel signs and tones.
        ("น้ำดี", "น้ำ|ดี"),
        ("שלום עולם.", "שלום|עולם|."),
        ("مرحبا، بكم", "مرحبا|،|بكم"),
        # Combining marks, joiners, skin tones, flags and keycaps are never torn off.
        ("cafe\u0301s", "cafe\u0301s"),
        ("e\u0301!\u0302 x", "e\u0301|!\u0302|x"),
        ("hi👩‍👩‍👧👍🏽🇩🇪🇫🇷❤️ok", "hi|👩‍👩‍👧|👍🏽|🇩🇪|🇫🇷|❤️|ok"),
        ("😂😂", "😂|😂"),
        ("नमस्ते दुनिया", "नमस्ते|दुनिया"),
        ("میخواهم", "میخواهم"),
        ("soft\u00adhyphen zero\u200bwidth", "soft\u00adhyphen|zero|width"),
        ("a\u00a0b\u3000c\td\ne", "a|b|c|d|e"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_words_are_those_of_the_text(text, expected):
    # With one token for each character, all grouping is the text's.
    words = by_character(text).by_unit("words")
    expected = expected.split("|") if expected else []
    # A zero-width space is no part of a word, and its token counts for the next.
    assert [token for token in words.tokens if token != "\u200b"] == expected
    assert [text[start:end] for start, end in words.spans] == list(words.tokens)


def test_one_token_for_several_ideographs_is_one_word():
    assert explained("我爱北京", [(0, 1), (1, 2), (2, 4)]).by_unit("words").tokens == (
        "我",
        "爱",
        "北京",
    )


def test_a_token_that_reaches_into_several_words_makes_them_one():
    words = explained("in New York.", [(0, 2), (2, 11), (11, 12)]).by_unit("words")
    assert words.tokens == ("in", "New York", ".")
    # So does one that ends within the second.
    assert explained("New York", [(0, 6), (6, 8)]).by_unit("words").tokens == ("New York",)


def test_tokens_that_share_a_character_are_one_word():
    # A tokenizer of bytes gives every part of an emoji the span of the whole.
    words = explained("a😀b", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]).by_unit("words")
    assert words.tokens == ("a", "😀", "b")
    np.testing.assert_array_equal(words.scores, [1, 2 + 3 + 4, 5])


def test_a_mark_that_no_token_covers_stays_with_its_letter():
    # A tokenizer that strips accents may end its token before the accent.
    words = explained("cafe\u0301 ok", [(0, 4), (6, 8)]).by_unit("words")
    assert words.tokens == ("cafe\u0301", "ok")


def test_a_token_of_spaces_counts_for_the_word_that_follows():
    # "a", a lone space, an empty span, "b", spaces at the end
    words = explained("a b  ", [(0, 1), (1, 2), (2, 2), (2, 3), (3, 5)]).by_unit("words")
    assert words.tokens == ("a", "b")
    np.testing.assert_array_equal(words.scores, [1, 2 + 3 + 4 + 5])


def test_a_token_of_line_breaks_stands_for_itself():
    words = explained("a\n\nb", [(0, 1), (1, 3), (3, 4)]).by_unit("words")
    assert words.tokens == ("a", "\n\n", "b")
    assert words.spans == ((0, 1), (1, 3), (3, 4))


def test_a_special_token_within_the_text_stays_as_it_is():
    words = explained(
        "the <mask>s are",
        [(0, 3), (4, 10), (10, 11), (12, 15)],
        special=[False, True, False, False],
        tokens=["the", "<mask>", "s", "are"],
    ).by_unit("words")
    assert words.tokens == ("the", "<mask>", "s", "are")
    assert words.special == (False, True, False, False)


def test_a_text_cut_short_gives_the_words_that_were_read():
    words = explained("the unbelievable end", [(0, 3), (4, 8), (8, 11)]).by_unit("words")
    assert words.tokens == ("the", "unbelie")


def test_a_token_without_any_text_keeps_its_name():
    words = explained("", [(0, 0), None], tokens=["<unk>", "<s>"]).by_unit("words")
    assert words.tokens == ("<unk>", "<s>")


@st.composite
def explanations(draw):
    """Explanations of any text by any spans."""
    text = draw(st.text(max_size=30))
    place = st.integers(0, len(text))
    pair = st.tuples(place, place).map(lambda pair: (min(pair), max(pair)))
    spans = draw(st.lists(st.none() | pair, max_size=12))
    count = len(spans)
    layers = draw(st.integers(1, 3))
    # Sums of a few of these are still finite.
    floats = st.floats(-1e300, 1e300)
    rows = st.lists(floats, min_size=count, max_size=count)
    simple = st.none() | st.booleans() | st.integers() | floats | st.text()
    json_values = st.recursive(
        simple, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
    )
    return Explanation(
        tokens=draw(st.lists(st.text(), min_size=count, max_size=count)),
        scores=draw(rows),
        layer_scores=np.array(
            draw(st.lists(rows, min_size=layers, max_size=layers)), dtype=np.float64
        ).reshape(layers, count),
        method=draw(st.sampled_from(["raw", "rollout", "flow"])),
        layer=draw(st.integers(1, layers)),
        position=draw(st.integers(0, 10**6)),
        target=draw(st.none() | st.text()),
        prediction=draw(
            st.none() | st.builds(Prediction, st.text(), st.integers(), st.floats(0, 1))
        ),
        text=text,
        spans=spans,
        special=draw(st.lists(st.booleans(), min_size=count, max_size=count)),
        model=draw(st.text()),
        task=draw(st.text()),
        options=draw(st.dictionaries(st.text(), json_values, max_size=4)),
        saturation=draw(st.none() | st.floats(0, 1)),
        notes=draw(st.lists(st.text(), max_size=3)),
    )


@given(explanations())
def test_no_score_is_lost_or_counted_twice_in_words(explanation):
    # Powers of two have a sum for each set of tokens, and no other set has it.
    powers = 2.0 ** np.arange(len(explanation.tokens))
    changed = explanation.to_dict() | {
        "scores": powers,
        "layer_scores": np.tile(powers, (len(explanation.layer_scores), 1)),
    }
    words = Explanation.from_dict(changed).by_unit("words")
    sets = [int(score) for score in words.scores]
    assert sum(sets) == 2 ** len(powers) - 1
    assert all(a & b == 0 for i, a in enumerate(sets) for b in sets[:i])
    np.testing.assert_array_equal(words.layer_scores[0], words.scores)
    assert words.by_unit("words") == words


CLUSTERS = [
    *["a", "ß", "1", ".", "-", " ", "\n", "e\u0301", "o\u0302\u0323", "字", "か\u3099", "न\u093f"],
    *["น้", "한", unicodedata.normalize("NFD", "각"), "😀", "👍🏽", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣"],
]


@given(st.lists(st.sampled_from(CLUSTERS), max_size=12).map("".join))
def test_what_a_reader_sees_as_one_character_is_what_unicode_calls_so(text):
    expected = [match.span() for match in regex.finditer(r"\X", text)]
    assert clusters(text) == expected


def byte_level():
    """A tokenizer of bytes, as GPT-2's, that has learnt a few words."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["the keys to the cabinets are on the tables"] * 4, trainer)
    return tokenizer


def sentence_piece():
    """A tokenizer of pieces with their spaces before them, and of bytes where it has none."""
    pieces = [("<unk>", 0.0), *[(f"<0x{byte:02X}>", -9.0) for byte in range(256)]]
    pieces += [("▁", -4.0), ("▁the", -2.0), ("▁key", -3.0), ("s", -3.0), ("▁don", -3.0)]
    pieces += [(letter, -6.0) for letter in "abcdefghijklmnopqrtuvwxyz'.你"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return tokenizer


def word_piece():
    """A tokenizer of words and their parts, as BERT's, that strips accents."""
    letters = "abcdefghijklmnopqrstuvwxyz'.😀你好"
    names = ["[UNK]", "the", "key", *letters, *[f"##{letter}" for letter in letters]]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentence_piece, word_piece])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The keys don't fit.", "The|keys|don't|fit|."),
        ("  two   spaces", "two|spaces"),
        ("a 👩‍👩‍👧 here", "a|👩‍👩‍👧|here"),
        ("你好 cafe\u0301 naïve", "你|好|cafe\u0301|naïve"),
    ],
)
def test_every_kind_of_tokenizer_gives_the_words_of_the_text(make, text, expected):
    encoding = make().encode(text)
    explanation = explained(text, encoding.offsets, tokens=encoding.tokens)
    words = explanation.by_unit("words")
    assert list(words.tokens) == expected.split("|")
    assert words.scores.sum() == explanation.scores.sum()


# Comparison


def pair(a, b):
    spans = [None] * len(a)
    return explained("", spans, scores=a), explained("", spans, scores=b)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-9, 9)), min_size=2, max_size=12))
def test_rank_correlation_is_that_of_scipy_also_with_ties(rows):
    a, b = np.array(rows, dtype=np.float64).T
    found = pair(a, b)[0].compare(pair(a, b)[1]).spearman
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)


def test_overlap_counts_the_highest_tokens_in_common():
    a, b = pair([5.0, 4.0, 3.0, 2.0, 1.0], [5.0, 1.0, 4.0, 3.0, 2.0])
    assert a.compare(b, k=1).top_k_overlap == 1.0
    assert a.compare(b, k=2).top_k_overlap == 0.5
    assert a.compare(b, k=3) == Comparison(pytest.approx(0.4), pytest.approx(2 / 3))
    assert a.compare(b).top_k_overlap == a.compare(b, k=50).top_k_overlap == 1.0


def test_an_explanation_agrees_with_itself(keys):
    assert keys.compare(keys) == Comparison(1.0, 1.0)


def test_one_token_has_no_rank_correlation():
    a, b = pair([1.0], [2.0])
    assert math.isnan(a.compare(b).spearman)
    assert a.compare(b).top_k_overlap == 1.0


def test_explanations_of_other_tokens_are_not_compared(keys):
    with pytest.raises(OptionError, match=r"tokens.*12.*13"):
        keys.compare(keys.by_unit("words"))
    tokens = [*keys.tokens[:-1], "</s>"]
    with pytest.raises(OptionError, match=r"token 12.*'</s>'.*'\[SEP\]'"):
        keys.compare(Explanation(**arguments(tokens=tokens)))
    with pytest.raises(OptionError, match=r"other.*\blist\b"):
        keys.compare([0.5])
    with pytest.raises(OptionError, match=r"\bk\b.*0"):
        keys.compare(keys, k=0)


# Dictionaries and files


@given(explanations())
def test_nothing_is_lost_in_json(explanation):
    through_json = Explanation.from_dict(json.loads(json.dumps(explanation.to_dict())))
    assert through_json == explanation
    assert through_json.scores.tobytes() == explanation.scores.tobytes()
    assert through_json.layer_scores.tobytes() == explanation.layer_scores.tobytes()


@given(explanation=explanations())
def test_nothing_is_lost_in_a_file(explanation, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "any.json"
    explanation.save(path)
    assert Explanation.load(path) == explanation


def test_a_file_says_what_it_is_and_is_standard_json(keys, tmp_path):
    keys.save(tmp_path / "keys.json")
    content = (tmp_path / "keys.json").read_text(encoding="utf-8")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    data = json.loads(content, parse_constant=refuse)
    assert (data["format"], data["version"]) == ("attnflow.explanation", 1)
    assert data["prediction"] == {"label": "plural", "index": 1, "probability": 0.982}
    assert data["spans"][:2] == [None, [0, 3]]
    assert len(content.splitlines()) == len(data) + 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: [], "data.*dictionary"),
        (lambda data: {}, "data.*'attnflow.explanation'"),
        (lambda data: data | {"format": "graph"}, "format.*'graph'"),
        (lambda data: data | {"version": 2}, "version.*2.*1"),
        (lambda data: data | {"version": None}, "version.*None"),
        (lambda data: {k: v for k, v in data.items() if k != "text"}, "'text'"),
        (lambda data: data | {"prediction": {"label": "x"}}, "prediction.*label.*index"),
        (lambda data: data | {"scores": None}, "scores"),
        (lambda data: data | {"spans": None}, "spans.*None"),
    ],
)
def test_a_dictionary_that_is_no_explanation_is_refused(keys, change, message, tmp_path):
    data = change(keys.to_dict())
    with pytest.raises(OptionError, match=message):
        Explanation.from_dict(data)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(OptionError, match=rf"other\.json.*{message}"):
        Explanation.load(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(st.sampled_from(sorted(Explanation(**arguments()).to_dict())), json_values)
def test_a_wrong_value_in_a_dictionary_is_an_option_error_or_is_right(key, value):
    data = Explanation(**arguments()).to_dict() | {key: value}
    try:
        explanation = Explanation.from_dict(data)
    except OptionError:
        return
    assert Explanation.from_dict(explanation.to_dict()) == explanation


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"PK\x03\x04", b"[" * 100_000])
def test_a_file_that_is_not_json_is_refused(content, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"broken\.json.*JSON"):
        Explanation.load(path)


@pytest.mark.parametrize("depth", [600, 20_000])
def test_a_file_of_lists_in_lists_without_end_is_refused(keys, tmp_path, depth):
    path = tmp_path / "deep.json"
    content = json.dumps(keys.to_dict() | {"options": {"a": "lists"}})
    path.write_text(content.replace('"lists"', "[" * depth + "]" * depth), encoding="utf-8")
    with pytest.raises(OptionError, match=r"deep\.json"):
        Explanation.load(path)


def test_loading_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Explanation.load(tmp_path / "none.json")


def test_an_unknown_ending_lists_the_known_ones(keys, tmp_path):
    for name in ("keys.txt", "keys", ".json"):
        with pytest.raises(OptionError, match=r"path.*\.json.*\.csv.*\.html.*\.png"):
            keys.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match=r"path(?=.*'keys\.csv').*\.json"):
        Explanation.load("keys.csv")


def test_endings_may_be_upper_case(keys, tmp_path):
    keys.save(str(tmp_path / "KEYS.JSON"))
    assert Explanation.load(str(tmp_path / "KEYS.JSON")) == keys


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_file_is_written_whole_or_not_at_all(keys, tmp_path, monkeypatch, step, error):
    path = tmp_path / "keys.json"
    path.write_text("what was there before", encoding="utf-8")

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error)):
            keys.save(path)
        with pytest.raises(type(error)):
            keys.save(tmp_path / "new.csv")
    assert [file.name for file in tmp_path.iterdir()] == ["keys.json"]
    assert path.read_text(encoding="utf-8") == "what was there before"
    keys.save(path)
    assert Explanation.load(path) == keys


def test_saving_into_a_missing_folder_says_so(keys, tmp_path):
    with pytest.raises(FileNotFoundError):
        keys.save(tmp_path / "missing" / "keys.json")


def test_a_saved_file_has_the_usual_permissions_and_a_link_stays_a_link(keys, tmp_path):
    (tmp_path / "usual").touch()
    (tmp_path / "link.json").symlink_to("keys.json")
    keys.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert Explanation.load(tmp_path / "keys.json") == keys
    usual, saved = (stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("usual", "keys.json"))
    assert saved == usual


def test_a_csv_file_has_one_row_for_each_token(tmp_path):
    tokens = ['say "hi"', "a,b", "line\nbreak", "carriage\rreturn", "鑰匙"]
    explanation = explained(
        "abcde", [None, *[(i, i + 1) for i in range(1, 5)]], [True, *[False] * 4], tokens=tokens
    )
    explanation.save(tmp_path / "any.csv")
    with open(tmp_path / "any.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ["token", "start", "end", "special", "score", "layer_1", "layer_2"]
    assert list(rows[0]) == names
    assert [row["token"] for row in rows] == tokens
    assert [row["start"] for row in rows] == ["", "1", "2", "3", "4"]
    assert [row["special"] for row in rows] == ["true", *["false"] * 4]
    assert [float(row["score"]) for row in rows] == explanation.scores.tolist()
    assert [float(row["layer_2"]) for row in rows] == explanation.layer_scores[1].tolist()


def test_a_data_frame_has_the_columns_of_the_csv_file(keys, tmp_path):
    frame = keys.to_dataframe()
    keys.save(tmp_path / "keys.csv")
    stored = pandas.read_csv(tmp_path / "keys.csv")
    assert list(frame.columns) == list(stored.columns)
    assert frame["token"].tolist() == stored["token"].tolist()
    assert frame["special"].tolist() == stored["special"].tolist()
    assert frame["start"].isna().tolist() == list(keys.special)
    assert frame["end"][2] == 8
    for name in ("score", "layer_1", "layer_2"):
        np.testing.assert_allclose(frame[name], stored[name], rtol=1e-15)


def test_a_data_frame_without_pandas_says_what_to_install(keys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        keys.to_dataframe()


# In a notebook


class Reader(html.parser.HTMLParser):
    """What a browser would make of a page: its elements, and its text."""

    def __init__(self):
        super().__init__()
        self.elements, self.content = [], ""

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.content += data


def test_a_notebook_shows_each_token_with_its_score(keys):
    reader = Reader()
    reader.feed(keys._repr_html_())
    assert f"[CLS] {TEXT} [SEP]" in reader.content
    assert "plural (98.2%)" in reader.content
    assert "Most flows no longer depend on the position." in reader.content
    titles = [attributes["title"] for tag, attributes in reader.elements if tag == "span"]
    assert titles == [f"{score:.3f}" for score in keys.scores]


def test_a_notebook_marks_a_token_by_its_score(keys):
    reader = Reader()
    reader.feed(keys._repr_html_())
    styles = [attributes["style"] for tag, attributes in reader.elements if tag == "span"]
    shades = [float(s.split(",")[3].split(")")[0]) for s in styles if "rgba" in s]
    # Special tokens are faint, and have no shade.
    assert len(shades) == len(keys.tokens) - 2
    np.testing.assert_array_equal(np.argsort(shades), np.argsort(keys.scores[1:-1]))


def test_nothing_in_a_text_becomes_a_part_of_the_page():
    bad = "<script>alert(1)</script>&amp;\"'><img src=x onerror=alert(1)>\x00\x1b"
    explanation = Explanation(
        **arguments(
            tokens=[bad] * 13,
            text=bad * 2,
            target=bad,
            model=bad,
            notes=[bad],
            prediction=Prediction(bad, 0, 0.5),
        )
    )
    reader = Reader()
    reader.feed(explanation._repr_html_())
    assert {tag for tag, _ in reader.elements} == {"div", "span", "b"}
    assert all(set(attributes) <= {"style", "title", "dir"} for _, attributes in reader.elements)
    assert not {"\x00", "\x1b"} & set(reader.content)
    assert "<script>alert(1)</script>&amp;" in reader.content


@given(explanations())
def test_any_explanation_can_be_shown_in_a_notebook(explanation):
    reader = Reader()
    reader.feed(explanation._repr_html_())
    assert {tag for tag, _ in reader.elements} <= {"div", "span", "b"}


def test_show_in_a_notebook_displays_the_explanation(keys, monkeypatch, capsys):
    displayed = []
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = displayed.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    assert keys.show() is None
    assert displayed == [keys]
    # IPython in a terminal has a shell and no kernel.
    ipython.get_ipython = lambda: types.SimpleNamespace()
    keys.show()
    assert displayed == [keys]
    assert TEXT in capsys.readouterr().out


def test_the_table_of_contributions_has_what_they_add_up_to(tmp_path):
    shown = contribute()
    frame = shown.to_dataframe()
    names = ["token", "start", "end", "special", "score", *(f"layer_{i}" for i in range(1, 5))]
    assert list(frame.columns) == [*names, "target", "contrast", "value", "bias"]
    assert len(frame) == 7
    assert set(frame["value"]) == {1.75}
    assert set(frame["contrast"]) == {"singular"}
    assert frame["score"].sum() + frame["bias"][0] == pytest.approx(frame["value"][0])
    shown.save(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert [row["bias"] for row in rows] == ["-0.125"] * 7
    assert float(rows[5]["score"]) == -1.0
