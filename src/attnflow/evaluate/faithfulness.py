"""Faithfulness: how the prediction changes when the highest-scoring tokens are removed.

Blank-out replaces one token at a time. Here tokens are removed together, in the order of their
scores. The sooner the prediction changes, the more faithful the scores are. Special tokens and
masks are never removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer, items, number
from attnflow.errors import OptionError
from attnflow.evaluate.significance import defined_mean
from attnflow.fields import numbers
from attnflow.importance.reading import read
from attnflow.models.adapter import Reading
from attnflow.models.answers import Answer, answers, ask

FRACTIONS: Final = (0.1, 0.2, 0.3, 0.5)
SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""The shares K of `Faithfulness.aopc_shares`."""

# Equal texts run once. They are looked for among this many changed texts.
WINDOW: Final = 4096


class Faithfulness(NamedTuple):
    """How faithful the scores of a text's tokens are to the model.

    Let p be the probability of the target, p(-k) its probability after the k highest-scoring tokens
    are removed, and p(+k) its probability after all others are removed. For each fraction, k is
    that share of the removable tokens, rounded to the nearest integer, and at least 1.

    Attributes:
        comprehensiveness: The mean over the fractions of p - p(-k) (DeYoung et al., "ERASER", ACL
            2020). Higher is better.
        sufficiency: The mean over the fractions of p - p(+k) (DeYoung et al. 2020). Lower is
            better.
        aopc: The area over the perturbation curve, most relevant tokens first: tokens are removed
            one by one until the largest fraction is removed, in K steps, and this is the mean of
            p - p(-k) over k = 0, ..., K (Samek et al., "Evaluating the Visualization of What a Deep
            Neural Network Has Learned", IEEE TNNLS 2017). Higher is better.
        log_odds: The mean over the fractions of log o(-k) - log o, where o = p / (1 - p) are the
            odds (Shrikumar et al., "DeepLIFT", ICML 2017; Chen et al., "L-Shapley and C-Shapley",
            ICLR 2019). Lower is better. Unlike the others, it does not saturate when p is close to
            1.
        aopc_shares: The mean over the shares K = 10, 20, ..., 100 % of p - p(-k), where the K %
            highest-scoring tokens are removed at once (Modarressi et al., "DecompX", ACL 2023, who
            replace them by MASK: ``removal="mask"``, and call this AOPC). Higher is better. A share
            that would leave nothing to read does not count; it is the same for all scores.
    """

    comprehensiveness: float
    sufficiency: float
    aopc: float
    log_odds: float
    aopc_shares: float


def faithfulness(
    explainer: Any,
    inputs: Any,
    scores: Any,
    *,
    target: Any = None,
    position: int | str = "auto",
    fractions: Sequence[float] = FRACTIONS,
    shares: Sequence[float] = SHARES,
    removal: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
) -> Any:
    """Remove tokens in the order of their scores, and measure how the prediction changes.

    Tokens with equal scores are removed from left to right. All tokens can be removed but special
    tokens, masks, and those after the position of a causal model. A text with m removable tokens
    takes about ``m * max(fractions) + len(fractions) + len(shares) / 2`` forward passes.

    Args:
        explainer: An `attnflow.Explainer` whose model classifies or is a language model.
        inputs: A text, or a list of texts; for an encoder-decoder sources, or tuples of a source
            and the target so far; for a vision model images; as in `Explainer.explain`.
        scores: One score for each token that the model reads, special tokens included, as in
            `Explanation.scores` with ``units="tokens"`` and ``special_tokens=True``. For a causal
            model or a target so far, the scores up to the position are enough. For a list of texts,
            a list with the scores of each. A text may be given several times with different
            scores; what these have in common runs once.
        target: The class, by name or index, or the token; for a list of texts also a list, one for
            each. None means what the model predicts for the unchanged text.
        position: Where the answer of a language model is read, as in `Explainer.explain`. If that
            token is removed, the last remaining token before it is used.
        fractions: The shares of tokens to remove, above 0 and at most 1.
        shares: The same for `Faithfulness.aopc_shares`.
        removal: "delete" removes tokens from the text, and the following ones move up. Otherwise
            the replacement: "unk", "mask", a token of the vocabulary, or its id. "auto" means
            "delete"; for a vision model, whose patches cannot be deleted, it is the mean colour.
        batch_size: The largest number of texts that run together.
        truncate: Truncate a text that is longer than the model accepts, instead of raising an
            error.

    Returns:
        A `Faithfulness`, or a list with one for each text. It is NaN if no token can be removed, or
        nothing would be left for the model to read.

    Raises:
        OptionError: If an option is not valid for this model, or `scores` does not have a finite
            score for each token.
        TextError: If a text is empty, not text, or longer than the model accepts.
        ModelError: If the model predicts no class and no token.

    Example:
        >>> import attnflow
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
        >>> vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "keys": 3, "open": 4, "doors": 5}
        >>> config = BertConfig(vocab_size=6, hidden_size=8, num_hidden_layers=2,
        ...                     num_attention_heads=2, intermediate_size=8)
        >>> model = BertForSequenceClassification(config)
        >>> explainer = attnflow.Explainer(model, BertTokenizerFast(vocab=vocabulary))
        >>> explanation = explainer.explain("keys open doors", method="rollout")
        >>> faithfulness(explainer, "keys open doors", explanation.scores)._fields
        ('comprehensiveness', 'sufficiency', 'aopc', 'log_odds', 'aopc_shares')
    """
    integer(batch_size, "batch_size", least=1)
    parts = [_parts(fractions, "fractions"), _parts(shares, "shares")]
    readings, many = read(explainer, inputs, target=target, position=position, truncate=truncate)
    fill = check_removal(explainer, removal)
    orders = _orders(explainer, readings, scores if many else [scores], many)
    whole = _ask_each(explainer, readings, batch_size)
    steps = [[_steps(len(order), part) for part in parts] for order in orders]
    results = []
    # Images are not compared, so there is no reason to hold many.
    for window in _windows(steps, WINDOW if explainer.adapter.can_delete else 1):
        asked = [readings[i]._replace(target=whole[i].target) for i in window]
        changed = [(orders[i], steps[i]) for i in window]
        found = _run(explainer, asked, changed, fill, batch_size)
        results += [_measure(whole[i], found[i - window.start], steps[i]) for i in window]
    return results if many else results[0]


# ---- Checks --------------------------------------------------------------------------------------


def _parts(given: Any, name: str) -> tuple[float, ...]:
    parts = items(given, name, "numbers above 0 and at most 1")
    return tuple(number(part, name, above=0, most=1) for part in parts)


def check_removal(explainer: Any, removal: Any) -> int | None:
    """Return the id that replaces a token; None if tokens are deleted.

    Args:
        explainer: The model.
        removal: As in `faithfulness`.

    Raises:
        OptionError: If it is not valid for this model.
    """
    image = not explainer.adapter.can_delete
    if image and isinstance(removal, str) and removal == "delete":
        raise OptionError(
            "removal is 'delete', but the patches of an image cannot be deleted; expected 'auto', "
            "which paints them in the mean colour"
        )
    if not image and isinstance(removal, str) and removal in ("auto", "delete"):
        return None
    fill: int = explainer.adapter.fill(removal, "removal")
    return fill


def _orders(explainer: Any, readings: list[Reading], scores: Any, many: bool) -> list[list[int]]:
    """Return the removable tokens of each reading, highest scores first."""
    if not hasattr(scores, "__len__") or len(scores) != len(readings):
        given = len(scores) if hasattr(scores, "__len__") else type(scores).__name__
        raise OptionError(
            f"scores is {given}, but there are {len(readings)} texts; expected a list with the "
            "scores of each"
        )
    mask = getattr(explainer.tokenizer, "mask_token_id", None)
    orders = []
    for index, (reading, given) in enumerate(zip(readings, scores, strict=True)):
        values = _checked_scores(given, reading, f"scores[{index}]" if many else "scores")
        removable = [
            token
            for token, place in enumerate(reading.places)
            if place is not None
            and not reading.tokens.special[token]
            and explainer.adapter.changes(reading, token, mask)
        ]
        orders.append(sorted(removable, key=lambda token: -values[token]))
    return orders


def _checked_scores(given: Any, reading: Reading, name: str) -> NDArray[np.float64]:
    values = numbers(given, name, "(tokens,)")
    count = len(reading.tokens)
    # The tokens that the prediction cannot depend on come last, and need no score.
    needed = max(
        (token + 1 for token, place in enumerate(reading.places) if place is not None), default=0
    )
    if not needed <= len(values) <= count:
        raise OptionError(
            f"{name} has shape {values.shape}, but the text has {count} tokens; expected a score "
            "for each token, special tokens included, and not for words"
        )
    return values


# ---- Removing ------------------------------------------------------------------------------------


def _steps(count: int, fractions: tuple[float, ...]) -> list[int]:
    """Return how many tokens each fraction is, rounded to the nearest integer, at least 1.

    Example:
        >>> _steps(10, (0.05, 0.25, 0.3, 1.0))
        [1, 3, 3, 10]
    """
    return [max(1, floor(fraction * count + 0.5 + 1e-9)) for fraction in fractions]


def _windows(steps: list[list[list[int]]], most: int) -> Iterator[range]:
    """Yield ranges of texts that have at most about `most` changed versions together."""
    start, held = 0, 0
    for index, (counts, shares) in enumerate(steps):
        held += max(counts) + len(counts) + len(shares)
        if held >= most or index + 1 == len(steps):
            yield range(start, index + 1)
            start, held = index + 1, 0


def _ask_each(explainer: Any, readings: list[Reading], batch_size: int) -> list[Answer]:
    """Return the predictions for the unchanged texts. Equal texts run once."""
    keys = [_identity(reading, index) for index, reading in enumerate(readings)]
    unique = dict(zip(keys, readings, strict=True))
    found = ask(explainer, list(unique.values()), batch_size)
    by_key = dict(zip(unique, found, strict=True))
    return [by_key[key] for key in keys]


def _identity(reading: Reading, index: int) -> Any:
    """Return a key that equal texts share. Images are not compared."""
    if not all(isinstance(values, list) for values in reading.inputs.values()):
        return index
    inputs = tuple((name, tuple(values)) for name, values in reading.inputs.items())
    return inputs, reading.position, reading.target


def _run(
    explainer: Any,
    readings: list[Reading],
    changes: list[tuple[list[int], list[list[int]]]],
    fill: int | None,
    batch_size: int,
) -> list[dict[int, Answer]]:
    """Return the predictions after k tokens are removed, by k; by -k if only these are left.

    `changes` has for each reading its removable tokens in order, and how many to remove: by the
    fractions, up to the largest of which they are also removed one by one, and by the shares. There
    is no prediction if nothing is left to read.
    """
    adapter = explainer.adapter
    results: list[dict[int, Answer]] = [{} for _ in readings]
    wanted: dict[Any, list[tuple[int, int]]] = {}
    changed: dict[Any, Reading] = {}
    for index, (reading, (order, (steps, shares))) in enumerate(
        zip(readings, changes, strict=True)
    ):
        if not order:
            continue
        removed = sorted({*range(1, max(steps) + 1), *shares})
        for step in [*removed, *(-k for k in sorted(set(steps)))]:
            gone = order[:step] if step > 0 else order[-step:]
            left = (
                adapter.deleted(reading, gone)
                if fill is None
                else adapter.replaced(reading, gone, fill)
            )
            if left is not None:
                key = _identity(left, len(changed))
                changed.setdefault(key, left)
                wanted.setdefault(key, []).append((index, step))
    for key, answer in answers(explainer, changed.items(), batch_size):
        for index, step in wanted[key]:
            results[index][step] = answer
    return results


def _measure(whole: Answer, found: dict[int, Answer], counts: list[list[int]]) -> Faithfulness:
    steps, shares = counts

    def drop(step: int) -> float:
        return whole.probability - found[step].probability if step in found else np.nan

    def log_odds(step: int) -> float:
        return found[step].log_odds - whole.log_odds if step in found else np.nan

    curve = [0.0, *(drop(step) for step in range(1, max(steps) + 1))]
    return Faithfulness(
        comprehensiveness=float(np.mean([drop(step) for step in steps])),
        sufficiency=float(np.mean([drop(-step) for step in steps])),
        aopc=float(np.mean(curve)),
        log_odds=float(np.mean([log_odds(step) for step in steps])),
        aopc_shares=float(defined_mean(np.array([drop(step) for step in shares]))),
    )
