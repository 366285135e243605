"""Readers for the data of the paper's experiments, one example at a time.

All of them stream: a file of any size is read in constant memory. A file may be gzipped.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from attnflow.errors import DataError, OptionError
from attnflow.lines import is_half

__all__ = [
    "LINZEN_COLUMNS",
    "Agreement",
    "Fault",
    "Labelled",
    "read_agreement",
    "read_json_lines",
    "read_sst2",
]

LINZEN_COLUMNS = ("sentence", "verb_pos", "verb_index", "n_diff_intervening")
"""The columns that are read of the file of Linzen et al. (2016); it has more."""

_NUMBERS = ("VBZ", "VBP")
_log = logging.getLogger("attnflow.paper")


class Agreement(NamedTuple):
    """A sentence up to its verb, and the verb's number.

    Attributes:
        text: The words before the verb, separated by spaces.
        label: "VBZ" where the verb is singular, "VBP" where it is plural.
        attractors: How many nouns of the other number stand between the subject and the verb, or
            None where the file does not say.
    """

    text: str
    label: str
    attractors: int | None


class Labelled(NamedTuple):
    """A text and the class it belongs to."""

    text: str
    label: str


class Fault(NamedTuple):
    """A line that could not be read.

    Attributes:
        path: The file.
        line: The line's number, from 1.
        reason: What is wrong with it.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


OnError = str | Callable[[Fault], object]


def read_agreement(
    path: str | os.PathLike[str], *, limit: int | None = None, on_error: OnError = "raise"
) -> Iterator[Agreement]:
    r"""Read sentences with the number of their verb, in any of three formats.

    - The file of Linzen, Dupoux and Goldberg (2016), `agr_50_mostcommon_10K.tsv`: tab-separated
      with a header. The sentence is cut before its verb.
    - Their `numpred` files: `VBZ` or `VBP`, a tab, and the words before the verb. The number of
      attractors is known where the file's name says it, as in `numpred.test.2`.
    - JSON lines with "text", "label" ("VBZ" or "VBP") and, if known, "attractors".

    Args:
        path: The file, plain or gzipped.
        limit: How many sentences to read at most.
        on_error: What a line that cannot be read does. "raise" ends the reading, "skip" logs a
            warning and goes on, and a function is given the `Fault` and the reading goes on.

    Returns:
        An iterator over the sentences.

    Raises:
        DataError: If a line cannot be read and `on_error` is "raise", if the file is none of the
            three, or has no line.
        OSError: If the file cannot be opened.
        OptionError: If `limit` or `on_error` is not valid.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "numpred.test.1"
        ...     _ = path.write_text("VBP\tthe keys to the cabinet\n")
        ...     for sentence in read_agreement(path):
        ...         print(sentence)
        Agreement(text='the keys to the cabinet', label='VBP', attractors=1)
    """
    return _read(path, _agreement_format, limit, on_error)


def read_sst2(
    path: str | os.PathLike[str], *, limit: int | None = None, on_error: OnError = "raise"
) -> Iterator[Labelled]:
    r"""Read GLUE's SST-2: a header, then a sentence, a tab and its label, 1 for positive.

    The arguments and errors are those of `read_agreement`. JSON lines with "sentence" or "text" and
    "label" are read too.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "dev.tsv"
        ...     _ = path.write_text("sentence\tlabel\na joy to watch\t1\n")
        ...     list(read_sst2(path))
        [Labelled(text='a joy to watch', label='1')]
    """
    return _read(path, _sst2_format, limit, on_error)


def read_json_lines(
    path: str | os.PathLike[str],
    *,
    text: str = "text",
    label: str = "label",
    limit: int | None = None,
    on_error: OnError = "raise",
) -> Iterator[Labelled]:
    r"""Read one JSON object a line.

    Args:
        path: The file, plain or gzipped.
        text: The name of the field that has the text.
        label: The name of the field that has the class, a string or an integer.
        limit: As in `read_agreement`.
        on_error: As in `read_agreement`.

    Returns:
        An iterator over the texts and their classes.

    Raises:
        DataError: As in `read_agreement`.
        OSError: If the file cannot be opened.
        OptionError: If `limit` or `on_error` is not valid.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "texts.jsonl"
        ...     _ = path.write_text('{"text": "a joy to watch", "label": 1}\n')
        ...     list(read_json_lines(path))
        [Labelled(text='a joy to watch', label='1')]
    """

    def choose(path: Path, first: str) -> _Format:
        return _Format(False, lambda line: _json_labelled(line, (text,), label))

    return _read(path, choose, limit, on_error)


class _Format(NamedTuple):
    """How the lines of a file are read, and whether the first is a header."""

    header: bool
    parse: Callable[[str], Any]  # raises ValueError with the reason


def _read(
    path: str | os.PathLike[str],
    choose: Callable[[Path, str], _Format],
    limit: int | None,
    on_error: OnError,
) -> Iterator[Any]:
    """Check what was asked for, and return the iterator; the checks are not put off."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionError(f"limit is {limit!r}; expected a number of lines from 1 on, or None")
    if not callable(on_error) and on_error not in ("raise", "skip"):
        raise OptionError(f"on_error is {on_error!r}; expected 'raise', 'skip' or a function")
    place = Path(path)
    place.open("rb").close()
    return islice(_rows(place, choose, on_error), limit)


def _rows(path: Path, choose: Callable[[Path, str], _Format], on_error: OnError) -> Iterator[Any]:
    form: _Format | None = None
    number = 0

    def fail(reason: str, cause: Exception | None = None) -> None:
        fault = Fault(str(path), number, reason)
        if on_error == "raise":
            raise DataError(str(fault)) from cause
        if callable(on_error):
            on_error(fault)
        else:
            _log.warning("%s (skipped)", fault)

    with _open(path) as file:
        lines = iter(file)
        while True:
            number += 1
            try:
                line = next(lines).decode("utf-8-sig" if number == 1 else "utf-8")
            except StopIteration:
                break
            except UnicodeDecodeError as error:
                fail(f"byte {error.start + 1} is not UTF-8 text", error)
                continue
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                fail("the compressed data is cut off or damaged here; nothing after it", error)
                return
            line = line.rstrip("\r\n")
            if not line.strip():
                fail("the line is empty")
                continue
            if form is None:
                # The first line that is text says what the file is.
                form = choose(path, line)
                if form.header:
                    continue
            try:
                row = form.parse(line)
            except RecursionError as error:
                fail("not JSON that can be read: it is nested too deeply", error)
                continue
            except ValueError as error:
                fail(str(error), error)
                continue
            yield row
    if form is None:
        what = "is empty" if number == 1 else "has no line of text"
        raise DataError(f"{path}: the file {what}")


def _open(path: Path) -> BinaryIO:
    file = path.open("rb")
    if file.peek(2)[:2] != b"\x1f\x8b":
        return file
    file.close()
    return cast(BinaryIO, gzip.open(path, "rb"))


def _agreement_format(path: Path, first: str) -> _Format:
    columns = first.split("\t")
    if "sentence" in columns:
        missing = [name for name in LINZEN_COLUMNS if name not in columns]
        if missing:
            raise DataError(
                f"{path}: the header has no column {missing[0]!r}; expected the columns of "
                f"agr_50_mostcommon_10K.tsv, among them {', '.join(LINZEN_COLUMNS)}"
            )
        places = [columns.index(name) for name in LINZEN_COLUMNS]
        return _Format(True, lambda line: _linzen(line.split("\t"), len(columns), places))
    if first.startswith("{"):
        return _Format(False, _json_agreement)
    # A numpred file is one also if its first line is a bad one.
    if path.name.startswith("numpred.") or first.split()[0] in _NUMBERS:
        named = re.search(r"numpred\.\w+\.(\d+)(\.gz)?$", path.name)
        attractors = int(named[1]) if named else None
        return _Format(False, lambda line: _numpred(line, attractors))
    raise DataError(
        f"{path}: the first line is {first[:60]!r}; expected VBZ or VBP, a tab and a sentence, or "
        "the header of agr_50_mostcommon_10K.tsv, or JSON lines"
    )


def _linzen(fields: list[str], count: int, places: list[int]) -> Agreement:
    if len(fields) != count:
        raise ValueError(f"{len(fields)} columns; the header has {count}")
    sentence, number, index, attractors = (fields[place] for place in places)
    # The file was written by Python's csv, which quotes a field that has a quotation mark in it.
    if len(sentence) > 1 and sentence[0] == sentence[-1] == '"':
        sentence = sentence[1:-1].replace('""', '"')
    words = sentence.split()
    if not index.isdecimal() or not 1 < int(index) <= len(words):
        raise ValueError(f"verb_index is {index!r}; expected 2 to {len(words)}, the words")
    if not attractors.isdecimal() or int(attractors) >= len(words):
        raise ValueError(f"n_diff_intervening is {attractors!r}; expected a number of words")
    text = _words(" ".join(words[: int(index) - 1]))
    return Agreement(text, _number(number), int(attractors))


def _numpred(line: str, attractors: int | None) -> Agreement:
    number, tab, text = line.partition("\t")
    if not tab:
        raise ValueError("there is no tab; expected VBZ or VBP, a tab and a sentence")
    return Agreement(_words(text), _number(number), attractors)


def _json_agreement(line: str) -> Agreement:
    row = _json_labelled(line, ("text", "sentence"), "label")
    attractors = json.loads(line).get("attractors")
    if attractors is not None and (
        isinstance(attractors, bool)
        or not isinstance(attractors, int)
        or not 0 <= attractors <= len(row.text)
    ):
        raise ValueError(f"attractors is {attractors!r}; expected a number of words, or null")
    return Agreement(row.text, _number(row.label), attractors)


def _sst2_format(path: Path, first: str) -> _Format:
    if first.startswith("{"):
        return _Format(False, _json_sst2)
    columns = first.split("\t")
    if "sentence" not in columns or "label" not in columns:
        raise DataError(
            f"{path}: the first line is {first[:60]!r}; expected a header with the columns "
            "sentence and label (GLUE's test.tsv has no labels; use train.tsv or dev.tsv)"
        )
    text, label = columns.index("sentence"), columns.index("label")
    return _Format(True, lambda line: _sst2(line.split("\t"), len(columns), text, label))


def _sst2(fields: list[str], count: int, text: int, label: int) -> Labelled:
    if len(fields) != count:
        raise ValueError(f"{len(fields)} columns; the header has {count}")
    return Labelled(_words(fields[text]), _polarity(fields[label]))


def _json_sst2(line: str) -> Labelled:
    row = _json_labelled(line, ("sentence", "text"), "label")
    return Labelled(row.text, _polarity(row.label))


def _json_labelled(line: str, texts: tuple[str, ...], label: str) -> Labelled:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    text = next((row[name] for name in texts if name in row), None)
    if not isinstance(text, str):
        raise ValueError(f"there is no string {' or '.join(map(repr, texts))}")
    number = row.get(label)
    if isinstance(number, bool) or not isinstance(number, (str, int)):
        raise ValueError(f"there is no {label!r} that is a string or an integer")
    return Labelled(_words(text), str(number))


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("the text is empty")
    if is_half(text):
        raise ValueError("the text has half a character (a lone surrogate)")
    return text.strip()


def _number(label: str) -> str:
    if label not in _NUMBERS:
        raise ValueError(f"the label is {label[:20]!r}; expected VBZ or VBP")
    return label


def _polarity(label: str) -> str:
    if label not in ("0", "1"):
        raise ValueError(f"the label is {label[:20]!r}; expected 0 or 1")
    return label
