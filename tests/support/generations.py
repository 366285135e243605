"""Generations for the tests of their page, made without a model."""

import numpy as np

from attnflow import Explanation, Generation
from attnflow.explanation import Prediction
from attnflow.fields import Segment

PROMPT = ("The", "keys", "to", "the", "old", "cabinet")
ANSWER = (" are", " on", " that", " table", ".")
ROLES = (("system", ("Be", "brief", ".")), ("user", ("Where", "are", "the", "keys", "?")))


def written(
    prompt=PROMPT,
    answer=ANSWER,
    *,
    roles=None,
    method="contribution",
    layers=3,
    seed=0,
    each=True,
    scale=None,
    **given,
):
    """Make a generation of any tokens, with random scores.

    Words of the prompt are set apart by spaces, those of the answer are joined as they are. roles
    has names of messages with their words, in the place of a prompt. scale multiplies the scores of
    columns.
    """
    text, tokens, spans, special, segments = "", [], [], [], []

    def add(name, *, mark=False, space=False):
        nonlocal text
        text += " " if space and text else ""
        spans.append((len(text), len(text) + len(name)))
        text += name
        tokens.append(name)
        special.append(mark)

    for role, words in roles or [("", prompt)]:
        if roles:
            for mark in ("<s>", role, "\n"):
                add(mark, mark=True)
        start = len(text) + bool(text)
        for word in words:
            add(word, space=True)
        if roles:
            segments.append(Segment(role, start, len(text)))
            add("</s>", mark=True)
    begin, count = len(text), len(tokens)
    for name in answer:
        add(name)
    if roles:
        segments.append(Segment("answer", begin, len(text)))

    rng = np.random.default_rng(seed)
    total = len(tokens) - 1
    factors = np.ones(total) if scale is None else np.asarray(scale, dtype=float)
    signed = method == "contribution"
    matrix, steps = np.zeros((len(answer), total)), []
    named = {"method": method, "layer": 1 if signed else layers, "text": text, "model": "tiny"}
    named |= {"task": "causal-lm", "segments": segments, "options": {"units": "tokens"}, **given}

    def explained(scores, upper, **own):
        length = len(scores)
        return Explanation(
            **{
                **named,
                "tokens": tokens[:length],
                "spans": spans[:length],
                "special": special[:length],
                "scores": scores,
                "layer_scores": upper,
                "position": length - 1,
                **own,
            }
        )

    sums = np.zeros((layers, total))
    value = bias = 0.0
    for row, name in enumerate(answer):
        length = count + row
        upper = rng.normal(0.2, 1.0, (layers, length)) * factors[:length]
        if not signed:
            upper = abs(upper) / abs(upper).sum(axis=1, keepdims=True)
        scores = upper[0 if signed else -1]
        matrix[row, :length] = scores
        sums[:, :length] += upper
        own = {"target": name, "prediction": Prediction(name, row, 0.5)}
        if signed:
            own |= {"value": float(scores.sum()) + 0.25, "bias": 0.25}
            value, bias = value + own["value"], bias + 0.25
        steps.append(explained(scores, upper, **own))
    if not signed:
        sums /= len(answer)
    own = {"value": value, "bias": bias} if signed else {}
    whole = explained(sums[named["layer"] - 1], sums, target="".join(answer), **own)
    return Generation(
        prompt=text[:begin],
        text=text[begin:],
        explanations=steps if each else [],
        whole=whole,
        written=[i >= count for i in range(total)],
        options={"max_new_tokens": len(answer)},
    )


def spanned(generation, selection):
    """Return the scores of a selection: the sum of its rows, or the mean of attention."""
    if selection is None:
        return generation.whole.scores
    first, last = selection
    rows = np.nan_to_num(generation.matrix[first : last + 1])
    return rows.sum(axis=0) / (1 if generation.whole.method == "contribution" else len(rows))
