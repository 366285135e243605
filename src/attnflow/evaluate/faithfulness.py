"""Faithfulness: what becomes of the answer when the tokens that score high are really removed.

A blank-out replaces one token at a time. Here many go together, in the order of their scores, and
an explanation is the more faithful the sooner the answer goes with them. Special tokens and masks
are never removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor
from numbers import Real
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError
from attnflow.importance.answer import Answer, answers, ask, check_batch_size, read
from attnflow.models.adapter import Reading

__all__ = ["FRACTIONS", "Faithfulness", "faithfulness"]

FRACTIONS: Final = (0.1, 0.2, 0.3, 0.5)

# So many changed texts are looked through for equal ones, which run once.
WINDOW: Final = 4096


class Faithfulness(NamedTuple):
    """How faithful the scores of a text's tokens are to the model.

    Let p be the probability of the class or token asked about; p(-k) the same when the k tokens
    that score highest are removed, and p(+k) when all others are. For each of the fractions, k is
    that share of the tokens that can be removed, rounded to the nearest whole number, but 1 at
    least.

    Attributes:
        comprehensiveness: The mean over the fractions of p - p(-k): what the model loses with the
            tokens (DeYoung et al., "ERASER", ACL 2020). The higher the better.
        sufficiency: The mean over the fractions of p - p(+k): what it lacks if it has nothing else
            (DeYoung et al. 2020). The lower the better.
        aopc: The area over the perturbation curve, most relevant first: tokens are removed one by
            one until the largest fraction is gone, in K steps, and this is the mean of p - p(-k)
            over k = 0, ..., K (Samek et al., "Evaluating the Visualization of What a Deep Neural
            Network Has Learned", IEEE TNNLS 2017). The higher the better.
        log_odds: The mean over the fractions of log o(-k) - log o, where o = p / (1 - p) are the
            odds (Shrikumar et al., "DeepLIFT", ICML 2017; Chen et al., "L-Shapley and C-Shapley",
            ICLR 2019). The lower the better, and unlike the others it does not level off where p is
            nearly 1.
    """

    comprehensiveness: float
    sufficiency: float
    aopc: float
    log_odds: float


def faithfulness(
    explainer: Any,
    inputs: Any,
    scores: Any,
    *,
    target: Any = None,
    position: int | str = "auto",
    fractions: Sequence[float] = FRACTIONS,
    removal: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
) -> Any:
    """Remove tokens in the order of their scores, and measure what becomes of the model's answer.

    Tokens that score the same are removed from left to right. What can be removed are all tokens
    but special ones, masks, and those that come after the position of a causal model. A text of
    which m tokens can be removed needs about ``m * max(fractions) + len(fractions)`` forward
    passes.

    Args:
        explainer: An `attnflow.Explainer` whose model classifies or is a language model.
        inputs: What `Explainer.explain` takes: a text, or a list of texts; for an encoder-decoder
            sources, or tuples of a source and the target so far; for a vision model images.
        scores: One score for each token that the model reads, special tokens included, as
            `Explanation.scores` has them with neither ``words`` nor ``special_tokens=False``. Of a
            causal model, or for a target so far, those up to the position are enough. For a list of
            texts, a list of them, one for each; the same text may come several times, each time
            with other scores, and what they share runs once.
        target: The class, by name or index, or the token. For a list of texts it may be a list, one
            for each. None is what the model predicts for the whole text.
        position: Where a language model is asked, as in `Explainer.explain`. If its token is
            removed, the model is asked at the last one left before it.
        fractions: The shares of tokens to remove, more than 0 and at most 1.
        removal: "delete" takes tokens out of the text, so that what follows moves up. Otherwise
            what they are replaced by: "unk", "mask", a token of the vocabulary, or its id. "auto"
            is "delete"; for a vision model, whose patches cannot be deleted, it is the mean colour.
        batch_size: How many texts run together at most; long ones are fewer.
        truncate: Cut a text that is longer than the model takes, instead of an error.

    Returns:
        A `Faithfulness`, or a list of them, one for each text, in their order. It is NaN where no
        token can be removed, or nothing would be left for the model to read.

    Raises:
        OptionError: If an option is not valid for this model, or there is not one finite score for
            each token.
        TextError: If a text is empty, not text, or longer than the model takes.
        ModelError: If the model predicts nothing that tokens could matter to.

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
        ('comprehensiveness', 'sufficiency', 'aopc', 'log_odds')
    """
    check_batch_size(batch_size)
    shares = _checked_fractions(fractions)
    readings, many = read(explainer, inputs, target=target, position=position, truncate=truncate)
    fill = check_removal(explainer, removal)
    orders = _orders(explainer, readings, scores if many else [scores], many)
    whole = _ask_each(explainer, readings, batch_size)
    results = []
    # Equal images are not looked for, so that nothing is gained by holding many.
    most = WINDOW if explainer.adapter.can_delete else 1
    for start, end in _windows(orders, shares, most):
        window = range(start, end)
        asked = [readings[i]._replace(target=whole[i].target) for i in window]
        found = _run(explainer, asked, orders[start:end], shares, fill, batch_size)
        results += [
            _measure(whole[i], answer, len(orders[i]), shares)
            for i, answer in zip(window, found, strict=True)
        ]
    return results if many else results[0]


# ---- Checks --------------------------------------------------------------------------------------


def _checked_fractions(fractions: Any) -> tuple[float, ...]:
    given = tuple(fractions) if np.iterable(fractions) and not isinstance(fractions, str) else ()
    numbers = [
        isinstance(one, Real) and not isinstance(one, bool) and 0 < float(one) <= 1 for one in given
    ]
    if not given or not all(numbers):
        raise OptionError(
            f"fractions is {fractions!r}; expected numbers of more than 0 and at most 1, such as "
            f"{FRACTIONS}"
        )
    return tuple(float(one) for one in given)


def check_removal(explainer: Any, removal: Any) -> int | None:
    """Return the id that replaces a token; None if it is deleted.

    Args:
        explainer: The model.
        removal: As in `faithfulness`.

    Raises:
        OptionError: If tokens of this model cannot be removed so; the message says how they can be.
    """
    image = not explainer.adapter.can_delete
    if image and isinstance(removal, str) and removal == "delete":
        raise OptionError(
            "removal is 'delete', but the model takes images, whose patches cannot be taken out; "
            "expected 'auto', which paints them in the mean colour"
        )
    if not image and isinstance(removal, str) and removal in ("auto", "delete"):
        return None
    fill: int = explainer.adapter.fill(removal, "removal")
    return fill


def _orders(explainer: Any, readings: list[Reading], scores: Any, many: bool) -> list[list[int]]:
    """Return the tokens of each reading that can be removed, those that score highest first."""
    if not hasattr(scores, "__len__") or len(scores) != len(readings):
        given = len(scores) if hasattr(scores, "__len__") else type(scores).__name__
        raise OptionError(
            f"scores is {given}, and there are {len(readings)} texts; expected a list with the "
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
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} is {given!r}; expected one number for each token") from error
    count = len(reading.tokens)
    # Those that the answer cannot depend on come last, and need no score.
    needed = max(
        (token + 1 for token, place in enumerate(reading.places) if place is not None), default=0
    )
    if values.ndim != 1 or not needed <= len(values) <= count:
        tokens = str(count) if needed == count else f"{needed} to {count}"
        raise OptionError(
            f"{name} has shape {values.shape}, and the text has {count} tokens; expected {tokens} "
            "numbers, one for each token, special tokens included and words not put together"
        )
    if not np.isfinite(values).all():
        raise OptionError(f"{name} holds NaN or infinity; expected finite numbers")
    return values


# ---- Removing ------------------------------------------------------------------------------------


def _steps(count: int, fractions: tuple[float, ...]) -> list[int]:
    """Return how many of the tokens each fraction is.

    Rounded to the nearest, so that an error in the last digit of a product makes no difference.

    Example:
        >>> _steps(10, (0.05, 0.25, 0.3, 1.0))
        [1, 3, 3, 10]
    """
    return [max(1, floor(fraction * count + 0.5 + 1e-9)) for fraction in fractions]


def _windows(
    orders: list[list[int]], fractions: tuple[float, ...], most: int
) -> Iterator[tuple[int, int]]:
    """Yield stretches of texts whose changed versions are few enough to be held together."""
    start, held = 0, 0
    for index, order in enumerate(orders):
        steps = _steps(len(order), fractions)
        held += max(steps) + len(steps)
        if held >= most:
            yield start, index + 1
            start, held = index + 1, 0
    if start < len(orders):
        yield start, len(orders)


def _ask_each(explainer: Any, readings: list[Reading], batch_size: int) -> list[Answer]:
    """Return the answers to the whole texts, each text run once however often it comes."""
    first: dict[Any, int] = {}
    places = [
        first.setdefault(_identity(reading, index), len(first))
        for index, reading in enumerate(readings)
    ]
    unique: dict[int, Reading] = {}
    for place, reading in zip(places, readings, strict=True):
        unique.setdefault(place, reading)
    found = ask(explainer, [unique[place] for place in range(len(unique))], batch_size)
    return [found[place] for place in places]


def _identity(reading: Reading, index: int) -> Any:
    """Return what equal readings of texts have in common. An image is like no other."""
    if not all(isinstance(values, list) for values in reading.inputs.values()):
        return index
    inputs = tuple((name, tuple(values)) for name, values in reading.inputs.items())
    return inputs, reading.position, reading.target


def _run(
    explainer: Any,
    readings: list[Reading],
    orders: list[list[int]],
    fractions: tuple[float, ...],
    fill: int | None,
    batch_size: int,
) -> list[dict[int, Answer | None]]:
    """Return the answers when k tokens are removed, by k, or by -k when only they are left.

    None where nothing is left to read.
    """
    adapter = explainer.adapter
    results: list[dict[int, Answer | None]] = [{} for _ in readings]
    wanted: dict[Any, list[tuple[int, int]]] = {}
    changed: dict[Any, Reading] = {}
    for index, (reading, order) in enumerate(zip(readings, orders, strict=True)):
        if not order:
            continue
        steps = _steps(len(order), fractions)
        for step in [*range(1, max(steps) + 1), *(-k for k in sorted(set(steps)))]:
            gone = order[:step] if step > 0 else order[-step:]
            left = (
                adapter.deleted(reading, gone)
                if fill is None
                else adapter.replaced(reading, gone, fill)
            )
            if left is None:
                results[index][step] = None
                continue
            key = _identity(left, len(changed))
            changed.setdefault(key, left)
            wanted.setdefault(key, []).append((index, step))
    for key, answer in answers(explainer, changed.items(), batch_size):
        for index, step in wanted[key]:
            results[index][step] = answer
    return results


def _measure(
    whole: Answer, found: dict[int, Answer | None], count: int, fractions: tuple[float, ...]
) -> Faithfulness:
    if count == 0:
        return Faithfulness(np.nan, np.nan, np.nan, np.nan)
    steps = _steps(count, fractions)

    def drop(step: int) -> float:
        answer = found[step]
        return np.nan if answer is None else whole.probability - answer.probability

    def log_odds(step: int) -> float:
        answer = found[step]
        return np.nan if answer is None else answer.log_odds - whole.log_odds

    curve = [0.0, *(drop(step) for step in range(1, max(steps) + 1))]
    return Faithfulness(
        comprehensiveness=float(np.mean([drop(step) for step in steps])),
        sufficiency=float(np.mean([drop(-step) for step in steps])),
        aopc=float(np.mean(curve)),
        log_odds=float(np.mean([log_odds(step) for step in steps])),
    )
