"""``attnflow explain``: from which tokens did the model's answer for a text come?"""

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import MissingExtraError, ModelError, OptionError, TextError
from attnflow.explanation import check_path

if TYPE_CHECKING:
    from attnflow.explanation import Explanation

__all__ = ["add_parser", "run"]

FIGURES = (".png", ".svg", ".pdf")

EPILOG = """\
examples:
  attnflow explain "the keys to the cabinet"
  attnflow explain --model ./my-classifier "a film that is hard to forget"
  attnflow explain --model ./my-model --method rollout --layer 4 --words --json "the keys"
  attnflow explain --model ./my-model --output keys.json "the keys to the cabinet"
  attnflow explain --model ./my-model --html keys.html --png keys.png "the keys to the cabinet"
  cat texts.txt | attnflow explain --model ./my-model --json > explained.jsonl
"""


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
    parser.add_argument(
        "--model",
        help="a folder, a GGUF file, or a hub name (default: the verb-number model that comes with "
        "attnflow)",
    )
    parser.add_argument(
        "--task",
        default="auto",
        help="auto, classification, masked-lm, causal-lm, encoder, seq2seq-lm, speech-to-text, "
        "image-classification or image-encoder (default: auto)",
    )
    parser.add_argument("--method", default="flow", help="raw, rollout or flow (default: flow)")
    parser.add_argument("--layer", type=int, default=-1, help="from 1; -1 is the last (default)")
    parser.add_argument(
        "--position",
        type=_index_or_name,
        default="auto",
        help="an index, cls, mask, last or auto (default: auto)",
    )
    parser.add_argument(
        "--edges",
        default="attention",
        help="attention, gradient, effective or value_norm (default: attention)",
    )
    parser.add_argument("--target", type=_index_or_name, help="the class or token to explain")
    parser.add_argument(
        "--heads",
        type=_index_or_name,
        default="mean",
        help="mean, max, min, sum or the index of a head (default: mean)",
    )
    parser.add_argument(
        "--residual", type=float, default=0.5, help="share of the residual, 0 to 1 (default: 0.5)"
    )
    parser.add_argument(
        "--receptive-field",
        choices=("auto", "on", "off"),
        default="auto",
        help="relate scores to uniform attention over the same mask (auto: for causal models)",
    )
    parser.add_argument("--words", action="store_true", help="sum sub-word tokens to words")
    parser.add_argument("--no-special-tokens", action="store_true", help="leave special tokens out")
    parser.add_argument("--drop-sink", action="store_true", help="leave the attention sink out")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    parser.add_argument("--allow-pickle", action="store_true", help="load weights in pickle files")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="save the explanation: .json, .csv, .html, .png, .svg or .pdf",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="save it as a page, too")
    parser.add_argument("--png", type=Path, metavar="FILE", help="save it as a figure, too")
    parser.add_argument(
        "--keep-heads", action="store_true", help="keep each head, for the page and for .json"
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
    texts = args.text or _standard_input()
    for option, ending in (("output", None), ("html", ".html"), ("png", ".png")):
        path = getattr(args, option)
        if path is None:
            continue
        if len(texts) != 1:
            raise OptionError(
                f"--{option} saves one explanation, and {len(texts)} texts were given"
            )
        if ending is not None and path.suffix.lower() != ending:
            raise OptionError(f"--{option} must end in {ending}, got {str(path)!r}")
        check_path(path)
        if path.suffix.lower() in FIGURES and find_spec("matplotlib") is None:
            raise MissingExtraError(
                f'--{option} {path} needs matplotlib; run: pip install "attnflow[view]"'
            )
    model = _shipped() if args.model is None else args.model

    # Loading torch takes seconds, so that everything above comes first.
    from attnflow.explain import Explainer

    explainer = Explainer.from_pretrained(
        model, task=args.task, device=args.device, allow_pickle=args.allow_pickle
    )
    explanations = explainer.explain_each(
        texts,
        method=args.method,
        layer=args.layer,
        position=args.position,
        edges=args.edges,
        target=args.target,
        heads=args.heads,
        residual=args.residual,
        receptive_field={"auto": "auto", "on": True, "off": False}[args.receptive_field],
        words=args.words,
        special_tokens=not args.no_special_tokens,
        drop_sink=args.drop_sink,
        truncate=args.truncate,
        keep_heads=args.keep_heads,
    )
    done: dict[int, Explanation] = {}
    printed = 0
    try:
        for index, explanation in _progress(explanations, len(texts)):
            done[index] = explanation
            while printed in done:
                printed += 1
                _print(done.pop(printed - 1), args)
    except KeyboardInterrupt:
        # Short texts run first, so that some after the first missing one may be done.
        for index in sorted(done):
            _print(done[index], args)
        print(
            f"attnflow: interrupted after {printed + len(done)} of {len(texts)} texts",
            file=sys.stderr,
        )
        return 130
    return 0


def _shipped() -> Path:
    """Return the folder of the model that comes with attnflow."""
    from attnflow.paper import checkpoint

    folder = checkpoint()
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"--model was not given, and the model that comes with attnflow is not in {folder}; "
            "give a folder or a hub name with --model"
        )
    return folder


def _index_or_name(value: str) -> int | str:
    try:
        return int(value)
    except ValueError:
        return value


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise TextError("no text was given; write one after the options, or pipe some in")
    texts = [line.rstrip("\r\n") for line in sys.stdin]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise TextError("standard input holds no text; expected one text a line")
    return texts


def _progress(
    explanations: "Iterator[tuple[int, Explanation]]", count: int
) -> "Iterator[tuple[int, Explanation]]":
    """Pass explanations on, with a bar on standard error if there are many and it is a terminal."""
    if count < 2 or not sys.stderr.isatty():
        yield from explanations
        return
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        yield from explanations
        return
    yield from track(
        explanations, "explaining", total=count, console=Console(stderr=True), transient=True
    )


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
