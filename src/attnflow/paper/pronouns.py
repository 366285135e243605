"""The measurements of the paper's Figure 4: which person a pronoun refers to.

A sentence names two people, and a language model has to choose between "his" and "her". `resolve`
gives the probabilities of the two, and how much the position of the pronoun attends to each person.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError
from attnflow.options import ATTENTION_METHODS as METHODS
from attnflow.options import Options

if TYPE_CHECKING:
    from attnflow.explanation import Explanation
    from attnflow.models import Explainer


MASK: Final = "MASK"
"""The place of the missing pronoun in the text of an `Ambiguity`."""


class Ambiguity(NamedTuple):
    """A sentence whose pronoun could refer to one of several words.

    Attributes:
        text: The sentence, with MASK where the pronoun is missing.
        referents: The words that the pronoun could refer to. Each occurs once in the text.
        answers: The words to choose between.
    """

    text: str
    referents: tuple[str, ...]
    answers: tuple[str, ...] = ("his", "her")


EXAMPLES: Final = (
    Ambiguity("The author talked to Sara about MASK book", ("author", "Sara")),
    Ambiguity("Mary convinced John of MASK love", ("Mary", "John")),
)
"""The paper's examples."""


class Resolution(NamedTuple):
    """How a model resolves an ambiguity.

    Attributes:
        ambiguity: The sentence.
        text: The model's input: the sentence with the model's mask token, or, for a causal model,
            everything before the pronoun.
        position: The position explained: the mask, or the last token.
        probabilities: The model's probability of each answer.
        scores: For each method the scores of the referents in every layer, summed over their
            tokens, float64 of shape (L, referents).
        receptive_field: Whether rollout and flow are relative to uniform attention.
        notes: The notes of the explanations.
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
        """Return the text, the answers with their probabilities, and the referents' scores.

        Returns:
            Dictionaries, lists, strings and numbers, for JSON.
        """
        answers = zip(self.ambiguity.answers, self.probabilities, self.relative, strict=True)
        names = ("word", "probability", "relative")
        return {
            "text": self.text,
            "position": self.position,
            "answers": [dict(zip(names, answer, strict=True)) for answer in answers],
            "referents": list(self.ambiguity.referents),
            "receptive_field": self.receptive_field,
            "notes": list(self.notes),
            **{method: scores.tolist() for method, scores in self.scores.items()},
        }


def resolve(
    explainer: Explainer, ambiguity: Ambiguity, *, receptive_field: str | bool = "auto"
) -> Resolution:
    """Let a language model choose a pronoun, and measure what its position attends to.

    A masked model reads the sentence with its mask token in the place of the pronoun. A causal
    model reads everything before the pronoun, and predicts the next token.

    Args:
        explainer: A masked or causal language model with a fast tokenizer.
        ambiguity: The sentence.
        receptive_field: As in `Explainer.explain`.

    Returns:
        The probabilities of the answers, and the scores of the referents in every layer.

    Raises:
        OptionError: If the model is not a masked or causal language model, a referent does not
            occur exactly once, or an answer is not a single token.
    """
    if explainer.task not in ("masked-lm", "causal-lm"):
        raise OptionError(
            f"{explainer.name} is a model for {explainer.task}; expected a masked or causal "
            "language model, which predicts a pronoun"
        )
    if ambiguity.text.count(MASK) != 1:
        raise OptionError(f"text is {ambiguity.text!r}; expected {MASK} in it, once")
    if len(ambiguity.referents) < 2 or len(ambiguity.answers) < 2:
        raise OptionError("expected two or more referents, and two or more answers")
    before, _, after = ambiguity.text.partition(MASK)
    if explainer.task == "masked-lm":
        text = f"{before}{explainer.tokenizer.mask_token}{after}"
    else:
        text, after = before.rstrip(), ""
    explanations = {
        method: explainer.explain(text, method=method, receptive_field=receptive_field)
        for method in METHODS
    }
    position = explanations["raw"].position
    ids = [
        _answer_token(explainer, text, position, f"{before}{word}{after}", word)
        for word in ambiguity.answers
    ]
    if len(set(ids)) < len(ids):
        raise OptionError(f"to this model the answers {ambiguity.answers} are the same token")
    places = [_places(explanations["raw"], referent) for referent in ambiguity.referents]
    encoded = explainer.adapter.read(text)
    [logits] = explainer.adapter.run([encoded], [[position]], Options()).logits
    assert logits is not None  # a language model has a head
    powers = np.exp(logits[0] - logits[0].max())
    return Resolution(
        ambiguity,
        text,
        position,
        tuple((powers[ids] / powers.sum()).tolist()),
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


def _answer_token(explainer: Explainer, text: str, position: int, filled: str, answer: str) -> int:
    """Return the token of an answer at its place in the sentence.

    The token of a word depends on what precedes it, so the whole sentence is tokenized.
    """
    given: list[int] = explainer.tokenizer(text)["input_ids"]
    ids: list[int] = explainer.tokenizer(filled)["input_ids"]
    # The answer replaces the mask, or follows the last token.
    place = position if explainer.task == "masked-lm" else position + 1
    same = ids[:place] == given[:place] and ids[place + 1 :] == given[position + 1 :]
    if not same or len(ids) <= place:
        pieces = explainer.tokenizer.tokenize(filled)
        raise OptionError(
            f"the answer {answer!r} is not one token in {filled!r}, whose tokens are "
            f"{', '.join(pieces)}"
        )
    if ids[place] == getattr(explainer.tokenizer, "unk_token_id", None):
        raise OptionError(f"the answer {answer!r} is not in the vocabulary of {explainer.name}")
    return ids[place]


def _places(explanation: Explanation, referent: str) -> list[int]:
    """Return the indices of the tokens of a referent."""
    name = re.escape(referent)
    # Some models read text without spaces between words.
    found = list(re.finditer(rf"(?<!\w){name}(?!\w)", explanation.text)) or list(
        re.finditer(name, explanation.text)
    )
    if len(found) != 1:
        raise OptionError(
            f"the referent {referent!r} occurs {len(found)} times in {explanation.text!r}, the "
            "model's input; expected once"
        )
    start, end = found[0].span()
    tokens = [
        i
        for i, span in enumerate(explanation.spans)
        # The span of a token may begin with the space before it.
        if span is not None and max(span[0], start) < min(span[1], end)
    ]
    if not tokens:
        raise OptionError(
            f"no token is known for the referent {referent!r}; expected a fast tokenizer, which "
            "gives the place of each token in the text"
        )
    return tokens
