"""The checks that every module uses: what they return, and what their errors say."""

import fractions
import re

import numpy as np
import pytest
import torch

from attnflow.checks import choice, integer, invalid, items, number, string, strings, switch
from attnflow.errors import OptionError

METHODS = ("raw", "rollout", "flow")


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), torch.tensor(3)])
def test_an_integer_of_any_kind_becomes_one_of_python(value):
    result = integer(value, "layer", least=3, most=3)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", None, [3], 2 + 0j])
def test_what_is_not_an_integer_is_refused(value):
    with pytest.raises(OptionError, match=rf"^layer is {re.escape(repr(value))}; .*an integer"):
        integer(value, "layer")


@pytest.mark.parametrize(
    ("limits", "bad", "expected"),
    [
        ({"least": 1}, 0, "an integer of 1 or more"),
        ({"most": 9}, 10, "an integer of 9 or less"),
        ({"least": 0, "most": 65535}, -1, "an integer from 0 to 65,535"),
        ({"least": 1, "otherwise": "None for all CPUs"}, 0, "of 1 or more, or None for all CPUs"),
    ],
)
def test_an_integer_out_of_range_is_refused_with_the_range(limits, bad, expected):
    with pytest.raises(OptionError, match=f"^size is {bad}; .*{expected}$"):
        integer(bad, "size", **limits)


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.float16(0.5), fractions.Fraction(1, 2), 0, 1, np.int64(1)]
)
def test_a_number_of_any_kind_becomes_a_float(value):
    result = number(value, "residual", least=0, most=1)
    assert result == float(value)
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [True, np.False_, "0.5", None, 1j, float("nan"), float("inf"), -np.inf, 10**400, np.array([1])],
)
def test_what_is_not_a_finite_number_is_refused(value):
    with pytest.raises(OptionError, match=r"^seconds is .*expected a number"):
        number(value, "seconds")


@pytest.mark.parametrize(
    ("limits", "good", "bad", "expected"),
    [
        ({"least": 0, "most": 1}, (0, 1), (-1e-9, 1.1), "a number from 0 to 1"),
        ({"above": 0, "below": 1}, (0.1, 0.9), (0, 1), "a number above 0 and below 1"),
        ({"above": 0, "most": 1}, (1,), (0, 2), "a number of 1 or less and above 0"),
        ({"least": 0.5}, (0.5,), (0.4,), "a number of 0.5 or more"),
        ({"above": 0, "otherwise": "None"}, (1,), (0,), "a number above 0, or None"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(limits, good, bad, expected):
    for value in good:
        assert number(value, "level", **limits) == value
    for value in bad:
        with pytest.raises(OptionError, match=f"^level is {value}; .*{expected}$"):
            number(value, "level", **limits)


def test_a_switch_is_a_boolean_and_nothing_else():
    assert switch(np.True_, "truncate") is True
    assert switch(False, "truncate") is False
    for value in (1, 0, "yes", None, np.int64(1)):
        with pytest.raises(OptionError, match=rf"^truncate is {re.escape(repr(value))}; .*True"):
            switch(value, "truncate")


def test_a_choice_is_one_of_those_listed():
    for method in METHODS:
        assert choice(np.str_(method), "method", METHODS) is method
    auto = ("auto", True, False, None)
    for value in (*auto, np.True_, np.False_):
        assert choice(value, "receptive_field", auto) == value
    for value in ("Flow", b"flow", 1, None, ["flow"], np.array(["flow", "raw"])):
        with pytest.raises(OptionError, match=r"^method is .*'raw', 'rollout' or 'flow'$"):
            choice(value, "method", METHODS)
    for value in (1, 0, 1.0):
        with pytest.raises(OptionError, match=rf"^receptive_field is {value}; "):
            choice(value, "receptive_field", auto)
    with pytest.raises(OptionError, match=r"'mean' or the index of a head$"):
        choice("median", "heads", ["mean"], otherwise="the index of a head")


@pytest.mark.parametrize(
    "values", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), iter([1, 2])]
)
def test_the_items_of_anything_like_a_list_are_returned(values):
    assert items(values, "layers") == [1, 2]


def test_what_is_not_a_list_is_refused():
    for values in (3, "abc", b"abc", None, {"a": 1}, np.int64(3), np.array(3)):
        with pytest.raises(OptionError, match=r"^layers is .*a list of integers, or None$"):
            items(values, "layers", otherwise="None")
    with pytest.raises(OptionError, match=r"^texts is empty; .*a list of strings"):
        items([], "texts", "strings")
    assert items([], "texts", "strings", allow_empty=True) == []


def test_a_list_of_strings_is_no_string_and_has_nothing_else():
    assert strings(["a", "b"], "names") == ("a", "b")
    assert strings((), "names", allow_empty=True) == ()
    for values in ("ab", None, 3):
        with pytest.raises(OptionError, match=r"^names is .*a list of strings"):
            strings(values, "names")
    with pytest.raises(OptionError, match=r"^names is empty"):
        strings([], "names")
    with pytest.raises(OptionError, match=r"^names\[1\] is 3; .*a string"):
        strings(["a", 3], "names")


def test_a_string_can_be_written_as_utf_8():
    assert string("naïve 🙂", "text") == "naïve 🙂"
    with pytest.raises(OptionError, match=r"^text .*lone surrogate, '\\ud83d', at index 2"):
        string("a \ud83d", "text")


def test_a_long_value_is_shortened_in_the_error():
    message = str(invalid("text", "x" * 10_000, "a short text"))
    assert message.startswith("text is 'xxx")
    assert message.endswith("...; expected a short text")
    assert len(message) < 120
