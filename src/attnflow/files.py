"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["replacing", "write_whole"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give the name of a file to write, which takes the place of another when all went well.

    Args:
        path: Where the file goes in the end, in one step. A link stays a link, and what it leads to
            is replaced.

    Yields:
        A name in the same folder. After an error or Ctrl-C there is no such file any more, and what
        was at `path` is as it was.
    """
    target = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(target), f".attnflow-{os.urandom(8).hex()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that nobody ever sees half of it.

    Args:
        path: Where to; a file that is there is replaced at the end, in one step.
        content: What to write; a string as UTF-8.

    Raises:
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(f"{folder}/x.txt", "all of it")
        ...     print(os.listdir(folder), os.path.getsize(f"{folder}/x.txt"))
        ['x.txt'] 9
    """
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
