"""Confidence intervals of means over texts, and tests of differences.

The input is one number per text, such as a correlation. Nothing is assumed about the distribution
of these numbers: correlations are bounded, skewed and full of ties, so a normal distribution
describes them badly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer, number
from attnflow.errors import OptionError

# Resamples are drawn in blocks of about this many numbers, to bound the memory.
_BLOCK = 4_000_000


@dataclass(frozen=True)
class Means:
    """Means over texts. Each array has the shape of the numbers of one text.

    Attributes:
        mean: The means. NaN where no text has a number.
        std: The standard deviations over texts. NaN where fewer than two texts have a number.
        low: The lower ends of the confidence intervals.
        high: The upper ends.
        count: How many texts have a number.
        texts: How many texts there are.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    count: NDArray[np.int64]
    texts: int

    @classmethod
    def of(cls, values: NDArray[np.float64], options: Mapping[str, Any]) -> Means:
        """Compute the means of an array.

        Args:
            values: One number per text, of shape (texts, ...). NaN stands for a missing number.
            options: "samples", "level" and "seed" of `bootstrap_interval`.

        Returns:
            The means.

        Example:
            >>> options = {"samples": 9, "level": 0.9, "seed": 0}
            >>> found = Means.of(np.array([0.5, 1.0, np.nan]), options)
            >>> float(found.mean), int(found.count)
            (0.75, 2)
        """
        known = ~np.isnan(values)
        count = known.sum(axis=0)
        mean = defined_mean(values)
        squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
        low, high = bootstrap_interval(
            values, samples=options["samples"], level=options["level"], seed=options["seed"]
        )
        std = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
        return cls(mean, std, low, high, count, len(values))

    def at(self, place: tuple[int, ...]) -> dict[str, Any]:
        """Return the statistics of one number.

        Args:
            place: The index of the number among those of a text.

        Returns:
            "mean", "std", "ci" (the ends of the confidence interval), "count" (texts that have the
            number) and "undefined" (texts that do not).
        """
        count = int(self.count[place])
        return {
            "mean": float(self.mean[place]),
            "std": float(self.std[place]),
            "ci": [float(self.low[place]), float(self.high[place])],
            "count": count,
            "undefined": self.texts - count,
        }


def defined_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over the first axis of the numbers that are not NaN; NaN if all are."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: NDArray[np.float64] = total / np.where(count, count, np.nan)
    return mean


@dataclass(frozen=True)
class Differences:
    """Paired differences, tested by `sign_flip_test`.

    Attributes:
        means: The means of the differences.
        p: The p-values, of the shape of the differences of one text.
    """

    means: Means
    p: NDArray[np.float64]

    @classmethod
    def of(cls, differences: NDArray[np.float64], options: Mapping[str, Any]) -> Differences:
        """Test differences.

        Args:
            differences: One difference per text, of shape (texts, ...). NaN leaves a text out.
            options: "samples", "permutations", "level" and "seed".
        """
        p = sign_flip_test(differences, permutations=options["permutations"], seed=options["seed"])
        return cls(Means.of(differences, options), p)

    def at(self, place: tuple[int, ...]) -> dict[str, Any]:
        """Return the "difference", its "ci", "count" and "p" at an index."""
        found = self.means.at(place)
        return {
            "difference": found["mean"],
            "ci": found["ci"],
            "count": found["count"],
            "p": float(self.p[place]),
        }


def bootstrap_interval(
    values: Any, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> NDArray[np.float64]:
    """Return confidence intervals of means over texts, by the bootstrap.

    Texts are resampled with replacement. The interval is the bias-corrected and accelerated one
    (BCa; Efron, "Better bootstrap confidence intervals", JASA 1987), which needs fewer texts than
    plain percentiles to be accurate for skewed values. All columns share the same resamples.

    Args:
        values: One number per text, of shape (texts, ...). NaN stands for a text without a value.
        samples: The number of resamples.
        level: The confidence level, between 0 and 1.
        seed: The seed of the random numbers.

    Returns:
        The lower and upper ends, of shape (2, ...). NaN where fewer than two texts have a value.

    Raises:
        OptionError: If an argument is not valid.

    Example:
        >>> bootstrap_interval([0.4, 0.6, 0.5, 0.7, 0.8, 0.3]).round(2)
        array([0.4 , 0.68])
    """
    numbers = _columns(values)
    samples = integer(samples, "samples", least=1)
    level = number(level, "level", above=0, below=1)
    rng = np.random.default_rng(integer(seed, "seed", least=0))
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
    from statistics import NormalDist  # slow to import

    normal = NormalDist()
    centre = float(values.mean())
    away = values - centre
    spread = float(away @ away)
    # Equal values differ from their mean by rounding at most.
    if spread <= 1e-24 * max(1.0, centre * centre) * len(values):
        return [centre, centre]
    below = np.searchsorted(means, centre, "left") + np.searchsorted(means, centre, "right")
    share = np.clip(below / (2 * len(means)), 0.5 / len(means), 1 - 0.5 / len(means))
    bias = normal.inv_cdf(float(share))
    acceleration = float((away**3).sum()) / (6 * spread**1.5)
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shifted = bias + normal.inv_cdf(tail)
        place = normal.cdf(bias + shifted / (1 - acceleration * shifted))
        ends.append(float(np.quantile(means, place)))
    return ends


def sign_flip_test(
    differences: Any, *, permutations: int = 9999, seed: int = 0
) -> NDArray[np.float64]:
    """Return p-values for the null hypothesis that paired differences are symmetric around 0.

    If two methods are equally good, a text's difference is as likely to have the opposite sign. The
    test flips signs at random and counts how often the mean is at least as far from 0 as observed
    (Fisher's randomisation test). Unlike Wilcoxon's signed-rank test it is a test of the mean,
    which is what the tables show, and it needs no correction for ties and zeros. It works for few
    texts: if there are no more than `permutations` ways to flip the signs, all of them are tried
    and the p-value is exact. Otherwise it is (1 + hits) / (1 + permutations), which is never too
    small (Phipson and Smyth, "Permutation p-values should never be zero", 2010).

    Args:
        differences: One difference per text, of shape (texts, ...). NaN leaves a text out.
        permutations: The number of times that signs are flipped.
        seed: The seed of the random numbers.

    Returns:
        Two-sided p-values, of shape (...). NaN where there is no difference to test.

    Raises:
        OptionError: If an argument is not valid.

    Example:
        >>> float(sign_flip_test([0.1, 0.2, 0.15, 0.3, 0.05]))  # exact: 2 of the 2**5 ways
        0.0625
    """
    numbers = _columns(differences, "differences")
    permutations = integer(permutations, "permutations", least=1)
    rng = np.random.default_rng(integer(seed, "seed", least=0))
    known = ~np.isnan(numbers)
    filled = np.where(known, numbers, 0.0)
    texts = len(numbers)
    # Equal sums may differ by rounding. Such a tie counts as a hit.
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
    """Return p-values corrected for multiple testing, by Holm's method.

    If those up to 0.05 are called significant, the probability of any false positive is at most
    0.05, also if the tests depend on each other (Holm, "A simple sequentially rejective multiple
    test procedure", Scandinavian Journal of Statistics 1979).

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
        raise OptionError(f"{name} has shape {numbers.shape}; expected one number per text")
    if np.isinf(numbers).any():
        raise OptionError(
            f"{name} has an infinite number; expected finite numbers, or NaN for none"
        )
    return numbers.reshape(len(numbers), -1)


def _blocks(count: int, texts: int) -> Iterator[tuple[int, int]]:
    size = max(1, _BLOCK // texts)
    for first in range(0, count, size):
        yield first, min(count, first + size)
