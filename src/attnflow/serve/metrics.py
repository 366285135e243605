"""What a server counts, for Prometheus."""

from collections.abc import Callable
from typing import Any, Final

# The upper bounds of the histogram's buckets, in seconds.
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
OUTCOMES: Final = ("done", "refused", "stopped", "failed")


class Metrics:
    """The metrics of a server. They may be changed from any thread.

    Args:
        model: The name of the model.
        task: The model's task.
        waiting: Returns how many questions are waiting.

    Attributes:
        requests: Counts requests by path and status.
        questions: Counts the questions that the model worked on, by outcome.
        seconds: How long the model worked on each question.
        running: How many questions the model is working on.

    Example:
        >>> metrics = Metrics("models/tiny", "classification", lambda: 3)
        >>> metrics.requests.labels("/api/explain", 200).inc()
        >>> [line for line in metrics.text().decode().splitlines() if "200" in line][0]
        'attnflow_requests_total{path="/api/explain",status="200"} 1.0'
    """

    def __init__(self, model: str, task: str, waiting: Callable[[], int]) -> None:
        import prometheus_client as prometheus

        self._registry = prometheus.CollectorRegistry()

        def add(kind: Any, name: str, about: str, **settings: Any) -> Any:
            return kind(f"attnflow_{name}", about, registry=self._registry, **settings)

        add(prometheus.Info, "model", "The model.").info({"model": model, "task": task})
        self.requests = add(
            prometheus.Counter, "requests", "Requests answered.", labelnames=("path", "status")
        )
        self.questions = add(
            prometheus.Counter, "questions", "Questions by outcome.", labelnames=("outcome",)
        )
        for outcome in OUTCOMES:
            self.questions.labels(outcome)
        add(prometheus.Gauge, "waiting", "Questions that wait for the model.").set_function(waiting)
        self.running = add(prometheus.Gauge, "running", "Questions that the model is working on.")
        self.seconds = add(
            prometheus.Histogram,
            "question_seconds",
            "How long the model worked on a question.",
            buckets=BUCKETS,
        )
        prometheus.ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        from prometheus_client import generate_latest

        text: bytes = generate_latest(self._registry)
        return text
