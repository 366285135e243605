"""Options that several commands share, spelt and explained once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import ModelError

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = [
    "add_engine",
    "add_loading",
    "add_method",
    "add_model",
    "add_scoring",
    "add_tokens",
    "add_truncate",
    "explain_options",
    "index_or_name",
    "load",
    "shipped",
]

_SWITCHES = {"auto": "auto", "on": True, "off": False}


def add_model(parser: argparse._ActionsContainer) -> None:
    """Add --model and --task: which model, and what it is for.

    Args:
        parser: The parser of a command, or a group of its options; so it is for all of these.
    """
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


def add_loading(parser: argparse._ActionsContainer) -> None:
    """Add --device and --allow-pickle: how the model is loaded."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    parser.add_argument("--allow-pickle", action="store_true", help="load weights in pickle files")


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add what runs the model: --engine, --address and --workers."""
    from attnflow.dataset.engine import ENGINES

    parser.add_argument("--engine", default="local", help=f"{', '.join(ENGINES)} (default: local)")
    parser.add_argument(
        "--address",
        help="with --engine ray: auto for the cluster that this machine is part of, or host:port "
        "(default: start one on this machine for this run)",
    )
    parser.add_argument("--workers", type=int, help="processes (default: one for each CPU)")


def add_method(parser: argparse._ActionsContainer) -> None:
    """Add --method and --layer."""
    parser.add_argument("--method", default="flow", help="raw, rollout or flow (default: flow)")
    parser.add_argument("--layer", type=int, default=-1, help="from 1; -1 is the last (default)")


def add_scoring(parser: argparse._ActionsContainer, *, several: bool = False) -> None:
    """Add what else decides scores, from --position to --receptive-field.

    Args:
        parser: The parser, or a group of its options.
        several: Whether several kinds of edges may be named, and "both" for --receptive-field.
    """
    parser.add_argument(
        "--position",
        type=index_or_name,
        default="auto",
        help="an index, cls, mask, last or auto (default: auto)",
    )
    parser.add_argument(
        "--edges",
        default="attention",
        help="of attention,gradient,effective,value_norm (default: attention)"
        if several
        else "attention, gradient, effective or value_norm (default: attention)",
    )
    parser.add_argument("--target", type=index_or_name, help="the class or token to explain")
    parser.add_argument(
        "--heads",
        type=index_or_name,
        default="mean",
        help="mean, max, min, sum or the index of a head (default: mean)",
    )
    parser.add_argument(
        "--residual", type=float, default=0.5, help="share of the residual, 0 to 1 (default: 0.5)"
    )
    parser.add_argument(
        "--receptive-field",
        choices=(*_SWITCHES, "both") if several else tuple(_SWITCHES),
        default="auto",
        help="relate scores to uniform attention over the same mask (auto: for causal models)",
    )


def add_tokens(parser: argparse._ActionsContainer) -> None:
    """Add which tokens are shown, from --words to --drop-sink."""
    parser.add_argument("--words", action="store_true", help="sum sub-word tokens to words")
    parser.add_argument("--no-special-tokens", action="store_true", help="leave special tokens out")
    parser.add_argument("--drop-sink", action="store_true", help="leave the attention sink out")


def add_truncate(parser: argparse._ActionsContainer) -> None:
    """Add --truncate."""
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long")


def explain_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Explainer.explain` that the functions above have added.

    Args:
        args: The parsed options.
    """
    names = ("method", "layer", "position", "edges", "target", "heads", "residual")
    return {
        **{name: getattr(args, name) for name in names},
        "receptive_field": _SWITCHES[args.receptive_field],
        "words": args.words,
        "special_tokens": not args.no_special_tokens,
        "drop_sink": args.drop_sink,
        "truncate": args.truncate,
    }


def load(args: argparse.Namespace) -> Explainer:
    """Load the model that --model names, or the one that comes with attnflow.

    Args:
        args: The parsed options.

    Raises:
        AttnflowError: If it cannot be loaded.
    """
    model = shipped() if args.model is None else args.model

    # Loading torch takes seconds, so that what can be told without it comes first.
    from attnflow.models import Explainer

    return Explainer.from_pretrained(
        model, task=args.task, device=args.device, allow_pickle=args.allow_pickle
    )


def shipped() -> Path:
    """Return the folder of the model that comes with attnflow.

    Raises:
        ModelError: If it is not there.
    """
    from attnflow.models.verb_number import checkpoint

    folder = checkpoint()
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"--model was not given, and the model that comes with attnflow is not in {folder}; "
            "give a folder or a hub name with --model"
        )
    return folder


def index_or_name(value: str) -> int | str:
    """Return an option's value as a number if it is one.

    Example:
        >>> index_or_name("3"), index_or_name("mean")
        (3, 'mean')
    """
    try:
        return int(value)
    except ValueError:
        return value
