"""Attention that is never held as a whole: what can be read off it in one pass down the layers.

A graph of n tokens has n^2 weights a layer. Raw attention and rollout of a few positions, the
tokens that attract most attention, and which offsets a layer attends over need only to see each
weight once. What holds the queries and keys of a forward pass computes the weights again, some rows
at a time, and gives the results as arrays.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Swept(NamedTuple):
    """What a pass over L layers of n positions gave, for P weighted means of positions.

    Attributes:
        raw: The mean of the rows of attention in each layer, of shape (L, P, n).
        rollout: The rollout from each layer down to the input, of shape (L, P, n).
        received: How much attention each position got from others, over all layers, of shape
            (P, n). Only the first positions count, as many as `Streamed.sweep` was told.
        mask: Which offsets each layer attends over, of shape (L, 2 n - 1), as
            `attnflow.scoring.mask_of` gives it.
        sunk: With a learned sink, which layers attend to it, of shape (L,), else None.
    """

    raw: NDArray[np.float64]
    rollout: NDArray[np.float64]
    received: NDArray[np.float64]
    mask: NDArray[np.bool_]
    sunk: NDArray[np.bool_] | None


class Streamed(Protocol):
    """A text's attention, computed again for every pass.

    Attributes:
        layers: The number of layers, L.
        tokens: The number of positions, n; a learned sink is one.
        residual: The residual share.
        causal: Whether no position attends to a later one, in any layer.
        sink: Whether position 0 is a learned sink.
    """

    @property
    def layers(self) -> int: ...  # noqa: D102
    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def residual(self) -> float: ...  # noqa: D102
    @property
    def causal(self) -> bool: ...  # noqa: D102
    @property
    def sink(self) -> bool: ...  # noqa: D102

    def sweep(self, weights: NDArray[np.float64], seen: NDArray[np.int64]) -> Swept:
        """Go once through the layers, from the top down.

        Args:
            weights: The weight of every position in each of P means, of shape (P, n).
            seen: How many positions count in `Swept.received` for each, of shape (P,).

        Raises:
            AttentionError: If a row is not attention.
        """
