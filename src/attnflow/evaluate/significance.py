"""How sure a mean over texts is, and whether a difference is more than chance.

Everything here takes one number a text, such as a correlation, and makes no assumption about how
these are distributed. Correlations are bounded, skewed, and full of ties; a normal distribution
describes them badly.
"""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError

__all__ = ["bootstrap_interval", "holm", "sign_flip_test"]

# Resamples are drawn in blocks of about this many numbers, so that memory does not grow with texts.
_BLOCK = 4_000_000

_NORMAL = NormalDist()


def bootstrap_interval(
    values: Any, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> NDArray[np.float64]:
    """Return confidence intervals of means over texts, by the bootstrap.

    Texts are drawn anew with replacement. The interval is the bias-corrected and accelerated one
    (BCa; Efron, "Better bootstrap confidence intervals", JASA 1987), which is right for skewed
    values sooner than plain percentiles are. All columns share the same draws.

    Args:
        values: One number a text, of shape (texts, ...). NaN stands for a text without a value.
        samples: How often texts are drawn anew.
        level: How often, over repeated experiments, the interval is to hold the true mean.
        seed: Where the random numbers start.

    Returns:
        The lower and upper ends, of shape (2, ...). NaN where fewer than two texts have a value.

    Raises:
        OptionError: If an argument is not valid.

    Example:
        >>> bootstrap_interval([0.4, 0.6, 0.5, 0.7, 0.8, 0.3]).round(2)
        array([0.4 , 0.68])
    """
    numbers = _columns(values)
    _check_count(samples, "samples", 1)
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise OptionError(f"level is {level!r}; expected a number between 0 and 1")
    rng = _generator(seed)
    known = ~np.isnan(numbers)
    counts = known.sum(axis=0)
    filled = np.where(known, numbers, 0.0)
    texts, columns = numbers.shape
    means = np.full((samples, columns), np.nan)
    for first, last in _blocks(samples, texts):
        drawn = rng.integers(texts, size=(last - first, texts))
        drawn += np.arange(last - first)[:, None] * texts
        weights = np.bincount(drawn.ravel(), minlength=(last - first) * texts)
        weights = weights.reshape(-1, texts).astype(np.float64)
        total = weights @ known
        np.divide(weights @ filled, total, out=means[first:last], where=total > 0)
    result = np.full((2, columns), np.nan)
    for column in np.flatnonzero(counts >= 2):
        own = numbers[known[:, column], column]
        drawn_means = means[:, column]
        drawn_means = np.sort(drawn_means[~np.isnan(drawn_means)])
        if len(drawn_means):
            result[:, column] = _bca(own, drawn_means, level)
    return result.reshape(2, *np.shape(values)[1:])


def _bca(values: NDArray[np.float64], means: NDArray[np.float64], level: float) -> list[float]:
    """Return the interval of the mean of values, given sorted means of resamples."""
    centre = float(values.mean())
    away = values - centre
    spread = float(away @ away)
    # Equal values differ from their mean by rounding at most.
    if spread <= 1e-24 * max(1.0, centre * centre) * len(values):
        return [centre, centre]
    below = np.searchsorted(means, centre, "left") + np.searchsorted(means, centre, "right")
    share = np.clip(below / (2 * len(means)), 0.5 / len(means), 1 - 0.5 / len(means))
    bias = _NORMAL.inv_cdf(float(share))
    acceleration = float((away**3).sum()) / (6 * spread**1.5)
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shifted = bias + _NORMAL.inv_cdf(tail)
        place = _NORMAL.cdf(bias + shifted / (1 - acceleration * shifted))
        ends.append(float(np.quantile(means, place)))
    return ends


def sign_flip_test(
    differences: Any, *, permutations: int = 9999, seed: int = 0
) -> NDArray[np.float64]:
    """Return p-values of paired differences: could their mean be 0?

    If two methods are equally good, a text's difference is as likely to have the other sign. The
    test flips signs at random and counts how often the mean gets as far from 0 as it is (Fisher's
    randomisation test). It is preferred here to Wilcoxon's signed-rank test because it is about
    the mean, which is what the tables show, because ties and zeros need no correction, and because
    few texts are no trouble: if there are no more than `permutations` ways to flip the signs, all
    of them are tried and the p-value is exact. Otherwise it is (1 + hits) / (1 + permutations),
    which is never too small (Phipson and Smyth, "Permutation p-values should never be zero", 2010).

    Args:
        differences: One difference a text, of shape (texts, ...). NaN leaves a text out.
        permutations: How many times signs are flipped.
        seed: Where the random numbers start.

    Returns:
        Two-sided p-values, of shape (...). NaN where there is no difference to test.

    Raises:
        OptionError: If an argument is not valid.

    Example:
        >>> float(sign_flip_test([0.1, 0.2, 0.15, 0.3, 0.05]))  # all of 2**5 ways: 2 in 32
        0.0625
    """
    numbers = _columns(differences, "differences")
    _check_count(permutations, "permutations", 1)
    rng = _generator(seed)
    known = ~np.isnan(numbers)
    filled = np.where(known, numbers, 0.0)
    texts = len(numbers)
    # Equal sums may differ by rounding; such a tie is a hit.
    least = np.abs(filled.sum(axis=0)) - 1e-12 * np.abs(filled).sum(axis=0)
    hits = np.zeros(numbers.shape[1])
    exact = texts < 63 and 2**texts <= permutations + 1
    ways = 2**texts if exact else permutations
    for first, last in _blocks(ways, texts):
        if exact:
            signs = (np.arange(first, last)[:, None] >> np.arange(texts) & 1) == 1
        else:
            signs = rng.random((last - first, texts)) < 0.5
        flipped = np.where(signs, 1.0, -1.0) @ filled
        hits += (np.abs(flipped) >= least).sum(axis=0)
    p = hits / ways if exact else (1 + hits) / (1 + ways)
    p = np.where(known.any(axis=0), p, np.nan)
    return p.reshape(np.shape(differences)[1:])


def holm(p_values: Any) -> NDArray[np.float64]:
    """Return p-values corrected for how many tests there are, by Holm's method.

    If those up to 0.05 are called significant, the chance that any of them is a mistake is at most
    0.05, whatever the tests have to do with each other (Holm, "A simple sequentially rejective
    multiple test procedure", Scandinavian Journal of Statistics 1979).

    Args:
        p_values: The p-values of one family of tests, of any shape. NaN stands for a test that
            could not be made, and does not count.

    Returns:
        The corrected p-values, of the same shape, at most 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=np.float64)
    flat = p.ravel()
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    result = np.full(flat.shape, np.nan)
    result[order] = np.minimum(np.maximum.accumulate(factors * flat[order]), 1.0)
    return result.reshape(p.shape)


def _columns(values: Any, name: str = "values") -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim == 0 or len(numbers) == 0:
        raise OptionError(f"{name} has shape {numbers.shape}; expected one number a text")
    if np.isinf(numbers).any():
        raise OptionError(f"{name} has an infinite number; expected finite ones, or NaN for none")
    return numbers.reshape(len(numbers), -1)


def _check_count(value: Any, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise OptionError(f"{name} is {value!r}; expected a whole number of {least} or more")


def _generator(seed: Any) -> np.random.Generator:
    _check_count(seed, "seed", 0)
    return np.random.default_rng(seed)


def _blocks(count: int, texts: int) -> Iterator[tuple[int, int]]:
    size = max(1, _BLOCK // texts)
    for first in range(0, count, size):
        yield first, min(count, first + size)
