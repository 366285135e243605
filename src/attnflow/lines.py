"""The lines of a file or of standard input, plain or gzipped, one at a time."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from attnflow.errors import DataError

__all__ = ["Lines", "is_half", "opened"]


class Lines:
    r"""The lines of a file, with bytes that are not UTF-8 kept as half characters.

    Args:
        name: The file's name, for errors.
        file: The file.

    Attributes:
        number: How many lines have been read.

    Example:
        >>> import io
        >>> lines = Lines("x.txt", io.BytesIO(b"one\n\xff two\n"))
        >>> lines.peek()
        'one\n'
        >>> [(lines.number, is_half(line)) for line in lines]
        [(1, False), (2, True)]
    """

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = iter(file)
        self._ahead: list[str] = []
        self.number = 0

    def peek(self) -> str | None:
        """Return the line that comes next, None if there is none."""
        line = next(self, None)
        if line is not None:
            self._ahead.append(line)
            self.number -= 1
        return line

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> str:
        self.number += 1
        if self._ahead:
            return self._ahead.pop()
        try:
            line = next(self._file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{self._name}, line {self.number}: the compressed data is cut off or damaged here"
            ) from error
        except StopIteration:
            self.number -= 1
            raise
        return line.decode("utf-8-sig" if self.number == 1 else "utf-8", "surrogateescape")


@contextmanager
def opened(name: str) -> Iterator[IO[bytes]]:
    """Open a file, plain or gzipped; "-" is standard input.

    Args:
        name: The file's name.

    Yields:
        The file.

    Raises:
        DataError: If it cannot be opened.
    """
    if name == "-":
        given = sys.stdin.buffer
        if hasattr(given, "peek") and given.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(given, "rb") as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield given
        return
    try:
        file = open(name, "rb")  # noqa: SIM115 # closed below
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from error
    with file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(file, "rb") as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield file


def is_half(text: str) -> bool:
    r"""Return whether a text has half characters, which no file of UTF-8 has.

    Example:
        >>> is_half("é"), is_half("\udce9")
        (False, True)
    """
    # Of all characters, these alone have no UTF-8.
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
