"""What all figures share: colours, type, and text that is never taken for mathematics.

Nothing here changes matplotlib's settings or uses pyplot. Each figure is styled piece by piece, so
the caller's own figures stay as they are.
"""

import functools
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MissingExtraError, OptionError
from attnflow.segment import clusters
from attnflow.view.pieces import SPACE
from attnflow.view.text import shorten, visible, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ENDINGS: Final = (".png", ".svg", ".pdf")

INK: Final = "#1a1a1a"
QUIET: Final = "#666666"
FAINT: Final = "#c9c9c9"

# In points, for a figure that is printed at its own size.
TITLE_SIZE: Final = 9.5
TEXT_SIZE: Final = 8.5
TICK_SIZE: Final = 8.0
SMALL_SIZE: Final = 7.0

# The font that comes with matplotlib, and so is on every machine.
FONT: Final = "DejaVu Sans"


class Style(NamedTuple):
    """How one method is drawn. Styles differ in shape and lightness as well as in hue.

    Attributes:
        colour: Its colour.
        marker: The marker of its points.
        dashes: The dashes of its line.
    """

    colour: str
    marker: str
    dashes: Any


STYLES: Final = {
    "raw": Style("#e69f00", "o", (0, (4.0, 1.6))),
    "rollout": Style("#0072b2", "s", "solid"),
    "flow": Style("#3b0f45", "^", "solid"),
    "contribution": Style("#00542b", "p", "solid"),
}
# Scores that speak for an answer, and those that speak against it.
FOR: Final = "#2166ac"
AGAINST: Final = "#d9730d"
# For everything that is not a method, in the order given.
OTHERS: Final = (
    Style("#009e73", "D", (0, (1.2, 1.2))),
    Style("#8c8c8c", "v", (0, (1.2, 1.2))),
    Style("#cc79a7", "P", (0, (6.0, 1.2, 1.2, 1.2))),
    Style("#5e4b00", "X", (0, (1.2, 1.2))),
    Style("#56b4e9", "*", (0, (3.0, 1.2, 1.2, 1.2))),
    Style("#b03a00", "h", (0, (6.0, 2.0))),
)


def style_of(name: str, index: int = 0) -> Style:
    """Return the style of a curve or a bar.

    Args:
        name: The name of a method, such as "flow", or any other name.
        index: Its number among those that are not methods, from 0.

    Returns:
        The style. A method has the same style in every figure.

    Example:
        >>> style_of("flow").marker, style_of("random", 1).marker
        ('^', 'v')
    """
    return STYLES[name] if name in STYLES else OTHERS[index % len(OTHERS)]


@functools.lru_cache(maxsize=1)
def scale() -> Any:
    """Return the colours of scores: white for 0, through blues, to nearly black.

    The colours lie on a curve in CIELAB along which all steps are equally large and lightness
    always falls. So equal differences look equal, and the order is legible in grey and with every
    kind of colour vision.

    Returns:
        A colour map of matplotlib with 256 colours. NaN is light grey.
    """
    from matplotlib.colors import ListedColormap

    along = np.linspace(0.0, 1.0, 4001)
    lightness = 98.5 - 83.0 * along
    chroma = 46.0 * np.sin(0.75 * np.pi * along**0.8)  # all within the gamut of sRGB
    hue = np.radians(235.0 + 60.0 * along)
    curve = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)
    walked = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=-1))])
    even = np.linspace(0.0, walked[-1], 256)
    steps = np.stack([np.interp(even, walked, curve[:, axis]) for axis in range(3)], axis=-1)
    return ListedColormap(_from_lab(steps), name="attnflow").with_extremes(bad="#e6e6e6")


@functools.lru_cache(maxsize=1)
def signed_scale() -> Any:
    """Return the colours of scores with a sign: orange below 0, white for 0, blue above.

    Lightness falls evenly to both sides, so that scores of the same size are equally dark. Orange
    and blue differ for every kind of colour vision. In grey they do not, so figures mark what is
    below 0 in another way, too.

    Returns:
        A colour map of matplotlib with 255 colours. NaN is light grey.
    """
    from matplotlib.colors import ListedColormap

    along = np.linspace(0.0, 1.0, 128)
    lightness = 98.5 - 54.0 * along

    def arm(strongest: float, first: float, last: float) -> NDArray[np.float64]:
        chroma = strongest * np.sin(0.5 * np.pi * along**0.8)
        hue = np.radians(first + (last - first) * along)
        steps = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)
        return _from_lab(steps)

    below, above = arm(64.0, 75.0, 57.0), arm(46.0, 245.0, 275.0)
    colours = np.concatenate([below[:0:-1], above])
    return ListedColormap(colours, name="attnflow_signed").with_extremes(bad="#e6e6e6")


def _from_lab(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return colours of CIELAB, under D65, as sRGB (IEC 61966-2-1)."""
    y = (lab[..., 0] + 16.0) / 116.0
    roots = np.stack([y + lab[..., 1] / 500.0, y, y - lab[..., 2] / 200.0], axis=-1)
    low = 3.0 * (6.0 / 29.0) ** 2 * (roots - 4.0 / 29.0)
    xyz = np.where(roots > 6.0 / 29.0, roots**3, low) * np.array([0.95047, 1.0, 1.08883])
    to_rgb = np.array(
        [
            [3.2404542, -1.5371385, -0.4985314],
            [-0.9692660, 1.8760108, 0.0415560],
            [0.0556434, -0.2040259, 1.0572252],
        ]
    )
    linear = np.clip(xyz @ to_rgb.T, 0.0, 1.0)
    rgb: NDArray[np.float64] = np.where(
        linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055
    )
    return rgb


def readable(share: float, *, signed: bool = False) -> str:
    """Return a colour for text on a colour of the scale.

    Args:
        share: The place of the background colour on the scale, from 0 to 1, or from -1 to 1.
        signed: Whether it is the scale of scores with a sign, which does not become as dark.

    Returns:
        A dark colour for the light part of the scale and white for the dark one, whichever has more
        contrast: at least 4.1.

    Example:
        >>> readable(0.9)
        'white'
    """
    return INK if not abs(share) > (0.86 if signed else 0.62) else "white"


# ---- Text ----------------------------------------------------------------------------------------


def label(text: str, width: int = 24) -> str:
    r"""Return a text as a figure shows it: on one line, visible, short, and drawable.

    Args:
        text: Any text, such as a token.
        width: The largest number of characters. A longer text ends in an ellipsis.

    Returns:
        The text. Control characters, and characters that no font on this machine has, are written
        as escapes. Otherwise each would be drawn as the same box.

    Raises:
        MissingExtraError: If matplotlib is not installed.

    Example:
        >>> label("$x_1$"), label("to\nbe"), label("a" * 50, 8)
        ('$x_1$', 'to↵be', 'aaaaaaa…')
        >>> print(label("\x1b[31m"), label("\U0010fffd"))
        \x1b[31m \U0010fffd
    """
    require()
    if text and not text.strip(" "):
        text = SPACE * len(text)
    # Cut first: a token may have ten thousand characters.
    text = shorten(text, width)
    # Few fonts have Unicode's pictures of control characters, so these become escapes.
    text = "".join(
        f"\\x{ord(character):02x}" if character < " " and character not in "\t\n\r" else character
        for character in text
    )
    shown = visible(text, line_breaks=False)
    if not shown.isascii():
        shown = "".join(_drawable(shown[start:end]) for start, end in clusters(shown))
    return shorten(shown, width)


def _drawable(cluster: str) -> str:
    """Return a cluster, with escapes for the characters of it that no font has."""
    if all(_family_of(character) is not None for character in cluster):
        return cluster
    # Joiners and variation selectors mean nothing on their own.
    return "".join(
        character if _family_of(character) else character.encode("unicode_escape").decode()
        for character in cluster
        if character != "\u200d" and not "\ufe00" <= character <= "\ufe0f"
    )


def families(text: str) -> list[str]:
    """Return the fonts that a text needs, in the order in which matplotlib tries them.

    Args:
        text: What `label` returned.

    Returns:
        Names of font families, DejaVu Sans first.

    Example:
        >>> families("keys")
        ['DejaVu Sans']
    """
    found = [FONT]
    for character in text:
        family = None if character.isascii() else _family_of(character)
        if family is not None and family not in found:
            found.append(family)
    return found


@functools.lru_cache(maxsize=4096)
def _family_of(character: str) -> str | None:
    """Return the first font family that has a character; None if no font has it."""
    for family, path in _fonts():
        if ord(character) in _characters(path):
            return family
    return None


@functools.lru_cache(maxsize=1)
def _fonts() -> tuple[tuple[str, str], ...]:
    """Return the upright fonts of this machine, as family and file, the preferred ones first."""
    from matplotlib import font_manager

    entries = {
        (entry.name, entry.fname)
        for entry in font_manager.fontManager.ttflist
        # Fonts for mathematics and the font of last resort have boxes instead of letters.
        if entry.style == "normal"
        and str(entry.weight) in ("400", "normal", "regular", "book")
        and not entry.name.startswith(("cm", "STIX", "Last Resort", "LastResort"))
    }

    def rank(entry: tuple[str, str]) -> tuple[Any, ...]:
        family = entry[0]
        # Noto Sans has most scripts in the style of our font.
        return family != FONT, not family.startswith(("Noto Sans", "Source Han Sans")), entry

    return tuple(sorted(entries, key=rank))


@functools.lru_cache(maxsize=256)
def _characters(path: str) -> frozenset[int]:
    """Return the characters that a font can draw."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(path)
        # Bitmap fonts, such as most of coloured emoji, cannot be scaled.
        font.set_size(TEXT_SIZE, 72.0)
        return frozenset(font.get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def put_text(artist: Any, text: str, size: float = TICK_SIZE, **more: Any) -> Any:
    """Set the string of a text of matplotlib, drawn literally and in fonts that have it.

    Args:
        artist: A `matplotlib.text.Text`, such as a title or a tick's label.
        text: What `label` returned.
        size: The size in points.
        **more: Other properties of the text.

    Returns:
        The artist.
    """
    # Otherwise a token such as $x_1$ would be drawn as mathematics, and $x_{$ be an error.
    artist.set_parse_math(False)
    artist.set_text(text)
    artist.set(**{"family": families(text), "size": size, "color": INK, **more})
    return artist


def measured(text: str, size: float, *, bold: bool = False) -> float:
    """Return how wide a line of text is, in points.

    Args:
        text: What `label` returned.
        size: The size in points.
        bold: Whether it is bold.

    Returns:
        The width. That of the spaces at its ends counts.

    Example:
        >>> measured("keys", 10.0) < measured("keys", 10.0, bold=True) < measured("keys", 20.0)
        True
    """
    # A space at an end has no extent of its own.
    return _width(f"|{text}|", bold) * size - _width("||", bold) * size


@functools.lru_cache(maxsize=4096)
def _width(text: str, bold: bool) -> float:
    """Return the width of a text of one point."""
    figure = _ruler()
    artist = put_text(figure.text(0, 0, " "), text, 100.0, weight="bold" if bold else "normal")
    box = artist.get_window_extent(figure.canvas.get_renderer())
    artist.remove()
    return float(box.width) / 100.0


@functools.lru_cache(maxsize=1)
def _ruler() -> Any:
    """Return a figure whose pixels are points."""
    return new_figure(1, 1, dpi=72, layout=None)


# ---- Figures -------------------------------------------------------------------------------------


def require() -> None:
    """Check that matplotlib is installed.

    Raises:
        MissingExtraError: If it is not.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            'a figure needs matplotlib; run: pip install "attnflow[view]"'
        ) from error


def new_figure(width: float, height: float, **more: Any) -> "Figure":
    """Return an empty figure that is not registered with pyplot.

    Args:
        width: Its width in inches.
        height: Its height in inches.
        **more: Other options of `matplotlib.figure.Figure`.

    Returns:
        The figure, with a white background.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    options = {"layout": "constrained", "facecolor": "white", "dpi": 100, **more}
    figure = Figure(figsize=(float(width), float(height)), **options)
    FigureCanvasAgg(figure)
    return figure


def axes_of(ax: Any, width: float, height: float) -> "tuple[Figure, Axes]":
    """Return the axes to draw into, and their figure.

    Args:
        ax: The axes given. None makes a figure.
        width: The new figure's width in inches.
        height: Its height.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If `ax` is something else.
        MissingExtraError: If matplotlib is not installed.
    """
    require()
    if ax is None:
        figure = new_figure(width, height)
        return figure, figure.add_subplot()
    if not hasattr(ax, "figure") or not hasattr(ax, "imshow"):
        raise OptionError(f"ax is {type(ax).__name__}; expected axes of matplotlib, or None")
    return ax.figure, ax


def dress(ax: Any, *, frame: Iterable[str] = ()) -> None:
    """Style axes as in all figures.

    Args:
        ax: The axes.
        frame: The sides of the frame to draw: "left", "bottom", "top" or "right".
    """
    sides = set(frame)
    for side, spine in ax.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(QUIET if len(sides) < 4 else FAINT)
        spine.set_linewidth(0.6)
    ax.tick_params(
        colors=QUIET, labelcolor=INK, labelsize=TICK_SIZE, width=0.6, length=2.5, pad=2.5
    )
    ax.set_facecolor("white")
    for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        text.set_family([FONT])


def annotate(
    ax: Any, text: str, place: Sequence[float], offset: Sequence[float] = (0, 0), **more: Any
) -> None:
    """Write a small text into axes.

    Args:
        ax: The axes.
        text: What `label` returned.
        place: The point that the text belongs to, in the units of the data.
        offset: How far from there the text begins, in points.
        **more: Other properties of the text.
    """
    put_text(ax.annotate(" ", place, offset, textcoords="offset points"), text, SMALL_SIZE, **more)


def set_title(
    ax: Any, text: str | None, size: float = TITLE_SIZE, *, across: bool = False, **more: Any
) -> None:
    """Write a title above axes, at the left, on two lines if it is too long for one.

    Args:
        ax: The axes.
        text: The title; None writes none.
        size: The size in points.
        across: Whether it begins at the figure's left edge, and may be as wide as the figure.
        **more: Other properties of the text.
    """
    if text is None:
        return
    width = 72.0 * ax.figure.get_figwidth() if across else points(ax)[0]
    room = max(20, int(width / (0.55 * size)))
    line = label(text, 2 * room)
    if len(line) > room:
        cut = line.rfind(" ", 1, room + 1)
        cut = cut if cut > 0 else room
        line = f"{line[:cut]}\n{shorten(line[cut:].removeprefix(' '), room)}"
    title = ax.figure.suptitle(" ", x=0.01, ha="left") if across else ax.set_title(" ", loc="left")
    put_text(title, line, size, linespacing=1.15, **more)


def set_footer(ax: Any, text: str, *, across: bool = False) -> None:
    """Write a text below axes, at the left, under the label of the x axis.

    Args:
        ax: The axes.
        text: The text; empty writes none. It is broken into lines of the axes' width.
        across: Whether it begins at the figure's left edge, and may be as wide as the figure.
    """
    if not text:
        return
    width = 72.0 * ax.figure.get_figwidth() if across else points(ax)[0]
    room = max(30, int(width / (0.58 * SMALL_SIZE)))
    lines = [line for part in text.split("\n") for line in wrap(label(part, 400), room)]
    above = "" if across else ax.xaxis.label.get_text()
    footer = ax.figure.supxlabel(" ", x=0.01, ha="left") if across else None
    put_text(
        footer or ax.set_xlabel(" ", loc="left"),
        "\n".join([above, *lines] if above else lines),
        SMALL_SIZE,
        linespacing=1.3,
    )


def points(ax: Any) -> tuple[float, float]:
    """Return the width and height of axes in points, as known before drawing.

    Args:
        ax: The axes.

    Returns:
        The width and the height.
    """
    box = ax.get_window_extent()
    return 72.0 * box.width / ax.figure.dpi, 72.0 * box.height / ax.figure.dpi


def set_ticks(
    axis: Any, places: Sequence[float], texts: Sequence[str], size: float = TICK_SIZE, **more: Any
) -> None:
    """Put labels along an axis.

    Args:
        axis: The x axis or the y axis.
        places: The positions of the labels.
        texts: What `label` returned for each.
        size: The size in points.
        **more: Other properties of the labels.
    """
    look = {"parse_math": False, "size": size, "color": INK, **more}
    axis.set_ticks(list(places), list(texts), family=families("".join(texts)), **look)


def settle(figure: Any) -> Any:
    """Lay out a figure once, so that its files look the same and are fast to write.

    Args:
        figure: The figure, complete.

    Returns:
        The figure.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def content(figure: Any, ending: str, dpi: int = 200) -> bytes:
    """Return a figure as a file's content.

    Args:
        figure: The figure.
        ending: ".png", ".svg" or ".pdf".
        dpi: The pixels per inch of a PNG.

    Returns:
        The content. It is the same for the same figure, without a date. The fonts of a PDF are
        embedded as TrueType, as publishers require.
    """
    import matplotlib

    file = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending)
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "attnflow"}):
        figure.savefig(file, format=ending[1:], dpi=dpi, metadata=undated, facecolor="white")
    return file.getvalue()
