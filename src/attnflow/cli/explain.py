"""Say which tokens a model's answer for a text came from.

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
from collections.abc import Iterable, Sequence
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
        The exit status: 0, or 130 if Ctrl-C came before the last text was done.

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
    _check_files(args, len(inputs))
    # Loading torch takes seconds, so everything above comes first.
    explainer = options.load(args)
    explained = explainer.explain_each(inputs, **options.given_options(args))
    return _show(explained, len(inputs), args)


def _show(
    explanations: Iterable[tuple[int, Explanation]], count: int, args: argparse.Namespace
) -> int:
    """Print explanations in the order of their texts, with a progress bar if there are many."""
    if count > 1:
        explanations = track(explanations, "explaining", "texts", count)
    done: dict[int, Explanation] = {}
    printed = 0
    try:
        for index, explanation in explanations:
            done[index] = explanation
            while printed in done:
                printed += 1
                _print(done.pop(printed - 1), args)
    except KeyboardInterrupt:
        # Short texts run first, so some after the first missing one may be done.
        for index in sorted(done):
            _print(done[index], args)
        finished = printed + len(done)
        print(f"attnflow: interrupted after {finished} of {count} texts", file=sys.stderr)
        return 130
    return 0


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
        return texts if args.pair is None else [(text, args.pair) for text in texts]
    if args.text or args.pair is not None:
        given = "a text" if args.text else "--pair"
        raise OptionError(f"--tab-pairs reads pairs from standard input, and {given} was given")
    pairs = [tuple(line.split("\t")) for line in _standard_input()]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2:
            raise TextError(
                f"standard input, text {number}: {len(pair) - 1} tabs; --tab-pairs expects two "
                "texts with one tab between them"
            )
    return pairs


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
        raise TextError("standard input has no text; expected one text a line")
    return texts


def _print(explanation: Explanation, args: argparse.Namespace) -> None:
    saved = [path for path in (args.output, args.html, args.png) if path is not None]
    for path in saved:
        explanation.save(path)
    if args.json:
        print(json.dumps(explanation.to_dict(), ensure_ascii=False), flush=True)
        return
    if args.output is None:
        explanation.show()
    if args.attention:
        _show_attention(explanation)
    for path in saved:
        print(f"saved {path}", file=sys.stderr)


def _show_attention(explanation: Explanation) -> None:
    from attnflow.view.attention import attention_report

    report = attention_report(explanation)
    if report is None:
        print("attnflow: there is no trace of attention to show", file=sys.stderr)
        return
    print()
    report.show()
