"""An explanation in the terminal: the shaded text, the highest tokens, and the prediction.

With rich on a terminal, tokens are shaded. Anywhere else the same is plain text.
"""

import codecs
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from attnflow.explanation import Explanation
from attnflow.segment import clusters
from attnflow.view import (
    METHOD_NAMES,
    answers,
    encodable,
    format_score,
    headline,
    labels,
    pieces,
    reading,
    shades,
    visible,
)

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["cells", "colours", "render", "render_plain", "show"]

BARS = 8
"""How many of the highest tokens get a bar."""

WIDEST = 100
"""Lines are no longer than this, however wide the terminal."""

WIDEST_BAR = 32
"""The longest bar, in cells."""

# A sequential scale of one hue, from dark to bright, safe for every kind of colour vision because
# it is a scale of lightness. A terminal does not say whether its background is dark or light, so
# that the text is shown on a background of its own: the scale's lowest colour.
_SCALE = ((17, 24, 39), (18, 53, 91), (23, 101, 163), (59, 155, 220), (166, 220, 255))
_ACCENT = "#3b9bdc"
_FAINT = "#94a3b8"

_LEFT_TO_RIGHT_MARK = "\u200e"
_EIGHTHS = "\u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"


def show(explanation: Explanation, file: TextIO | None = None) -> None:
    """Print an explanation.

    On a terminal, and with rich installed, tokens are shaded by their scores. NO_COLOR leaves the
    colours out, TERM=dumb all escape codes. Other streams get plain text in what their encoding
    has. Lines are as wide as the terminal, or as COLUMNS says.

    Args:
        explanation: The explanation.
        file: The text stream to print to. None means standard output.
    """
    stream = sys.stdout if file is None else file
    encoding = _encoding(stream)
    console = _console(stream)
    if console is None:
        stream.write(render_plain(explanation, width=_width(stream), encoding=encoding))
    else:
        content = render(
            explanation, width=console.width, encoding=encoding, colour=not console.no_color
        )
        console.print(content, width=min(console.width, WIDEST))


def _console(stream: TextIO) -> Any:
    """Return a rich console for the stream, None if it takes plain text or rich is missing."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(file=stream, force_jupyter=False, highlight=False, soft_wrap=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _encoding(stream: TextIO) -> str:
    name = getattr(stream, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "ascii"


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):
        return 80


def render(
    explanation: Explanation, *, width: int = 80, encoding: str = "utf-8", colour: bool = True
) -> "Group":
    """Return an explanation as rich shows it on a terminal.

    Args:
        explanation: The explanation.
        width: The terminal's width in cells.
        encoding: The terminal's encoding.
        colour: Whether the terminal shows colours. They are given anyway; what is said about
            them is not.

    Returns:
        Something that a `rich.console.Console` prints.
    """
    from rich.cells import cell_len
    from rich.console import Group
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text

    width = min(width, WIDEST)
    margin = 2 if width >= 20 else 0

    def shown(text: str, style: str = "") -> Text:
        return Text(visible(text, encoding, line_breaks=False), style, overflow="fold")

    def indented(*parts: Text) -> Padding:
        return Padding(Text.assemble(*parts, overflow="fold"), (0, 0, 0, margin))

    text = Text(overflow="fold")
    parts = pieces(explanation)
    for piece, shade in zip(parts, shades(explanation, parts), strict=True):
        content = visible(piece.text, encoding)
        if not piece.tokens:
            text.append(content)
        elif shade is None:
            text.append(content, Style(color=_FAINT, dim=not colour))
        else:
            # A token that is a line break shows as one, and breaks the line.
            content = content.replace("\n", visible("\n", encoding, line_breaks=False) + "\n")
            background, foreground = colours(shade)
            text.append(content, Style(color=foreground, bgcolor=background, bold=shade >= 0.5))
    canvas = Style(color="#ffffff", bgcolor=colours(0.0)[0])
    title = Text.assemble(
        (METHOD_NAMES[explanation.method], "bold"), "  ", shown(headline(explanation), "dim")
    )
    lines: list[Any] = [
        indented(title),
        Text(),
        Padding(text, (1 if margin else 0, margin), style=canvas),
        Text(),
    ]
    chart = _chart(explanation, width - 2 * margin, encoding, cell_len)
    for row in chart.rows:
        line = Text.assemble(row.label, row.gap, (row.number, "bold"), "  ", (row.bar, _ACCENT))
        line.no_wrap, line.overflow = True, "crop"
        lines.append(Padding(line, (0, 0, 0, margin)))
    lines += [indented(Text(remark, "dim")) for remark in chart.remarks]
    lines.append(Text())
    facts = answers(explanation)
    for name, value in facts:
        lines.append(indented(Text(f"{name}  ", "dim"), shown(value, "bold")))
    if facts:
        lines.append(Text())
    how = shown(reading(explanation), "dim")
    if colour:
        steps = [(" ", Style(bgcolor=colours(step / 9)[0])) for step in range(10)]
        how = Text.assemble(("low ", "dim"), *steps, (" high  ", "dim"), how)
    else:
        how.append(" Bold tokens have at least half of the highest score.", "dim")
    lines.append(indented(how))
    for note in explanation.notes:
        lines += [Text(), indented(Text("Note  ", "bold #d97706"), shown(note))]
    return Group(*lines)


def render_plain(explanation: Explanation, *, width: int = 80, encoding: str = "utf-8") -> str:
    """Return an explanation as plain text.

    Args:
        explanation: The explanation.
        width: How many cells a line may have.
        encoding: What the text is going to be encoded in. It has only characters of it.

    Returns:
        Lines of text.
    """
    width = min(width, WIDEST)
    margin = "  " if width >= 20 else ""
    room = max(1, width - len(margin))

    def paragraph(text: str, *, line_breaks: bool = False) -> list[str]:
        shown = visible(text, encoding, line_breaks=line_breaks)
        return [f"{margin}{line}".rstrip() for line in _wrap(shown, room)]

    chart = _chart(explanation, room, encoding, cells)
    blocks = [
        paragraph(f"{METHOD_NAMES[explanation.method]}, {headline(explanation)}"),
        paragraph("".join(piece.text for piece in pieces(explanation)), line_breaks=True),
        [f"{margin}{row.label}{row.gap}{row.number}  {row.bar}".rstrip() for row in chart.rows],
        [line for remark in chart.remarks for line in paragraph(remark)],
        [line for name, value in answers(explanation) for line in paragraph(f"{name}: {value}")],
        paragraph(reading(explanation)),
        *(paragraph(f"Note: {note}") for note in explanation.notes),
    ]
    if chart.rows:
        # What is said about the bars belongs to them.
        blocks[2:4] = [blocks[2] + blocks[3]]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def colours(shade: float) -> tuple[str, str]:
    """Return the colours for a token.

    Args:
        shade: Its score as a share of the highest, from 0 to 1.

    Returns:
        The background, and a foreground that can be read on it, as "#rrggbb".

    Example:
        >>> colours(0.0), colours(1.0)
        (('#111827', '#ffffff'), ('#a6dcff', '#000000'))
    """
    place = min(max(shade, 0.0), 1.0) * (len(_SCALE) - 1)
    below = min(int(place), len(_SCALE) - 2)
    red, green, blue = (
        round(low + (place - below) * (high - low))
        for low, high in zip(_SCALE[below], _SCALE[below + 1], strict=True)
    )
    # Of black and white, the one with more contrast has 4.5 to 1 or more. They are level at this
    # luminance, as WCAG 2 defines it.
    luminance = sum(
        share * (c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4)
        for share, c in zip((0.2126, 0.7152, 0.0722), (red, green, blue), strict=True)
    )
    foreground = "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"
    return f"#{red:02x}{green:02x}{blue:02x}", foreground


class _Row(NamedTuple):
    label: str
    gap: str
    number: str
    bar: str


class _Chart(NamedTuple):
    rows: list[_Row]
    remarks: list[str]


def _chart(
    explanation: Explanation, width: int, encoding: str, measure: Callable[[str], int]
) -> _Chart:
    """Lay out the bars of the highest tokens, and say what they leave out."""
    names = [_label(name, encoding) for name in labels(explanation)]
    order = (-explanation.scores).argsort(kind="stable").tolist()
    special = [i for i in order if explanation.special[i]]
    usual = [i for i in order if not explanation.special[i]] or special
    best = usual[:BARS]
    if not best:
        return _Chart([], ["There are no tokens."])
    largest = max(float(explanation.scores[best[0]]), 0.0)
    magnitude = max(abs(float(explanation.scores[i])) for i in best)
    numbers = [format_score(float(explanation.scores[i]), magnitude) for i in best]
    digits = max(len(number) for number in numbers)
    free = width - digits - 4
    label_width = max(1, min(max(measure(names[i]) for i in best), max(free // 2, 8), free))
    bar_width = min(WIDEST_BAR, free - label_width)
    rows = []
    for i, number in zip(best, numbers, strict=True):
        label = _fit(names[i], label_width, encoding, measure)
        gap = " " * (label_width - measure(label) + 2 + digits - len(number))
        if any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in label):
            # Otherwise a terminal that knows right-to-left text moves the number as well.
            gap = (_LEFT_TO_RIGHT_MARK if encodable(_LEFT_TO_RIGHT_MARK, encoding) else "") + gap
        share = float(explanation.scores[i]) / largest if largest > 0 else 0.0
        rows.append(_Row(label, gap, number, _bar(share, bar_width, encoding)))

    remarks = []
    if len(usual) > len(best):
        rest = len(usual) - len(best)
        score = format_score(float(explanation.scores[usual[BARS]]), magnitude)
        what = "1 more token" if rest == 1 else f"{rest} more tokens"
        remarks.append(f"{what}, {score} or less{'' if rest == 1 else ' each'}")
    if special and usual is not special:
        listed = ", ".join(
            f"{names[i]} {format_score(float(explanation.scores[i]), magnitude)}"
            for i in special[:4]
        )
        more = f" and {len(special) - 4} more" if len(special) > 4 else ""
        remarks.append(f"special tokens: {listed}{more}")
    return _Chart(rows, remarks)


def _label(name: str, encoding: str) -> str:
    if name.isspace() and "\n" not in name:
        # A bar with a blank beside it would say nothing.
        space = "\u2423" if encodable("\u2423", encoding) else "_"
        name = space * len(name)
    return visible(name, encoding, line_breaks=False)


def _line_break(encoding: str) -> str:
    return visible("\n", encoding, line_breaks=False) + "\n"


def _bar(share: float, width: int, encoding: str) -> str:
    if width < 1 or share <= 0:
        return ""
    if not encodable(_EIGHTHS, encoding):
        return "#" * max(1, round(share * width))
    eighths = max(1, round(share * width * 8))
    return _EIGHTHS[-1] * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes.

    Args:
        text: Text without control characters.

    Returns:
        Two for a wide character such as Chinese or an emoji, none for a mark or a joiner alone,
        and one for all else.

    Example:
        >>> cells("keys"), cells("鑰匙"), cells("e\u0301")
        (4, 4, 1)
    """
    if text.isascii():
        return len(text)
    total = 0
    for start, end in clusters(text):
        first = text[start]
        if unicodedata.east_asian_width(first) in "WF" or "\ufe0f" in text[start:end]:
            total += 2
        elif "\U0001f1e6" <= first <= "\U0001f1ff":
            total += min(2, end - start)
        elif unicodedata.category(first) not in ("Mn", "Me", "Cf"):
            total += 1
    return total


def _fit(text: str, width: int, encoding: str, measure: Callable[[str], int]) -> str:
    """Shorten a text to some cells, never within what a reader sees as one character."""
    if measure(text) <= width:
        return text
    mark = "\u2026" if encodable("\u2026", encoding) else "~"
    fitting = ""
    for start, end in clusters(text):
        if measure(fitting + text[start:end]) > width - 1:
            break
        fitting += text[start:end]
    return fitting + mark


def _wrap(text: str, width: int) -> list[str]:
    """Break text into lines at spaces, or within words that are longer than a line."""
    lines = []
    for paragraph in text.split("\n"):
        line, used = "", 0
        for chunk in re.findall(r"\s+|\S+", paragraph):
            size = cells(chunk)
            if used + size <= width:
                line, used = line + chunk, used + size
                continue
            if line:
                lines.append(line)
            line, used = "", 0
            if chunk.isspace():
                continue
            for start, end in clusters(chunk):
                part = chunk[start:end]
                size = cells(part)
                if line and used + size > width:
                    lines.append(line)
                    line, used = "", 0
                line, used = line + part, used + size
        lines.append(line)
    return lines
