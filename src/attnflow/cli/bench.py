"""`attnflow bench`: time attnflow against other maximum-flow solvers, or its runs over texts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnflow.bench import dataset, inputs, report, results
from attnflow.bench.results import Record
from attnflow.bench.solvers import check_installed
from attnflow.bench.suite import QUICK_BUDGET, Job, Options, Suite
from attnflow.errors import OptionError
from attnflow.files import write_whole

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Time attnflow against networkx, scipy, igraph, OR-tools and PyMaxflow on the same attention,
check that all give the same answers, and print tables of times and ratios.

With --dataset, time attnflow run instead: against a plain loop over the texts, and against the
model's own forward pass.
"""

_EPILOG = """\
examples:
  attnflow bench --output bench.json --markdown benchmarks.md
  attnflow bench --quick --kinds soft,causal
  attnflow bench --output bench.json --resume
  attnflow bench --from bench.json --markdown benchmarks.md
  attnflow bench --dataset --texts 50000 --engine local,ray --output dataset.json

exit status: 0 when all solvers agree, 1 when one does not or fails, 130 after Ctrl-C
"""

_SOLVERS = ("kinds", "budget", "seed", "threads")
_DATASET = ("workers", "engine", "texts")
_MEASURING = ("dataset", "output", "quick", "tokens", "resume", *_SOLVERS, *_DATASET)


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `attnflow`.

    Args:
        subparsers: what `argparse.ArgumentParser.add_subparsers` returned.
    """
    parser = subparsers.add_parser(
        "bench",
        help="time attnflow against other maximum-flow solvers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--dataset", action="store_true", help="time attnflow run, not the solvers")
    add("--output", metavar="FILE.json", help="save what was measured, after every measurement")
    add("--quick", action="store_true", help="small graphs and few pairs: does everything work?")
    add("--tokens", metavar="N,N", help="numbers of tokens (default: 16 to 512, or 16,64,256)")
    add(
        "--kinds",
        metavar="KIND,KIND",
        help=f"of {','.join(inputs.KINDS)} (default: all, decoder if it is installed)",
    )
    add("--budget", type=float, metavar="SECONDS", help="for each solver and graph (default: 5)")
    add(
        "--seed",
        type=int,
        metavar="N",
        help="of synthetic attention and sampled pairs (default 0)",
    )
    add("--threads", type=int, metavar="N", help="what one thread is compared with (default: 2)")
    add("--resume", action="store_true", help="continue the run saved in --output")
    add("--from", dest="source", metavar="FILE.json", help="show a saved run, measure nothing")
    add("--markdown", metavar="FILE.md", help="write the tables as a Markdown page")
    data = parser.add_argument_group("with --dataset")
    data.add_argument("--workers", type=int, metavar="N", help="how many CPUs (default: all)")
    data.add_argument(
        "--engine",
        metavar="NAME,NAME",
        help="engines of attnflow run, compared if several (default: local)",
    )
    data.add_argument(
        "--texts", type=int, metavar="N", help="watch the memory of a run over so many texts"
    )
    add("--json", action="store_true", help="print the result as JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Measure, or read a saved run, and show it.

    Args:
        args: the parsed options.

    Returns:
        The exit status: 0 when all solvers agree, 1 when one does not or fails, 130 after Ctrl-C.

    Raises:
        OptionError: an option cannot be used.
        MissingExtraError: something that is needed is not installed.
    """
    markdown = _destination(args.markdown, "--markdown")
    if args.source is not None:
        _refuse(args, _MEASURING, "--from, which shows a saved run and measures nothing")
        document = results.load(Path(args.source))
        interrupted = False
    elif args.dataset:
        _refuse(args, _SOLVERS, "--dataset")
        document, interrupted = _measure_dataset(args)
    else:
        _refuse(args, _DATASET, None)
        check_installed()
        document, interrupted = _measure(args)
    about = dataset if document["options"].get("dataset") else report
    if markdown is not None:
        write_whole(markdown, about.markdown(document))
    _show(document, as_json=args.json)
    if interrupted:
        return 130
    return 0 if about is dataset or report.summary(document)["agree"] else 1


def _refuse(args: argparse.Namespace, names: tuple[str, ...], other: str | None) -> None:
    """Refuse options that do not go with another one, or not without --dataset."""
    for name in names:
        value = getattr(args, name)
        # Not `in (None, False)`: --seed 0 equals False.
        if value is not None and value is not False:
            why = "is for --dataset" if other is None else f"cannot be used with {other}"
            raise OptionError(f"--{name}: {why}")


def _measure_dataset(args: argparse.Namespace) -> tuple[Record, bool]:
    """Time runs over data sets; return the document and whether Ctrl-C cut it short."""
    from attnflow.dataset.local import cpus
    from attnflow.dataset.source import require_pyarrow

    inputs.check_available("real")
    require_pyarrow()
    tokens = dataset.QUICK_TOKENS if args.quick else dataset.TOKENS
    options = dataset.DatasetOptions(
        tokens=tokens if args.tokens is None else _numbers(args.tokens),
        engines=tuple((args.engine or "local").split(",")),
        workers=cpus() if args.workers is None else args.workers,
        texts=args.texts or 0,
        quick=args.quick,
    )
    document, output = _begin(args, options.record())
    return document, _run_jobs(dataset.jobs(options), document, dataset.summary, output)


def _measure(args: argparse.Namespace) -> tuple[Record, bool]:
    """Run the suite; return the document and whether Ctrl-C cut it short."""
    options, left_out = _options(args)
    document, output = _begin(args, options.record())
    document["left_out"] = left_out
    with Suite(options, document) as suite:
        return document, _run_jobs(suite.jobs(), document, report.summary, output)


def _begin(args: argparse.Namespace, options: Record) -> tuple[Record, Path | None]:
    """Return the document to fill, new or of the run to go on with, and where it is saved."""
    output = _destination(args.output, "--output")
    if args.resume and output is None:
        raise OptionError("--resume: needs --output, the saved run to continue")
    if args.resume and output is not None and output.exists():
        document = results.load(output)
        results.same_run(document, options)
    else:
        if args.resume:
            print(f"nothing is saved in {output} yet: a new run", file=sys.stderr)
        document = results.new(options)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine is busy (load average {load:.2f}): times will be off", file=sys.stderr)
    return document, output


def _run_jobs(
    jobs: list[Job],
    document: Record,
    summary: Callable[[Record], Record],
    output: Path | None,
) -> bool:
    """Run the jobs whose records are missing, saving each; return whether Ctrl-C cut it short."""
    document["complete"] = False

    def keep() -> None:
        document["summary"] = summary(document)
        if output is not None:
            results.save(document, output)

    missing = [job for job in jobs if job.name not in document["measurements"]]
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} measurements are there already", file=sys.stderr)
    interrupted = False
    try:
        with _progress(len(missing)) as begin:
            for job in missing:
                begin(job)
                document["measurements"][job.name] = job.measure()
                keep()
        document["complete"] = True
    except KeyboardInterrupt:
        interrupted = True
        print("stopped; what was measured until now follows", file=sys.stderr)
    keep()
    return interrupted


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Job], None]]:
    """Show which job runs: a bar in a terminal, a line per job elsewhere."""
    if not sys.stderr.isatty():
        number = 0

        def line(job: Job) -> None:
            nonlocal number
            number += 1
            print(f"[{number}/{total}] {job.title}", file=sys.stderr, flush=True)

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # The bar is drawn once a second: drawing must not disturb what is being timed.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as progress:
        task = progress.add_task("", total=total)
        begun = 0

        def bar(job: Job) -> None:
            nonlocal begun
            progress.update(task, completed=begun, description=job.title)
            begun += 1

        yield bar
        progress.update(task, completed=total, description="done")


def _options(args: argparse.Namespace) -> tuple[Options, list[str]]:
    """Check the options and what they need; return them and what is left out, with reasons."""
    left_out = []
    if args.kinds is not None:
        kinds = tuple(part.strip() for part in args.kinds.split(",") if part.strip())
    else:
        kinds = Options.kinds
        if args.quick:
            left_out.append("decoder: --quick does without it")
        elif missing := inputs.missing_for("decoder"):
            left_out.append(f"decoder: {', '.join(missing)} not installed")
        else:
            kinds = (*kinds, "decoder")
    given = {
        "tokens": None if args.tokens is None else _numbers(args.tokens),
        "budget": args.budget if args.budget is not None or not args.quick else QUICK_BUDGET,
        "seed": args.seed,
        "threads": args.threads,
    }
    options = Options(
        kinds=kinds,
        quick=args.quick,
        **{name: value for name, value in given.items() if value is not None},
    )
    for kind in options.kinds:
        inputs.check_available(kind)
    return options, left_out


def _numbers(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split(","):
        try:
            numbers.append(int(part))
        except ValueError:
            raise OptionError(
                f"--tokens: {text!r} given; expected whole numbers separated by commas, "
                "such as 16,32,64"
            ) from None
    return tuple(numbers)


def _destination(name: str | None, option: str) -> Path | None:
    """Return where to write, after seeing that this will be possible."""
    if name is None:
        return None
    path = Path(name)
    if path.is_dir():
        raise OptionError(f"{option}: {name} is a folder; expected a file")
    if not path.parent.is_dir():
        raise OptionError(f"{option}: {name} cannot be written, there is no folder {path.parent}")
    return path


def _show(document: Record, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, indent=1, allow_nan=False))
        return
    about = dataset if document["options"].get("dataset") else report
    tables = about.tables(document)
    lines = [] if about is dataset else report.agreement(document)
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console

        console = Console()
        for table in tables:
            console.print(report.rich_table(table))
            console.print()
        for line in lines:
            console.print(line, markup=False)
        return
    for table in tables:
        print(report.plain(table), end="\n\n")
    for line in lines:
        print(line)
