"""Answers questions with the model, one after the other, in the main thread.

A question whose time is up is stopped while its flow is computed, which can take long. A forward
pass always ends by itself, because its hooks must be removed from the model again.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attnflow.cancel import check_limits, limited
from attnflow.errors import AttnflowError, GraphSizeError, ModelError, StoppedError
from attnflow.options import EDGES
from attnflow.serve.answer import FAILED, Answer, Refused
from attnflow.serve.limits import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.queue import FairQueue, Job
from attnflow.view.page import data

if TYPE_CHECKING:
    from attnflow.models import Explainer
    from attnflow.serve.messages import Model


# What the texts of a question are called.
NAMES: Final = ("the text", "the text that it is compared with")

# The example that the page begins with.
SENTENCE: Final = "The keys to the cabinet"


class Stage(NamedTuple):
    """The progress of a question.

    Attributes:
        stage: "model" while the model reads a text, "scores" while its tokens are scored, and
            "answer" while the answer is written.
        text: The number of the text, from 1.
        texts: The number of texts.
    """

    stage: str
    text: int
    texts: int


def read_model(explainer: "Explainer", limits: Limits) -> "Model":
    """Explain an example, and return what a client needs to know about the model.

    Args:
        explainer: The explainer.
        limits: The limits of the server.

    Returns:
        The answer to ``GET /api/model``.

    Raises:
        ModelError: If the model does not read text.
        AttnflowError: If it cannot be explained.
    """
    if explainer.task.startswith("image-") or explainer.task == "speech-to-text":
        raise ModelError(
            f"the task of {explainer.name} is {explainer.task}; expected a model that reads text, "
            "which is all that a server explains"
        )
    mask = getattr(explainer.tokenizer, "mask_token", None)
    mask = str(mask) if explainer.task == "masked-lm" and mask else None
    example = f"{SENTENCE} {mask} here." if mask else SENTENCE
    apart = explainer.task != "seq2seq-lm"
    explained = explainer.explain(example, method="raw", position=0, keep_heads=apart)
    kept = None if explained.trace is None else explained.trace.heads
    most = explainer.adapter.max_tokens if apart else None
    return {
        "model": explainer.name,
        "task": explainer.task,
        "layers": len(explained.layer_scores),
        "heads": None if kept is None else kept.shape[1],
        "tokens": min(limits.tokens, most or limits.tokens),
        "characters": limits.characters,
        "edges": [name for name in EDGES if explainer.task != "encoder" or name != "gradient"],
        "mask": mask,
        "pairs": explainer.adapter.reads_pairs,
        "example": example,
    }


class Worker:
    """Answers the questions of a queue with one model.

    Args:
        explainer: The model.
        queue: The queue.
        limits: The limits of the server.
        metrics: The metrics of the server.
    """

    def __init__(
        self, explainer: "Explainer", queue: FairQueue, limits: Limits, metrics: Metrics
    ) -> None:
        self._explainer = explainer
        self._queue = queue
        self._limits = limits
        self._metrics = metrics

    def work(self, seconds: float) -> bool:
        """Answer the next question.

        Args:
            seconds: How long to wait for one.

        Returns:
            Whether there was one.
        """
        job = self._queue.get(seconds)
        if job is None:
            return False
        if job.over:
            return True
        with self._metrics.running.track_inprogress(), self._metrics.seconds.time():
            outcome, answer = self._attempt(job)
        self._metrics.questions.labels(outcome).inc()
        job.tell(answer)
        return True

    def _attempt(self, job: Job) -> tuple[str, Answer]:
        """Return how a question ended, and its answer."""
        try:
            with limited(stop=lambda: job.over):
                return "done", self._answer(job)
        except StoppedError:
            return "stopped", too_late(self._limits)
        except Refused as refused:
            return "refused", Answer.of(refused)
        except (GraphSizeError, MemoryError) as error:
            return "refused", Answer.of(Refused("too_long", f"there is not enough memory: {error}"))
        except AttnflowError as error:
            return "refused", Answer.of(Refused("invalid", str(error)))
        except Exception:
            # The next question can still be answered.
            traceback.print_exc(file=sys.stderr)
            return "failed", Answer.of(Refused("failed", FAILED))

    def _answer(self, job: Job) -> Answer:
        started = time.monotonic()
        question = job.question
        count = len(question.texts)
        for name, text in zip(NAMES, question.texts, strict=False):
            self._check_length(name, text, question.options["truncate"])
        explained = []
        for number, text in enumerate(question.texts, start=1):
            with _told(self._explainer.model, job, number, count):
                explained.append(self._explainer.explain(text, **question.options))
            check_limits()
        job.tell(Stage("answer", count, count))
        return Answer.of(
            {
                "explanations": [item.to_dict(trace=question.trace) for item in explained],
                "pages": [data(item) for item in explained] if question.page else None,
                "seconds": round(time.monotonic() - started, 3),
            }
        )

    def _check_length(self, name: str, item: str | tuple[str, str], truncate: bool) -> None:
        """Refuse a text of too many tokens, before it takes memory with their square."""
        texts = item if isinstance(item, tuple) else (item,)
        if not all(text.strip() for text in texts):
            return  # the explainer has a better message for this
        count = len(self._explainer.tokenizer(*texts, verbose=False)["input_ids"])
        if truncate:
            count = min(count, self._explainer.adapter.max_tokens or count)
        if count > self._limits.tokens:
            raise Refused(
                "too_long",
                f"{name} has {count} tokens, and this server accepts {self._limits.tokens}",
            )


def too_late(limits: Limits) -> Answer:
    """Return the answer to a question whose time is up."""
    return Answer.of(Refused("too_late", f"there was no answer within {limits.seconds:g} seconds"))


@contextmanager
def _told(model: Any, job: Job, number: int, count: int) -> Iterator[None]:
    """Tell a job when the model begins to read a text, and when it has read it."""

    def tell(stage: str) -> Callable[..., None]:
        return lambda *_: job.tell(Stage(stage, number, count))

    hooks = [
        model.register_forward_pre_hook(tell("model"), prepend=True),
        model.register_forward_hook(tell("scores")),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
