"""The folder that a data set is written to: shards, each whole or not at all, and a manifest.

    out/manifest.json               what is computed, and which shards are finished
    out/data/part-00000.parquet     the explanations of the first shard's rows
    out/errors/part-00000.parquet   the rows of it that failed, if any did
    out/attentions/part-00000.safetensors   their attention, if it is kept

A shard is finished when the manifest says so. Its files are written before that, each in one step,
so a process can be killed at any moment. The next run makes what was not finished, with the same
bytes.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from attnflow.dataset.shard import Shard
from attnflow.errors import DataError, OptionError
from attnflow.io.files import remove_temporary, sync_folder, temporary_files, write_whole
from attnflow.io.journal import difference, lock

FORMAT: Final = "attnflow.dataset"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
LOCK: Final = ".lock"
FOLDERS: Final = {"data": "parquet", "errors": "parquet", "attentions": "safetensors"}


@dataclass
class Finished:
    """What a run has finished so far.

    Attributes:
        folder: The folder.
        header: What is computed: "model", "options" and "source", among others.
        shards: What is known of each finished shard, by its number, in order.
        complete: Whether all shards are finished.
    """

    folder: Path
    header: dict[str, Any]
    shards: dict[int, dict[str, Any]]
    complete: bool = False

    @property
    def rows(self) -> int:
        """How many rows are explained."""
        return sum(shard["rows"] for shard in self.shards.values())

    @property
    def failed(self) -> int:
        """How many rows failed."""
        return sum(shard["failed"] for shard in self.shards.values())

    def files(self, kind: str) -> dict[int, Path]:
        """Return the files of one kind, by the number of their shard.

        Args:
            kind: "data", "errors" or "attentions".
        """
        return {
            number: self.path(number, kind)
            for number, shard in self.shards.items()
            if kind in shard["files"]
        }

    def path(self, number: int, kind: str) -> Path:
        """Return the name of a file of a shard, whether or not it exists."""
        return self.folder / kind / f"part-{number:05d}.{FOLDERS[kind]}"

    def is_whole(self, number: int) -> bool:
        """Return whether the files of a shard are there and have not changed."""
        for kind in FOLDERS:
            try:
                found = file_digest(self.path(number, kind))
            except OSError:
                found = None
            if found != self.shards[number]["files"].get(kind):
                return False
        return True

    def table(self, number: int, columns: Iterable[str], *, check: bool = False) -> Any:
        """Read the explanations of a shard.

        Args:
            number: The number of the shard.
            columns: The columns to read.
            check: Whether to compare the file with its digest.

        Returns:
            A `pyarrow.Table`.

        Raises:
            DataError: If the file is missing, damaged, or was changed.
        """
        import pyarrow
        import pyarrow.parquet

        path = self.path(number, "data")
        reason = "its digest is not that of the manifest"
        try:
            if not check or file_digest(path) == self.shards[number]["files"]["data"]:
                return pyarrow.parquet.read_table(path, columns=list(columns))
        except (OSError, pyarrow.ArrowException) as error:
            reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} is missing, damaged or was changed ({reason}); attnflow run with the same "
            "options makes it again"
        )


class Store(Finished):
    """The folder of one data set, locked while a run writes to it.

    Args:
        folder: The folder, which is made if it does not exist.
        header: What is computed: "model", "fingerprint", "options" and "source", among others.

    Attributes:
        header: What is computed, as the run that began it has written it.
        damaged: The finished shards whose files are missing or have changed. They are made again.

    Raises:
        OptionError: If the folder cannot be used, belongs to another run (the message says what
            differs), or is being written by another process.
        DataError: If the manifest is damaged or was edited.
    """

    def __init__(self, folder: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        super().__init__(Path(folder), {"format": FORMAT, "version": VERSION, **header}, {})
        self.damaged: list[int] = []
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError(f"output is {str(self.folder)!r}, which is not a folder")
        with self._writing():
            # A run that was killed before there was a manifest may have left these.
            ours = {self.folder / LOCK, *temporary_files(self.folder)}
            if self.folder.is_dir() and not (self.folder / MANIFEST).exists():
                for other in set(self.folder.iterdir()) - ours:
                    raise OptionError(
                        f"output is {str(self.folder)!r}, which has files ({other.name}) but no "
                        f"{MANIFEST}; choose a folder that is empty or does not exist"
                    )
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = open(self.folder / LOCK, "ab")  # noqa: SIM115 # see close()
        try:
            lock(self._lock, f"output {self.folder}")
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other runs use the folder."""
        self._lock.close()

    def add(self, number: int, shard: Shard, source: str) -> None:
        """Write the files of a shard, and then that it is finished.

        Args:
            number: The number of the shard, from 0.
            shard: The shard.
            source: The digest of the rows that it was made of.

        Raises:
            DataError: If something cannot be written. What was finished before stays.
        """
        files = {}
        contents = (shard.data, shard.errors, shard.attentions)
        with self._writing():
            for kind, content in zip(FOLDERS, contents, strict=True):
                path = self.path(number, kind)
                if content is None:
                    # A file of another run must not be taken for the shard's.
                    path.unlink(missing_ok=True)
                    continue
                path.parent.mkdir(exist_ok=True)
                write_whole(path, content)
                sync_folder(path.parent)
                files[kind] = digest(content)
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

    def _open(self) -> None:
        for folder in (self.folder, *(self.folder / kind for kind in FOLDERS)):
            remove_temporary(folder)
        if not (self.folder / MANIFEST).exists():
            self._write()
            return
        found = read_finished(self.folder)
        different = difference(found.header, self.header) or _other_source(
            found.header.get("source", {}), self.header["source"]
        )
        if different:
            raise OptionError(
                f"output {self.folder} belongs to another run: {different}. Choose another folder, "
                "or remove this one"
            )
        self.header = found.header
        self.damaged = [number for number in found.shards if not found.is_whole(number)]
        self.shards = {
            number: shard for number, shard in found.shards.items() if number not in self.damaged
        }
        self.complete = found.complete and not self.damaged

    def _write(self) -> None:
        content = {
            "header": self.header,
            "complete": self.complete,
            "shards": {str(number): self.shards[number] for number in sorted(self.shards)},
        }
        sealed = {**content, "seal": _seal(content)}
        with self._writing():
            write_whole(
                self.folder / MANIFEST, json.dumps(sealed, indent=1, ensure_ascii=False) + "\n"
            )
            sync_folder(self.folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"output {self.folder} cannot be written: {error.strerror or error}. The shards "
                "that are finished stay, and the same command continues from there"
            ) from error


def read_finished(folder: str | os.PathLike[str]) -> Finished:
    """Return what a run has finished, whether or not it is still running.

    Args:
        folder: The output of the run.

    Raises:
        OptionError: If there is no such output.
        DataError: If its manifest cannot be read, is damaged or was edited.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise OptionError(
            f"{os.fspath(folder)} has no {MANIFEST}; expected the output of attnflow run"
        )
    try:
        found = json.loads(path.read_bytes())
        seal = found.pop("seal")
        if found["header"]["format"] != FORMAT:
            raise ValueError(f"the format is {found['header']['format']!r}, not {FORMAT!r}")
        if seal != _seal(found):
            raise ValueError("the seal does not match the content")
        shards = {int(name): shard for name, shard in found["shards"].items()}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is damaged, was edited, or is not the manifest of a data set ({error!r}). "
            "Restore it, choose another output, or remove this one"
        ) from error
    return Finished(Path(folder), found["header"], dict(sorted(shards.items())), found["complete"])


def _seal(content: Mapping[str, Any]) -> str:
    """Return a digest of what a manifest says."""
    plain = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return digest(plain.encode())


def digest(content: bytes) -> str:
    """Return a digest of some bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's content.

    Raises:
        OSError: If it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _other_source(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Say which files of two sources differ; an empty string if none do."""
    files, others = there.get("files", []), here["files"]
    if [file["digest"] for file in files] == [file["digest"] for file in others]:
        return ""
    changed = [file["name"] for file in files if file not in others]
    changed += [file["name"] for file in others if file not in files]
    names = ", ".join(dict.fromkeys(changed)) or "in another order"
    return f"its source ({names}) has changed since, or is another"
