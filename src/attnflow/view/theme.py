"""What all figures share: colours, type, and text that always appears as text.

Nothing here changes matplotlib's settings or touches pyplot: a figure is dressed piece by piece, so
that the caller's own figures stay as they are.
"""

import functools
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MissingExtraError, OptionError
from attnflow.segment import clusters
from attnflow.view.text import shorten, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ENDINGS",
    "STYLES",
    "Style",
    "axes_of",
    "content",
    "dress",
    "families",
    "label",
    "new_figure",
    "points",
    "put_text",
    "readable",
    "require",
    "scale",
    "set_ticks",
    "set_title",
    "settle",
    "style_of",
]

ENDINGS: Final = (".png", ".svg", ".pdf")

INK: Final = "#1a1a1a"
QUIET: Final = "#666666"
FAINT: Final = "#c9c9c9"

# In points, for a figure that is printed at the size it is made.
TITLE_SIZE: Final = 9.5
TEXT_SIZE: Final = 8.5
TICK_SIZE: Final = 8.0
SMALL_SIZE: Final = 7.0

# The font that comes with matplotlib, and so is there on every machine.
FONT: Final = "DejaVu Sans"
# Where a machine has them, these have what DejaVu Sans lacks.
WIDER_FONTS: Final = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Source Han Sans",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Noto Emoji",
    "Segoe UI Symbol",
    "Apple Symbols",
    "Arial Unicode MS",
)


class Style(NamedTuple):
    """How one method is drawn, told apart by shape and lightness as well as by hue.

    Attributes:
        colour: Its colour.
        marker: The marker of its points.
        dashes: The dashes of its line.
        hatch: The hatching of its bars.
    """

    colour: str
    marker: str
    dashes: Any
    hatch: str


STYLES: Final = {
    "raw": Style("#e69f00", "o", (0, (4.0, 1.6)), "///"),
    "rollout": Style("#0072b2", "s", "solid", ""),
    "flow": Style("#3b0f45", "^", "solid", "..."),
}
# For what is none of the methods, in the order it is given.
OTHERS: Final = (
    Style("#009e73", "D", (0, (1.2, 1.2)), "xx"),
    Style("#8c8c8c", "v", (0, (1.2, 1.2)), "--"),
    Style("#cc79a7", "P", (0, (6.0, 1.2, 1.2, 1.2)), "\\\\\\"),
    Style("#5e4b00", "X", (0, (1.2, 1.2)), "||"),
    Style("#56b4e9", "*", (0, (3.0, 1.2, 1.2, 1.2)), "++"),
    Style("#b03a00", "h", (0, (6.0, 2.0)), "oo"),
)


def style_of(name: str, index: int = 0) -> Style:
    """Return how a curve or a bar is drawn.

    Args:
        name: The name of a method, such as "flow", or of anything else.
        index: Its number among those that are not methods, from 0.

    Returns:
        The style; the same method has the same one in every figure.

    Example:
        >>> style_of("flow").marker, style_of("random", 1).marker
        ('^', 'v')
    """
    return STYLES[name] if name in STYLES else OTHERS[index % len(OTHERS)]


@functools.lru_cache(maxsize=1)
def scale() -> Any:
    """Return the colours of scores: white for 0, through blues, to nearly black.

    The colours lie on a curve in CIELAB along which every step is as large as the next and
    lightness always falls. So equal differences look equal, the order survives grey print, and no
    kind of colour vision is left out.

    Returns:
        A colour map of matplotlib with 256 colours. What is not a number is light grey.
    """
    from matplotlib.colors import ListedColormap

    along = np.linspace(0.0, 1.0, 4001)
    lightness = 98.5 - 83.0 * along
    chroma = 46.0 * np.sin(0.75 * np.pi * along**0.8)  # all within what a screen can show
    hue = np.radians(235.0 + 60.0 * along)
    curve = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)
    walked = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=-1))])
    even = np.linspace(0.0, walked[-1], 256)
    steps = np.stack([np.interp(even, walked, curve[:, axis]) for axis in range(3)], axis=-1)
    return ListedColormap(_from_lab(steps), name="attnflow").with_extremes(bad="#e6e6e6")


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


def readable(share: float) -> str:
    """Return a colour of text that can be read on a colour of the scale.

    Args:
        share: Where the colour behind the text is on the scale, from 0 to 1.

    Returns:
        A dark colour for the light half, white for the dark one.

    Example:
        >>> readable(0.9)
        'white'
    """
    return INK if not share > 0.52 else "white"


# ---- Text ----------------------------------------------------------------------------------------


def label(text: str, width: int = 24) -> str:
    r"""Return a text as a figure shows it: on one line, visible, short, and in glyphs there are.

    Args:
        text: Any text, such as a token.
        width: The most characters to show. A longer text ends in an ellipsis.

    Returns:
        The text. A control character, and a character that no font on this machine has, is written
        as its escape, which says more than the box that would be drawn.

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
        # A label of blanks would say nothing.
        text = "\u2423" * len(text)
    # A token of ten thousand characters is cut before each of them is looked at.
    text = shorten(text[: 8 * width + 8], width) if len(text) > width else text
    # Few fonts have Unicode's pictures of control characters, so that these are escaped here.
    text = "".join(
        f"\\x{ord(character):02x}" if character < " " and character not in "\t\n\r" else character
        for character in text
    )
    shown = visible(text, line_breaks=False)
    if not shown.isascii():
        shown = "".join(_drawable(shown[start:end]) for start, end in clusters(shown))
    return shorten(shown, width)


def _drawable(cluster: str) -> str:
    """Return what a reader sees as one character, or the escapes of what no font has of it."""
    if all(_family_of(character) is not None for character in cluster):
        return cluster
    # Joiners and variation selectors say nothing on their own.
    return "".join(
        character if _family_of(character) else character.encode("unicode_escape").decode()
        for character in cluster
        if character != "\u200d" and not "\ufe00" <= character <= "\ufe0f"
    )


def families(text: str) -> list[str]:
    """Return the fonts that a text needs, in the order matplotlib is to try them.

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
    """Return the first font family of this machine that has a character, None if none has."""
    for family, path in _fonts():
        if ord(character) in _characters(path):
            return family
    return None


@functools.lru_cache(maxsize=1)
def _fonts() -> tuple[tuple[str, str], ...]:
    """Return the upright fonts of this machine, as family and file, the best known first."""
    from matplotlib import font_manager

    def rank(family: str) -> int:
        order = (FONT, *WIDER_FONTS)
        return order.index(family) if family in order else len(order)

    entries = [
        (entry.name, entry.fname)
        for entry in font_manager.fontManager.ttflist
        # Fonts of mathematics and the font of last resort have boxes where others have letters.
        if entry.style == "normal"
        and str(entry.weight) in ("400", "normal", "regular", "book")
        and not entry.name.startswith(("cm", "STIX", "Last Resort", "LastResort"))
    ]
    return tuple(sorted(set(entries), key=lambda entry: (rank(entry[0]), entry)))


@functools.lru_cache(maxsize=256)
def _characters(path: str) -> frozenset[int]:
    """Return the characters that a font can draw."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(path)
        # A font of bitmaps, as most of coloured emoji are, cannot be scaled.
        font.set_size(TEXT_SIZE, 72.0)
        return frozenset(font.get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def put_text(artist: Any, text: str, size: float = TICK_SIZE, **more: Any) -> Any:
    """Give a text of matplotlib its words, drawn as they are and in fonts that have them.

    Args:
        artist: A `matplotlib.text.Text`, such as a title or a tick's label.
        text: What `label` returned.
        size: The size in points.
        **more: Other properties of the text.

    Returns:
        The artist.
    """
    # Otherwise a token such as $x_1$ would be set as mathematics, and $x_{$ be an error.
    artist.set_parse_math(False)
    artist.set_text(text)
    artist.set(**{"family": families(text), "size": size, "color": INK, **more})
    return artist


# ---- Figures -------------------------------------------------------------------------------------


def require() -> None:
    """See that matplotlib is there.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            'a figure needs matplotlib; run: pip install "attnflow[view]"'
        ) from error


def new_figure(width: float, height: float, **more: Any) -> "Figure":
    """Return an empty figure that no window and no pyplot knows of.

    Args:
        width: Its width in inches.
        height: Its height in inches.
        **more: Other options of `matplotlib.figure.Figure`.

    Returns:
        The figure, on white.

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
    """Give axes the look that all figures share.

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


def set_title(ax: Any, text: str, size: float = TITLE_SIZE, **more: Any) -> None:
    """Write a title over axes, at the left, on two lines if one is too short.

    Args:
        ax: The axes.
        text: The title.
        size: The size in points.
        **more: Other properties of the text.
    """
    room = max(20, int(points(ax)[0] / (0.55 * size)))
    line = label(text, 2 * room)
    if len(line) > room:
        cut = line.rfind(" ", 1, room + 1)
        first, rest = (line[:cut], line[cut + 1 :]) if cut > 0 else (line[:room], line[room:])
        line = f"{first}\n{shorten(rest, room)}"
    put_text(ax.set_title(" ", loc="left"), line, size, linespacing=1.15, **more)


def points(ax: Any) -> tuple[float, float]:
    """Return the width and height of axes in points, as far as they are known before drawing.

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
        places: Where the labels stand.
        texts: What `label` returned for each.
        size: The size in points.
        **more: Other properties of the labels.
    """
    look = {"parse_math": False, "size": size, "color": INK, **more}
    axis.set_ticks(list(places), list(texts), family=families("".join(texts)), **look)


def settle(figure: Any) -> Any:
    """Lay a figure out once and for all, so that all its files look the same and are quick to make.

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
        dpi: For PNG, how many pixels an inch has.

    Returns:
        The content: the same for the same figure, with no date in it. PDF has its fonts embedded as
        TrueType, which publishers ask for.

    Raises:
        OptionError: If the ending is none of these.
    """
    import matplotlib

    if ending not in ENDINGS:
        raise OptionError(f"a figure's file must end in {' or '.join(ENDINGS)}, not in {ending!r}")
    file = io.BytesIO()
    undated: dict[str, dict[str, Any]] = {
        ".png": {},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "attnflow"}):
        figure.savefig(
            file,
            format=ending.removeprefix("."),
            dpi=dpi,
            metadata=undated[ending],
            facecolor="white",
        )
    return file.getvalue()
