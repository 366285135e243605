"""A file that keeps the results of an evaluation as they come, so that a run can be gone on with.

The file is JSON lines: a header that says what is evaluated, then one record a text. Lines are only
ever added. A process that is killed leaves at most its last line unfinished, which is cut off when
the file is opened again.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from attnflow.errors import DataError, OptionError
from attnflow.resume import difference, lock

__all__ = ["Store"]

FORMAT = "attnflow.evaluation-store"
VERSION = 1
NAME = "evaluation.jsonl"
"""The file's name where a folder is given."""


class Store:
    """The file of one evaluation, open for as long as the evaluation runs.

    Args:
        path: The file, which is made if there is none, or a folder, in which it is called
            "evaluation.jsonl".
        header: What is evaluated: "model" and "fingerprint", "options" and "data".

    Attributes:
        path: The file.
        records: What the file held when it was opened, by the index of the text.

    Raises:
        OptionError: If the file cannot be opened, is of another evaluation, which the message tells
            apart, or is being written by another process.
        DataError: If the file is damaged, or is something else.
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        name = os.fspath(path)
        self.path = os.path.join(name, NAME) if os.path.isdir(name) else name
        self.records: dict[int, dict[str, Any]] = {}
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise OptionError(f"store is {self.path!r}, but there is no folder {folder!r}")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise OptionError(f"store is {self.path!r}, which is no ordinary file")
        try:
            # Not "w": what is there stays until its header has been compared.
            self._file: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 # closed by close()
        except OSError as error:
            raise OptionError(f"store {self.path} cannot be opened: {error.strerror}") from error
        try:
            lock(
                self._file,
                f"store {self.path} is being written by another run; wait for it, or use another",
            )
            self._read({"format": FORMAT, "version": VERSION, **header})
        except BaseException:
            self.close()
            raise

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record. Once this returns, a kill of the process does not lose it.

        Args:
            record: The record, with the index of its text as "text".

        Raises:
            DataError: If it cannot be written. What was written before stays.
        """
        self._write(record)

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
                f"store {self.path} cannot be written: {error.strerror}; what is in it stays, and "
                "the same call goes on from there"
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
                    raise ValueError("not a JSON object")
                if number == 1:
                    self._compare(value, header)
                else:
                    self.records[int(value["text"])] = value
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, OptionError | DataError):
                    raise
                raise DataError(
                    f"{self.path}, line {number}: not the record of a text ({error}); the file is "
                    "damaged, or no store of an evaluation"
                ) from error
        if whole == 0 and not self._is_beginning():
            raise DataError(f"{self.path} is not a store of an evaluation; choose another file")
        self._file.truncate(whole)
        if whole == 0:
            self._write(header)

    def _is_beginning(self) -> bool:
        """Whether an only, unfinished line is the beginning of a header, not somebody's file."""
        header = json.dumps({"format": FORMAT})[:-1].encode()
        self._file.seek(0)
        return header.startswith(self._file.read(len(header)))

    def _compare(self, found: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        if found.get("format") != FORMAT:
            raise DataError(f"{self.path} is not a store of an evaluation; choose another file")
        different = difference(found, header, _spelt) or _other_data(found, header)
        if different:
            raise OptionError(
                f"store {self.path} is of another evaluation: {different}. Choose another file, "
                "or remove this one"
            )


def _other_data(found: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    there, here = found.get("data", {}), header.get("data", {})
    if there.get("texts") != here.get("texts"):
        return f"it has {there.get('texts')} texts there and {here.get('texts')} here"
    if there != here:
        return f"both have {here.get('texts')} texts, but not the same ones"
    return ""


def _spelt(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
