"""Exact maximum flow in layered networks with integer capacities (C++, in src/maxflow)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

UNLIMITED: int
"""The capacity of an edge that limits nothing."""

def flow(
    capacities: Sequence[NDArray[np.int64]],
    layers: Sequence[int],
    positions: Sequence[int],
    tokens: Sequence[int],
    num_threads: int,
) -> NDArray[np.int64]:
    """Maximum flows from (layer, position) to token, of shape (layers, positions, tokens).

    ``capacities[l - 1]`` is the (n, n) matrix of layer l, C-contiguous. Layers count from 1. Works
    without holding the GIL and raises KeyboardInterrupt soon after Ctrl-C.
    """

def min_cut(
    capacities: Sequence[NDArray[np.int64]], position: int, token: int
) -> tuple[int, list[tuple[int, int]]]:
    """The value of a minimum cut between (len(capacities), position) and (0, token).

    With it come the nodes (layer, position) that the source can still reach when the flow is as
    large as it can be: the smallest source side of a minimum cut.
    """
