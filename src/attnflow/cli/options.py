"""What several commands share: how a command is described, and its common options."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnflow.errors import OptionError
from attnflow.io.progress import waiting
from attnflow.models import Explainer
from attnflow.models.load import TASKS
from attnflow.options import OPTIONS, Option, Switch


def add_command(subparsers: Any, name: str, text: str | None) -> argparse.ArgumentParser:
    """Add a command, described by the docstring of its module.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
        name: The command.
        text: The docstring. Its first line is the help of the command in the list of commands. What
            begins with the line "Examples:" is printed below the options.

    Returns:
        The parser of the command.
    """
    about, heading, examples = (text or "").partition("Examples:\n")
    summary = about.partition("\n")[0].rstrip(".")
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary[:1].lower() + summary[1:],
        description=about.strip(),
        epilog=heading.lower() + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_model(parser: argparse._ActionsContainer) -> None:
    """Add --model and --task: which model, and what it is for.

    Args:
        parser: The parser of a command, or a group of its options.
    """
    parser.add_argument(
        "--model",
        help="a folder, a GGUF file, or a hub name (default: the verb-number model that comes with "
        "attnflow)",
    )
    parser.add_argument("--task", default="auto", help=f"auto, {', '.join(TASKS)} (default: auto)")


def add_loading(parser: argparse._ActionsContainer) -> None:
    """Add --device and --allow-pickle: how the model is loaded."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    parser.add_argument("--allow-pickle", action="store_true", help="load weights in pickle files")


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add --engine, --address and --workers: what runs the model."""
    from attnflow.dataset.engine import ENGINES

    parser.add_argument("--engine", default="local", help=f"{', '.join(ENGINES)} (default: local)")
    parser.add_argument(
        "--address",
        help="with --engine ray: auto for the cluster that this machine is part of, or host:port "
        "(default: start one on this machine for this run)",
    )
    parser.add_argument("--workers", type=int, help="processes (default: one for each CPU)")


def add_options(parser: argparse._ActionsContainer, *, leave_out: Collection[str] = ()) -> None:
    """Add a flag for each option of an explanation, made from the table of options.

    A flag that is not given is not in the parsed arguments. `given_options` returns the others.

    Args:
        parser: The parser of a command, or a group of its options.
        leave_out: The options that the command does not take, or defines by itself.
    """
    for option in OPTIONS:
        if option.name not in leave_out:
            add_option(parser, option)


def add_option(
    parser: argparse._ActionsContainer, option: Option, default: Any = argparse.SUPPRESS
) -> None:
    """Add the flag of one option.

    Args:
        parser: The parser of a command, or a group of its options.
        option: The option.
        default: What is parsed if the flag is not given; by default nothing.
    """
    # A percent sign is special to argparse.
    text = option.help.replace("%", "%%")
    if isinstance(option.kind, Switch) and not option.kind.auto:
        on = bool(option.default)
        parser.add_argument(
            _flag(option, not on),
            dest=option.name,
            action="store_false" if on else "store_true",
            default=default,
            help=option.negated if on else text,
        )
        return
    shown = "" if option.default is None else f" (default: {option.default})"
    parser.add_argument(
        _flag(option),
        type=option.kind.parse,
        choices=("auto", True, False) if isinstance(option.kind, Switch) else None,
        metavar="{auto,on,off}" if isinstance(option.kind, Switch) else None,
        default=default,
        help=f"{text}{shown}",
    )


def _flag(option: Option, value: Any = None) -> str:
    """Return the flag of an option; for a switch, the one that gives it the value False."""
    name = option.name.replace("_", "-")
    return f"--no-{name}" if value is False else f"--{name}"


def with_flags(message: str) -> str:
    """Return an error of the library with options written as the command line takes them.

    Args:
        message: The error, which names arguments of Python.

    Returns:
        The message with a flag for each argument and value of an option.

    Example:
        >>> with_flags("60 tokens; pass truncate=True, or units='words'")
        '60 tokens; pass --truncate, or --units words'
        >>> with_flags("pass max_new_tokens=20, or do_sample=True")
        'pass --max-new-tokens 20, or --do-sample'
    """
    message = re.sub(r"\bmax_new_tokens=(\d+)", r"--max-new-tokens \1", message)
    message = message.replace("do_sample=True", "--do-sample")
    options = {option.name: option for option in OPTIONS}

    def flag(match: re.Match[str]) -> str:
        option, value = options[match[1]], match[2].strip("'\"")
        if not isinstance(option.kind, Switch):
            return f"{_flag(option)} {shlex.quote(value)}"
        if option.kind.auto:
            return f"{_flag(option)} {'on' if value == 'True' else 'off'}"
        return _flag(option, value == "True")

    values = r"'[^']*'|\"[^\"]*\"|True|False|-?\d[\d.]*\b"
    return re.sub(rf"\b({'|'.join(options)})=({values})", flag, message)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of an explanation that were given on the command line.

    Args:
        args: The parsed options.
    """
    return {option.name: args.__dict__[option.name] for option in OPTIONS if option.name in args}


def load(args: argparse.Namespace) -> Explainer:
    """Load the model that --model names, or the one that comes with attnflow.

    Args:
        args: The parsed options.

    Raises:
        AttnflowError: If it cannot be loaded.
    """
    model = shipped() if args.model is None else args.model
    import_torch()
    return Explainer.from_pretrained(
        model, task=args.task, device=args.device, allow_pickle=args.allow_pickle
    )


def import_torch() -> None:
    """Import torch and transformers, which takes seconds, and say so on a terminal meanwhile."""
    with suppress(ImportError), waiting("loading torch and transformers"):
        # What is not installed is said when the model is loaded.
        importlib.import_module("torch")
        importlib.import_module("transformers")


def save(result: Any, path: Path) -> None:
    """Save a result to a file.

    Args:
        result: What to save, which has a method `save`.
        path: The file.

    Raises:
        OptionError: If it cannot be written.
    """
    try:
        result.save(path)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from error


def shipped() -> Path:
    """Return the folder of the model that comes with attnflow."""
    from attnflow.models.verb_number import checkpoint

    return checkpoint()


def index_or_name(value: str) -> int | str:
    """Return an option's value as a number if it is one.

    Example:
        >>> index_or_name("3"), index_or_name("mean")
        (3, 'mean')
    """
    try:
        return int(value)
    except ValueError:
        return value
