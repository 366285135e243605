"""Say which tokens a model's answer for a text came from.

A text that cannot be explained does not stop the others: an error says why, and the exit status is
1. With --json, line N of the output is about line N of standard input. Where there is no
explanation, it is
  {"error": {"number": N, "kind": "invalid", "message": "byte 5 of the line is not UTF-8"}}
The kind is "empty" for a blank line, which is not a failure, "invalid" for one that cannot be
explained, and "interrupted" for one that Ctrl-C came before.

Examples:
  attnflow explain "the keys to the cabinet"
  attnflow explain --model ./my-classifier "a film that is hard to forget"
  attnflow explain --model ./my-nli "a man plays a guitar" --pair "a man makes music"
  attnflow explain --model ./my-llava photo.jpg --pair "What is on the table?"
  paste premises.txt hypotheses.txt | attnflow explain --model ./my-nli --tab-pairs --json
  attnflow explain --model ./my-model --method rollout --layer 4 --units words --json "the keys"
  attnflow explain --model ./my-model --output keys.json "the keys to the cabinet"
  attnflow explain --model ./my-model --html keys.html --png keys.png "the keys to the cabinet"
  cat texts.txt | attnflow explain --model ./my-model --json > explained.jsonl

Without the model, from what attnflow run --keep attentions stored, or from any attention weights:
  attnflow explain --attentions out/ --row 3 --method rollout --html row3.html
  attnflow explain --attentions weights.npy --tokens tokens.txt --layer 4 --position 0
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnflow.cli import options
from attnflow.errors import AttnflowError, MissingExtraError, OptionError, TextError
from attnflow.explanation import Explanation
from attnflow.formats import check_path, endings
from attnflow.io.progress import track
from attnflow.io.records import EMPTY, TEXT_COLUMNS, read_records, text_of
from attnflow.options import OPTIONS, Options

if TYPE_CHECKING:
    from attnflow.dataset import TextAttention
    from attnflow.models import Explainer


class Fault(NamedTuple):
    """Why a text has no explanation.

    Attributes:
        kind: "empty" for a blank line, "interrupted" for what Ctrl-C came before, else "invalid".
        message: The reason.
    """

    kind: str
    message: str


# What has no meaning without a model.
_NEEDS_MODEL = {
    "model": "the model's name is stored",
    "task": "the task is stored",
    "device": "there is no model to put on it",
    "allow_pickle": "there is no model to load",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = options.add_command(subparsers, "explain", __doc__)
    parser.add_argument(
        "text",
        nargs="*",
        help="the texts, or the paths of images or .wav files; without any, each line of standard "
        "input is one",
    )
    parser.add_argument(
        "--pair",
        metavar="TEXT",
        help="a second text, which the model reads with the text as a pair, such as a hypothesis; "
        "with several texts it is the second of each. For an encoder-decoder the target so far; "
        "for a model that reads an image with a text, the text",
    )
    parser.add_argument(
        "--tab-pairs",
        action="store_true",
        help="each line of standard input is a pair of texts, with a tab between them",
    )
    stored = parser.add_argument_group("stored attention, instead of a model")
    stored.add_argument(
        "--attentions",
        type=Path,
        metavar="FILE",
        help="the output of attnflow run --keep attentions, one of its .safetensors files, or "
        "attention weights from elsewhere: (L, n, n) or (L, H, n, n) in .npy, .npz or .safetensors",
    )
    stored.add_argument(
        "--row", type=int, metavar="N", help="the row with this number (default: every row)"
    )
    stored.add_argument("--id", metavar="NAME", help="the row with this id")
    stored.add_argument(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="the tokens of weights from elsewhere: one a line, or a JSON list",
    )
    options.add_model(parser)
    options.add_options(parser)
    options.add_loading(parser)
    for flag, text in (
        ("--output", "save the explanation: .json, .csv, .html, .png, .svg or .pdf"),
        ("--html", "also save it as a page"),
        ("--png", "also save it as a figure"),
    ):
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--attention",
        action="store_true",
        help="also print what attention says: raw attention, rollout and flow side by side",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, 1 if a text could not be explained, or none was there, or 130 if Ctrl-C
        came before the last was done.

    Raises:
        AttnflowError: If the model, a text or an option is not valid.
    """
    if args.attentions is not None:
        texts = _stored(args)
        _check_files(args, len(texts))
        given = options.given_options(args)
        return _show(enumerate(text.explain(**given) for text in texts), len(texts), args)
    for name in ("row", "id", "tokens"):
        if getattr(args, name) is not None:
            raise OptionError(f"--{name} goes with --attentions, which was not given")
    inputs = _inputs(args)
    faults = {i: one for i, one in enumerate(inputs) if isinstance(one, Fault)}
    items = {i: one for i, one in enumerate(inputs) if i not in faults}
    if not args.json and all(fault.kind == "empty" for fault in faults.values()) and not items:
        raise TextError("standard input has no text; expected one text a line")
    _check_files(args, len(items))
    explained: Iterable[tuple[int, Explanation | Fault]] = ()
    if items:
        # Loading torch takes seconds, so everything above comes first.
        explainer, given = options.load(args), options.given_options(args)
        explainer.chosen(Options(**given))
        explained = _explained(explainer, items, given)
    return _show(chain(faults.items(), explained), len(inputs), args)


def _explained(
    explainer: "Explainer", items: dict[int, Any], given: dict[str, Any]
) -> Iterator[tuple[int, Explanation | Fault]]:
    """Explain inputs. Where one fails, halves of the rest are, until it is by itself."""
    numbers, left = list(items), dict(items)
    try:
        for place, explanation in explainer.explain_each(list(items.values()), **given):
            del left[numbers[place]]
            yield numbers[place], explanation
    except AttnflowError as error:
        if len(items) == 1:
            yield numbers[0], Fault("invalid", options.with_flags(str(error)))
            return
        numbers = list(left)
        half = len(numbers) // 2
        for part in filter(None, (numbers[:half], numbers[half:])):
            yield from _explained(explainer, {number: left[number] for number in part}, given)


def _show(
    results: Iterable[tuple[int, Explanation | Fault]], count: int, args: argparse.Namespace
) -> int:
    """Print results in the order of their texts, with a progress bar if there are many."""
    if count > 1:
        results = track(results, "explaining", "texts", count)
    done: dict[int, Explanation | Fault] = {}
    printer = _Printer(args, count)
    try:
        for index, result in results:
            done[index] = result
            while printer.next in done:
                printer.print(done.pop(printer.next))
    except KeyboardInterrupt:
        # Short texts run first, so some after the first missing one may be done.
        finished = printer.next + len(done)
        missing = Fault("interrupted", "Ctrl-C came before the text was explained")
        for index in range(printer.next, max(done, default=-1) + 1):
            printer.print(done.get(index, missing))
        print(f"attnflow: interrupted after {finished} of {count} texts", file=sys.stderr)
        return 130
    return printer.end()


class _Printer:
    """Prints explanations and faults, one after the other.

    Attributes:
        next: The index of the text that comes next.
    """

    def __init__(self, args: argparse.Namespace, count: int) -> None:
        self.next = 0
        self._args, self._count = args, count
        self._explained = 0
        self._invalid: list[str] = []

    def print(self, result: Explanation | Fault) -> None:
        """Print what there is of the next text."""
        self.next += 1
        if isinstance(result, Explanation):
            self._explained += 1
            self._print(result)
            return
        if self._args.json:
            error = {"number": self.next, **result._asdict()}
            print(json.dumps({"error": error}, ensure_ascii=False), flush=True)
        if result.kind == "invalid":
            self._invalid.append(f"{self._where()}{result.message}")
            if not self._args.json:
                self._say(self._invalid[-1])

    def end(self) -> int:
        """Say how many have failed, if the output says which, and return the exit status."""
        failed = len(self._invalid)
        if failed and self._args.json:
            more = f" ({failed} of {self._count} have such an error)" if failed > 1 else ""
            self._say(f"{self._invalid[0]}{more}")
        return 1 if failed or not self._explained else 0

    def _print(self, explanation: Explanation) -> None:
        args = self._args
        saved = [path for path in (args.output, args.html, args.png) if path is not None]
        for path in saved:
            options.save(explanation, path)
        if args.json:
            print(json.dumps(explanation.to_dict(), ensure_ascii=False), flush=True)
            return
        if self._explained > 1:
            print()
        if args.output is None:
            explanation.show()
        if args.attention:
            _show_attention(explanation)
        sys.stdout.flush()
        for path in saved:
            print(f"saved {path}", file=sys.stderr)

    def _where(self) -> str:
        if not self._args.text and self._args.attentions is None:
            return f"standard input, line {self.next}: "
        return f"text {self.next}: " if self._count > 1 else ""

    def _say(self, message: str) -> None:
        print(f"attnflow: error: {message}", file=sys.stderr)


def _stored(args: argparse.Namespace) -> "Sequence[TextAttention]":
    """Return the stored attention of the rows asked for."""
    if args.text:
        raise OptionError(
            f"{args.text[0]!r} is a text, which needs a model; --attentions explains what is stored"
        )
    if args.pair is not None or args.tab_pairs:
        given = "--tab-pairs" if args.tab_pairs else "--pair"
        raise OptionError(f"{given} needs a model; --attentions explains what is stored")
    reasons = _NEEDS_MODEL | {option.name: option.needs_model for option in OPTIONS}
    for name, reason in reasons.items():
        if reason and getattr(args, name, None) not in (None, False, "auto"):
            raise OptionError(f"--{name.replace('_', '-')} needs a model: {reason}")
    if args.row is not None and args.id is not None:
        raise OptionError("--row and --id each name one row; give one of them")

    from attnflow.dataset import load_attentions

    stored = load_attentions(args.attentions, args.tokens and _read_tokens(args.tokens))
    if args.row is not None:
        return [stored.row(args.row)]
    return stored if args.id is None else [stored.named(args.id)]


def _read_tokens(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read as UTF-8 text: {error}") from error
    try:
        tokens = json.loads(content)
    except ValueError:
        tokens = None
    if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        return tokens
    return content.removesuffix("\n").split("\n")


def _check_files(args: argparse.Namespace, count: int) -> None:
    """Check that the files to save can be written."""
    accepted = {"output": endings(Explanation), "html": [".html"], "png": [".png"]}
    for option in accepted:
        path = getattr(args, option)
        if path is None:
            continue
        if count != 1:
            raise OptionError(f"--{option} saves one explanation, and {count} texts were given")
        check_path(path, accepted[option], f"--{option}")
        if path.suffix.lower() in (".png", ".svg", ".pdf") and find_spec("matplotlib") is None:
            raise MissingExtraError(
                f'--{option} {path} needs matplotlib; run: pip install "attnflow[view]"'
            )


def _inputs(args: argparse.Namespace) -> list[Any]:
    """Return the texts, or pairs of texts."""
    if not args.tab_pairs:
        texts = args.text or _standard_input()
        if args.pair is None:
            return texts
        return [text if isinstance(text, Fault) else (text, args.pair) for text in texts]
    if args.text or args.pair is not None:
        given = "a text" if args.text else "--pair"
        raise OptionError(f"--tab-pairs reads pairs from standard input, and {given} was given")
    return _standard_input(pairs=True)


def _standard_input(*, pairs: bool = False) -> list[Any]:
    """Return the text of each line, or the pair of texts, or why there is none."""
    if sys.stdin.isatty():
        raise TextError("no text was given; write one after the options, or pipe some in")
    found: list[Any] = []
    for _, values, fault in read_records("-"):
        try:
            if fault is not None:
                raise ValueError(fault)
            text = text_of(values, TEXT_COLUMNS)
            found.append(_pair(text) if pairs else text)
        except ValueError as error:
            found.append(Fault("empty" if str(error) in EMPTY else "invalid", str(error)))
    if not found:
        raise TextError("standard input is empty; expected one text a line")
    return found


def _pair(line: str) -> tuple[str, ...]:
    pair = tuple(line.split("\t"))
    if len(pair) != 2:
        raise ValueError(
            f"{len(pair) - 1} tabs; --tab-pairs expects two texts with one tab between them"
        )
    return pair


def _show_attention(explanation: Explanation) -> None:
    from attnflow.view.attention import attention_report

    report = attention_report(explanation)
    if report is None:
        print("attnflow: there is no trace of attention to show", file=sys.stderr)
        return
    print()
    report.show()
