"""The requests that wait for the model. Clients take turns."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnflow.serve.answer import Refused
from attnflow.serve.limits import Limits
from attnflow.serve.question import Question


@dataclass(eq=False)
class Job:
    """A question that is waiting or being answered.

    Attributes:
        question: The question.
        client: Who asks.
        deadline: When time is up, by `time.monotonic`.
        tell: Called with what happens to the job, perhaps in another thread.
        given_up: Whether nobody waits for the answer any more.
    """

    question: Question
    client: str
    deadline: float
    tell: Callable[[Any], None]
    given_up: bool = False

    @property
    def over(self) -> bool:
        """Whether it is too late for an answer."""
        return self.given_up or time.monotonic() > self.deadline


class FairQueue:
    """A queue in which clients take turns.

    A client with a hundred questions makes another client wait for one of them, not for all.

    Args:
        limits: How many jobs may wait.

    Example:
        >>> import math
        >>> queue = FairQueue(Limits())
        >>> for client, text in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4")):
        ...     queue.put(Job(Question((text,), {}, False, False), client, math.inf, print))
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
            Refused: If too many are waiting, of all clients (503) or of this one (429).
        """
        with self._changed:
            line = self._lines.get(job.client, deque())
            if len(line) >= self._limits.waiting_each:
                raise Refused(
                    "too_many", f"{len(line)} requests of this client are waiting; try again later"
                )
            if self._count() >= self._limits.waiting:
                raise Refused("busy", f"{self._count()} requests are waiting; try again later")
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
            # What is left of the line goes to the end.
            del self._lines[client]
            job = line.popleft()
            if line:
                self._lines[client] = line
            return job

    def remove(self, job: Job) -> None:
        """Remove a job, if it is still waiting.

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
        """Return how many of the waiting jobs come before one.

        Args:
            job: The job.

        Returns:
            The number of jobs, or None if the job is no longer waiting.
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
