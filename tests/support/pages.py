"""Explanations for the tests of the page and of the widget, made without a model."""

import base64
import math
import zlib
from dataclasses import replace

import numpy as np

from attnflow import (
    AttentionGraph,
    Explanation,
    attention_flow,
    attention_rollout,
    encoder_decoder_graph,
    raw_attention,
)
from attnflow.explanation import Prediction
from attnflow.trace import Trace
from attnflow.verdict import Check

# Tokens that would like to be more than text.
HOSTILE = (
    "<script>window.ran = 1</script>",
    '"><img src=x onerror="window.ran = 1">',
    "</script>",
    "<!--",
    "&lt;",
    "${window.ran = 1}`",
    "\x00\x07\x1b[31m",
    "\u202eevil",
    "\u2028",
    "👩\u200d👩\u200d👧",
    "x" * 10_000,
)


def attention_of(layers, tokens, seed=0, *, heads=None, causal=False):
    shape = (layers, tokens, tokens) if heads is None else (layers, heads, tokens, tokens)
    weights = np.random.default_rng(seed).random(shape) ** 6 + 1e-4
    if causal:
        weights = np.tril(weights)
    return weights / weights.sum(axis=-1, keepdims=True)


def explain(
    tokens=("[CLS]", "The", "keys", "to", "the", "cabinet", "[SEP]"),
    *,
    layers=4,
    method="flow",
    attention=None,
    keep_heads=False,
    mask=None,
    trace=True,
    grid=None,
    special=None,
    **given,
):
    """Make an explanation of position 0, with its trace, without a model."""
    if attention is None:
        attention = attention_of(layers, len(tokens))
    graph = AttentionGraph(attention)
    special = [token in ("[CLS]", "[SEP]") for token in tokens] if special is None else special
    text, spans = "", []
    for token, apart in zip(tokens, special, strict=True):
        if apart or grid:
            spans.append(None)
            continue
        text += " " if text else ""
        spans.append((len(text), len(text) + len(token)))
        text += token
    methods = {"raw": raw_attention, "rollout": attention_rollout, "flow": attention_flow}
    scores = methods[method](graph)[:, 0]
    named = {
        "tokens": tokens,
        "scores": scores[-1],
        "layer_scores": scores,
        "method": method,
        "layer": graph.layers,
        "position": 0,
        "text": text,
        "spans": spans,
        "special": special,
        "model": "models/tiny",
        "task": "classification",
        "prediction": Prediction("plural", 1, 0.93),
        "target": "plural",
        "options": {"edges": "attention", "heads": "mean", "residual": 0.5},
        "saturation": 0.25 if method == "flow" else None,
        "notes": ["A note <b>in</b> words."],
        "grid": grid,
    }
    kept = Trace.of(
        graph,
        tokens=tokens,
        spans=spans,
        special=special,
        mask=mask,
        heads=list(attention) if keep_heads else None,
    )
    return Explanation(**{**named, "trace": kept if trace else None, **given})


def translate(*, relative=False):
    """Make the explanation of what follows a target, without a model: 4 and 3 tokens."""
    tokens = ("the", "old", "house", "</s>", "<pad>", "das", "haus")
    special = [False, False, False, True, True, False, False]
    text = "the old house → das haus"
    spans = [(0, 3), (4, 7), (8, 13), None, (13, 16), (16, 19), (20, 24)]
    graph = encoder_decoder_graph(
        attention_of(3, 4, 1),
        attention_of(2, 3, 2, causal=True),
        attention_of(2, 7, 3)[:, :3, :4] / attention_of(2, 7, 3)[:, :3, :4].sum(-1, keepdims=True),
    )
    mask = None
    if relative:
        mask = np.ones((7, 13), dtype=bool)
        mask[3::2, 7:] = False
    scores = attention_flow(graph, layers=[5, 7], positions=[6])[:, 0]
    return Explanation(
        tokens=tokens,
        scores=scores[-1],
        layer_scores=scores,
        method="flow",
        layer=2,
        position=6,
        text=text,
        spans=spans,
        special=special,
        model="models/tiny",
        task="seq2seq-lm",
        options={"receptive_field": relative},
        trace=Trace.of(graph, tokens=tokens, spans=spans, special=special, mask=mask),
    )


SIGNED = (0.25, 0.5, 2.0, -0.125, 0.0, -1.0, 0.25)
"""What the seven tokens of `explain` add to the answer of `contribute`."""


def contribute(scores=SIGNED, **given):
    """Make an explanation of contributions, with its trace and a check, without a model."""
    tokens = given.pop("tokens", ("[CLS]", "The", "keys", "to", "the", "cabinet", "[SEP]"))
    made = explain(tokens, special=given.get("special"), grid=given.get("grid"))
    scores = np.array(scores)
    upper = [scores * share for share in (1.0, 0.75, 0.5, 0.25)]
    carried = np.zeros((4, len(scores), len(scores)))
    carried[0, 2, -2] = -1.0
    carried[:, range(len(scores)), range(len(scores))] = upper - carried.sum(axis=1)
    words, effects = ["The", "keys", "to", "the", "cabinet"], [0.5, 3.0, 0.0, 0.25, -0.5]
    check = Check.of(
        "words",
        words,
        [float(score) for score in SIGNED[1:6]],
        effects,
        value=1.75,
        removed=-1.25,
        answers=("plural", "singular"),
        replacement="[UNK]",
    )
    named = {
        "method": "contribution",
        "layer": 1,
        "scores": scores,
        "layer_scores": upper,
        "contrast": "singular",
        "value": float(scores.sum()) - 0.125,
        "bias": -0.125,
        "saturation": None,
        "check": check,
        "trace": None if made.trace is None else replace(made.trace, carried=carried),
    }
    return replace(made, **{**named, **given})


def unpacked(values):
    """Return the numbers that a page stores packed, as lists."""
    count = math.prod(values["shape"])
    octets = zlib.decompress(base64.b64decode(values["packed"]))
    planes = np.frombuffer(octets, dtype=np.uint8).reshape(8, count)
    numbers = np.ascontiguousarray(planes.T).view("<f8")
    return numbers.reshape(values["shape"]).tolist()
