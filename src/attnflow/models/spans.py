"""Models that answer with a stretch of the text: token classifiers and question answerers.

Which stretch is explained is found in a first pass, unless the caller names it. The answer is then
the sum over its tokens, or over its start and its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError, TextError
from attnflow.explain import Answer
from attnflow.explanation import Prediction
from attnflow.models.adapter import (
    Asked,
    Encoded,
    Loader,
    Question,
    Ran,
    Reading,
)
from attnflow.models.text import TextAdapter, placed
from attnflow.options import Options

# The most tokens that the answer to a question has, as in the pipeline of transformers.
LONGEST_ANSWER: Final = 15


class SpanAdapter(TextAdapter):
    """Reads a text whose answer is a stretch of it."""

    ending: ClassVar[str]
    """How the names of the model's classes end."""

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        [self.task] = self.tasks

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model is for this task, by the name of its class."""
        return type(model).__name__.endswith(cls.ending)

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is for another task."""
        saved = (getattr(config, "architectures", None) or [""])[0]
        if task not in cls.tasks and not (task == "auto" and saved.endswith(cls.ending)):
            return None
        return f"AutoModel{cls.ending}", "AutoTokenizer"

    @property
    def head_chooses(self) -> bool:
        """Yes: the head reads the tokens of the stretch."""
        return True

    def _logits(self, batch: Sequence[Encoded]) -> list[NDArray[np.float64]]:
        """Run the model on inputs, and return the logits of each, of shape (rows, classes)."""
        import torch

        from attnflow.capture.borrow import borrowed
        from attnflow.capture.running import forward

        inputs, where = self.stacked(batch, [[]] * len(batch))
        with torch.inference_mode(False), torch.no_grad(), borrowed(self.model, None):
            outputs = forward(self.model, {**inputs, "return_dict": True})
        rows = [self._rows(text) for text in batch]
        return [
            self.logits(outputs, row, rows[row], where).double().cpu().numpy()
            for row in range(len(batch))
        ]

    def _rows(self, encoded: Encoded) -> list[int]:
        """Return the positions that have logits."""
        return list(range(len(encoded.tokens)))

    def answer(self, ran: Ran, row: int) -> list[Answer]:
        """Return what the model answered, at all positions together."""
        logits, targets, encoded = ran.logits[row], ran.targets[row], ran.batch[row]
        if logits is None:
            return [Answer()]
        contrast = None if ran.contrast is None else self.label(ran.contrast)
        return [Answer(self.predicted(logits, encoded), self.joined(targets, encoded), contrast)]


class TokenAdapter(SpanAdapter):
    """Reads a text and labels each of its tokens, as a tagger or a recogniser of names does."""

    tasks: ClassVar = ("token-classification",)
    ending: ClassVar = "ForTokenClassification"

    def located(self, batch: Sequence[Encoded], options: Options) -> list[tuple[list[int], Asked]]:
        """Return the tokens that are explained: those asked for, or of an entity."""
        asked = self.asked(options.target, options.contrast)
        if options.position != "auto":
            places = [self.position(text, options.position, None) or 0 for text in batch]
            return [([place], asked) for place in places]
        found = []
        for text, logits in zip(batch, self._logits(batch), strict=True):
            own = self._entity(text, logits, asked.targets[0])
            found.append((own, asked._replace(targets=asked.targets * len(own))))
        return found

    def _entity(
        self, encoded: Encoded, logits: NDArray[np.float64], target: int | None
    ) -> list[int]:
        """Return the tokens of the stretch whose label the model is surest of.

        A stretch has tokens of one label, or of B-X and I-X. Those without an entity ("O", or the
        commonest label if there is none of that name) are left out, if any other is predicted.
        With a target, it is the token where that is most probable.
        """
        words = [i for i, special in enumerate(encoded.tokens.special) if not special]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        if target is not None:
            return [max(words, key=lambda place: float(shares[place, target]))]
        best = logits.argmax(axis=1)
        labels = {place: self.label(int(best[place])) for place in words}
        outside = (
            "O" if "O" in self.labels.values() else Counter(labels.values()).most_common(1)[0][0]
        )
        stretches: list[list[int]] = []
        for place in words:
            if labels[place] == outside:
                continue
            before = stretches[-1] if stretches else []
            if before and before[-1] == place - 1 and _goes_on(labels[before[-1]], labels[place]):
                before.append(place)
            else:
                stretches.append([place])
        if not stretches:
            # Nothing is found, so the token that comes nearest to it is explained.
            others = [index for index, label in self.labels.items() if label != outside]
            return [max(words, key=lambda place: float(shares[place, others].sum()))]
        return max(stretches, key=lambda own: float(shares[own, best[own]].mean()))

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of tokens."""
        return outputs.logits[row][list(positions)]

    def joined(self, indices: Sequence[int], encoded: Encoded | None = None) -> str:
        """Return the label of a stretch: that of an entity without B- and I-."""
        labels = [self.label(index) for index in indices]
        kinds = {label.partition("-")[2] for label in labels if label[:2] in ("B-", "I-")}
        whole = len(labels) > 1 and len(kinds) == 1 and all(x[:2] in ("B-", "I-") for x in labels)
        return kinds.pop() if whole else ", ".join(dict.fromkeys(labels))


class QuestionAdapter(SpanAdapter):
    """Reads a question and a text, and answers with a stretch of the text.

    The answer has two parts, its start and its end, which are the positions 0 and 1 of what is
    asked; the classes are the tokens.
    """

    tasks: ClassVar = ("question-answering",)
    ending: ClassVar = "ForQuestionAnswering"
    in_data_sets: ClassVar = False

    @property
    def has_classes(self) -> bool:
        """No: the answer is a stretch of the text."""
        return False

    @property
    def multi_label(self) -> bool:
        """No: each token competes with the others."""
        return False

    def check(self, options: Options) -> None:
        """Refuse a position: the answer has a start and an end."""
        if options.position != "auto":
            raise OptionError(
                f"position is {options.position!r}, but {self.name} answers with a stretch of the "
                "text; name it by its words, as target"
            )
        if options.edges == "gradient" and options.contrast is not None:
            raise OptionError(
                f"contrast is {options.contrast!r}, which edges='gradient' do not take for "
                f"{self.name}; leave it out, or use method='contribution'"
            )
        for name in ("target", "contrast"):
            if options[name] is not None and not isinstance(options[name], str):
                raise OptionError(
                    f"{name} is {options[name]!r}; expected words of the text that could answer "
                    "the question"
                )
        super().check(options)

    def asked(self, target: Any, contrast: Any) -> Asked:
        """Return nothing: where words are depends on the text."""
        return Asked((None, None))

    def target(self, target: Any, name: str = "target") -> int | None:
        """Refuse the question of a single token."""
        if target is None:
            return None
        raise OptionError(f"{name} is {target!r}, but {self.name} answers with a stretch of text")

    @property
    def compares(self) -> bool:
        """No: the answer is the logit of its start and that of its end."""
        return False

    def located(self, batch: Sequence[Encoded], options: Options) -> list[tuple[list[int], Asked]]:
        """Return the start and the end of each answer."""
        answers = None if options.target is not None else self._logits(batch)
        found = []
        for row, text in enumerate(batch):
            if answers is None:
                targets = self._words(text, options.target, "target")
            else:
                targets = self._best(text, answers[row])
            others: tuple[int, ...] = ()
            if options.contrast is not None:
                others = self._words(text, options.contrast, "contrast")
                if others == targets:
                    raise OptionError(
                        f"contrast is {options.contrast!r}, the same as the answer; expected other "
                        "words of the text"
                    )
            found.append(([0, 1], Asked(targets, None, others=others)))
        return found

    def predicted(self, logits: NDArray[np.float64], encoded: Encoded | None) -> Prediction | None:
        """Return the best stretch of the text, and the probability of its start and its end."""
        if encoded is None:
            return None
        best = self._best(encoded, logits)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return Prediction(
            self.joined(best, encoded), best[0], float(shares[0, best[0]] * shares[1, best[1]])
        )

    def _context(self, encoded: Encoded) -> tuple[int, int]:
        """Return where the text that is asked about starts and ends, in characters."""
        if len(encoded.tokens.segments) != 2:
            raise TextError(
                f"{self.name} answers a question about a text; expected a tuple (question, text)"
            )
        return encoded.tokens.segments[1][1:]

    def _best(self, encoded: Encoded, logits: NDArray[np.float64]) -> tuple[int, int]:
        """Return the start and end with the highest logits together."""
        first, last = self._context(encoded)
        places = [
            place
            for place, span in enumerate(encoded.tokens.spans)
            if span is not None and first <= span[0] and span[1] <= last
        ]
        pairs = (
            (start, end) for start in places for end in places if 0 <= end - start < LONGEST_ANSWER
        )
        return max(pairs, key=lambda pair: float(logits[0, pair[0]] + logits[1, pair[1]]))

    def _words(self, encoded: Encoded, words: str, name: str) -> tuple[int, int]:
        """Return the first and last token of words of the text."""
        first, _ = self._context(encoded)
        start = encoded.tokens.text.find(words.strip(), first)
        if start < 0:
            raise OptionError(
                f"{name} is {words!r}, which is not in the text that is asked about; expected "
                "words of it"
            )
        end = start + len(words.strip())
        inside = [
            place
            for place, span in enumerate(encoded.tokens.spans)
            if span is not None and span[0] < end and span[1] > start
        ]
        if not inside:
            raise OptionError(f"{name} is {words!r}, of which the tokenizer makes no token")
        return inside[0], inside[-1]

    def _rows(self, encoded: Encoded) -> list[int]:
        self._context(encoded)
        return [0, 1]

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the batch as padded tensors, and how many tokens each input has."""
        inputs, _ = super().stacked(batch, positions)
        return inputs, [len(text.tokens) for text in batch]

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of the start, and of the end, for each token."""
        import torch

        both = (outputs.start_logits, outputs.end_logits)
        return torch.stack([both[part][row, : where[row]] for part in positions])

    def joined(self, indices: Sequence[int], encoded: Encoded | None = None) -> str:
        """Return the words from a start to an end."""
        spans = [] if encoded is None else [encoded.tokens.spans[index] for index in indices]
        if encoded is None or not spans or spans[0] is None or spans[-1] is None:
            return "no answer"
        return encoded.tokens.text[spans[0][0] : spans[-1][1]] or "no answer"

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read texts for a reference. A position is 0 for the start, and 1 for the end."""
        found = []
        for item, question in zip(items, questions, strict=True):
            text = self.encoded(item, truncate)
            if question.position not in (0, 1):
                raise OptionError(
                    f"{self.name} answers with a stretch of text, which references and "
                    "evaluations do not know; use explain(..., check=True)"
                )
            places = placed(len(text.tokens))
            place: Any = question.position
            target: Any = question.target
            found.append(Reading(text.inputs, text.tokens, places, place, target))
        return found

    @property
    def can_delete(self) -> bool:
        """No: the tokens of the answer would move."""
        return False

    def answer_logits(self, outputs: Any, position: int | None) -> Any:
        """Return the logits of the starts, or of the ends."""
        return (outputs.start_logits, outputs.end_logits)[position or 0]


def _goes_on(before: str, label: str) -> bool:
    """Whether a label continues the entity of the one before it.

    Example:
        >>> _goes_on("B-PER", "I-PER"), _goes_on("I-PER", "B-PER"), _goes_on("verb", "verb")
        (True, False, True)
    """
    if label.startswith("B-"):
        return False
    kinds = [name[2:] if name[:2] in ("B-", "I-") else name for name in (before, label)]
    return kinds[0] == kinds[1]
