"""Explanations of long texts, without a trace, made without a model."""

import re

import numpy as np

from attnflow import Explanation
from attnflow.explanation import Prediction
from attnflow.fields import Segment
from tests.support import ROOT

QUESTION = "Who wrote the last entry of the logbook, and why did nobody believe it?"


def sentences_of(characters, seed=0):
    """Return paragraphs of English, about so many characters, in another order each time."""
    story = (ROOT / "benchmarks" / "text.txt").read_text(encoding="utf-8")
    known = re.findall(r"\S[^.?!]*[.?!]+[\u201d\"']?", " ".join(story.split()))
    rng = np.random.default_rng(seed)
    text = ""
    while len(text) < characters:
        for index in rng.permutation(len(known)).tolist():
            text += known[index] + ("\n\n" if rng.random() < 0.18 else " ")
    return text[:characters].rsplit(". ", 1)[0] + "."


def pieces_of(text, start):
    """Return the spans of word pieces, as a tokenizer with spaces before words has them."""
    found = re.finditer(r"\n|\s?[^\W\d_]{1,10}|\s?\d|\s?[^\w\s]|\s", text)
    return [(start + match.start(), start + match.end()) for match in found]


def long_chat(count=8192, layers=30, *, method="contribution", seed=0, **given):
    """Make an explanation of a chat about a retrieved document, of exactly so many tokens."""
    document = sentences_of(6 * count)
    messages = [
        ("system", "You answer questions about the document. Keep to what it says."),
        ("user", f"{document}\n\n{QUESTION}"),
    ]
    text, spans, special, segments = "", [], [], []

    def markup(part):
        nonlocal text
        spans.append((len(text), len(text) + len(part)))
        special.append(True)
        text += part

    def say(role, content, most):
        nonlocal text
        for part in ("<|im_start|>", role, "\n"):
            markup(part)
        own = pieces_of(content, len(text))[:most]
        segments.append(Segment(role, len(text), own[-1][1]))
        spans.extend(own)
        special.extend([False] * len(own))
        text += content[: own[-1][1] - len(text)]
        for part in ("<|im_end|>", "\n"):
            markup(part)

    say(*messages[0], 100)
    question = len(pieces_of(f"\n\n{QUESTION}", 0))
    room = count - len(spans) - 8
    kept = pieces_of(document, 0)[room - question - 1][1]
    say("user", f"{document[:kept]}\n\n{QUESTION}", room)
    for part in ("<|im_start|>", "assistant", "\n"):
        markup(part)
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(-4.5, 1.0, (layers, len(spans))))
    # A few stretches of the text matter.
    for place in rng.integers(0, len(spans), 12):
        size[:, place : place + 14] *= rng.uniform(4, 14)
    size[:, 0] = 1.5
    sign = np.where(rng.random(len(spans)) < 0.3, -1.0, 1.0) if method == "contribution" else 1.0
    scores = size * sign
    if method != "contribution":
        scores /= scores.sum(axis=1, keepdims=True)
    layer = 1 if method == "contribution" else layers
    value = float(scores[0].sum()) - 0.25
    named = {
        "tokens": [text[start:end].replace(" ", "\u0120") for start, end in spans],
        "scores": scores[layer - 1],
        "layer_scores": scores,
        "method": method,
        "layer": layer,
        "position": len(spans) - 1,
        "text": text,
        "spans": spans,
        "special": special,
        "segments": segments,
        "model": "models/SmolLM2-135M-Instruct",
        "task": "causal-lm",
        "prediction": Prediction(" The", 378, 0.412),
        "target": " The",
        "value": value if method == "contribution" else None,
        "bias": -0.25 if method == "contribution" else None,
        "options": {"edges": "attention", "heads": "mean", "units": "tokens"},
        "notes": ["The text is too long for the attention itself to be kept."],
    }
    return Explanation(**{**named, **given})
