"""Explain all texts of a file, and store the explanations.

The texts are those of a file, of a folder of files or of standard input. The explanations are
stored as a Parquet data set. The same command resumes a run that was stopped.

Examples:
  attnflow run reviews.parquet --text-column review --model ./my-model --units words --output out/
  attnflow run texts.txt --model ./my-model --method rollout --output out/
  attnflow run nli.csv --text-column premise --pair-column hypothesis --model ./my-nli --output out/
  zcat texts.jsonl.gz | attnflow run - --id-column key --shuffle 0 --limit 10000 --output out/
  attnflow run reviews/ --text-column review --output out/ --engine ray --address auto
  attnflow run texts.txt --model ./my-model --keep attentions --output out/

What to do with the output:
  python -c 'import pandas; print(pandas.read_parquet("out/data"))'
  attnflow view out/
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnflow.cli import options
from attnflow.errors import OptionError
from attnflow.io.progress import Progress
from attnflow.options import OPTIONS

if TYPE_CHECKING:
    from attnflow.dataset import Progress as State


# The options of `attnflow.dataset.run` that the command line passes on as they are.
PASSED_ON = (
    *("output", "engine", "address", "format", "text_column", "pair_column", "id_column", "limit"),
    *("shuffle", "strict", "shard_rows", "workers", "memory", "keep", "keep_dtype"),
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    from attnflow.dataset.runner import MEMORY, SHARD_ROWS

    parser = options.add_command(subparsers, "run", __doc__)
    parser.add_argument(
        "source",
        help="a file (.txt, .csv, .tsv, .jsonl, each also .gz, or .parquet), a folder of them, or "
        "- for standard input",
    )
    parser.add_argument("--output", type=Path, required=True, help="the folder to write to")
    options.add_model(parser)
    parser.add_argument("--format", default="auto", help="text, csv, tsv, jsonl, parquet or auto")
    parser.add_argument(
        "--text-column", metavar="NAME", help="the column of texts (default: text or sentence)"
    )
    parser.add_argument(
        "--pair-column",
        metavar="NAME",
        help="the column of second texts, such as hypotheses, for a model that reads pairs",
    )
    parser.add_argument(
        "--id-column", metavar="NAME", help="the column that names a row (default: its number)"
    )
    parser.add_argument(
        "--columns", metavar="NAMES", help="other columns to carry through, by comma (default: all)"
    )
    parser.add_argument("--limit", type=int, help="how many rows to do at most")
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="do the rows in random order, from this seed"
    )
    parser.add_argument("--strict", action="store_true", help="stop at the first row that fails")
    options.add_engine(parser)
    parser.add_argument(
        "--memory",
        type=int,
        default=MEMORY,
        metavar="MIB",
        help=f"memory for the batches of one worker (default: {MEMORY})",
    )
    parser.add_argument(
        "--shard-rows", type=int, default=SHARD_ROWS, help=f"rows a shard (default: {SHARD_ROWS})"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        choices=("attentions",),
        help="store the attention of every row too, for attnflow explain --attentions and for "
        "attnflow view",
    )
    parser.add_argument(
        "--keep-dtype",
        default="float16",
        help="float16, or float32, which takes twice the space (default: float16)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    single = [option.name for option in OPTIONS if not option.in_data_sets]
    options.add_options(parser, leave_out=single)
    options.add_loading(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, 1 if no row could be explained, or 130 after Ctrl-C.

    Raises:
        AttnflowError: If the model, the source, the output or an option is not valid.
    """
    # Errors that do not need the model come before it is loaded, which takes seconds.
    if args.source == "-" and sys.stdin.isatty():
        raise OptionError("the source is standard input, which is a terminal; pipe some texts in")
    if args.source != "-" and not os.path.exists(args.source):
        raise OptionError(f"{args.source} does not exist; expected a file, a folder or -")
    columns = None
    if args.columns is not None:
        columns = [name for name in args.columns.split(",") if name]

    from attnflow.dataset import run as run_dataset
    from attnflow.io.records import require_pyarrow

    require_pyarrow()
    device = "auto"
    if args.engine == "ray":
        # The model is sent to the workers, which choose the device.
        device, args.device = args.device, "cpu"
    explainer = options.load(args)
    done = 0
    try:
        with Progress("explaining", "rows", seconds_between_lines=30) as progress:

            def tell(now: "State") -> None:
                nonlocal done
                done = now.done
                progress.update(done, now.expected)

            result = run_dataset(
                args.source,
                explainer,
                device=device,
                columns=columns,
                progress=tell,
                on_interrupt=_say_interrupted,
                **{name: getattr(args, name) for name in PASSED_ON},
                **options.given_options(args),
            )
    except KeyboardInterrupt:
        print(
            f"attnflow: interrupted after {_rows(done)}; the same command continues from there",
            file=sys.stderr,
        )
        return 130
    if result.remade:
        print(
            f"attnflow: {len(result.remade)} shards of {args.output} were missing or had changed; "
            "they were made again",
            file=sys.stderr,
        )
    if args.json:
        print(json.dumps({**result._asdict(), "output": str(result.output)}))
        return 0 if result.rows else 1
    print(f"{_rows(result.rows)} explained: {result.output / 'data'}")
    if args.keep and result.rows:
        print(f"their attention: {result.output / 'attentions'}")
    if result.failed:
        print(f"{_rows(result.failed)} failed, with reasons: {result.output / 'errors'}")
    return 0 if result.rows else 1


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


def _say_interrupted() -> None:
    # Not print, which is not safe in a signal handler.
    message = b"\nattnflow: finishing the shards in progress; Ctrl-C again stops at once\n"
    os.write(2, message)
