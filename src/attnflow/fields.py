"""Checks of the fields of stored values, such as explanations and traces.

These values are immutable and are read back from files that anybody may have written. Every field
is checked when the value is made. An error names the field and shows what it holds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer, invalid, items, string, switch
from attnflow.errors import OptionError

Value = TypeVar("Value")


class Segment(NamedTuple):
    """A named stretch of a text: one of two texts, a message of a chat, a passage.

    Attributes:
        name: What it is called, such as "user". Empty if it has no name.
        start: Where it starts in the text, counted in characters.
        end: Where it ends.
    """

    name: str
    start: int
    end: int


def segments_in(values: Any, name: str, length: int | None = None) -> tuple[Segment, ...]:
    """Return stretches of a text as segments, checked.

    Args:
        values: A sequence of pairs (start, end), or of triples (name, start, end).
        name: What the argument is called, for errors.
        length: How many characters the text has; None if that is not known yet.

    Raises:
        OptionError: If one is malformed, empty or beyond the text, or two overlap.

    Example:
        >>> segments_in([(0, 4), ("answer", 5, 9)], "units")
        (Segment(name='', start=0, end=4), Segment(name='answer', start=5, end=9))
    """
    found = []
    for i, value in enumerate(items(values, name, "segments", allow_empty=True)):
        place = f"{name}[{i}]"
        parts = items(value, place, "(start, end), or (name, start, end)")
        if len(parts) not in (2, 3):
            raise OptionError(f"{place} is {value!r}; expected (start, end), or (name, start, end)")
        start, end = (integer(part, place, least=0) for part in parts[-2:])
        if start >= end or (length is not None and end > length):
            most = "" if length is None else f" <= {length}, the length of the text"
            raise OptionError(f"{place} is {value!r}; expected 0 <= start < end{most}")
        found.append(Segment(string(parts[0], place) if len(parts) == 3 else "", start, end))
    for one, other in pairwise(sorted(found, key=lambda segment: segment.start)):
        if other.start < one.end:
            raise OptionError(f"{name} has {tuple(one)} and {tuple(other)}, which overlap")
    return tuple(found)


def load_json(
    path: str | os.PathLike[str], what: str, read: Callable[[dict[str, Any]], Value]
) -> Value:
    """Read a value that was saved to a ".json" file.

    Args:
        path: The file.
        what: What it should hold, for errors, such as "an explanation".
        read: Makes the value of what the file holds.

    Raises:
        OptionError: If the file does not end in ".json" or does not hold such a value.
        OSError: If the file cannot be read.
    """
    name = os.fspath(path)
    if os.path.splitext(name)[1].lower() != ".json":
        raise OptionError(f"path must end in .json, which alone can be loaded, got {name!r}")
    with open(name, "rb") as file:
        content = file.read()
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name} is not {what}: it is not JSON ({error})") from error
    try:
        return read(data)
    except (OptionError, RecursionError) as error:
        raise OptionError(f"{name} is not {what} that can be read: {error}") from error


def set_fields(value: object, /, **checked: Any) -> None:
    """Set the fields of a frozen dataclass, in its ``__post_init__``."""
    for name, item in checked.items():
        object.__setattr__(value, name, item)


def booleans(values: Any, name: str, count: int) -> tuple[bool, ...]:
    """Return a boolean for each of some tokens, or raise an `OptionError`."""
    given = _one_each(values, name, "booleans", count)
    return tuple(switch(item, f"{name}[{i}]") for i, item in enumerate(given))


def spans(
    values: Any, count: int, length: int | None = None, name: str = "spans"
) -> tuple[tuple[int, int] | None, ...]:
    """Return the start and end of each token in a text, or raise an `OptionError`.

    Args:
        values: For each token a pair of integers, or None.
        count: The number of tokens.
        length: The number of characters of the text; None if it is not known.
        name: The field's name.
    """
    found = tuple(
        None if item is None else pair(item, f"{name}[{i}]", least=0)
        for i, item in enumerate(_one_each(values, name, "pairs", count))
    )
    for i, span in enumerate(found):
        if span and (span[0] > span[1] or (length is not None and span[1] > length)):
            most = "" if length is None else f" <= {length}, the length of the text"
            raise OptionError(f"{name}[{i}] is {span}; expected 0 <= start <= end{most}")
    return found


def _one_each(values: Any, name: str, what: str, count: int) -> list[Any]:
    given = items(values, name, what, allow_empty=True)
    if len(given) != count:
        raise OptionError(f"{name} has {len(given)} items, but there are {count} tokens")
    return given


def pair(value: Any, name: str, least: int = 1) -> tuple[int, int]:
    """Return two integers, or raise an `OptionError`."""
    expected = f"two integers of {least} or more"
    given = [integer(number, name) for number in items(value, name, expected)]
    if len(given) != 2 or min(given) < least:
        raise invalid(name, value, expected)
    return given[0], given[1]


def numbers(values: Any, name: str, shape: str) -> NDArray[np.float64]:
    """Return finite numbers as a read-only float64 copy, or raise an `OptionError`.

    Args:
        values: Anything that NumPy can convert to an array.
        name: The field's name.
        shape: The expected shape, such as "(L, T)". It has as many axes as commas, plus one; a
            single axis is written "(T,)".
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} is not an array of shape {shape}: {error}") from error
    if array.dtype.kind not in "iuf":
        raise invalid(name, values, f"numbers of shape {shape}")
    if array.ndim != len(shape.strip("(,)").split(",")):
        raise OptionError(f"{name} has shape {array.shape}; expected {shape}")
    copy = np.array(array, dtype=np.float64, order="C")
    if not np.isfinite(copy).all():
        where = np.argwhere(~np.isfinite(copy))[0].tolist()
        raise OptionError(f"{name}{where} is {copy[tuple(where)]}; expected a finite number")
    return read_only(copy)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array after making it read-only."""
    array.flags.writeable = False
    return array


def frozen(value: Any, name: str) -> Any:
    """Return an immutable copy of a value that JSON can represent, or raise an `OptionError`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return string(value, name)
    finite = isinstance(value, float) and math.isfinite(value)
    if value is None or isinstance(value, int) or finite:
        return value
    if isinstance(value, Mapping):
        return MappingProxyType(
            {
                string(key, f"a name in {name}"): frozen(item, f"{name}[{key!r}]")
                for key, item in value.items()
            }
        )
    if isinstance(value, list | tuple):
        return tuple(frozen(item, f"{name}[{i}]") for i, item in enumerate(value))
    raise invalid(name, value, "a value that JSON can represent")


def thawed(value: Any) -> Any:
    """Return a frozen value, or a tuple or array of plain values, as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: thawed(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
