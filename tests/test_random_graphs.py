"""Ten thousand random graphs of the kinds that hurt, against OR-tools on the same integers."""

import numpy as np
import pytest
from ortools.graph.python import max_flow

import attnflow
from tests.support import scaled

GRAPHS_PER_FAMILY = scaled(60, 1000)


def one_hot(rng, shape):
    return np.eye(shape[-1])[rng.integers(0, shape[-1], shape[:2])]


def uniform(rng, shape):
    return np.ones(shape)


def soft(rng, shape):
    return np.exp(0.3 * rng.standard_normal(shape))


def peaked(rng, shape):
    return np.exp(10 * rng.standard_normal(shape))


def causal(rng, shape):
    weights = np.tril(np.exp(2 * rng.standard_normal(shape)))
    weights[:, :, 0] *= 20
    return weights


def banded(rng, shape):
    place = np.arange(shape[-1])
    return rng.random(shape) * (abs(place[:, None] - place) <= 2) + np.eye(shape[-1])


def blocks(rng, shape):
    block = np.arange(shape[-1]) * 3 // shape[-1]
    return rng.random(shape) * (block[:, None] == block) + 1e-6 * np.eye(shape[-1])


def sink(rng, shape):
    weights = rng.random(shape)
    weights[:, :, -1] += shape[-1]
    return weights


def ties(rng, shape):
    # Each row shares itself out equally among 1, 2, 4 ... tokens: capacities that are equal to the
    # last bit, and many cuts of the same size.
    rank = rng.random(shape).argsort(axis=-1)
    shared_by = 2 ** rng.integers(0, np.log2(shape[-1]) + 1, (*shape[:2], 1))
    return rank < shared_by


def smallest(rng, shape):
    weights = np.where(rng.random(shape) < 0.5, 5e-324, 1.0)
    weights[:, :, rng.integers(shape[-1])] = 1.0
    return weights


def sparse(rng, shape):
    return rng.random(shape) * (rng.random(shape) < 0.2) + 1e-3 * np.eye(shape[-1])


def mixed(rng, shape):
    return np.concatenate(
        [FAMILIES[rng.integers(len(FAMILIES) - 1)](rng, (1, *shape[1:])) for _ in range(shape[0])]
    )


FAMILIES = [
    one_hot,
    uniform,
    soft,
    peaked,
    causal,
    banded,
    blocks,
    sink,
    ties,
    smallest,
    sparse,
    mixed,
]


def size(rng):
    """Layers and tokens: mostly small, so that there can be many, some as large as they get."""
    largest_tokens, largest_layers = [(8, 6), (8, 30), (40, 6), (40, 30)][
        rng.choice(4, p=[0.6, 0.15, 0.2, 0.05])
    ]
    return int(rng.integers(1, largest_layers + 1)), int(rng.integers(1, largest_tokens + 1))


def flows_of_ortools(units, pairs):
    layers, tokens, _ = units.shape
    level, k, m = np.nonzero(units)
    solver = max_flow.SimpleMaxFlow()
    solver.add_arcs_with_capacity((level + 1) * tokens + k, level * tokens + m, units[level, k, m])
    flows = []
    for source, sink in pairs:
        if max(layers * tokens + source, sink) >= solver.num_nodes():
            flows.append(0)  # a node without edges is unknown to the solver
            continue
        assert solver.solve(layers * tokens + source, sink) == solver.OPTIMAL
        flows.append(solver.optimal_flow())
    return flows


@pytest.mark.scaled
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_flow_equals_that_of_ortools_bit_for_bit(family):
    rng = np.random.default_rng(FAMILIES.index(family))
    for _ in range(GRAPHS_PER_FAMILY):
        layers, tokens = size(rng)
        weights = family(rng, (layers, tokens, tokens))
        residual = rng.choice([0.5, 0.5, 0.0, rng.random()])
        graph = attnflow.AttentionGraph(
            weights / weights.sum(axis=-1, keepdims=True), residual=residual
        )
        flow = attnflow.attention_flow(graph, layers=[layers], num_threads=1)[0] * 2.0**50
        pairs = {(0, 0), (tokens - 1, 0)} | {tuple(rng.integers(0, tokens, 2)) for _ in range(2)}
        for (source, token), expected in zip(
            pairs, flows_of_ortools(graph.units, pairs), strict=True
        ):
            assert flow[source, token] == expected, (layers, tokens, residual, source, token)


@pytest.mark.exhaustive
def test_there_are_ten_thousand_graphs():
    assert len(FAMILIES) * GRAPHS_PER_FAMILY >= 10_000
