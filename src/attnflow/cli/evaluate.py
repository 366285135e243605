"""``attnflow evaluate``: how far methods agree with what a model really depends on."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.cli import options as shared
from attnflow.dataset.store import MANIFEST
from attnflow.errors import DataError, ModelError, OptionError, TextError
from attnflow.evaluate.evaluation import Skipped
from attnflow.formats import check_path
from attnflow.importance import REFERENCES
from attnflow.io.progress import Progress
from attnflow.io.records import FORMATS, Text, read_texts
from attnflow.options import EDGES, OPTIONS
from attnflow.paper.data import verb_number

if TYPE_CHECKING:
    from attnflow.evaluate.evaluation import Evaluation
    from attnflow.evaluate.run import Run
    from attnflow.evaluate.statistics import Statistics
    from attnflow.evaluate.stored import StoredRun
    from attnflow.models import Explainer

__all__ = ["add_parser", "run"]

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""How the names of images end."""

EPILOG = """\
examples:
  attnflow evaluate --data numpred.val --limit 200
  attnflow evaluate --model ./my-classifier --data films.tsv --text-column sentence --plot films.pdf
  attnflow evaluate --model ./my-model --data texts.txt --references blank_out,gradient_x_input \\
      --layers 1,3,6 --json > evaluation.json
  attnflow evaluate --model ./my-decoder --data texts.txt --receptive-field both --drop-sink both
  attnflow evaluate --model ./my-translator --data pairs.csv --text-column en --target-column de
  attnflow evaluate --model ./my-vit --data photos/ --faithfulness
  attnflow evaluate --model ./my-model --data texts.jsonl --store run.jsonl   # may be stopped, and
                                                                              # started again
  attnflow evaluate --model ./my-model --data texts.txt --workers 4
  attnflow evaluate --model ./my-model --data texts.txt --engine ray --address auto

on the output of attnflow run, whose scores are taken as they are stored:
  attnflow evaluate --data out/                        # with the model that it was made with
  attnflow evaluate --data out/ --model ./moved-model --references gradient_norm --store refs.jsonl
  attnflow evaluate --data out/ --references none      # what can be said without a model
"""

# What is decided by what is stored, where the output of a run is evaluated.
_SETTLED = (
    "format",
    "text_column",
    "label_column",
    "target_column",
    "truncate",
    "methods",
    "edges",
    "layers",
    "position",
    "target",
    "heads",
    "residual",
    "receptive_field",
    "drop_sink",
    "faithfulness",
    "removal",
    "max_new_tokens",
)


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
    shared.add_model(parser)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        required=True,
        metavar="PATH",
        help="a file of texts, or - for standard input; for a vision model a folder of images, or "
        "a file of their paths; or the output of attnflow run",
    )
    data.add_argument(
        "--format",
        choices=(*FORMATS, "agreement"),
        default="auto",
        help="one text a line, a table with a header, JSON lines, Parquet, or verb-number data of "
        "Linzen et al. (default: auto, by the ending of the name and the first line)",
    )
    data.add_argument("--text-column", metavar="C", help="the column, or JSON field, of the texts")
    data.add_argument(
        "--label-column",
        metavar="C",
        help="explain the class in this column, not the one that the model predicts",
    )
    data.add_argument(
        "--target-column",
        metavar="C",
        help="of an encoder-decoder: the column of targets (default: what the model writes)",
    )
    data.add_argument("--limit", type=int, metavar="N", help="read this many texts at most")
    for option in OPTIONS:
        if option.name == "truncate":
            shared.add_option(data, option, option.default)

    what = parser.add_argument_group("what is evaluated")
    what.add_argument(
        "--methods", default="raw,rollout,flow", help="of raw,rollout,flow (default: all)"
    )
    what.add_argument(
        "--references",
        default="blank_out",
        help=f"of {','.join(REFERENCES)} (default: blank_out); none, for the output of a run",
    )
    what.add_argument("--layers", metavar="N,N", help="from 1; -1 is the last (default: all)")
    for option in OPTIONS:
        if option.name in ("position", "target", "heads", "residual"):
            shared.add_option(what, option, option.default)
    what.add_argument(
        "--edges", default="attention", help=f"of {','.join(EDGES)} (default: attention)"
    )
    what.add_argument(
        "--receptive-field",
        choices=("auto", "on", "off", "both"),
        default="auto",
        help="divide scores by those of uniform attention over the same mask (auto: for causal "
        "models)",
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
        type=shared.index_or_name,
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
    what.add_argument(
        "--removal",
        type=shared.index_or_name,
        default="auto",
        help="how: delete, or replace by unk, mask, a token or its id (auto: delete; of images, "
        "paint over)",
    )
    what.add_argument(
        "--max-new-tokens",
        type=int,
        default=20,
        metavar="N",
        help="how many tokens an encoder-decoder writes at most (default: 20)",
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
    shared.add_engine(running)
    shared.add_loading(running)
    parser.set_defaults(default_of=parser.get_default)


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
    interrupted = False
    with _prepared(args) as running:
        if running.done:
            print(
                f"attnflow: {running.done} of {running.total} texts are in {args.store} already",
                file=sys.stderr,
            )
        try:
            with Progress("evaluating", "texts") as progress:
                progress.update(running.done, running.total)
                for done in running:
                    progress.update(done, running.total)
        except KeyboardInterrupt:
            interrupted = True
            print(_how_to_go_on(running, args.store), file=sys.stderr)
        if interrupted and not running.done:
            return 130
        found = running.result()
    _give(found, args)
    return 130 if interrupted else 0


def _prepared(args: argparse.Namespace) -> "Run | StoredRun":
    """Return what is to be run, after all checks."""
    folder = args.data != "-" and os.path.isdir(args.data)
    if folder and os.path.isfile(os.path.join(args.data, MANIFEST)):
        return _of_stored(args)
    options = _options(args)
    device = _device(args)
    images = folder or args.data.lower().endswith(IMAGES)
    texts, skipped = _images(args) if images else _texts(args)

    # Loading torch takes seconds, so that everything above comes first.
    from attnflow.evaluate.run import Run

    explainer = shared.load(args)
    return Run(
        explainer,
        _items(args, texts, explainer, images),
        numbers=[text.number for text in texts],
        targets=_targets(args, texts, explainer),
        skipped=skipped,
        device=device,
        **options,
    )


def _of_stored(args: argparse.Namespace) -> "StoredRun":
    """Return what is to be run on the output of a run."""
    from attnflow.dataset.store import read_finished

    for name in _SETTLED:
        if getattr(args, name) != args.default_of(name):
            raise OptionError(
                f"--{name.replace('_', '-')} makes no difference to the scores that are stored in "
                f"{args.data}; leave it out"
            )
    chosen = _names(args.references, "--references")
    references = None if chosen == ["none"] else chosen
    frequencies = None if args.frequencies is None else _frequencies(args.frequencies)
    device = _device(args)
    made = read_finished(args.data)
    explainer = None
    if args.references == args.default_of("references") and not _answers(made.header):
        references = None
        print(
            f"attnflow: {args.data} has the scores of a model for {made.header['task']}, which "
            "gives no answer that tokens could matter to, so that there are no references",
            file=sys.stderr,
        )
    elif references is not None:
        explainer = _stored_model(args, made.header)
    elif args.model is not None:
        raise OptionError("--references none needs no model; leave --model out")

    from attnflow.evaluate.stored import StoredRun

    names = ("batch_size", "limit", "samples", "permutations", "level", "seed", "store")
    return StoredRun(
        args.data,
        explainer,
        references=references,
        baselines=not args.no_baselines,
        frequencies=frequencies,
        replacement=args.replacement,
        device=device,
        **{name: getattr(args, name) for name in (*names, "engine", "workers", "address")},
    )


def _answers(header: Mapping[str, Any]) -> bool:
    """Whether the model that stored scores are of gives an answer."""
    from attnflow.evaluate.run import TASKS

    return header["task"] in TASKS


def _stored_model(args: argparse.Namespace, header: Mapping[str, Any]) -> "Explainer":
    """Load the model that stored scores are of."""
    given = args.model is not None
    if not given:
        args.model = header["model"]
    if args.task == "auto":
        args.task = header["task"]
    try:
        return shared.load(args)
    except (ModelError, OptionError) as error:
        if given:
            raise
        raise ModelError(
            f"the model that the scores in {args.data} are of cannot be loaded: {error}. Say where "
            "it is with --model, or do without it: --references none"
        ) from error


def _device(args: argparse.Namespace) -> str:
    """Return where the workers of a Ray cluster run the model, which is sent there."""
    if args.engine != "ray":
        return "auto"
    device, args.device = args.device, "cpu"
    return str(device)


def _give(evaluation: "Evaluation | Statistics", args: argparse.Namespace) -> None:
    for path in (args.csv, args.plot, args.output):
        if path is not None:
            try:
                evaluation.save(path)
            except OSError as error:
                raise OptionError(f"{path} cannot be written: {error.strerror}") from error
    from attnflow.evaluate.statistics import Statistics

    if not args.json:
        evaluation.show()
    elif isinstance(evaluation, Statistics):
        _print(evaluation.to_dict())
    else:
        _print(evaluation.to_dict(per_text=False))
    for path in (args.csv, args.plot, args.output):
        if path is not None:
            print(f"saved {path}", file=sys.stderr)


def _print(record: dict[str, Any]) -> None:
    print(json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1))


def _how_to_go_on(running: "Run | StoredRun", store: Path | None) -> str:
    done = f"attnflow: interrupted after {running.done} of {running.total} texts"
    if store is not None:
        return f"{done}; they are in {store}, and the same command goes on from there"
    return f"{done}; with --store FILE, the same command would go on from there"


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
        "removal": args.removal,
        "max_new_tokens": args.max_new_tokens,
        "engine": args.engine,
        "workers": args.workers,
        "address": args.address,
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
    if None not in (args.label_column, args.target_column):
        raise OptionError("--label-column is for classes and --target-column for texts; give one")
    skipped: list[Skipped] = []
    texts = list(
        read_texts(
            args.data,
            format=args.format,
            text_column=args.text_column,
            label_column=args.label_column or args.target_column,
            limit=args.limit,
            on_fault=lambda number, reason: skipped.append(Skipped(number, reason)),
            dialect=verb_number,
        )
    )
    if not texts:
        first = f"; line {skipped[0].number}: {skipped[0].reason}" if skipped else ""
        raise TextError(f"{args.data} holds no text that can be read{first}")
    return texts, skipped


def _images(args: argparse.Namespace) -> tuple[list[Text], list[Skipped]]:
    """Return the image that is named, or the images of a folder and those below it, by name."""
    paths = [args.data]
    if os.path.isdir(args.data):
        paths = sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(args.data)
            for name in names
            if name.lower().endswith(IMAGES) and not name.startswith(".")
        )
    if not paths:
        raise TextError(
            f"{args.data} has no images ({', '.join(IMAGES)}), and is not the output of attnflow "
            "run, which has a manifest.json"
        )
    if args.limit is not None and args.limit < 1:
        raise OptionError(f"limit is {args.limit}; expected a whole number of 1 or more")
    for name in ("format", "text_column", "label_column", "target_column"):
        if getattr(args, name) != args.default_of(name):
            raise OptionError(
                f"--{name.replace('_', '-')} is for a file of texts, or of the paths of images, "
                f"and {args.data} is neither; leave it out"
            )
    chosen = enumerate(paths[: args.limit], start=1)
    return [Text(number, path, None) for number, path in chosen], []


def _items(
    args: argparse.Namespace, texts: list[Text], explainer: "Explainer", images: bool
) -> list[Any]:
    """Return the texts as the model takes them: pairs, or paths of images."""
    sees = explainer.task.startswith("image-")
    if images and not sees:
        raise OptionError(
            f"--data is {args.data}, which holds images, and {explainer.name} is a model for "
            f"{explainer.task}; expected a file of texts"
        )
    if args.target_column is not None and explainer.task != "seq2seq-lm":
        raise OptionError(
            f"--target-column is for encoder-decoders, and {explainer.name} is a model for "
            f"{explainer.task}; expected --label-column"
        )
    if args.label_column is not None and explainer.task == "seq2seq-lm":
        raise OptionError(
            f"--label-column is for classifiers, and {explainer.name} is an encoder-decoder; "
            "expected --target-column"
        )
    if args.target_column is not None:
        return [(text.text, text.label or "") for text in texts]
    if sees and not images:
        # Paths in a file are seen from where the file is.
        place = "" if args.data == "-" else os.path.dirname(args.data)
        return [os.path.join(place, text.text) for text in texts]
    return [text.text for text in texts]


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
