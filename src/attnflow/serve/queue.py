"""The requests that wait for the model, taken in turn from each client."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from attnflow.serve.limits import Limits
from attnflow.serve.question import Question, Refused

__all__ = ["FairQueue", "Job"]


class Job:
    """A question that waits to be answered, or is being answered.

    Args:
        question: The question.
        client: Who asks.
        seconds: How long the answer may take, from now on.
        tell: Is given what happens to the job. It may be called in another thread.

    Attributes:
        question: As given.
        client: As given.
        deadline: When time is up, by `time.monotonic`.
        given_up: Whether nobody waits for the answer any more.
    """

    def __init__(
        self, question: Question, client: str, seconds: float, tell: Callable[[Any], None]
    ) -> None:
        self.question = question
        self.client = client
        self.deadline = time.monotonic() + seconds
        self.given_up = False
        self.tell = tell

    @property
    def over(self) -> bool:
        """Whether it is too late for an answer."""
        return self.given_up or time.monotonic() > self.deadline


class FairQueue:
    """A queue in which each client has a line of its own, and lines are served in turn.

    A client that asks a hundred questions at once makes another wait for one of them, not for all.

    Args:
        limits: How many jobs may wait.

    Example:
        >>> from attnflow.serve.question import Question
        >>> queue = FairQueue(Limits())
        >>> ask = lambda text: Question((text,), {}, False, False)
        >>> for client, text in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4")):
        ...     queue.put(Job(ask(text), client, 60, print))
        >>> [queue.get(0).question.texts[0] for _ in range(4)]
        ['1', '4', '2', '3']
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # The client whose turn it is comes first. A client without jobs is not in here.
        self._lines: dict[str, deque[Job]] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return self._count()

    def put(self, job: Job) -> None:
        """Add a job.

        Args:
            job: The job.

        Raises:
            Refused: If too many wait already, of all clients (503) or of this one (429).
        """
        with self._changed:
            line = self._lines.get(job.client, deque())
            if len(line) >= self._limits.waiting_each:
                raise Refused(
                    429,
                    "too_many",
                    f"{len(line)} requests of this client wait already, and no more may",
                    {"Retry-After": "2"},
                )
            if self._count() >= self._limits.waiting:
                raise Refused(
                    503,
                    "busy",
                    f"{self._count()} requests wait already, and no more may; try again later",
                    {"Retry-After": "5"},
                )
            line.append(job)
            self._lines[job.client] = line
            self._changed.notify()

    def get(self, seconds: float) -> Job | None:
        """Take the next job.

        Args:
            seconds: How long to wait for one.

        Returns:
            The job, or None if there was none.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._lines, seconds):
                return None
            client, line = next(iter(self._lines.items()))
            # The line goes to the end, if anything is left of it.
            del self._lines[client]
            job = line.popleft()
            if line:
                self._lines[client] = line
            return job

    def remove(self, job: Job) -> None:
        """Take out a job that nobody waits for any more, if it is still there.

        Args:
            job: The job.
        """
        with self._changed:
            line = self._lines.get(job.client)
            if line is not None and job in line:
                line.remove(job)
                if not line:
                    del self._lines[job.client]

    def ahead(self, job: Job) -> int | None:
        """Return how many jobs come before one, as things are.

        Args:
            job: The job.

        Returns:
            The number of jobs, or None if the job does not wait any more.
        """
        with self._changed:
            line = self._lines.get(job.client)
            if line is None or job not in line:
                return None
            turns = line.index(job)
            count, earlier = turns, True
            for client, other in self._lines.items():
                if client == job.client:
                    earlier = False
                else:
                    # A line before this one gets one more turn.
                    count += min(len(other), turns + 1 if earlier else turns)
            return count

    def _count(self) -> int:
        return sum(len(line) for line in self._lines.values())
