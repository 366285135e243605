"""The report of the benchmark of long texts: from measurements to fits, targets and sizing.

Memory is in GB of 10^9 bytes, as in the targets.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.long import MAX_TOKENS
from benchmarks.measure import ratio
from benchmarks.tables import Record, rows, target

FITTED = (2048, 8192)
"""The text lengths that fits are made of: from the first to the second."""

SIZED = (32_768, 131_072)
"""The text lengths that memory and time are computed for."""

# The shape of Llama 3 8B and models like it, in bfloat16.
LLAMA_8B = {
    "layers": 32,
    "heads": 32,
    "key_value_heads": 8,
    "head_size": 128,
    "width": 4096,
    "bytes_per_number": 2,
    "parameters": 8_030_000_000,
}

_WHAT = {
    "forward": "forward pass",
    "rollout": "rollout",
    "contribution": "contributions",
    "flow": "flow",
}
# At most so many GB over the forward pass, and so many times its time.
_TARGETS = {"rollout": (1.0, 4.0), "contribution": (2.0, 4.5)}
_MOST_EXPONENT = 1.2
# One number of 8 bytes for every edge; what is computed with it comes on top.
_BYTES_PER_EDGE = 8

Points = Sequence[tuple[float, float]]
"""Numbers of tokens, with what was measured there."""


def tables(document: Record) -> dict[str, list[Record]]:
    """Return the tables by their names in the page.

    Args:
        document: The results of a run.
    """
    return {
        "cost": _cost(document),
        "not_measured": _not_measured(document),
        "exponents": _exponents(document),
        "short_texts": _short(document),
        "targets": list(_targets(document)),
        "sizing": _sizing(document),
        "kept": _kept(document),
        "shapes": _shapes(document),
    }


def remarks(document: Record) -> list[str]:
    """Return what a reader must know about the measurements, in sentences.

    Args:
        document: The results of a run.
    """
    found = []
    if document["options"].get("quick"):
        found.append("This was a quick run. It shows that everything works, not how fast it is.")
    measured = _measured(document)
    if measured and all(row["peak_was_reset"] for row in measured):
        found.append("The peak was reset just before every measurement.")
    elif measured:
        found.append(
            "The peak could NOT be reset here (/proc/self/clear_refs): memory may be the peak of "
            "loading the model."
        )
    failed = [row for row in _not_measured(document) if row["status"] == "failed"]
    if failed:
        found.append(f"{len(failed)} of {len(document['measurements'])} measurements FAILED.")
    return found


# Fits --------------------------------------------------------------------------------------------


def exponent(points: Points) -> float | None:
    """Return k of y = c n^k, by least squares of the logarithms; None for less than two lengths.

    Example:
        >>> round(exponent([(1, 3.0), (2, 12.0), (4, 48.0)]), 6)
        2.0
    """
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(x, y, 1)[0])


def line(points: Points) -> tuple[float, float] | None:
    """Return c and a of y = c + a n, by least squares; None for less than two lengths.

    Example:
        >>> c, a = line([(1, 5.0), (2, 7.0), (3, 9.0)])
        >>> round(c, 6), round(a, 6)
        (3.0, 2.0)
    """
    if len(points) < 2:
        return None
    x, y = np.array(points, dtype=float).T
    slope, constant = np.polyfit(x, y, 1)
    return float(constant), float(slope)


def curve(points: Points) -> tuple[float, float] | None:
    """Return a and b of y = a n + b n^2, neither below 0; None for less than two lengths.

    The squares of relative errors are least: otherwise the longest text alone would count.

    Example:
        >>> a, b = curve([(1, 5.0), (2, 14.0), (3, 27.0)])
        >>> round(a, 6), round(b, 6)
        (3.0, 2.0)
    """
    if len(points) < 2:
        return None
    x, y = np.array(points, dtype=float).T
    columns = np.stack([x / y, x**2 / y], axis=1)
    found = np.linalg.lstsq(columns, np.ones(len(x)))[0]
    if found.min() < 0:
        # The best fit has one of them at 0.
        alone = columns.sum(axis=0) / (columns**2).sum(axis=0)
        errors = ((columns * alone - 1) ** 2).sum(axis=0)
        found = np.where(np.arange(2) == errors.argmin(), alone, 0.0)
    return float(found[0]), float(found[1])


# Tables ------------------------------------------------------------------------------------------


def _measured(document: Record) -> list[Record]:
    """Return what was measured of long texts: medians, and ratios to the forward pass."""
    found = [
        {
            **row,
            "tokens": int(row["tokens"]),
            "time": statistics.median(row["seconds"]),
            "cpu": statistics.median(row["cpu_seconds"]),
        }
        for row in rows(document, "long", "what", "tokens")
        if row["status"] == "measured"
    ]
    forward = {row["tokens"]: row for row in found if row["what"] == "forward"}
    for row in found:
        below = forward.get(row["tokens"])
        row["time_ratio"] = row["time"] / below["time"] if below else None
        row["extra"] = row["peak_bytes"] - below["peak_bytes"] if below else None
    return found


def _cost(document: Record) -> list[Record]:
    return [
        {
            "tokens": row["tokens"],
            "what": _WHAT[row["what"]],
            "time_seconds": row["time"],
            "time_over_forward": row["time_ratio"],
            "CPU_time_seconds": row["cpu"],
            "peak_GB": row["peak_bytes"] / 1e9,
            "GB above the forward pass": None if row["extra"] is None else row["extra"] / 1e9,
            "repeats": len(row["seconds"]),
        }
        for row in _measured(document)
    ]


def _not_measured(document: Record) -> list[Record]:
    return [
        {
            "tokens": int(row["tokens"]),
            "what": _WHAT.get(row.get("what", ""), "short text"),
            "status": row["status"],
            "reason": row["reason"],
        }
        for row in [
            *rows(document, "short", "tokens"),
            *rows(document, "long", "what", "tokens"),
        ]
        if row["status"] != "measured"
    ]


def _points(document: Record, what: str, name: str) -> list[tuple[float, float]]:
    low, high = FITTED
    return [
        (row["tokens"], row[name])
        for row in _measured(document)
        if row["what"] == what and low <= row["tokens"] <= high and row[name] is not None
    ]


def _exponents(document: Record) -> list[Record]:
    found = []
    for what, name in _WHAT.items():
        points = _points(document, what, "peak_bytes")
        memory = exponent(points)
        if memory is not None:
            found.append(
                {
                    "what": name,
                    "exponent of memory": memory,
                    "exponent of time": exponent(_points(document, what, "time")),
                    "lengths": ", ".join(f"{n:,}" for n, _ in points),
                }
            )
    return found


def _short(document: Record) -> list[Record]:
    found = []
    for row in rows(document, "short", "tokens"):
        for what, seconds in row.get("seconds", {}).items():
            found.append(
                {
                    "tokens": int(row["tokens"]),
                    "what": _WHAT[what],
                    "time_seconds": statistics.median(seconds),
                    **ratio("time_over_forward", seconds, row["seconds"]["forward"]),
                }
            )
    return found


def _targets(document: Record) -> Iterator[Record]:
    longest = {row["what"]: row for row in _measured(document) if row["tokens"] == MAX_TOKENS}
    for what, (most, slowest) in _TARGETS.items():
        row, name = longest.get(what, {}), f"{_WHAT[what]}, {MAX_TOKENS:,} tokens"
        extra = row.get("extra")
        above = None if extra is None else extra / 1e9
        yield target(f"{name}: peak memory over the forward pass's", "<=", most, " GB", above)
        yield target(
            f"{name}: time over the forward pass", "<=", slowest, "x", row.get("time_ratio")
        )
    low, high = FITTED
    for what in _TARGETS:
        points = _points(document, what, "peak_bytes")
        # A fit of other lengths says nothing about this target.
        whole = {n for n, _ in points} >= set(FITTED)
        name = f"{_WHAT[what]}: exponent of memory, {low:,} to {high:,} tokens"
        yield target(name, "<=", _MOST_EXPONENT, "", exponent(points) if whole else None)


# Sizing ------------------------------------------------------------------------------------------


def _sizing(document: Record) -> list[Record]:
    found = []
    for n in SIZED:
        for what in ("forward", *_TARGETS):
            memory = line(_points(document, what, "peak_bytes"))
            time = curve(_points(document, what, "time"))
            if memory is None or time is None:
                continue
            fixed, each = memory
            linear, square = time
            found.append(
                {
                    "tokens": n,
                    "what": _WHAT[what],
                    "memory_GB": (fixed + each * n) / 1e9,
                    "time_seconds": linear * n + square * n**2,
                    "fitted memory": f"{round(fixed / 1e6):,} MB + {each / 1e3:,.1f} kB n",
                    "fitted time": f"{linear * 1e3:.3g} ms n + {square * 1e9:.3g} ns n^2",
                }
            )
    return found


def kept(shape: Record) -> dict[str, int]:
    """Return how many bytes of every token are kept for all layers, by method.

    Args:
        shape: The sizes of a model, as `long.Case.shape` returns them.

    Example:
        >>> kept(LLAMA_8B)
        {'rollout': 327680, 'contribution': 262144}
    """
    queries_and_keys = (shape["heads"] + shape["key_value_heads"]) * shape["head_size"]
    each = shape["layers"] * shape["bytes_per_number"]
    return {"rollout": each * queries_and_keys, "contribution": each * shape["width"]}


def _shape(document: Record) -> Record | None:
    return next((row["shape"] for row in _measured(document)), None)


def _kept(document: Record) -> list[Record]:
    """Return what the formula says of the model, beside what was measured over the forward pass."""
    shape = _shape(document)
    found = []
    for what, computed in kept(shape).items() if shape else ():
        fitted = line(_points(document, what, "extra"))
        if fitted is not None:
            found.append(
                {
                    "what": _WHAT[what],
                    "kB a token, computed": computed / 1e3,
                    "kB a token, measured": fitted[1] / 1e3,
                    "measured_over_computed": fitted[1] / computed,
                }
            )
    return found


def _shapes(document: Record) -> list[Record]:
    shape = _shape(document)
    models = {} if shape is None else {"SmolLM2-135M": shape}
    models["Llama-8B shape, bfloat16"] = LLAMA_8B
    return [
        {
            "model": name,
            "tokens": n,
            "weights_GB": sizes["parameters"] * sizes["bytes_per_number"] / 1e9,
            **{f"kept_by_{_WHAT[what]}_GB": each * n / 1e9 for what, each in kept(sizes).items()},
            "flow's graph_GB": _BYTES_PER_EDGE * sizes["layers"] * n**2 / 1e9,
        }
        for name, sizes in models.items()
        for n in (MAX_TOKENS, *SIZED)
    ]
