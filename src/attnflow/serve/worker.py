"""Answers questions with the model, one after the other, in the main thread.

A question whose time is up is stopped while its flow is computed, which can take long. A forward
pass always ends by itself, because its hooks must be removed from the model again.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attnflow.cancel import check_limits, limited
from attnflow.checks import HEAD_FUSIONS
from attnflow.errors import AttnflowError, GraphSizeError, ModelError, StoppedError
from attnflow.explanation import Explanation
from attnflow.models.chat import rendered
from attnflow.options import ANSWER_METHODS, EDGES, OPTIONS, UNITS, Option, Options
from attnflow.serve.answer import FAILED, Answer, Refused
from attnflow.serve.limits import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.question import NOT_WRITING, Item, Question, writing_options
from attnflow.serve.queue import FairQueue, Job
from attnflow.view import captions, page
from attnflow.view import generation as generation_page
from attnflow.view.pieces import labels
from attnflow.view.text import visible

if TYPE_CHECKING:
    from attnflow.models import Explainer
    from attnflow.serve.messages import Kind, Model
    from attnflow.serve.messages import Option as Described


# What the texts of a question are called.
NAMES: Final = ("the text", "the text that it is compared with")

# The examples that the page begins with.
SENTENCE: Final = "The keys to the cabinet"
PAIR: Final = ("What is on the table?", f"{SENTENCE} are on the table.")
CHAT: Final = [{"role": "user", "content": "What is the capital of France?"}]

# The tasks with one answer, which can be asked about for another text, too.
SAME_ANSWER: Final = ("classification", "masked-lm", "causal-lm", "seq2seq-lm")

# How the tasks of models begin that do not read text alone.
OTHER_TASKS: Final = ("image-", "audio-", "speech-")


class Stage(NamedTuple):
    """The progress of a question.

    Attributes:
        stage: "model" while the model reads a text, "scores" while its tokens are scored, "writing"
            and "explaining" while a model writes and what it wrote is explained, and "answer" while
            the answer is written.
        done: The number of the text, from 1, or how many tokens are done.
        total: The number of texts, or of tokens.
    """

    stage: str
    done: int
    total: int

    def to_dict(self) -> dict[str, Any]:
        """Return the stage as it is sent.

        Example:
            >>> Stage("writing", 3, 40).to_dict()
            {'stage': 'writing', 'token': 3, 'tokens': 40}
        """
        noun = "token" if self.stage in ("writing", "explaining") else "text"
        return {"stage": self.stage, noun: self.done, f"{noun}s": self.total}


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
    task = explainer.task
    if task.startswith(OTHER_TASKS):
        raise ModelError(
            f"the task of {explainer.name} is {task}; expected a model that reads text, "
            "which is all that a server explains"
        )
    adapter = explainer.adapter
    mask = getattr(explainer.tokenizer, "mask_token", None)
    mask = str(mask) if task == "masked-lm" and mask else None
    inputs: list[Kind] = [] if task == "question-answering" else ["text"]
    inputs += ["pair"] if adapter.reads_pairs or task == "seq2seq-lm" else []
    inputs += ["chat"] if adapter.reads_chats else []
    examples: dict[str, Any] = {
        "text": f"{SENTENCE} {mask} here." if mask else SENTENCE,
        "pair": (SENTENCE, "") if task == "seq2seq-lm" else _asking_for(mask),
        "chat": CHAT,
    }
    apart = task != "seq2seq-lm"
    explained = explainer.explain(
        examples[inputs[0]],
        method="raw",
        **({} if adapter.head_chooses else {"position": 0}),
        keep_heads=apart,
    )
    kept = None if explained.trace is None else explained.trace.heads
    layers, heads = len(explained.layer_scores), None if kept is None else kept.shape[1]
    most = adapter.max_tokens if apart else None
    labels = adapter.labels if adapter.has_classes and adapter.answers else {}
    return {
        "model": explainer.name,
        "task": task,
        "layers": layers,
        "heads": heads,
        "tokens": min(limits.tokens, most or limits.tokens),
        "characters": limits.characters,
        "mask": mask,
        "answers": adapter.answers,
        "inputs": inputs,
        "writes": adapter.writes,
        "classes": [
            {"index": index, "name": captions.label_name(explained, label)}
            for index, label in sorted(labels.items())
        ],
        "options": [
            *(_described(row) for row in writing_options(limits) if adapter.writes),
            *(_described(row, _values(row.name, explainer, layers, heads)) for row in OPTIONS),
        ],
        "examples": {kind: examples[kind] for kind in inputs},
    }


def _asking_for(mask: str | None) -> tuple[str, str]:
    """Return the example of a pair, with a word to be predicted if the model has a mask."""
    question, text = PAIR
    return question, text.replace("table", mask) if mask else text


def _values(name: str, explainer: "Explainer", layers: int, heads: int | None) -> Any:
    """Return the values of an option that this model takes; None is what its kind says."""
    adapter = explainer.adapter
    if name == "method":
        answering = ["contribution", *(["alti_logit"] if explainer.task == "causal-lm" else [])]
        return [*(answering if adapter.answers else ()), "rollout", "raw", "flow"]
    if name == "layer":
        return list(range(1, layers + 1))
    if name == "edges":
        return [edges for edges in EDGES if adapter.answers or edges != "gradient"]
    if name == "heads":
        return [*HEAD_FUSIONS, *range(heads or 0)]
    return UNITS if name == "units" else None


def _described(row: Option, values: Sequence[Any] | None = None) -> "Described":
    """Return an option as the form needs to know it."""
    say = captions.METHOD_NAMES.__getitem__ if row.name == "method" else row.say
    # "auto" and -1 are names for values that are known here.
    default = {"method": 0, "layer": -1}.get(row.name)
    return {
        "name": row.name,
        "help": row.help,
        "default": row.default if default is None or values is None else values[default],
        "values": None if values is None else [(value, say(value)) for value in values],
        "methods": list(row.methods),
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
        for name, text in zip(NAMES, question.texts, strict=False):
            self._check_length(name, text, question)
        content = self._written(job) if question.writing else self._explained(job)
        return Answer.of({**content, "seconds": round(time.monotonic() - started, 3)})

    def _explained(self, job: Job) -> dict[str, Any]:
        """Return the explanations of the texts of a question."""
        question, options = job.question, job.question.options
        count = len(question.texts)
        explained: list[Explanation] = []
        for number, text in enumerate(question.texts, start=1):
            with _told(self._explainer.model, job, number, count):
                explained.append(self._explainer.explain(text, **options))
            check_limits()
            options = _same_answer(options, explained[0])
        job.tell(Stage("answer", count, count))
        return {
            "explanations": [item.to_dict(trace=question.trace) for item in explained],
            "pages": [_page(item) for item in explained] if question.page else None,
        }

    def _written(self, job: Job) -> dict[str, Any]:
        """Return what the model writes for the text of a question."""
        question = job.question
        options = {name: question.options[name] for name in question.options}
        for name in NOT_WRITING:
            options.pop(name)

        def tell(stage: str, done: int, total: int) -> None:
            job.tell(Stage(stage, done, total))

        generation = self._explainer.generate(
            question.texts[0], progress=tell, **(question.writing or {}), **options
        )
        check_limits()
        job.tell(Stage("answer", 1, 1))
        return {
            "generation": generation.to_dict(trace=question.trace),
            "page": generation_page.data(generation) if question.page else None,
        }

    def _check_length(self, name: str, item: Item, question: Question) -> None:
        """Refuse a text of too many tokens, before it takes memory with their square."""
        count = self._tokens(item)
        if question.options["truncate"] and not isinstance(item, list):
            count = min(count, self._explainer.adapter.max_tokens or count)
        most, new = self._limits.tokens, (question.writing or {}).get("max_new_tokens", 0)
        if count + new > most:
            with_new = f" and max_new_tokens is {new}, together {count + new}" if new else ""
            raise Refused(
                "too_long",
                f"{name} has {count} tokens{with_new}, and this server accepts {most}; shorten "
                f"it{', or write less' if new else ''}",
            )

    def _tokens(self, item: Item) -> int:
        """Return how many tokens an input has; 0 if the explainer says better what is wrong."""
        if isinstance(item, list):
            if not self._explainer.adapter.reads_chats:
                return 0
            text = rendered(item, self._explainer.tokenizer).text
            ids = self._explainer.tokenizer(text, add_special_tokens=False, verbose=False)
            return len(ids["input_ids"])
        texts = item if isinstance(item, tuple) else (item,)
        if not all(text.strip() for text in texts):
            return 0
        return len(self._explainer.tokenizer(*texts, verbose=False)["input_ids"])


def _same_answer(options: Options, first: Explanation) -> Options:
    """Return the options for what is compared: scores are compared for one and the same answer."""
    known = first.prediction if first.task in SAME_ANSWER else None
    if known is None or options.target is not None or first.method not in ANSWER_METHODS:
        return options
    return options.replace(target=known.index)


def _page(explanation: Explanation) -> dict[str, Any]:
    """Return what the page shows of an explanation, and the names of what it scores."""
    names = [visible(name, line_breaks=False) for name in labels(explanation.pieces)]
    return {**page.data(explanation), "names": names}


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
