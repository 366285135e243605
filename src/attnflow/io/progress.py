"""The progress bar of all commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

__all__ = ["Progress", "track"]

Item = TypeVar("Item")


class Progress:
    """How far a job is: a bar on a terminal, and a line now and then anywhere else.

    The bar shows the count, the rate, and the time elapsed and left. It goes to standard error and
    disappears at the end. Without rich, there are lines.

    Args:
        title: What is being done: "explaining".
        unit: What is counted: "rows".
        seconds_between_lines: How often to print a line where there is no bar; None prints none.
        redraws: How often the bar is drawn in a second.

    Attributes:
        is_bar: Whether there is a bar.

    Example:
        >>> with Progress("explaining", "rows") as progress:
        ...     for done in range(3):
        ...         progress.update(done, 3)
    """

    def __init__(
        self,
        title: str,
        unit: str = "",
        *,
        seconds_between_lines: float | None = 60.0,
        redraws: float = 4.0,
    ) -> None:
        self.title, self.unit = title, unit
        self._pause = seconds_between_lines
        self._redraws = redraws
        self._first: int | None = None
        self._begun = self._said = self._ends = 0.0
        self._rate: float | None = None
        self._total: int | None = None
        self._bar: Any = None

    @property
    def is_bar(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = _rich_bar(self, self._redraws)
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how far the job is.

        The first call says where the job starts: what an earlier run has done does not count for
        the rate.

        Args:
            done: How many are done.
            total: How many there are; None if that is not known.
            note: What else to show.
        """
        now = time.monotonic()
        if self._first is None:
            self._first, self._begun, self._said = done, now, now
        new, seconds = done - self._first, now - self._begun
        self._rate = new / seconds if new > 0 and seconds > 0 else None
        self._total = total
        if self._rate is not None and total is not None:
            self._ends = now + max(0, total - done) / self._rate
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, note=note)
        elif self._pause is not None and new > 0 and now - self._said >= self._pause:
            self._said = now
            self._print_line(done, note)

    @property
    def rate(self) -> str:
        """How many are done in a second, in words."""
        return "" if self._rate is None else f"{self._rate:.1f} a second"

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None if that is not known."""
        if self._rate is None or self._total is None:
            return None
        return max(0.0, self._ends - time.monotonic())

    def _print_line(self, done: int, note: str) -> None:
        of = "" if self._total is None else f" of {self._total:,}"
        left = "" if self.seconds_left is None else f"about {_clock(self.seconds_left)} left"
        count = f"{self.title}: {done:,}{of} {self.unit}".rstrip()
        parts = [part for part in (count, self.rate, left, note) if part]
        print(", ".join(parts), file=sys.stderr, flush=True)


def track(
    items: Iterable[Item], title: str, unit: str = "", total: int | None = None
) -> Iterator[Item]:
    """Pass items on, and show how many there were.

    Args:
        items: The items.
        title: What is being done with them.
        unit: What they are.
        total: How many there are; None if that is not known.

    Example:
        >>> list(track("abc", "spelling", "letters", 3))
        ['a', 'b', 'c']
    """
    with Progress(title, unit) as progress:
        progress.update(0, total)
        for done, item in enumerate(items, start=1):
            yield item
            progress.update(done, total)


def _rich_bar(progress: Progress, redraws: float) -> Any:
    """Return a bar that shows a `Progress`; None if rich is not installed."""
    try:
        from rich import progress as rich
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return None

    class Now(rich.ProgressColumn):  # type: ignore[misc] # rich is not installed for mypy
        """The rate, the time left and the note, as they are when the bar is drawn."""

        max_refresh = None

        def render(self, task: Any) -> Any:
            left = progress.seconds_left
            parts = [progress.rate, f"left: {'-:--:--' if left is None else _clock(left)}"]
            return Text(", ".join(part for part in (*parts, task.fields["note"]) if part))

    bar = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        Now(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=redraws,
        # What is printed goes above the bar, but a file or a pipe gets it as it is.
        redirect_stdout=sys.stdout.isatty(),
    )
    bar.add_task(progress.title, total=None, note="")
    return bar


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
