"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give the name of a temporary file that replaces another file when the block succeeds.

    Args:
        path: The file to replace. If it is a symbolic link, its target is replaced.

    Yields:
        The name of a file to write, in the same folder. After an error or Ctrl-C it is removed, and
        the file at `path` is unchanged.
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
    """Write a file atomically: a reader sees the old content or the new, never a part.

    Args:
        path: The file. An existing file is replaced at the end, in one step.
        content: What to write; a string is encoded as UTF-8.

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


def temporary_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the temporary files that killed processes have left in a folder."""
    place = Path(folder)
    return sorted(place.glob(".attnflow-*.tmp")) if place.is_dir() else []


def remove_temporary(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed processes have left in a folder."""
    for path in temporary_files(folder):
        path.unlink()


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make sure that new names in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
