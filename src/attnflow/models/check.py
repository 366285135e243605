"""Check an explanation on its own input: what becomes of the answer without each unit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from attnflow.explain import Explained
from attnflow.explanation import Explanation
from attnflow.models.adapter import Asked, Encoded, Question
from attnflow.models.answers import ask
from attnflow.options import ANSWER_METHODS, Options, unit_name
from attnflow.verdict import Check

if TYPE_CHECKING:
    from attnflow.models.explainer import Explainer

# How many versions of an input run together at most.
BATCH: Final = 64


def checked(
    explainer: Explainer,
    explained: Explained,
    encoded: Encoded,
    place: int,
    asked: Asked,
    options: Options,
) -> Explanation:
    """Return an explanation with its check.

    Every unit that is not special is replaced as a whole, and the answer is read again.

    Args:
        explainer: The model.
        explained: The explanation, and the tokens of each unit.
        encoded: The input.
        place: The position at which the answer is read.
        asked: What is explained: the indices of the target and of the contrast.
        options: The options.
    """
    adapter, explanation = explainer.adapter, explained.explanation
    if asked.target == asked.contrast:
        return explanation  # a note says that there is no difference to explain
    question = Question(place, asked.target, asked.contrast)
    [reading] = adapter.readings([encoded], [question], options.truncate)
    reading = reading._replace(contrast=asked.contrast)
    fill = adapter.fill("auto")
    units = [
        (index, group)
        for index, group in enumerate(explained.groups)
        if not explanation.special[index]
        and any(adapter.changes(reading, token, fill) for token in group)
    ]
    changed = [adapter.replaced(reading, group, fill) for _, group in units]
    whole, *found = ask(explainer, [reading, *changed], BATCH)
    scores = [float(explanation.scores[index]) for index, _ in units]
    effects = [whole.value - answer.value for answer in found]
    if explanation.method not in ANSWER_METHODS:
        # Attention says how much a token matters, and not which way.
        effects = [abs(effect) for effect in effects]
    top = max(range(len(units)), key=scores.__getitem__, default=None)
    without = whole if top is None else found[top]
    check = Check.of(
        unit_name(options.units) if explanation.grid is None else "patches",
        [explanation.tokens[index] for index, _ in units],
        scores,
        effects,
        value=whole.value,
        removed=without.value,
        answers=(adapter.label(whole.predicted), adapter.label(without.predicted)),
        replacement=adapter.fill_name(fill),
    )
    return replace(explanation, check=check)
