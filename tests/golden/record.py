"""Record what attnflow computes, so that a change of its code can be compared with what was.

    python -m tests.golden.record --output golden.json.gz
    python -m tests.golden.record --compare golden.json.gz

The first command records; the second records anew and prints every difference. With `--exhaustive`
every combination of options goes through every kind of model. Only public names are used, in the
spelling of this release or of the one before it, so that the script runs with either.

The results of `paper-table1` need sentences that are not part of attnflow: name a numpred file of
Linzen, Dupoux and Goldberg (2016) with `--data`, or in the environment variable ATTNFLOW_NUMPRED.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import inspect
import io
import itertools
import json
import math
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

import attnflow
from tests.golden.differences import Difference, Tolerance, differences
from tests.golden.tiny_models import (
    BYTES_TEXT,
    KINDS,
    PAIRS,
    SOUND_TEXT,
    TEXTS,
    explainer,
    masked,
    noise,
    photo,
)
from tests.support.pages import unpacked

METHODS = ("raw", "rollout", "flow")
EDGES = ("attention", "gradient", "effective", "value_norm")
REFERENCES = ("blank_out", "input_gradient", "gradient_x_input", "gradient_norm")
# Of the options of an explanation, those that change one thing each; `units` was `words`.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "words": {"units": "words"},
    "drop-sink": {"drop_sink": True},
    "no-special-tokens": {"special_tokens": False},
    "receptive-field": {"receptive_field": True},
    "no-receptive-field": {"receptive_field": False},
    "layer-1": {"layer": 1},
    "heads-max": {"heads": "max"},
    "head-1": {"heads": 1},
    "residual-0.3": {"residual": 0.3},
}
MORE_OPTIONS: dict[str, dict[str, Any]] = {
    "heads-min": {"heads": "min"},
    "heads-sum": {"heads": "sum"},
    "head-last": {"heads": -1},
    "residual-0": {"residual": 0.0},
    "last": {"position": "last"},
    "first": {"position": 0},
    "truncate": {"truncate": True},
    "keep-heads": {"keep_heads": True},
    "words-alone": {
        "units": "words",
        "special_tokens": False,
        "drop_sink": True,
        "layer": 2,
        "receptive_field": True,
    },
}

# Most models compute in float64, where rounding is far below this. A few of their steps (the angles
# of rotary positions, pixels) and the traces are in float32, which processors round differently.
EXACT = Tolerance(relative=1e-5, absolute=1e-7)
# What is computed or stored in float32, or in the 24 bits of a trace.
SINGLE = Tolerance(relative=1e-4, absolute=2e-6)
# Means of rank correlations of a float32 model, where rounding may change the order of two tokens.
RANKS = Tolerance(relative=0.0, absolute=2e-3)


class Scope(NamedTuple):
    """How much is recorded.

    Attributes:
        exhaustive: Whether every combination is.
        data: A numpred file, or None.
    """

    exhaustive: bool
    data: Path | None


class Section(NamedTuple):
    """Some results that are recorded together.

    Attributes:
        record: Yields the name of each result, and the result.
        tolerance: How far its numbers may be apart.
        exhaustive: Whether it is left out unless everything is recorded.
        needs_data: Whether it needs a numpred file.
    """

    record: Callable[[Scope], Iterator[tuple[str, Any]]]
    tolerance: Tolerance = EXACT
    exhaustive: bool = False
    needs_data: bool = False


# ---- Both spellings of the interface -------------------------------------------------------------


def options_for(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as a function takes them: `units` was `words` once."""
    given = dict(options)
    if "words" in inspect.signature(function).parameters and "units" in given:
        given["words"] = given.pop("units") == "words"
    return given


def explain(model: Any, inputs: Any, **options: Any) -> Any:
    """Return what `Explainer.explain` does."""
    return model.explain(inputs, **options_for(model.explain, options))


def checkpoint() -> Path:
    """Return the folder of the verb-number model that comes with attnflow."""
    for name in ("attnflow.models.verb_number", "attnflow.paper"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "checkpoint"):
            return Path(module.checkpoint())
    raise LookupError("attnflow has no checkpoint of a verb-number model")


def command(*arguments: str) -> str:
    """Run ``attnflow`` and return what it prints."""
    from attnflow.cli import main

    printed, told = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(told):
        status = main(list(arguments))
    if status:
        raise RuntimeError(f"attnflow {' '.join(arguments)} failed: {told.getvalue()}")
    return printed.getvalue()


# ---- Records: what JSON can hold, without prose --------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as JSON holds it, its numbers rounded to 12 significant digits."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return plain(sorted(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else str(value)
    return value


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that an explanation has recorded, in today's spelling."""
    found = dict(options)
    if "words" in found:
        found["units"] = "words" if found.pop("words") else "tokens"
    return found


def tally(data: dict[str, Any], *, sparse: bool) -> None:
    """Count notes, which are prose; let saturation grow on sparse attention, and them with it."""
    suffix = "_at_least" if sparse and data.get("method", "flow") == "flow" else ""
    data[f"notes{suffix}"] = len(data.pop("notes"))
    data[f"saturation{suffix}"] = data.pop("saturation")


def explanation_record(explanation: Any, *, sparse: bool) -> dict[str, Any]:
    """Return what is recorded of an explanation; `sparse` says that its attention has zeros."""
    return dict_record(explanation.to_dict(), sparse=sparse)


def dict_record(data: dict[str, Any], *, sparse: bool) -> dict[str, Any]:
    """Return what is recorded of an explanation that is a dictionary already."""
    data = dict(data)
    for name in ("format", "version"):
        data.pop(name, None)
    if "/" in data["model"]:  # the folder of a checkpoint
        data.pop("model")
    data["options"] = settings(data["options"])
    tally(data, sparse=sparse)
    return data


def trace_record(trace: Any) -> dict[str, Any] | None:
    """Return what is recorded of a trace."""
    if trace is None:
        return None
    record = {
        name: getattr(trace, name)
        for name in ("tokens", "spans", "special", "bits", "residual", "encoder")
    }
    heads = trace.heads
    if heads is not None:
        heads = heads / heads.sum(axis=-1, keepdims=True, dtype=np.float64)
    mask = None if trace.mask is None else trace.mask.astype(int)
    return {**record, "attention": trace.attention(), "heads": heads, "mask": mask}


def tried(compute: Callable[[], Any]) -> Any:
    """Return a result, or the class of the error where an option does not fit the model."""
    try:
        return compute()
    except attnflow.AttnflowError as error:
        return {"error": type(error).__name__}


def cases(
    name: str, names: Iterable[tuple[str, str, str]], options: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Yield explanations of the first input of a kind of model.

    Args:
        name: The kind.
        names: For each the method, the edges, and the name of its options.
        options: The options of each name.
    """
    kind, model = KINDS[name], explainer(name)
    for method, edges, option in names:
        sparse = kind.sparse or edges in ("gradient", "effective")
        given = {"method": method, "edges": edges, **options[option]}

        def compute(given: dict[str, Any] = given, sparse: bool = sparse) -> Any:
            found = explain(model, kind.inputs[0], **given)
            return explanation_record(found, sparse=sparse)

        yield f"{method}/{edges}/{option}", tried(compute)


# ---- Explanations --------------------------------------------------------------------------------


def explanations(name: str) -> Callable[[Scope], Iterator[tuple[str, Any]]]:
    """Return what records the explanations of a kind of model."""

    def record(scope: Scope) -> Iterator[tuple[str, Any]]:
        kind, model = KINDS[name], explainer(name)
        yield "task", model.task
        options = {**OPTIONS, "position": {"position": kind.other_position}}
        if kind.target is not None:
            options["target"] = {"target": kind.target}
        if scope.exhaustive:
            options |= MORE_OPTIONS
            names = list(itertools.product(METHODS, EDGES, options))
        else:
            names = [(method, edges, "default") for method in METHODS for edges in EDGES]
            others = list(options)[1:]
            # Each option with rollout or with flow, by turns.
            names += [(METHODS[1 + i % 2], "attention", other) for i, other in enumerate(others)]
            names += [("flow", "attention", "receptive-field")]
        yield from cases(name, dict.fromkeys(names), options)
        for method in METHODS if scope.exhaustive else ("rollout",):
            for edges in EDGES if scope.exhaustive else ("attention",):
                sparse = kind.sparse or edges in ("gradient", "effective")

                def batch(method: str = method, edges: str = edges, sparse: bool = sparse) -> Any:
                    found = explain(model, kind.inputs, method=method, edges=edges)
                    return [explanation_record(item, sparse=sparse) for item in found]

                yield f"batch/{method}/{edges}", tried(batch)
        if scope.exhaustive and isinstance(kind.inputs[0], str):
            long = "the key to " * 20
            yield "long", tried(lambda: explain(model, long, method="raw").tokens)
            cut = tried(lambda: explain(model, long, method="raw", truncate=True).tokens)
            yield "truncated", cut
        traced = explain(model, kind.inputs[-1], method="rollout", receptive_field=True)
        yield "trace", trace_record(traced.trace)
        yield "picture", traced.picture is not None

    return record


def verb_number(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record explanations by the model that comes with attnflow."""
    model = attnflow.Explainer.from_pretrained(checkpoint(), device="cpu")
    yield "task", model.task
    texts = ["the keys to the cabinet", "the key to the cabinets near the old doors", "keys"]
    for method, edges in itertools.product(METHODS, EDGES):
        sparse = edges in ("gradient", "effective")
        for text in texts if scope.exhaustive else texts[:1]:
            found = explain(model, text, method=method, edges=edges)
            yield f"{method}/{edges}/{text}", explanation_record(found, sparse=sparse)
    batch = explain(model, texts, method="rollout", units="words", special_tokens=False)
    yield "batch", [explanation_record(item, sparse=False) for item in batch]
    other = explain(model, texts[0], method="flow", target="VBZ", layer=2, position=-1)
    yield "target", explanation_record(other, sparse=False)
    yield "top", other.top(3)
    if scope.exhaustive:
        yield "fingerprint", model.fingerprint()
    yield "compare", other.compare(explain(model, texts[0], method="raw", layer=3))._asdict()
    found = json.loads(
        command("explain", "--method", "rollout", "--layer", "2", "--json", texts[0])
    )
    yield "command", dict_record(found, sparse=False)


def generated(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record what language models write, and explanations of every token of it."""
    prompts = {
        "gpt2-causal-lm": "the keys",
        "llama-causal-lm": "the keys to the",
        "t5-pair": "the house is old",
        "bart-pair": ("a cat is old", "eine"),
        "whisper": (noise(0.4), SOUND_TEXT),
    }
    choices: list[dict[str, Any]] = [{"method": "rollout"}, {"method": "flow", "units": "words"}]
    if scope.exhaustive:
        choices += [{"method": "raw", "edges": edges, "drop_sink": True} for edges in EDGES]
        choices += [{"method": "flow", "edges": edges, "layer": 2} for edges in EDGES]
    for name, prompt in prompts.items():
        model = explainer(name)
        for number, options in enumerate(choices):
            given = options_for(model.explain, options)
            steps = model.generate(prompt, max_new_tokens=5, **given)
            steps = getattr(steps, "explanations", steps)
            found = [explanation_record(step, sparse=True) for step in steps]
            yield f"{name}/{number}", found


def files(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record what is in a saved page, in JSON, in CSV, and in the map of an image."""
    from attnflow.trace import Trace

    shown: dict[str, tuple[str, dict[str, Any]]] = {
        "text": ("bert-classifier", {"method": "flow", "keep_heads": True}),
        "words": ("bert-masked-lm", {"method": "rollout", "units": "words"}),
        "causal": ("llama-causal-lm", {"method": "flow"}),
        "bytes": ("gpt2-causal-lm", {"method": "rollout", "position": 8}),
        "pair": ("t5-pair", {"method": "flow"}),
        "image": ("vit-classifier", {"method": "flow"}),
    }
    if scope.exhaustive:
        shown["sound"] = ("whisper", {"method": "rollout"})
        shown["plain"] = ("bert-classifier", {"method": "flow", "special_tokens": False})
    for case, (name, options) in shown.items():
        kind = KINDS[name]
        explanation = explain(explainer(name), kind.inputs[0], **options)
        html = explanation.to_html()
        found = re.search(r'<script[^>]*id="attnflow-data"[^>]*>(.*?)</script>', html, re.DOTALL)
        if found is None:
            raise LookupError("the page has no data")
        data = json.loads(found[1])
        scores = data["explanation"]["layer_scores"]
        # Earlier versions did not pack them.
        data["explanation"]["layer_scores"] = unpacked(scores) if "packed" in scores else scores
        data["explanation"] = dict_record(data["explanation"], sparse=kind.sparse)
        trace = data["trace"]
        data["trace"] = None if trace is None else trace_record(Trace.from_dict(trace))
        data["picture"] = data["picture"] is not None
        yield f"page/{case}", data
        with tempfile.TemporaryDirectory() as folder:
            explanation.save(f"{folder}/saved.json")
            loaded = attnflow.Explanation.load(f"{folder}/saved.json")
            kept = (loaded.trace is None) == (explanation.trace is None)
            yield f"loaded/{case}", loaded == explanation and kept
            if scope.exhaustive or case == "words":
                explanation.save(f"{folder}/saved.csv")
                head, *rows = Path(folder, "saved.csv").read_text(encoding="utf-8").splitlines()
                yield f"csv/{case}", {"head": head, "rows": len(rows)}
        if case == "image":
            yield "map", explanation.map()
            yield "map/resized", explanation.map((6, 9))
            yield "map/nearest", explanation.map((6, 9), interpolation="nearest")


# ---- References and evaluations ------------------------------------------------------------------


def importances(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record how much each token matters, by all references."""
    from attnflow.importance import importance

    asked: dict[str, Any] = {
        "bert-classifier": TEXTS,
        "bert-masked-lm": masked(TEXTS[:1]),
        "llama-causal-lm": TEXTS[:1],
        "t5-pair": PAIRS,
        "vit-classifier": [photo()],
    }
    if scope.exhaustive:
        asked |= {
            "albert-masked-lm": masked(TEXTS),
            "gpt2-causal-lm": [BYTES_TEXT],
            "bart-pair": PAIRS,
            "marian-pair": PAIRS,
            "deit-classifier": [photo(), photo(seed=2)],
            "distilbert-classifier": TEXTS,
            "qwen2-causal-lm": TEXTS,
        }
    for name, inputs in asked.items():
        yield from importances_of(name, inputs)
    model = explainer("bert-classifier")
    yield "replacement", importance(model, TEXTS[0], replacement="mask", batch_size=3)


def importances_of(name: str, inputs: list[Any]) -> Iterator[tuple[str, Any]]:
    """Record how much each token matters to a kind of model, and how faithful rollout is to it."""
    from attnflow.evaluate.faithfulness import faithfulness
    from attnflow.importance import importance

    model = explainer(name)
    for reference in REFERENCES:
        options: dict[str, Any] = {"reference": reference}
        if reference == "blank_out" and name == "gpt2-causal-lm":
            options["replacement"] = 7  # its tokenizer has neither UNK nor MASK
        yield f"{name}/{reference}", importance(model, inputs, **options)
        options["target"] = KINDS[name].target
        yield f"{name}/{reference}/target", importance(model, inputs[0], **options)
    scores = [item.scores for item in explain(model, inputs, method="rollout")]
    yield f"{name}/faithfulness", [item._asdict() for item in faithfulness(model, inputs, scores)]


def evaluation_record(data: dict[str, Any], *, comparisons: bool) -> dict[str, Any]:
    """Return what is recorded of an evaluation."""
    for name in ("format", "version", "fingerprint", "options", "model"):
        data.pop(name, None)
    data["notes"] = len(data["notes"])
    data["skipped"] = [item["number"] for item in data["skipped"]]
    if not comparisons:
        data.pop("comparisons")
    return data


def evaluations(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record how far methods agree with references."""
    from attnflow.evaluate import evaluate

    texts = [*TEXTS, "the film is on the table", "", "no one is on a key"]
    # Flows on sparse attention may tie but for their last digit, and ranks depend on that.
    untied: dict[str, Any] = {"methods": ("raw", "rollout")}
    asked: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "bert-classifier": (texts, {"references": ("blank_out", "gradient_norm")}),
        "llama-causal-lm": (texts, {**untied, "receptive_field": (False, True)}),
    }
    if scope.exhaustive:
        asked |= {
            "bert-masked-lm": (masked(texts), {**untied, "edges": EDGES, "drop_sink": True}),
            "albert-masked-lm": (
                masked(texts),
                {"edges": "value_norm", "drop_sink": (False, True)},
            ),
            "t5-pair": (PAIRS, {**untied, "references": ("gradient_norm", "blank_out")}),
            "bart-pair": (PAIRS, {**untied, "position": "last"}),
            "vit-classifier": ([photo(), photo(seed=2)], {"references": "gradient_x_input"}),
            "deit-classifier": ([photo(), photo(seed=2)], {"layers": [1, -1]}),
            "gpt2-causal-lm": (
                [BYTES_TEXT, *TEXTS],
                {**untied, "references": "gradient_norm", "layers": [2]},
            ),
        }
    for name, (inputs, options) in asked.items():
        found = evaluate(explainer(name), inputs, faithfulness=True, workers=1, **options)
        yield name, evaluation_record(found.to_dict(), comparisons=scope.exhaustive)
    if scope.exhaustive:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "texts.txt")
            path.write_text("the keys to the cabinet\nthe key near the doors\n", encoding="utf-8")
            arguments = ("--data", str(path), "--workers", "1", "--device", "cpu", "--json")
            printed = json.loads(command("evaluate", *arguments))
        yield "command", evaluation_record(printed, comparisons=True)


def layer_scores(_: Scope) -> Iterator[tuple[str, Any]]:
    """Record the scores of every layer by several methods."""
    for name in ("bert-classifier", "llama-causal-lm", "bert-encoder"):
        model = explainer(name)
        for edges in EDGES:

            def compute(model: Any = model, edges: str = edges) -> Any:
                name = "receptive_fields"
                if name not in inspect.signature(model.layer_scores).parameters:
                    name = "receptive_field"  # before options were in one table
                found = model.layer_scores(TEXTS[0], edges=edges, **{name: (False, True)})
                found = found[0] if isinstance(found, list) else found
                scores = {f"{method}/{kind}": rows for (method, kind), rows in found.scores.items()}
                kept = {
                    field: getattr(found, field) for field in ("position", "target", "prediction")
                }
                return {**kept, "scores": scores}

            yield f"{name}/{edges}", tried(compute)


# ---- Data sets -----------------------------------------------------------------------------------


def columns_of(folder: Path) -> dict[str, Any]:
    """Return the columns of a Parquet data set with their types, notes counted."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder)
    columns = table.to_pydict()
    if "reason" in columns:
        columns["reason"] = [bool(reason) for reason in columns["reason"]]
    if "notes" in columns:
        columns["notes"] = [len(notes) for notes in columns["notes"]]
    types = {field.name: str(field.type) for field in table.schema}
    return {"columns": columns, "types": types}


def data_sets(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record the Parquet files of runs, and what is explained from the attention they keep."""
    rows: list[Any] = [
        {"text": text, "id": f"row {i}", "length": len(text)}
        for i, text in enumerate([*TEXTS, "", "the film is on the table"])
    ]
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        "rollout": ("bert-classifier", {"method": "rollout", "units": "words"}),
        "flow": ("bert-classifier", {"method": "flow", "edges": "value_norm"}),
    }
    if scope.exhaustive:
        for edges in EDGES:
            runs[f"raw-{edges}"] = ("bert-classifier", {"method": "raw", "edges": edges})
        runs |= {
            "causal": ("llama-causal-lm", {"method": "flow"}),
            "causal-rollout": ("llama-causal-lm", {"method": "rollout", "position": 1}),
            "options": (
                "bert-classifier",
                {"method": "rollout", "drop_sink": True, "heads": 1, "layer": 2, "target": "good"},
            ),
        }
        for method in ("rollout", "flow"):
            options = options_for(explainer("t5-pair").explain, {"units": "words"})
            texts = ["the house is old", "a cat", ""]
            with tempfile.TemporaryDirectory() as folder:
                yield from run_records(
                    f"pair-{method}", texts, "t5-pair", Path(folder), method=method, **options
                )
    for name, (kind, options) in runs.items():
        model = explainer(kind)
        given = options_for(model.explain, options)
        keeping = {"id_column": "id", "keep": ["attentions"], "keep_dtype": "float32"}
        with tempfile.TemporaryDirectory() as folder:
            yield from run_records(name, rows, kind, Path(folder), **keeping, **given)
            sparse = KINDS[kind].sparse or given.get("edges") in ("gradient", "effective")
            yield from stored_records(
                name, model, Path(folder), sparse=sparse, comparisons=scope.exhaustive
            )
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "texts.txt"), Path(folder, "out")
        source.write_text("the keys to the cabinet\nthe key near the doors\n", encoding="utf-8")
        arguments = ["--method", "rollout", "--workers", "1", "--device", "cpu", "--json"]
        told = json.loads(command("run", str(source), "--output", str(output), *arguments))
        yield "command/result", [told["rows"], told["failed"], told["new"]]
        yield "command/data", columns_of(output / "data")


def run_records(
    name: str, source: list[Any], kind: str, output: Path, **options: Any
) -> Iterator[tuple[str, Any]]:
    """Run a kind of model over some rows, and record the files."""
    model = explainer(kind)
    result = attnflow.run(source, model, output=output, shard_rows=3, workers=1, **options)
    yield f"{name}/result", [result.rows, result.failed, result.new]
    yield f"{name}/data", columns_of(output / "data")
    yield f"{name}/errors", columns_of(output / "errors")


def stored_records(
    name: str, model: Any, folder: Path, *, sparse: bool, comparisons: bool
) -> Iterator[tuple[str, Any]]:
    """Record what is computed from the files of a run."""
    from attnflow.dataset import load_attentions
    from attnflow.evaluate import evaluate_stored

    statistics = evaluate_stored(folder, model).to_dict()
    for dropped in ("data", "statistics"):
        statistics.pop(dropped, None)
    # Those of the highest flow, 1, are in the order of its last digit.
    statistics["tokens"].sort(key=lambda token: token["token"])
    yield f"{name}/statistics", evaluation_record(statistics, comparisons=comparisons)
    for text in load_attentions(folder):
        found = explanation_record(text.explain(method="flow"), sparse=sparse)
        yield f"{name}/kept/{text.row}", found


# ---- The paper's table ---------------------------------------------------------------------------


def table_record(data: Path, *arguments: str) -> dict[str, Any]:
    """Return what is recorded of a table of the paper."""
    printed = command("paper", "table1", "--data", str(data), "--json", *arguments)
    table: dict[str, Any] = json.loads(printed)
    for name in ("model", "fingerprint", "options", "data", "task"):
        table.pop(name, None)
    return table


def small_table(_: Scope) -> Iterator[tuple[str, Any]]:
    """Record the paper's table 1 on a few sentences."""
    sentences = {
        "VBP": ["the keys to the cabinet", "the men who saw the dog", "cats near the old house"],
        "VBZ": ["the key to the cabinets", "the man who saw the dogs", "a house near the river"],
    }
    lines = [f"{label}\t{text}" for label, texts in sentences.items() for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "numpred.few")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield "table1", table_record(path)


def large_table(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Record the paper's table 1 on 100 sentences of a numpred file."""
    if scope.data is None:
        raise ValueError("the table needs a numpred file")
    yield "table1", table_record(scope.data, "--limit", "100")


# ---- Arrays --------------------------------------------------------------------------------------


def random_attention(*shape: int, seed: int = 0) -> Any:
    """Return random rows that sum to 1."""
    weights = np.random.default_rng(seed).random(shape)
    return weights / weights.sum(axis=-1, keepdims=True)


def arrays(_: Scope) -> Iterator[tuple[str, Any]]:
    """Record the methods on random arrays."""
    dense = random_attention(4, 3, 6, 6)
    causal = np.tril(random_attention(4, 3, 6, 6, seed=1))
    causal /= causal.sum(axis=-1, keepdims=True)
    generator = np.random.default_rng(2)
    sparse = random_attention(4, 2, 8, 8, seed=2) * (generator.random((4, 2, 8, 8)) > 0.6)
    sparse += 1e-300 * np.eye(8)
    sparse /= sparse.sum(axis=-1, keepdims=True)
    for name, attention in {"dense": dense, "causal": causal, "sparse": sparse}.items():
        yield f"{name}/raw", attnflow.raw_attention(attention)
        yield f"{name}/rollout", attnflow.attention_rollout(attention)
        yield f"{name}/rollout/start", attnflow.attention_rollout(attention, start_layer=2)
        yield f"{name}/rollout/rows", attnflow.attention_rollout(attention, positions=[2])
        yield f"{name}/flow", attnflow.attention_flow(attention)
        some = attnflow.attention_flow(
            attention, layers=[2, -1], positions=[0, -1], tokens=[1, 2], normalize=True
        )
        yield f"{name}/flow/some", some
        for heads, share in itertools.product(("max", "min", "sum", 1), (0.0, 0.3)):
            options: dict[str, Any] = {"heads": heads, "residual": share}
            case = f"{name}/{heads}/{share}"
            yield f"{case}/rollout", attnflow.attention_rollout(attention, **options)[-1]
            yield f"{case}/flow", attnflow.attention_flow(attention, layers=[-1], **options)
        for layer, head in ((1, 0), (3, 1), (-1, -1)):
            yield (
                f"{name}/head/{layer}/{head}",
                {
                    "rollout": attnflow.head_rollout(attention, layer, head),
                    "flow": attnflow.head_flow(attention, layer, head, residual=0.4),
                },
            )
        suffix = "" if name == "dense" else "_at_least"
        yield f"{name}/saturation{suffix}", attnflow.saturation(attention)
    for layer, position, token in ((4, 0, 5), (3, 2, 2), (2, 1, 4), (1, 3, 0)):
        cut = attnflow.min_cut(dense, layer, position, token)
        yield f"cut/{layer}/{position}/{token}", cut._asdict()
    padded = attnflow.AttentionGraph(
        np.pad(random_attention(3, 4, 4, seed=3), ((0, 0), (0, 2), (0, 2))), padding=[4, 5]
    )
    yield "padded/rollout", attnflow.attention_rollout(padded)
    yield "padded/flow", attnflow.attention_flow(padded)
    residual = np.random.default_rng(4).random((4, 6))
    measured = attnflow.AttentionGraph(dense, residual=residual)
    yield "measured/rollout", attnflow.attention_rollout(measured)
    yield "measured/flow", attnflow.attention_flow(measured, layers=[-1])
    decoder = np.tril(random_attention(3, 2, 3, 3, seed=6))
    pair = attnflow.encoder_decoder_graph(
        random_attention(2, 2, 4, 4, seed=5),
        decoder / decoder.sum(axis=-1, keepdims=True),
        random_attention(3, 2, 3, 4, seed=7),
    )
    yield "pair/capacities", pair.capacities
    yield "pair/rollout", attnflow.attention_rollout(pair)
    yield "pair/flow", attnflow.attention_flow(pair)


# ---- All of it -----------------------------------------------------------------------------------

IN_FLOAT32 = ("bert-classifier-float32", "modernbert-masked-lm", "mistral-causal-lm")

SECTIONS: dict[str, Section] = {
    "arrays": Section(arrays),
    **{
        f"explain-{name}": Section(
            explanations(name),
            SINGLE if name in IN_FLOAT32 else EXACT,
            exhaustive=kind.exhaustive,
        )
        for name, kind in KINDS.items()
    },
    "explain-verb-number": Section(verb_number, SINGLE),
    "generate": Section(generated),
    "files": Section(files),
    "importance": Section(importances),
    "evaluate": Section(evaluations),
    "layer-scores": Section(layer_scores, exhaustive=True),
    "run": Section(data_sets, SINGLE),
    "paper-few": Section(small_table, RANKS),
    "paper-table1": Section(large_table, RANKS, needs_data=True),
}


def record(name: str, scope: Scope) -> dict[str, Any]:
    """Return the results of a section, as JSON holds them."""
    found = {case: plain(result) for case, result in SECTIONS[name].record(scope)}
    again: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return again


def wanted(scope: Scope, only: str = "*") -> list[str]:
    """Return the names of the sections to be recorded."""
    return [
        name
        for name, section in SECTIONS.items()
        if fnmatch(name, only)
        and (scope.exhaustive or not section.exhaustive)
        and (scope.data is not None or not section.needs_data)
    ]


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record; the same record is the same bytes."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load(path: Path) -> dict[str, Any]:
    """Read a record."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def data_file() -> Path | None:
    """Return the numpred file that the environment names."""
    named = os.environ.get("ATTNFLOW_NUMPRED")
    return Path(named) if named else None


def compare(name: str, old: Any, new: Any) -> list[Difference]:
    """Return the differences between two records of a section."""
    return list(differences(old, new, SECTIONS[name].tolerance, name))


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, metavar="FILE", help="save the results (.json.gz)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="print what differs from it")
    parser.add_argument("--exhaustive", action="store_true", help="every combination of options")
    parser.add_argument("--data", type=Path, default=data_file(), help="a numpred file")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="sections of such a name")
    parser.add_argument(
        "--most", type=int, default=20, help="how many differences to print of each"
    )
    args = parser.parse_args()
    if args.output is None and args.compare is None:
        parser.error("give --output, --compare or both")
    old = {} if args.compare is None else load(args.compare)
    scope = Scope(args.exhaustive or old.get("exhaustive", False), args.data)
    import torch

    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    total = 0
    new: Counter[str] = Counter()
    for name in wanted(scope, args.only):
        start = time.perf_counter()
        try:
            results[name] = record(name, scope)
        except Exception:
            traceback.print_exc()
            print(f"{name}: failed")
            total += 1
            continue
        spent = time.perf_counter() - start
        print(f"{name}: {len(results[name])} results, {spent:.1f} s", file=sys.stderr)
        if args.compare is None:
            continue
        if name not in old["results"]:
            print(f"{name}: not in {args.compare}")
            continue
        found = compare(name, old["results"][name], results[name])
        new.update(f"{name}/.../{item.path.split('/')[-1]}" for item in found if item.added)
        changed = [difference for difference in found if not difference.added]
        total += len(changed)
        for difference in changed[: args.most]:
            print(difference)
        if len(changed) > args.most:
            print(f"{name}: {len(changed) - args.most} more")
    for name in old.get("results", {}):
        if name not in results and fnmatch(name, args.only):
            print(f"{name}: not compared")
    if args.output is not None:
        save(args.output, {"exhaustive": scope.exhaustive, "results": results})
    if args.compare is not None:
        for path, times in new.items():
            print(f"{path}: new in {times} results")
        print(f"{total} differences")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
