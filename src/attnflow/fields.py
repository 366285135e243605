"""The fields of stored values: their checks, and a base class for immutable values.

Explanations, traces and evaluations are immutable, and read back from files that anybody may have
written. Every field is checked when the value is made; an error names the field and what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError

__all__ = [
    "Frozen",
    "booleans",
    "frozen",
    "integer",
    "numbers",
    "pair",
    "read_only",
    "sequence",
    "share",
    "short",
    "spans",
    "string",
    "strings",
    "thawed",
]


class Frozen:
    """A value whose attributes are set once, by `_set`, and never change."""

    __slots__ = ()

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name!r} cannot be deleted")


def short(value: object) -> str:
    """Return a value as an error shows it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def integer(value: Any, name: str, least: int | None = None) -> int:
    """Return an integer, or raise an `OptionError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise OptionError(f"{name} must be an integer, got {short(value)}")
    if least is not None and value < least:
        raise OptionError(f"{name} must be {least} or more, got {value}")
    return int(value)


def string(value: Any, name: str) -> str:
    """Return a string that can be stored as UTF-8, or raise an `OptionError`."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a string, got {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{name} has a lone surrogate, {value[error.start]!r}, at {error.start}; such text "
            "cannot be stored"
        ) from error
    return str(value)


def sequence(value: Any, name: str, what: str) -> list[Any]:
    """Return the items of a list, or raise an `OptionError`."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise OptionError(f"{name} must be a list of {what}, got {short(value)}")
    return list(value)


def strings(values: Any, name: str) -> tuple[str, ...]:
    """Return strings, or raise an `OptionError`."""
    items = sequence(values, name, "strings")
    return tuple(string(item, f"{name}[{i}]") for i, item in enumerate(items))


def booleans(values: Any, name: str, count: int) -> tuple[bool, ...]:
    """Return a boolean for each of some tokens, or raise an `OptionError`."""
    items = sequence(values, name, "booleans")
    for i, item in enumerate(items):
        if not isinstance(item, bool | np.bool_):
            raise OptionError(f"{name}[{i}] must be True or False, got {short(item)}")
    if len(items) != count:
        raise OptionError(f"{name} has {len(items)} items, but there are {count} tokens")
    return tuple(bool(item) for item in items)


def spans(
    values: Any, count: int, length: int | None = None, name: str = "spans"
) -> tuple[tuple[int, int] | None, ...]:
    """Return the start and end of each token in a text, or raise an `OptionError`.

    Args:
        values: For each token a pair of integers, or None.
        count: How many tokens there are.
        length: How many characters the text has; None if that is not known.
        name: The field's name.
    """
    items = sequence(values, name, "pairs")
    if len(items) != count:
        raise OptionError(f"{name} has {len(items)} items, but there are {count} tokens")
    found: list[tuple[int, int] | None] = []
    for i, item in enumerate(items):
        if item is None:
            found.append(None)
            continue
        both = sequence(item, f"{name}[{i}]", "two integers")
        if len(both) != 2:
            raise OptionError(f"{name}[{i}] must be a start and an end, got {short(item)}")
        start, end = (integer(number, f"{name}[{i}]") for number in both)
        if not 0 <= start <= end or (length is not None and end > length):
            most = "" if length is None else f" <= {length}, the length of the text"
            raise OptionError(f"{name}[{i}] is ({start}, {end}); expected 0 <= start <= end{most}")
        found.append((start, end))
    return tuple(found)


def pair(value: Any, name: str, least: int = 1) -> tuple[int, int]:
    """Return two integers, or raise an `OptionError`."""
    items = sequence(value, name, "two integers")
    if len(items) != 2:
        raise OptionError(f"{name} must be two integers, got {short(value)}")
    first, second = (integer(number, name) for number in items)
    if min(first, second) < least:
        raise OptionError(
            f"{name} is ({first}, {second}); expected two integers of {least} or more"
        )
    return first, second


def numbers(values: Any, name: str, shape: str) -> NDArray[np.float64]:
    """Return finite numbers as a read-only float64 copy, or raise an `OptionError`.

    Args:
        values: Anything that NumPy makes an array of.
        name: The field's name.
        shape: The shape that is expected, such as "(L, T)"; its commas say how many axes.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} must be an array of shape {shape}: {error}") from error
    if array.dtype.kind not in "iuf":
        raise OptionError(f"{name} must be numbers of shape {shape}, got {short(values)}")
    if array.ndim != len([part for part in shape.strip("()").split(",") if part.strip()]):
        raise OptionError(f"{name} has shape {array.shape}; expected {shape}")
    copy = np.array(array, dtype=np.float64, order="C")
    if not np.isfinite(copy).all():
        where = np.argwhere(~np.isfinite(copy))[0].tolist()
        raise OptionError(f"{name}{where} is {copy[tuple(where)]}; expected a finite number")
    return read_only(copy)


def share(value: Any, name: str) -> float:
    """Return a number from 0 to 1, or raise an `OptionError`."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not (number and 0 <= value <= 1):
        raise OptionError(f"{name} must be a number from 0 to 1, got {short(value)}")
    return float(value)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array after making it read-only."""
    array.flags.writeable = False
    return array


def frozen(value: Any, name: str) -> Any:
    """Return a value that JSON can hold, with nothing in it that can be changed."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return string(value, name)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OptionError(f"{name} is {value}; expected a finite number")
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
    raise OptionError(f"{name} must be something that JSON can hold, got {short(value)}")


def thawed(value: Any) -> Any:
    """Return a value that `frozen` gave as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: thawed(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return value
