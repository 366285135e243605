"""Ways to look at an explanation, and what they share.

Every view shows the text as it was written, with each token at its place. What stands in a token
is text to a view and nothing else: control characters are made visible and never sent on.
"""

import unicodedata
from collections import Counter
from html import escape
from typing import NamedTuple

from attnflow.explanation import Explanation
from attnflow.segment import clusters

__all__ = [
    "METHOD_NAMES",
    "Piece",
    "answers",
    "encodable",
    "format_score",
    "headline",
    "inline_html",
    "labels",
    "pieces",
    "reading",
    "shades",
    "visible",
]

METHOD_NAMES = {
    "raw": "Raw attention",
    "rollout": "Attention rollout",
    "flow": "Attention flow",
}

# These change the direction of all that follows on the line, whoever wrote it.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Piece(NamedTuple):
    """A part of an explanation's text as a view shows it.

    Attributes:
        text: A part of the text, or the name of a token that stands for no part of it.
        tokens: The indices of the tokens shown: none for what lies between tokens, several where
            tokens share a character.
    """

    text: str
    tokens: tuple[int, ...]


def pieces(explanation: Explanation) -> list[Piece]:
    """Divide the text of an explanation into its tokens and what lies between them.

    Args:
        explanation: The explanation.

    Returns:
        The pieces in the order of the text, which they give when joined. Tokens without a span
        are there by name, set apart by spaces, where they stand among the others. The piece of a
        token has no whitespace around it, unless whitespace is all it is, and never ends within
        what a reader sees as one character.
    """
    text = explanation.text
    placed: list[tuple[int, int, int]] = []
    named: dict[int, list[int]] = {}  # tokens without a span, by how many with one precede them
    for index, span in enumerate(_whole_spans(explanation)):
        if span is None:
            named.setdefault(len(placed), []).append(index)
        else:
            placed.append((*span, index))

    shown: list[Piece] = []
    waiting: list[int] = []  # tokens without characters of their own, before any piece
    last = -1  # the piece of the last token shown
    cursor = 0
    # The sort is stable, so that tokens that share a character keep their order.
    for rank, (start, end, index) in enumerate(sorted(placed, key=lambda item: item[0])):
        if start > cursor:
            shown.append(Piece(text[cursor:start], ()))
            cursor = start
        shown += [Piece(explanation.tokens[i], (i,)) for i in named.get(rank, [])]
        part = text[cursor:end]
        if not part:
            if last < 0:
                waiting.append(index)
            else:
                shown[last] = Piece(shown[last].text, (*shown[last].tokens, index))
            continue
        body = part.strip() or part
        before, _, after = part.partition(body)
        shown += [Piece(before, ()), Piece(body, (*waiting, index)), Piece(after, ())]
        last = len(shown) - 2
        waiting = []
        cursor = end
    shown.append(Piece(text[cursor:], ()))
    shown += [Piece(explanation.tokens[i], (i,)) for i in (*waiting, *named.get(len(placed), []))]
    return _set_apart([piece for piece in shown if piece.text], explanation)


def _whole_spans(explanation: Explanation) -> list[tuple[int, int] | None]:
    """Return the tokens' spans, widened to what a reader sees as one character."""
    text = explanation.text
    floor = list(range(len(text) + 1))
    ceiling = list(range(len(text) + 1))
    for start, end in clusters(text):
        floor[start:end] = [start] * (end - start)
        ceiling[start + 1 : end + 1] = [end] * (end - start)
    return [
        # An empty span stays empty.
        span if span is None or span[0] == span[1] else (floor[span[0]], ceiling[span[1]])
        for span in explanation.spans
    ]


def _set_apart(shown: list[Piece], explanation: Explanation) -> list[Piece]:
    """Put a space between a token that is there by name and what is beside it."""
    result: list[Piece] = []
    by_name_before = False
    for piece in shown:
        by_name = any(explanation.spans[i] is None for i in piece.tokens)
        seam = (result[-1].text[-1] + piece.text[0]) if result else " "
        if (by_name or by_name_before) and not any(side.isspace() for side in seam):
            result.append(Piece(" ", ()))
        result.append(piece)
        by_name_before = by_name
    return result


def shades(explanation: Explanation, shown: list[Piece]) -> list[float | None]:
    """Return how strongly each piece is to be marked.

    Args:
        explanation: The explanation.
        shown: Its pieces.

    Returns:
        For each piece its score as a share of the highest, from 0 to 1; None for what lies
        between tokens and for special tokens, whose scores would drown those of the text.
    """
    scores = [
        float(explanation.scores[list(piece.tokens)].sum())
        if piece.tokens and not all(explanation.special[i] for i in piece.tokens)
        else None
        for piece in shown
    ]
    largest = max((score for score in scores if score is not None), default=0.0)
    return [
        None if score is None else max(0.0, score / largest) if largest > 0 else 0.0
        for score in scores
    ]


def visible(text: str, encoding: str = "utf-8", *, line_breaks: bool = True) -> str:
    r"""Return text with everything made visible that is not, or that cannot be shown.

    Args:
        text: Any text.
        encoding: What the text is going to be encoded in.
        line_breaks: Whether lines may break. Otherwise a symbol is shown for a line break.

    Returns:
        The text with a symbol for each control character, and an escape for each character that
        changes the direction of others or that the encoding does not have.

    Example:
        >>> print(visible("\x1b[31mred"), visible("\x1b[31mred", "ascii"))
        ␛[31mred \x1b[31mred
    """
    lines = text.replace("\r\n", "\n").split("\n")
    shown = ["".join(_visible(character, encoding) for character in line) for line in lines]
    symbol = "\u21b5" if encodable("\u21b5", encoding) else "\\n"
    joined = ("\n" if line_breaks else symbol).join(shown)
    return joined.encode(encoding, "backslashreplace").decode(encoding)


def _visible(character: str, encoding: str) -> str:
    if character == "\t":
        return "    "
    unsafe = unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _DIRECTIONS
    if not unsafe:
        return character
    code = ord(character)
    # Unicode has a picture of each control character of ASCII.
    picture = chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else ""
    if picture and encodable(picture, encoding):
        return picture
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def encodable(text: str, encoding: str) -> bool:
    """Return whether an encoding has all characters of a text.

    Args:
        text: The text.
        encoding: The encoding's name.

    Returns:
        Whether the text can be encoded.
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def labels(explanation: Explanation) -> list[str]:
    """Return a name for each token that a reader recognises.

    Args:
        explanation: The explanation.

    Returns:
        What the token stands for in the text, or the tokenizer's name for it if that is nothing.
        Where several tokens would have the same name, they are numbered in their order.
    """
    names = []
    for index, span in enumerate(_whole_spans(explanation)):
        part = "" if span is None else explanation.text[span[0] : span[1]]
        names.append(part.strip() or part or explanation.tokens[index])
    counts = Counter(names)
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        if counts[name] > 1:
            seen[name] += 1
            names[index] = f"{name} ({_ordinal(seen[name])})"
    return names


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else ending}"


def format_score(score: float, largest: float) -> str:
    """Return a score in as many digits as the largest beside it needs.

    Args:
        score: The score.
        largest: The largest magnitude of the scores shown with it.

    Returns:
        The number, with three decimals or more, or with a power of ten where that would be long.

    Example:
        >>> format_score(0.25, 0.5), format_score(0.00125, 0.004), format_score(1e-9, 1e-8)
        ('0.250', '0.00125', '1.00e-09')
    """
    if largest >= 1e6 or 0 < largest < 1e-5:
        return f"{score:.2e}"
    decimals = 3
    while 0 < largest * 10**decimals < 100 and decimals < 7:
        decimals += 1
    # A zero has no sign to a reader.
    return f"{score:.{decimals}f}".replace("-0." + "0" * decimals, "0." + "0" * decimals)


def headline(explanation: Explanation) -> str:
    """Return what was explained, in a few words.

    Args:
        explanation: The explanation.

    Returns:
        The layer, the position with its token where that is known, and the model's name.
    """
    name = _position_name(explanation)
    position = f"position {explanation.position}" + (f" {name}" if name else "")
    parts = [f"layer {explanation.layer} of {len(explanation.layer_scores)}", position]
    if explanation.model:
        # Of a path, the last folders say which model it is.
        parts.append("/".join(explanation.model.replace("\\", "/").rstrip("/").split("/")[-2:]))
    return ", ".join(parts)


def reading(explanation: Explanation) -> str:
    """Return how to read the scores, in one line.

    Args:
        explanation: The explanation.

    Returns:
        What a high score means for the explanation's method.
    """
    position = _position_name(explanation) or f"position {explanation.position}"
    meaning = {
        "raw": f"the more {position} attends to it in layer {explanation.layer}",
        "rollout": f"the larger its share in {position} at layer {explanation.layer}, "
        "by attention multiplied along every path",
        "flow": f"the more attention can flow from {position} at layer {explanation.layer} "
        "down to it, over all paths at once",
    }[explanation.method]
    relative = ""
    if explanation.options.get("receptive_field") is True:
        relative = " Scores are relative to attention that prefers no token."
    return f"The higher a token's score, {meaning}.{relative}"


def _position_name(explanation: Explanation) -> str:
    """Name the token at the explained position, where all of the model's tokens are there."""
    made = explanation.options
    whole = not made.get("words") and made.get("special_tokens", True) and not made.get("drop_sink")
    if not whole or explanation.position >= len(explanation.tokens):
        return ""
    return labels(explanation)[explanation.position]


def inline_html(explanation: Explanation) -> str:
    """Return the explanation as a piece of HTML for a notebook.

    Args:
        explanation: The explanation.

    Returns:
        One ``div`` with inline styles and no script. Colours are laid over those of the page, so
        that it can be read on a light and on a dark one.
    """
    shown = pieces(explanation)
    largest = float(explanation.scores.max(initial=0.0))
    spans = []
    for piece, shade in zip(shown, shades(explanation, shown), strict=True):
        text = escape(visible(piece.text))
        if not piece.tokens:
            spans.append(text)
            continue
        score = format_score(float(explanation.scores[list(piece.tokens)].sum()), largest)
        if shade is None:
            style = "opacity:0.6"
        else:
            style = f"background:rgba(56,139,220,{0.62 * shade:.3f});border-radius:3px"
        spans.append(f'<span style="{style}" title="{score}">{text}</span>')

    def line(text: str) -> str:
        return escape(visible(text, line_breaks=False))

    blocks = [
        f"<b>{METHOD_NAMES[explanation.method]}</b>, {line(headline(explanation))}",
        f'<div dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.8;'
        f'margin:0.5em 0">{"".join(spans)}</div>',
        *(f"<div>{name}: <b>{line(value)}</b></div>" for name, value in answers(explanation)),
        f'<div style="opacity:0.75">{line(reading(explanation))}</div>',
        *(f"<div><b>Note:</b> {line(note)}</div>" for note in explanation.notes),
    ]
    return f'<div style="max-width:60em">{"".join(blocks)}</div>'


def answers(explanation: Explanation) -> list[tuple[str, str]]:
    """Return what the model answered and what the explanation is for.

    Args:
        explanation: The explanation.

    Returns:
        Names and values to print, none if the model gives no answer.
    """
    found = []
    prediction = explanation.prediction
    if prediction is not None:
        label = prediction.label.strip() or repr(prediction.label)
        found.append(("Prediction", f"{label} ({prediction.probability:.1%})"))
    if explanation.target is not None and (
        prediction is None or prediction.label != explanation.target
    ):
        found.append(("Explained for", explanation.target.strip() or repr(explanation.target)))
    return found
