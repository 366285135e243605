"""``attnflow explain``: from which tokens did the model's answer for a text come?"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.cli import options
from attnflow.errors import MissingExtraError, OptionError, TextError
from attnflow.explanation import Explanation
from attnflow.formats import check_path, endings
from attnflow.io.progress import track
from attnflow.io.records import read_records
from attnflow.options import OPTIONS

if TYPE_CHECKING:
    from attnflow.dataset import TextAttention

__all__ = ["add_parser", "run"]

FIGURES = (".png", ".svg", ".pdf")

EPILOG = """\
examples:
  attnflow explain "the keys to the cabinet"
  attnflow explain --model ./my-classifier "a film that is hard to forget"
  attnflow explain --model ./my-model --method rollout --layer 4 --units words --json "the keys"
  attnflow explain --model ./my-model --output keys.json "the keys to the cabinet"
  attnflow explain --model ./my-model --html keys.html --png keys.png "the keys to the cabinet"
  cat texts.txt | attnflow explain --model ./my-model --json > explained.jsonl

without the model, from what attnflow run --keep attentions stored, or from any attention weights:
  attnflow explain --attentions out/ --row 3 --method rollout --html row3.html
  attnflow explain --attentions weights.npy --tokens tokens.txt --layer 4 --position 0
"""

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
    parser = subparsers.add_parser(
        "explain",
        help="say which tokens a model's answer for a text came from",
        description="Say which tokens a model's answer for a text came from.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "text",
        nargs="*",
        help="the texts, or the paths of images or .wav files; without any, each line of standard "
        "input is one",
    )
    stored = parser.add_argument_group("attention that is stored, in the place of a model")
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
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="save the explanation: .json, .csv, .html, .png, .svg or .pdf",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="save it as a page, too")
    parser.add_argument("--png", type=Path, metavar="FILE", help="save it as a figure, too")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status: 0, or 130 if Ctrl-C came before the last text was done.

    Raises:
        AttnflowError: If the model, a text or an option is not valid.
    """
    if args.attentions is not None:
        return _explain_stored(args)
    for name in ("row", "id", "tokens"):
        if getattr(args, name) is not None:
            raise OptionError(f"--{name} goes with --attentions, which was not given")
    texts = args.text or _standard_input()
    _check_files(args, len(texts))

    # Loading torch takes seconds, so that everything above comes first.
    explainer = options.load(args)
    explanations = explainer.explain_each(texts, **options.given_options(args))
    done: dict[int, Explanation] = {}
    printed = 0
    try:
        for index, explanation in _shown(explanations, len(texts)):
            done[index] = explanation
            while printed in done:
                printed += 1
                _print(done.pop(printed - 1), args)
    except KeyboardInterrupt:
        # Short texts run first, so that some after the first missing one may be done.
        for index in sorted(done):
            _print(done[index], args)
        return _interrupted(printed + len(done), len(texts))
    return 0


def _explain_stored(args: argparse.Namespace) -> int:
    """Explain attention that is stored, without the model."""
    if args.text:
        raise OptionError(
            f"{args.text[0]!r} is a text, which needs a model; --attentions explains what is stored"
        )
    chosen = options.given_options(args)
    reasons = _NEEDS_MODEL | {option.name: option.needs_model for option in OPTIONS}
    for name, reason in reasons.items():
        if reason and getattr(args, name, None) not in (None, False, "auto"):
            raise OptionError(f"--{name.replace('_', '-')} needs a model: {reason}")
    if args.row is not None and args.id is not None:
        raise OptionError("--row and --id each name one row; give one of them")

    from attnflow.dataset import load_attentions

    stored = load_attentions(args.attentions, args.tokens and _read_tokens(args.tokens))
    if args.row is not None:
        texts: Sequence[TextAttention] = [stored.row(args.row)]
    elif args.id is not None:
        texts = [stored.named(args.id)]
    else:
        texts = stored
    _check_files(args, len(texts))
    made = ((i, text.explain(**chosen)) for i, text in enumerate(texts))
    done = 0
    try:
        for _, explanation in _shown(made, len(texts)):
            _print(explanation, args)
            done += 1
    except KeyboardInterrupt:
        return _interrupted(done, len(texts))
    return 0


def _read_tokens(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is not UTF-8 text: {error}") from error
    try:
        tokens = json.loads(content)
    except ValueError:
        tokens = None
    if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        return tokens
    return content.removesuffix("\n").split("\n")


def _check_files(args: argparse.Namespace, count: int) -> None:
    """See that what is to be saved can be."""
    for option, ending in (("output", None), ("html", ".html"), ("png", ".png")):
        path = getattr(args, option)
        if path is None:
            continue
        if count != 1:
            raise OptionError(f"--{option} saves one explanation, and {count} texts were given")
        check_path(path, endings(Explanation) if ending is None else [ending], f"--{option}")
        if path.suffix.lower() in FIGURES and find_spec("matplotlib") is None:
            raise MissingExtraError(
                f'--{option} {path} needs matplotlib; run: pip install "attnflow[view]"'
            )


def _interrupted(done: int, count: int) -> int:
    print(f"attnflow: interrupted after {done} of {count} texts", file=sys.stderr)
    return 130


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise TextError("no text was given; write one after the options, or pipe some in")
    texts = []
    for number, values, fault in read_records("-", "text"):
        if fault is not None:
            raise TextError(f"standard input, line {number}: {fault}")
        if values["text"].strip():
            texts.append(values["text"])
    if not texts:
        raise TextError("standard input holds no text; expected one text a line")
    return texts


def _shown(
    explanations: "Iterator[tuple[int, Explanation]]", count: int
) -> "Iterator[tuple[int, Explanation]]":
    """Pass explanations on, with a progress bar if there are many."""
    return explanations if count < 2 else track(explanations, "explaining", "texts", count)


def _print(explanation: "Explanation", args: argparse.Namespace) -> None:
    saved = [path for path in (args.output, args.html, args.png) if path is not None]
    for path in saved:
        explanation.save(path)
    if args.json:
        record: dict[str, Any] = explanation.to_dict()
        print(json.dumps(record, ensure_ascii=False), flush=True)
        return
    if args.output is None:
        explanation.show()
    for path in saved:
        print(f"saved {path}", file=sys.stderr)
