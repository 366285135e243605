"""Baselines: scores that do not depend on the model."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError

BASELINES: Final = (
    "random",
    "position",
    "position_reversed",
    "frequency",
    "first_token",
    "last_token",
)
"""The baselines of the tokens of a text."""

IMAGE_BASELINES: Final = ("random", "position", "position_reversed", "centre")
"""The baselines of the patches of an image."""


def baseline_scores(
    baseline: str,
    tokens: Sequence[str],
    *,
    frequencies: Mapping[str, int],
    seed: Sequence[int] = (0,),
    special: Sequence[bool] = (),
) -> NDArray[np.float64]:
    """Score the tokens of a text, or the patches of an image, without the model.

    Args:
        baseline: "random": uniform random numbers. "position": later tokens score higher.
            "position_reversed": earlier tokens score higher; its rank correlation is that of
            "position" with the opposite sign. "frequency": rarer tokens score higher, and tokens
            that are not in the table score highest. "first_token" and "last_token": the first or
            the last token that is not special scores 1, and all others score 0. "centre": patches
            nearer to the centre of the image score higher, because photographs are often centred on
            their subject; special tokens score lowest.
        tokens: The n tokens. Patches are named by row and column, such as "0,0".
        frequencies: How often each token occurs.
        seed: The seed of the random numbers.
        special: Which tokens are special. By default none is.

    Returns:
        One score per token, of shape (n,).

    Raises:
        OptionError: If there is no such baseline.

    Example:
        >>> baseline_scores("frequency", ["the", "key", "to"], frequencies={"the": 7, "to": 3})
        array([-7.,  0., -3.])
        >>> baseline_scores("position", ["the", "key", "to"], frequencies={})
        array([0., 1., 2.])
        >>> baseline_scores("last_token", ["the", "key", "[SEP]"], frequencies={},
        ...                 special=[False, False, True])
        array([0., 1., 0.])
        >>> baseline_scores("centre", ["[CLS]", "0,0", "0,1", "0,2"], frequencies={})
        array([-2., -1., -0., -1.])
    """
    if baseline == "random":
        return np.random.default_rng(list(seed)).random(len(tokens))
    if baseline == "position":
        return np.arange(len(tokens), dtype=np.float64)
    if baseline == "position_reversed":
        return np.arange(len(tokens), 0, -1, dtype=np.float64)
    if baseline == "frequency":
        return 0.0 - np.array([frequencies.get(token, 0) for token in tokens], dtype=np.float64)
    if baseline in ("first_token", "last_token"):
        ordinary = [i for i in range(len(tokens)) if not (special and special[i])]
        scores = np.zeros(len(tokens))
        scores[ordinary[:1] if baseline == "first_token" else ordinary[-1:]] = 1.0
        return scores
    if baseline == "centre":
        return _nearness(tokens)
    valid = dict.fromkeys((*BASELINES, *IMAGE_BASELINES))
    raise OptionError(f"baseline is {baseline!r}; expected {', '.join(valid)}")


def every_baseline(
    names: Sequence[str],
    tokens: Sequence[str],
    *,
    frequencies: Mapping[str, int],
    seed: Sequence[int],
    special: Sequence[bool] = (),
) -> NDArray[np.float64]:
    """Return the scores of several baselines, of shape (B, n). The arguments are the same."""
    scores = [
        baseline_scores(name, tokens, frequencies=frequencies, seed=seed, special=special)
        for name in names
    ]
    return np.array(scores).reshape(-1, len(tokens))


def _nearness(tokens: Sequence[str]) -> NDArray[np.float64]:
    """Return minus the distance of each patch from the centre of the image, in patches."""
    parts = [token.split(",") for token in tokens]
    patches = [place for place, part in enumerate(parts) if len(part) == 2]
    places = np.array([[int(number) for number in parts[place]] for place in patches], dtype=float)
    away = np.hypot(*(places - places.max(axis=0) / 2).T)
    result = np.full(len(tokens), -away.max() - 1)
    result[patches] = -away
    return result
