"""From a document of measurements to tables: for a terminal, as plain text, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.bench.inputs import KINDS
from attnflow.bench.processes import SETUP_LIMIT
from attnflow.bench.results import Record
from attnflow.bench.solvers import SOLVERS

__all__ = ["Table", "agreement", "markdown", "plain", "rich_table", "summary", "tables"]


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        title: what it shows.
        columns: names of the columns.
        rows: the cells, as many in each row as there are columns.
        note: what a reader must know to read it, empty if nothing.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def summary(document: Record) -> Record:
    """Work out what the measurements mean.

    Args:
        document: as `results.load` gives it.

    Returns:
        The ratios, the growth of cost with the number of tokens, and the targets: what the
        benchmark prints, as numbers.
    """
    return {
        "ratios": _ratios(document),
        "growth": _growth(document),
        "targets": _targets(document),
        "agree": not document["disagreements"] and not _failed(document),
        "compared": sum(
            record.get("pairs", 0) for _, record in _records(document, "solver", "one-position")
        ),
    }


def tables(document: Record) -> list[Table]:
    """Return every table that has a row.

    Args:
        document: as `results.load` gives it.

    Returns:
        The comparison with the other solvers per kind of attention, the targets, and the rest.
    """
    every = [
        *_comparison_tables(document),
        _target_table(document),
        _setup_table(document),
        _growth_table(document),
        _forward_table(document),
        _explain_table(document),
        _rollout_table(document),
        _all_pairs_table(document),
        _thread_table(document),
        _other_table(document),
        _disagreement_table(document),
    ]
    return [table for table in every if table.rows]


# Reading the document ------------------------------------------------------------------------


def _records(document: Record, *jobs: str) -> Iterator[tuple[list[str], Record]]:
    """Go through the records of some jobs, each with the parts of its name after the job."""
    for name, record in document["measurements"].items():
        job, *parts = name.split("/")
        if job in jobs:
            yield parts, record


def _get(document: Record, name: str) -> Record | None:
    record: Record | None = document["measurements"].get(name)
    return record


def _solvers(document: Record) -> list[str]:
    return list(dict.fromkeys(parts[0] for parts, _ in _records(document, "solver")))


def _title(solver: str) -> str:
    return SOLVERS[solver].title if solver in SOLVERS else solver


def _failed(document: Record) -> list[str]:
    return [
        f"{_title(parts[0])} on {', '.join(parts[1:])}: {record['reason']}"
        for parts, record in _records(document, "solver", "one-position")
        if record["status"] == "failed"
    ]


def _ratios(document: Record) -> list[Record]:
    """Each solver's seconds per pair over attnflow's, for every graph."""
    found = []
    for (kind, tokens, layer), flow in _records(document, "flow"):
        ratios = {}
        for solver in _solvers(document):
            record = _get(document, f"solver/{solver}/{kind}/{tokens}/{layer}")
            if record is not None and record["status"] == "measured":
                ratios[solver] = record["seconds_per_pair"] / flow["many"]["seconds_per_pair"]
        found.append(
            {
                "kind": kind,
                "tokens": int(tokens),
                "layer": int(layer),
                "ratios": ratios,
                "fastest": min(ratios, key=lambda name: ratios[name]) if ratios else None,
            }
        )
    return found


def _growth(document: Record) -> list[Record]:
    """Fit seconds ~ tokens ** exponent, for one position and for all pairs of a layer.

    From 64 tokens on if at least three such sizes were measured: below that, what a call costs
    whatever its size bends the line.
    """
    series: dict[tuple[str, int], dict[int, Record]] = {}
    for (kind, tokens, layer), flow in _records(document, "flow"):
        series.setdefault((kind, int(layer)), {})[int(tokens)] = flow
    fits = []
    for (kind, depth), flows in series.items():
        large = [n for n in sorted(flows) if n >= 64]
        sizes = large if len(large) >= 3 else sorted(flows)
        if len(sizes) < 2:
            continue
        one = [flows[n]["one"]["seconds"] for n in sizes]
        # Where tokens were sampled, the time for all is that for the sample times their share.
        every = [flows[n]["many"]["seconds"] * n / flows[n]["many"]["tokens"] for n in sizes]
        fits.append(
            {
                "kind": kind,
                "layer": depth,
                "sizes": sizes,
                "one_position": _exponent(sizes, one),
                "all_pairs": _exponent(sizes, every),
                "all_pairs_seconds": every[-1],
            }
        )
    return fits


def _exponent(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _targets(document: Record) -> list[Record]:
    """What was aimed at, what was measured, and whether that is enough."""
    found: list[Record] = []

    def add(name: str, sign: str, aim: float, unit: str, value: float | None, note: str) -> None:
        met = None
        if value is not None:
            met = {">=": value >= aim, "<=": value <= aim, "<": value < aim}[sign]
        found.append(
            {
                "name": name,
                "target": f"{sign} {aim:g}{unit}",
                "value": value,
                "unit": unit,
                "met": met,
                "note": note,
            }
        )

    ratios = {(r["kind"], r["tokens"], r["layer"]): r for r in _ratios(document)}
    for tokens, layer, aim in ((128, 4, 30), (128, 6, 30), (512, 4, 80), (512, 6, 200)):
        entry = ratios.get(("real", tokens, layer))
        value, note = None, ""
        if entry is not None and "ortools" in entry["ratios"]:
            value = entry["ratios"]["ortools"]
            fastest = entry["fastest"]
            if fastest != "ortools":
                times = _number(entry["ratios"][fastest])
                note = f"{_title(fastest)} is faster than OR-tools here: {times}x against it"
        add(f"against OR-tools, {tokens} tokens, layer {layer}", ">=", aim, "x", value, note)

    whole = _get(document, "all-pairs/real/128")
    for solver in ("ortools", "igraph"):
        one = _get(document, f"one-position/{solver}/real/128/6")
        value, note = None, ""
        if whole is not None and one is not None and one["status"] == "measured":
            value = whole["seconds"] / one["seconds"]
            note = f"{_time(whole['seconds'])} against {_time(one['seconds'])}"
        add(
            "all pairs of all layers at 128 tokens, against one position of layer 6 by "
            f"{_title(solver)}",
            "<=",
            10,
            "x",
            value,
            note,
        )

    shares = {
        int(tokens): record["one_thread"]["flow"]["seconds"]
        / record["one_thread"]["forward"]["seconds"]
        for (_, tokens), record in _records(document, "forward")
    }
    worst = max(shares, key=lambda n: shares[n], default=None)
    # Without the largest size this says nothing about "up to 512 tokens".
    measured = worst is not None and 512 in shares
    add(
        "flow of CLS over the forward pass, worst size up to 512 tokens",
        "<",
        1,
        "x",
        shares[worst] if worst is not None and measured else None,
        f"at {worst} tokens, one thread each" if measured else "",
    )

    for tokens, most in ((128, 1.5), (512, 2.5)):
        explained = _get(document, f"explain/real/{tokens}")
        for method in ("rollout", "flow"):
            add(
                f"explaining a text by {method} over the forward pass, {tokens} tokens",
                "<=",
                most,
                "x",
                None
                if explained is None
                else explained[method]["seconds"] / explained["forward"]["seconds"],
                "",
            )

    for tokens in (128, 512):
        for layer in (4, 6):
            record = _get(document, f"threads/real/{tokens}/{layer}")
            usable = record is not None and record["threads"] == 2
            add(
                f"two threads over one, {tokens} tokens, layer {layer}",
                ">=",
                1.7,
                "x",
                record["ratio"] if record is not None and usable else None,
                "",
            )

    rollout = _get(document, "rollout/real/512")
    add(
        "rollout of one position over the full product, 512 tokens",
        ">=",
        20,
        "x",
        None if rollout is None else rollout["full"]["seconds"] / rollout["one"]["seconds"],
        "",
    )
    imported = _get(document, "import")
    add("import attnflow", "<", 0.2, " s", None if imported is None else imported["seconds"], "")
    memory = _get(document, "memory/real/512/6")
    add(
        "memory of a flow call per edge, one thread, 512 tokens",
        "<=",
        40,
        " bytes",
        None if memory is None else memory["one"]["bytes_per_edge"],
        "",
    )
    return found


# Tables --------------------------------------------------------------------------------------


def _comparison_tables(document: Record) -> Iterator[Table]:
    solvers = _solvers(document)
    ratios = {(r["kind"], r["tokens"], r["layer"]): r for r in _ratios(document)}
    for kind in dict.fromkeys(parts[0] for parts, _ in _records(document, "flow")):
        rows = []
        for (found, tokens, layer), flow in _records(document, "flow"):
            if found != kind:
                continue
            entry = ratios[kind, int(tokens), int(layer)]
            cells = [
                _solver_cell(
                    _get(document, f"solver/{solver}/{kind}/{tokens}/{layer}"),
                    entry["ratios"].get(solver),
                )
                for solver in solvers
            ]
            rows.append(
                (
                    tokens,
                    layer,
                    _time(flow["many"]["seconds_per_pair"]),
                    _time(flow["one"]["seconds_per_pair"]),
                    *cells,
                )
            )
        yield Table(
            f"Time per pair: {kind}",
            ("tokens", "layer", "attnflow", "one position", *map(_title, solvers)),
            tuple(rows),
            f"{kind}: {KINDS.get(kind, kind)}. attnflow: all positions and many tokens in one "
            "call; one position: one position and all tokens in one call. The others: time per "
            "pair without set-up, its ratio to attnflow's, and the number of pairs if below 10.",
        )


def _solver_cell(record: Record | None, ratio: float | None) -> str:
    if record is None:
        return "-"
    if record["status"] != "measured" or ratio is None:
        return str(record["reason"] if record["status"] == "stopped" else record["status"])
    cell = f"{_time(record['seconds_per_pair'])} {_number(ratio)}x"
    if record["pairs"] < min(10, record["asked"]):
        cell += f" ({record['pairs']} pair{'s' if record['pairs'] > 1 else ''})"
    if record["disagreements"]:
        cell += " WRONG"
    return cell


def _target_table(document: Record) -> Table:
    rows = []
    for target in _targets(document):
        value = target["value"]
        rows.append(
            (
                target["name"],
                target["target"],
                "-" if value is None else f"{_number(value)}{target['unit']}",
                {True: "met", False: "not met", None: "not measured"}[target["met"]],
                target["note"],
            )
        )
    return Table("Targets", ("what", "target", "measured", "result", "note"), tuple(rows))


def _setup_table(document: Record) -> Table:
    """The first kind of attention and its deepest graphs: the others cost the same to build."""
    first = next((parts[1] for parts, _ in _records(document, "solver")), None)
    depths = [int(parts[3]) for parts, _ in _records(document, "solver") if parts[1] == first]
    rows = []
    for (solver, kind, tokens, layer), record in _records(document, "solver"):
        if kind != first or int(layer) != max(depths) or record["status"] != "measured":
            continue
        floor = record["floor_seconds"]
        rows.append(
            (
                kind,
                tokens,
                layer,
                _title(solver),
                _time(record["setup_seconds"]),
                _time(record["building_per_pair"]) if solver == "pymaxflow" else "-",
                "-" if floor is None else _time(floor),
                _time(record["seconds_per_pair"]),
                str(record["pairs"]),
            )
        )
    return Table(
        "Set-up and fixed cost",
        (
            "kind",
            "tokens",
            "layer",
            "solver",
            "set-up",
            "building per pair",
            "empty query",
            "per pair",
            "pairs",
        ),
        tuple(rows),
        "Set-up: building the graph, once. Empty query: a query between two tokens, whose flow "
        "is 0 because no edge leaves a token; it is what the library spends on every call "
        "whatever the answer, such as building an inner graph anew.",
    )


def _growth_table(document: Record) -> Table:
    return Table(
        "Growth of attnflow's cost with the number of tokens",
        ("kind", "layer", "sizes", "one position", "all pairs of the layer", "all pairs take"),
        tuple(
            (
                fit["kind"],
                str(fit["layer"]),
                " ".join(map(str, fit["sizes"])),
                f"n^{fit['one_position']:.2f}",
                f"n^{fit['all_pairs']:.2f}",
                f"{_time(fit['all_pairs_seconds'])} at {fit['sizes'][-1]}",
            )
            for fit in _growth(document)
        ),
        "Exponents fitted by least squares to the logarithms. The graph has n^2 edges a layer; one "
        "position has n pairs, all pairs are n^2. Above 128 tokens, all pairs are extrapolated "
        "from all positions and 16 tokens.",
    )


def _forward_table(document: Record) -> Table:
    rows = []
    for (_, tokens), record in _records(document, "forward"):
        for part in ("one_thread", "default_threads"):
            flow = record[part]["flow"]["seconds"]
            forward = record[part]["forward"]["seconds"]
            rows.append(
                (
                    tokens,
                    str(record[part]["threads"]),
                    _time(flow),
                    _time(forward),
                    f"{_number(flow / forward)}x",
                    _time(record["graph"]["seconds"]),
                )
            )
    return Table(
        "Flow of CLS in the top layer against the model's forward pass",
        ("tokens", "threads", "flow", "forward", "flow / forward", "making the graph"),
        tuple(rows),
        "The forward pass uses the attention implementation the model loads with by default. "
        "Making the graph is checking and averaging the heads' weights, which is apart from both; "
        "it is done once for any number of flow and rollout calls.",
    )


def _explain_table(document: Record) -> Table:
    rows = []
    for (_, tokens), record in _records(document, "explain"):
        forward = record["forward"]["seconds"]
        cells = [
            f"{_time(record[method]['seconds'])} {_number(record[method]['seconds'] / forward)}x"
            for method in ("raw", "rollout", "flow")
        ]
        rows.append((tokens, str(record["threads"]), _time(forward), *cells))
    return Table(
        "A whole explanation against the model's forward pass",
        ("tokens", "threads", "forward", "raw", "rollout", "flow"),
        tuple(rows),
        "`Explainer.explain` of a text at CLS, from the tokenizer to the scores of every layer. "
        "The forward pass alone uses the attention implementation the model loads with by default.",
    )


def _rollout_table(document: Record) -> Table:
    rows = []
    for (kind, tokens), record in _records(document, "rollout"):
        layers = [
            int(parts[2]) for parts, _ in _records(document, "flow") if parts[:2] == [kind, tokens]
        ]
        flow = _get(document, f"flow/{kind}/{tokens}/{max(layers)}") if layers else None
        one, full = record["one"]["seconds"], record["full"]["seconds"]
        seconds = None if flow is None else flow["one"]["seconds"]
        rows.append(
            (
                kind,
                tokens,
                _time(one),
                _time(full),
                f"{_number(full / one)}x",
                "-" if seconds is None else _time(seconds),
                "-" if seconds is None else f"{_number(seconds / one)}x",
            )
        )
    return Table(
        "Rollout, and flow against rollout",
        (
            "kind",
            "tokens",
            "rollout, one position",
            "rollout, all",
            "all / one",
            "flow, same position",
            "flow / rollout",
        ),
        tuple(rows),
        "Rollout of all layers, NumPy on one thread; flow of the top layer, all tokens.",
    )


def _all_pairs_table(document: Record) -> Table:
    rows = []
    for (kind, tokens), whole in _records(document, "all-pairs"):
        rows.append(
            (
                kind,
                tokens,
                f"attnflow: all {whole['pairs']:,} pairs of {whole['layers']} layers",
                _time(whole["seconds"]),
                "",
            )
        )
        for (solver, other, size, layer), one in _records(document, "one-position"):
            if (other, size) == (kind, tokens):
                measured = one["status"] == "measured"
                rows.append(
                    (
                        kind,
                        tokens,
                        f"{_title(solver)}: {size} pairs, one position of layer {layer}",
                        _time(one["seconds"]) if measured else one["reason"],
                        f"{_number(whole['seconds'] / one['seconds'])}x" if measured else "-",
                    )
                )
    return Table(
        "All pairs of all layers against one position",
        ("kind", "tokens", "what", "time", "attnflow's time over it"),
        tuple(rows),
    )


def _thread_table(document: Record) -> Table:
    return Table(
        "Threads",
        ("kind", "tokens", "layer", "one thread", "several", "threads", "ratio"),
        tuple(
            (
                *parts,
                _time(record["one"]["seconds"]),
                _time(record["several"]["seconds"]),
                str(record["threads"]),
                f"{record['ratio']:.2f}x",
            )
            for parts, record in _records(document, "threads")
        ),
        "All positions and the sampled tokens in one call.",
    )


def _other_table(document: Record) -> Table:
    rows = []
    imported = _get(document, "import")
    if imported is not None:
        rows.append(("import attnflow, fresh interpreter", _time(imported["seconds"])))
    for (kind, tokens, layer), record in _records(document, "memory"):
        for part in ("one", "several"):
            peak = record[part]
            value = "not measured on this system"
            if peak["bytes"] is not None:
                value = f"{peak['bytes'] / 1e6:.1f} MB, {peak['bytes_per_edge']:.1f} bytes per edge"
            call = f"{kind}, {tokens} tokens, layer {layer}, {record['edges']:,} edges"
            what = f"memory of a flow call beyond the graph, {call}, threads: {peak['threads']}"
            rows.append((what, value))
    return Table("Import and memory", ("what", "measured"), tuple(rows))


def _disagreement_table(document: Record) -> Table:
    return Table(
        "DISAGREEMENTS",
        (
            "solver",
            "kind",
            "tokens",
            "layer",
            "position",
            "token",
            "attnflow",
            "other",
            "tolerance",
        ),
        tuple(
            (
                _title(wrong["solver"]),
                wrong["kind"],
                *(str(wrong[name]) for name in ("tokens", "layer", "position", "token")),
                repr(wrong["attnflow"]),
                repr(wrong["other"]),
                f"{wrong['tolerance']:g}" if wrong["tolerance"] else "equal integers",
            )
            for wrong in document["disagreements"]
        ),
    )


def agreement(document: Record) -> list[str]:
    """Say in a few lines whether the run is whole and all solvers agree.

    Args:
        document: as `results.load` gives it.

    Returns:
        Lines of text.
    """
    found = summary(document)
    wrong, failed = len(document["disagreements"]), _failed(document)
    lines = []
    if not document["complete"]:
        lines.append("This run is incomplete: it was stopped before everything was measured.")
    lines.extend(f"Left out: {reason}" for reason in document["left_out"])
    lines.extend(f"Failed: {failure}" for failure in failed)
    if wrong:
        lines.append(f"{wrong} of {found['compared']} answers DISAGREE with attnflow's.")
    elif found["compared"]:
        lines.append(f"All {found['compared']} answers of the other solvers agree with attnflow's.")
    return lines


# Writing -------------------------------------------------------------------------------------


def plain(table: Table) -> str:
    """Write a table as text in columns.

    Example:
        >>> print(plain(Table("Sizes", ("n", "time"), (("16", "3 us"), ("128", "20 us")))))
        Sizes
        <BLANKLINE>
        n    time
        16   3 us
        128  20 us
    """
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, "", *text, *(["", table.note] if table.note else [])])


def _command(options: Record) -> str:
    """Return the command that makes a page with the same options again."""
    words = ["attnflow bench", f"--kinds {','.join(options['kinds'])}"]
    if options["tokens"] is not None:
        words.append(f"--tokens {','.join(map(str, options['tokens']))}")
    words.append(f"--budget {options['budget']:g} --seed {options['seed']}")
    if options["quick"]:
        words.append("--quick")
    return " ".join([*words, "--output bench.json --markdown docs/benchmarks.md"])


_INTRODUCTION = """\
# Benchmarks

attnflow against general maximum-flow solvers, on the same attention graphs, in one run. This page
is written by the benchmark itself:

```
{command}
```

Machine: {cpu}, {cores} cores, {system}, load average {load:.2f} before the run. Date: {date}.
Seed {seed}, budget {budget:g} s.
Versions: {packages}.

{agreement}
"""

_METHOD = """\
## How it is measured

Everything runs on one thread unless a table says otherwise. A pair is a position of the top layer
and an input token. The graph of top layer i has layers 1 to i, heads averaged, residual share 0.5,
and only the edges with a positive capacity. Capacities are integers, multiples of 2^-50.

attnflow is called through its public functions, on a graph that is made once. Its time per pair is
the time of a call for all positions and many tokens (all of them up to 128 tokens, 16 spread over
the text above that), divided by the number of pairs. Pairs that a causal mask makes 0 are not
counted. A time is the best of three after a warm-up. A call shorter than 20 ms is made several
times in each of the three, and their mean counts. A first call that takes longer than the budget
stands by itself.

The other solvers get the graph once and then a random sample of the same pairs, at most {pairs},
until {budget:g} s are used. If time is left they go through the sample again, and the best of up to
three passes counts. A solver that has not answered its first pair after {budget:g} s is stopped,
and is not tried on larger graphs of the same kind and layer. One that has not built its graph
after {setup:g} s is stopped, too. Each solver has a process of its own.

Every answer is compared with attnflow's. Solvers that compute with the same integers must give
equal integers; those that compute in floating point must be within 1e-9.

{hows}
"""


def markdown(document: Record) -> str:
    """Write the page about a run.

    Args:
        document: as `results.load` gives it.

    Returns:
        Markdown, with every table and how it was measured.
    """
    machine, versions, options = document["machine"], document["versions"], document["options"]
    introduction = _INTRODUCTION.format(
        cpu=machine["cpu"],
        cores=machine["cores"],
        system=machine["system"],
        load=document["load"],
        date=document["date"],
        command=_command(options),
        seed=options["seed"],
        budget=options["budget"],
        packages=", ".join(
            f"{name} {version}"
            for name, version in versions.items()
            if version is not None and name != "core"
        ),
        agreement="\n\n".join(agreement(document)),
    )
    method = _METHOD.format(
        budget=options["budget"],
        pairs=options["most_pairs"],
        setup=SETUP_LIMIT,
        hows="\n".join(
            f"- {solver.title}: {solver.how}."
            for name, solver in SOLVERS.items()
            if name in _solvers(document)
        ),
    )
    body = "\n\n".join(_markdown_table(table) for table in tables(document))
    return f"{introduction}\n{body}\n\n{method}"


def _markdown_table(table: Table) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    body = [line(table.columns), line(("---",) * len(table.columns)), *map(line, table.rows)]
    return "\n\n".join(
        [f"## {table.title}", *([table.note] if table.note else []), "\n".join(body)]
    )


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * factor:
            return f"{_number(seconds / factor)} {unit}"
    return f"{_number(seconds * 1e6)} us"


def _number(value: float) -> str:
    """Three significant digits, written out."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    rounded = round(value, 2 - math.floor(math.log10(abs(value))))
    return f"{rounded:,.{digits}f}"


def rich_table(table: Table) -> Any:
    """Return a table as rich draws it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.title, caption=table.note or None, title_justify="left")
    for name in table.columns:
        drawn.add_column(name)
    for row in table.rows:
        # Text, not markup: what stands in brackets in a cell is shown as it is.
        drawn.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return drawn


def _style(cell: str) -> str:
    if cell == "met":
        return "green"
    return "red" if cell == "not met" or cell.endswith("WRONG") else ""
