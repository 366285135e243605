"""The command line: the program and its help."""

import subprocess
import sys

import pytest

import attnflow
from attnflow.cli import COMMANDS, main, serve


def test_the_module_runs_as_the_program_does():
    result = subprocess.run(
        [sys.executable, "-m", "attnflow", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == f"attnflow {attnflow.__version__}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    assert f"attnflow {command} " in capsys.readouterr().out.partition("example")[2]


def test_a_missing_or_unknown_command_lists_the_valid_ones(capsys):
    for argv in ([], ["explane"]):
        with pytest.raises(SystemExit) as exit_info:
            main(argv)
        assert exit_info.value.code == 2
    assert "serve" in capsys.readouterr().err


def test_an_error_of_attnflow_is_one_line_and_no_traceback(monkeypatch, capsys):
    def fail(args):
        raise attnflow.OptionError("layer is 9, but there are 3 layers")

    monkeypatch.setattr(serve, "run", fail)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "attnflow: error: layer is 9, but there are 3 layers\n"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("pass truncate=True to cut it", "pass --truncate to cut it"),
        ("use edges='attention'", "use --edges attention"),
        ('give units="words", or heads=3', "give --units words, or --heads 3"),
        ("special_tokens=False leaves it out", "--no-special-tokens leaves it out"),
        ("receptive_field=False divides nothing", "--receptive-field off divides nothing"),
        ("target='two words' is missing", "--target 'two words' is missing"),
        ("output_attentions=True, layer is 9", "output_attentions=True, layer is 9"),
    ],
)
def test_an_error_names_flags_and_not_arguments_of_python(message, shown, monkeypatch, capsys):
    def fail(args):
        raise attnflow.TextError(message)

    monkeypatch.setattr(serve, "run", fail)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == f"attnflow: error: {shown}\n"


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "run", interrupt)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == "attnflow: interrupted\n"
