"""Long texts by their sentences: nobody reads the scores of thousands of tokens one by one."""

from dataclasses import replace
from typing import Any, Final

from attnflow.explanation import Explanation
from attnflow.options import unit_name
from attnflow.tokens import Span, Tokens, summed
from attnflow.view.pieces import Piece, has_sign, pieces
from attnflow.view.text import visible

# What fills a screen, about 300 words of English. Beyond that, whole sentences are compared first.
MOST_TOKENS: Final = 400
# The same in characters, for units that are longer than words.
MOST_CHARACTERS: Final = 2000
# What has more tokens is no sentence that anybody reads: a table, a program, a text without stops.
MOST_IN_SENTENCE: Final = 150
WORDS: Final = ("tokens", "words")


def is_long(explanation: Explanation) -> bool:
    """Return whether a view shows sentences first.

    Args:
        explanation: The explanation.

    Returns:
        True for a text of more than 400 tokens or words; and for one of more than 2,000 characters
        whose units are longer. Images and sounds have no sentences.
    """
    if explanation.grid is not None or not any(explanation.spans):
        return False
    if len(explanation.tokens) > MOST_TOKENS:
        return True
    return _units(explanation) not in WORDS and len(explanation.text) > MOST_CHARACTERS


def sentences(explanation: Explanation) -> tuple[Explanation, list[list[int]]]:
    """Return the explanation of a long text by its sentences.

    Args:
        explanation: The explanation. Units that are longer than words stay as they are.

    Returns:
        The explanation, in which special tokens are units of their own, and what has more than 150
        tokens is divided at line breaks or spaces; and for each unit the indices of its tokens.
    """
    if _units(explanation) not in WORDS:
        return explanation, [[i] for i in range(len(explanation.tokens))]
    tokens, groups = explanation.pieces.grouped("sentences")
    names, spans, parts = [], [], []
    for name, span, group in zip(tokens.names, tokens.spans, groups, strict=True):
        for part in _divided(explanation, group):
            parts.append(part)
            if len(part) < len(group):
                span = _extent(explanation, part)
                name = explanation.text[slice(*span)]
            names.append(name)
            spans.append(span)
    by_sentence = replace(
        explanation,
        tokens=tuple(names),
        spans=tuple(spans),
        special=tuple(explanation.special[part[0]] for part in parts),
        scores=summed(explanation.scores, parts),
        layer_scores=summed(explanation.layer_scores, parts),
        options={**explanation.options, "units": "sentences"},
        trace=None,
    )
    return by_sentence, parts


def units(explanation: Explanation) -> str:
    """Return what the units of an explanation are called, such as "sentences"."""
    return unit_name(_units(explanation))


def largest(explanation: Explanation, count: int) -> Explanation:
    """Return an explanation of the units with the largest scores, in the order of the text.

    Args:
        explanation: The explanation.
        count: How many units that are not special tokens are kept.

    Returns:
        The explanation, without the other units and without special tokens.
    """
    sizes = abs(explanation.scores) if has_sign(explanation) else explanation.scores
    order = (-sizes).argsort(kind="stable").tolist()
    kept = sorted([i for i in order if not explanation.special[i]][:count])
    chosen = explanation.pieces.select(kept)
    return replace(
        explanation,
        tokens=chosen.names,
        spans=chosen.spans,
        special=chosen.special,
        scores=explanation.scores[kept],
        layer_scores=explanation.layer_scores[:, kept],
        trace=None,
    )


def rows(tokens: Tokens, groups: list[list[int]]) -> list[dict[str, Any]]:
    """Divide a text into a row for each unit.

    Args:
        tokens: The tokens, such as the `pieces` of an explanation.
        groups: For each unit the indices of its tokens.

    Returns:
        In the order of the text, ``{"heading": ...}`` for the name of a segment, and ``{"pieces":
        ...}`` with the text and tokens of each piece for all else. A row with a "unit" is that
        unit; others are special tokens, or text that no token covers. "apart" marks a row that an
        empty line precedes.
    """
    unit_of = {token: unit for unit, group in enumerate(groups) for token in group}
    found: list[dict[str, Any]] = []
    waiting: list[Piece] = []  # special tokens, and what lies between tokens
    current: int | None = None

    def settle() -> None:
        nonlocal current, waiting
        if any(piece.tokens or piece.text.strip() for piece in waiting):
            found.append({"pieces": waiting})
        elif found and "pieces" in found[-1]:
            found[-1]["pieces"] += waiting
        waiting, current = [], None

    for piece in pieces(tokens):
        if piece.label:
            settle()
            found.append({"heading": visible(piece.text, line_breaks=False).removesuffix(": ")})
        elif all(tokens.special[i] for i in piece.tokens):
            waiting.append(piece)
        elif unit_of[piece.tokens[0]] == current:
            found[-1]["pieces"] += [*waiting, piece]
            waiting = []
        else:
            settle()
            current = unit_of[piece.tokens[0]]
            found.append({"pieces": [piece], "unit": current})
    settle()

    apart = False
    for row in found:
        parts: list[Piece] = row.get("pieces", [])
        if apart and "unit" in row:
            row["apart"] = True
        text = "".join(piece.text for piece in parts)
        apart = text[len(text.rstrip()) :].count("\n") > 1
        if parts:
            there = [i for i, piece in enumerate(parts) if piece.tokens or piece.text.strip()]
            kept = parts[there[0] : there[-1] + 1]
            row["pieces"] = [[visible(piece.text), list(piece.tokens)] for piece in kept]
    return found


def _divided(explanation: Explanation, group: list[int]) -> list[list[int]]:
    """Return the tokens of a sentence; of a very long one in parts that end at line breaks."""
    found: list[list[int]] = [[]]
    for token, following in zip(group, [*group[1:], None], strict=True):
        found[-1].append(token)
        size = len(found[-1])
        if following is None or size < MOST_IN_SENTENCE // 2:
            continue
        (start, end), (after, last) = (_span(explanation, i) for i in (token, following))
        line = "\n" in explanation.text[start : max(end, after)]
        space = explanation.text[end:last][:1].isspace()
        if line or size >= 2 * MOST_IN_SENTENCE or (space and size >= MOST_IN_SENTENCE):
            found.append([])
    # A sentence that is only a little too long stays whole.
    return found if len(group) > MOST_IN_SENTENCE else [group]


def _span(explanation: Explanation, token: int) -> Span:
    return explanation.spans[token] or (0, 0)


def _extent(explanation: Explanation, group: list[int]) -> Span:
    """Return the stretch of the text that some tokens cover, without whitespace around it."""
    spans = [_span(explanation, i) for i in group]
    start, end = min(span[0] for span in spans), max(span[1] for span in spans)
    text = explanation.text[start:end]
    return start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())


def _units(explanation: Explanation) -> Any:
    return explanation.options.get("units", "tokens")
