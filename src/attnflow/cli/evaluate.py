"""``attnflow evaluate``: how far methods agree with what a model depends on."""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.cli import options as shared
from attnflow.dataset.store import MANIFEST, read_finished
from attnflow.errors import DataError, ModelError, OptionError, TextError
from attnflow.evaluate import run as texts_run
from attnflow.evaluate.evaluation import Evaluation, Skipped
from attnflow.evaluate.options import TASKS
from attnflow.evaluate.stored import StoredRun, evaluate_stored
from attnflow.formats import check_path
from attnflow.importance import REFERENCES
from attnflow.io.progress import Progress
from attnflow.io.records import FORMATS, Annotated, Text, check_limit, read_annotated
from attnflow.options import EDGES, METHODS, OPTIONS
from attnflow.paper.data import verb_number

if TYPE_CHECKING:
    from attnflow.models import Explainer


IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""The endings of the names of images."""

EPILOG = """\
examples:
  attnflow evaluate --data numpred.val --limit 200
  attnflow evaluate --model ./my-classifier --data films.tsv --text-column sentence --plot films.pdf
  attnflow evaluate --model ./my-model --data texts.txt --references blank_out,gradient_x_input \\
      --layers 1,3,6 --json > evaluation.json
  attnflow evaluate --model ./my-decoder --data texts.txt --receptive-field both --drop-sink both
  attnflow evaluate --model ./my-translator --data pairs.csv --text-column en --target-column de
  attnflow evaluate --model ./my-nli --data nli.csv --text-column premise --pair-column hypothesis
  attnflow evaluate --model ./my-vit --data photos/ --faithfulness
  attnflow evaluate --model ./my-classifier --data films.tsv --faithfulness --removal mask

where it is known which word decides the answer ("A niece of most senators": "hasn't", not
"haven't", because of "niece"), whether methods find it:
  attnflow evaluate --model ./my-decoder --data pairs.csv --evidence-column evidence \\
      --label-column good --contrast-column bad --references none

a run that can be resumed, and several workers:
  attnflow evaluate --model ./my-model --data texts.jsonl --store run.jsonl   # can be resumed
  attnflow evaluate --model ./my-model --data texts.txt --workers 4
  attnflow evaluate --model ./my-model --data texts.txt --engine ray --address auto

for the output of attnflow run, whose stored scores are used:
  attnflow evaluate --data out/                        # with the model that computed the scores
  attnflow evaluate --data out/ --model ./moved-model --references gradient_norm --store refs.jsonl
  attnflow evaluate --data out/ --references none      # without a model
"""

SWITCHES: dict[str, Any] = {"auto": "auto", "on": True, "off": False, "both": (False, True)}

MORE = ("pair_column", "contrast_column", "evidence_column")
"""The flags that name further columns of a file of texts."""

COLUMNS = ("format", "text_column", "label_column", "target_column", *MORE)
"""The flags that say how a file of texts is read."""


# ---- Flags ---------------------------------------------------------------------------------------


def _flag(help: str, **options: Any) -> dict[str, Any]:
    return {"help": help, **options}


def _default(help: str, default: Any, **options: Any) -> dict[str, Any]:
    given = {"type": type(default), "default": default, **options}
    return _flag(f"{help} (default: {default})", **given)


def _file(help: str, metavar: str = "FILE") -> dict[str, Any]:
    return _flag(help, type=Path, metavar=metavar)


def _names(valid: tuple[str, ...], default: tuple[str, ...], more: str = "") -> dict[str, Any]:
    help = f"any of {', '.join(valid)}, separated by commas{more}"
    return _default(help, ",".join(default))


# An option of an explanation has no entry of its own: its flag is made from its row of OPTIONS.
FLAGS: dict[str, dict[str, dict[str, Any] | None]] = {
    "data": {
        "data": _flag(
            "a file of texts, or - for standard input; for a vision model a folder of images, an "
            "image, or a file with the paths of images; or the output of attnflow run",
            required=True,
            metavar="PATH",
        ),
        "format": _default(
            "one text a line, a table with a header, JSON lines, Parquet, or the verb-number data "
            "of Linzen et al.; auto goes by the ending of the name and the first line",
            "auto",
            choices=(*FORMATS, "agreement"),
        ),
        "text-column": _flag("the column, or JSON field, of the texts", metavar="C"),
        "pair-column": _flag(
            "for a model that reads two texts as a pair: the column of the second, such as a "
            "hypothesis",
            metavar="C",
        ),
        "label-column": _flag(
            "explain the answer in this column, not the predicted one: a class, or for a language "
            "model the word that follows the text, of which the first token counts",
            metavar="C",
        ),
        "contrast-column": _flag("the answer that it is compared with, likewise", metavar="C"),
        "evidence-column": _flag(
            "what the answer must come from: a word of the text (all its places count), or spans "
            "of characters from 0, such as 2-7,10-14; in JSON also a list of pairs. The second "
            "text of a pair is counted on from the first, with a line break between them",
            metavar="C",
        ),
        "target-column": _flag(
            "for an encoder-decoder: the column of targets (default: what the model generates)",
            metavar="C",
        ),
        "limit": _flag("the largest number of texts to read", type=int, metavar="N"),
        "truncate": None,
    },
    "what is evaluated": {
        "methods": _names(METHODS, texts_run.DEFAULT_METHODS),
        "references": _names(
            REFERENCES,
            ("blank_out",),
            "; none for the output of a run, or where evidence or faithfulness is measured",
        ),
        "layers": _flag(
            "from 1, separated by commas; -1 is the last (default: all)", metavar="N,N"
        ),
        "position": None,
        "target": None,
        "contrast": None,
        "keep-wrong": _flag(
            "with evidence: keep texts of which the model prefers the bad answer",
            action="store_true",
        ),
        "heads": None,
        "residual": None,
        "edges": _names(EDGES, ("attention",)),
        "receptive-field": _default(
            "divide scores by those of uniform attention over the same mask; auto does so for "
            "causal models",
            "auto",
            choices=tuple(SWITCHES),
        ),
        "drop-sink": _default(
            "leave out the attention sink, the token that receives most attention",
            "off",
            nargs="?",
            choices=("on", "off", "both"),
            const="on",
        ),
        "replacement": _default(
            "what blank-out replaces a token with: auto, unk, mask, a token or its id",
            "auto",
            type=shared.index_or_name,
        ),
        "no-baselines": _flag("leave the baselines out", dest="baselines", action="store_false"),
        "frequencies": _flag(
            "how often tokens occur, a JSON object of tokens and numbers (default: count the "
            "texts)",
            metavar="FILE.json",
        ),
        "faithfulness": _flag(
            "also remove tokens, and measure how the prediction changes; takes much longer",
            action="store_true",
        ),
        "removal": _default(
            "how tokens are removed: delete, or replace by unk, mask, a token or its id; auto "
            "deletes, and paints over the patches of images",
            "auto",
            type=shared.index_or_name,
        ),
        "max-new-tokens": _default("the most tokens that an encoder-decoder generates", 20),
    },
    "statistics": {
        "samples": _default("bootstrap resamples", 2000),
        "permutations": _default("sign flips of a test", 9999),
        "level": _default("the confidence level", 0.95),
        "seed": _default("the seed of random numbers", 0),
    },
    "output": {
        "json": _flag("print JSON instead of tables", action="store_true"),
        "output": _file("save the result: .json, .csv, .png, .svg or .pdf"),
        "csv": _file("save the table of means", "FILE.csv"),
        "plot": _file("save a figure of correlations over layers: .png, .svg or .pdf"),
        "store": _file("keep each text's result here; the same command resumes after a stop"),
    },
    "running": {"batch-size": _default("texts with a token blanked out that run together", 64)},
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "evaluate",
        help="measure how far methods agree with what a model depends on",
        description="Measure how far contributions, raw attention, rollout and flow agree with "
        "what a model depends on: Spearman's rank correlation with references, whether they find "
        "the evidence for an answer, and what happens when tokens are removed; over many texts, "
        "with confidence intervals, baselines and tests.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared.add_model(parser)
    table = {option.name: option for option in OPTIONS}
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for name, settings in flags.items():
            if settings is None:
                shared.add_option(group, table[name], table[name].default)
            else:
                group.add_argument(f"--{name}", **settings)
    shared.add_engine(group)
    shared.add_loading(group)
    parser.set_defaults(default_of=parser.get_default)


def _arguments(args: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a function that have flags of the same names."""
    names = inspect.signature(function).parameters
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    for name in {"methods", "edges", "references"} & given.keys():
        given[name] = _listed(given[name], f"--{name}")
    if given.get("references") == ["none"]:
        given["references"] = None
    if given.get("layers") is not None:
        given["layers"] = _layers(given["layers"])
    for name in {"receptive_field", "drop_sink"} & given.keys():
        given[name] = SWITCHES[given[name]]
    if args.frequencies is not None:
        given["frequencies"] = _frequencies(args.frequencies)
    # The model is sent to the workers of a Ray cluster, which choose the device.
    given["device"] = args.device if args.engine == "ray" else "auto"
    return given


def _listed(value: str, flag: str) -> list[str]:
    names = [part.strip() for part in value.split(",") if part.strip()]
    if not names:
        raise OptionError(f"{flag} is {value!r}; expected names separated by commas")
    return names


def _layers(value: str) -> list[int]:
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise OptionError(
            f"--layers is {value!r}; expected integers separated by commas, such as 1,3,6"
        ) from None


def _frequencies(name: str) -> dict[str, int]:
    try:
        table = json.loads(Path(name).read_bytes())
    except OSError as error:
        raise OptionError(f"--frequencies: {name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"--frequencies: {name} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise DataError(f"--frequencies: {name} is not a JSON object of tokens and numbers")
    return table


def _refuse(args: argparse.Namespace, names: "list[str] | tuple[str, ...]", why: str) -> None:
    """Refuse flags that were given and would make no difference."""
    for name in names:
        if getattr(args, name) != args.default_of(name):
            raise OptionError(f"--{name.replace('_', '-')} {why}; leave it out")


# ---- Running -------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, or 130 if Ctrl-C came before the last text was done.

    Raises:
        AttnflowError: If the model, the data or an option is not valid.
    """
    figures = (".png", ".svg", ".pdf")
    accepted = {"csv": (".csv",), "plot": figures, "output": (".json", ".csv", *figures)}
    files = [getattr(args, name) for name in accepted]
    for path, endings in zip(files, accepted.values(), strict=True):
        if path is not None:
            check_path(path, endings)
    interrupted = False
    with _prepared(args) as running:
        if running.done:
            _say(f"{running.done} of {running.total} texts are in {args.store} already")
        try:
            with Progress("evaluating", "texts") as progress:
                running.measure_all(progress.update)
        except KeyboardInterrupt:
            interrupted = True
            how = f"they are in {args.store}, and" if args.store else "with --store FILE,"
            done = f"interrupted after {running.done} of {running.total} texts"
            _say(f"{done}; {how} the same command resumes")
        if interrupted and not running.done:
            return 130
        found = running.result()
    saved = [path for path in files if path is not None]
    for path in saved:
        shared.save(found, path)
    if args.json:
        record = found.to_dict(per_text=False) if isinstance(found, Evaluation) else found.to_dict()
        print(json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        found.show()
    for path in saved:
        print(f"saved {path}", file=sys.stderr)
    return 130 if interrupted else 0


def _say(message: str) -> None:
    print(f"attnflow: {message}", file=sys.stderr)


def _prepared(args: argparse.Namespace) -> "texts_run.Run | StoredRun":
    """Check the options, read the data and load the model, in this order."""
    folder = args.data != "-" and os.path.isdir(args.data)
    if folder and os.path.isfile(os.path.join(args.data, MANIFEST)):
        return _stored(args)
    options = _arguments(args, texts_run.evaluate)
    images = folder or args.data.lower().endswith(IMAGES)
    rows, skipped = _images(args) if images else _texts(args)
    texts = [row.text for row in rows]
    # Loading the model takes seconds.
    explainer = _load(args)
    return texts_run.Run(
        explainer,
        _items(args, rows, explainer, images),
        numbers=[text.number for text in texts],
        targets=_answers(args, explainer, "target", [text.label or "" for text in texts]),
        contrasts=_answers(args, explainer, "contrast", _values(rows, "contrast_column")),
        evidence=_values(rows, "evidence_column"),
        skipped=skipped,
        **options,
    )


def _stored(args: argparse.Namespace) -> StoredRun:
    """Prepare the evaluation of the output of a run."""
    takes, others = (
        inspect.signature(function).parameters for function in (evaluate_stored, texts_run.evaluate)
    )
    decided = [
        name
        for name in (*others, "target", "contrast")
        if name not in takes and hasattr(args, name)
    ]
    _refuse(args, [*COLUMNS, *decided], f"has no effect on the scores stored in {args.data}")
    options = _arguments(args, evaluate_stored)
    header, explainer = read_finished(args.data).header, None
    if options["references"] is None:
        _refuse(args, ["model"], "is not needed for --references none")
    elif args.references == args.default_of("references") and header["task"] not in TASKS:
        options["references"] = None
        _say(
            f"{args.data} has the scores of a model for {header['task']}, which predicts no class "
            "and no token; there are no references"
        )
    else:
        explainer = _stored_model(args, header)
    return StoredRun(args.data, explainer, **options)


def _stored_model(args: argparse.Namespace, header: Mapping[str, Any]) -> "Explainer":
    """Load the model that computed the stored scores."""
    if args.task == "auto":
        args.task = header["task"]
    if args.model is not None:
        return _load(args)
    args.model = header.get("path") or header["model"]
    try:
        return _load(args)
    except (ModelError, OptionError) as error:
        raise ModelError(
            f"the model that computed the scores in {args.data} cannot be loaded: {error}. Give it "
            "with --model, or do without it: --references none"
        ) from error


def _load(args: argparse.Namespace) -> "Explainer":
    if args.engine == "ray":
        args.device = "cpu"
    return shared.load(args)


# ---- Data ----------------------------------------------------------------------------------------


def _texts(args: argparse.Namespace) -> tuple[list[Annotated], list[Skipped]]:
    """Return the texts, and the lines that contain none."""
    if None not in (args.label_column, args.target_column):
        raise OptionError("--label-column is for classes and --target-column for texts; give one")
    skipped: list[Skipped] = []
    texts = list(
        read_annotated(
            args.data,
            {name: getattr(args, name) for name in MORE if getattr(args, name) is not None},
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
        raise TextError(f"{args.data} has no text that can be read{first}")
    return texts, skipped


def _images(args: argparse.Namespace) -> tuple[list[Annotated], list[Skipped]]:
    """Return the image given, or the images in a folder and its subfolders, sorted by name."""
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
            f"run, which has a {MANIFEST}"
        )
    check_limit(args.limit)
    _refuse(args, COLUMNS, f"is for a file, and {args.data} is an image or a folder of images")
    chosen = enumerate(paths[: args.limit], start=1)
    return [Annotated(Text(number, path, None), {}) for number, path in chosen], []


def _items(
    args: argparse.Namespace, rows: list[Annotated], explainer: "Explainer", images: bool
) -> list[Any]:
    """Return the texts as the model takes them: texts, pairs, or the paths of images."""
    task, sees = explainer.task, explainer.task.startswith("image-")
    if images and not sees:
        raise OptionError(
            f"--data is {args.data}, which has images, but {explainer.name} is a model for {task}; "
            "expected a file of texts"
        )
    wrong, right = ("label", "target") if task == "seq2seq-lm" else ("target", "label")
    if getattr(args, f"{wrong}_column") is not None:
        raise OptionError(
            f"--{wrong}-column is not for {explainer.name}, a model for {task}; expected "
            f"--{right}-column"
        )
    texts, pairs = [row.text for row in rows], _values(rows, "pair_column")
    if pairs is not None and not explainer.adapter.reads_pairs:
        instead = "expected --target-column" if task == "seq2seq-lm" else "leave it out"
        raise OptionError(
            f"--pair-column is for models that read two texts as a pair, and {explainer.name} is a "
            f"model for {task}; {instead}"
        )
    if args.target_column is not None:
        return [(text.text, text.label or "") for text in texts]
    if pairs is not None:
        return [(text.text, pair) for text, pair in zip(texts, pairs, strict=True)]
    if sees and not images:
        # Paths in a file are relative to the folder of the file.
        folder = "" if args.data == "-" else os.path.dirname(args.data)
        return [os.path.join(folder, text.text) for text in texts]
    return [text.text for text in texts]


def _values(rows: list[Annotated], column: str) -> list[Any] | None:
    """Return the values in a column; None if it was not read."""
    return [row.more[column] for row in rows] if column in rows[0].more else None


def _answers(
    args: argparse.Namespace, explainer: "Explainer", name: str, column: list[Any] | None
) -> Any:
    """Return the targets or the contrasts: one for all texts, or those in a column."""
    flag = {"target": "label_column", "contrast": "contrast_column"}[name]
    if getattr(args, flag) is None or column is None:
        return getattr(args, name)
    if getattr(args, name) is not None:
        raise OptionError(
            f"--{name} and --{flag.replace('_', '-')} both say which class to explain; give one"
        )
    given = [str(one) for one in column]
    if not explainer.adapter.has_classes:
        return given
    # A label that is not the name of a class may be its index.
    names = explainer.adapter.labels.values()
    return [int(one) if one not in names and one.isdecimal() else one for one in given]
