"""Time calls in turns, and measure the memory of a call."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.tables import Record


def in_turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, at_least: float
) -> dict[str, list[float]]:
    """Time calls alternately, so that other work on the machine slows down all of them alike.

    Args:
        calls: What to time, by name.
        rounds: How many times each is timed.
        at_least: Seconds for which a call is repeated in one round; the mean counts.

    Returns:
        The seconds of one call in every round, by name.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        # The order changes, so that none always has the warmer machine.
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            found[name].append(_mean_seconds(calls[name], at_least))
    return found


def _mean_seconds(call: Callable[[], Any], at_least: float) -> float:
    start, count, taken = time.perf_counter(), 0, 0.0
    while count == 0 or taken < at_least:
        call()
        count += 1
        taken = time.perf_counter() - start
    return taken / count


def ratio(name: str, over: Sequence[float], under: Sequence[float], prefix: str = "") -> Record:
    """Return two columns of a table: the median of the ratios of all rounds, and their range.

    Args:
        name: Name of the first column.
        over: The times of every round.
        under: What they are divided by.
        prefix: What the name of the second column begins with.

    Example:
        >>> ratio("new_over_old", [1.0, 2.0, 3.0], [2.0, 2.0, 4.0])
        {'new_over_old': 0.75, 'range': '0.50x to 1.00x'}
    """
    ratios = [one / other for one, other in zip(over, under, strict=True)]
    spread = f"{min(ratios):.2f}x to {max(ratios):.2f}x"
    return {name: statistics.median(ratios), f"{prefix}range": spread}


def added_memory(call: Callable[[], Any]) -> int | None:
    """Return by how many bytes a call raises the memory of this process; None if unknown."""
    try:
        if not reset_peak():
            return None
        before = memory_status("VmRSS")
        call()
        return memory_status("VmHWM") - before
    except OSError:
        return None


def reset_peak() -> bool:
    """Reset the peak memory of this process to what it uses now; False if that is not possible."""
    try:
        # Linux only, and not permitted everywhere.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def give_back_memory() -> None:
    """Give freed memory back to the system: what is kept would hide some of what a call needs."""
    gc.collect()
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def memory_status(name: str) -> int:
    """Return a number of /proc/self/status in bytes, such as "VmRSS" or its peak, "VmHWM"."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
