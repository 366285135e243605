"""What a server counts, in the text format of Prometheus."""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

__all__ = ["Metrics"]

# The upper edges of the histogram's bars, in seconds.
BARS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)


class Metrics:
    """The counters of a server. Every method may be called from any thread.

    Args:
        model: The name of the model.
        task: What the model is for.

    Example:
        >>> metrics = Metrics("models/tiny", "classification")
        >>> metrics.answered("/api/explain", 200)
        >>> [line for line in metrics.text(waiting=3, running=1).splitlines() if "200" in line]
        ['attnflow_requests_total{path="/api/explain",status="200"} 1']
    """

    def __init__(self, model: str, task: str) -> None:
        self._model = model
        self._task = task
        self._started = time.time()
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._bars: Counter[float] = Counter()
        self._sum = 0.0
        self._count = 0
        self._outcomes: Counter[str] = Counter()

    def answered(self, path: str, status: int) -> None:
        """Count the answer to a request.

        Args:
            path: The path asked for, one of the known ones.
            status: The status of the answer.
        """
        with self._lock:
            self._requests[path, status] += 1

    def worked(self, seconds: float, outcome: str) -> None:
        """Count a question that the model was busy with.

        Args:
            seconds: How long.
            outcome: How it ended: "done", "refused", "stopped" or "failed".
        """
        with self._lock:
            self._outcomes[outcome] += 1
            self._sum += seconds
            self._count += 1
            for edge in BARS:
                if seconds <= edge:
                    self._bars[edge] += 1

    def text(self, *, waiting: int, running: int) -> str:
        """Return all of it.

        Args:
            waiting: How many questions wait.
            running: How many questions the model is busy with.

        Returns:
            Lines of Prometheus' text format, version 0.0.4.
        """
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(waiting, running))

    def _lines(self, waiting: int, running: int) -> Iterator[str]:
        yield from _head("attnflow_model_info", "gauge", "The model, which is always 1.")
        yield f"attnflow_model_info{_labels(model=self._model, task=self._task)} 1"
        yield from _head("attnflow_requests_total", "counter", "Requests answered.")
        for (path, status), count in sorted(self._requests.items()):
            yield f"attnflow_requests_total{_labels(path=path, status=str(status))} {count}"
        yield from _head("attnflow_questions_total", "counter", "Questions by how they ended.")
        for outcome in ("done", "refused", "stopped", "failed"):
            labels = _labels(outcome=outcome)
            yield f"attnflow_questions_total{labels} {self._outcomes[outcome]}"
        yield from _head("attnflow_waiting", "gauge", "Questions that wait for the model.")
        yield f"attnflow_waiting {waiting}"
        yield from _head("attnflow_running", "gauge", "Questions that the model is busy with.")
        yield f"attnflow_running {running}"
        name = "attnflow_question_seconds"
        yield from _head(name, "histogram", "How long the model was busy with a question.")
        for edge in BARS:
            yield f"{name}_bucket{_labels(le=str(edge))} {self._bars[edge]}"
        yield f"{name}_bucket{_labels(le='+Inf')} {self._count}"
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {self._count}"
        yield from _head("process_start_time_seconds", "gauge", "When the server started.")
        yield f"process_start_time_seconds {self._started:.3f}"
        yield from _head("process_resident_memory_bytes", "gauge", "Memory in use.")
        yield f"process_resident_memory_bytes {_resident()}"


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _labels(**values: str) -> str:
    pairs = []
    for name, value in values.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"


def _resident() -> int:
    """Return how much memory the process has, in bytes; its highest where only that is known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
