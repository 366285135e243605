"""The page of an explanation: one HTML file that needs no network and no server.

The page is plain JavaScript, in modules that also run on their own: `trace.js` reads the saved
weights, `graph.js` and `flow.js` compute with them, `numbers.js` keeps what was computed,
`prose.js` puts it into words, and `colour.js`, `scene.js`, `heat.js` and `layered.js` draw it.
`page.js` shows it all in an element, with `controls.js`, `text.js`, `words.js`, `heatmap.js`,
`tracing.js` and `files.js` for its parts. Nothing builds them: `script` puts them one after the
other.

What stands in a token is text on the page and nothing else. The data is JSON, which no browser
runs, elements are given text only as text, and the page's own policy allows no script but its own.
"""

import base64
import hashlib
import json
import re
import unicodedata
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from attnflow.explanation import Explanation
from attnflow.view.captions import METHOD_NAMES, answers, headline, reading
from attnflow.view.pieces import labels, pieces
from attnflow.view.text import visible

__all__ = ["MODULES", "data", "inlined", "page", "script", "style"]

# In this order each module comes after those that it imports from.
MODULES: Final = (
    "trace.js",
    "graph.js",
    "flow.js",
    "colour.js",
    "prose.js",
    "scene.js",
    "numbers.js",
    "heat.js",
    "layered.js",
    "controls.js",
    "text.js",
    "words.js",
    "heatmap.js",
    "tracing.js",
    "files.js",
    "page.js",
)

# The weights of a page may take this many characters; all else is small beside them.
MOST_WEIGHTS: Final = 7_000_000

# The last of the script: it shows the data that is in the page.
START: Final = """
mount(
  document.querySelector("main"),
  JSON.parse(document.getElementById("attnflow-data").textContent),
).catch((error) => {
  document.querySelector("main").append(`This page cannot be shown: ${error.message}`);
});
"""


def page(explanation: Explanation) -> str:
    """Return the page of an explanation.

    Args:
        explanation: The explanation. With a trace, the page shows every method, layer and position,
            and the graph; without one, the scores that it has.

    Returns:
        An HTML document that asks the network for nothing.
    """
    code, rules = script() + START, style()
    title = f"{METHOD_NAMES[explanation.method]}: {visible(explanation.text, line_breaks=False)}"
    return Template(_read("page.html")).substitute(
        policy=(
            f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(rules)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        title=escape(title[:100]),
        style=rules,
        static=_static(explanation),
        data=_for_script(data(explanation)),
        script=code,
    )


def data(explanation: Explanation) -> dict[str, Any]:
    """Return what the page's script is given, as JSON can hold it.

    Args:
        explanation: The explanation.

    Returns:
        The explanation, its trace, the names of its tokens, and the text divided into them.
    """
    trace = explanation.trace
    shown = explanation
    if trace is not None:
        # The tokens of the model, of which some may be left out or added up in the explanation.
        count = len(trace.tokens)
        shown = Explanation.from_dict(
            {
                **explanation.to_dict(),
                "tokens": trace.tokens,
                "spans": trace.spans,
                "special": trace.special,
                "scores": [0.0] * count,
                "layer_scores": [[0.0] * count] * trace.depth,
            }
        )
    names = labels(shown) if shown.grid is None else list(shown.tokens)
    return {
        "explanation": explanation.to_dict(),
        "trace": None if trace is None else trace.to_dict(MOST_WEIGHTS),
        "labels": [visible(name, line_breaks=False) for name in names],
        "special": list(shown.special),
        "pieces": [[visible(piece.text), list(piece.tokens)] for piece in pieces(shown)],
        "picture": None
        if explanation.picture is None
        else base64.b64encode(explanation.picture).decode("ascii"),
        "direction": _direction(explanation.text),
        "saved": _saved(explanation),
    }


def _saved(explanation: Explanation) -> dict[str, Any] | None:
    """Return the scores that the page need not compute, if they are those of the trace's tokens."""
    made, trace = explanation.options, explanation.trace
    whole = not made.get("words") and made.get("special_tokens", True) and not made.get("drop_sink")
    related = trace is not None and (trace.mask is not None) == bool(made.get("receptive_field"))
    if trace is None or not whole or not related or explanation.method != "flow":
        return None
    return {
        "method": explanation.method,
        "position": explanation.position,
        "scores": explanation.layer_scores.tolist(),
    }


def _direction(text: str) -> str:
    """Return the direction in which a text is read, by its first letter that has one."""
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


@cache
def script() -> str:
    """Return the page's modules as one, without what they import from each other.

    Returns:
        A module that exports nothing. Its function `mount` shows data in an element.
    """
    return "\n".join(inlined(_read(name)) for name in MODULES)


def inlined(module: str) -> str:
    """Return a module without what it imports, and exports by name.

    Args:
        module: The text of a JavaScript module.

    Returns:
        What can be put after the modules that it imports from.
    """
    text = re.sub(r"^import\s[^;]*;\n", "", module, flags=re.MULTILINE)
    return re.sub(r"^export (?=async |function |class |const )", "", text, flags=re.MULTILINE)


@cache
def style() -> str:
    """Return the page's style sheet."""
    return _read("page.css")


@cache
def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _for_script(value: Any) -> str:
    """Return JSON that nothing in it can end early, whatever the tokens are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _static(explanation: Explanation) -> str:
    """Return what is seen where scripts do not run."""

    def line(text: str) -> str:
        return escape(visible(text, line_breaks=False))

    best = ", ".join(f"{name} ({score:.3g})" for name, score in explanation.top(10))
    blocks = [
        f"<h1>{METHOD_NAMES[explanation.method]}</h1>",
        f"<p>{line(headline(explanation))}</p>",
        f'<p dir="auto">{escape(visible(explanation.text))}</p>',
        *(f"<p>{name}: {line(value)}</p>" for name, value in answers(explanation)),
        f"<p>{line(reading(explanation))} The highest: {line(best)}.</p>",
        *(f"<p>{line(note)}</p>" for note in explanation.notes),
        "<p>This page shows more where scripts may run.</p>",
    ]
    return "\n".join(blocks)
