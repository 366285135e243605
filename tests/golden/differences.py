"""The differences between two records of results, as far as they matter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

# A number under such a name may only grow. Flow capacities are rounded so that the rows of a graph
# sum to 1 exactly, which makes a tie of two cuts in real numbers one in whole numbers: where
# attention has zeros, more flows may reach their limit, and one more note may say so.
AT_LEAST = "_at_least"


class Tolerance(NamedTuple):
    """How far two numbers may be apart: `relative` to the larger of them, plus `absolute`."""

    relative: float
    absolute: float

    def allows(self, old: float, new: float) -> bool:
        """Return whether two numbers are as good as equal."""
        if math.isnan(old) or math.isnan(new):
            return math.isnan(old) and math.isnan(new)
        largest = max(abs(old), abs(new))
        return old == new or abs(old - new) <= self.absolute + self.relative * largest


class Difference(NamedTuple):
    """One difference.

    Attributes:
        path: Where it is.
        old: What was recorded.
        new: What is found now.
        added: Whether it is an entry of a dictionary that was not there before.
    """

    path: str
    old: Any
    new: Any
    added: bool = False

    def __str__(self) -> str:
        if self.added:
            return f"{self.path}: new: {_short(self.new)}"
        apart = ""
        if _is_number(self.old) and _is_number(self.new):
            apart = f" ({self.new - self.old:+.3g})"
        return f"{self.path}: {_short(self.old)} -> {_short(self.new)}{apart}"


def differences(
    old: Any, new: Any, tolerance: Tolerance, path: str = "", *, at_least: bool = False
) -> Iterator[Difference]:
    """Yield where two records differ.

    Args:
        old: What was recorded: what JSON can hold.
        new: What is found now.
        tolerance: How far numbers may be apart.
        path: Where in a larger record these are.
        at_least: Whether a number may grow.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            place = f"{path}/{name}"
            if name not in new:
                yield Difference(place, old[name], "missing")
            elif name not in old:
                yield Difference(place, None, new[name], added=True)
            else:
                grows = at_least or name.endswith(AT_LEAST)
                yield from differences(old[name], new[name], tolerance, place, at_least=grows)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield Difference(path, old, new)
            return
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            place = f"{path}[{index}]"
            yield from differences(before, after, tolerance, place, at_least=at_least)
    elif _is_number(old) and _is_number(new):
        if not tolerance.allows(old, new) and not (at_least and new > old):
            yield Difference(path, old, new)
    elif type(old) is not type(new) or old != new:
        yield Difference(path, old, new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
