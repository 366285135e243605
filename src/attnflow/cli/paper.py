"""``attnflow paper``: the experiments of the paper, one command each."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnflow.cli import findings, training
from attnflow.errors import AttnflowError, OptionError
from attnflow.io.files import write_whole
from attnflow.io.journal import digest_of, make_once, stamps
from attnflow.io.progress import Progress
from attnflow.models.verb_number import checkpoint
from attnflow.paper import read_agreement, read_sst2
from attnflow.version import __version__

if TYPE_CHECKING:
    from attnflow.models import Explainer
    from attnflow.paper.figures import Drawing
    from attnflow.paper.tables import Table

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

TABLE_ENDINGS = (".json", ".md", ".csv", ".png", ".svg", ".pdf")
FIGURE_ENDINGS = (".pdf", ".png", ".svg", ".json")


class Experiment(NamedTuple):
    """One command under ``attnflow paper``.

    Attributes:
        help: What it does, in a line.
        example: How it is called, after ``attnflow paper``.
        add: Adds its options to a parser.
        run: Runs it, and returns the exit status.
    """

    help: str
    example: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


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
        about = experiment.help[0].upper() + experiment.help[1:] + "."
        example = f"example: attnflow paper {experiment.example}"
        experiment.add(
            experiments.add_parser(name, help=experiment.help, description=about, epilog=example)
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


# ---- Tables --------------------------------------------------------------------------------------


def _add_table(number: int) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        sst2 = number == 3
        parser.add_argument(
            "--model",
            required=sst2,
            help="a classifier fine-tuned on SST-2, as by attnflow paper train-sst2"
            if sst2
            else "a verb-number model (default: the one that ships with attnflow)",
        )
        parser.add_argument(
            "--data",
            type=Path,
            help="SST-2's dev.tsv, or JSON lines"
            if sst2
            else "the file of Linzen et al., a numpred file, or JSON lines, plain or gzipped",
        )
        _add_measuring(parser, 100 if sst2 else 2000)
        parser.add_argument(
            "--reference",
            help="blank_out, input_gradient, gradient_norm or gradient_x_input (default: "
            + ("blank_out)" if number == 1 else "gradient_norm)"),
        )
        parser.add_argument(
            "--store", type=Path, help="a file that keeps what is done; the same run goes on there"
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        parser.add_argument(
            "--output",
            type=Path,
            action="append",
            metavar="FILE",
            help=f"save the table: {', '.join(TABLE_ENDINGS)}; may be given more than once",
        )

    return add


def _add_measuring(parser: argparse.ArgumentParser, limit: int) -> None:
    parser.add_argument(
        "--limit",
        type=_positive,
        default=limit,
        metavar="N",
        help=f"how many sentences to read (default: {limit}, as in the paper)",
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="what to do about a line that cannot be read (default: raise)",
    )
    parser.add_argument(
        "--samples",
        type=_positive,
        default=2000,
        help="how often to draw for confidence intervals (default: 2000)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of confidence intervals (default: 0)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")


def _run_table(number: int) -> Callable[[argparse.Namespace], int]:
    def run_table(args: argparse.Namespace) -> int:
        outputs = _checked(args.output or [], TABLE_ENDINGS)
        table = _table(number, args, args.model, args.data, args.store)
        _save(_table_contents(table, outputs))
        if args.json:
            print(_json(table.to_dict()))
        elif not outputs:
            print(table.to_text())
        return 0

    return run_table


def _table(
    number: int,
    args: argparse.Namespace,
    model: str | None,
    data: Path | None,
    store: Path | None,
) -> "Table":
    """Make a table from the options of a command."""
    sentences = _sentences(number, args, data)
    from attnflow.paper.tables import make_table

    explainer = _load(_model(model), args)
    with Progress(f"table {number}", "sentences") as progress:
        return make_table(
            number,
            explainer,
            sentences,
            reference=getattr(args, "reference", None),
            data=data.name if data is not None else "",
            samples=args.samples,
            seed=args.seed,
            store=store,
            progress=progress.update,
        )


def _sentences(
    number: int, args: argparse.Namespace, data: Path | None
) -> list[tuple[str, int | str]]:
    kind = "sst2" if number == 3 else "agreement"
    if data is None:
        raise OptionError(f"table {number} needs --data FILE: {WHERE[kind]}")
    if not data.is_file():
        raise OptionError(f"--data {data} is not a file")
    read = read_sst2 if kind == "sst2" else read_agreement
    with training.faults_told(args.on_error) as on_error:
        rows = read(data, limit=args.limit, on_error=on_error)
        # The classes of a sentiment model have names of all kinds, but always this order.
        return [(row.text, int(row.label) if kind == "sst2" else row.label) for row in rows]


def _table_contents(table: "Table", paths: Sequence[Path]) -> dict[Path, str | bytes]:
    """Return what goes into each file, by its ending."""
    made: dict[str, Callable[[], str]] = {
        ".json": lambda: _json(table.to_dict()) + "\n",
        ".md": table.to_markdown,
        ".csv": table.to_csv,
    }
    contents: dict[Path, str | bytes] = {
        path: made[path.suffix.lower()]() for path in paths if path.suffix.lower() in made
    }
    drawn = [path for path in paths if path not in contents]
    return contents | (_pictures(table.draw(), drawn) if drawn else {})


# ---- Figures -------------------------------------------------------------------------------------


def _add_figure(number: int) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--model",
            required=number == 4,
            help="a masked or a causal language model: a folder, a GGUF file, or a hub name"
            if number == 4
            else "the model (default: the verb-number model that ships with attnflow)",
        )
        if number == 1:
            parser.add_argument("--text", help="the sentence (default: the key to the cabinets)")
        elif number < 4:
            parser.add_argument(
                "--text",
                action="append",
                help="a sentence; may be given more than once (default: the paper's)",
            )
        else:
            parser.add_argument(
                "--text",
                help='a sentence with the word MASK where the pronoun is missing, such as "Mary '
                "convinced John of MASK love\" (default: the paper's two)",
            )
            parser.add_argument(
                "--referents", nargs="+", metavar="WORD", help="whom it could stand for"
            )
            parser.add_argument(
                "--answers",
                nargs="+",
                metavar="WORD",
                default=["his", "her"],
                help="the words to choose between (default: his her)",
            )
            parser.add_argument(
                "--receptive-field",
                choices=("auto", "on", "off"),
                default="auto",
                help="relate scores to uniform attention over the same mask (auto: for causal "
                "models)",
            )
        parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
        parser.add_argument(
            "--json", action="store_true", help="print the numbers behind the figure"
        )
        parser.add_argument(
            "--output",
            type=Path,
            action="append",
            metavar="FILE",
            help=f"where to save: {', '.join(FIGURE_ENDINGS)}; may be given more than once "
            f"(default: figure{number}.pdf and figure{number}.png, and none with --json)",
        )

    return add


def _run_figure(number: int) -> Callable[[argparse.Namespace], int]:
    def run_figure(args: argparse.Namespace) -> int:
        given = args.output
        if given is None:
            names = [] if args.json else [f"figure{number}.pdf", f"figure{number}.png"]
            given = [Path(name) for name in names]
        outputs = _checked(given, FIGURE_ENDINGS)
        drawing = _figure(number, args)
        _save(_figure_contents(drawing, outputs))
        if args.json:
            print(_json(drawing.data))
        return 0

    return run_figure


def _figure(number: int, args: argparse.Namespace) -> "Drawing":
    """Draw a figure from the options of a command."""
    from attnflow.view import theme

    theme.require()
    from attnflow.paper import figures

    if number == 4:
        ambiguities = _ambiguities(args)
        relative: str | bool = "auto" if args.receptive_field == "auto" else False
        relative = True if args.receptive_field == "on" else relative
        explainer = _load(_model(args.model), args)
        drawing = figures.figure4(explainer, ambiguities, receptive_field=relative)
        for sentence in drawing.data["sentences"]:
            for note in sentence["notes"]:
                print(f"note on {sentence['text']!r}: {note}", file=sys.stderr)
        return drawing
    explainer = _load(_model(args.model), args)
    if number == 1:
        return figures.figure1(explainer, *([args.text] if args.text else []))
    draw = figures.figure2 if number == 2 else figures.figure3
    if not args.text:
        return draw(explainer)
    return draw(explainer, [figures.Sentence(text) for text in args.text])


def _ambiguities(args: argparse.Namespace) -> "Sequence[Any]":
    from attnflow.paper.pronouns import EXAMPLES, Ambiguity

    if args.text is None:
        if args.referents:
            raise OptionError("--referents belong to a sentence; give it with --text")
        return [example._replace(answers=tuple(args.answers)) for example in EXAMPLES]
    if not args.referents:
        raise OptionError("--text needs --referents: the words that the pronoun could stand for")
    return [Ambiguity(args.text, tuple(args.referents), tuple(args.answers))]


def _figure_contents(drawing: "Drawing", paths: Sequence[Path]) -> dict[Path, str | bytes]:
    """Return what goes into each file, by its ending."""
    numbers = [path for path in paths if path.suffix.lower() == ".json"]
    contents: dict[Path, str | bytes] = {path: _json(drawing.data) + "\n" for path in numbers}
    drawn = [path for path in paths if path not in contents]
    return contents | (_pictures(drawing.figure, drawn) if drawn else {})


def _pictures(figure: Any, paths: Sequence[Path]) -> dict[Path, str | bytes]:
    from attnflow.view import theme

    theme.settle(figure)
    return {path: theme.content(figure, path.suffix.lower(), dpi=300) for path in paths}


# ---- All of them ---------------------------------------------------------------------------------


class _Part(NamedTuple):
    """The accuracy, or one table or figure, of ``attnflow paper all``."""

    name: str
    model: str | None
    data: Path | None
    missing: str  # what has to be given first, or nothing


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help="a verb-number model (default: the one that ships with attnflow)"
    )
    parser.add_argument(
        "--data", type=Path, help="verb-number sentences, for the accuracy and tables 1 and 2"
    )
    parser.add_argument("--sst2-model", help="a classifier fine-tuned on SST-2, for table 3")
    parser.add_argument("--sst2-data", type=Path, help="SST-2's dev.tsv, for table 3")
    parser.add_argument("--language-model", help="a masked or causal model, for figure 4")
    _add_measuring(parser, 2000)
    parser.add_argument(
        "--sst2-limit",
        type=_positive,
        default=100,
        metavar="N",
        help="how many sentences of SST-2 to read (default: 100, as in the paper)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where to save; what is there already, made with the same options, is not made again",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def _run_all(args: argparse.Namespace) -> int:
    from attnflow.view import theme

    theme.require()
    if args.output.exists() and not args.output.is_dir():
        raise OptionError(f"--output {args.output} is not a folder")
    parts = _parts(args)
    for part in parts:
        if part.data is not None and not part.missing and not part.data.is_file():
            raise OptionError(f"{part.name} cannot be made: {part.data} is not a file")
    args.output.mkdir(parents=True, exist_ok=True)
    done = []
    for part in parts:
        result = _run_part(part, args)
        done.append(result)
        status = result["status"]
        about = f": {result['reason']}" if result["reason"] else ""
        print(f"{part.name:<8} {status}{about}", file=sys.stderr)
    if args.json:
        print(_json(done))
    else:
        print(f"what was made is in {args.output}")
    return int(any(result["status"] == "failed" for result in done))


def _parts(args: argparse.Namespace) -> list[_Part]:
    agreement = "" if args.data else f"give --data; {WHERE['agreement']}"
    sst2 = ""
    if args.sst2_model is None:
        sst2 = "give --sst2-model, which attnflow paper train-sst2 makes"
    elif args.sst2_data is None:
        sst2 = f"give --sst2-data; {WHERE['sst2']}"
    language = "" if args.language_model else "give --language-model"
    return [
        _Part("accuracy", args.model, args.data, agreement),
        *(_Part(f"figure{number}", args.model, None, "") for number in (1, 2, 3)),
        _Part("figure4", args.language_model, None, language),
        _Part("table1", args.model, args.data, agreement),
        _Part("table2", args.model, args.data, agreement),
        _Part("table3", args.sst2_model, args.sst2_data, sst2),
    ]


def _run_part(part: _Part, args: argparse.Namespace) -> dict[str, Any]:
    """Make one part, unless it is there."""
    result: dict[str, Any] = {"name": part.name, "status": "left out", "reason": part.missing}
    if part.missing:
        return {**result, "files": []}
    kind = part.name.rstrip("1234")
    endings = {"accuracy": (".json",), "table": TABLE_ENDINGS, "figure": FIGURE_ENDINGS}[kind]
    files = [args.output / f"{part.name}{ending}" for ending in endings if ending != ".svg"]
    record = args.output / f"{part.name}.json"
    others = [path for path in files if path != record]
    chosen = argparse.Namespace(**vars(args))
    chosen.limit = args.sst2_limit if part.name == "table3" else args.limit
    chosen.model, chosen.text, chosen.referents = part.model, None, None
    chosen.answers, chosen.receptive_field = ["his", "her"], "auto"
    recipe = _recipe(part, chosen)

    def make() -> tuple[Mapping[str, Any], Mapping[Path, str | bytes]]:
        if kind == "table":
            store = args.output / "progress" / f"{part.name}-{recipe}.jsonl"
            store.parent.mkdir(exist_ok=True)
            table = _table(int(part.name[-1]), chosen, part.model, part.data, store)
            return table.to_dict(), _table_contents(table, others)
        if kind == "figure":
            drawing = _figure(int(part.name[-1]), chosen)
            return drawing.data, _figure_contents(drawing, others)
        data = [part.data] if part.data else []
        return training.measure_accuracy(chosen, part.model, data), {}

    began = time.monotonic()
    try:
        made = make_once(record, others, recipe, make)
    except AttnflowError as error:
        return {**result, "status": "failed", "reason": str(error), "files": []}
    return {
        **result,
        "status": "done" if made else "was there",
        "reason": f"in {time.monotonic() - began:.0f} s" if made else "",
        "files": [str(path) for path in files],
    }


def _recipe(part: _Part, args: argparse.Namespace) -> str:
    """Return a digest of everything that a result depends on."""
    model = _model(part.model)
    about: dict[str, Any] = {
        "attnflow": __version__,
        "part": part.name,
        "model": str(model),
        "weights": stamps(Path(model)),
        "device": args.device,
    }
    if part.data is not None:
        about |= {
            "data": [str(part.data.resolve()), stamps(part.data)],
            "options": [args.limit, args.on_error, args.samples, args.seed],
        }
    return digest_of(about)


# ---- What the commands share ---------------------------------------------------------------------


def _positive(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of 1 or more")
    return number


def _checked(paths: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """See that files can be written, before there is anything to write."""
    for path in paths:
        if path.suffix.lower() not in endings:
            raise OptionError(f"--output must end in {' or '.join(endings)}, got {str(path)!r}")
        if not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")
    return list(paths)


def _save(contents: Mapping[Path, str | bytes]) -> None:
    for path, content in contents.items():
        write_whole(path, content)
        print(f"saved {path}", file=sys.stderr)


def _model(name: str | None) -> str | Path:
    if name is not None:
        return name
    shipped = checkpoint()
    if not (shipped / "config.json").is_file():
        raise OptionError(
            f"the verb-number model is not in {shipped}; train one with attnflow paper train, and "
            "give it with --model"
        )
    return shipped


def _load(model: str | Path, args: argparse.Namespace) -> "Explainer":
    # Loading torch takes seconds, so that everything else is checked first.
    from attnflow.models import Explainer

    return Explainer.from_pretrained(model, device=args.device)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)


EXPERIMENTS: dict[str, Experiment] = {
    "train": Experiment(
        "train a verb-number model",
        "train --data numpred.val natural.tsv --extra numpred.test.1 --test numpred.val:2000 "
        "--out model",
        training.add_train,
        training.run_train,
    ),
    "train-sst2": Experiment(
        "fine-tune an encoder on SST-2, for table3",
        "train-sst2 --model distilbert-base-uncased --data SST-2 --out my-sst2",
        training.add_train_sst2,
        training.run_train_sst2,
    ),
    "accuracy": Experiment(
        "how often a model gives a verb the right number",
        "accuracy --data numpred.val --limit 2000",
        training.add_accuracy,
        training.run_accuracy,
    ),
    "table1": Experiment(
        "correlation of attention with blank-out, verb number",
        "table1 --data numpred.val --limit 200",
        _add_table(1),
        _run_table(1),
    ),
    "table2": Experiment(
        "correlation of attention with input gradients, verb number",
        "table2 --data agr_50_mostcommon_10K.tsv.gz --json",
        _add_table(2),
        _run_table(2),
    ),
    "table3": Experiment(
        "correlation of attention with input gradients, SST-2",
        "table3 --model ./my-sst2 --data dev.tsv --output table3.md",
        _add_table(3),
        _run_table(3),
    ),
    "figure1": Experiment(
        "the attention graph of a sentence: raw, rollout and flow",
        'figure1 --text "the keys to the cabinet" --output keys.pdf',
        _add_figure(1),
        _run_figure(1),
    ),
    "figure2": Experiment(
        "raw attention of CLS in all layers",
        "figure2 --output figure2.pdf --output figure2.png",
        _add_figure(2),
        _run_figure(2),
    ),
    "figure3": Experiment(
        "raw attention, rollout and flow of CLS in all layers",
        'figure3 --text "the key to the cabinets" --text "the keys to the cabinets"',
        _add_figure(3),
        _run_figure(3),
    ),
    "figure4": Experiment(
        "how a language model resolves a pronoun",
        'figure4 --model bert-base-uncased --text "Mary convinced John of MASK love" '
        "--referents Mary John",
        _add_figure(4),
        _run_figure(4),
    ),
    "saturation": Experiment(
        "from which layer on flow no longer depends on the position",
        "saturation --data numpred.val --output saturation.png",
        findings.add_saturation,
        findings.run_saturation,
    ),
    "heads": Experiment(
        "how far every single head agrees with blank-out",
        "heads --data numpred.val --limit 200",
        findings.add_heads,
        findings.run_heads,
    ),
    "script3": Experiment(
        "table 3 as the authors' script computes it, which is not as the paper says",
        "script3 --model ./my-sst2 --data dev.tsv --text-column sentence",
        findings.add_script3,
        findings.run_script3,
    ),
    "all": Experiment(
        "the accuracy, and every table and figure for which there is a model and data",
        "all --data numpred.val --output replication",
        _add_all,
        _run_all,
    ),
}
