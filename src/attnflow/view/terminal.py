"""An explanation in the terminal: the answer, the shaded text, and the highest tokens.

With rich on a terminal, tokens are shaded. Other streams get the same as plain text. Of a long text
only the sentences with the largest scores are printed, a line each.
"""

import sys
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from attnflow.explanation import Explanation
from attnflow.view.captions import (
    METHOD_NAMES,
    addition,
    answer,
    answers,
    certainty,
    counted,
    format_score,
    gist,
    headline,
    kicker,
    reading,
    title,
    verdict,
)
from attnflow.view.pieces import SPACE, as_read, has_sign, labels, pieces, shades, unread
from attnflow.view.sentences import WORDS, is_long, sentences, units
from attnflow.view.stream import ACCENT, console_for, encoding_of, width_of
from attnflow.view.text import cells, encodable, shorten, transliterated, visible, wrap

if TYPE_CHECKING:
    from rich.console import Group
    from rich.padding import Padding


BARS = 8
"""How many of the highest tokens get a bar."""

BARS_OF_LONG = 12
"""The same of the sentences of a long text."""

WIDEST = 100
"""The longest line in cells, however wide the terminal."""

WIDEST_OF_LONG = 160
"""The same where sentences are listed, many of which are longer."""

WIDEST_BAR = 32
"""The longest bar, in cells."""

MOST_UNREAD = 200
"""How many characters are shown of text that was not read."""

# A sequential scale of one hue, from dark to bright. It works for every kind of colour vision
# because lightness carries the order. A terminal does not say whether its background is dark or
# light, so the text is shown on a background of its own: the scale's lowest colour.
_SCALE = ((17, 24, 39), (18, 53, 91), (23, 101, 163), (59, 155, 220), (166, 220, 255))
# The same for scores below 0. They are underlined, too, for those who see no difference in hue.
_BELOW = ((17, 24, 39), (74, 43, 18), (150, 77, 8), (222, 128, 38), (255, 205, 140))
_AGAINST = "#de8026"
_FAINT = "#94a3b8"

_LEFT_TO_RIGHT_MARK = "\u200e"
_HALF = "\u2590"  # the right half of a cell
_EIGHTHS = "\u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"


def show(explanation: Explanation, file: TextIO | None = None) -> None:
    """Print an explanation.

    On a terminal, and with rich installed, tokens are shaded by their scores. NO_COLOR removes the
    colours, TERM=dumb all escape codes. Other streams get plain text in their encoding. Lines are
    as wide as the terminal, or as COLUMNS says.

    Args:
        explanation: The explanation.
        file: The text stream to print to. None means standard output.
    """
    stream = sys.stdout if file is None else file
    encoding = encoding_of(stream)
    console = console_for(stream)
    if console is None:
        stream.write(render_plain(explanation, width=width_of(stream), encoding=encoding))
    else:
        content = render(
            explanation, width=console.width, encoding=encoding, colour=not console.no_color
        )
        console.print(content, width=_width(explanation, console.width))


def render(
    explanation: Explanation, *, width: int = 80, encoding: str = "utf-8", colour: bool = True
) -> "Group":
    """Return an explanation as rich shows it on a terminal.

    Args:
        explanation: The explanation.
        width: The terminal's width in cells.
        encoding: The terminal's encoding.
        colour: Whether the terminal shows colours. If not, the legend explains bold type instead.

    Returns:
        Something that a `rich.console.Console` prints.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text

    width, long = _width(explanation, width), is_long(explanation)
    margin = 2 if width >= 20 else 0
    sign = has_sign(explanation)

    def shown(text: str, style: str = "") -> Text:
        return Text(own(text, encoding), style, overflow="fold")

    def indented(*parts: Text) -> Padding:
        return Padding(Text.assemble(*parts, overflow="fold"), (0, 0, 0, margin))

    def fact(name: str, value: Text) -> Padding:
        return indented(Text(f"{name}  ", "dim"), value)

    if sign:
        heading = [
            indented(shown(kicker(explanation), "dim")),
            indented(shown(answer(explanation), "bold")),
            indented(shown(certainty(explanation), "dim")),
            Text(),
            indented(shown(gist(explanation))),
        ]
    else:
        name = Text(METHOD_NAMES[explanation.method], "bold")
        heading = [indented(name, Text("  "), shown(headline(explanation), "dim"))]
    rest = [fact(name, shown(value)) for name, value in _unread(explanation)]
    lines: list[Any] = [
        *heading,
        Text(),
        *([] if long else [shaded(explanation, margin, encoding, colour=colour), Text()]),
        *([*rest, Text()] if rest else []),
        *bars(explanation, width - 2 * margin, margin, encoding),
        Text(),
    ]
    facts = [fact(name, shown(value, "bold")) for name, value in _facts(explanation) if value]
    lines += [*facts, Text()] if facts else []
    for name, value in _checked(explanation):
        lines += [fact(name, shown(value)), Text()]
    how = shown(_how(explanation), "dim")
    if long:
        pass  # nothing is shaded
    elif colour:
        first, low, high = (-9, "against", "for") if sign else (0, "low", "high")
        steps = [(" ", Style(bgcolor=colours(step / 9)[0])) for step in range(first, 10, 1 + sign)]
        how = Text.assemble((f"{low} ", "dim"), *steps, (f" {high}  ", "dim"), how)
    else:
        how.append(
            f" Bold tokens have at least half of the {'largest' if sign else 'highest'} score.",
            "dim",
        )
    if sign and not long:
        how.append(" Those are underlined.", "dim")
    lines.append(indented(how))
    for note in explanation.notes:
        lines += [Text(), indented(Text("Note  ", "bold #d97706"), shown(note))]
    return Group(*lines)


def own(text: str, encoding: str) -> str:
    """Return a line that attnflow wrote, as a terminal of this encoding can show it."""
    return visible(transliterated(text, encoding), encoding, line_breaks=False)


def _unread(explanation: Explanation) -> list[tuple[str, str]]:
    rest = unread(explanation)
    return [("Not read", shorten(rest, MOST_UNREAD))] if rest else []


def _facts(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the names and values of what stands below the bars."""
    if has_sign(explanation):
        return [("Sum", addition(explanation))]
    return answers(explanation)


def _checked(explanation: Explanation) -> list[tuple[str, str]]:
    return [] if explanation.check is None else [("Check", verdict(explanation))]


def _how(explanation: Explanation) -> str:
    """Return how to read the scores. What an answer is made of has no other headline."""
    name = f"{METHOD_NAMES[explanation.method]}: " if has_sign(explanation) else ""
    how = reading(explanation)
    return name + (how[:1].lower() + how[1:] if name else how)


def shaded(explanation: Explanation, margin: int, encoding: str, *, colour: bool) -> "Padding":
    """Return the text with its tokens shaded by their scores, as rich shows it.

    Args:
        explanation: The explanation.
        margin: The cells left and right of the text.
        encoding: The terminal's encoding.
        colour: Whether the terminal shows colours.
    """
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text

    text = Text(overflow="fold")
    explanation = as_read(explanation)
    parts = pieces(explanation.pieces)
    for piece, shade in zip(parts, shades(explanation, parts), strict=True):
        content = visible(piece.text, encoding)
        if piece.label:
            text.append(content, Style(bold=True))
        elif not piece.tokens:
            text.append(content)
        elif shade is None:
            text.append(content, Style(color=_FAINT, dim=not colour))
        else:
            # A token that is a line break shows as one, and breaks the line.
            content = content.replace("\n", visible("\n", encoding, line_breaks=False) + "\n")
            background, foreground = colours(shade)
            emphasis = {"bold": abs(shade) >= 0.5, "underline": shade < 0}
            text.append(content, Style(color=foreground, bgcolor=background, **emphasis))
    canvas = Style(color="#ffffff", bgcolor=colours(0.0)[0])
    return Padding(text, (1 if margin else 0, margin), style=canvas)


def bars(explanation: Explanation, width: int, margin: int, encoding: str) -> "list[Padding]":
    """Return the highest tokens with their bars, and what is not shown, as rich shows them.

    Args:
        explanation: The explanation.
        width: The cells of a line without margins.
        margin: The cells left of a line.
        encoding: The terminal's encoding.
    """
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.text import Text

    rows, remarks = chart(explanation, width, encoding, cell_len)
    lines = []
    for label, number, bar in rows:
        row = (label, (number, "bold"), "  ", (bar, _AGAINST if number.startswith("-") else ACCENT))
        lines.append(Text.assemble(*row, no_wrap=True, overflow="crop"))
    lines += [Text(remark, "dim", overflow="fold") for remark in remarks]
    return [Padding(line, (0, 0, 0, margin)) for line in lines]


def render_plain(explanation: Explanation, *, width: int = 80, encoding: str = "utf-8") -> str:
    """Return an explanation as plain text.

    Args:
        explanation: The explanation.
        width: How many cells a line may take.
        encoding: The encoding that the text will be written in. The text has only its characters.

    Returns:
        Lines of text.
    """
    width, long = _width(explanation, width), is_long(explanation)
    margin = "  " if width >= 20 else ""
    room = max(1, width - len(margin))

    def paragraph(text: str, *, line_breaks: bool = False) -> list[str]:
        shown = visible(text, encoding, line_breaks=True) if line_breaks else own(text, encoding)
        return [f"{margin}{line}".rstrip() for line in wrap(shown, room)]

    if has_sign(explanation):
        lines = (kicker(explanation), answer(explanation), certainty(explanation))
        heading = [[line for text in lines for line in paragraph(text)]]
        heading.append(paragraph(gist(explanation)))
    else:
        heading = [paragraph(title(explanation))]
    text = "" if long else "".join(piece.text for piece in pieces(as_read(explanation).pieces))
    rows, remarks = chart(explanation, room, encoding, cells)
    drawn = [f"{margin}{label}{number}  {bar}".rstrip() for label, number, bar in rows]
    blocks = [
        *heading,
        paragraph(text, line_breaks=True) if text else [],
        *(paragraph(f"{name}: {value}") for name, value in _unread(explanation)),
        drawn + [line for remark in remarks for line in paragraph(remark)],
        *(
            paragraph(f"{name}: {value}")
            for name, value in (*_facts(explanation), *_checked(explanation))
            if value
        ),
        paragraph(_how(explanation)),
        *(paragraph(f"Note: {note}") for note in explanation.notes),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def colours(shade: float) -> tuple[str, str]:
    """Return the colours for a token.

    Args:
        shade: Its score as a share of the largest, from -1 to 1.

    Returns:
        The background, and a foreground that can be read on it, as "#rrggbb".

    Example:
        >>> colours(0.0), colours(1.0)
        (('#111827', '#ffffff'), ('#a6dcff', '#000000'))
    """
    scale = _SCALE if shade >= 0 else _BELOW
    place = min(abs(shade), 1.0) * (len(scale) - 1)
    below = min(int(place), len(scale) - 2)
    red, green, blue = (
        round(low + (place - below) * (high - low))
        for low, high in zip(scale[below], scale[below + 1], strict=True)
    )
    # One of black and white has a contrast of 4.5 to 1 or more. They are equal at this luminance,
    # as WCAG 2 defines it.
    luminance = sum(
        share * (c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4)
        for share, c in zip((0.2126, 0.7152, 0.0722), (red, green, blue), strict=True)
    )
    foreground = "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"
    return f"#{red:02x}{green:02x}{blue:02x}", foreground


def chart(
    explanation: Explanation, width: int, encoding: str, measure: Callable[[str], int]
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return the padded label, number and bar of the highest tokens, and what is not shown.

    Of a long text they are those of sentences. Where scores have a sign, the highest are the
    largest of either sign, and the bars of those below 0 reach to the left.

    Args:
        explanation: The explanation.
        width: The cells of a line.
        encoding: The encoding that the text will be written in.
        measure: Returns how many cells a text takes.
    """
    signed, most = has_sign(explanation), BARS
    if is_long(explanation):
        explanation, most = sentences(explanation)[0], BARS_OF_LONG
    unit = units(explanation)
    names = [_label(name, encoding) for name in labels(explanation.pieces)]
    scores: list[float] = explanation.scores.tolist()
    ranks = abs(explanation.scores) if signed else explanation.scores
    order = (-ranks).argsort(kind="stable").tolist()
    special = [i for i in order if explanation.special[i]]
    usual = [i for i in order if not explanation.special[i]] or special
    best = usual[:most]
    if not best:
        return [], ["There are no tokens."]
    magnitude = max(abs(scores[i]) for i in best)
    numbers = [format_score(scores[i], magnitude, signed=signed) for i in best]
    digits = max(len(number) for number in numbers)
    free = width - digits - 4
    room = free // 2 if unit in WORDS else free - free // 4
    label_width = max(1, min(max(measure(names[i]) for i in best), max(room, 8), free))
    bar_width = min(WIDEST_BAR, free - label_width)
    above = max(0.0, *(scores[i] for i in best))
    below = max(0.0, *(-scores[i] for i in best)) if signed else 0.0
    left = round(bar_width * below / (above + below)) if below else 0
    rows = []
    for i, number in zip(best, numbers, strict=True):
        label = shorten(names[i], label_width, measure, encoding)
        gap = " " * (label_width - measure(label) + 2 + digits - len(number))
        if any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in label):
            # Otherwise a terminal that supports right-to-left text moves the number as well.
            gap = (_LEFT_TO_RIGHT_MARK if encodable(_LEFT_TO_RIGHT_MARK, encoding) else "") + gap
        if signed and scores[i] < 0:
            bar = _bar(-scores[i] / below, left, encoding, to_left=True).rjust(left)
        else:
            share = scores[i] / above if above > 0 else 0.0
            bar = " " * left + _bar(share, bar_width - left, encoding)
        rows.append((label + gap, number, bar))

    remarks = []
    if len(usual) > len(best):
        rest = len(usual) - len(best)
        score = abs(scores[usual[most]]) if signed else scores[usual[most]]
        number = format_score(score, magnitude, signed=signed).lstrip("+")
        what = counted(rest, f"more {unit.removesuffix('s')}")
        size = " in size" if signed else ""
        each = "" if rest == 1 else " each"
        remarks.append(f"{what}, {number} or less{size}{each}")
    if special and usual is not special:
        listed = ", ".join(
            f"{names[i]} {format_score(scores[i], magnitude, signed=signed)}" for i in special[:4]
        )
        more = f" and {len(special) - 4} more" if len(special) > 4 else ""
        remarks.append(f"special tokens: {listed}{more}")
    if most == BARS_OF_LONG:
        remarks.append("the text itself is not shown here; a page (.html) shows all of it")
    return rows, remarks


def _width(explanation: Explanation, width: int) -> int:
    return min(width, WIDEST_OF_LONG if is_long(explanation) else WIDEST)


def _label(name: str, encoding: str) -> str:
    if not encodable(SPACE, encoding):
        name = name.replace(SPACE, "_")
    return visible(name, encoding, line_breaks=False)


def _bar(share: float, width: int, encoding: str, *, to_left: bool = False) -> str:
    if width < 1 or share <= 0:
        return ""
    # There are no eighths that begin at the right.
    if to_left and encodable(_HALF + _EIGHTHS, encoding):
        halves = max(1, round(share * width * 2))
        return _HALF * (halves % 2) + _EIGHTHS[-1] * (halves // 2)
    if not encodable(_EIGHTHS, encoding):
        return ("-" if to_left else "#") * max(1, round(share * width))
    eighths = max(1, round(share * width * 8))
    return _EIGHTHS[-1] * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")
