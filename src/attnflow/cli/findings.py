"""``attnflow paper saturation``, ``heads`` and ``script3``: measurements beyond the paper's own."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnflow.errors import OptionError
from attnflow.formats import check_path, without_nan
from attnflow.io.files import write_whole
from attnflow.io.progress import Progress
from attnflow.io.records import read_texts
from attnflow.models.verb_number import checkpoint
from attnflow.paper.data import verb_number
from attnflow.view import theme
from attnflow.view.figures import correlation_over_layers
from attnflow.view.tables import Report, Table

__all__ = [
    "add_heads",
    "add_saturation",
    "add_script3",
    "run_heads",
    "run_saturation",
    "run_script3",
]

ENDINGS = (".json", *theme.ENDINGS)
METHODS = ("raw", "rollout", "flow")


def add_saturation(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper saturation``."""
    _add(parser, 200)


def add_heads(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper heads``."""
    _add(parser, 500)


def add_script3(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper script3``."""
    _add(parser, 100, needed="a classifier fine-tuned on SST-2, as by attnflow paper train-sst2")


def run_saturation(args: argparse.Namespace) -> int:
    """Measure from which layer on flow no longer depends on the position."""
    from attnflow.paper.findings import saturation_by_layer

    return _run(args, saturation_by_layer, _saturation_report, _saturation_figure)


def run_heads(args: argparse.Namespace) -> int:
    """Measure how far each head agrees with blank-out."""
    from attnflow.paper.findings import heads

    return _run(args, heads, _heads_report, _heads_figure)


def run_script3(args: argparse.Namespace) -> int:
    """Compute Table 3 as the authors' script does, and with one change at a time."""
    from attnflow.paper.script import as_scripted

    return _run(args, as_scripted, _script3_report, _script3_figure)


# ---- Options -------------------------------------------------------------------------------------


def _add(parser: argparse.ArgumentParser, limit: int, *, needed: str | None = None) -> None:
    """Add the options of all three. `needed` describes a model that must be given."""
    usual = "any text model (default: the one that ships with attnflow)"
    parser.add_argument("--model", required=needed is not None, help=needed or usual)
    parser.add_argument(
        "--data", type=Path, required=True, help="a file of texts, as attnflow evaluate takes them"
    )
    parser.add_argument("--text-column", help="the column that has the text")
    parser.add_argument(
        "--limit", type=int, default=limit, metavar="N", help=f"texts to read (default: {limit})"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"save to a file: {', '.join(ENDINGS)}"
    )


def _run(
    args: argparse.Namespace,
    measure: Callable[..., dict[str, Any]],
    report: Callable[[dict[str, Any], str], Report],
    draw: Callable[[dict[str, Any]], Any],
) -> int:
    """Check the options, read the texts, load the model, measure, and give the result."""
    if args.limit < 1:
        raise OptionError(f"--limit is {args.limit}; expected 1 or more")
    if args.output is not None:
        check_path(args.output, ENDINGS, "--output")
    if not args.data.is_file():
        raise OptionError(f"--data {args.data} is not a file")

    def fault(number: int, reason: str) -> None:
        print(f"attnflow: {args.data}, line {number}: {reason} (skipped)", file=sys.stderr)

    read = read_texts(
        args.data,
        text_column=args.text_column,
        limit=args.limit,
        on_fault=fault,
        dialect=verb_number,
    )
    texts = [text.text for text in read]
    from attnflow.models import Explainer

    explainer = Explainer.from_pretrained(args.model or checkpoint(), device=args.device)
    with Progress(measure.__name__.replace("_", " "), "texts") as progress:
        found = measure(explainer, texts, progress=progress.update)
    # Some numbers, such as the interval of a single text, are not defined.
    content = json.dumps(without_nan(found), allow_nan=False, indent=1)
    if args.output is not None:
        ending = args.output.suffix.lower()
        saved = content + "\n" if ending == ".json" else theme.content(draw(found), ending)
        write_whole(args.output, saved)
        print(f"saved {args.output}", file=sys.stderr)
    if args.json:
        print(content)
    else:
        report(found, explainer.name).show()
    return 0


# ---- Saturation ----------------------------------------------------------------------------------


def _saturation_report(found: dict[str, Any], model: str) -> Report:
    measured = zip(found["pairs"], found["position"], found["spread"], strict=True)
    table = Table(
        "How much of the flow is saturated",
        ["layer", "pairs saturated", "of the position", "spread"],
        [
            [str(layer), f"{pairs:.1%}", f"{position:.1%}", f"{spread:.3f}"]
            for layer, (pairs, position, spread) in enumerate(measured, start=1)
        ],
        left=0,
    )
    note = "spread: how much the flows to one token differ between positions; 0 is not at all"
    return Report(f"{found['count']:,} texts, means over texts; {model}", [table], [note])


def _saturation_figure(found: dict[str, Any]) -> Any:
    curves = {"saturated pairs": found["pairs"], "spread of flow": found["spread"]}
    return correlation_over_layers(curves, ylabel="share of pairs; relative spread")[0]


# ---- Heads ---------------------------------------------------------------------------------------


def _heads_report(found: dict[str, Any], model: str) -> Report:
    tables = []
    for method in METHODS:
        layers, fused = found[method], found["fused"][method]
        names = ["layer", *(f"head {head}" for head in range(len(layers[0]))), "mean of heads"]
        rows = [
            [str(number), *(f"{cell['mean']:.2f}" for cell in (*row, fused[number - 1]))]
            for number, row in enumerate(layers, start=1)
        ]
        tables.append(Table(method, names, rows, _significant(layers)))
    headline = f"{found['count']:,} texts; mean Spearman correlation with blank-out; {model}"
    return Report(headline, tables, [])


def _significant(layers: list[list[dict[str, Any]]]) -> list[str]:
    """List the heads that agree better than the mean of their layer, and count the worse."""
    found = [
        (layer, head, cell)
        for layer, row in enumerate(layers, start=1)
        for head, cell in enumerate(row)
        if cell["p_holm"] <= 0.05
    ]
    better = [item for item in found if item[2]["difference"] > 0]
    lines = [
        "better than the mean of their layer's heads (p <= .05 after Holm's correction): "
        f"{len(better)} of {sum(map(len, layers))}; worse: {len(found) - len(better)}"
    ]
    for layer, head, cell in sorted(better, key=lambda item: -item[2]["difference"]):
        low, high = cell["difference_ci"]
        lines.append(
            f"  layer {layer} head {head}: {cell['difference']:+.2f} ({low:+.2f} to {high:+.2f})"
        )
    return lines


def _heads_figure(found: dict[str, Any]) -> Any:
    layers, count = len(found["raw"]), len(found["raw"][0]) + 1
    figure = theme.new_figure(min(11.0, 1.4 + 1.05 * count), 0.9 + 0.3 * layers)
    for ax, method in zip(figure.subplots(1, 3, sharey=True), METHODS, strict=True):
        means = [
            [cell["mean"] for cell in (*row, fused)]
            for row, fused in zip(found[method], found["fused"][method], strict=True)
        ]
        # A scale of red and blue would be one grey in print. This one is dark at +1, light at -1.
        image = ax.imshow(means, cmap=theme.scale(), vmin=-1, vmax=1, origin="lower", aspect="auto")
        theme.dress(ax)
        theme.set_title(ax, method)
        ax.axvline(count - 1.5, color="white", linewidth=2.0)
        theme.set_ticks(ax.xaxis, range(count), [*map(str, range(count - 1)), "all"])
        theme.set_ticks(ax.yaxis, range(layers), [f"L{layer + 1}" for layer in range(layers)])
        theme.put_text(ax.xaxis.label, "head", theme.TEXT_SIZE)
        for row, numbers in enumerate(means):
            for head, mean in enumerate(numbers):
                text = ax.text(head, row, " ", ha="center", va="center")
                # Zero is written without a sign.
                digits = f"{round(mean, 2) + 0.0:.2f}".replace("0.", ".")
                theme.put_text(text, digits, 5.5, color=theme.readable((mean + 1) / 2))
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.9, aspect=20, pad=0.01)
    bar.ax.tick_params(labelsize=theme.SMALL_SIZE, length=2)
    theme.put_text(bar.ax.yaxis.label, "mean Spearman correlation", theme.SMALL_SIZE)
    return figure


# ---- The authors' script -------------------------------------------------------------------------


def _script3_report(found: dict[str, Any], model: str) -> Report:
    from attnflow.paper.tables import TABLES

    scores = {"all": "largest of all positions", "cls": "of CLS"}
    gradients = {
        "script": "sum, as in the script",
        "sum": "sum, ties ranked properly",
        "norm": "norm",
    }
    layers = [layer for layer in TABLES[3].layers if layer <= len(found["all"]["script"]["raw"])]
    tables = []
    for variant, of in scores.items():
        for reference, gradient in gradients.items():
            rows = []
            for method in METHODS:
                cells = [found[variant][reference][method][layer - 1] for layer in layers]
                shown = (f"{cell['mean']:.2f} \u00b1 {cell['std']:.2f}" for cell in cells)
                rows.append([method, *shown])
            columns = ["", *(f"L{layer}" for layer in layers)]
            tables.append(Table(f"scores: {of}; gradient: {gradient}", columns, rows))
    headline = f"{found['count']:,} texts; mean Spearman correlation with gradients; {model}"
    note = f"The sum is {found['share']:.1e} of the norm of the same gradient: rounding."
    return Report(headline, tables, [note])


def _script3_figure(found: dict[str, Any]) -> Any:
    script = found["all"]["script"]
    curves = {method: [cell["mean"] for cell in row] for method, row in script.items()}
    return correlation_over_layers(curves)[0]
