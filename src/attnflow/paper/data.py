"""Readers for the data of the paper's experiments.

Files are streamed, so memory does not grow with their size. A file may be gzipped.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from attnflow.checks import choice
from attnflow.errors import DataError
from attnflow.io.records import (
    CutOffError,
    Labelled,
    Layout,
    check_limit,
    label_of,
    read_examples,
    text_of,
)

__all__ = [
    "LINZEN_COLUMNS",
    "Agreement",
    "Fault",
    "Labelled",
    "OnError",
    "read_agreement",
    "read_json_lines",
    "read_sst2",
    "verb_number",
]

LINZEN_COLUMNS = ("sentence", "verb_pos", "verb_index", "n_diff_intervening")
"""The columns of the file of Linzen et al. (2016) that are read. It has others."""

_NUMBERS = ("VBZ", "VBP")
_log = logging.getLogger("attnflow.paper")

Values = Mapping[str, Any]
Example = TypeVar("Example")


class Agreement(NamedTuple):
    """A sentence up to its verb, and the verb's number.

    Attributes:
        text: The words before the verb, separated by spaces.
        label: "VBZ" if the verb is singular, "VBP" if it is plural.
        attractors: The number of attractors: nouns between the subject and the verb that have the
            other number. None if the file does not say.
    """

    text: str
    label: str
    attractors: int | None


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
      attractors is known if the file's name says it, as in `numpred.test.2`.
    - JSON lines with "text", "label" ("VBZ" or "VBP") and, if known, "attractors".

    Args:
        path: The file, plain or gzipped.
        limit: The largest number of sentences to read.
        on_error: What to do about a line that cannot be read. "raise" raises a DataError. "skip"
            logs a warning and continues. A function is called with the `Fault`.

    Returns:
        An iterator over the sentences.

    Raises:
        DataError: If a line cannot be read and `on_error` is "raise", or the file has no text or
            another format.
        OSError: If the file cannot be opened.
        OptionError: If `limit` or `on_error` is not valid.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "numpred.test.1")
        ...     with open(path, "w") as file:
        ...         _ = file.write("VBP\tthe keys to the cabinet\n")
        ...     for sentence in read_agreement(path):
        ...         print(sentence)
        Agreement(text='the keys to the cabinet', label='VBP', attractors=1)
    """
    return _read(path, _agreement_layout, limit, on_error)


def read_sst2(
    path: str | os.PathLike[str], *, limit: int | None = None, on_error: OnError = "raise"
) -> Iterator[Labelled]:
    r"""Read GLUE's SST-2: a header, then a sentence, a tab and its label, 1 for positive.

    JSON lines with "sentence" or "text" and "label" are accepted, too. The arguments and errors are
    those of `read_agreement`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "dev.tsv")
        ...     with open(path, "w") as file:
        ...         _ = file.write("sentence\tlabel\na joy to watch\t1\n")
        ...     list(read_sst2(path))
        [Labelled(text='a joy to watch', label='1')]
    """
    return _read(path, _sst2_layout, limit, on_error)


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
        text: The field that has the text.
        label: The field that has the class, a string or an integer.
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
        ...     path = os.path.join(folder, "texts.jsonl")
        ...     with open(path, "w") as file:
        ...         _ = file.write('{"text": "a joy to watch", "label": 1}\n')
        ...     list(read_json_lines(path))
        [Labelled(text='a joy to watch', label='1')]
    """
    layout = Layout("jsonl", partial(_labelled, names=(text,), label=label))
    return _read(path, lambda name, first: layout, limit, on_error)


def _read(
    path: str | os.PathLike[str],
    layout_of: Callable[[str, str], Layout[Example]],
    limit: int | None,
    on_error: OnError,
) -> Iterator[Example]:
    """Check the arguments at once, and return the iterator."""
    check_limit(limit)
    if not callable(on_error):
        choice(on_error, "on_error", ("raise", "skip"), otherwise="a function")
    open(path, "rb").close()

    def fail(line: int, reason: str) -> None:
        fault = Fault(os.fspath(path), line, reason)
        if on_error == "raise":
            raise DataError(str(fault))
        if callable(on_error):
            on_error(fault)
        else:
            _log.warning("%s (skipped)", fault)

    def examples() -> Iterator[Example]:
        try:
            for _, example in read_examples(os.fspath(path), layout_of, fail):
                yield example
        except CutOffError as error:
            fail(error.number, error.reason)

    return islice(examples(), limit)


# ---- Verb number ---------------------------------------------------------------------------------


def verb_number(format: str, path: str, first: str) -> Layout[Agreement] | None:
    """Recognize files of verb-number data, as a dialect of `attnflow.io.records.read_texts`.

    Args:
        format: "agreement" for verb-number data, "auto" to detect it, or another format.
        path: The file.
        first: Its first line of text.

    Returns:
        How to read the file; None if it is not verb-number data.
    """
    fields = first.split("\t")
    recognized = (
        os.path.basename(path).startswith("numpred.")
        or (len(fields) == 2 and fields[0] in _NUMBERS)
        or {"sentence", "verb_pos", "verb_index"} <= set(fields)
    )
    if format == "agreement" or (format == "auto" and recognized):
        return _agreement_layout(path, first)
    return None


def _agreement_layout(path: str, first: str) -> Layout[Agreement]:
    columns = first.split("\t")
    if "sentence" in columns:
        missing = [name for name in LINZEN_COLUMNS if name not in columns]
        if missing:
            raise DataError(
                f"{path}: the header has no column {missing[0]!r}; expected the columns of "
                f"agr_50_mostcommon_10K.tsv, among them {', '.join(LINZEN_COLUMNS)}"
            )
        return Layout("tsv", _linzen)
    if first.startswith("{"):
        return Layout("jsonl", _json_agreement)
    # A numpred file is recognized by its name even if its first line cannot be read.
    name = os.path.basename(path)
    if name.startswith("numpred.") or first.split()[0] in _NUMBERS:
        named = re.search(r"numpred\.\w+\.(\d+)(\.gz)?$", name)
        return Layout("text", partial(_numpred, attractors=int(named[1]) if named else None))
    raise DataError(
        f"{path}: the first line is {first[:60]!r}; expected VBZ or VBP, a tab and a sentence, or "
        "the header of agr_50_mostcommon_10K.tsv, or JSON lines"
    )


def _linzen(values: Values) -> Agreement:
    sentence, number, index, attractors = (values[name] for name in LINZEN_COLUMNS)
    # The file was written by Python's csv, which quotes a field that has a quotation mark in it.
    if len(sentence) > 1 and sentence[0] == sentence[-1] == '"':
        sentence = sentence[1:-1].replace('""', '"')
    words = sentence.split()
    if not index.isdecimal() or not 1 < int(index) <= len(words):
        raise ValueError(f"verb_index is {index!r}; expected 2 to {len(words)}, a word")
    if not attractors.isdecimal() or int(attractors) >= len(words):
        raise ValueError(f"n_diff_intervening is {attractors!r}; expected a number of words")
    text = " ".join(words[: int(index) - 1])
    return _agreement({"text": text, "label": number}, int(attractors))


def _numpred(values: Values, attractors: int | None) -> Agreement:
    if not values["text"].strip():
        raise ValueError("the line is empty")
    number, tab, text = values["text"].partition("\t")
    if not tab:
        raise ValueError("there is no tab; expected VBZ or VBP, a tab and a sentence")
    return _agreement({"text": text, "label": number}, attractors)


def _json_agreement(values: Values) -> Agreement:
    found = _agreement(values, values.get("attractors"))
    count: Any = found.attractors
    # To Python a boolean is an integer, but here it is a mistake.
    if count is not None and not (type(count) is int and 0 <= count <= len(found.text)):
        raise ValueError(f"attractors is {count!r}; expected a number of words, or null")
    return found


def _agreement(values: Values, attractors: int | None) -> Agreement:
    text, label = _labelled(values, ("text", "sentence"))
    if label not in _NUMBERS:
        raise ValueError(f"the label is {label[:20]!r}; expected VBZ or VBP")
    return Agreement(text, label, attractors)


# ---- SST-2 ---------------------------------------------------------------------------------------


def _sst2_layout(path: str, first: str) -> Layout[Labelled]:
    if first.startswith("{"):
        return Layout("jsonl", _sst2)
    if not {"sentence", "label"} <= set(first.split("\t")):
        raise DataError(
            f"{path}: the first line is {first[:60]!r}; expected a header with the columns "
            "sentence and label (GLUE's test.tsv has no labels; use train.tsv or dev.tsv)"
        )
    return Layout("tsv", _sst2)


def _sst2(values: Values) -> Labelled:
    found = _labelled(values, ("sentence", "text"))
    if found.label not in ("0", "1"):
        raise ValueError(f"the label is {found.label[:20]!r}; expected 0 or 1")
    return found


def _labelled(values: Values, names: tuple[str, ...], label: str = "label") -> Labelled:
    return Labelled(text_of(values, names).strip(), label_of(values, label))
