"""What everything that can be resumed has in common: a lock, a header and a journal of results.

A header says what is computed: the version of attnflow, the model, the options and the data.
Results that are there already are used only if their header is the same. A journal is a file of
JSON lines, the header first. Lines are only appended, so a process that is killed leaves at most
its last line unfinished, which is removed when the file is opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from attnflow.errors import DataError, OptionError
from attnflow.io.files import write_whole


def lock(file: IO[bytes], what: str) -> None:
    """Keep other processes from writing for as long as a file is open.

    Args:
        file: The file.
        what: What it is, for the error: "output out/".

    Raises:
        OptionError: If another process holds the lock.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OptionError(
            f"{what} is being written by another run; wait until it ends, or choose another"
        ) from error


@contextmanager
def locked(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Hold a lock in a file of its own, which is removed at the end.

    Args:
        path: The file.
        what: What is locked, for the error.

    Raises:
        OptionError: If another process holds the lock.
        OSError: If the file cannot be opened.
    """
    while True:
        with open(path, "ab") as file:
            lock(file, what)
            # Between the two lines above, another process may have removed the file.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                try:
                    yield
                finally:
                    os.unlink(path)
                return


def difference(found: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """Say how two headers differ: in the version, the model or an option.

    Args:
        found: The header of results that exist.
        header: The header of the results wanted. Of "version", "attnflow", "fingerprint" with
            "model", and "options", those that it has are compared.

    Returns:
        The first difference, in words; an empty string if there is none.

    Example:
        >>> one = {"attnflow": "1", "model": "m", "fingerprint": "f", "options": {"layer": 1}}
        >>> difference(one, {**one, "options": {"layer": 2}})
        'layer is 1 there and 2 here'
    """
    for name, what in (("version", "its format's version"), ("attnflow", "attnflow's version")):
        if name in header and found.get(name) != header[name]:
            return f"{what} is {found.get(name)} there and {header[name]} here"
    if found.get("fingerprint") != header.get("fingerprint"):
        there, here = found.get("model"), header["model"]
        if there == here:
            return f"the model is {here} in both, but its weights or its vocabulary have changed"
        return f"the model is {there} there and {here} here"
    old, new = found.get("options", {}), header.get("options", {})
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            values = reprlib.repr(old.get(name)), reprlib.repr(new.get(name))
            return f"{name} is {values[0]} there and {values[1]} here"
    return ""


class Journal:
    """A file of numbered results that grows until all are there, over one run or several.

    Args:
        path: The file, which is made if there is none, or a folder to make it in.
        header: What is computed. Its first entry is "format", which tells journals of one kind from
            other files; "data" may say how many items there are, and has a digest of them.
        key: The entry of a record that has its number.
        items: What the numbers count, for errors.
        file_name: The name of the file where `path` is a folder.

    Attributes:
        path: The file.
        records: The records that the file held when it was opened, by number.

    Raises:
        OptionError: If the file cannot be opened, belongs to another run (the message says what
            differs), or is being written by another process.
        DataError: If the file is damaged, or is not a journal.

    Example:
        >>> import tempfile
        >>> header = {"format": "squares", "options": {"power": 2}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Journal(folder, header) as journal:
        ...         journal.add(3, {"square": 9})
        ...     with Journal(folder, header) as journal:
        ...         print(journal.records)
        {3: {'number': 3, 'square': 9}}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        key: str = "number",
        items: str = "items",
        file_name: str = "journal.jsonl",
    ) -> None:
        name = os.fspath(path)
        self.path = os.path.join(name, file_name) if os.path.isdir(name) else name
        self.records: dict[int, dict[str, Any]] = {}
        self._key, self._items = key, items
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise OptionError(f"{self.path} cannot be written: it is not a regular file")
        try:
            # Not "w": what is there stays until its header has been compared.
            self._file: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 # closed by close()
        except OSError as error:
            raise OptionError(f"{self.path} cannot be written: {error.strerror}") from error
        try:
            lock(self._file, self.path)
            self._read(header)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, number: int, record: Mapping[str, Any]) -> None:
        """Append a record. Once this returns, a kill of the process does not lose it.

        Args:
            number: The number of the item.
            record: The record: anything that JSON can hold.

        Raises:
            DataError: If it cannot be written. What was written before stays.
        """
        self._write({self._key: number, **record})

    def close(self) -> None:
        """Close the file, after everything has reached the disk."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def _write(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be written: {error.strerror}. What is in it stays; the same "
                "call continues from there"
            ) from error

    def _read(self, header: Mapping[str, Any]) -> None:
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise TypeError("it is not a JSON object")
                if number > 1:
                    self.records[int(value[self._key])] = value
                    continue
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{self.path}, line {number}: not a record ({error}); the file is damaged, or "
                    "is not a journal of results"
                ) from error
            self._compare(value, header)
        if whole == 0 and not self._begins_as(header):
            raise self._other_file()
        self._file.truncate(whole)
        if whole == 0:
            self._write(header)

    def _begins_as(self, header: Mapping[str, Any]) -> bool:
        """Whether the only line, which is unfinished, is the beginning of a header."""
        expected = json.dumps({"format": header["format"]})[:-1].encode()
        self._file.seek(0)
        return expected.startswith(self._file.read(len(expected)))

    def _compare(self, found: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        if found.get("format") != header["format"]:
            raise self._other_file()
        different = difference(found, header)
        there, here = found.get("data", {}), header.get("data", {})
        if not different and there != here:
            counts = there.get(self._items), here.get(self._items)
            different = f"its data are {counts[0]} {self._items} there and {counts[1]} others here"
        if different:
            raise OptionError(
                f"{self.path} belongs to another run: {different}. Choose another file, or remove "
                "this one"
            )

    def _other_file(self) -> DataError:
        return DataError(f"{self.path} is not a journal of results; choose another file")


# ---- Files that are made once --------------------------------------------------------------------


def make_once(
    record: Path,
    files: Sequence[Path],
    recipe: str,
    make: Callable[[], tuple[Mapping[str, Any], Mapping[Path, str | bytes]]],
) -> bool:
    """Make files, unless they are there and were made from the same recipe.

    Args:
        record: A JSON file that says what was made and from which recipe. It is written last: where
            it is, all others are.
        files: The other files.
        recipe: What the files depend on, as `digest_of` gives it.
        make: Returns what the record says, and the contents of `files`.

    Returns:
        Whether they had to be made.

    Raises:
        OSError: If a file cannot be written.
    """
    if _recipe_in(record) == recipe and all(path.is_file() for path in files):
        return False
    about, contents = make()
    for path in files:
        write_whole(path, contents[path])
    content = json.dumps({**about, "recipe": recipe}, ensure_ascii=False, allow_nan=False, indent=1)
    write_whole(record, content + "\n")
    return True


def _recipe_in(record: Path) -> Any:
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    return found.get("recipe") if isinstance(found, dict) else None


def digest_of(value: Any) -> str:
    """Return a digest of anything that JSON can hold.

    Example:
        >>> digest_of({"limit": 100}) == digest_of({"limit": 101})
        False
    """
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def stamps(path: Path) -> list[list[Any]]:
    """Return the names, sizes and times of a file, or of the files of a folder."""
    if not path.exists():
        return []
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
        if file.is_file()
    ]
