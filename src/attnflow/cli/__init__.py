"""The command line, ``attnflow``: one file a command."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attnflow.cli import evaluate, explain, generate, paper, run, serve, view
from attnflow.cli.options import with_flags
from attnflow.errors import AttnflowError
from attnflow.version import __version__

__all__ = ["main"]

COMMANDS = {
    "explain": explain,
    "generate": generate,
    "run": run,
    "view": view,
    "serve": serve,
    "evaluate": evaluate,
    "paper": paper,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: The arguments after the program's name. None means those of this process.

    Returns:
        0 if all went well, 1 after an error that attnflow explains, 130 after Ctrl-C, 141 if nobody
        reads its output any more.

    Raises:
        SystemExit: If the arguments cannot be parsed, or ask for help or the version.
    """
    parser = argparse.ArgumentParser(
        prog="attnflow",
        description="From which input tokens did this embedding get its information?",
    )
    parser.add_argument("--version", action="version", version=f"attnflow {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        with _notices():
            status: int = COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return status
    except AttnflowError as error:
        print(f"attnflow: error: {with_flags(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("attnflow: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # As `head` does it: what reads the output has seen enough. Python would write the rest when
        # it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as after the signal, SIGPIPE, that ends other programs


@contextmanager
def _notices() -> Iterator[None]:
    """Print what is said before long work to standard error: what it will need."""
    log, handler = logging.getLogger("attnflow.models"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("attnflow: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
