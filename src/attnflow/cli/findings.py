"""``attnflow paper saturation``, ``heads`` and ``script3``: what the paper leaves open."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import OptionError
from attnflow.evaluate.texts import read_texts
from attnflow.files import write_whole
from attnflow.formats import without_nan
from attnflow.models.verb_number import checkpoint

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = [
    "add_heads",
    "add_saturation",
    "add_script3",
    "run_heads",
    "run_saturation",
    "run_script3",
]

ENDINGS = (".json", ".png", ".svg", ".pdf")
METHODS = ("raw", "rollout", "flow")

Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]


def add_saturation(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper saturation``."""
    _add(parser, 200)


def add_heads(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper heads``."""
    _add(parser, 500)


def add_script3(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper script3``."""
    _add(parser, 100, needed="a classifier fine-tuned on SST-2, as by attnflow paper train-sst2")


def run_saturation(args: argparse.Namespace, progress: Progress) -> int:
    """Measure from which layer on flow no longer depends on the position."""
    explainer, texts = _ready(args)
    from attnflow.paper.findings import saturation_by_layer

    with progress("saturation") as show:
        found = saturation_by_layer(explainer, texts, progress=show)
    if _given(args, found, _saturation_figure):
        return 0
    print(f"{found['count']:,} texts, means over texts; {explainer.name}")
    print(f"{'layer':>5}  {'pairs saturated':>15}  {'of the position':>15}  {'spread':>7}")
    rows = zip(found["pairs"], found["position"], found["spread"], strict=True)
    for layer, (pairs, position, spread) in enumerate(rows, start=1):
        print(f"{layer:>5}  {pairs:>15.1%}  {position:>15.1%}  {spread:>7.3f}")
    print("spread: how much the flows of one token differ between positions; 0 is not at all")
    return 0


def run_heads(args: argparse.Namespace, progress: Progress) -> int:
    """Measure how far every single head agrees with blank-out."""
    explainer, texts = _ready(args)
    from attnflow.paper.findings import heads

    with progress("heads") as show:
        found = heads(explainer, texts, progress=show)
    if _given(args, found, _heads_figure):
        return 0
    print(f"{found['count']:,} texts; mean Spearman correlation with blank-out; {explainer.name}")
    for method in METHODS:
        layers = found[method]
        print(f"\n{method}")
        names = [*(f"head {head}" for head in range(len(layers[0]))), "mean of heads"]
        print("layer" + "".join(f"{name:>{len(name) + 3}}" for name in names))
        for layer, row in enumerate(layers, start=1):
            cells = [*row, found["fused"][method][layer - 1]]
            print(
                f"{layer:>5}"
                + "".join(
                    f"{cell['mean']:>{len(name) + 3}.2f}"
                    for name, cell in zip(names, cells, strict=True)
                )
            )
        for line in _surer(layers):
            print(line)
    return 0


def run_script3(args: argparse.Namespace, progress: Progress) -> int:
    """Make Table 3 as the authors' script does, and change that one thing at a time."""
    explainer, texts = _ready(args)
    from attnflow.paper.script import REFERENCES, VARIANTS, as_scripted
    from attnflow.paper.tables import TABLES

    with progress("script") as show:
        found = as_scripted(explainer, texts, progress=show)
    if _given(args, found, _script3_figure):
        return 0
    print(f"{found['count']:,} texts; mean Spearman correlation with gradients; {explainer.name}")
    scores = {"all": "largest of all positions", "cls": "of CLS"}
    gradients = {
        "script": "sum, as in the script",
        "sum": "sum, ties ranked properly",
        "norm": "norm",
    }
    layers = [layer for layer in TABLES[3].layers if layer <= len(found["all"]["script"]["raw"])]
    for variant in VARIANTS:
        for reference in REFERENCES:
            print(f"\nscores: {scores[variant]}; gradient: {gradients[reference]}")
            print(f"{'':7}" + "".join(f"{f'L{layer}':>15}" for layer in layers))
            for method in METHODS:
                cells = [found[variant][reference][method][layer - 1] for layer in layers]
                shown = [f"{cell['mean']:.2f} ± {cell['std']:.2f}" for cell in cells]
                print(f"{method:7}" + "".join(f"{text:>15}" for text in shown))
    print(f"\nThe sum is {found['share']:.1e} of the norm of the same gradient: rounding.")
    return 0


def _surer(layers: list[list[dict[str, Any]]]) -> list[str]:
    """Say which heads agree better than the mean of their layer's heads, and how many worse."""
    sure = [
        (layer, head, cell)
        for layer, row in enumerate(layers, start=1)
        for head, cell in enumerate(row)
        if cell["p_holm"] <= 0.05
    ]
    better = sorted(
        (one for one in sure if one[2]["difference"] > 0), key=lambda one: -one[2]["difference"]
    )
    worse = len(sure) - len(better)
    count = sum(len(row) for row in layers)
    lines = [
        f"better than the mean of their layer's heads (p <= .05 after Holm's correction): "
        f"{len(better)} of {count}; worse: {worse}"
    ]
    for layer, head, cell in better:
        low, high = cell["difference_ci"]
        lines.append(
            f"  layer {layer} head {head}: {cell['difference']:+.2f} ({low:+.2f} to {high:+.2f})"
        )
    return lines


def _add(parser: argparse.ArgumentParser, limit: int, *, needed: str | None = None) -> None:
    """Add the options that all have; `needed` describes a model that has to be given."""
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


def _ready(args: argparse.Namespace) -> tuple["Explainer", Sequence[str]]:
    """Check the options, read the texts and load the model, in this order."""
    if args.limit < 1:
        raise OptionError(f"--limit is {args.limit}; expected 1 or more")
    if args.output is not None and args.output.suffix.lower() not in ENDINGS:
        raise OptionError(f"--output must end in {' or '.join(ENDINGS)}, got {str(args.output)!r}")
    if args.output is not None and not args.output.absolute().parent.is_dir():
        raise OptionError(f"{args.output} cannot be written: there is no such folder")
    if not args.data.is_file():
        raise OptionError(f"--data {args.data} is not a file")

    def fault(number: int, reason: str) -> None:
        print(f"attnflow: {args.data}, line {number}: {reason} (skipped)", file=sys.stderr)

    found = read_texts(args.data, text_column=args.text_column, limit=args.limit, on_fault=fault)
    texts = [text.text for text in found]
    from attnflow.models import Explainer

    return Explainer.from_pretrained(args.model or checkpoint(), device=args.device), texts


def _given(args: argparse.Namespace, found: dict[str, Any], draw: Callable[[Any], Any]) -> bool:
    """Save what was found, and print JSON, as asked for; return whether JSON was printed."""
    if args.output is not None:
        ending = args.output.suffix.lower()
        if ending == ".json":
            write_whole(args.output, _json(found) + "\n")
        else:
            from attnflow.view import theme

            write_whole(args.output, theme.content(draw(found), ending))
        print(f"saved {args.output}", file=sys.stderr)
    if args.json:
        print(_json(found))
    return bool(args.json)


def _json(found: dict[str, Any]) -> str:
    # Some numbers, such as the interval of a single text, are not defined.
    return json.dumps(without_nan(found), allow_nan=False, indent=1)


def _saturation_figure(found: dict[str, Any]) -> Any:
    from attnflow.view.figures import correlation_over_layers

    curves = {"saturated pairs": found["pairs"], "spread of flow": found["spread"]}
    figure, _ = correlation_over_layers(curves, ylabel="share of pairs; relative spread")
    return figure


def _script3_figure(found: dict[str, Any]) -> Any:
    from attnflow.view.figures import correlation_over_layers

    script = found["all"]["script"]
    curves = {method: [cell["mean"] for cell in row] for method, row in script.items()}
    figure, _ = correlation_over_layers(curves)
    return figure


def _heads_figure(found: dict[str, Any]) -> Any:
    from attnflow.view import theme

    layers, count = len(found["raw"]), len(found["raw"][0]) + 1
    figure = theme.new_figure(min(11.0, 1.4 + 1.05 * count), 0.9 + 0.3 * layers)
    for ax, method in zip(figure.subplots(1, 3, sharey=True), METHODS, strict=True):
        means = [
            [cell["mean"] for cell in (*row, fused)]
            for row, fused in zip(found[method], found["fused"][method], strict=True)
        ]
        # Red and blue of equal lightness would be one grey: this scale is dark at +1, light at -1.
        image = ax.imshow(means, cmap=theme.scale(), vmin=-1, vmax=1, origin="lower", aspect="auto")
        theme.dress(ax)
        theme.set_title(ax, method)
        ax.axvline(count - 1.5, color="white", linewidth=2.0)
        names = [*(str(head) for head in range(count - 1)), "all"]
        theme.set_ticks(ax.xaxis, range(count), names)
        theme.set_ticks(ax.yaxis, range(layers), [f"L{layer + 1}" for layer in range(layers)])
        theme.put_text(ax.xaxis.label, "head", theme.TEXT_SIZE)
        for row in range(layers):
            for head in range(count):
                share = (means[row][head] + 1) / 2
                text = ax.text(head, row, " ", ha="center", va="center")
                # A zero has no sign to a reader.
                digits = f"{round(means[row][head], 2) + 0.0:.2f}".replace("0.", ".")
                theme.put_text(text, digits, 5.5, color=theme.readable(share))
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.9, aspect=20, pad=0.01)
    bar.ax.tick_params(labelsize=theme.SMALL_SIZE, length=2)
    theme.put_text(bar.ax.yaxis.label, "mean Spearman correlation", theme.SMALL_SIZE)
    return figure
