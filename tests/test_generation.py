"""Generation: an immutable sequence of explanations that is saved and loaded without loss."""

import pickle

import numpy as np
import pytest

import attnflow
from attnflow import Explanation, Generation

TOKENS = ["<s>", "the", "key", "s", "are", "on"]
SPANS = [None, (0, 3), (3, 7), (7, 8), (8, 12), (12, 15)]


def explanation(scores, target, method="contribution"):
    count = len(scores)
    value = float(sum(scores)) + 0.25 if method == "contribution" else None
    return Explanation(
        tokens=TOKENS[:count],
        scores=scores,
        layer_scores=[scores, scores],
        spans=SPANS[:count],
        special=[True] + [False] * (count - 1),
        method=method,
        layer=1,
        position=count - 1,
        target=target,
        value=value,
        bias=None if value is None else 0.25,
        text="the keys are on it",
        model="tiny",
        task="causal-lm",
    )


ROWS = [[3.0, 0.5, 2.0, 1.0], [1.0, 0.0, 1.0, -1.0, 0.5], [0.0, 0.0, 0.5, 0.25, 0.0, 2.0]]


@pytest.fixture
def generation():
    steps = [explanation(row, word) for row, word in zip(ROWS, (" are", " on", " it"), strict=True)]
    total = np.sum([np.pad(row, (0, 6 - len(row))) for row in ROWS], axis=0)
    return Generation(
        prompt="the keys",
        text=" are on it",
        explanations=steps,
        whole=explanation(total, " are on it"),
        written=[False] * 4 + [True] * 2,
        ended=True,
        options={"max_new_tokens": 3, "seed": None},
    )


def test_it_is_a_sequence_of_explanations(generation):
    assert len(generation) == 3
    assert [one.target for one in generation] == [" are", " on", " it"]
    assert generation[-1] is generation.explanations[2]
    assert generation[:2] == generation.explanations[:2]
    assert generation[1] in generation


def test_the_matrix_has_a_row_a_new_token_and_nan_where_a_token_was_not_written_yet(generation):
    nan = np.nan
    expected = [ROWS[0] + [nan, nan], ROWS[1] + [nan], ROWS[2]]
    np.testing.assert_array_equal(generation.matrix, expected)
    assert generation.tokens == tuple(TOKENS)
    with pytest.raises(ValueError, match="read-only"):
        generation.matrix[0, 0] = 1


def test_sources_are_of_the_prompt_and_the_answer_is_apart(generation):
    assert generation.top(2) == [("key", 3.5), ("the", 0.5)]
    assert generation.itself == 2.5


def test_units_are_added_up_in_every_row(generation):
    words = generation.by_unit("words")
    assert words.tokens == ("<s>", "the", "keys", "are", "on")
    assert words.written == (False, False, False, True, True)
    np.testing.assert_array_equal(words.matrix[0], [3.0, 0.5, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(np.nansum(words.matrix, axis=0), words.whole.scores)


def test_a_word_that_grew_is_one_column(generation):
    # "key" was the end of the text when "s" was written; it is "keys" for what followed.
    steps = [explanation([3.0, 0.5, 2.0], "s"), *generation.explanations]
    grown = Generation(
        prompt="the key",
        text="s are on it",
        explanations=[step.by_unit("words") for step in steps],
        whole=generation.whole.by_unit("words"),
        written=[False, False, False, True, True],
    )
    np.testing.assert_array_equal(grown.matrix[0], [3.0, 0.5, 2.0, np.nan, np.nan])
    np.testing.assert_array_equal(grown.matrix[1], [3.0, 0.5, 3.0, np.nan, np.nan])


def test_it_is_saved_and_loaded_without_loss(generation, tmp_path):
    generation.save(tmp_path / "x.json")
    loaded = Generation.load(tmp_path / "x.json")
    assert loaded == generation
    assert hash(loaded) == hash(generation)
    assert loaded.matrix.tobytes() == generation.matrix.tobytes()
    assert pickle.loads(pickle.dumps(generation)) == generation
    assert attnflow.Generation is Generation


def test_nothing_written_is_a_generation_too(tmp_path):
    empty = Generation(prompt="the", text="", explanations=(), whole=None, written=(), ended=True)
    assert (len(empty), empty.matrix.shape, empty.top(), empty.itself) == (0, (0, 0), [], 0.0)
    assert empty.by_unit("words") == empty
    empty.save(tmp_path / "x.json")
    assert Generation.load(tmp_path / "x.json") == empty


def test_it_cannot_be_changed(generation):
    with pytest.raises(AttributeError):
        generation.text = "other"
    with pytest.raises(TypeError):
        generation.options["seed"] = 1


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"written": [True]}, "written"),
        ({"explanations": ["x"]}, r"explanations\[0\].*'x'"),
        ({"whole": None, "written": ()}, "whole"),
        ({"whole": "x"}, "whole.*'x'"),
        ({"prompt": 3}, "prompt.*3"),
        ({"ended": 2}, "ended.*2"),
        ({"options": [1]}, "options"),
    ],
)
def test_a_field_that_is_not_valid_is_named(generation, changed, named):
    given = {name: getattr(generation, name) for name in generation.__dataclass_fields__}
    with pytest.raises(attnflow.OptionError, match=named):
        Generation(**{**given, **changed})


def test_a_file_that_is_none_is_refused(generation, tmp_path):
    with pytest.raises(attnflow.OptionError, match=r"\.json"):
        Generation.load(tmp_path / "x.csv")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(attnflow.OptionError, match="not JSON"):
        Generation.load(tmp_path / "x.json")
    generation.whole.save(tmp_path / "x.json")
    with pytest.raises(attnflow.OptionError, match="generation"):
        Generation.load(tmp_path / "x.json")
    with pytest.raises(attnflow.OptionError, match="version"):
        Generation.from_dict({**generation.to_dict(), "version": 9})
    data = generation.to_dict()
    del data["whole"]
    with pytest.raises(attnflow.OptionError, match="'whole'"):
        Generation.from_dict(data)


def test_the_table_has_a_row_a_score(generation, tmp_path):
    generation.save(tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "step,written,value,bias,token,start,end,special,score"
    assert len(lines) == 1 + 4 + 5 + 6
    assert lines[3] == "0, are,6.75,0.25,key,3,7,false,2.0"
    assert lines[-1].startswith("2, it,")
