"""The report of the benchmark of contributions: from measurements to ratios, targets and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.contributions import TOLERANCE
from benchmarks.measure import ratio
from benchmarks.tables import Record, rows, target

_MODELS = {"classifier": "MiniLM classifier", "decoder": "SmolLM2"}
_WHAT = {
    "forward": "forward pass",
    "contribute": "contributions",
    "steps": "contributions, with every layer's",
    "explain": "Explainer.explain",
}


def tables(document: Record) -> dict[str, list[Record]]:
    """Return the tables by their names in the page.

    Args:
        document: The results of a run.
    """
    return {
        "cost": _cost(document),
        "decomposition": _decomposition(document),
        "targets": list(_targets(document)),
        "disagreements": document["disagreements"],
    }


def remarks(document: Record) -> list[str]:
    """Return whether contributions and the decomposition agree, in sentences.

    Args:
        document: The results of a run.
    """
    compared, wrong = len(_decomposition(document)), len(document["disagreements"])
    found = []
    if document["options"].get("quick"):
        found.append("This was a quick run. It shows that everything works, not how fast it is.")
    if wrong:
        found.append(f"{wrong} of {compared} forward decompositions DISAGREE with contributions.")
    elif compared:
        found.append(
            "Contributions and the forward decomposition agree: every score and the bias, within "
            f"{TOLERANCE:g} of the largest score."
        )
    return found


def _cost(document: Record) -> list[Record]:
    found = []
    for row in rows(document, "cost", "model", "tokens"):
        forward, least = row["seconds"]["forward"], row["peak_bytes"]["forward"]
        for name, seconds in row["seconds"].items():
            peak = row["peak_bytes"][name]
            found.append(
                {
                    "model": _MODELS[row["model"]],
                    "tokens": row["tokens"],
                    "threads": row["threads"],
                    "what": _WHAT[name],
                    "time_seconds": statistics.median(seconds),
                    **ratio("time_over_forward", seconds, forward),
                    "added_memory_bytes": peak,
                    "memory_over_forward": peak / least if peak and least else None,
                }
            )
    return found


def _decomposition(document: Record) -> list[Record]:
    found = []
    for row in rows(document, "decomposition", "model", "tokens"):
        ours, theirs = row["seconds"]["contribute"], row["seconds"]["decomposition"]
        found.append(
            {
                "model": _MODELS[row["model"]],
                "tokens": row["tokens"],
                "threads": row["threads"],
                "contributions_seconds": statistics.median(ours),
                "decomposition_seconds": statistics.median(theirs),
                **ratio("decomposition_over_contributions", theirs, ours),
                "largest_relative_difference": f"{float(row['relative_difference']):.1e}",
            }
        )
    return found


def _targets(document: Record) -> Iterator[Record]:
    for row in _cost(document):
        if row["what"] != _WHAT["forward"] and row["tokens"] in ("128", "512"):
            name = f"{row['what']} over the forward pass, {row['model']}, {row['tokens']} tokens"
            yield target(name, "<=", 3.5, "x", row["time_over_forward"])
    for row in _decomposition(document):
        if row["tokens"] == "128":
            name = f"forward decomposition over contributions, {row['model']}, 128 tokens"
            yield target(name, ">=", 20, "x", row["decomposition_over_contributions"])
