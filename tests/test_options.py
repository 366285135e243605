"""The table of options, and everything that is made from it."""

import argparse
import inspect
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import attnflow
from attnflow.cli import options as flags
from attnflow.models import Explainer
from attnflow.options import EDGES, OPTIONS, Choice, Integer, Number, Option, Options, Switch, sign
from attnflow.serve.openapi import openapi
from tests.support import ROOT
from tests.support.text import classifier

DUMMY = Option(
    "temper",
    Choice(("calm", "wild")),
    "calm",
    "How the dummy behaves: calm or wild.",
    recorded=True,
)


@pytest.fixture
def dummy():
    """One more row in the table."""
    OPTIONS.append(DUMMY)
    yield DUMMY
    OPTIONS.remove(DUMMY)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"method": "sum"}, ["method", "'sum'", "raw", "rollout", "flow"]),
        ({"layer": "3"}, ["layer", "'3'"]),
        ({"layer": True}, ["layer", "True"]),
        ({"layer": 0}, ["layer", "0"]),
        ({"heads": "median"}, ["heads", "'median'", "mean", "max", "min", "sum"]),
        ({"heads": 1.5}, ["heads", "1.5"]),
        ({"residual": 1.5}, ["residual", "1.5", "0", "1"]),
        ({"residual": float("nan")}, ["residual", "nan"]),
        ({"residual": True}, ["residual", "True"]),
        ({"receptive_field": "yes"}, ["receptive_field", "'yes'", "auto"]),
        ({"units": "letters"}, ["units", "'letters'", "tokens", "words", "sentences"]),
        ({"drop_sink": 1}, ["drop_sink", "1", "True", "False"]),
        ({"words": True}, ["words", "units"]),
        ({"edges": "gradient", "heads": "max"}, ["heads", "'max'", "gradient"]),
        ({"edges": "value_norm", "heads": "max"}, ["heads", "'max'", "value_norm"]),
        ({"edges": "value_norm", "residual": 0.3}, ["residual", "0.3", "value_norm"]),
        ({"edges": "gradient", "keep_heads": True}, ["keep_heads", "'gradient'"]),
    ],
)
def test_a_wrong_value_is_named_with_what_is_accepted(given, named):
    with pytest.raises(attnflow.OptionError) as error:
        Options(**given)
    for part in named:
        assert part in str(error.value)


def test_defaults_are_those_of_the_table_and_are_valid():
    options = Options()
    assert options.to_dict() == {option.name: option.default for option in OPTIONS}
    assert Options(**options) == options
    assert json.loads(json.dumps(options.to_dict())) == options.to_dict()


def test_every_value_that_is_recorded_is_said_in_words():
    for edges in EDGES:
        recorded = Options(edges=edges).recorded(receptive_field=False)
        for option in OPTIONS:
            if option.recorded:
                assert option.say(recorded[option.name])


def test_numbers_of_numpy_become_plain_ones():
    options = Options(layer=np.int64(2), residual=np.float32(0.5), drop_sink=np.True_)
    assert [type(options[name]) for name in ("layer", "residual", "drop_sink")] == [
        int,
        float,
        bool,
    ]


def test_options_cannot_be_set_and_survive_pickling():
    options = Options(method="raw")
    with pytest.raises(AttributeError):
        options.method = "flow"
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.replace(layer=2) == Options(method="raw", layer=2)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_options_default_fits_its_own_schema(option):
    from jsonschema_rs import is_valid

    schema = option.json_schema()
    assert schema["default"] == option.default
    assert is_valid(schema, option.default)
    assert option.kind.check(option.default, option.name) == option.default


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Choice(("mean",), index="a head"), "3", 3),
        (Choice(("mean",), index="a head"), "mean", "mean"),
        (Choice(("mean",)), "3", "3"),
        (Switch(auto=True), "on", True),
        (Switch(auto=True), "off", False),
        (Switch(auto=True), "auto", "auto"),
        (Number(0, 1), "0.25", 0.25),
        (Integer(), "-2", -2),
    ],
)
def test_what_a_flag_stands_for(kind, text, value):
    assert kind.parse(text) == value


def test_the_signature_and_documentation_of_explain_are_those_of_the_table():
    parameters = inspect.signature(Explainer.explain).parameters
    assert {name: item.default for name, item in parameters.items() if name in Options()} == dict(
        Options()
    )
    for option in OPTIONS:
        assert f"{option.name}: {option.help}" in Explainer.explain.__doc__


def test_a_new_row_is_an_option_everywhere(dummy, tmp_path, monkeypatch):
    # Checks.
    assert Options().temper == "calm"
    assert Options(temper="wild").temper == "wild"
    with pytest.raises(attnflow.OptionError, match=r"temper.*'mild'.*calm.*wild"):
        Options(temper="mild")

    # Signatures and docstrings.
    @sign
    def explain(inputs, **options):
        """Do it.

        Args:
            inputs: What.
            **options: Those of the table.
        """

    assert inspect.signature(explain).parameters["temper"].default == "calm"
    assert f"temper: {dummy.help}" in explain.__doc__

    # The command line.
    parser = argparse.ArgumentParser()
    flags.add_options(parser)
    assert flags.given_options(parser.parse_args(["--temper", "wild"])) == {"temper": "wild"}
    assert "--temper" in parser.format_help()

    # The server.
    assert "temper" in json.dumps(openapi())

    # What is run and what is saved.
    explanation = classifier().explain("the keys", method="rollout", temper="wild")
    explanation.save(tmp_path / "keys.json")
    assert attnflow.Explanation.load(tmp_path / "keys.json").options["temper"] == "wild"
    attnflow.run(["the keys"], classifier(), output=tmp_path / "out", temper="wild", workers=1)
    manifest = next((tmp_path / "out").glob("*.json")).read_text()
    assert '"temper": "wild"' in manifest

    # The documentation.
    monkeypatch.syspath_prepend(ROOT / "docs")
    import pages

    monkeypatch.setattr(pages, "HERE", Path(pages.__file__).parent)
    assert dummy.help in pages.markdown_table()
    sys.modules.pop("pages")
