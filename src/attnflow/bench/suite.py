"""What is measured, in which order, and how.

A run is a list of jobs. Each has a name under which its record stands in the document; a job whose
record is there already is not run again.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attnflow
from attnflow.bench import inputs
from attnflow.bench.processes import Answers, SolverProcess, call_in_fresh_process
from attnflow.bench.results import Record
from attnflow.bench.solvers import SCALE, SOLVERS, Solver
from attnflow.errors import OptionError

__all__ = ["DECODER_TOKENS", "TOKENS", "Job", "Options", "Suite"]

TOKENS = (16, 32, 64, 128, 256, 512)
"""Sizes that are measured unless told otherwise."""

DECODER_TOKENS = (64, 128)
"""Sizes at which the decoder, with its 30 layers, is measured unless told otherwise."""

QUICK_TOKENS = (16, 32)
QUICK_BUDGET = 0.25

_REPEATS = 3
_SHORT = 0.02  # seconds: what is over sooner is called more than once to be timed
_ONE_BLAS_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Options:
    """What a run is asked for.

    Attributes:
        kinds: kinds of attention, of `inputs.KINDS`.
        tokens: numbers of tokens, ascending; None for those each kind has by default.
        budget: seconds for each solver and graph.
        seed: of the synthetic attention and of the sample of pairs.
        threads: what one thread is compared with.
        quick: few pairs and few layers, to see that everything works.
    """

    kinds: tuple[str, ...] = ("real", "soft", "peaked", "causal")
    tokens: tuple[int, ...] | None = None
    budget: float = 5.0
    seed: int = 0
    threads: int = 2
    quick: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            OptionError: one of them cannot be used; the message names it.
        """
        if not self.kinds:
            raise OptionError(f"--kinds: none given; expected some of {', '.join(inputs.KINDS)}")
        for kind in self.kinds:
            if kind not in inputs.KINDS:
                raise OptionError(
                    f"--kinds: {kind!r} is unknown; expected some of {', '.join(inputs.KINDS)}"
                )
        if len(set(self.kinds)) < len(self.kinds):
            raise OptionError(f"--kinds: a kind is given twice in {','.join(self.kinds)}")
        if self.tokens is not None:
            self._check_tokens(self.tokens)
        if not 0 < self.budget < float("inf"):
            raise OptionError(f"--budget: {self.budget:g} given; expected seconds above 0")
        if self.seed < 0:
            raise OptionError(f"--seed: {self.seed} given; expected an integer of 0 or more")
        if self.threads < 2:
            raise OptionError(
                f"--threads: {self.threads} given; expected 2 or more, to compare with one"
            )

    def _check_tokens(self, tokens: tuple[int, ...]) -> None:
        if not tokens:
            raise OptionError("--tokens: none given; expected numbers such as 16,32,64")
        if any(n < 2 for n in tokens):
            raise OptionError(f"--tokens: {min(tokens)} given; expected numbers of 2 or more")
        if list(tokens) != sorted(set(tokens)):
            raise OptionError(
                f"--tokens: {','.join(map(str, tokens))} given; expected ascending numbers"
            )
        for kind in self.kinds:
            limit = inputs.MAX_TOKENS.get(kind)
            if limit is not None and tokens[-1] > limit:
                raise OptionError(
                    f"--tokens: {tokens[-1]} given; kind {kind!r} goes up to {limit} tokens"
                )

    def tokens_of(self, kind: str) -> tuple[int, ...]:
        """Return the sizes at which a kind is measured."""
        if self.tokens is not None:
            return self.tokens
        if self.quick:
            return QUICK_TOKENS
        return DECODER_TOKENS if kind == "decoder" else TOKENS

    def layers_of(self, kind: str) -> tuple[int, ...]:
        """Return the top layers that are measured of a kind."""
        layers = inputs.LAYERS[kind]
        return layers[:1] + layers[-1:] if self.quick else layers

    @property
    def most_pairs(self) -> int:
        """How many pairs a solver is asked for at most."""
        return 3 if self.quick else 200

    def record(self) -> Record:
        """Return the options as they stand in the document."""
        return {**asdict(self), "most_pairs": self.most_pairs}


class Case:
    """One attention graph and the pairs that are asked of it.

    Args:
        kind: kind of attention.
        tokens: number of tokens.
        options: of the run.

    Attributes:
        attention: (L, n, n) or (L, H, n, n) weights.
        graph: the graph, with heads averaged.
    """

    def __init__(self, kind: str, tokens: int, options: Options) -> None:
        self.kind, self.tokens, self.options = kind, tokens, options
        # Made now, so that no measurement has the loading of a model in it.
        self.attention = inputs.attention(kind, tokens, options.seed)
        self.graph = attnflow.AttentionGraph(self.attention)
        self._values: dict[int, NDArray[np.float64]] = {}

    @property
    def position(self) -> int:
        """The one position: CLS, or the last token where a position sees only what precedes it."""
        return self.tokens - 1 if inputs.is_causal(self.kind) else 0

    @property
    def sampled_tokens(self) -> list[int]:
        """The tokens asked for with all positions: all up to 128, above that 16 spread evenly."""
        if self.tokens <= 128:
            return list(range(self.tokens))
        return [int(token) for token in np.linspace(0, self.tokens - 1, 16).round()]

    def pairs(self) -> list[tuple[int, int]]:
        """Return the (position, token) pairs, without those that a causal mask makes 0."""
        causal = inputs.is_causal(self.kind)
        return [
            (position, token)
            for token in self.sampled_tokens
            for position in range(token if causal else 0, self.tokens)
        ]

    def sample(self, layer: int) -> list[tuple[int, int]]:
        """Return the random pairs that the other solvers are asked for."""
        pairs = self.pairs()
        random = np.random.default_rng(
            [self.options.seed, list(inputs.KINDS).index(self.kind), self.tokens, layer]
        )
        size = min(len(pairs), self.options.most_pairs)
        return [pairs[i] for i in random.choice(len(pairs), size=size, replace=False)]

    def capacities(self, layer: int) -> list[NDArray[np.int64]]:
        """Return the integer capacities of layers 1 to `layer`, one (n, n) array each."""
        return list(self.graph.units[:layer])

    def edges(self, layer: int) -> int:
        """Return how many edges of layers 1 to `layer` have a positive capacity."""
        return int(np.count_nonzero(self.graph.units[:layer]))

    def flow(
        self, layer: int, positions: list[int] | None, tokens: list[int] | None, threads: int | None
    ) -> NDArray[np.float64]:
        """Return attnflow's (P, T) flow values."""
        values: NDArray[np.float64] = attnflow.attention_flow(
            self.graph, layers=[layer], positions=positions, tokens=tokens, num_threads=threads
        )[0]
        return values

    def flow_of_sampled_tokens(self, layer: int) -> NDArray[np.float64]:
        """Compute and remember (n, T) flow values from all positions to the sampled tokens."""
        if layer not in self._values:
            self._values[layer] = self.flow(layer, None, self.sampled_tokens, 1)
        return self._values[layer]

    def exact(self, layer: int, position: int, token: int) -> int:
        """Return attnflow's answer for one of `pairs` as the integer it was computed as."""
        values = self.flow_of_sampled_tokens(layer)
        return round(float(values[position, self.sampled_tokens.index(token)]) * SCALE)


@dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        name: under which its record stands in the document.
        title: what a reader is told is being measured.
        measure: does it and returns the record.
    """

    name: str
    title: str
    measure: Callable[[], Record]


def best_of(call: Callable[[], Any], patience: float) -> Record:
    """Time a call: a warm-up, then the best of three.

    A call of microseconds is made many times over in each of the three, and their mean counts. A
    first call that takes longer than `patience` needs no warming up, and stands by itself.

    Args:
        call: what to time.
        patience: seconds.

    Returns:
        Seconds of a call, how many times it was timed, and how many calls each of them has.
    """
    first = _seconds(call, 1)
    if first > patience:
        return {"seconds": first, "repeats": 1, "calls": 1}
    if first < 0.5:
        # The first call may be slow for being the first; how many to make is for a second to say.
        first = min(first, _seconds(call, 1))
    calls = math.ceil(_SHORT / max(first, 1e-6))
    return {
        "seconds": min(_seconds(call, calls) for _ in range(_REPEATS)),
        "repeats": _REPEATS,
        "calls": calls,
    }


def _seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


class Suite:
    """A run: the jobs, and what they share.

    Args:
        options: what to measure.
        document: where records go, from `results.new` or `results.load`.
        solvers: the solvers to compare with, by name.

    Example:
        >>> from attnflow.bench.results import new
        >>> options = Options(kinds=("soft",), tokens=(4,), quick=True)
        >>> suite = Suite(options, new(options.record()), solvers={})
        >>> [job.title for job in suite.jobs()][:2]
        ['import attnflow', 'soft, 4 tokens, layer 4: attnflow']
    """

    def __init__(
        self,
        options: Options,
        document: Record,
        solvers: Mapping[str, type[Solver]] = SOLVERS,
    ) -> None:
        self.options = options
        self.document = document
        self._solvers = dict(solvers)
        self._case: Case | None = None
        # None of them starts before it is asked something.
        self._processes = {name: SolverProcess(solver) for name, solver in solvers.items()}

    def __enter__(self) -> Suite:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.close()

    def jobs(self) -> list[Job]:
        """Return everything that is measured, the small graphs of a kind before the large."""
        return list(self._jobs())

    def _jobs(self) -> Iterator[Job]:
        yield Job("import", "import attnflow", _import_time)
        # What is not about the solvers is measured on the real attention if there is any.
        main = "real" if "real" in self.options.kinds else self.options.kinds[0]
        for kind in self.options.kinds:
            sizes = self.options.tokens_of(kind)
            for n in sizes:
                yield from self._comparison(kind, n)
                if kind == main:
                    yield from self._further(kind, n, sizes)

    def _comparison(self, kind: str, n: int) -> Iterator[Job]:
        for layer in self.options.layers_of(kind):
            where, title = f"{kind}/{n}/{layer}", f"{kind}, {n} tokens, layer {layer}"
            yield Job(f"flow/{where}", f"{title}: attnflow", partial(self._flow, kind, n, layer))
            for name, solver in self._solvers.items():
                yield Job(
                    f"solver/{name}/{where}",
                    f"{title}: {solver.title}",
                    partial(self._solver, name, kind, n, layer),
                )

    def _further(self, kind: str, n: int, sizes: tuple[int, ...]) -> Iterator[Job]:
        where, title = f"{kind}/{n}", f"{kind}, {n} tokens"
        top = self.options.layers_of(kind)[-1]
        yield Job(f"rollout/{where}", f"{title}: rollout", partial(self._rollout, kind, n))
        if kind == "real":
            yield Job(
                f"forward/{where}", f"{title}: the model's forward pass", partial(self._forward, n)
            )
            yield Job(f"explain/{where}", f"{title}: an explanation", partial(self._explain, n))
        if n == max((size for size in sizes if size <= 128), default=None):
            yield Job(
                f"all-pairs/{where}",
                f"{title}: all pairs of all layers",
                partial(self._all_pairs, kind, n),
            )
            for name in ("ortools", "igraph"):
                if name in self._solvers:
                    yield Job(
                        f"one-position/{name}/{where}/{top}",
                        f"{title}: one position of layer {top}, {self._solvers[name].title}",
                        partial(self._one_position, name, kind, n, top),
                    )
        if n in (128, 512) or (n == sizes[-1] and not {128, 512} & set(sizes)):
            for layer in self.options.layers_of(kind)[-2:]:
                yield Job(
                    f"threads/{where}/{layer}",
                    f"{title}, layer {layer}: {self.options.threads} threads against one",
                    partial(self._threads, kind, n, layer),
                )
        if n == sizes[-1]:
            yield Job(
                f"memory/{where}/{top}", f"{title}: memory", partial(self._memory, kind, n, top)
            )

    def _case_of(self, kind: str, n: int) -> Case:
        """Return a graph, keeping one: at 512 tokens a real one takes 100 MB."""
        if self._case is None or (self._case.kind, self._case.tokens) != (kind, n):
            self._case = Case(kind, n, self.options)
        return self._case

    def _flow(self, kind: str, n: int, layer: int) -> Record:
        case = self._case_of(kind, n)
        patience = self.options.budget
        many = best_of(lambda: case.flow(layer, None, case.sampled_tokens, 1), patience)
        one = best_of(lambda: case.flow(layer, [case.position], None, 1), patience)
        pairs = len(case.pairs())
        return {
            "edges": case.edges(layer),
            "many": {
                **many,
                "positions": n,
                "tokens": len(case.sampled_tokens),
                "pairs": pairs,
                "seconds_per_pair": many["seconds"] / pairs,
            },
            "one": {
                **one,
                "position": case.position,
                "pairs": n,
                "seconds_per_pair": one["seconds"] / n,
            },
        }

    def _solver(self, name: str, kind: str, n: int, layer: int) -> Record:
        for smaller in self.options.tokens_of(kind):
            record = self.document["measurements"].get(f"solver/{name}/{kind}/{smaller}/{layer}")
            if smaller < n and record is not None and record["status"] != "measured":
                reason = record["reason"]
                if record["status"] != "not tried":
                    reason = f"{reason} with {smaller} tokens"
                return {"status": "not tried", "reason": reason}
        case = self._case_of(kind, n)
        pairs = case.sample(layer)
        answers = self._ask(name, case, layer, pairs, self.options.budget)
        return self._checked(name, case, layer, pairs, answers)

    def _ask(
        self, name: str, case: Case, layer: int, pairs: list[tuple[int, int]], budget: float
    ) -> Answers:
        nodes = [(layer * case.tokens + position, token) for position, token in pairs]
        passes = 1 if self.options.quick else _REPEATS
        return self._processes[name].ask(case.capacities(layer), nodes, budget, passes)

    def _checked(
        self, name: str, case: Case, layer: int, pairs: list[tuple[int, int]], answers: Answers
    ) -> Record:
        """Compare every answer with attnflow's, and make the record."""
        wrong: set[int] = set()
        largest = 0.0
        for index, value in answers.values:
            position, token = pairs[index]
            exact = case.exact(layer, position, token)
            error = abs(value / answers.scale - exact / SCALE)
            agrees = value == exact if answers.tolerance == 0 else error <= answers.tolerance
            largest = max(largest, error)
            if not agrees and index not in wrong:
                wrong.add(index)
                self.document["disagreements"].append(
                    {
                        "solver": name,
                        "kind": case.kind,
                        "tokens": case.tokens,
                        "layer": layer,
                        "position": position,
                        "token": token,
                        "attnflow": exact / SCALE,
                        "other": value / answers.scale,
                        "tolerance": answers.tolerance,
                    }
                )
        record: Record = {
            "setup_seconds": answers.setup,
            "tolerance": answers.tolerance,
            "largest_error": largest,
            "disagreements": len(wrong),
        }
        if answers.error:
            return {**record, "status": "failed", "reason": answers.error}
        if not answers.values:
            return {**record, "status": "stopped", "reason": f"stopped at {answers.stopped:g} s"}
        return {
            **record,
            "status": "measured",
            "reason": "",
            "pairs": len({index for index, _ in answers.values}),
            "asked": len(pairs),
            "seconds_per_pair": answers.seconds_per_pair(),
            "building_per_pair": sum(answers.prepare) / len(answers.prepare),
            "floor_seconds": answers.floor,
        }

    def _all_pairs(self, kind: str, n: int) -> Record:
        case = self._case_of(kind, n)
        timed = best_of(
            lambda: attnflow.attention_flow(case.graph, num_threads=1), self.options.budget
        )
        return {**timed, "layers": case.graph.layers, "pairs": case.graph.layers * n * n}

    def _one_position(self, name: str, kind: str, n: int, layer: int) -> Record:
        case = self._case_of(kind, n)
        pairs = [(case.position, token) for token in range(n)]
        # All tokens are wanted here, so the budget is what a slow solver may take for them.
        answers = self._ask(name, case, layer, pairs, 12 * self.options.budget)
        record = self._checked(name, case, layer, pairs, answers)
        if record["status"] == "measured":
            record["seconds"] = record["seconds_per_pair"] * n
        return record

    def _rollout(self, kind: str, n: int) -> Record:
        case = self._case_of(kind, n)
        times: Record = call_in_fresh_process(
            _time_rollout,
            np.asarray(case.graph.attention),
            case.position,
            self.options.budget,
            environment=_ONE_BLAS_THREAD,
        )
        return {**times, "position": case.position}

    def _forward(self, n: int) -> Record:
        import torch

        case = self._case_of("real", n)
        model, encoded = inputs.encoder_input(n)
        top = case.graph.layers
        patience = self.options.budget
        default_threads = torch.get_num_threads()

        def forward() -> None:
            with torch.no_grad():
                model(**encoded)

        record: Record = {
            "implementation": str(model.config._attn_implementation),
            "graph": best_of(lambda: attnflow.AttentionGraph(case.attention), patience),
        }
        try:
            for name, torch_threads, flow_threads in (
                ("one_thread", 1, 1),
                ("default_threads", default_threads, None),
            ):
                torch.set_num_threads(torch_threads)
                record[name] = {
                    "threads": torch_threads,
                    "forward": best_of(forward, patience),
                    "flow": best_of(
                        partial(case.flow, top, [case.position], None, flow_threads), patience
                    ),
                }
        finally:
            torch.set_num_threads(default_threads)
        return record

    def _explain(self, n: int) -> Record:
        """Time a whole explanation of a text, as a user calls it, against the forward pass."""
        import torch

        model, encoded = inputs.encoder_input(n)
        explainer, text = inputs.explainable(n)
        patience = self.options.budget

        def forward() -> None:
            with torch.no_grad():
                model(**encoded)

        record: Record = {"forward": best_of(forward, patience)}
        for method in ("raw", "rollout", "flow"):
            record[method] = best_of(partial(explainer.explain, text, method=method), patience)
        return {
            **record,
            "threads": torch.get_num_threads(),
            "tokens": len(explainer.explain(text, method="raw").tokens),
        }

    def _threads(self, kind: str, n: int, layer: int) -> Record:
        case = self._case_of(kind, n)
        patience = self.options.budget
        one, several = (
            best_of(partial(case.flow, layer, None, case.sampled_tokens, threads), patience)
            for threads in (1, self.options.threads)
        )
        return {
            "threads": self.options.threads,
            "tokens": len(case.sampled_tokens),
            "one": one,
            "several": several,
            "ratio": one["seconds"] / several["seconds"],
        }

    def _memory(self, kind: str, n: int, layer: int) -> Record:
        case = self._case_of(kind, n)
        edges = case.edges(layer)
        record: Record = {"edges": edges}
        for name, threads in (("one", 1), ("several", self.options.threads)):
            peak = call_in_fresh_process(
                _peak_memory, np.asarray(case.graph.attention), layer, case.sampled_tokens, threads
            )
            record[name] = {
                "threads": threads,
                "bytes": peak,
                "bytes_per_edge": None if peak is None else peak / edges,
            }
        return record


def _import_time() -> Record:
    """Time the import in fresh interpreters."""
    code = "from time import perf_counter as t; s = t(); import attnflow; print(t() - s)"
    command = [sys.executable, "-c", code]
    times = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(1 + _REPEATS)
    ]
    return {"seconds": min(times[1:]), "repeats": _REPEATS}


def _time_rollout(attention: NDArray[np.float64], position: int, patience: float) -> Record:
    graph = attnflow.AttentionGraph(attention)
    return {
        "one": best_of(lambda: attnflow.attention_rollout(graph, positions=[position]), patience),
        "full": best_of(lambda: attnflow.attention_rollout(graph), patience),
    }


def _peak_memory(
    attention: NDArray[np.float64], layer: int, tokens: list[int], threads: int
) -> int | None:
    """Return by how many bytes a flow call raises the process's memory, None where unknown."""
    graph = attnflow.AttentionGraph(attention)
    # Made when first asked for, and part of the graph, not of the call.
    _ = graph.units
    # A first, small call loads what is loaded once.
    attnflow.attention_flow(np.full((3, 4, 4), 0.25), num_threads=threads)
    try:
        # Linux only: set the high-water mark back to the memory in use now.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status_bytes("VmRSS")
        attnflow.attention_flow(graph, layers=[layer], tokens=tokens, num_threads=threads)
        return _status_bytes("VmHWM") - before
    except OSError:
        return None


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{name} is not in /proc/self/status")
