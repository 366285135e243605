"""The report of the data-set benchmark: from measurements to ratios, targets and tables."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.datasets import METHODS
from benchmarks.tables import Record, rows, target


def tables(document: Record) -> dict[str, list[Record]]:
    """Return the tables by their names in the page.

    Args:
        document: The results of a run.
    """
    engines = rows(document, "whole", "engine")
    for row in engines:
        local = document["measurements"].get("whole/local", row)
        row["over_local_seconds"] = row["run_seconds"] - local["run_seconds"]
    return {
        "texts_per_second": _ratios(document, "texts_per_second"),
        "targets": list(_targets(document)),
        "texts_per_cpu_second": _ratios(document, "texts_per_cpu_second"),
        "engines": engines,
        "memory": [
            {name: value for name, value in row.items() if name != "samples"}
            for row in rows(document, "memory", "engine")
        ],
    }


def remarks(document: Record) -> list[str]:
    """Return nothing: there are no answers that could be wrong."""
    return []


def _ratios(document: Record, per: str) -> list[Record]:
    """Return the rates of the local engine over those of the loop and of the forward pass.

    Args:
        document: The results of a run.
        per: "texts_per_second", or "texts_per_cpu_second", which leaves out waiting.
    """
    found = []
    for row in rows(document, "dataset", "tokens"):
        rates = row[per]
        forward = max(rates["forward/threads"], rates["forward/processes"])
        for method in METHODS:
            run, loop = rates[f"local/{method}"], rates[f"loop/{method}"]
            found.append(
                {
                    "tokens": row["tokens"],
                    "method": method,
                    "attnflow_run": run,
                    "loop": loop,
                    "run_over_loop": run / loop,
                    "forward": forward,
                    "run_over_forward": run / forward,
                }
            )
    return found


def _targets(document: Record) -> Iterator[Record]:
    found = _ratios(document, "texts_per_second")
    for row in found:
        if row["tokens"] == "16" and row["method"] != "contribution":
            name = f"{row['method']} over a loop, 16 tokens"
            yield target(name, ">=", 3, "x", row["run_over_loop"])
    if found:
        worst = min(found, key=lambda row: float(row["run_over_loop"]))
        name = f"worst of all over a loop ({worst['method']}, {worst['tokens']} tokens)"
        yield target(name, ">=", 1, "x", worst["run_over_loop"])
    for row in found:
        if (row["tokens"], row["method"]) == ("64", "rollout"):
            name = "rollout over the forward pass, 64 tokens"
            yield target(name, ">=", 0.8, "x", row["run_over_forward"])
    for row in found:
        if row["method"] == "contribution" and row["tokens"] in ("16", "64"):
            name = f"contribution over the forward pass, {row['tokens']} tokens"
            yield target(name, ">=", 0.25, "x", row["run_over_forward"])
    memory = document["measurements"].get("memory/local", {})
    if memory.get("growth_bytes") is not None:
        name = f"growth of memory over {memory['texts']:,} texts, of its peak"
        share = 100 * memory["growth_bytes"] / memory["peak_bytes"]
        yield target(name, "<=", 2, " %", share)
