"""Stopping a long computation before it is done.

The solver of attention flow asks about twenty times a second whether to go on, from the thread that
called it; attention that is computed some rows at a time asks before every block, and a model that
writes before every token. So a limit works in every thread, and needs no signals.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from attnflow.checks import invalid, number
from attnflow.errors import StoppedError

# The limits of the blocks that are being run, the outermost first. Each raises if it is reached.
_limits: Final[ContextVar[tuple[Callable[[], None], ...]]] = ContextVar(
    "attnflow_limits", default=()
)


@contextmanager
def limited(*, seconds: Any = None, stop: Callable[[], bool] | None = None) -> Iterator[None]:
    """Limit flows, cuts, long explanations, checks and generations in a ``with`` block.

    When a limit is reached, the call that is running raises `StoppedError`: a flow usually within
    0.1 seconds, the explanation of a long text between two layers or blocks of rows, a model that
    writes between two tokens. So does every later call in the block. Blocks may be nested; the
    limits of all of them hold. A limit holds for the code that the block runs in its own thread,
    however deep, such as `Explainer.explain`. The forward pass of a short text is not interrupted.

    Args:
        seconds: How long the block may take, from its start. None means no limit.
        stop: A function that returns whether to stop, such as the `is_set` method of a
            `threading.Event`, which another thread can set. The solver calls it about twenty times
            a second, so it must be fast.

    Yields:
        Nothing.

    Raises:
        StoppedError: If a limit is reached.
        OptionError: If `seconds` is not a number of 0 or more, or `stop` is not a function.

    Example:
        >>> import numpy as np
        >>> from attnflow import StoppedError, attention_flow, limited
        >>> attention = np.random.default_rng(0).random((12, 400, 400)) ** 8
        >>> attention /= attention.sum(axis=-1, keepdims=True)
        >>> try:
        ...     with limited(seconds=0.2):
        ...         attention_flow(attention)
        ... except StoppedError as error:
        ...     print(error)
        stopped after 0.2 seconds, the limit given
    """
    if seconds is not None:
        seconds = number(seconds, "seconds", least=0, otherwise="None")
    if stop is not None and not callable(stop):
        raise invalid("stop", stop, "a function without arguments, or None")
    deadline = None if seconds is None else time.monotonic() + seconds

    def check() -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise StoppedError(f"stopped after {seconds:g} seconds, the limit given")
        if stop is not None and stop():
            raise StoppedError("stopped, because the function given as stop returned true")

    token = _limits.set((*_limits.get(), check))
    try:
        yield
    finally:
        _limits.reset(token)


def check_limits() -> None:
    """Check the limits of all blocks of `limited` that this code runs in.

    Raises:
        StoppedError: If one is reached.
    """
    for check in _limits.get():
        check()
