"""``attnflow paper train``, ``train-sst2`` and ``accuracy``: the models of the paper."""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import MissingExtraError, OptionError
from attnflow.models.verb_number import checkpoint
from attnflow.paper import Fault, read_agreement

if TYPE_CHECKING:
    from attnflow.paper.loop import Status

__all__ = [
    "add_accuracy",
    "add_train",
    "add_train_sst2",
    "faults_told",
    "measure_accuracy",
    "run_accuracy",
    "run_train",
    "run_train_sst2",
]

_SECONDS_BETWEEN_LINES = 60.0
_FAULTS_TOLD = 20

RECIPE = {
    "epochs": (int, "epochs at most"),
    "learning_rate": (float, "the highest learning rate"),
    "warmup": (int, "steps of warm-up"),
    "batch_tokens": (int, "tokens of a batch at most"),
    "dropout": (float, "dropout"),
    "hidden_words": (float, "share of words hidden in training"),
    "guessing": (float, "weight of the loss of guessing hidden words"),
    "weight_decay": (float, "weight decay"),
    "average": (float, "decay of the averaged weights"),
    "extra_per_epoch": (int, "sentences of --extra drawn for an epoch"),
    "vocabulary": (int, "words that the model knows, at most"),
    "held_out": (int, "sentences held out to choose the epoch by"),
    "patience": (int, "epochs without gain before training ends"),
    "layers": (int, "layers"),
    "heads": (int, "heads"),
    "dimensions": (int, "dimensions"),
    "seed": (int, "seed of everything random"),
}
FINE_TUNING = {
    "epochs": RECIPE["epochs"],
    "learning_rate": RECIPE["learning_rate"],
    "batch_tokens": RECIPE["batch_tokens"],
    "weight_decay": RECIPE["weight_decay"],
    "average": RECIPE["average"],
    "hidden_words": RECIPE["hidden_words"],
    "layer_decay": (float, "learning rate of a layer as a share of the one above"),
    "longest": (int, "tokens of a sentence in training, at most"),
    "patience": RECIPE["patience"],
    "seed": RECIPE["seed"],
}


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper train``."""
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="files of sentences: that of Linzen et al., numpred files or JSON lines; "
        "some of the first are held out",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder to write"
    )
    parser.add_argument(
        "--extra",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="files of which some sentences are drawn for every epoch, such as numpred.test.1",
    )
    parser.add_argument(
        "--test",
        type=_reserved,
        nargs="+",
        default=[],
        metavar="FILE:N",
        help="test on the first N sentences of a file, and never train on them",
    )
    _add_running(parser)
    _add_recipe(parser, RECIPE)


def run_train(args: argparse.Namespace) -> int:
    """Train a verb-number model."""
    _check_files([*args.data, *args.extra, *(path for path, _ in args.test)])
    _require_torch()
    from attnflow.paper.train import Recipe, Reserved, train

    recipe = dataclasses.replace(Recipe(), **_given(args, RECIPE))
    with _training(args) as (progress, faults):
        report = train(
            args.data,
            args.out,
            extra=args.extra,
            test=[Reserved(*test) for test in args.test],
            recipe=recipe,
            resume=args.resume,
            on_error=faults,
            progress=progress,
        )
    if args.json:
        print(json.dumps(report, indent=1))
        return 0
    data = report["data"]
    print(
        f"trained on {data['trained_on']:,} sentences"
        + (f" and some of {data['drawn_from']:,} others" if data["drawn_from"] else "")
        + f", {len(report['curve'])} epochs, {report['seconds'] / 60:.1f} minutes"
    )
    print("read: " + ", ".join(f"{name} {count:,}" for name, count in data["read"].items()))
    print(f"held out: {_accuracy_line(report['held_out'])}")
    for name, test in report["tests"].items():
        print(f"{name}: {_accuracy_line(test)}")
    print(f"the model, its card and the report are in {args.out}")
    return 0


def add_train_sst2(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper train-sst2``."""
    parser.add_argument(
        "--model",
        required=True,
        help="the encoder: a folder, or a name on the hub such as distilbert-base-uncased",
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder with SST-2's train.tsv and dev.tsv",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder to write"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="sentences to train on at most")
    _add_running(parser)
    _add_recipe(parser, FINE_TUNING)


def run_train_sst2(args: argparse.Namespace) -> int:
    """Fine-tune an encoder on SST-2."""
    files = [args.data / "train.tsv", args.data / "dev.tsv"]
    _check_files(files)
    _require_torch()
    from attnflow.paper.sst2 import FineTuning, fine_tune

    how = dataclasses.replace(FineTuning(), **_given(args, FINE_TUNING))
    with _training(args) as (progress, faults):
        report = fine_tune(
            args.model,
            files[0],
            files[1],
            args.out,
            how=how,
            limit=args.limit,
            resume=args.resume,
            on_error=faults,
            progress=progress,
        )
    if args.json:
        print(json.dumps(report, indent=1))
        return 0
    print(
        f"dev.tsv: accuracy {report['accuracy']:.4f} on {report['count']:,} sentences, after "
        f"{len(report['curve'])} epochs on {report['data']['trained_on']:,}, "
        f"{report['seconds'] / 60:.1f} minutes"
    )
    print(f"the model and the report are in {args.out}")
    return 0


def add_accuracy(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attnflow paper accuracy``."""
    parser.add_argument(
        "--model", help="a verb-number model (default: the one that ships with attnflow)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="the file of Linzen et al., numpred files or JSON lines, plain or gzipped",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=2000,
        metavar="N",
        help="sentences to read of each file (default: 2000, as in the paper; 0: all)",
    )
    _add_faults(parser)
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_accuracy(args: argparse.Namespace) -> int:
    """Measure how often a model gives the verb its number."""
    _check_files(args.data)
    found = measure_accuracy(args, args.model, args.data)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"accuracy {_accuracy_line(found)}")
    for name, entry in found["by_attractors"].items():
        number = "attractors not known" if name == "unknown" else f"{name} attractors"
        number = "1 attractor" if name == "1" else number
        print(f"  {number}: {entry['accuracy']:.4f} on {entry['count']:,}")
    return 0


def measure_accuracy(
    args: argparse.Namespace, model: str | None, paths: Sequence[Path]
) -> dict[str, Any]:
    """Measure the accuracy of a model on the first sentences of files.

    Args:
        args: The options `limit`, `on_error` and `device` of a command.
        model: The model; None is the one that ships with attnflow.
        paths: The files.

    Returns:
        What `attnflow.paper.accuracy.accuracy` returns.
    """
    with faults_told(args.on_error) as on_error:
        rows = chain.from_iterable(
            read_agreement(path, limit=args.limit or None, on_error=on_error) for path in paths
        )
        _require_torch()
        from attnflow.models import Explainer
        from attnflow.paper.accuracy import accuracy

        explainer = Explainer.from_pretrained(model or checkpoint(), device=args.device)
        with _counting("accuracy") as count:
            return accuracy(explainer.model, explainer.tokenizer, rows, count)


# ---- What the commands share ---------------------------------------------------------------------


def _accuracy_line(part: dict[str, Any]) -> str:
    return f"{part['accuracy']:.4f} on {part['count']:,} sentences"


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume", action="store_true", help="go on with a training that was cut off"
    )
    _add_faults(parser)
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of torch (default: all cores)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="what to do about a line that cannot be read (default: raise)",
    )


def _add_recipe(parser: argparse.ArgumentParser, options: dict[str, tuple[Any, str]]) -> None:
    group = parser.add_argument_group(
        "recipe", "Without these, what made the models in attnflow and its documentation."
    )
    for name, (kind, about) in options.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=about)


def _given(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in options if getattr(args, name) is not None}


def _reserved(value: str) -> tuple[Path, int]:
    path, colon, count = value.rpartition(":")
    if not colon or not count.isdecimal() or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} given; expected FILE:N, such as dev.tsv:2000")
    return Path(path), int(count)


def _check_files(paths: list[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise OptionError(f"{path} is not a file")


def _require_torch() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f'this needs {" and ".join(missing)}; run: pip install "attnflow[hf,view]"'
        )


@contextmanager
def faults_told(on_error: str) -> Iterator[str | Callable[[Fault], None]]:
    """Give what readers take as `on_error`, which tells the faults and, in the end, counts them.

    Args:
        on_error: "raise", or "skip": then the first faults are told on standard error one by one,
            and how many there were altogether.

    Yields:
        What to read with.
    """
    skipped = 0

    def tell(fault: Fault) -> None:
        nonlocal skipped
        skipped += 1
        if skipped <= _FAULTS_TOLD:
            print(f"attnflow: {fault} (skipped)", file=sys.stderr)
        elif skipped == _FAULTS_TOLD + 1:
            print("attnflow: more lines are skipped", file=sys.stderr)

    yield tell if on_error == "skip" else on_error
    if skipped:
        lines = "1 line was" if skipped == 1 else f"{skipped:,} lines were"
        print(f"attnflow: {lines} skipped", file=sys.stderr)


@contextmanager
def _training(
    args: argparse.Namespace,
) -> Iterator[tuple[Callable[["Status"], None], str | Callable[[Fault], None]]]:
    """Show how training goes; say after Ctrl-C how it goes on, and at the end what was skipped."""
    import torch

    if args.threads is not None:
        if not 1 <= args.threads <= 4 * (os.cpu_count() or 1):
            raise OptionError(f"--threads is {args.threads}; expected 1 to the number of cores")
        torch.set_num_threads(args.threads)
    from attnflow.paper.loop import has_state

    if args.resume and not has_state(args.out):
        print(
            f"attnflow: nothing is saved in {args.out} yet; training starts from the beginning",
            file=sys.stderr,
        )
    begun = False
    with faults_told(args.on_error) as faults, _bar() as show:

        def progress(status: "Status") -> None:
            nonlocal begun
            begun = True
            show(status)

        try:
            yield progress, faults
        except KeyboardInterrupt:
            if begun:
                print(
                    f"attnflow: what is done is in {args.out}; the same command with --resume goes "
                    "on",
                    file=sys.stderr,
                )
            raise


@contextmanager
def _bar() -> Iterator[Callable[["Status"], None]]:
    """Give what shows loss, accuracy and time left: a bar on a terminal, else a line an epoch."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        on_terminal = False
    else:
        on_terminal = sys.stderr.isatty()
    if not on_terminal:
        last: list[Status] = []
        said = time.monotonic()

        def line(status: "Status") -> None:
            nonlocal said
            now = time.monotonic()
            text = ""
            if last and status.epoch != last[0].epoch:
                text = f"epoch {last[0].epoch}: {_said(last[0], status)}"
            elif now - said >= _SECONDS_BETWEEN_LINES:
                where = f"epoch {status.epoch}, step {status.step:,} of {status.steps:,}"
                text = f"{where}: {_said(status, status)}"
            if text:
                said = now
                print(text, file=sys.stderr, flush=True)
            last[:] = [status]

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[said]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None, said="")

        def update(status: "Status") -> None:
            bar.update(
                task,
                description=f"epoch {status.epoch} of {status.epochs}",
                completed=status.step,
                total=max(status.steps, status.step),
                said=_said(status, status),
            )

        yield update


def _said(status: "Status", measured: "Status") -> str:
    accuracy = "" if measured.accuracy is None else f", accuracy {measured.accuracy:.4f}"
    minutes, seconds = divmod(round(measured.seconds_left), 60)
    return f"loss {status.loss:.4f}{accuracy}, {minutes}:{seconds:02} left"


@contextmanager
def _counting(name: str) -> Iterator[Callable[[int], None] | None]:
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn
    except ImportError:
        yield None
        return
    if not sys.stderr.isatty():
        yield None
        return
    columns = (SpinnerColumn(), TextColumn(f"{name}: {{task.completed:,}} sentences"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done: bar.update(task, completed=done)
