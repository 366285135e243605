"""The benchmark of contributions: what they cost over the forward pass, and what they save.

Contributions need one forward and one backward pass. They are timed against the model's own forward
pass on the same input, and against a plain forward decomposition that carries one vector for each
position through the model. Both must give the same scores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from attnflow import OptionError
from benchmarks import inputs
from benchmarks.measure import added_memory, give_back_memory, in_turns
from benchmarks.runs import Job, at_least
from benchmarks.tables import Record

HELP = "compare contributions with the model's forward pass and with a forward decomposition"

MODELS = ("classifier", "decoder")
TOKENS = (128, 512)
QUICK_TOKENS = (16,)
DECOMPOSED = (128,)
TOLERANCE = 1e-4
"""How far a part may differ from the decomposition's, over the largest score."""

_ROUNDS = 9
_DECOMPOSITION_ROUNDS = 3
# Seconds for which a short call is repeated in one round.
_AT_LEAST = 0.3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to the command line."""
    add = parser.add_argument
    add(
        "--models",
        nargs="+",
        choices=MODELS,
        help="MiniLM with a classification head, and SmolLM2 (default: both, if installed)",
    )
    add("--tokens", nargs="+", type=at_least(3), help="text lengths (default: 128 512)")
    add(
        "--decomposition",
        nargs="*",
        type=at_least(3),
        metavar="TOKENS",
        help="text lengths of the forward decomposition; 512 is slow and takes many gigabytes "
        "(default: 128)",
    )
    add("--rounds", type=at_least(1), help=f"how often each is timed (default: {_ROUNDS})")
    add("--threads", type=at_least(1), help="threads of torch (default: torch's own)")


def options_of(args: argparse.Namespace) -> Record:
    """Return the options of a run from the command line.

    Raises:
        OptionError: If a length is too large for a model.
        MissingExtraError: If something is not installed.
    """
    # Loading the decoder takes longer than all else of a quick run.
    default = MODELS[:1] if args.quick else tuple(filter(inputs.installed, MODELS))
    models = list(dict.fromkeys(args.models or default or MODELS))
    lengths = {
        "tokens": args.tokens or (QUICK_TOKENS if args.quick else TOKENS),
        "decomposition": args.decomposition,
    }
    if args.decomposition is None:
        lengths["decomposition"] = QUICK_TOKENS if args.quick else DECOMPOSED
    for kind in models:
        inputs.check_installed(kind)
        for option, sizes in lengths.items():
            longest, most = max(sizes, default=0), inputs.MAX_TOKENS[kind]
            if longest > most:
                raise OptionError(f"--{option}: {longest} given; {kind} has at most {most} tokens")
    return {
        "models": models,
        **{option: sorted(set(sizes)) for option, sizes in lengths.items()},
        "rounds": args.rounds or (2 if args.quick else _ROUNDS),
        "decomposition_rounds": 1 if args.quick else _DECOMPOSITION_ROUNDS,
        "threads": args.threads,
        "quick": args.quick,
    }


def plan(document: Record) -> dict[str, Job]:
    """Return the measurements of a run by name.

    Args:
        document: The results of the run so far, with its options.
    """
    options = document["options"]
    jobs: dict[str, Job] = {}
    for kind in options["models"]:
        for n in options["tokens"]:
            jobs[f"cost/{kind}/{n}"] = partial(_cost, options, kind, n)
        for n in options["decomposition"]:
            jobs[f"decomposition/{kind}/{n}"] = partial(_decomposition, document, kind, n)
    return jobs


class Case:
    """A model, a text, and what is explained: the model's prediction.

    Args:
        kind: One of `MODELS`.
        tokens: Number of tokens of the text.
    """

    def __init__(self, kind: str, tokens: int) -> None:
        from attnflow.capture.running import forward_options

        self.kind, self.explainer = kind, inputs.load(kind)
        self.model, self._adapter = self.explainer.model, self.explainer.adapter
        (self.text,) = inputs.texts(self.explainer.tokenizer, tokens, 1)
        encoded = self._adapter.read(self.text)
        self._place = self._adapter.position(encoded, "auto", None) or 0
        # As the explainer does it: logits of this position alone.
        self.inputs, self._where = self._adapter.stacked([encoded], [[self._place]])
        self._options = forward_options(self.model, output_attentions=False)
        self.target = int(self._logits(self.forward()).argmax())

    def _logits(self, outputs: Any) -> Any:
        return self._adapter.logits(outputs, 0, [self._place], self._where)

    def _value(self, logits: Any) -> Any:
        return self._adapter.value(logits, self.target, None)

    def forward(self, **options: Any) -> Any:
        """Run the model, without gradients and without a cache."""
        import torch

        with torch.no_grad():
            return self.model(**self.inputs, **{**self._options, **options})

    def contribute(self, steps: bool = False) -> Any:
        """Return the contributions, and last what biases add, of shape (n + 1,)."""
        import torch

        from attnflow.capture import contribute

        def score(outputs: Any) -> Any:
            return self._value(self._logits(outputs))

        found = contribute(self.model, self.inputs, score, steps=steps)
        return torch.cat([found.scores[0][0], found.biases])

    def explain(self) -> Any:
        """Explain the text as a user does."""
        return self.explainer.explain(self.text)

    def decompose(self) -> Any:
        """Return what `contribute` returns, from vectors that are carried forward."""
        import torch

        from attnflow.capture.borrow import borrowed
        from benchmarks import decomposition

        decomposed = {"classifier": decomposition.bert, "decoder": decomposition.llama}[self.kind]
        with borrowed(self.model, "eager"), torch.no_grad():
            outputs = self.forward(output_attentions=True, output_hidden_states=True)
            parts = decomposed(self.model, outputs.hidden_states, outputs.attentions)
            return self._value(parts)


def _cost(options: Record, kind: str, tokens: int) -> Record:
    """Measure contributions and the forward pass: first memory, then time in turns."""
    case = Case(kind, tokens)
    calls: dict[str, Callable[[], Any]] = {
        "forward": case.forward,
        "contribute": case.contribute,
        "steps": partial(case.contribute, steps=True),
        "explain": case.explain,
    }
    with inputs.torch_threads(options["threads"]) as threads:
        for call in calls.values():
            call()  # the first call loads what is loaded once
        peaks = {name: _peak(call) for name, call in calls.items()}
        seconds = in_turns(calls, options["rounds"], 0 if options["quick"] else _AT_LEAST)
    return {"threads": threads, "seconds": seconds, "peak_bytes": peaks}


def _peak(call: Callable[[], Any]) -> int | None:
    give_back_memory()
    return added_memory(call)


def _decomposition(document: Record, kind: str, tokens: int) -> Record:
    """Compare contributions with the forward decomposition, in time and in what they give."""
    options, case = document["options"], Case(kind, tokens)
    calls = {"contribute": case.contribute, "decomposition": case.decompose}
    with inputs.torch_threads(options["threads"]) as threads:
        ours, theirs = (call().double() for call in calls.values())
        rounds = options["decomposition_rounds"]
        seconds = in_turns(calls, rounds, 0 if options["quick"] else _AT_LEAST)
    difference = float((ours - theirs).abs().max() / ours[:-1].abs().max())
    if not difference <= TOLERANCE:
        document["disagreements"].append(
            {
                "model": kind,
                "tokens": tokens,
                "relative_difference": repr(difference),
                "tolerance": repr(TOLERANCE),
            }
        )
    return {"threads": threads, "seconds": seconds, "relative_difference": repr(difference)}
