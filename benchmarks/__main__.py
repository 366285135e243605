"""The command line of the benchmarks: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from attnflow import AttnflowError, OptionError
from benchmarks import (
    contributions,
    contributions_report,
    datasets,
    datasets_report,
    long,
    long_report,
    runs,
    solvers,
    solvers_report,
)
from benchmarks.tables import Record, markdown, plain

BENCHMARKS = {
    "solvers": solvers,
    "datasets": datasets,
    "contributions": contributions,
    "long": long,
}
REPORTS = {
    "solvers": solvers_report,
    "datasets": datasets_report,
    "contributions": contributions_report,
    "long": long_report,
}

_EPILOG = """\
examples:
  python -m benchmarks solvers --output bench.json --markdown docs/benchmarks.md
  python -m benchmarks solvers --quick --kinds soft causal
  python -m benchmarks solvers --output bench.json --resume
  python -m benchmarks datasets --texts 50000 --engines local ray --output bench.json
  python -m benchmarks contributions --output bench.json --decomposition 128 512
  python -m benchmarks long --tokens 512 2048 8192 --output bench.json
  python -m benchmarks show bench.json --markdown docs/benchmarks.md

exit status: 0 if all results agree, 1 if one disagrees or fails, 130 after Ctrl-C
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark, or show a saved run.

    Args:
        argv: The arguments; None is those of this process.

    Returns:
        The exit status.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(given)
    try:
        for path in (args.output, args.markdown):
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise OptionError(f"{path} cannot be written; expected a file in a folder")
        if args.command == "show":
            document = runs.load(args.source)
        else:
            document = _measured(args, shlex.join(["python", "-m", "benchmarks", *given]))
    except AttnflowError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 1
    report = REPORTS[document["benchmark"]]
    tables, remarks = report.tables(document), report.remarks(document)
    if not document["complete"]:
        remarks.append("This run is incomplete: it was stopped before everything was measured.")
    for name, table in tables.items():
        if table:
            print(f"{name.replace('_', ' ').upper()}\n\n{plain(table)}\n")
    print("\n".join(remarks))
    if args.markdown is not None:
        template = Path(__file__).parent / "pages" / f"{document['benchmark']}.md"
        page = template.read_text(encoding="utf-8").format(
            **{**document["options"], **{name: markdown(rows) for name, rows in tables.items()}},
            command=document["command"],
            provenance=runs.provenance(document),
            remarks="\n\n".join(remarks),
        )
        runs.write(args.markdown, page)
    if args.command != "show" and not document["complete"]:
        return 130
    records = document["measurements"].values()
    failed = any(record.get("status") == "failed" for record in records)
    return 1 if failed or document["disagreements"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="show a saved run without measuring")
    show.add_argument("source", type=Path, help="the results file")
    show.add_argument("--markdown", type=Path, help="write the tables as a Markdown page")
    show.set_defaults(output=None)
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.HELP, description=benchmark.HELP)
        command.add_argument("--output", type=Path, help="save the results, as JSON")
        command.add_argument("--markdown", type=Path, help="write the tables as a Markdown page")
        command.add_argument("--resume", action="store_true", help="continue the run in --output")
        command.add_argument("--quick", action="store_true", help="check that everything works")
        benchmark.add_options(command)
    return parser


def _measured(args: argparse.Namespace, command: str) -> Record:
    benchmark = BENCHMARKS[args.command]
    document = runs.new(args.command, benchmark.options_of(args), command)
    if args.resume:
        if args.output is None:
            raise OptionError("--resume: needs --output, the results file of the run to continue")
        document = runs.resumed(document, args.output)
    runs.measure(document, benchmark.plan(document), args.output)
    return document


if __name__ == "__main__":
    sys.exit(main())
