"""An explanation in a notebook: the widget, or HTML without script."""

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from attnflow import formats
from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.view import terminal
from attnflow.view.captions import (
    METHOD_NAMES,
    addition,
    answers,
    format_score,
    headline,
    reading,
    verdict,
)
from attnflow.view.pieces import has_sign, pieces, shades
from attnflow.view.sentences import is_long, sentences
from attnflow.view.text import escaped

if TYPE_CHECKING:
    from attnflow.view.widget import Widget


def show(explanation: Explanation, file: TextIO | None = None) -> None:
    """Print an explanation; a notebook displays it instead if no stream is given.

    Args:
        explanation: The explanation.
        file: The text stream to print to. None means standard output.
    """
    if file is None and in_notebook():
        importlib.import_module("IPython.display").display(explanation)
    else:
        terminal.show(explanation, file)


def widget(explanation: Explanation) -> "Widget":
    """Return the widget of an explanation.

    Args:
        explanation: The explanation.

    Returns:
        The widget.

    Raises:
        MissingExtraError: If anywidget is not installed.
    """
    from attnflow.view.widget import Widget

    return Widget(explanation)


def mimebundle(result: Explanation | Generation) -> Any:
    """Return what IPython displays for an explanation or a generation.

    Args:
        result: The explanation or generation.

    Returns:
        In a notebook with anywidget, the widget and the HTML that a front end shows where scripts
        do not run. Elsewhere only the HTML.
    """
    if in_notebook() and find_spec("anywidget") is not None:
        bundle, metadata = formats.render(result, "widget")._repr_mimebundle_()
        return {**bundle, "text/plain": repr(result)}, metadata
    return {"text/plain": repr(result), "text/html": formats.render(result, "notebook")}


def in_notebook() -> bool:
    """Return whether the code runs in a notebook."""
    # Only a notebook has a kernel, and has imported IPython.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


def inline_html(explanation: Explanation) -> str:
    """Return the explanation as an HTML fragment.

    Args:
        explanation: The explanation.

    Returns:
        One ``div`` with inline styles and no script. Its colours are translucent, so it is legible
        on light and dark pages.
    """
    whole = explanation
    if is_long(explanation):
        # Thousands of tokens, each with its style, would slow the notebook down.
        explanation = sentences(explanation)[0]
    shown = pieces(explanation.pieces)
    signed = has_sign(explanation)
    largest = float((abs(explanation.scores) if signed else explanation.scores).max(initial=0.0))
    spans = []
    for piece, shade in zip(shown, shades(explanation, shown), strict=True):
        text = escaped(piece.text, line_breaks=True)
        if not piece.tokens:
            # The direction of the text does not depend on our own words.
            spans.append(f"<bdi><b>{text}</b></bdi>" if piece.label else text)
            continue
        total = float(explanation.scores[list(piece.tokens)].sum())
        score = format_score(total, largest, signed=signed)
        if shade is None:
            style = "opacity:0.6"
        else:
            colour = "56,139,220" if shade >= 0 else "222,128,38"
            style = f"background:rgba({colour},{0.62 * abs(shade):.3f});border-radius:3px"
            # For those who see no difference in hue.
            style += ";text-decoration:underline" if shade < 0 else ""
        spans.append(f'<span style="{style}" title="{score}">{text}</span>')
    comma = "" if signed else ","
    facts = [("Sum", addition(whole)), *answers(whole)]
    how = reading(whole) + (" Those are underlined." if signed else "")
    checked = verdict(whole)
    blocks = [
        f"<b>{METHOD_NAMES[explanation.method]}</b>{comma} {escaped(headline(whole))}",
        f'<div dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.8;'
        f'margin:0.5em 0">{"".join(spans)}</div>',
        *(f"<div>{name}: <b>{escaped(value)}</b></div>" for name, value in facts if value),
        f'<div style="opacity:0.75">{escaped(how)}</div>',
        f"<div><b>Check:</b> {escaped(checked)}</div>" if checked else "",
        *(f"<div><b>Note:</b> {escaped(note)}</div>" for note in explanation.notes),
    ]
    return f'<div style="max-width:60em">{"".join(blocks)}</div>'
