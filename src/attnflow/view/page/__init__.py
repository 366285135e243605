"""The page of an explanation: one HTML file.

Its script is plain JavaScript in modules beside this file, which `bundle.mjs` makes one. `trace.js`
reads the saved weights, `graph.js` and `flow.js` compute with them, and `numbers.js` caches the
results. `shown.js` has what is chosen, `prose.js` describes it, and `colour.js`, `scene.js`,
`heat.js`, `heads.js`, `bars.js`, `routes.js` and `layered.js` draw it. Every other module is one
part of the page: a function that is given all it needs, and returns its element with functions that
draw it. `page.js` puts the parts together, in the `Frame` of `frame.js`.
"""

import base64
import zlib
from collections.abc import Collection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.explanation import Explanation
from attnflow.tokens import Tokens
from attnflow.view import captions
from attnflow.view.document import asset, data_element, direction, document
from attnflow.view.pieces import Piece, has_sign, labels, pieces, shades
from attnflow.view.sentences import is_long, largest, rows, sentences, units
from attnflow.view.text import escaped, visible

__all__ = ["data", "first_choices", "packed", "page", "parts", "script", "style"]

# The largest number of characters that the weights of a page may take. Everything else is small.
MOST_WEIGHTS: Final = 7_000_000
# How many contributions the page draws as bars, the largest first.
MOST_ROWS: Final = 16


def page(explanation: Explanation) -> str:
    """Return the page of an explanation.

    Args:
        explanation: The explanation. With a trace, the page shows every method, layer and position,
            and the graph; without one, the scores of the explanation.

    Returns:
        An HTML document that makes no network request.
    """
    text = visible(explanation.text, line_breaks=False)
    return document(
        title=f"{captions.METHOD_NAMES[explanation.method]}: {text}"[:100],
        style=style(),
        main=f'<main data-theme="auto">\n{_static(explanation)}\n</main>',
        data=data_element(data(explanation)),
        script=script(),
    )


def data(explanation: Explanation) -> dict[str, Any]:
    """Return the data for the page's script.

    Args:
        explanation: The explanation.

    Returns:
        What JSON can hold: the explanation, the scores of its layers packed; its trace; the labels
        of its tokens, and the text divided into them, or of the sentences of a long text without a
        trace; for contributions, what is shown of them; the rows of a long text; and what is chosen
        at first.
    """
    trace = explanation.trace
    # The tokens that the model was given. The explanation may have left out or summed some.
    shown = explanation.pieces
    # With a trace, the text is where a position is chosen, token by token.
    by_sentence = is_long(explanation) and (trace is None or has_sign(explanation))
    if by_sentence and trace is None:
        shown = sentences(explanation)[0].pieces
    if trace is not None:
        shown = Tokens(
            explanation.text, trace.tokens, trace.spans, trace.special, explanation.segments
        )
    patches = () if explanation.grid is None else shown.patches
    picture = explanation.picture
    return {
        "explanation": {
            **explanation.to_dict(),
            "layer_scores": packed(explanation.layer_scores),
        },
        "model": explanation.model,
        "classes": captions.label_names(explanation),
        "trace": None if trace is None else trace.to_dict(MOST_WEIGHTS),
        "labels": [visible(name, line_breaks=False) for name in labels(shown)],
        "patches": list(patches),
        "special": list(shown.special),
        "pieces": [
            [visible(piece.text), list(piece.tokens), *([True] if piece.label else [])]
            for piece in parts(shown, patches)
        ],
        "picture": None if picture is None else base64.b64encode(picture).decode("ascii"),
        "direction": direction(explanation.text),
        "saved": _saved(explanation),
        "contribution": _contribution(explanation) if has_sign(explanation) else None,
        "sentences": _sentences(explanation) if by_sentence else None,
        "verdict": _verdict(explanation),
        "options": captions.options(explanation),
        "stretches": _stretches(explanation, shown),
        "first": first_choices(explanation),
    }


def first_choices(explanation: Explanation) -> dict[str, Any]:
    """Return the method, layer and position that the page shows at first.

    Args:
        explanation: The explanation.

    Returns:
        Those of the explanation. Contributions belong to no layer and are always shown; below them
        the page begins with rollout of the last layer, if there is a trace.
    """
    method, layer = explanation.method, explanation.layer
    if has_sign(explanation) and explanation.trace is not None:
        method, layer = "rollout", explanation.trace.depth
    return {"method": method, "layer": layer, "position": explanation.trace_position}


def parts(tokens: Tokens, patches: Collection[int]) -> list[Piece]:
    """Return the pieces of a text without the spaces after patches, which are shown elsewhere.

    Args:
        tokens: The tokens.
        patches: The indices of those that are patches of an image.

    Returns:
        The pieces, those of patches among them.
    """
    found: list[Piece] = []
    after_patch = False
    for piece in pieces(tokens):
        if piece.tokens or piece.text.strip() or not after_patch:
            found.append(piece)
            after_patch = any(token in patches for token in piece.tokens)
    return found


def packed(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return numbers as the page stores them: exact, and in a third of the room of decimals.

    The first bytes of all numbers come first, then the second, and so on: those that say how large
    a number is are much alike, and compress well.

    Args:
        values: An array of float64.

    Returns:
        Its "shape", and its numbers as text, "packed".
    """
    octets = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(-1, 8)
    text = base64.b64encode(zlib.compress(octets.T.tobytes(), 6)).decode("ascii")
    return {"shape": list(values.shape), "packed": text}


def _sentences(explanation: Explanation) -> dict[str, Any]:
    """Return the rows of a long text, and for each of its units the tokens that it is made of."""
    by_unit, groups = sentences(explanation)
    position = explanation.position
    known = captions.has_all_tokens(explanation) and position < len(explanation.tokens)
    name = labels(explanation.pieces)[position] if known else ""
    return {
        "name": units(by_unit),
        "parts": units(explanation),
        "groups": groups,
        "rows": rows(explanation.pieces, groups),
        # A line break, with which a chat often ends, has no name that says anything.
        "position": None if name[:1].isspace() else visible(name) or None,
    }


def _contribution(explanation: Explanation) -> dict[str, Any]:
    """Return what is shown of contributions: words, the text with its shades, and a row a token.

    A piece is its text, its share of the largest score from -1 to 1, and its score in words; both
    are None between tokens, and the share of special tokens is. The name of a segment has True
    after these, and a patch False and True. A long text has a row a sentence, and no pieces.
    """
    whole, unit, patches = explanation, "token", set(explanation.patches)
    shown = [] if is_long(explanation) else parts(explanation.pieces, patches)
    if is_long(explanation):
        explanation = sentences(explanation)[0]
        unit = units(explanation).removesuffix("s")
    scores = explanation.scores
    largest = float(abs(scores).max(initial=0.0))

    def score(value: float) -> str:
        return captions.format_score(float(value), largest, signed=True)

    order = (-abs(scores)).argsort(kind="stable").tolist()[:MOST_ROWS]
    names = labels(explanation.pieces)
    bars = [
        [visible(names[i], line_breaks=False), float(scores[i]), score(scores[i])] for i in order
    ]
    rest = len(scores) - len(order)
    if rest:
        others = float(scores.sum() - scores[order].sum())
        bars.append([captions.counted(rest, f"other {unit}"), others, score(others)])
    if explanation.bias is not None:
        bars.append(["biases of the model", explanation.bias, score(explanation.bias)])
    return {
        "kicker": captions.kicker(whole),
        "title": captions.answer(whole),
        "subtitle": captions.certainty(whole),
        "gist": captions.gist(whole),
        "terms": captions.terms(whole),
        "sum": captions.addition(whole),
        "reading": captions.reading(whole),
        "value": None if explanation.value is None else score(explanation.value),
        "rows": bars,
        "pieces": [
            [
                visible(piece.text),
                shade,
                score(scores[list(piece.tokens)].sum()) if piece.tokens else None,
                *([True] if piece.label else []),
                *([False, True] if patches & set(piece.tokens) else []),
            ]
            for piece, shade in zip(shown, shades(explanation, shown), strict=True)
        ],
    }


def _verdict(explanation: Explanation) -> dict[str, Any] | None:
    """Return what the check found, in a sentence and in full, and whether the scores hold."""
    check = explanation.check
    if check is None:
        return None
    return {"short": check.summary, "long": captions.verdict(explanation), "holds": check.holds}


def _stretches(explanation: Explanation, shown: Tokens) -> list[Any] | None:
    """Return the sentences of a long text that is shown token by token, with their tokens."""
    if explanation.trace is None or not is_long(explanation) or has_sign(explanation):
        return None
    tokens, groups = shown.grouped("sentences")
    return [
        [visible(name, line_breaks=False), list(group)]
        for name, group, special in zip(labels(tokens), groups, tokens.special, strict=True)
        if not special
    ]


def _saved(explanation: Explanation) -> dict[str, Any] | None:
    """Return scores that the page need not compute, if they are those of the trace's tokens."""
    trace = explanation.trace
    if trace is None or explanation.method != "flow" or not captions.has_all_tokens(explanation):
        return None
    if (trace.mask is None) == bool(explanation.options.get("receptive_field")):
        return None
    return {
        "method": explanation.method,
        "position": explanation.position,
        "scores": explanation.layer_scores.tolist(),
    }


def script() -> str:
    """Return the page's script.

    Returns:
        A module that shows the data of its document, and exports `mount`, which shows data in any
        element.
    """
    return asset("bundles/page.js")


def style() -> str:
    """Return the page's style sheet."""
    return asset("page/page.css")


def _static_text(explanation: Explanation) -> str:
    """Return the text as HTML, with the names of its segments."""
    if not explanation.segments:
        return escaped(explanation.text, line_breaks=True)
    shown = pieces(explanation.pieces)
    return "".join(
        f"<bdi><b>{escaped(piece.text)}</b></bdi>"
        if piece.label
        else escaped(piece.text, line_breaks=True)
        for piece in shown
        if not all(explanation.special[i] for i in piece.tokens) or not piece.tokens
    )


def _static(explanation: Explanation) -> str:
    """Return what is shown where scripts do not run."""
    form = ".3g" if not has_sign(explanation) else "+.3g"
    long = is_long(explanation)
    best = largest(sentences(explanation)[0], 10) if long else explanation
    told = [escaped(f"{name} ({score:{form}})") for name, score in best.top(10)]
    text = f'<p dir="auto">{_static_text(explanation)}</p>'
    facts = [("Sum", captions.addition(explanation)), *captions.answers(explanation)]
    facts.append(("Check", captions.verdict(explanation)))
    blocks = [
        f"<h1>{captions.METHOD_NAMES[explanation.method]}</h1>",
        f"<p>{escaped(captions.headline(explanation))}</p>",
        "" if long else text,
        *(f"<p>{name}: {escaped(value)}</p>" for name, value in facts if value),
        f"<p>{escaped(captions.reading(explanation))} The highest:"
        + ("</p>" if long else f" {', '.join(told)}.</p>"),
        "<ol>" + "".join(f'<li dir="auto">{item}</li>' for item in told) + "</ol>" if long else "",
        *(f"<p>{escaped(note)}</p>" for note in explanation.notes),
        text if long else "",
        "<p>This page shows more where scripts may run.</p>",
    ]
    return "\n".join(block for block in blocks if block)
