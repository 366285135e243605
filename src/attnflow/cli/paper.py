"""``attnflow paper``: the experiments of the paper, one row of `EXPERIMENTS` each."""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnflow.cli.options import shipped
from attnflow.errors import AttnflowError, MissingExtraError, OptionError
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

if TYPE_CHECKING:
    from attnflow.models import Explainer
    from attnflow.paper.loop import Status

__all__ = ["add_parser", "run"]

EPILOG = """\
examples:
  attnflow paper table1 --data numpred.val --limit 200
  attnflow paper table2 --data agr_50_mostcommon_10K.tsv.gz --json > table2.json
  attnflow paper table3 --model ./my-sst2 --data dev.tsv
  attnflow paper figure3 --output figure3.pdf
  attnflow paper figure4 --model bert-base-uncased
  attnflow paper all --data numpred.val --output replication

"attnflow paper EXPERIMENT --help" shows the options of one.
"""

WHERE = {
    "agreement": "the sentences of Linzen, Dupoux and Goldberg (2016) are not part of attnflow. "
    "Their file agr_50_mostcommon_10K.tsv.gz is linked from "
    "https://github.com/TalLinzen/rnn_agreement",
    "sst2": "SST-2 is not part of attnflow. Its dev.tsv is in the SST-2 data of "
    "https://gluebenchmark.com/tasks",
}
"""Where a user gets the data of the experiments."""

TABLE = (".json", ".md", ".csv", ".png", ".svg", ".pdf")
FIGURE = (".pdf", ".png", ".svg", ".json")
FINDING = (".json", ".png", ".svg", ".pdf")

FAULTS_SHOWN = 20

Make = Callable[[argparse.Namespace], Result]
Flags = Mapping[str, Mapping[str, Any]]


# ---- Flags ---------------------------------------------------------------------------------------


def _positive(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of 1 or more")
    return int(value)


def _reserved(value: str) -> tuple[Path, int]:
    path, _, count = value.rpartition(":")
    if not path or not count.isdecimal() or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} given; expected FILE:N, such as dev.tsv:2000")
    return Path(path), int(count)


def _flag(help: str, **options: Any) -> dict[str, Any]:
    return {"help": help, **options}


def _limit(default: int, of: str = "sentences") -> dict[str, Any]:
    help = f"{of} to read (default: {default}, as in the paper)"
    return _flag(help, type=_positive, default=default, metavar="N")


def _outputs(endings: Sequence[str], otherwise: str = "") -> dict[str, Any]:
    help = f"save to a file: {', '.join(endings)}; may be given more than once{otherwise}"
    return _flag(help, type=Path, action="append", metavar="FILE")


VERB_MODEL = _flag("a verb-number model (default: the one that comes with attnflow)")
ANY_MODEL = _flag("any text model (default: the verb-number model that comes with attnflow)")
SST2_MODEL = _flag("a classifier, as attnflow paper train-sst2 makes it", required=True)
LANGUAGE_MODEL = _flag("a masked or causal model: a folder, a GGUF file, or a hub name")
AGREEMENT = _flag("the file of Linzen et al., a numpred file, or JSON lines; may be gzipped")
FILES = {**AGREEMENT, "type": Path, "nargs": "+", "metavar": "FILE"}
FOLDER = _flag("the folder to write", type=Path, required=True, metavar="DIR")
DEVICE = {"device": _flag("cpu, cuda, ... (default: auto)", default="auto")}
JSON = {"json": _flag("print JSON", action="store_true")}
ON_ERROR = {
    "on-error": _flag(
        "what to do about a line that cannot be read (default: raise)",
        choices=("raise", "skip"),
        default="raise",
    )
}
SAMPLING = {
    "samples": _flag(
        "bootstrap samples for confidence intervals (default: 2000)", type=_positive, default=2000
    ),
    "seed": _flag("seed of the samples (default: 0)", type=int, default=0),
}
TRAINING = {
    "out": FOLDER,
    "resume": _flag("resume a training that was stopped", action="store_true"),
    **ON_ERROR,
    "threads": _flag("threads of torch (default: all cores)", type=int, metavar="N"),
    **JSON,
}
SENTENCES = {
    "text": _flag("a sentence; may be given more than once (default: the paper's)", action="append")
}
PRONOUN = {
    "text": _flag(
        'a sentence with MASK in place of the pronoun, such as "Mary convinced John of MASK love" '
        "(default: the paper's two)"
    ),
    "referents": _flag("the words that the pronoun could refer to", nargs="+", metavar="WORD"),
    "answers": _flag(
        "the words to choose between (default: his her)",
        nargs="+",
        metavar="WORD",
        default=["his", "her"],
    ),
    "receptive-field": _flag(
        "relate scores to uniform attention over the same mask (auto: for causal models)",
        choices=("auto", "on", "off"),
        default="auto",
    ),
}


def _table_flags(model: Any, data: Any, limit: int, reference: str) -> Flags:
    references = "blank_out, input_gradient, gradient_norm or gradient_x_input"
    return {
        "model": model,
        "data": {**data, "type": Path},
        "limit": _limit(limit),
        **ON_ERROR,
        **SAMPLING,
        "reference": _flag(f"{references} (default: {reference})"),
        "store": _flag("a file that keeps what is done; the same run resumes it", type=Path),
        **DEVICE,
        **JSON,
        "output": _outputs(TABLE),
    }


def _figure_flags(number: int, model: Any, text: Flags) -> Flags:
    names = f" (default: figure{number}.pdf and figure{number}.png, and none with --json)"
    return {"model": model, **text, **DEVICE, **JSON, "output": _outputs(FIGURE, names)}


def _finding_flags(limit: int, model: Any = ANY_MODEL) -> Flags:
    return {
        "model": model,
        "data": _flag("a file of texts, as for attnflow evaluate", type=Path, required=True),
        "text-column": _flag("the column that has the text"),
        "limit": _limit(limit, "texts"),
        **DEVICE,
        **JSON,
        "output": _outputs(FINDING),
    }


# ---- Reading and loading -------------------------------------------------------------------------


@contextmanager
def _faults(on_error: str) -> Iterator[str | Callable[[Fault], None]]:
    """Give the `on_error` of readers. With "skip" it prints the first faults, and their number."""
    skipped = 0

    def tell(fault: Fault) -> None:
        nonlocal skipped
        skipped += 1
        if skipped <= FAULTS_SHOWN:
            print(f"attnflow: {fault} (skipped)", file=sys.stderr)
        elif skipped == FAULTS_SHOWN + 1:
            print("attnflow: more lines are skipped", file=sys.stderr)

    yield tell if on_error == "skip" else on_error
    if skipped:
        lines = "1 line was" if skipped == 1 else f"{skipped:,} lines were"
        print(f"attnflow: {lines} skipped", file=sys.stderr)


def _check_files(*paths: Path, flag: str = "--data") -> None:
    for path in paths:
        if not path.is_file():
            raise OptionError(f"{flag} {path} is not a file")


def _require_torch() -> None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f'training needs {" and ".join(missing)}; run: pip install "attnflow[hf,view]"'
        )


def _load(args: argparse.Namespace) -> "Explainer":
    # Importing torch takes seconds, so everything else is checked first.
    from attnflow.models import Explainer

    return Explainer.from_pretrained(args.model or shipped(), device=args.device)


# ---- Experiments ---------------------------------------------------------------------------------


def _table(number: int, args: argparse.Namespace) -> Result:
    sst2 = number == 3
    if args.data is None:
        raise OptionError(
            f"table {number} needs --data FILE: {WHERE['sst2' if sst2 else 'agreement']}"
        )
    _check_files(args.data)
    # The classes of a sentiment model have all kinds of names, but always this order.
    sentences: list[tuple[str, int | str]]
    with _faults(args.on_error) as on_error:
        if sst2:
            labelled = read_sst2(args.data, limit=args.limit, on_error=on_error)
            sentences = [(row.text, int(row.label)) for row in labelled]
        else:
            rows = read_agreement(args.data, limit=args.limit, on_error=on_error)
            sentences = [(row.text, row.label) for row in rows]
    from attnflow.paper.tables import make_table

    explainer = _load(args)
    with Progress(f"table {number}", "sentences") as progress:
        return make_table(
            number,
            explainer,
            sentences,
            reference=args.reference,
            data=args.data.name,
            samples=args.samples,
            seed=args.seed,
            store=args.store,
            progress=progress.update,
        ).result()


def _figure(number: int, args: argparse.Namespace) -> Result:
    from attnflow.view import theme

    theme.require()
    from attnflow.paper import figures

    texts = [args.text] if isinstance(args.text, str) else args.text or []
    if number == 4:
        ambiguities = _ambiguities(args)
        relative: Any = {"auto": "auto", "on": True, "off": False}[args.receptive_field]
        drawing = figures.figure4(_load(args), ambiguities, receptive_field=relative)
        for sentence in drawing.data["sentences"]:
            for note in sentence["notes"]:
                print(f"note on {sentence['text']!r}: {note}", file=sys.stderr)
    elif number == 1:
        drawing = figures.figure1(_load(args), *texts)
    else:
        draw = figures.figure2 if number == 2 else figures.figure3
        sentences = [figures.Sentence(text) for text in texts] or figures.SENTENCES
        drawing = draw(_load(args), sentences)
    return Result(drawing.data, figure=lambda: drawing.figure)


def _ambiguities(args: argparse.Namespace) -> Sequence[Any]:
    from attnflow.paper.pronouns import EXAMPLES, Ambiguity

    if args.text is None:
        if args.referents:
            raise OptionError(
                "--referents needs the sentence that they are in; give it with --text"
            )
        return [example._replace(answers=tuple(args.answers)) for example in EXAMPLES]
    if not args.referents:
        raise OptionError("--text needs --referents: the words that the pronoun could refer to")
    return [Ambiguity(args.text, tuple(args.referents), tuple(args.answers))]


def _finding(name: str, args: argparse.Namespace) -> Result:
    _check_files(args.data)
    with _faults("skip") as tell:
        texts = [
            row.text
            for row in read_texts(
                args.data,
                text_column=args.text_column,
                limit=args.limit,
                on_fault=lambda line, reason: tell(Fault(str(args.data), line, reason)),  # type: ignore[operator]
                dialect=verb_number,
            )
        ]
    explainer = _load(args)
    from attnflow.paper import findings, script

    measure = {
        "saturation": findings.saturation_result,
        "heads": findings.heads_result,
        "script3": script.scripted_result,
    }[name]
    with Progress(name, "texts") as progress:
        return measure(explainer, texts, progress.update)


def _accuracy(args: argparse.Namespace) -> Result:
    paths = [args.data] if isinstance(args.data, Path) else args.data
    _check_files(*paths)
    with _faults(args.on_error) as on_error:
        rows = chain.from_iterable(
            read_agreement(path, limit=args.limit or None, on_error=on_error) for path in paths
        )
        explainer = _load(args)
        from attnflow.paper.accuracy import accuracy

        with Progress("accuracy", "sentences") as progress:
            return Result(accuracy(explainer.model, explainer.tokenizer, rows, progress.update))


def _print_accuracy(args: argparse.Namespace) -> int:
    found = _accuracy(args).data
    if args.json:
        print(as_json(found))
        return 0
    from attnflow.paper.card import attractors_text

    print(f"accuracy {_share(found)} sentences")
    for name, entry in found["by_attractors"].items():
        print(f"  {attractors_text(name)}: {_share(entry)}")
    return 0


def _share(part: Mapping[str, Any]) -> str:
    return f"{part['accuracy']:.4f} on {part['count']:,}"


def _deliver(
    make: Make, endings: Sequence[str], default: Sequence[str], args: argparse.Namespace
) -> int:
    """Run an experiment, save its result, and print it if nothing was saved or with --json."""
    outputs = args.output
    if outputs is None:
        outputs = [] if args.json else [Path(name) for name in default]
    for path in outputs:
        check_path(path, endings, "--output")
    result = make(args)
    contents = result.contents([path.suffix.lower() for path in outputs])
    for path, content in zip(outputs, contents, strict=True):
        write_whole(path, content)
        print(f"saved {path}", file=sys.stderr)
    if args.json:
        print(as_json(result.data))
    elif result.report is not None and (not outputs or endings == FINDING):
        print(result.report().plain(100), end="")
    return 0


# ---- Training ------------------------------------------------------------------------------------


def _recipe(kind: type[Any], args: argparse.Namespace) -> Any:
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: value for name, value in vars(args).items() if name in names})


def _train(args: argparse.Namespace) -> int:
    _check_files(*args.data, *args.extra, *(path for path, _ in args.test), flag="file")
    _require_torch()
    from attnflow.paper.train import Reserved, train

    with _training(args) as options:
        report = train(
            args.data,
            args.out,
            extra=args.extra,
            test=[Reserved(*test) for test in args.test],
            recipe=_recipe(Recipe, args),
            **options,
        )
    data = report["data"]
    others = f" and some of {data['drawn_from']:,} others" if data["drawn_from"] else ""
    return _print_training(
        args,
        report,
        f"trained on {data['trained_on']:,} sentences{others}, {len(report['curve'])} epochs",
        "read: " + ", ".join(f"{name} {count:,}" for name, count in data["read"].items()),
        f"held out: {_share(report['held_out'])} sentences",
        *(f"{name}: {_share(test)} sentences" for name, test in report["tests"].items()),
    )


def _train_sst2(args: argparse.Namespace) -> int:
    _check_files(args.data / "train.tsv", args.data / "dev.tsv", flag="file")
    _require_torch()
    from attnflow.paper.sst2 import fine_tune

    with _training(args) as options:
        report = fine_tune(
            args.model,
            args.data / "train.tsv",
            args.data / "dev.tsv",
            args.out,
            how=_recipe(FineTuning, args),
            limit=args.limit,
            **options,
        )
    return _print_training(
        args,
        report,
        f"trained on {report['data']['trained_on']:,} sentences, {len(report['curve'])} epochs",
        f"dev.tsv: accuracy {_share(report)} sentences",
    )


def _print_training(args: argparse.Namespace, report: Mapping[str, Any], *lines: str) -> int:
    if args.json:
        print(as_json(report))
    else:
        print(*lines, f"time: {report['seconds'] / 60:.1f} minutes", sep="\n")
        print(f"the model and its report are in {args.out}")
    return 0


@contextmanager
def _training(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Give the options that both trainings share, and show how far training is."""
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
    last: list[Status] = []
    with _faults(args.on_error) as on_error, Progress("training", "steps") as bar:

        def progress(status: "Status") -> None:
            epoch = f"epoch {status.epoch} of {status.epochs}, loss {status.loss:.4f}"
            bar.update(status.step, max(status.step, status.steps), epoch)
            if last and status.epoch != last[0].epoch:
                minutes, seconds = divmod(round(status.seconds_left), 60)
                print(
                    f"epoch {last[0].epoch}: loss {last[0].loss:.4f}, accuracy "
                    f"{status.accuracy:.4f}, {minutes}:{seconds:02} left",
                    file=sys.stderr,
                    flush=True,
                )
            last[:] = [status]

        try:
            yield {"resume": args.resume, "on_error": on_error, "progress": progress}
        except KeyboardInterrupt:
            if last:
                print(
                    f"attnflow: the state is saved in {args.out}; the same command with --resume "
                    "continues from there",
                    file=sys.stderr,
                )
            raise


# ---- All of them ---------------------------------------------------------------------------------


PART_DEFAULTS = {
    **dict.fromkeys(("reference", "text", "referents")),
    "answers": ["his", "her"],
    "receptive_field": "auto",
}


class Part(NamedTuple):
    """The accuracy, or one table or figure, of ``attnflow paper all``."""

    name: str
    make: Make
    endings: Sequence[str]
    model: str | None
    data: Path | None = None
    missing: str = ""  # what has to be given first


def _parts(args: argparse.Namespace) -> list[Part]:
    agreement = "" if args.data else f"give --data; {WHERE['agreement']}"
    sst2 = "" if args.sst2_data else f"give --sst2-data; {WHERE['sst2']}"
    if args.sst2_model is None:
        sst2 = "give --sst2-model, which attnflow paper train-sst2 makes"
    language = "" if args.language_model else "give --language-model"
    verb = args.model, args.data, agreement
    table, figure = TABLE, FIGURE
    return [
        Part("accuracy", _accuracy, (), *verb),
        *(Part(f"figure{n}", partial(_figure, n), figure, args.model) for n in (1, 2, 3)),
        Part("figure4", partial(_figure, 4), figure, args.language_model, None, language),
        *(Part(f"table{n}", partial(_table, n), table, *verb) for n in (1, 2)),
        Part("table3", partial(_table, 3), table, args.sst2_model, args.sst2_data, sst2),
    ]


def _all(args: argparse.Namespace) -> int:
    from attnflow.view import theme

    theme.require()
    if args.output.exists() and not args.output.is_dir():
        raise OptionError(f"--output {args.output} is not a folder")
    parts = _parts(args)
    for part in parts:
        if part.data is not None and not part.missing and not part.data.is_file():
            raise OptionError(f"{part.name} cannot be made: {part.data} is not a file")
    (args.output / "progress").mkdir(parents=True, exist_ok=True)
    done = []
    for part in parts:
        done.append(_make_part(part, args))
        about = f": {done[-1]['reason']}" if done[-1]["reason"] else ""
        print(f"{part.name:<8} {done[-1]['status']}{about}", file=sys.stderr)
    print(as_json(done) if args.json else f"the results are in {args.output}")
    return int(any(result["status"] == "failed" for result in done))


def _make_part(part: Part, args: argparse.Namespace) -> dict[str, Any]:
    """Make one part, unless it is there."""
    result = {"name": part.name, "status": "left out", "reason": part.missing, "files": []}
    if part.missing:
        return result
    folder: Path = args.output
    limit = args.sst2_limit if part.name == "table3" else args.limit
    recipe = _recipe_of(part, limit, args)
    options = {
        **vars(args),
        "model": part.model,
        "data": part.data,
        "limit": limit,
        "store": folder / "progress" / f"{part.name}-{recipe}.jsonl",
        **PART_DEFAULTS,
    }
    record = folder / f"{part.name}.json"
    endings = [ending for ending in part.endings if ending not in (".svg", ".json")]
    files = [folder / f"{part.name}{ending}" for ending in endings]

    def make() -> tuple[Mapping[str, Any], Mapping[Path, str | bytes]]:
        found = part.make(argparse.Namespace(**options))
        return without_nan(found.data), dict(zip(files, found.contents(endings), strict=True))

    began = time.monotonic()
    try:
        made = make_once(record, files, recipe, make)
    except AttnflowError as error:
        return {**result, "status": "failed", "reason": str(error)}
    return {
        **result,
        "status": "done" if made else "was there",
        "reason": f"in {time.monotonic() - began:.0f} s" if made else "",
        "files": [str(path) for path in (*files, record)],
    }


def _recipe_of(part: Part, limit: int, args: argparse.Namespace) -> str:
    """Return a digest of everything that a result depends on."""
    model = part.model or shipped()
    about: dict[str, Any] = {
        "attnflow": __version__,
        "part": part.name,
        "model": [str(model), stamps(Path(model))],
        "device": args.device,
    }
    if part.data is not None:
        about["data"] = [str(part.data.resolve()), stamps(part.data)]
        about["options"] = [limit, args.on_error, args.samples, args.seed]
    return digest_of(about)


# ---- The command ---------------------------------------------------------------------------------


class Experiment(NamedTuple):
    """One command under ``attnflow paper``.

    Attributes:
        help: What it does, in a line.
        example: How it is called, after ``attnflow paper``.
        flags: The options of the command: what `add_argument` takes, by the name of the flag.
        run: Runs it, and returns the exit status.
        recipe: A class of options of training, for each of which there is a flag.
    """

    help: str
    example: str
    flags: Flags
    run: Callable[[argparse.Namespace], int]
    recipe: type[Any] | None = None


def _table_row(number: int, help: str, example: str, flags: Flags) -> Experiment:
    run = partial(_deliver, partial(_table, number), TABLE, ())
    return Experiment(help, f"table{number} {example}", flags, run)


def _figure_row(
    number: int, help: str, example: str, text: Flags, model: Any = ANY_MODEL
) -> Experiment:
    default = f"figure{number}.pdf", f"figure{number}.png"
    run = partial(_deliver, partial(_figure, number), FIGURE, default)
    return Experiment(help, f"figure{number} {example}", _figure_flags(number, model, text), run)


def _finding_row(name: str, help: str, example: str, flags: Flags) -> Experiment:
    run = partial(_deliver, partial(_finding, name), FINDING, ())
    return Experiment(help, f"{name} {example}", flags, run)


EXPERIMENTS: dict[str, Experiment] = {
    "train": Experiment(
        "train a verb-number model",
        "train --data numpred.val natural.tsv --extra numpred.test.1 --test numpred.val:2000 "
        "--out model",
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
            **TRAINING,
        },
        _train,
        Recipe,
    ),
    "train-sst2": Experiment(
        "fine-tune an encoder on SST-2, for table3",
        "train-sst2 --model distilbert-base-uncased --data SST-2 --out my-sst2",
        {
            "model": _flag("the encoder: a folder, or a name on the hub", required=True),
            "data": {**FOLDER, "help": "the folder with SST-2's train.tsv and dev.tsv"},
            "limit": _flag("sentences to train on at most", type=int, metavar="N"),
            **TRAINING,
        },
        _train_sst2,
        FineTuning,
    ),
    "accuracy": Experiment(
        "how often a model gives a verb the correct number",
        "accuracy --data numpred.val --limit 2000",
        {
            "model": VERB_MODEL,
            "data": {**FILES, "required": True},
            "limit": _flag(
                "sentences to read of each file (default: 2000, as in the paper; 0: all)",
                type=int,
                default=2000,
                metavar="N",
            ),
            **ON_ERROR,
            **DEVICE,
            **JSON,
        },
        _print_accuracy,
    ),
    "table1": _table_row(
        1,
        "correlation of attention with blank-out, verb number",
        "--data numpred.val --limit 200",
        _table_flags(VERB_MODEL, AGREEMENT, 2000, "blank_out"),
    ),
    "table2": _table_row(
        2,
        "correlation of attention with input gradients, verb number",
        "--data agr_50_mostcommon_10K.tsv.gz --json",
        _table_flags(VERB_MODEL, AGREEMENT, 2000, "gradient_norm"),
    ),
    "table3": _table_row(
        3,
        "correlation of attention with input gradients, SST-2",
        "--model ./my-sst2 --data dev.tsv --output table3.md",
        _table_flags(SST2_MODEL, _flag("SST-2's dev.tsv, or JSON lines"), 100, "gradient_norm"),
    ),
    "figure1": _figure_row(
        1,
        "the attention graph of a sentence: raw, rollout and flow",
        '--text "the keys to the cabinet" --output keys.pdf',
        {"text": _flag("the sentence (default: the key to the cabinets)")},
    ),
    "figure2": _figure_row(
        2,
        "raw attention of CLS in all layers",
        "--output figure2.pdf --output figure2.png",
        SENTENCES,
    ),
    "figure3": _figure_row(
        3,
        "raw attention, rollout and flow of CLS in all layers",
        '--text "the key to the cabinets" --text "the keys to the cabinets"',
        SENTENCES,
    ),
    "figure4": _figure_row(
        4,
        "how a language model resolves a pronoun",
        '--model bert-base-uncased --text "Mary convinced John of MASK love" --referents Mary John',
        PRONOUN,
        {**LANGUAGE_MODEL, "required": True},
    ),
    "saturation": _finding_row(
        "saturation",
        "from which layer on flow no longer depends on the position",
        "--data numpred.val --output saturation.png",
        _finding_flags(200),
    ),
    "heads": _finding_row(
        "heads",
        "how well every single head agrees with blank-out",
        "--data numpred.val --limit 200",
        _finding_flags(500),
    ),
    "script3": _finding_row(
        "script3",
        "table 3 as the authors' script computes it, which is not as the paper says",
        "--model ./my-sst2 --data dev.tsv --text-column sentence",
        _finding_flags(100, SST2_MODEL),
    ),
    "all": Experiment(
        "the accuracy, and every table and figure for which a model and data are given",
        "all --data numpred.val --output replication",
        {
            "model": VERB_MODEL,
            "data": _flag("verb-number sentences, for the accuracy and tables 1, 2", type=Path),
            "sst2-model": _flag("a classifier fine-tuned on SST-2, for table 3"),
            "sst2-data": _flag("SST-2's dev.tsv, for table 3", type=Path),
            "language-model": LANGUAGE_MODEL,
            "limit": _limit(2000),
            "sst2-limit": _limit(100, "sentences of SST-2"),
            **ON_ERROR,
            **SAMPLING,
            **DEVICE,
            "output": {
                **FOLDER,
                "help": "where to save; results made with the same options are not made again",
            },
            **JSON,
        },
        _all,
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
    for name, experiment in EXPERIMENTS.items():
        one = experiments.add_parser(
            name,
            help=experiment.help,
            description=experiment.help[0].upper() + experiment.help[1:] + ".",
            epilog=f"example: attnflow paper {experiment.example}",
        )
        for flag, options in experiment.flags.items():
            one.add_argument(f"--{flag}", **options)
        if experiment.recipe is None:
            continue
        group = one.add_argument_group(
            "recipe", "The defaults are those behind the numbers in the documentation."
        )
        for field in dataclasses.fields(experiment.recipe):
            if not isinstance(field.default, bool):
                group.add_argument(
                    f"--{field.name.replace('_', '-')}",
                    type=type(field.default),
                    default=argparse.SUPPRESS,
                    help=f"{field.metadata['help']} (default: {field.default})",
                )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, or 1 if a part of ``all`` failed.

    Raises:
        AttnflowError: If the model, the data or an option is not valid.
    """
    return EXPERIMENTS[args.experiment].run(args)
