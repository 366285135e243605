"""The folder that a data set is written to: shards, each whole or not at all, and a manifest.

    out/manifest.json               what is computed, and which shards are finished
    out/data/part-00000.parquet     the explanations of the first shard's rows
    out/errors/part-00000.parquet   the rows of it that failed, if any did
    out/attentions/part-00000.safetensors   their attention, if it is kept

A shard is finished when the manifest says so. Its files are written before, under another name, and
take their own in one step, so that a process can be killed at any moment. What it had not finished
is made again by the next run, to the same bytes.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple

from attnflow.dataset.shard import Shard
from attnflow.errors import DataError, OptionError
from attnflow.files import write_whole
from attnflow.resume import difference, lock

__all__ = ["Finished", "Store", "read_finished"]

FORMAT: Final = "attnflow.dataset"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
LOCK: Final = ".lock"
FOLDERS: Final = {"data": "parquet", "errors": "parquet", "attentions": "safetensors"}


class Store:
    """The folder of one data set, locked for as long as a run writes to it.

    Args:
        folder: The folder, which is made if there is none.
        header: What is computed: "model", "fingerprint", "options" and "source", among others.

    Attributes:
        folder: The folder.
        header: What is computed, in the words of the run that began it.
        shards: What is known of each finished shard, by its number.
        complete: Whether all shards are finished.
        damaged: The shards that were finished, but whose files are missing or have changed, and
            which are to be made again.

    Raises:
        OptionError: If the folder cannot be used, is of another run, which the message tells apart,
            or is being written to by another process.
        DataError: If the manifest is damaged or was edited.
    """

    def __init__(self, folder: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.shards: dict[int, dict[str, Any]] = {}
        self.complete = False
        self.damaged: list[int] = []
        self.header = {"format": FORMAT, "version": VERSION, **header}
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError(f"output is {str(self.folder)!r}, which is no folder")
        try:
            # What a killed run left behind before its manifest was there counts as nothing.
            if self.folder.is_dir() and not (self.folder / MANIFEST).exists():
                others = [
                    path.name
                    for path in self.folder.iterdir()
                    if path.name != LOCK and not _is_temporary(path)
                ]
                if others:
                    raise OptionError(
                        f"output is {str(self.folder)!r}, which has files ({others[0]}) but no "
                        f"{MANIFEST}; choose a folder that is empty, or not there yet"
                    )
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = open(self.folder / LOCK, "ab")  # noqa: SIM115 # see close()
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        try:
            lock(
                self._lock,
                f"output {self.folder} is being written to by another run; wait for it, or choose "
                "another folder",
            )
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def rows(self) -> int:
        """How many rows are explained."""
        return sum(shard["rows"] for shard in self.shards.values())

    @property
    def failed(self) -> int:
        """How many rows failed."""
        return sum(shard["failed"] for shard in self.shards.values())

    def close(self) -> None:
        """Let other runs use the folder."""
        self._lock.close()

    def add(self, number: int, shard: Shard, source: str) -> None:
        """Write the files of a shard, and then that it is finished.

        Args:
            number: Which shard it is, from 0.
            shard: The shard.
            source: The digest of the rows that it was made of.

        Raises:
            DataError: If something cannot be written. What was finished before stays.
        """
        files = {}
        try:
            contents = (shard.data, shard.errors, shard.attentions)
            for kind, content in zip(FOLDERS, contents, strict=True):
                path = self.folder / kind / _name(number, kind)
                if content is None:
                    # Nobody may take a file that lies there for one of the shard's.
                    path.unlink(missing_ok=True)
                    continue
                path.parent.mkdir(exist_ok=True)
                write_whole(path, content)
                _sync(path.parent)
                files[kind] = _digest(content)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        self.shards[number] = {
            "rows": shard.rows,
            "failed": shard.failed,
            "source": source,
            "files": files,
        }
        self._write()

    def finish(self) -> None:
        """Write that all shards are finished.

        Raises:
            DataError: If it cannot be written.
        """
        self.complete = True
        self._write()

    # ---- Opening ---------------------------------------------------------------------------------

    def _open(self) -> None:
        for folder in (self.folder, *(self.folder / kind for kind in FOLDERS)):
            if folder.is_dir():
                for path in filter(_is_temporary, folder.iterdir()):
                    path.unlink()
        path = self.folder / MANIFEST
        if not path.exists():
            self._write()
            return
        found = _read_manifest(path)
        different = difference(found["header"], self.header) or _changed(
            found["header"].get("source", {}), self.header["source"]
        )
        if different:
            raise OptionError(
                f"output {self.folder} is of another run: {different}. Choose another folder, or "
                "remove this one"
            )
        self.header = found["header"]
        for name, shard in found["shards"].items():
            if self._is_whole(int(name), shard["files"]):
                self.shards[int(name)] = shard
            else:
                self.damaged.append(int(name))
        self.complete = bool(found["complete"]) and not self.damaged

    def _is_whole(self, number: int, files: Mapping[str, str]) -> bool:
        for kind in FOLDERS:
            path = self.folder / kind / _name(number, kind)
            try:
                with open(path, "rb") as file:
                    found = hashlib.file_digest(file, _blake2b).hexdigest()
            except OSError:
                found = None
            if found != files.get(kind):
                return False
        return True

    def _write(self) -> None:
        content = {
            "header": self.header,
            "complete": self.complete,
            "shards": {str(number): self.shards[number] for number in sorted(self.shards)},
        }
        try:
            write_whole(self.folder / MANIFEST, _sealed(content))
            _sync(self.folder)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error


class Finished(NamedTuple):
    """What a run has finished so far.

    Attributes:
        folder: The folder.
        header: What was computed: "model", "options" and "source", among others.
        shards: What is known of each finished shard, by its number, in order.
        complete: Whether all shards are finished.
    """

    folder: Path
    header: dict[str, Any]
    shards: dict[int, dict[str, Any]]
    complete: bool

    @property
    def rows(self) -> int:
        """How many rows are explained."""
        return sum(shard["rows"] for shard in self.shards.values())

    @property
    def failed(self) -> int:
        """How many rows failed."""
        return sum(shard["failed"] for shard in self.shards.values())

    def files(self, kind: str) -> dict[int, Path]:
        """Return the files of the shards that have one of a kind.

        Args:
            kind: "data", "errors" or "attentions".
        """
        return {
            number: self.folder / kind / _name(number, kind)
            for number, shard in self.shards.items()
            if kind in shard["files"]
        }


def read_finished(folder: str | os.PathLike[str]) -> Finished:
    """Return what a run has finished, whether or not it still runs.

    Args:
        folder: The output of the run.

    Raises:
        OptionError: If there is no such output.
        DataError: If its manifest is damaged or was edited.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise OptionError(
            f"{os.fspath(folder)} has no {MANIFEST}; expected the output of attnflow run"
        )
    found = _read_manifest(path)
    shards = {int(name): shard for name, shard in found["shards"].items()}
    return Finished(
        Path(folder), found["header"], dict(sorted(shards.items())), bool(found["complete"])
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(
            f"{path} is damaged, it is not JSON: {error}. Choose another output, or remove this one"
        ) from error
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("header"), dict)
        or found["header"].get("format") != FORMAT
    ):
        raise DataError(f"{path} is not the manifest of a data set; choose another output")
    seal = found.pop("seal", None)
    if json.loads(_sealed(found))["seal"] != seal:
        raise DataError(
            f"{path} was edited, so that nothing can be said of the shards it names; put it back "
            "as it was, choose another output, or remove this one"
        )
    return found


def _sealed(content: Mapping[str, Any]) -> str:
    """Return a manifest as JSON, with a digest of all that it says."""
    plain = json.dumps(content, sort_keys=True, ensure_ascii=False)
    sealed = {**content, "seal": _digest(plain.encode())}
    return json.dumps(sealed, indent=1, ensure_ascii=False) + "\n"


def _blake2b(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


def _digest(content: bytes) -> str:
    return _blake2b(content).hexdigest()


def _name(number: int, kind: str) -> str:
    return f"part-{number:05d}.{FOLDERS[kind]}"


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".attnflow-") and path.name.endswith(".tmp")


def _sync(folder: Path) -> None:
    """Make sure that a new name in a folder outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cannot_write(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"output {folder} cannot be written: {error.strerror or error}. The shards that are "
        "finished stay, and the same command goes on from there"
    )


def _changed(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    files, others = there.get("files", []), here["files"]
    if [file["digest"] for file in files] == [file["digest"] for file in others]:
        return ""
    if len(files) == len(others) == 1:
        return f"its source {files[0]['name']} has changed since, or is another"
    old = {file["name"]: file for file in files}
    new = {file["name"]: file for file in others}
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            return f"its source had the file {name}, which is not there any more"
        if name not in old:
            return f"its source had no file {name}"
        if old[name] != new[name]:
            return f"its source {name} has changed since"
    return "the files of its source come in another order"
