"""`attnflow bench`: time attnflow against other maximum-flow solvers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnflow.bench import inputs, report, results
from attnflow.bench.results import Record
from attnflow.bench.solvers import check_installed
from attnflow.bench.suite import QUICK_BUDGET, Job, Options, Suite
from attnflow.errors import OptionError
from attnflow.files import write_whole

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Time attnflow against networkx, scipy, igraph, OR-tools and PyMaxflow on the same attention,
check that all give the same answers, and print tables of times and ratios.
"""

_EPILOG = """\
examples:
  attnflow bench --output bench.json --markdown benchmarks.md
  attnflow bench --quick --kinds soft,causal
  attnflow bench --output bench.json --resume
  attnflow bench --from bench.json --markdown benchmarks.md

exit status: 0 when all solvers agree, 1 when one does not or fails, 130 after Ctrl-C
"""

_MEASURING = ("output", "quick", "tokens", "kinds", "budget", "seed", "threads", "resume")


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
    add("--output", metavar="FILE.json", help="save what was measured, after every measurement")
    add("--quick", action="store_true", help="small graphs and few pairs: does everything work?")
    add("--tokens", metavar="N,N", help="numbers of tokens (default: 16,32,64,128,256,512)")
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
    check_installed()
    markdown = _destination(args.markdown, "--markdown")
    if args.source is not None:
        # Not `in (None, False)`: --seed 0 equals False.
        given = [
            name
            for name in _MEASURING
            if getattr(args, name) is not None and getattr(args, name) is not False
        ]
        if given:
            raise OptionError(
                f"--{given[0]}: cannot be used with --from, which shows a saved run and measures "
                "nothing"
            )
        document = results.load(Path(args.source))
        interrupted = False
    else:
        document, interrupted = _measure(args)
    if markdown is not None:
        write_whole(markdown, report.markdown(document))
    _show(document, as_json=args.json)
    if interrupted:
        return 130
    return 0 if report.summary(document)["agree"] else 1


def _measure(args: argparse.Namespace) -> tuple[Record, bool]:
    """Run the suite; return the document and whether Ctrl-C cut it short."""
    options, left_out = _options(args)
    output = _destination(args.output, "--output")
    if args.resume and output is None:
        raise OptionError("--resume: needs --output, the saved run to continue")
    if args.resume and output is not None and output.exists():
        document = results.load(output)
        results.same_run(document, options.record())
    else:
        if args.resume:
            print(f"nothing is saved in {output} yet: a new run", file=sys.stderr)
        document = results.new(options.record())
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine is busy (load average {load:.2f}): times will be off", file=sys.stderr)
    document["left_out"] = left_out
    document["complete"] = False

    def keep() -> None:
        document["summary"] = report.summary(document)
        if output is not None:
            results.save(document, output)

    interrupted = False
    try:
        with Suite(options, document) as suite:
            _run_jobs(suite, keep)
        document["complete"] = True
    except KeyboardInterrupt:
        interrupted = True
        print("stopped; what was measured until now follows", file=sys.stderr)
    keep()
    return document, interrupted


def _run_jobs(suite: Suite, keep: Callable[[], None]) -> None:
    jobs = suite.pending()
    done = len(suite.jobs()) - len(jobs)
    if done:
        print(f"{done} measurements are there already", file=sys.stderr)
    with _progress(len(jobs)) as begin:
        for job in jobs:
            begin(job)
            suite.run(job)
            keep()


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
    tables = report.tables(document)
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        for table in tables:
            console.print(report.rich_table(table))
            console.print()
        for line in report.agreement(document):
            console.print(line, markup=False)
        return
    for table in tables:
        print(report.plain(table), end="\n\n")
    for line in report.agreement(document):
        print(line)
