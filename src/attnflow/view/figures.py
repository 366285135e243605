"""Figures of explanations, with matplotlib.

A figure is returned and never shown. Nothing here touches pyplot, so that no state is shared with
the caller's own figures.
"""

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import MissingExtraError
from attnflow.explanation import Explanation
from attnflow.view import METHOD_NAMES, headline, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["heat_map", "render"]

# Even in lightness, the same to every kind of colour vision, and in order when printed in grey.
COLOURS = "cividis"

# More labels than this cannot be told apart.
MOST_LABELS = 80


def heat_map(explanation: Explanation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw the scores of every layer over the tokens, or of one layer over an image's patches.

    Special tokens often score far above all others. The colours are scaled to the other tokens, and
    a special token above that has the scale's last colour.

    Args:
        explanation: The explanation.
        ax: The axes to draw into. None makes a figure of a fitting size.

    Returns:
        The figure and the axes.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            'a figure needs matplotlib; run: pip install "attnflow[view]"'
        ) from error
    grid = explanation.grid is not None
    values = explanation.map() if grid else explanation.layer_scores
    rows, columns = values.shape
    if ax is None:
        width = np.clip(0.32 * columns + 2.0, 4.5, 30.0)
        height = np.clip(0.32 * rows + (1.4 if grid else 2.2), 3.0, 20.0)
        figure = Figure(figsize=(float(width), float(height)), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
    figure = ax.figure
    ordinary = values if grid else values[:, ~np.array(explanation.special, dtype=bool)]
    top = float(np.nanmax(ordinary)) if ordinary.size else 0.0
    top = top if top > 0 else max(float(np.nanmax(values)), 1e-12)
    image = ax.imshow(values, cmap=COLOURS, vmin=0.0, vmax=top, aspect="equal" if grid else "auto")
    above = bool(np.nanmax(values) > top)
    figure.colorbar(image, ax=ax, label="score", extend="max" if above else "neither")
    ax.set_title(
        f"{METHOD_NAMES[explanation.method]}, {visible(headline(explanation), line_breaks=False)}",
        parse_math=False,
        loc="left",
        fontsize="medium",
    )
    if grid:
        ax.set_xticks([])
        ax.set_yticks([])
        return figure, ax
    step = -(-columns // MOST_LABELS)
    shown = range(0, columns, step)
    names = [visible(explanation.tokens[i], line_breaks=False)[:24] for i in shown]
    ax.set_xticks(list(shown), names, rotation=60, ha="right", rotation_mode="anchor")
    for label in ax.get_xticklabels():
        label.set_parse_math(False)
    step = -(-rows // MOST_LABELS)
    ax.set_yticks(list(range(0, rows, step)), [f"L{i + 1}" for i in range(0, rows, step)])
    # As in the paper, the first layer is at the bottom.
    ax.invert_yaxis()
    for i, label in zip(range(0, rows, step), ax.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if i + 1 == explanation.layer else "normal")
    return figure, ax


def render(explanation: Explanation, ending: str) -> bytes:
    """Return the figure of an explanation as a file's content.

    Args:
        explanation: The explanation.
        ending: ".png", ".svg" or ".pdf".

    Returns:
        The content.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure, _ = heat_map(explanation)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A glyph that no font on this machine has is drawn as a box.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(content, format=ending.removeprefix("."), dpi=150)
    return content.getvalue()
