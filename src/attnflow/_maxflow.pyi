"""Exact maximum flow in layered networks with integer capacities (C++, in src/maxflow)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

UNLIMITED: int
"""The capacity of an edge that limits nothing."""

def round_rows(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows of weights, C-contiguous of shape (R, n), as integers of the same shape.

    Each row is rounded by largest remainder, to a sum of exactly 2**50. See
    `attnflow.graph.to_units`. Runs without the GIL.
    """

def flow(
    capacities: Sequence[NDArray[np.int64]],
    layers: Sequence[int],
    positions: Sequence[int],
    tokens: Sequence[int],
    num_threads: int,
    check: Callable[[], None] | None = None,
) -> NDArray[np.int64]:
    """Maximum flows from (layer, position) to token, of shape (layers, positions, tokens).

    ``capacities[l - 1]`` is the (n, n) matrix of layer l, C-contiguous. Layers count from 1. Runs
    without the GIL. About twenty times a second the calling thread handles signals and calls
    `check`; an exception that either raises, such as KeyboardInterrupt, ends the work.
    """

def min_cut(
    capacities: Sequence[NDArray[np.int64]],
    position: int,
    token: int,
    check: Callable[[], None] | None = None,
) -> tuple[int, list[tuple[int, int]]]:
    """The value of a minimum cut between (len(capacities), position) and (0, token), and its nodes.

    The nodes (layer, position) are those that the source can still reach when the flow is at its
    maximum: the smallest source side of a minimum cut. `check` is called as in `flow`.
    """
