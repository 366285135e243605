"""Scores that know nothing of the model: what a method has to beat."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError

__all__ = ["BASELINES", "baseline_scores"]

BASELINES: Final = ("random", "position", "position_reversed", "frequency")


def baseline_scores(
    baseline: str,
    tokens: Sequence[str],
    *,
    frequencies: Mapping[str, int],
    seed: Sequence[int] = (0,),
) -> NDArray[np.float64]:
    """Score the tokens of a text without looking at a model.

    Args:
        baseline: "random": uniform random numbers. "position": later tokens score higher.
            "position_reversed": earlier tokens score higher, so that its rank correlation with
            anything is that of "position" with the other sign. "frequency": rarer tokens score
            higher, and those that are not in the table highest.
        tokens: The n tokens.
        frequencies: How often each token occurs.
        seed: Where the random numbers start.

    Returns:
        One score a token, of shape (n,).

    Raises:
        OptionError: If there is no such baseline.

    Example:
        >>> baseline_scores("frequency", ["the", "key", "to"], frequencies={"the": 7, "to": 3})
        array([-7.,  0., -3.])
        >>> baseline_scores("position", ["the", "key", "to"], frequencies={})
        array([0., 1., 2.])
    """
    if baseline == "random":
        return np.random.default_rng(list(seed)).random(len(tokens))
    if baseline == "position":
        return np.arange(len(tokens), dtype=np.float64)
    if baseline == "position_reversed":
        return np.arange(len(tokens), 0, -1, dtype=np.float64)
    if baseline == "frequency":
        return 0.0 - np.array([frequencies.get(token, 0) for token in tokens], dtype=np.float64)
    raise OptionError(f"baseline is {baseline!r}; expected {', '.join(BASELINES)}")
