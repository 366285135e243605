"""What a text stream can show: its width, its encoding, and whether it is a terminal."""

import codecs
import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


ACCENT = "#3b9bdc"
"""The colour of what stands out on a terminal."""


def console_for(stream: TextIO) -> "Console | None":
    """Return a rich console for a stream.

    Args:
        stream: The stream.

    Returns:
        The console; None if rich is not installed, or the stream takes only plain text because it
        is not a terminal, or TERM is "dumb".
    """
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(file=stream, force_jupyter=False, highlight=False, soft_wrap=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def encoding_of(stream: TextIO) -> str:
    """Return the encoding of a stream; ASCII if Python does not know the encoding.

    Args:
        stream: The stream.

    Returns:
        The name that Python has for the encoding.
    """
    name = getattr(stream, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "ascii"


def width_of(stream: TextIO) -> int:
    """Return how many cells a line may take: COLUMNS, the width of the terminal, or 80.

    Args:
        stream: The stream.

    Returns:
        The width.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):
        return 80
