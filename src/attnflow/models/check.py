"""Check an explanation on its own input: what becomes of the answer without each unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from attnflow.explain import Explained
from attnflow.explanation import Explanation
from attnflow.models.adapter import Asked, Encoded, Question
from attnflow.models.answers import Answer, ask
from attnflow.options import ANSWER_METHODS, Options, unit_name
from attnflow.verdict import Check

if TYPE_CHECKING:
    from attnflow.models.explainer import Explainer

# How many versions of an input run together at most.
BATCH: Final = 64


class _Whole(NamedTuple):
    """What is answered at all positions together."""

    value: float
    predicted: list[int]


def checked(
    explainer: Explainer,
    explained: Explained,
    encoded: Encoded,
    places: Sequence[int],
    asked: Asked,
    options: Options,
) -> Explanation:
    """Return an explanation with its check.

    Every unit that is not special is replaced as a whole, and the answer is read again.

    Args:
        explainer: The model.
        explained: The explanation, and the tokens of each unit.
        encoded: The input.
        places: The positions at which the answer is read.
        asked: What is explained: the indices of the targets and of the contrast.
        options: The options.
    """
    adapter, explanation = explainer.adapter, explained.explanation
    if asked.same:
        return explanation  # a note says that there is no difference to explain
    # The answer is the sum over its positions, each of which is asked about by itself.
    questions = [
        Question(place, target, None) for place, target in zip(places, asked.targets, strict=True)
    ]
    read = adapter.readings([encoded] * len(questions), questions, options.truncate)
    readings = [
        one._replace(contrast=contrast) for one, contrast in zip(read, asked.contrasts, strict=True)
    ]
    fill = adapter.fill("auto")
    units = [
        (index, group)
        for index, group in enumerate(explained.groups)
        if not explanation.special[index]
        and any(adapter.changes(one, token, fill) for one in readings for token in group)
    ]
    versions = [
        changed
        for one in readings
        for changed in (one, *(adapter.replaced(one, group, fill) for _, group in units))
    ]
    asked_each = ask(explainer, versions, BATCH)
    size = len(units) + 1
    whole, *found = [_summed(asked_each[start::size]) for start in range(size)]
    scores = [float(explanation.scores[index]) for index, _ in units]
    effects = [whole.value - answer.value for answer in found]
    if explanation.method not in ANSWER_METHODS:
        # Attention says how much a token matters, and not which way.
        effects = [abs(effect) for effect in effects]
    top = max(range(len(units)), key=scores.__getitem__, default=None)
    without = whole if top is None else found[top]
    check = Check.of(
        " and ".join(
            [unit_name(options.units)] * bool(explanation.text or explanation.grid is None)
            + ["patches"] * bool(explanation.grid)
        ),
        [explanation.tokens[index] for index, _ in units],
        scores,
        effects,
        value=whole.value,
        removed=without.value,
        answers=(
            adapter.joined(whole.predicted, encoded),
            adapter.joined(without.predicted, encoded),
        ),
        replacement=adapter.fill_name(fill),
    )
    return replace(explanation, check=check)


def _summed(answers: Sequence[Answer]) -> _Whole:
    return _Whole(sum(one.value for one in answers), [one.predicted for one in answers])
