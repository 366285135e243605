"""``attnflow paper``: the experiments of the paper, one row of `EXPERIMENTS` each."""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnflow.checks import integer
from attnflow.cli.options import import_torch, shipped
from attnflow.errors import AttnflowError, OptionError
from attnflow.formats import check_path, without_nan
from attnflow.io.files import write_whole
from attnflow.io.journal import digest_of, make_once, stamps
from attnflow.io.progress import Progress
from attnflow.io.records import read_texts
from attnflow.paper import Fault, read_agreement, read_sst2
from attnflow.paper.data import verb_number
from attnflow.paper.recipe import FineTuning, Recipe
from attnflow.paper.result import Result, as_json
from attnflow.version import __version__
from attnflow.view.captions import counted

if TYPE_CHECKING:
    from attnflow.models import Explainer
    from attnflow.paper.loop import Status


EPILOG = """\
examples:
  attnflow paper train --data numpred.val natural.tsv --test numpred.val:2000 --out model
  attnflow paper train-sst2 --model distilbert-base-uncased --data SST-2 --out my-sst2
  attnflow paper accuracy --data numpred.val --limit 2000
  attnflow paper table1 --data numpred.val --limit 200
  attnflow paper table2 --data agr_50_mostcommon_10K.tsv.gz --json > table2.json
  attnflow paper table3 --model ./my-sst2 --data dev.tsv --output table3.md
  attnflow paper figure1 --text "the keys to the cabinet" --output keys.pdf
  attnflow paper figure2 --output figure2.pdf --output figure2.png
  attnflow paper figure3 --text "the key to the cabinets" --text "the keys to the cabinets"
  attnflow paper figure4 --model bert-base-uncased --output pronouns.pdf
  attnflow paper saturation --data numpred.val --output saturation.png
  attnflow paper heads --data numpred.val --limit 200
  attnflow paper script3 --model ./my-sst2 --data dev.tsv --text-column sentence
  attnflow paper all --data numpred.val --output replication

"attnflow paper EXPERIMENT --help" shows the options of one.
"""

AGREEMENT_DATA = (
    "the sentences of Linzen, Dupoux and Goldberg (2016) are not part of attnflow. Their file "
    "agr_50_mostcommon_10K.tsv.gz is linked from https://github.com/TalLinzen/rnn_agreement"
)
SST2_DATA = (
    "SST-2 is not part of attnflow. Its dev.tsv is in the SST-2 data of "
    "https://gluebenchmark.com/tasks"
)

TABLE = (".json", ".md", ".csv", ".png", ".svg", ".pdf")
FIGURE = (".pdf", ".png", ".svg", ".json")
FINDING = (".json", ".png", ".svg", ".pdf")

FAULTS_SHOWN = 20

Flags = Mapping[str, Mapping[str, Any]]


# ---- Reading and loading -------------------------------------------------------------------------


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextmanager
def _faults(on_error: str) -> Iterator[str | Callable[[Fault], None]]:
    """Give the `on_error` of readers. With "skip" it prints the first faults, and their number."""
    faults: list[Fault] = []

    def tell(fault: Fault) -> None:
        faults.append(fault)
        if len(faults) <= FAULTS_SHOWN:
            _say(f"attnflow: {fault} (skipped)")

    yield tell if on_error == "skip" else on_error
    if faults:
        _say(f"attnflow: skipped {counted(len(faults), 'line')}")


def _check_files(*paths: Path, flag: str = "--data") -> None:
    for path in paths:
        if not path.is_file():
            raise OptionError(f"{flag} {path} is not a file")


def _load(args: argparse.Namespace) -> "Explainer":
    # Importing torch takes seconds, so everything else is checked first.
    import_torch()
    from attnflow.models import Explainer

    return Explainer.from_pretrained(args.model or shipped(), device=args.device)


# ---- Experiments ---------------------------------------------------------------------------------


def _table(args: argparse.Namespace) -> Result:
    number = int(args.experiment.removeprefix("table"))
    if args.data is None:
        where = SST2_DATA if number == 3 else AGREEMENT_DATA
        raise OptionError(f"table {number} needs --data FILE: {where}")
    _check_files(args.data)
    read: Callable[..., Iterator[Any]] = read_sst2 if number == 3 else read_agreement
    with _faults(args.on_error) as on_error:
        rows = list(read(args.data, limit=args.limit, on_error=on_error))
    # Sentiment models name their classes in many ways, but the order is always this.
    sentences = [(row.text, int(row.label) if number == 3 else row.label) for row in rows]
    from attnflow.paper.tables import make_table

    explainer = _load(args)
    options = {name: getattr(args, name) for name in ("reference", "samples", "seed", "store")}
    with Progress(f"table {number}", "sentences") as progress:
        options |= {"data": args.data.name, "progress": progress.update}
        return make_table(number, explainer, sentences, **options).result()


def _figure(args: argparse.Namespace) -> Result:
    from attnflow.paper import figures
    from attnflow.view import theme

    theme.require()
    if args.experiment == "figure1":
        drawing = figures.figure1(_load(args), *([args.text] if args.text else []))
    elif args.experiment == "figure4":
        ambiguities = _ambiguities(args)
        relative = {"on": True, "off": False}.get(args.receptive_field, "auto")
        drawing = figures.figure4(_load(args), ambiguities, receptive_field=relative)
        for sentence in drawing.data["sentences"]:
            _say(*(f"note on {sentence['text']!r}: {note}" for note in sentence["notes"]))
    else:
        draw = figures.figure2 if args.experiment == "figure2" else figures.figure3
        sentences = [figures.Sentence(text) for text in args.text or []]
        drawing = draw(_load(args), sentences or figures.SENTENCES)
    return Result(drawing.data, figure=lambda: drawing.figure)


def _ambiguities(args: argparse.Namespace) -> Sequence[Any]:
    from attnflow.paper.pronouns import EXAMPLES, Ambiguity

    if (args.text is None) != (args.referents is None):
        raise OptionError(
            "--text, the sentence, and --referents, the words in it that the pronoun could refer "
            "to, are given together"
        )
    answers = tuple(args.answers)
    if args.text is None:
        return [example._replace(answers=answers) for example in EXAMPLES]
    return [Ambiguity(args.text, tuple(args.referents), answers)]


def _finding(args: argparse.Namespace) -> Result:
    _check_files(args.data)
    with _faults("skip") as tell:
        found = read_texts(
            args.data,
            text_column=args.text_column,
            limit=args.limit,
            on_fault=lambda line, reason: tell(Fault(str(args.data), line, reason)),  # type: ignore[operator]
            dialect=verb_number,
        )
        texts = [row.text for row in found]
    explainer = _load(args)
    from attnflow.paper.findings import heads_result, saturation_result
    from attnflow.paper.script import scripted_result

    results = {"saturation": saturation_result, "heads": heads_result, "script3": scripted_result}
    with Progress(args.experiment, "texts") as progress:
        return results[args.experiment](explainer, texts, progress.update)


def _accuracy(args: argparse.Namespace) -> Result:
    paths = [args.data] if isinstance(args.data, Path) else args.data
    _check_files(*paths)
    with _faults(args.on_error) as on_error:
        rows = chain.from_iterable(
            read_agreement(path, limit=args.limit or None, on_error=on_error) for path in paths
        )
        explainer = _load(args)
        from attnflow.paper.accuracy import accuracy
        from attnflow.paper.card import attractors_text

        with Progress("accuracy", "sentences") as progress:
            found = accuracy(explainer.model, explainer.tokenizer, rows, progress.update)
    lines = [f"accuracy {_share(found)} sentences"]
    for attractors, part in found["by_attractors"].items():
        lines.append(f"  {attractors_text(attractors)}: {_share(part)}")
    return Result(found, lambda: "\n".join(lines))


def _share(part: Mapping[str, Any]) -> str:
    return f"{part['accuracy']:.4f} on {part['count']:,}"


# ---- Training ------------------------------------------------------------------------------------


def _train(args: argparse.Namespace) -> Result:
    _check_files(*args.data, *args.extra, *(path for path, _ in args.test), flag="file")
    with _training(args) as options:
        from attnflow.paper.train import Reserved, train

        test = [Reserved(*test) for test in args.test]
        report = train(args.data, args.out, extra=args.extra, test=test, **options)
    read = (f"{name} {count:,}" for name, count in report["data"]["read"].items())
    tests = {"held out": report["held_out"], **report["tests"]}
    shares = (f"{name}: {_share(found)} sentences" for name, found in tests.items())
    return _trained(args, report, f"read: {', '.join(read)}", *shares)


def _train_sst2(args: argparse.Namespace) -> Result:
    train, dev = (args.data / name for name in ("train.tsv", "dev.tsv"))
    _check_files(train, dev, flag="file")
    with _training(args) as options:
        from attnflow.paper.sst2 import fine_tune

        report = fine_tune(args.model, train, dev, args.out, limit=args.limit, **options)
    return _trained(args, report, f"dev.tsv: accuracy {_share(report)} sentences")


def _trained(args: argparse.Namespace, report: Mapping[str, Any], *lines: str) -> Result:
    data, epochs = report["data"], len(report["curve"])
    others = f" and some of {data['drawn_from']:,} others" if data.get("drawn_from") else ""
    text = [
        f"trained on {data['trained_on']:,} sentences{others}, {epochs} epochs",
        *lines,
        f"time: {report['seconds'] / 60:.1f} minutes",
        f"the model and its report are in {args.out}",
    ]
    return Result(report, lambda: "\n".join(text))


@contextmanager
def _training(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Give the options that both trainings share, and show the progress."""
    import torch

    import attnflow.capture  # noqa: F401 # raises MissingExtraError without torch
    from attnflow.paper.loop import STATE

    if args.threads is not None:
        most = 4 * (os.cpu_count() or 1)
        torch.set_num_threads(integer(args.threads, "--threads", least=1, most=most))
    if args.resume and not (args.out / STATE).exists():
        _say(f"attnflow: nothing is saved in {args.out} yet; training starts from the beginning")
    kind = EXPERIMENTS[args.experiment].recipe
    names = [field.name for field in dataclasses.fields(kind)]
    recipe = kind(**{name: value for name, value in vars(args).items() if name in names})
    with _faults(args.on_error) as on_error, Progress("training", "steps") as bar:
        epochs = 0

        def progress(status: "Status") -> None:
            nonlocal epochs
            epoch = f"epoch {status.epoch} of {status.epochs}, loss {status.loss:.4f}"
            bar.update(status.step, max(status.step, status.steps), epoch)
            minutes, seconds = divmod(round(bar.seconds_left or 0), 60)
            for point in status.curve[epochs:]:
                _say(
                    f"epoch {point['epoch']}: loss {point['loss']:.4f}, accuracy "
                    f"{point['held_out']:.4f}, {minutes}:{seconds:02} left"
                )
            epochs = len(status.curve)

        try:
            given = {"recipe": recipe, "resume": args.resume, "on_error": on_error}
            yield {**given, "progress": progress}
        except KeyboardInterrupt:
            if (args.out / STATE).exists():
                _say(f"attnflow: the state is saved in {args.out}; --resume continues from there")
            raise


# ---- All of them ---------------------------------------------------------------------------------

PARTS: Mapping[str, Mapping[str, str]] = {
    "accuracy": {},
    "figure1": {},
    "figure2": {},
    "figure3": {},
    "figure4": {"model": "language_model"},
    "table1": {},
    "table2": {},
    "table3": {"model": "sst2_model", "data": "sst2_data", "limit": "sst2_limit"},
}
"""What ``attnflow paper all`` makes, and the names of options that have another name there."""

MISSING = {
    "data": f"give --data; {AGREEMENT_DATA}",
    "sst2_data": f"give --sst2-data; {SST2_DATA}",
    "sst2_model": "give --sst2-model, which attnflow paper train-sst2 makes",
    "language_model": "give --language-model",
}


def _all(args: argparse.Namespace) -> int:
    from attnflow.view import theme

    theme.require()
    if args.output.exists() and not args.output.is_dir():
        raise OptionError(f"--output {args.output} is not a folder")
    parts = [_part(name, args) for name in PARTS]
    for part in parts:
        if part.data is not None and not part.missing and not part.data.is_file():
            raise OptionError(f"{part.experiment} cannot be made: {part.data} is not a file")
    (args.output / "progress").mkdir(parents=True, exist_ok=True)
    done = []
    for part in parts:
        result = {"name": part.experiment, "status": "left out", "reason": part.missing}
        result |= {"files": []} if part.missing else _make_part(part, args.output)
        done.append(result)
        about = f": {result['reason']}" if result["reason"] else ""
        _say(f"{part.experiment:<8} {result['status']}{about}")
    print(as_json(done) if args.json else f"the results are in {args.output}")
    return int(any(result["status"] == "failed" for result in done))


def _part(name: str, args: argparse.Namespace) -> argparse.Namespace:
    """Return the options of a part. "missing" says what has to be given first."""
    flags = EXPERIMENTS[name].flags
    part = {"data": None, "device": args.device, "experiment": name, "missing": ""}
    for flag, options in flags.items():
        option = flag.replace("-", "_")
        source = PARTS[name].get(option, option)
        part[option] = getattr(args, source, options.get("default"))
        if part[option] is None and source in MISSING:
            part["missing"] = part["missing"] or MISSING[source]
    return argparse.Namespace(**part)


def _make_part(part: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make one part, unless it exists and was made with the same options, model and data."""
    name, experiment = part.experiment, EXPERIMENTS[part.experiment]
    part.model = part.model or shipped()
    read = [stamps(Path(path)) for path in (part.model, part.data) if path is not None]
    digest = digest_of([__version__, read, sorted((n, str(v)) for n, v in vars(part).items())])
    part.store = folder / "progress" / f"{name}-{digest}.jsonl"
    record = folder / f"{name}.json"
    endings = [ending for ending in experiment.endings if ending not in (".svg", ".json")]
    files = [folder / f"{name}{ending}" for ending in endings]

    def make() -> tuple[Mapping[str, Any], Mapping[Path, str | bytes]]:
        found = experiment.run(part)
        return without_nan(found.data), dict(zip(files, found.contents(endings), strict=True))

    began = time.monotonic()
    try:
        made = make_once(record, files, digest, make)
    except AttnflowError as error:
        return {"status": "failed", "reason": str(error), "files": []}
    return {
        "status": "done" if made else "was there",
        "reason": f"in {time.monotonic() - began:.0f} s" if made else "",
        "files": [str(path) for path in (*files, record)],
    }


# ---- The command ---------------------------------------------------------------------------------


class Experiment(NamedTuple):
    """One command under ``attnflow paper``.

    Attributes:
        help: What it does, in a line.
        run: Runs it, and returns its `Result`; the exit status of "all".
        flags: The arguments of `add_argument`, by the name of the flag.
        endings: The endings of files that the result can be saved to. A figure is saved to the
            first two by default.
        recipe: A class of training options, each of which has a flag.
    """

    help: str
    run: Callable[[argparse.Namespace], Any]
    flags: Flags
    endings: Sequence[str] = ()
    recipe: Any = None


def _reserved(value: str) -> tuple[Path, int]:
    path, _, count = value.rpartition(":")
    if not path or not count.isdecimal() or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} given; expected FILE:N, such as dev.tsv:2000")
    return Path(path), int(count)


def _flag(help: str, **options: Any) -> dict[str, Any]:
    return {"help": help, **options}


def _count(default: int, help: str) -> dict[str, Any]:
    return {"help": f"{help} (default: {default})", "type": int, "default": default}


VERB_MODEL = _flag("a verb-number model (default: the one that comes with attnflow)")
ANY_MODEL = _flag("any text model (default: the verb-number model that comes with attnflow)")
SST2_MODEL = _flag("a classifier, as attnflow paper train-sst2 makes it", required=True)
LANGUAGE_MODEL = _flag("a masked or causal model: a folder, a GGUF file, or a hub name")
AGREEMENT = _flag(
    "the file of Linzen et al., a numpred file, or JSON lines; may be gzipped", type=Path
)
FILES = {**AGREEMENT, "nargs": "+", "metavar": "FILE"}
FOLDER = _flag("the folder to write", type=Path, required=True, metavar="DIR")
LIMIT = _count(2000, "sentences to read, as many as in the paper")
ON_ERROR = _flag(
    "what to do about a line that cannot be read (default: raise)",
    choices=("raise", "skip"),
    default="raise",
)
SAMPLING = {
    "samples": _count(2000, "bootstrap samples for confidence intervals"),
    "seed": _count(0, "seed of the samples"),
}
TABLE_FLAGS = {
    "model": VERB_MODEL,
    "data": AGREEMENT,
    "limit": LIMIT,
    "on-error": ON_ERROR,
    **SAMPLING,
    "reference": _flag(
        "blank_out (default of table1), gradient_norm (default of table2 and table3), "
        "input_gradient or gradient_x_input"
    ),
    "store": _flag("a file that stores finished sentences; the same run resumes it", type=Path),
}
SENTENCES = _flag("a sentence; may be given again (default: the paper's)", action="append")
FIGURE_FLAGS = {"model": ANY_MODEL, "text": SENTENCES}
FINDING_FLAGS = {
    "model": ANY_MODEL,
    "data": _flag("a file of texts, as for attnflow evaluate", type=Path, required=True),
    "text-column": _flag("the column that has the text"),
}
TRAINING_FLAGS = {
    "out": FOLDER,
    "resume": _flag("resume a training that was stopped", action="store_true"),
    "on-error": ON_ERROR,
    "threads": _flag("threads of torch (default: all cores)", type=int),
}

EXPERIMENTS: dict[str, Experiment] = {
    "train": Experiment(
        "train a verb-number model",
        _train,
        {
            "data": {**FILES, "required": True},
            "extra": {**FILES, "default": [], "help": "files of which some are drawn every epoch"},
            "test": _flag(
                "test on the first N sentences of a file, and never train on them",
                type=_reserved,
                nargs="+",
                default=[],
                metavar="FILE:N",
            ),
            **TRAINING_FLAGS,
        },
        recipe=Recipe,
    ),
    "train-sst2": Experiment(
        "fine-tune an encoder on SST-2, for table3",
        _train_sst2,
        {
            "model": _flag("the encoder: a folder, or a name on the hub", required=True),
            "data": {**FOLDER, "help": "the folder with SST-2's train.tsv and dev.tsv"},
            "limit": _flag("largest number of sentences to train on", type=int),
            **TRAINING_FLAGS,
        },
        recipe=FineTuning,
    ),
    "accuracy": Experiment(
        "how often a model predicts the correct number of a verb",
        _accuracy,
        {
            "model": VERB_MODEL,
            "data": {**FILES, "required": True},
            "limit": _count(2000, "sentences to read of each file, as in the paper; 0 reads all"),
            "on-error": ON_ERROR,
        },
    ),
    "table1": Experiment(
        "correlation of attention with blank-out, verb number", _table, TABLE_FLAGS, TABLE
    ),
    "table2": Experiment(
        "correlation of attention with input gradients, verb number", _table, TABLE_FLAGS, TABLE
    ),
    "table3": Experiment(
        "correlation of attention with input gradients, SST-2",
        _table,
        {
            **TABLE_FLAGS,
            "model": SST2_MODEL,
            "data": _flag("SST-2's dev.tsv, or JSON lines", type=Path),
            "limit": _count(100, "sentences to read, as many as in the paper"),
        },
        TABLE,
    ),
    "figure1": Experiment(
        "the attention graph of a sentence: raw, rollout and flow",
        _figure,
        {"model": ANY_MODEL, "text": _flag("the sentence (default: the key to the cabinets)")},
        FIGURE,
    ),
    "figure2": Experiment("raw attention of CLS in all layers", _figure, FIGURE_FLAGS, FIGURE),
    "figure3": Experiment(
        "raw attention, rollout and flow of CLS in all layers", _figure, FIGURE_FLAGS, FIGURE
    ),
    "figure4": Experiment(
        "how a language model resolves a pronoun",
        _figure,
        {
            "model": {**LANGUAGE_MODEL, "required": True},
            "text": _flag(
                "a sentence with MASK in place of the pronoun, such as "
                '"Mary convinced John of MASK love" (default: the paper\'s two)'
            ),
            "referents": _flag("the words that the pronoun could refer to", nargs="+"),
            "answers": _flag(
                "the words to choose between (default: his her)", nargs="+", default=["his", "her"]
            ),
            "receptive-field": _flag(
                "divide scores by those of uniform attention (auto: for causal models)",
                choices=("auto", "on", "off"),
                default="auto",
            ),
        },
        FIGURE,
    ),
    "saturation": Experiment(
        "in which layers flow does not depend on the position",
        _finding,
        {**FINDING_FLAGS, "limit": _count(200, "texts to read")},
        FINDING,
    ),
    "heads": Experiment(
        "how well every single head agrees with blank-out",
        _finding,
        {**FINDING_FLAGS, "limit": _count(500, "texts to read")},
        FINDING,
    ),
    "script3": Experiment(
        "table 3 as the authors' script computes it, which is not as the paper says",
        _finding,
        {**FINDING_FLAGS, "model": SST2_MODEL, "limit": _count(100, "texts to read")},
        FINDING,
    ),
    "all": Experiment(
        "the accuracy, and every table and figure for which a model and data are given",
        _all,
        {
            "model": VERB_MODEL,
            "data": _flag("verb-number sentences, for the accuracy and tables 1, 2", type=Path),
            "sst2-model": _flag("a classifier fine-tuned on SST-2, for table 3"),
            "sst2-data": _flag("SST-2's dev.tsv, for table 3", type=Path),
            "language-model": LANGUAGE_MODEL,
            "limit": LIMIT,
            "sst2-limit": _count(100, "sentences of SST-2 to read, as many as in the paper"),
            "on-error": ON_ERROR,
            **SAMPLING,
            "output": {**FOLDER, "help": "the folder to write; what is in it is not made again"},
        },
    ),
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "paper",
        help="run the experiments of the paper",
        description='Run the experiments of "Quantifying Attention Flow in Transformers" (Abnar '
        "and Zuidema, ACL 2020).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    experiments = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", required=True)
    lines = EPILOG.splitlines()
    for name, experiment in EXPERIMENTS.items():
        one = experiments.add_parser(
            name,
            help=experiment.help,
            description=experiment.help[0].upper() + experiment.help[1:] + ".",
            epilog=next(f"example: {line}" for line in lines if f"paper {name} " in line),
        )
        flags = {**experiment.flags, "json": _flag("print JSON", action="store_true")}
        if experiment.recipe is None:
            flags["device"] = _flag("cpu, cuda, ... (default: auto)", default="auto")
        if experiment.endings:
            default = f" (default: {name}.pdf and {name}.png, none with --json)"
            flags["output"] = _flag(
                f"save to a file: {', '.join(experiment.endings)}; may be given more than once"
                + (default if experiment.endings == FIGURE else ""),
                type=Path,
                action="append",
                metavar="FILE",
            )
        for flag, options in flags.items():
            one.add_argument(f"--{flag}", **options)
        if experiment.recipe is not None:
            _add_recipe(one, experiment.recipe)


def _add_recipe(parser: argparse.ArgumentParser, recipe: Any) -> None:
    """Add a flag for each option of a training."""
    group = parser.add_argument_group(
        "recipe", "The defaults are those behind the numbers in the documentation."
    )
    for field in dataclasses.fields(recipe):
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=argparse.SUPPRESS,
            help=f"{field.metadata['help']} (default: {field.default})",
        )


def run(args: argparse.Namespace) -> int:
    """Run an experiment, save its result, and print it if nothing was saved or with --json.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, or 1 if a part of ``all`` failed.

    Raises:
        AttnflowError: If the model, the data or an option is not valid.
    """
    if args.experiment == "all":
        return _all(args)
    name, experiment = args.experiment, EXPERIMENTS[args.experiment]
    outputs = vars(args).get("output")
    if outputs is None:
        by_default = experiment.endings == FIGURE and not args.json
        outputs = [Path(f"{name}{ending}") for ending in FIGURE[:2]] if by_default else []
    for path in outputs:
        check_path(path, experiment.endings, "--output")
    result = experiment.run(args)
    contents = result.contents([path.suffix.lower() for path in outputs])
    for path, content in zip(outputs, contents, strict=True):
        write_whole(path, content)
        _say(f"saved {path}")
    if args.json:
        print(as_json(result.data))
    elif result.text is not None and (not outputs or experiment.endings == FINDING):
        print(result.text().rstrip("\n"))
    return 0
