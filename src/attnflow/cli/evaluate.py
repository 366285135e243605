"""``attnflow evaluate``: how far methods agree with what a model really depends on."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import DataError, OptionError, TextError
from attnflow.evaluate.evaluation import Skipped, check_path
from attnflow.evaluate.texts import FORMATS, Text, read_texts
from attnflow.importance import REFERENCES

if TYPE_CHECKING:
    from attnflow.evaluate.evaluation import Evaluation
    from attnflow.evaluate.run import Run
    from attnflow.explain import Explainer

__all__ = ["add_parser", "run"]

EPILOG = """\
examples:
  attnflow evaluate --data numpred.val --limit 200
  attnflow evaluate --model ./my-classifier --data films.tsv --text-column sentence --plot films.pdf
  attnflow evaluate --model ./my-model --data texts.txt --references blank_out,gradient_x_input \\
      --layers 1,3,6 --json > evaluation.json
  attnflow evaluate --model ./my-decoder --data texts.txt --receptive-field both --drop-sink both
  attnflow evaluate --model ./my-model --data texts.jsonl --store run.jsonl   # may be stopped, and
                                                                              # started again
"""

# Where nobody watches a bar, a line now and then.
_SECONDS_BETWEEN_LINES = 60.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "evaluate",
        help="measure how far methods agree with what a model really depends on",
        description="Measure how far raw attention, rollout and flow agree with what a model "
        "really depends on: Spearman's rank correlation with references, over many texts, with "
        "confidence intervals, baselines and tests.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model",
        help="a folder, a GGUF file, or a hub name (default: the verb-number model that comes "
        "with attnflow)",
    )
    add(
        "--task",
        default="auto",
        help="auto, classification, masked-lm or causal-lm (default: auto)",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", required=True, metavar="FILE", help="the texts; - is standard input"
    )
    data.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="one text a line, a table with a header, JSON lines, or Linzen et al.'s verb-number "
        "data (default: auto, by the file's ending and first line)",
    )
    data.add_argument("--text-column", metavar="C", help="the column, or JSON field, of the texts")
    data.add_argument(
        "--label-column",
        metavar="C",
        help="explain the class in this column, not the one that the model predicts",
    )
    data.add_argument("--limit", type=int, metavar="N", help="read this many texts at most")
    data.add_argument("--truncate", action="store_true", help="cut texts that are too long")

    what = parser.add_argument_group("what is evaluated")
    what.add_argument(
        "--methods", default="raw,rollout,flow", help="of raw,rollout,flow (default: all)"
    )
    what.add_argument(
        "--edges",
        default="attention",
        help="of attention,gradient,effective,value_norm (default: attention)",
    )
    what.add_argument(
        "--references",
        default="blank_out",
        help=f"of {','.join(REFERENCES)} (default: blank_out)",
    )
    what.add_argument("--layers", metavar="N,N", help="from 1; -1 is the last (default: all)")
    what.add_argument(
        "--position",
        type=_index_or_name,
        default="auto",
        help="an index, cls, mask, last or auto (default: auto)",
    )
    what.add_argument("--target", type=_index_or_name, help="the class or token to explain")
    what.add_argument(
        "--heads",
        type=_index_or_name,
        default="mean",
        help="mean, max, min, sum or the index of a head (default: mean)",
    )
    what.add_argument(
        "--residual", type=float, default=0.5, help="share of the residual, 0 to 1 (default: 0.5)"
    )
    what.add_argument(
        "--receptive-field",
        choices=("auto", "on", "off", "both"),
        default="auto",
        help="relate scores to uniform attention over the same mask (auto: for causal models)",
    )
    what.add_argument(
        "--drop-sink",
        nargs="?",
        choices=("on", "off", "both"),
        default="off",
        const="on",
        help="leave out the token that most positions attend to whatever it is",
    )
    what.add_argument(
        "--replacement",
        type=_index_or_name,
        default="auto",
        help="what blank-out puts in a token's place: auto, unk, mask, a token or its id",
    )
    what.add_argument("--no-baselines", action="store_true", help="leave the baselines out")
    what.add_argument(
        "--frequencies",
        metavar="FILE.json",
        help="how often tokens occur, an object of token and number (default: count the texts)",
    )
    what.add_argument(
        "--faithfulness",
        action="store_true",
        help="remove tokens, too, and measure what that does to the answer; takes much longer",
    )

    how = parser.add_argument_group("statistics")
    how.add_argument("--samples", type=int, default=2000, help="of the bootstrap (default: 2000)")
    how.add_argument(
        "--permutations", type=int, default=9999, help="of the sign-flip test (default: 9999)"
    )
    how.add_argument("--level", type=float, default=0.95, help="of intervals (default: 0.95)")
    how.add_argument("--seed", type=int, default=0, help="where random numbers start (default: 0)")

    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print JSON instead of tables")
    out.add_argument(
        "--output", type=Path, metavar="FILE", help="save it: .json, .csv, .png, .svg or .pdf"
    )
    out.add_argument("--csv", type=Path, metavar="FILE.csv", help="save the table of means")
    out.add_argument(
        "--plot", type=Path, metavar="FILE", help="correlation over layers: .png, .svg or .pdf"
    )
    out.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep each text's result here; the same command goes on from it after a stop",
    )

    running = parser.add_argument_group("running")
    running.add_argument(
        "--batch-size", type=int, default=64, help="of texts with a token blanked (default: 64)"
    )
    running.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    running.add_argument("--allow-pickle", action="store_true", help="load weights in pickle files")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, or 130 if Ctrl-C came before the last text was done.

    Raises:
        AttnflowError: If the model, the data or an option is not valid.
    """
    for path, endings in (
        (args.output, (".json", ".csv", ".png", ".svg", ".pdf")),
        (args.csv, (".csv",)),
        (args.plot, (".png", ".svg", ".pdf")),
    ):
        if path is not None:
            check_path(path, endings)
    options = _options(args)
    texts, skipped = _texts(args)

    # Loading torch takes seconds, so that everything above comes first.
    from attnflow.evaluate.run import Run

    explainer = _explainer(args)
    interrupted = False
    with Run(
        explainer,
        [text.text for text in texts],
        numbers=[text.number for text in texts],
        targets=_targets(args, texts, explainer),
        skipped=skipped,
        **options,
    ) as running:
        if running.done:
            print(
                f"attnflow: {running.done} of {running.total} texts are in {args.store} already",
                file=sys.stderr,
            )
        try:
            with _progress(running) as tell:
                for _ in running:
                    tell()
        except KeyboardInterrupt:
            interrupted = True
            print(_how_to_go_on(running, args.store), file=sys.stderr)
        if interrupted and not running.done:
            return 130
        evaluation = running.result()
    _give(evaluation, args)
    return 130 if interrupted else 0


def _give(evaluation: "Evaluation", args: argparse.Namespace) -> None:
    for path in (args.csv, args.plot, args.output):
        if path is not None:
            try:
                evaluation.save(path)
            except OSError as error:
                raise OptionError(f"{path} cannot be written: {error.strerror}") from error
    if args.json:
        record = evaluation.to_dict(per_text=False)
        print(json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        from attnflow.view.evaluation import show

        show(evaluation)
    for path in (args.csv, args.plot, args.output):
        if path is not None:
            print(f"saved {path}", file=sys.stderr)


def _how_to_go_on(running: "Run", store: Path | None) -> str:
    done = f"attnflow: interrupted after {running.done} of {running.total} texts"
    if store is not None:
        return f"{done}; they are in {store}, and the same command goes on from there"
    return f"{done}; with --store FILE, the same command would go on from there"


def _explainer(args: argparse.Namespace) -> "Explainer":
    from attnflow.explain import Explainer

    model = args.model
    if model is None:
        from attnflow.paper import checkpoint

        model = checkpoint()
    return Explainer.from_pretrained(
        model, task=args.task, device=args.device, allow_pickle=args.allow_pickle
    )


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of an evaluation that come from the command line alone."""
    switches: dict[str, Any] = {"auto": "auto", "on": True, "off": False, "both": (False, True)}
    return {
        "methods": _names(args.methods, "--methods"),
        "edges": _names(args.edges, "--edges"),
        "references": _names(args.references, "--references"),
        "layers": None if args.layers is None else _layers(args.layers),
        "position": args.position,
        "heads": args.heads,
        "residual": args.residual,
        "receptive_field": switches[args.receptive_field],
        "drop_sink": switches[args.drop_sink],
        "baselines": not args.no_baselines,
        "frequencies": None if args.frequencies is None else _frequencies(args.frequencies),
        "faithfulness": args.faithfulness,
        "replacement": args.replacement,
        "batch_size": args.batch_size,
        "truncate": args.truncate,
        "samples": args.samples,
        "permutations": args.permutations,
        "level": args.level,
        "seed": args.seed,
        "store": args.store,
    }


def _texts(args: argparse.Namespace) -> tuple[list[Text], list[Skipped]]:
    """Return the texts, and the lines that hold none."""
    skipped: list[Skipped] = []
    texts = list(
        read_texts(
            args.data,
            format=args.format,
            text_column=args.text_column,
            label_column=args.label_column,
            limit=args.limit,
            on_fault=lambda number, reason: skipped.append(Skipped(number, reason)),
        )
    )
    if not texts:
        first = f"; line {skipped[0].number}: {skipped[0].reason}" if skipped else ""
        raise TextError(f"{args.data} holds no text that can be read{first}")
    return texts, skipped


def _targets(args: argparse.Namespace, texts: list[Text], explainer: "Explainer") -> Any:
    if args.label_column is None:
        return args.target
    if args.target is not None:
        raise OptionError("--target and --label-column both say which class to explain; give one")
    # Data often have the index of a class where the model has its name.
    names = {
        str(name) for name in (getattr(explainer.model.config, "id2label", None) or {}).values()
    }
    labels = [text.label or "" for text in texts]
    return [int(label) if label not in names and label.isdecimal() else label for label in labels]


def _frequencies(name: str) -> dict[str, int]:
    try:
        table = json.loads(Path(name).read_bytes())
    except OSError as error:
        raise OptionError(f"--frequencies: {name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"--frequencies: {name} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise DataError(f"--frequencies: {name} is no JSON object of tokens and numbers")
    return table


def _names(value: str, option: str) -> list[str]:
    names = [part.strip() for part in value.split(",") if part.strip()]
    if not names:
        raise OptionError(f"{option}: {value!r} names nothing; expected names separated by commas")
    return names


def _layers(value: str) -> list[int]:
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise OptionError(
            f"--layers: {value!r} given; expected whole numbers separated by commas, such as 1,3,6"
        ) from None


def _index_or_name(value: str) -> int | str:
    try:
        return int(value)
    except ValueError:
        return value


@contextmanager
def _progress(running: "Run") -> Iterator[Callable[[], None]]:
    """Show how far it is and how long it will take: a bar in a terminal, some lines elsewhere."""
    console: Any = None
    if sys.stderr.isatty():
        try:
            from rich.console import Console

            console = Console(stderr=True)
        except ImportError:
            console = None
    if console is None:
        yield _line_now_and_then(running)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("evaluating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=running.total, completed=running.done)
        yield lambda: progress.update(task, completed=running.done)


def _line_now_and_then(running: "Run") -> Callable[[], None]:
    begun = said = time.monotonic()
    before = running.done

    def tell() -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _SECONDS_BETWEEN_LINES:
            said = now
            left = (now - begun) / (running.done - before) * (running.total - running.done)
            print(
                f"{running.done} of {running.total} texts, about {left / 60:.0f} minutes left",
                file=sys.stderr,
                flush=True,
            )

    return tell
