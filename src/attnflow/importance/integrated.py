"""Integrated gradients: the gradient along a path from a baseline to the input.

Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017. The gradient at
the input alone says nothing of a word whose effect is saturated; its mean along a path does, and
what it gives adds up to the change of the answer between the baseline and the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer, switch
from attnflow.importance.gradient import GRADIENT_POSITIONS, differentiate
from attnflow.importance.reading import check_batch_size, read
from attnflow.models import Explainer
from attnflow.models.adapter import Reading
from attnflow.models.answers import batches


class Integrated(NamedTuple):
    """What the tokens of one input add to an answer, over a baseline.

    Attributes:
        scores: The part of each token, float64 of shape (n,), with a sign. Their sum is nearly
            ``answer - baseline``.
        answer: The answer to the input: the log-odds of the target, or, if there is a contrast, the
            difference of the two logits.
        baseline: The answer to the baseline.
    """

    scores: NDArray[np.float64]
    answer: float
    baseline: float

    @property
    def error(self) -> float:
        """By how much the scores miss the change of the answer, relative to the sum of sizes."""
        missed = abs(float(self.scores.sum()) - (self.answer - self.baseline))
        size = float(np.abs(self.scores).sum())
        return missed / size if size > 0 else missed


class _Path(NamedTuple):
    """The embeddings of a baseline and of an input, one for each call; targets are fixed."""

    reading: Reading
    start: list[Any]
    end: list[Any]
    answer: float
    baseline: float


def integrated_gradients(
    explainer: Any, inputs: Any, *, signed: bool = False, **options: Any
) -> Any:
    """Integrate the gradient of the model's answer from a baseline to the input's embeddings.

    The importance of token t is ``|sum_d (x[t, d] - b[t, d]) g[t, d]|``, where x are the embeddings
    that `input_gradient` differentiates by, b those of the baseline, and g is the mean of the
    answer's gradient along the straight line between the two, from `steps` points of it.

    The answer is the log-odds of the target, log p / (1 - p), not its probability p: along the path
    p changes in one short stretch, which a few steps miss. If there are two classes, or a
    `contrast`, it is the difference of the two logits.

    With ``signed=True`` the absolute value is not taken: positive values speak for the target.
    `integrate` returns these, and how nearly they add up. It takes the other arguments, and raises
    the same.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> found = integrated_gradients(explainer, "the keys to the cabinet")
        >>> int(found.argmax())  # "keys"
        2
    """
    signed = switch(signed, "signed")
    found = integrate(explainer, inputs, **options)
    many = isinstance(found, list)
    scores = [one.scores if signed else np.abs(one.scores) for one in (found if many else [found])]
    return scores if many else scores[0]


def integrate(
    explainer: Any,
    inputs: Any,
    *,
    target: Any = None,
    contrast: Any = None,
    position: int | str = "auto",
    steps: int = 20,
    baseline: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
) -> Any:
    """Return integrated gradients with signs, and the answers at both ends of the path.

    Positive values speak for the target. Special tokens are the same at both ends and get 0, and so
    do tokens that come after the position of a causal model.

    A text needs `steps` + 2 forward and backward passes; all but two run together.

    Besides `steps` and `baseline` it takes what `input_gradient` does, and raises the same.

    Args:
        explainer: As in `input_gradient`.
        inputs: As there.
        target: As there.
        contrast: As there.
        position: As there.
        steps: At how many points of the path the gradient is taken: those of Gauss-Legendre
            quadrature, which are nearer to each other at both ends.
        baseline: What stands at the start in place of every token that is not special: "zero" for
            embeddings of 0, or a token as in `blank_out`: "mask", "unk", a token of the vocabulary,
            or its id. "auto" is MASK if the tokenizer has one, and else "zero"; for an image it is
            the mean colour. Norms make the answer change abruptly near embeddings of 0: many steps
            are needed there, or a token as the baseline.
        batch_size: As in `input_gradient`.
        truncate: As there.

    Returns:
        An `Integrated`; or a list of them, one for each text, in their order.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> found = integrate(explainer, "the keys to the cabinet", contrast="VBZ", steps=50)
        >>> found.error < 0.05
        True
    """
    check_batch_size(batch_size)
    steps = integer(steps, "steps", least=1)
    readings, many = read(
        explainer, inputs, target=target, contrast=contrast, position=position, truncate=truncate
    )
    fill = _fill(explainer, baseline)
    modules = explainer.adapter.embeddings()
    paths = [_path(explainer, reading, modules, fill) for reading in readings]
    gradients = [[0.0] * len(path.end) for path in paths]
    # From -1 to 1, with weights that add up to 2.
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    shares, weights = (nodes + 1) / 2, weights / 2

    def points() -> Iterator[tuple[tuple[int, int], Reading]]:
        for index, path in enumerate(paths):
            for step in range(steps):
                yield (index, step), path.reading

    for batch in batches(explainer, points(), batch_size, GRADIENT_POSITIONS):
        keys = [key for key, _ in batch]

        def between(call: int, output: Any, keys: Any = keys) -> Any:
            import torch

            ends = (
                (paths[index].start[call], paths[index].end[call], step) for index, step in keys
            )
            return torch.stack([a + shares[step] * (b - a) for a, b, step in ends]).to(output)

        found = differentiate(explainer, [reading for _, reading in batch], modules, between)
        for row, (index, step) in enumerate(keys):
            for call, gradient in enumerate(found.gradients):
                gradients[index][call] = gradients[index][call] + weights[step] * gradient[row]
    results = [
        Integrated(_scores(path, along), path.answer, path.baseline)
        for path, along in zip(paths, gradients, strict=True)
    ]
    return results if many else results[0]


def _scores(path: _Path, gradients: list[Any]) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.zeros(len(path.reading.tokens))
    found = [
        ((end - start) * gradient).sum(dim=-1).numpy()
        for start, end, gradient in zip(path.start, path.end, gradients, strict=True)
    ]
    row = np.concatenate(found)
    # What is left over are tokens that the answer cannot depend on.
    scores[: len(row)] = row
    return scores


def _fill(explainer: Explainer, baseline: int | str) -> int | None:
    """Return the id of the token that the baseline is made of; None is zeros."""
    adapter = explainer.adapter
    if baseline == "auto" and adapter.tokenizer is not None:
        known = getattr(adapter.tokenizer, "mask_token_id", None) is not None
        baseline = "mask" if known else "zero"
    return None if baseline == "zero" else adapter.fill(baseline, "baseline")


def _path(explainer: Explainer, reading: Reading, modules: list[Any], fill: int | None) -> _Path:
    """Return both ends of the path to a reading."""
    adapter = explainer.adapter
    ordinary = [index for index, special in enumerate(reading.tokens.special) if not special]
    whole = differentiate(explainer, [reading], modules)
    asked = reading._replace(target=whole.targets[0])
    if fill is not None:
        other = differentiate(explainer, [adapter.replaced(asked, ordinary, fill)], modules)
    else:
        counts = np.cumsum([0, *adapter.embedded(reading)]).tolist()

        def emptied(call: int, output: Any) -> Any:
            first, last = counts[call], counts[call + 1]
            empty = output.clone()
            empty[:, [index - first for index in ordinary if first <= index < last]] = 0.0
            return empty

        other = differentiate(explainer, [asked], modules, emptied)
    starts, ends = ([one[0] for one in found.embeddings] for found in (other, whole))
    return _Path(asked, starts, ends, float(whole.answers[0]), float(other.answers[0]))
