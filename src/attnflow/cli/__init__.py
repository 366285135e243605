"""The command line, ``attnflow``: one file a command."""

import argparse
import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from attnflow.cli import evaluate, explain, generate, paper, run, serve, view
from attnflow.cli.options import with_flags
from attnflow.errors import AttnflowError, OptionError
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


# Why a file cannot be written that was opened: there is no room, or it is gone.
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


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
    closed = _open_closed()
    streams = sys.stdout, sys.stderr
    try:
        if "stdout" in closed:
            raise OptionError("standard output is closed; send it to a file, or to /dev/null")
        return _run(argv)
    except AttnflowError as error:
        _say(f"error: {with_flags(str(error))}")
        return 1
    except KeyboardInterrupt:
        # A progress bar may have been stopped before it could give them back.
        sys.stdout, sys.stderr = streams
        # What is not written yet might wait for a reader that reads no more.
        _let_go(sys.stdout)
        _say("interrupted")
        return 130
    except BrokenPipeError:
        # As `head` does it: what reads the output has seen enough.
        with suppress(OSError):
            sys.stdout.flush()  # if it was standard error that nobody reads
        _let_go(sys.stdout)
        _let_go(sys.stderr)
        return 128 + 13  # as after the signal, SIGPIPE, that ends other programs
    except OSError as error:
        if error.errno not in CANNOT_WRITE or error.filename is not None:
            raise
        _let_go(sys.stdout)
        _say(f"error: standard output cannot be written: {error.strerror}")
        return 1


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        # That of argparse says nothing if the help cannot be written.
        print(self.format_help(), end="", file=file)


def _run(argv: Sequence[str] | None) -> int:
    parser = _Parser(
        prog="attnflow",
        description="Which inputs did the answer of a Transformer come from?",
    )
    parser.add_argument("--version", action="version", version=f"attnflow {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    try:
        args = parser.parse_args(argv)
    except SystemExit:
        sys.stdout.flush()  # --help and --version print
        raise
    with _notices():
        status: int = COMMANDS[args.command].run(args)
    sys.stdout.flush()
    return status


def _say(message: str) -> None:
    try:
        # A progress bar that was stopped may have left the cursor in its line.
        begin = "\r" if sys.stderr.isatty() else ""
        print(f"{begin}attnflow: {message}", file=sys.stderr, flush=True)
    except OSError:
        _let_go(sys.stderr)


def _open_closed() -> list[str]:
    """Open standard streams that are closed, so that no other file takes their places."""
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    return closed


def _let_go(stream: TextIO) -> None:
    """Drop what a stream still holds. Python would write it when it ends, and complain."""
    with suppress(OSError):  # a stream in memory has no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
