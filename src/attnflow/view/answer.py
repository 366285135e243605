"""What an answer came from, as a figure: the answer, its text with every token shaded, and bars.

Like all figures, these are returned and never shown, and use no pyplot.
"""

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from attnflow.checks import invalid
from attnflow.errors import OptionError
from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.view import captions, figures, generation, theme
from attnflow.view.document import direction
from attnflow.view.pieces import Piece, has_sign, headed, labels, pieces, shades
from attnflow.view.sentences import is_long, sentences, units
from attnflow.view.text import wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# In inches: how wide a figure is, and the room at its edges.
WIDTH: Final = 6.8
EDGE: Final = 0.22
# Sizes in points.
ANSWER_SIZE: Final = 15.0
# The size of a text of up to so many characters.
TEXT_SIZES: Final = ((120, 12.5), (500, 10.5), (1200, 9.0))
SMALLEST: Final = 7.5
# Up to this many tokens all have a bar; of more, this many of the largest have.
EVERY_BAR: Final = 24
MOST_BARS: Final = 14
# The room for the names of sentences, in points.
LONG_NAMES: Final = 284.0
# The characters shown of a token, and the lines of an answer.
LONGEST: Final = 48
MOST_LINES: Final = 4
# What weighs less than this share of the largest has no line under it.
FAINTEST: Final = 0.08
# The line under what speaks against the answer; on its own, orange would be pale.
UNDER: Final = "#8a4500"


def plot(explanation: Explanation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw what an answer came from; of attention, the scores of every layer, or over an image.

    Args:
        explanation: The explanation.
        ax: The axes to draw into: bars, or the map of an image. None makes a figure that says the
            answer, too.

    Returns:
        The figure and the axes: those of the bars, or of the image.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    signed = has_sign(explanation) and bool(explanation.tokens)
    if ax is not None and signed and explanation.grid is None:
        return figures.token_bars(explanation, ax)
    if ax is None and explanation.picture is not None:
        sheet = _Sheet(72.0 * (WIDTH - 2 * EDGE))
        _write_text(sheet, explanation)
        return _with_image(sheet, explanation)
    if ax is None and signed:
        return answer(explanation)
    return figures.heat_map(explanation, ax)


def answer(explanation: Explanation) -> "tuple[Figure, Axes]":
    """Draw an answer, the text that it came from with every token shaded, and bars that add up.

    The headline is the answer and what it is compared with. In the text and in the bars, blue
    speaks for the answer and orange against it. So that the sign is legible without colour, the
    line under a token is dashed where it speaks against the answer, and bars are hatched. The
    check's verdict stands below the text, if there is one. Of an image the map of its patches is
    drawn over the picture in place of the bars, and of a long text the largest sentences as bars.

    Args:
        explanation: The explanation, of contributions.

    Returns:
        The figure, and the axes of the bars or of the image.

    Raises:
        OptionError: If the explanation does not have contributions.
        MissingExtraError: If matplotlib is not installed.
    """
    if not has_sign(explanation):
        raise OptionError(
            f"explanation is of the method {explanation.method!r}; expected contributions, for "
            "other methods see shaded_text and heat_map"
        )
    sheet = _Sheet(72.0 * (WIDTH - 2 * EDGE))
    _write_text(sheet, explanation)
    if explanation.grid is not None:
        return _with_image(sheet, explanation)
    long, count, most = is_long(explanation), len(explanation.tokens), None
    if long:
        every = sentences(explanation)[0]
        usual = len(every.tokens) - sum(every.special)
        count = min(figures.MOST_SENTENCES, usual)
        told = f"The {count} of {usual} {units(every)} that add most, in the order of the text."
    elif count > EVERY_BAR:
        told = f"The {MOST_BARS} of {count} {units(explanation)} that add most, in their order."
        count = most = MOST_BARS
    else:
        told = ""
    sheet.gap(6.0)
    sheet.write(told, theme.SMALL_SIZE, theme.QUIET)
    # The other tokens, biases and the sum follow.
    left = LONG_NAMES if long else _names_width(explanation)
    figure, ax = sheet.figure(below=15.0 * (count + 3) + 26.0, left=left)
    figures.token_bars(explanation, ax, most=most)
    theme.put_text(ax.xaxis.label, captions.scale_name(explanation), theme.SMALL_SIZE)
    # Under the line of 0, which is where the sign changes.
    low, high = ax.get_xlim()
    ax.xaxis.label.set_x(-low / (high - low))
    return figure, ax


def shaded_text(explanation: Explanation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw a text with its tokens shaded by their scores, under the answer and over the verdict.

    Contributions are blue where they speak for the answer, over a solid line, and orange over a
    dashed line where they speak against it. Scores of attention have one hue, the darker the
    higher. Special tokens are grey. The text is broken into lines; a line break that is a token is
    shown as a symbol.

    Args:
        explanation: The explanation of a text.
        ax: The axes to draw into. None makes a figure of a suitable height.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If the explanation has no text, or one of more than 400 tokens.
        MissingExtraError: If matplotlib is not installed.
    """
    if not explanation.text or is_long(explanation):
        what = "no text" if not explanation.text else f"{len(explanation.tokens)} tokens"
        raise OptionError(
            f"the explanation has {what}; expected one of a text that can be read at a glance; "
            "heat_map and token_bars draw the largest sentences of a long one"
        )
    theme.require()
    if ax is None:
        sheet = _Sheet(72.0 * (WIDTH - 2 * EDGE))
        _write_text(sheet, explanation)
        return sheet.figure()
    figure, ax = theme.axes_of(ax, 1.0, 1.0)
    width, height = theme.points(ax)
    # Smaller until it fits; what still does not fit is cut off at the edge.
    for share in (1.0, 0.85, 0.7, 0.6):
        sheet = _Sheet(width, share)
        _write_text(sheet, explanation)
        if sheet.height <= height:
            break
    sheet.draw(ax, height)
    return figure, ax


def generated(given: Generation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw what a model wrote, the prompt shaded, and where each token of the answer came from.

    A row of the matrix is a token of the answer, and a column one that was there before it: of the
    prompt, and right of the line of the answer itself. Of a long prompt the largest sentences are
    drawn as bars.

    Args:
        given: The generation.
        ax: The axes to draw the matrix into, or the bars. None makes a figure.

    Returns:
        The figure and the axes of the matrix; of the bars, if only the whole answer was explained.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    if not isinstance(given, Generation):
        raise invalid("given", given, "a Generation")
    whole = given.whole
    if ax is not None and whole is not None:
        if len(given):
            return figures.generation_map(given, ax)
        return figures.token_bars(generation.folded(given), ax, most=MOST_BARS)
    sheet = _Sheet(72.0 * (WIDTH - 2 * EDGE))
    if whole is None:
        sheet.write(generation.NOTHING, theme.TITLE_SIZE)
        return sheet.figure() if ax is None else sheet.into(ax)
    sheet.write("The model wrote", theme.TEXT_SIZE, theme.QUIET)
    sheet.headline(given.text.strip())
    sheet.write(generation.title(given), theme.SMALL_SIZE, theme.QUIET)
    prompt = generation.sources(given)
    if prompt.text and not is_long(prompt):
        sheet.gap(8.0)
        sheet.write("What of the prompt it came from", theme.TEXT_SIZE, theme.QUIET)
        sheet.shaded(prompt)
        sheet.legend(prompt)
    told = {"Sum": generation.addition(given), "By message": generation.by_message(given)}
    for name, value in told.items():
        if value:
            sheet.write(f"{name}: {value}", theme.SMALL_SIZE)
    sheet.gap(6.0)
    if len(given) == 0:
        folded = generation.folded(given)
        left = LONG_NAMES if is_long(folded) else _names_width(folded)
        _, ax = sheet.figure(below=15.0 * (MOST_BARS + 3) + 26.0, left=left)
        return figures.token_bars(folded, ax, most=MOST_BARS)
    sheet.write("Token by token: a row was written, the columns were read", theme.TEXT_SIZE)
    rows = min(len(given), figures.MOST_ROWS)
    _, ax = sheet.figure(below=13.0 * rows + 92.0, left=74.0, right=62.0, foot=62.0)
    return figures.generation_map(given, ax)


# ---- What is written -----------------------------------------------------------------------------


def _write_text(sheet: "_Sheet", explanation: Explanation) -> None:
    """Write the answer, the shaded text with its legend, the gist and the verdict."""
    signed = has_sign(explanation)
    if signed:
        sheet.write(captions.kicker(explanation), theme.TEXT_SIZE, theme.QUIET)
        sheet.headline(captions.answer(explanation))
        sheet.write(captions.certainty(explanation), theme.TEXT_SIZE, theme.QUIET)
    else:
        sheet.write(captions.title(explanation), theme.TITLE_SIZE)
        for name, value in captions.answers(explanation):
            sheet.write(f"{name}: {value}", theme.TEXT_SIZE, theme.QUIET)
    if explanation.text and not is_long(explanation):
        sheet.gap(9.0)
        sheet.shaded(explanation)
        sheet.legend(explanation)
    if signed:
        sheet.gap(3.0)
        sheet.write(captions.gist(explanation), theme.TEXT_SIZE)
    else:
        sheet.write(captions.reading(explanation), theme.SMALL_SIZE, theme.QUIET)
    if explanation.check is not None:
        sheet.write(f"Check: {explanation.check.summary}", theme.TEXT_SIZE)


def _names_width(explanation: Explanation) -> float:
    """Return the room that the names beside bars take, in points."""
    tokens = explanation.pieces
    names = [theme.label(name) for name in headed(tokens, labels(tokens))]
    names += ["special tokens", "together"]
    return 8.0 + max(theme.measured(name, theme.TICK_SIZE) for name in names)


def _with_image(sheet: "_Sheet", explanation: Explanation) -> "tuple[Figure, Axes]":
    """Draw the map of an image below a sheet, over the picture if that is known."""
    if has_sign(explanation):
        sheet.write(f"Sum: {captions.addition(explanation)}", theme.SMALL_SIZE, theme.QUIET)
    sheet.gap(4.0)
    rows, columns = explanation.grid or (1, 1)
    picture = None
    if explanation.picture is not None:
        from PIL import Image

        picture = np.asarray(Image.open(io.BytesIO(explanation.picture)).convert("RGB"))
        rows, columns = picture.shape[:2]
    height = min(300.0, sheet.width * 0.8 * rows / columns)
    # The scale takes a part of the width.
    right = sheet.width - 1.09 * height * columns / rows
    figure, ax = sheet.figure(below=height, right=right, foot=0.0)
    if picture is None:
        figures.heat_map(explanation, ax)
    else:
        # The picture is of the area that the patches cover, so the map is, too.
        seen = {**explanation.options, "area": (0.0, 0.0, 1.0, 1.0)}
        figures.image_overlay(replace(explanation, options=seen), picture, ax)
    ax.set_title("", loc="left")
    ax.set_xlabel("")
    ax.set_anchor("W")
    return figure, ax


class _Run(NamedTuple):
    """Text on one line: where it begins, how wide it is, and how it looks."""

    text: str
    x: float
    width: float
    shade: float | None
    size: float
    colour: str
    bold: bool


class _Sheet:
    """Lines of text from the top down, measured in points before there is a figure."""

    def __init__(self, width: float, share: float = 1.0) -> None:
        self.width = width
        self.height = 0.0
        self._share = share
        self._lines: list[tuple[float, list[_Run], bool]] = []

    def gap(self, points: float) -> None:
        """Leave room."""
        self.height += points * self._share

    def write(
        self,
        text: str,
        size: float,
        colour: str = theme.INK,
        *,
        bold: bool = False,
        most: int = 9,
        mark: str = "\u200e",
    ) -> None:
        """Write a paragraph, broken into lines.

        By default it is one of ours, read from left to right even if it begins with a quotation.
        """
        size *= self._share
        room = max(10, int(self.width / (0.55 * size)))
        lines = wrap(theme.label(text, most * room), room) if text else []
        for line in lines:
            shown = (mark if not line.isascii() else "") + line.strip()
            # Lines are broken by the number of characters, which may be wide ones.
            fitting = min(1.0, self.width / max(1.0, theme.measured(shown, size, bold=bold)))
            run = _Run(shown, 0.0, 0.0, None, size * fitting, colour, bold)
            self._line([run], 1.45 * size)

    def headline(self, text: str) -> None:
        """Write an answer, in smaller type if it is long."""
        size = ANSWER_SIZE if len(text) <= 48 else 0.75 * ANSWER_SIZE
        self.write(text, size, bold=True, most=MOST_LINES, mark="")

    def legend(self, explanation: Explanation) -> None:
        """Say what the shades of a text mean."""
        signed, x, runs = has_sign(explanation), 0.0, []
        size = theme.SMALL_SIZE * self._share
        shown: list[tuple[str, float | None]] = [("low", 0.15), ("high", 1.0)]
        if signed:
            shown = [("speaks for it", 0.75), ("speaks against it", -0.75)]
        if any(explanation.special):
            shown.append(("grey: special tokens, not shaded", None))
        for text, shade in shown:
            width = theme.measured(f"  {text}  ", size)
            colour = theme.readable(shade or 0.0, signed=signed) if shade else theme.QUIET
            runs.append(_Run(f"  {text}  ", x, width, shade, size, colour, bold=False))
            x += width + 6.0
        self.gap(4.0)
        self._line(runs, 2.0 * size, signed=signed)

    def shaded(self, explanation: Explanation) -> None:
        """Write a text with its tokens shaded, broken into lines at spaces."""
        size = next((size for most, size in TEXT_SIZES if len(explanation.text) <= most), SMALLEST)
        size *= self._share
        shown, signed = pieces(explanation.pieces), has_sign(explanation)
        flow, patches = _Flow(self.width, size, signed), set(explanation.patches)
        for piece, shade in zip(shown, shades(explanation, shown), strict=True):
            # Patches are drawn where they are in the image.
            if not patches & set(piece.tokens):
                flow.add(piece, shade)
        flow.end_line()
        to_left = direction(explanation.text) == "rtl"
        for line in flow.lines:
            placed = [
                run._replace(x=self.width - run.x - run.width) if to_left else run for run in line
            ]
            self._line(placed, 1.85 * size, signed=signed)

    def _line(self, runs: list[_Run], height: float, *, signed: bool = False) -> None:
        self._lines.append((self.height + 0.72 * height, runs, signed))
        self.height += height

    def figure(
        self,
        below: float = 0.0,
        *,
        left: float = 0.0,
        right: float = 0.0,
        foot: float = 26.0,
    ) -> "tuple[Figure, Axes]":
        """Return a figure with the lines, and the axes below them, or those of the lines.

        Args:
            below: The height of what comes below the lines, in points; 0 for nothing.
            left: The room left of the axes below, in points.
            right: The room right of them.
            foot: The room below them, which is part of `below`.
        """
        whole = self.height + below + 144.0 * EDGE
        figure = theme.new_figure(WIDTH, whole / 72.0, layout=None)
        edge, width = EDGE / WIDTH, self.width / (72.0 * WIDTH)
        top = 1.0 - 72.0 * EDGE / whole
        ax = figure.add_axes((edge, top - self.height / whole, width, self.height / whole))
        self.draw(ax, self.height)
        if not below:
            return figure, ax
        inner = (self.width - left - right) / (72.0 * WIDTH)
        start, base = edge + left / (72.0 * WIDTH), (72.0 * EDGE + foot) / whole
        return figure, figure.add_axes((start, base, inner, (below - foot) / whole))

    def into(self, ax: Any) -> "tuple[Figure, Axes]":
        """Draw the lines into axes that are given."""
        figure, ax = theme.axes_of(ax, 1.0, 1.0)
        self.draw(ax, theme.points(ax)[1])
        return figure, ax

    def draw(self, ax: Any, height: float) -> None:
        """Draw the lines into axes whose units become points."""
        from matplotlib.patches import Rectangle

        ax.set_axis_off()
        ax.set_xlim(0.0, self.width)
        ax.set_ylim(height, 0.0)
        for base, runs, signed in self._lines:
            colours = theme.signed_scale() if signed else theme.scale()
            for text, x, width, shade, size, colour, bold in runs:
                if shade is not None:
                    # The darkest colour would hide the letters of what counts most.
                    place = 0.5 + 0.5 * shade if signed else shade
                    box = (x, base - 1.02 * size), width, 1.36 * size
                    ax.add_patch(Rectangle(*box, facecolor=colours(place), linewidth=0))
                if shade is not None and signed and abs(shade) >= FAINTEST:
                    dashes: Any = "solid" if shade > 0 else (0, (2.2, 1.3))
                    line = {"color": theme.FOR if shade > 0 else UNDER, "linewidth": 1.4}
                    ends = [x + 0.4, x + width - 0.4]
                    ax.plot(ends, [base + 0.46 * size] * 2, linestyle=dashes, **line)
                look = {"color": colour, "weight": "bold" if bold else "normal"}
                theme.put_text(ax.text(x, base, " "), text, size, **look)


class _Flow:
    """A text that is broken into lines at spaces, and where there are none between tokens."""

    def __init__(self, width: float, size: float, signed: bool) -> None:
        self.lines: list[list[_Run]] = []
        self._width, self._size, self._signed = width, size, signed
        self._line: list[_Run] = []
        self._x = 0.0
        self._word: list[_Run] = []  # what is not divided between lines
        self._gap = 0.0  # the space before the word

    def add(self, piece: Piece, shade: float | None) -> None:
        """Add a piece of the text."""
        if not piece.tokens and not piece.text.strip():
            self._end_word()
            if "\n" in piece.text:
                self.end_line()
            self._gap = theme.measured(" ", self._size)
            return
        if piece.label and (self._line or self._word):
            self.end_line()
        # Text between tokens may have spaces at its ends; a token has none, unless it is one.
        body = piece.text if piece.tokens else piece.text.strip()
        if body != piece.text and piece.text[:1].isspace():
            self._end_word()
            self._gap = theme.measured(" ", self._size)
        name = theme.label(body, LONGEST)
        colour = theme.QUIET if shade is None else theme.readable(shade, signed=self._signed)
        colour = theme.INK if not piece.tokens else colour
        width = theme.measured(name, self._size, bold=piece.label)
        self._word.append(_Run(name, 0.0, width, shade, self._size, colour, piece.label))
        if piece.tokens and "\n" in piece.text:
            self.end_line()
        elif body != piece.text and piece.text[-1:].isspace():
            self._end_word()
            self._gap = theme.measured(" ", self._size)

    def _end_word(self) -> None:
        """Put the word on this line, or on the next; divide one that is longer than a line."""
        whole = sum(run.width for run in self._word)
        parts = [self._word] if whole <= self._width else [[run] for run in self._word]
        for part in parts if self._word else ():
            width = sum(run.width for run in part)
            if self._line and self._x + self._gap + width > self._width:
                self._break()
            self._x += self._gap if self._line else 0.0
            for run in part:
                self._line.append(run._replace(x=self._x))
                self._x += run.width
            self._gap = 0.0
        self._word = []

    def end_line(self) -> None:
        """End the line."""
        self._end_word()
        if self._line:
            self._break()

    def _break(self) -> None:
        self.lines.append(self._line)
        self._line, self._x, self._gap = [], 0.0, 0.0
