"""The report of the solver benchmark: from measurements to ratios, targets and tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.inputs import KINDS
from benchmarks.libraries import SOLVERS
from benchmarks.tables import Record, duration, rows, target, times

# Below this many tokens, the fixed cost of a call distorts the growth.
_LARGE = 64


def tables(document: Record) -> dict[str, list[Record]]:
    """Return the tables by their names in the page.

    Args:
        document: The results of a run.
    """
    return {
        **{kind: _comparison(document, kind) for kind in KINDS},
        "disagreements": document["disagreements"],
        "targets": list(_targets(document)),
        "setup": _setup(document),
        "growth": _growth(document),
        "forward": rows(document, "forward", "kind", "tokens"),
        "explain": rows(document, "explain", "kind", "tokens"),
        "rollout": rows(document, "rollout", "kind", "tokens"),
        "all_pairs": _all_pairs(document),
        "threads": rows(document, "threads", "kind", "tokens", "layer"),
        "memory": rows(document, "memory", "kind", "tokens", "layer", "threads"),
        "import": rows(document, "import"),
    }


def remarks(document: Record) -> list[str]:
    """Return what failed, and whether all solvers agree, in sentences.

    Args:
        document: The results of a run.
    """
    asked = _solver_rows(document) + _solver_rows(document, "one-position")
    found = [
        f"Failed: {_title(row['solver'])} on {row['kind']}, {row['tokens']} tokens, layer "
        f"{row['layer']}: {row['reason']}."
        for row in asked
        if row["status"] == "failed"
    ]
    compared, wrong = sum(row.get("pairs", 0) for row in asked), len(document["disagreements"])
    if wrong:
        found.append(f"{wrong} of {compared} answers DISAGREE with attnflow's.")
    elif compared:
        found.append(f"All {compared} answers of the other solvers agree with attnflow's.")
    return found


def _solver_rows(document: Record, job: str = "solver") -> list[Record]:
    return rows(document, job, "solver", "kind", "tokens", "layer")


def _title(solver: str) -> str:
    return SOLVERS[solver].title if solver in SOLVERS else solver


def _ratios(document: Record) -> dict[str, dict[str, float]]:
    """Return each solver's time per pair over attnflow's, by "kind/tokens/layer"."""
    found: dict[str, dict[str, float]] = {}
    for row in _solver_rows(document):
        place = f"{row['kind']}/{row['tokens']}/{row['layer']}"
        flow = document["measurements"].get(f"flow/{place}")
        if flow is not None and row["status"] == "measured":
            ratio = row["per_pair_seconds"] / flow["many_per_pair_seconds"]
            found.setdefault(place, {})[row["solver"]] = ratio
    return found


def _comparison(document: Record, kind: str) -> list[Record]:
    """Return the times per pair of attnflow and of every solver."""
    ratios, measured = _ratios(document), document["measurements"]
    solvers = dict.fromkeys(row["solver"] for row in _solver_rows(document))
    found = []
    for row in rows(document, "flow", "kind", "tokens", "layer"):
        if row["kind"] != kind:
            continue
        place = f"{kind}/{row['tokens']}/{row['layer']}"
        line = {
            "tokens": row["tokens"],
            "layer": row["layer"],
            "attnflow_seconds": row["many_per_pair_seconds"],
            "one_position_seconds": row["one_position_per_pair_seconds"],
        }
        for solver in solvers:
            record = measured.get(f"solver/{solver}/{place}")
            line[_title(solver)] = _solver_cell(record, ratios.get(place, {}).get(solver))
        found.append(line)
    return found


def _solver_cell(record: Record | None, ratio: float | None) -> str:
    if record is None:
        return "-"
    if ratio is None:
        return str(record["reason"] if record["status"] == "stopped" else record["status"])
    cell = f"{duration(record['per_pair_seconds'])} {times(ratio)}"
    if record["pairs"] < min(10, record["asked"]):
        cell += f" ({record['pairs']} pair{'s' if record['pairs'] > 1 else ''})"
    return f"{cell} WRONG" if record["disagreements"] else cell


def _setup(document: Record) -> list[Record]:
    """Return set-up times of the first kind's deepest graphs; others cost the same to build."""
    kind, graphs = next(iter(document["options"]["graphs"].items()))
    top = str(graphs["layers"][-1])
    measured = ("setup", "building_per_pair", "empty_query", "per_pair")
    return [
        {
            **{name: row[name] for name in ("kind", "tokens", "layer")},
            "solver": _title(row["solver"]),
            **{f"{name}_seconds": row[f"{name}_seconds"] for name in measured},
            "pairs": row["pairs"],
        }
        for row in _solver_rows(document)
        if (row["kind"], row["layer"], row["status"]) == (kind, top, "measured")
    ]


def _growth(document: Record) -> list[Record]:
    """Fit seconds ~ tokens ** exponent, for one position and for all pairs of a layer."""
    series: dict[tuple[str, str], dict[int, Record]] = {}
    for row in rows(document, "flow", "kind", "tokens", "layer"):
        series.setdefault((row["kind"], row["layer"]), {})[int(row["tokens"])] = row
    fits = []
    for (kind, layer), flows in series.items():
        large = [n for n in sorted(flows) if n >= _LARGE]
        sizes = large if len(large) >= 3 else sorted(flows)
        if len(sizes) < 2:
            continue
        one = [flows[n]["one_position_seconds"] for n in sizes]
        # If tokens were sampled, all of them take the time of the sample over their share.
        every = [flows[n]["many_seconds"] * n / flows[n]["sampled"] for n in sizes]
        fits.append(
            {
                "kind": kind,
                "layer": layer,
                "sizes": " ".join(map(str, sizes)),
                "one_position_exponent": _exponent(sizes, one),
                "all_pairs_exponent": _exponent(sizes, every),
                "all_pairs_seconds": every[-1],
            }
        )
    return fits


def _exponent(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _all_pairs(document: Record) -> list[Record]:
    found = []
    for whole in rows(document, "all-pairs", "kind", "tokens"):
        what = f"attnflow: all {whole['pairs']:,} pairs of {whole['layers']} layers"
        seconds = {what: whole["seconds"]}
        for one in _solver_rows(document, "one-position"):
            what = f"{_title(one['solver'])}: one position of layer {one['layer']}"
            seconds[what] = None
            if one["status"] == "measured":
                seconds[what] = one["per_pair_seconds"] * int(one["tokens"])
        found += [
            {
                "kind": whole["kind"],
                "tokens": whole["tokens"],
                "what": what,
                "time_seconds": taken,
                "attnflow_over_it": taken and whole["seconds"] / taken,
            }
            for what, taken in seconds.items()
        ]
    return found


def _targets(document: Record) -> Iterator[Record]:
    ratios = _ratios(document)

    def value(name: str, key: str) -> float | None:
        found: float | None = document["measurements"].get(name, {}).get(key)
        return found

    for tokens, layer, aim in ((128, 4, 30), (128, 6, 30), (512, 4, 80), (512, 6, 200)):
        found = ratios.get(f"real/{tokens}/{layer}", {})
        note = ""
        if "ortools" in found and min(found.values()) < found["ortools"]:
            fastest = min(found, key=lambda name: found[name])
            ratio = times(found[fastest])
            note = f"{_title(fastest)} is faster than OR-tools here: {ratio} against it"
        name = f"against OR-tools, {tokens} tokens, layer {layer}"
        yield target(name, ">=", aim, "x", found.get("ortools"), note)

    over = {
        row["what"]: row["attnflow_over_it"]
        for row in _all_pairs(document)
        if (row["kind"], row["tokens"]) == ("real", "128")
    }
    for solver in ("OR-tools", "igraph"):
        what = f"{solver}: one position of layer 6"
        name = f"all pairs of all layers over {what}, 128 tokens"
        yield target(name, "<=", 10, "x", over.get(what))

    shares = {
        row["tokens"]: row["flow_over_forward"]
        for row in rows(document, "forward", "kind", "tokens", "given")
        if row["given"] == "1"
    }
    # Without the largest size, this says nothing about "up to 512 tokens".
    worst = max(shares, key=lambda tokens: shares[tokens]) if "512" in shares else ""
    note = f"at {worst} tokens, one thread each" if worst else ""
    name = "flow of CLS over the forward pass, worst size up to 512 tokens"
    yield target(name, "<", 1, "x", shares.get(worst), note)

    for tokens, most in ((128, 1.5), (512, 2.5)):
        for method in ("rollout", "flow"):
            name = f"explaining a text by {method} over the forward pass, {tokens} tokens"
            share = value(f"explain/real/{tokens}", f"{method}_over_forward")
            yield target(name, "<=", most, "x", share)

    threads = document["options"]["threads"]
    for tokens in (128, 512):
        for layer in (4, 6):
            name = f"{threads} threads over one, {tokens} tokens, layer {layer}"
            gain = value(f"threads/real/{tokens}/{layer}", "one_over_several")
            yield target(name, ">=", 1.7, "x", gain)

    name = "rollout of one position over the full product, 512 tokens"
    yield target(name, ">=", 20, "x", value("rollout/real/512", "all_over_one"))
    yield target("import attnflow", "<", 0.2, " s", value("import", "import_attnflow_seconds"))
    name = "memory of a flow call per edge, one thread, 512 tokens"
    yield target(name, "<=", 40, " bytes", value("memory/real/512/6/1", "bytes_per_edge"))
