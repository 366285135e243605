"""CONTRIBUTING.md describes the code as it is."""

import re
import sys
import tomllib

import pytest

from attnflow.cli import main
from tests.support import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_walk_through_names_the_functions_that_a_command_passes_through(capsys):
    documented = re.findall(r"^\| \d+ \| `([\w.]+)`", GUIDE, flags=re.MULTILINE)
    assert 10 < len(documented) < 20
    called = []

    def note(frame, event, _):
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("attnflow"):
            called.append(f"{module}.{frame.f_code.co_qualname}".removeprefix("attnflow."))

    command = ["explain", "the keys to the cabinet", "--method", "rollout"]
    main(command)  # imports what it needs, which takes long under a profiler
    sys.setprofile(note)
    try:
        main(command)
    finally:
        sys.setprofile(None)
    assert "keys" in capsys.readouterr().out
    # In this order: each is called, for the first time or again, after the one before it.
    place = 0
    for name in documented:
        assert name in called[place:], f"{name} is not called after the one before it"
        place = called.index(name, place) + 1


@pytest.mark.parametrize("contract", ["Data flows one way"])
def test_every_layer_of_the_contract_is_in_the_picture(contract):
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [found] = [
        item for item in config["tool"]["importlinter"]["contracts"] if item["name"] == contract
    ]
    picture = GUIDE.split("```")[3]
    packages = [
        name
        for layer in found["layers"]
        for name in re.findall(r"\w+", layer)
        if (ROOT / "src" / "attnflow" / name / "__init__.py").exists()
    ]
    for name in packages:
        assert re.search(rf"^ .*\b{name}\b", picture, flags=re.MULTILINE), name
