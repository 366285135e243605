"""The solver benchmark: attnflow against general maximum-flow solvers, on the same graphs."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attnflow
from attnflow import OptionError
from benchmarks import inputs
from benchmarks.libraries import SCALE, SOLVERS, Solver
from benchmarks.measure import added_memory
from benchmarks.processes import Answers, ask, in_fresh_process
from benchmarks.runs import Job, at_least
from benchmarks.tables import Record

HELP = "compare attnflow with networkx, scipy, igraph, OR-tools and PyMaxflow"

TOKENS = (16, 32, 64, 128, 256, 512)
DECODER_TOKENS = (64, 128)
QUICK_TOKENS = (16, 32)

_REPEATS = 3
_SHORT = 0.02  # seconds; a shorter call is repeated within one timing
# Up to this many tokens, all of them are solved for all positions; above, this many.
_ALL_TOKENS = 128
_SAMPLED_TOKENS = 16


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{value:g} given; expected seconds above 0")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to the command line."""
    add = parser.add_argument
    add(
        "--kinds",
        nargs="+",
        choices=inputs.KINDS,
        help="kinds of attention (default: all; decoder only if it is installed)",
    )
    add("--tokens", nargs="+", type=at_least(2), help="text lengths (default: 16 to 512)")
    add("--budget", type=_seconds, help="seconds for each solver and graph (default: 5)")
    add("--seed", type=at_least(0), default=0, help="seed of the random numbers (default: 0)")
    add("--threads", type=at_least(2), default=2, help="compared with one thread (default: 2)")


def options_of(args: argparse.Namespace) -> Record:
    """Return the options of a run from the command line.

    Raises:
        OptionError: If a size is too large for a kind.
        MissingExtraError: If something is not installed.
    """
    default = [kind for kind in inputs.KINDS if kind != "decoder"]
    if not args.quick and inputs.installed("decoder"):
        default.append("decoder")
    graphs = {}
    for kind in args.kinds or default:
        inputs.check_installed(kind)
        sizes = DECODER_TOKENS if kind == "decoder" else TOKENS
        tokens = sorted(set(args.tokens or (QUICK_TOKENS if args.quick else sizes)))
        if tokens[-1] > inputs.MAX_TOKENS.get(kind, math.inf):
            raise OptionError(
                f"--tokens: {tokens[-1]} given; kind {kind!r} has at most "
                f"{inputs.MAX_TOKENS[kind]} tokens"
            )
        layers = inputs.LAYERS[kind]
        if args.quick:
            layers = (layers[0], layers[-1])
        graphs[kind] = {"tokens": tokens, "layers": list(layers)}
    return {
        "graphs": graphs,
        "budget": args.budget or (0.25 if args.quick else 5.0),
        "seed": args.seed,
        "threads": args.threads,
        "pairs": 3 if args.quick else 200,
        "passes": 1 if args.quick else _REPEATS,
    }


class Case:
    """An attention graph and the pairs that are solved in it.

    Args:
        kind: Kind of attention.
        tokens: Number of tokens.
        seed: Seed of synthetic attention and of the sampled pairs.

    Attributes:
        attention: (L, n, n) or (L, H, n, n) weights.
        graph: The graph, with heads averaged.
        position: The single position: CLS, or the last token of causal attention.
        sampled: The tokens that are solved for all positions: all, or a few spread evenly.
        pairs: (position, token) pairs, without those that a causal mask makes 0.
    """

    def __init__(self, kind: str, tokens: int, seed: int) -> None:
        self.kind, self.tokens, self.seed = kind, tokens, seed
        self.attention = inputs.attention(kind, tokens, seed)
        self.graph = attnflow.AttentionGraph(self.attention)
        causal = kind in ("causal", "decoder")
        self.position = tokens - 1 if causal else 0
        self.sampled = list(range(tokens))
        if tokens > _ALL_TOKENS:
            self.sampled = np.linspace(0, tokens - 1, _SAMPLED_TOKENS).round().astype(int).tolist()
        self.pairs = [
            (position, token)
            for token in self.sampled
            for position in range(token if causal else 0, tokens)
        ]
        self._values: dict[int, NDArray[np.float64]] = {}

    def sample(self, layer: int, size: int) -> list[tuple[int, int]]:
        """Return at most `size` random pairs, which the other solvers get."""
        seeds = [self.seed, inputs.KINDS.index(self.kind), self.tokens, layer]
        chosen = np.random.default_rng(seeds).choice(
            len(self.pairs), size=min(len(self.pairs), size), replace=False
        )
        return [self.pairs[i] for i in chosen]

    def flow(
        self, layer: int, positions: list[int] | None, tokens: list[int] | None, threads: int | None
    ) -> NDArray[np.float64]:
        """Return attnflow's (P, T) flow values."""
        values: NDArray[np.float64] = attnflow.attention_flow(
            self.graph, layers=[layer], positions=positions, tokens=tokens, num_threads=threads
        )[0]
        return values

    def exact(self, layer: int, position: int, token: int) -> int:
        """Return attnflow's answer for one of `pairs`, as an integer in the solver's units."""
        if layer not in self._values:
            self._values[layer] = self.flow(layer, None, self.sampled, 1)
        value = self._values[layer][position, self.sampled.index(token)]
        return round(float(value) * SCALE)


def best_of(call: Callable[[], Any], patience: float) -> float:
    """Time a call: a warm-up, then the best of three.

    A call of microseconds is repeated in each of the three, and the mean counts. A first call that
    takes longer than `patience` is the only one.

    Args:
        call: What to time.
        patience: Seconds.

    Returns:
        Seconds of a call.
    """
    first = _mean_seconds(call, 1)
    if first > patience:
        return first
    if first < 0.5:
        # The first call may be slow because it is the first; the second decides how many to make.
        first = min(first, _mean_seconds(call, 1))
    calls = math.ceil(_SHORT / max(first, 1e-6))
    return min(_mean_seconds(call, calls) for _ in range(_REPEATS))


def _mean_seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def plan(document: Record, solvers: Mapping[str, type[Solver]] = SOLVERS) -> dict[str, Job]:
    """Return the measurements of a run by name.

    Args:
        document: The results of the run so far, with its options.
        solvers: The solvers to compare with.
    """
    return dict(_Suite(document, solvers).jobs())


class _Suite:
    """The jobs of a run, and what they share."""

    def __init__(self, document: Record, solvers: Mapping[str, type[Solver]]) -> None:
        self.document, self.options = document, document["options"]
        self.solvers = solvers
        self._case: Case | None = None

    def jobs(self) -> Iterator[tuple[str, Job]]:
        yield "import", _import_time
        graphs = self.options["graphs"]
        # What does not concern the other solvers is measured on one kind.
        main = "real" if "real" in graphs else next(iter(graphs))
        for kind, sizes in graphs.items():
            for n in sizes["tokens"]:
                for layer in sizes["layers"]:
                    place = f"{kind}/{n}/{layer}"
                    yield f"flow/{place}", partial(self._flow, kind, n, layer)
                    for name in self.solvers:
                        job = partial(self._solver, name, kind, n, layer)
                        yield f"solver/{name}/{place}", job
                if kind == main:
                    yield from self._further(kind, n, **sizes)

    def _further(
        self, kind: str, n: int, tokens: list[int], layers: list[int]
    ) -> Iterator[tuple[str, Job]]:
        place, top = f"{kind}/{n}", layers[-1]
        yield f"rollout/{place}", partial(self._rollout, kind, n, top)
        if kind == "real":
            for threads in (1, None):
                name = f"forward/{place}/{'default' if threads is None else threads}"
                yield name, partial(self._forward, n, threads)
            yield f"explain/{place}", partial(self._explain, n)
        if n == max((size for size in tokens if size <= _ALL_TOKENS), default=None):
            yield f"all-pairs/{place}", partial(self._all_pairs, kind, n)
            for name in ("ortools", "igraph"):
                if name in self.solvers:
                    job = partial(self._one_position, name, kind, n, top)
                    yield f"one-position/{name}/{place}/{top}", job
        if n in (128, 512) or (n == tokens[-1] and not {128, 512} & set(tokens)):
            for layer in layers[-2:]:
                yield f"threads/{place}/{layer}", partial(self._threads, kind, n, layer)
        if n == tokens[-1]:
            for threads in (1, self.options["threads"]):
                yield (
                    f"memory/{place}/{top}/{threads}",
                    partial(self._memory, kind, n, top, threads),
                )

    def _case_of(self, kind: str, n: int) -> Case:
        """Return a case. Only the last is kept: at 512 tokens, a real one takes 100 MB."""
        if self._case is None or (self._case.kind, self._case.tokens) != (kind, n):
            self._case = Case(kind, n, self.options["seed"])
        return self._case

    def _best_of(self, call: Callable[[], Any]) -> float:
        return best_of(call, self.options["budget"])

    # attnflow against the other solvers

    def _flow(self, kind: str, n: int, layer: int) -> Record:
        case = self._case_of(kind, n)
        many = self._best_of(lambda: case.flow(layer, None, case.sampled, 1))
        one = self._best_of(lambda: case.flow(layer, [case.position], None, 1))
        return {
            "sampled": len(case.sampled),
            "many_seconds": many,
            "many_per_pair_seconds": many / len(case.pairs),
            "one_position_seconds": one,
            "one_position_per_pair_seconds": one / n,
        }

    def _solver(self, name: str, kind: str, n: int, layer: int) -> Record:
        for smaller in self.options["graphs"][kind]["tokens"]:
            record = self.document["measurements"].get(f"solver/{name}/{kind}/{smaller}/{layer}")
            if smaller < n and record is not None and record["status"] != "measured":
                reason = record["reason"]
                if record["status"] != "not tried":
                    reason = f"{reason} with {smaller} tokens"
                return {"status": "not tried", "reason": reason}
        case = self._case_of(kind, n)
        pairs = case.sample(layer, self.options["pairs"])
        return self._ask(name, case, layer, pairs, self.options["budget"])

    def _one_position(self, name: str, kind: str, n: int, layer: int) -> Record:
        case = self._case_of(kind, n)
        pairs = [(case.position, token) for token in range(n)]
        # All tokens are needed here, so a slow solver gets more time.
        return self._ask(name, case, layer, pairs, 12 * self.options["budget"])

    def _ask(
        self, name: str, case: Case, layer: int, pairs: list[tuple[int, int]], budget: float
    ) -> Record:
        """Ask a solver, compare every answer with attnflow's, and return the record."""
        nodes = [(layer * case.tokens + position, token) for position, token in pairs]
        capacities = case.graph.units[:layer]
        answers = ask(self.solvers[name], capacities, nodes, budget, self.options["passes"])
        largest, wrong = self._check(name, case, layer, pairs, answers)
        record = {"tolerance": answers.tolerance, "largest_error": largest, "disagreements": wrong}
        if answers.error:
            return {**record, "status": "failed", "reason": answers.error}
        if not answers.given:
            return {**record, "status": "stopped", "reason": f"stopped at {answers.stopped:g} s"}
        building = None
        if self.solvers[name].prepare is not Solver.prepare:
            building = sum(answer.prepared for answer in answers.given) / len(answers.given)
        return {
            **record,
            "status": "measured",
            "asked": len(pairs),
            "setup_seconds": answers.setup,
            "building_per_pair_seconds": building,
            "empty_query_seconds": answers.floor,
            "per_pair_seconds": answers.seconds_per_pair(),
            "pairs": answers.pairs,
        }

    def _check(
        self, name: str, case: Case, layer: int, pairs: list[tuple[int, int]], answers: Answers
    ) -> tuple[float, int]:
        """Return the largest difference from attnflow, and how many pairs disagree."""
        largest, wrong = 0.0, set()
        for answer in answers.given:
            position, token = pairs[answer.pair]
            exact, flow = case.exact(layer, position, token), answer.value / answers.scale
            error = abs(flow - exact / SCALE)
            largest = max(largest, error)
            agrees = error <= answers.tolerance if answers.tolerance else answer.value == exact
            if agrees or answer.pair in wrong:
                continue
            wrong.add(answer.pair)
            self.document["disagreements"].append(
                {
                    "solver": name,
                    "kind": case.kind,
                    "tokens": case.tokens,
                    "layer": layer,
                    "position": position,
                    "token": token,
                    "attnflow": repr(exact / SCALE),
                    "other": repr(flow),
                    "tolerance": repr(answers.tolerance),
                }
            )
        return largest, len(wrong)

    # attnflow alone, and against the model

    def _all_pairs(self, kind: str, n: int) -> Record:
        graph = self._case_of(kind, n).graph
        seconds = self._best_of(lambda: attnflow.attention_flow(graph, num_threads=1))
        return {"seconds": seconds, "layers": graph.layers, "pairs": graph.layers * n * n}

    def _rollout(self, kind: str, n: int, top: int) -> Record:
        case = self._case_of(kind, n)
        weights, budget = np.asarray(case.graph.attention), self.options["budget"]
        one, full = in_fresh_process(_time_rollout, weights, case.position, budget)
        flow = self._best_of(lambda: case.flow(top, [case.position], None, 1))
        return {
            "one_position_seconds": one,
            "all_positions_seconds": full,
            "all_over_one": full / one,
            "flow_same_position_seconds": flow,
            "flow_over_rollout": flow / one,
        }

    def _forward(self, n: int, threads: int | None) -> Record:
        """Time the flow of CLS against the forward pass, with so many threads or the default."""
        case, top = self._case_of("real", n), inputs.LAYERS["real"][-1]
        graph = self._best_of(lambda: attnflow.AttentionGraph(case.attention))
        with inputs.torch_threads(threads) as used:
            forward = self._best_of(_forward_pass(n))
        flow = self._best_of(lambda: case.flow(top, [case.position], None, threads))
        return {
            "threads": used,
            "flow_seconds": flow,
            "forward_seconds": forward,
            "flow_over_forward": flow / forward,
            "making_the_graph_seconds": graph,
        }

    def _explain(self, n: int) -> Record:
        """Time a whole explanation of a text, as a user calls it, against the forward pass."""
        explainer = inputs.load("real")
        (text,) = inputs.texts(explainer.tokenizer, n, 1)
        with inputs.torch_threads(None) as threads:
            forward = self._best_of(_forward_pass(n))
        record = {"threads": threads, "forward_seconds": forward}
        for method in ("raw", "rollout", "flow"):
            seconds = self._best_of(partial(explainer.explain, text, method=method))
            record[f"{method}_seconds"] = seconds
            record[f"{method}_over_forward"] = seconds / forward
        return record

    def _threads(self, kind: str, n: int, layer: int) -> Record:
        case, threads = self._case_of(kind, n), self.options["threads"]
        one, several = (
            self._best_of(partial(case.flow, layer, None, case.sampled, count))
            for count in (1, threads)
        )
        return {
            "one_thread_seconds": one,
            "several_seconds": several,
            "threads": threads,
            "one_over_several": one / several,
        }

    def _memory(self, kind: str, n: int, layer: int, threads: int) -> Record:
        case = self._case_of(kind, n)
        weights = np.asarray(case.graph.attention)
        edges = int(np.count_nonzero(case.graph.units[:layer]))
        peak = in_fresh_process(_peak_memory, weights, layer, case.sampled, threads)
        per_edge = None if peak is None else peak / edges
        return {"edges": edges, "peak_bytes": peak, "bytes_per_edge": per_edge}


def _forward_pass(tokens: int) -> Callable[[], None]:
    """Return a call of the encoder on so many tokens."""
    import torch

    explainer = inputs.load("real")
    encoded = inputs.encode(explainer.tokenizer, tokens)

    def forward() -> None:
        with torch.no_grad():
            explainer.model(**encoded)

    return forward


def _import_time() -> Record:
    """Time the import in fresh interpreters."""
    code = "from time import perf_counter as t; s = t(); import attnflow; print(t() - s)"
    command = [sys.executable, "-c", code]
    times = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(1 + _REPEATS)
    ]
    return {"import_attnflow_seconds": min(times[1:])}


def _time_rollout(
    attention: NDArray[np.float64], position: int, patience: float
) -> tuple[float, float]:
    """Return the seconds of rollout for one position and for all."""
    graph = attnflow.AttentionGraph(attention)
    one = best_of(lambda: attnflow.attention_rollout(graph, positions=[position]), patience)
    return one, best_of(lambda: attnflow.attention_rollout(graph), patience)


def _peak_memory(
    attention: NDArray[np.float64], layer: int, tokens: list[int], threads: int
) -> int | None:
    """Return by how many bytes a flow call raises the process's memory; None if unknown."""
    graph = attnflow.AttentionGraph(attention)
    # Computed on first use, and part of the graph rather than of the call.
    _ = graph.units
    # A first, small call loads what is loaded once.
    attnflow.attention_flow(np.full((3, 4, 4), 0.25), num_threads=threads)
    flow = partial(attnflow.attention_flow, layers=[layer], tokens=tokens, num_threads=threads)
    return added_memory(partial(flow, graph))
