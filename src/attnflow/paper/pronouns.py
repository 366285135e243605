"""Whom does a pronoun stand for? The paper's Figure 4, measured.

A sentence names two people, and a language model has to choose between "his" and "her". Beside the
probabilities of the two stands what the position of the pronoun attends to of each person.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError

if TYPE_CHECKING:
    from attnflow.explanation import Explanation
    from attnflow.models import Explainer

__all__ = ["EXAMPLES", "MASK", "METHODS", "Ambiguity", "Resolution", "resolve"]

MASK: Final = "MASK"
"""What stands in an example's text where the pronoun is missing."""

METHODS: Final = ("raw", "rollout", "flow")


class Ambiguity(NamedTuple):
    """A sentence whose pronoun could stand for one of two.

    Attributes:
        text: The sentence, with MASK where the pronoun is missing.
        referents: The words that it could stand for, as the text has them, each there once.
        answers: The words to choose between.
    """

    text: str
    referents: tuple[str, ...]
    answers: tuple[str, ...] = ("his", "her")


EXAMPLES: Final = (
    Ambiguity("The author talked to Sara about MASK book", ("author", "Sara")),
    Ambiguity("Mary convinced John of MASK love", ("Mary", "John")),
)


class Resolution(NamedTuple):
    """How a model resolves an ambiguity.

    Attributes:
        ambiguity: The sentence.
        text: What the model was given: the whole sentence with its mask, or for a causal model all
            before the pronoun.
        position: The position explained: the mask, or the last token.
        probabilities: The model's probability of each answer.
        scores: For each method the scores of the referents in every layer, summed over their
            tokens, float64 of shape (L, referents).
        receptive_field: Whether rollout and flow are related to uniform attention.
        notes: What a reader of the scores has to be warned of, in words.
    """

    ambiguity: Ambiguity
    text: str
    position: int
    probabilities: tuple[float, ...]
    scores: dict[str, NDArray[np.float64]]
    receptive_field: bool
    notes: tuple[str, ...]

    @property
    def relative(self) -> tuple[float, ...]:
        """The probabilities of the answers as shares of their sum."""
        total = sum(self.probabilities)
        return tuple(probability / total for probability in self.probabilities)

    def to_dict(self) -> dict[str, Any]:
        """Return the resolution as what JSON can hold.

        Returns:
            The text, the answers with their probabilities, and the referents with their scores.
        """
        answers = zip(self.ambiguity.answers, self.probabilities, self.relative, strict=True)
        return {
            "text": self.text,
            "position": self.position,
            "answers": [
                {"word": word, "probability": probability, "relative": relative}
                for word, probability, relative in answers
            ],
            "referents": list(self.ambiguity.referents),
            "receptive_field": self.receptive_field,
            "notes": list(self.notes),
            **{method: scores.tolist() for method, scores in self.scores.items()},
        }


def resolve(
    explainer: Explainer, ambiguity: Ambiguity, *, receptive_field: str | bool = "auto"
) -> Resolution:
    """Ask a language model for a pronoun, and what its position attends to.

    A masked model is given the sentence with its mask where the pronoun is missing. A causal one is
    given all that stands before the pronoun, which comes next.

    Args:
        explainer: A masked or a causal language model, with a fast tokenizer.
        ambiguity: The sentence.
        receptive_field: As in `Explainer.explain`.

    Returns:
        The probabilities of the answers, and the scores of the referents in every layer.

    Raises:
        OptionError: If the model is no such model, or the sentence is not made as it should be for
            it: a referent is missing or there twice, or an answer is not one token.
    """
    if explainer.task not in ("masked-lm", "causal-lm"):
        raise OptionError(
            f"a pronoun is predicted by a masked or a causal language model, and {explainer.name} "
            f"is a model for {explainer.task}"
        )
    if not getattr(explainer.tokenizer, "is_fast", False):
        raise OptionError(
            f"the tokenizer of {explainer.name} is not a fast one, and does not tell where in the "
            "text its tokens stand"
        )
    if ambiguity.text.count(MASK) != 1:
        raise OptionError(f"the text must have {MASK} in it, once, got {ambiguity.text!r}")
    if len(ambiguity.referents) < 2 or len(ambiguity.answers) < 2:
        raise OptionError("an ambiguity has two or more referents, and two or more answers")
    before, _, after = ambiguity.text.partition(MASK)
    if explainer.task == "masked-lm":
        text = f"{before}{explainer.tokenizer.mask_token}{after}"
        filled = [f"{before}{word}{after}" for word in ambiguity.answers]
    else:
        text = before.rstrip()
        filled = [f"{before}{word}" for word in ambiguity.answers]
    explanations = {
        method: explainer.explain(text, method=method, receptive_field=receptive_field)
        for method in METHODS
    }
    first = explanations["raw"]
    position = first.position
    ids = [
        _token_at(explainer, text, whole, position, word)
        for word, whole in zip(ambiguity.answers, filled, strict=True)
    ]
    if len(set(ids)) < len(ids):
        raise OptionError(f"to this model the answers {ambiguity.answers} are the same token")
    places = [_places(first, referent) for referent in ambiguity.referents]
    return Resolution(
        ambiguity,
        text,
        position,
        _probabilities(explainer, text, position, ids),
        {
            method: np.stack(
                [explanation.layer_scores[:, tokens].sum(axis=1) for tokens in places], axis=-1
            )
            for method, explanation in explanations.items()
        },
        bool(explanations["flow"].options["receptive_field"]),
        tuple(
            f"{method}: {note}"
            for method, explanation in explanations.items()
            for note in explanation.notes
        ),
    )


def _token_at(explainer: Explainer, text: str, filled: str, position: int, word: str) -> int:
    """Return the token that stands for a word where the pronoun is missing.

    How a word is written as a token depends on what stands before it, so that the word is put
    where it belongs and its token read off there.
    """
    given: list[int] = explainer.tokenizer(text)["input_ids"]
    ids: list[int] = explainer.tokenizer(filled)["input_ids"]
    masked = explainer.task == "masked-lm"
    place = position if masked else position + 1
    same = (
        len(ids) == len(given) and ids[place + 1 :] == given[place + 1 :]
        if masked
        else len(ids) >= len(given) + 1
    )
    # A tokenizer may end what it is given with a token of its own.
    alone = masked or len(ids) == len(given) + 1
    if not (same and alone and ids[:place] == given[:place]):
        pieces = explainer.tokenizer.tokenize(filled)
        raise OptionError(
            f"the answer {word!r} is not one token in {filled!r}, which this model reads as "
            f"{', '.join(pieces)}"
        )
    unknown = getattr(explainer.tokenizer, "unk_token_id", None)
    if ids[place] == unknown:
        raise OptionError(f"the answer {word!r} is not in the vocabulary of {explainer.name}")
    return ids[place]


def _places(explanation: Explanation, referent: str) -> list[int]:
    """Return the tokens of a word of the text."""
    text = explanation.text
    name = re.escape(referent)
    # Not all that models read has spaces between words.
    places = [m.start() for m in re.finditer(rf"(?<!\w){name}(?!\w)", text)] or [
        m.start() for m in re.finditer(name, text)
    ]
    if not referent or not places:
        raise OptionError(
            f"the referent {referent!r} is not in {text!r}, which is what the model sees"
        )
    if len(places) > 1:
        raise OptionError(
            f"the referent {referent!r} is in {text!r} {len(places)} times, and which one is meant "
            "cannot be told; write the sentence so that it is there once"
        )
    start = places[0]
    end = start + len(referent)
    found = [
        i
        for i, span in enumerate(explanation.spans)
        # The span of a token may begin with the space before it.
        if span is not None and max(span[0], start) < min(span[1], end)
    ]
    if not found:
        raise OptionError(f"the tokenizer has no token for the referent {referent!r}")
    return found


def _probabilities(
    explainer: Explainer, text: str, position: int, ids: Sequence[int]
) -> tuple[float, ...]:
    import torch

    inputs = {
        name: torch.tensor([values], device=explainer.model.device)
        for name, values in explainer.adapter.read(text).inputs.items()
    }
    training = explainer.model.training
    explainer.model.eval()
    try:
        with torch.no_grad():
            logits = explainer.model(**inputs).logits[0, position]
    finally:
        explainer.model.train(training)
    shares = logits.double().softmax(dim=-1)
    return tuple(float(shares[index]) for index in ids)
