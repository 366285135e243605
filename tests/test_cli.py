"""The command line: the program, its help, and the demo."""

import json
import subprocess
import sys

import numpy as np
import pytest

import attnflow
from attnflow.cli import demo, main


def test_demo_prints_the_worked_example(capsys):
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.strip()]
    assert ["[CLS]", "keys", "cabinet"] in rows
    assert ["layer", "3", "raw", "0.500", "0.000", "0.500"] in rows
    # (72, 103, 81) / 256, worked out by hand in test_rollout.py
    assert ["rollout", "0.281", "0.402", "0.316"] in rows
    # Three paths limit the flow to "cabinet": 1/4 at layer 3, 1/4 at layer 2 and 1/8 at layer 1.
    assert ["flow", "0.750", "1.000", "0.625"] in rows
    assert ["0.250", "layer", "3,", "[CLS]", "to", "cabinet"] in rows
    assert ["0.125", "layer", "1,", "[CLS]", "to", "cabinet"] in rows


def test_demo_json_holds_the_same_numbers(capsys):
    assert main(["demo", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokens"] == ["[CLS]", "keys", "cabinet"]
    assert [row["layer"] for row in result["layers"]] == [1, 2, 3]
    assert result["layers"][-1]["rollout"] == [72 / 256, 103 / 256, 81 / 256]
    assert result["layers"][0]["flow"] == [0.5, 0.375, 0.125]
    assert result["min_cut"]["value"] == 0.625
    assert sum(edge["capacity"] for edge in result["min_cut"]["edges"]) == 0.625


def test_the_demo_shows_the_example_of_the_tests(worked_example):
    np.testing.assert_array_equal(demo.ATTENTION, worked_example)


def test_the_module_runs_as_the_program_does():
    result = subprocess.run(
        [sys.executable, "-m", "attnflow", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == f"attnflow {attnflow.__version__}"


@pytest.mark.parametrize("command", ["bench", "demo"])
def test_help_of_every_command_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    assert f"attnflow {command} --" in capsys.readouterr().out.partition("example")[2]


def test_a_missing_or_unknown_command_lists_the_valid_ones(capsys):
    for argv in ([], ["explane"]):
        with pytest.raises(SystemExit) as exit_info:
            main(argv)
        assert exit_info.value.code == 2
    assert "bench" in capsys.readouterr().err


def test_an_error_of_attnflow_is_one_line_and_no_traceback(monkeypatch, capsys):
    def fail(args):
        raise attnflow.OptionError("layer is 9, but there are 3 layers")

    monkeypatch.setattr(demo, "run", fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "attnflow: error: layer is 9, but there are 3 layers\n"


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "attnflow: interrupted\n"
