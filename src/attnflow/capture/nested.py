"""Tensors in tuples, lists and dictionaries, as models take and return them."""

from collections.abc import Callable
from typing import Any


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with each part changed that is no tuple, list or dictionary.

    Args:
        change: Called with each part, in the order of the value.
        value: The value; the output of a model is a dictionary.

    Example:
        >>> mapped(abs, (-1, [2, {"a": -3}]))
        (1, [2, {'a': 3}])
    """
    if isinstance(value, dict):
        return type(value)(**{name: mapped(change, item) for name, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(mapped(change, item) for item in value)
    return change(value)


def parts(value: Any) -> list[Any]:
    """Return the parts of a value in their order.

    Example:
        >>> parts((1, [2, {"a": 3}]))
        [1, 2, 3]
    """
    found: list[Any] = []
    mapped(found.append, value)
    return found
