"""What all commands show on a terminal while they work: a progress bar, or what takes a while."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TextIO, TypeVar

Item = TypeVar("Item")


class Progress:
    """How far a job is: a bar on a terminal, and a line now and then anywhere else.

    The bar shows the count, the rate, and the time elapsed and left. It goes to standard error and
    disappears at the end. Without rich, there are lines.

    Args:
        title: What is being done: "explaining".
        unit: What is counted: "rows".
        seconds_between_lines: How often to print a line where there is no bar; None prints none.
        bar: Whether there may be a bar.

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
        bar: bool = True,
    ) -> None:
        self.title, self.unit = title, unit
        self._may_draw = bar
        self._pause = seconds_between_lines
        self._first: int | None = None
        self._begun = self._said = 0.0
        self._rate = 0.0
        self._ends: float | None = None
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._may_draw and sys.stderr.isatty():
            self._bar = _rich_bar(self)
        if self._bar is not None:
            self._start()
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
        self._rate = new / seconds if new > 0 and seconds > 0 else 0.0
        self._ends = now + max(0, total - done) / self._rate if self._rate and total else None
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, note=note)
        elif self._pause is not None and new > 0 and now - self._said >= self._pause:
            self._said = now
            of = "" if total is None else f" of {total:,}"
            count = f"{self.title}: {done:,}{of} {self.unit}".rstrip()
            left = "" if self._ends is None else f"about {self.clock()} left"
            print(", ".join([count, self.status(left, note)]), file=sys.stderr, flush=True)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar for a while, if standard output goes to a terminal, too."""
        if self._bar is None or not sys.stdout.isatty():
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        try:
            self._bar.start()
        except BaseException:  # Ctrl-C, while it is drawn for the first time
            self._bar.stop()
            raise

    def status(self, left: str, note: str) -> str:
        """Return the rate, the time left and a note, as far as they are known."""
        rate = f"{self._rate:.1f} a second" if self._rate else ""
        return ", ".join(part for part in (rate, left, note) if part)

    def clock(self) -> str:
        """Return the time left as hours, minutes and seconds."""
        left = self.seconds_left
        return "-:--:--" if left is None else str(timedelta(seconds=round(left)))

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None if that is not known."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on a terminal what takes a while, for as long as it does.

    Args:
        what: What it is: "loading torch".

    Example:
        >>> with waiting("counting"):
        ...     total = sum(range(1000))
    """
    if not sys.stderr.isatty():
        yield
        return
    try:
        from rich.console import Console
    except ImportError:
        yield
        return
    # A spinner of ASCII, which every terminal has.
    with Console(stderr=True).status(what, spinner="line"):
        yield


def track(
    items: Iterable[Item], title: str, unit: str = "", total: int | None = None
) -> Iterator[Item]:
    """Pass items on, and show how many there were.

    What is done with an item may print it. On a terminal that standard output goes to, nothing is
    shown meanwhile; and nothing at all if it goes to a pipe, whose reader may print at any time.

    Args:
        items: The items.
        title: What is being done with them.
        unit: What they are.
        total: How many there are; None if that is not known.

    Example:
        >>> list(track("abc", "spelling", "letters", 3))
        ['a', 'b', 'c']
    """
    with Progress(title, unit, bar=not _is_pipe(sys.stdout)) as progress:
        progress.update(0, total)
        for done, item in enumerate(items, start=1):
            with progress.hidden():
                yield item
            progress.update(done, total)


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except OSError:  # a stream in memory
        return False


def _rich_bar(progress: Progress) -> Any:
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
            shown = progress.status(f"left: {progress.clock()}", task.fields["note"])
            return Text(shown, no_wrap=True, overflow="ellipsis")

    bar = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        Now(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
        # What is printed goes above the bar, but a file or a pipe gets it as it is.
        redirect_stdout=sys.stdout.isatty(),
    )
    bar.add_task(progress.title, total=None, note="")
    return bar
