"""HTML documents of one file, which need neither a network nor a server.

Tokens and other data are text in a document and nothing else. The data is JSON, which no browser
runs; scripts put it into the page only as text; and the content security policy of the document
allows no script but its own.
"""

import base64
import hashlib
import json
import unicodedata
from functools import cache
from html import escape
from string import Template
from typing import Any


@cache
def asset(name: str) -> str:
    """Return a file of this package: a script, a style sheet or a template.

    Args:
        name: The file's path in this package.

    Returns:
        Its content.
    """
    from importlib.resources import files  # slow to import

    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def data_element(value: Any) -> str:
    r"""Return a script element that holds data. Nothing in the data can end the element.

    Args:
        value: What JSON can hold.

    Returns:
        The element, with escapes for the characters that have a meaning in HTML.

    Example:
        >>> print(data_element("</script>"))
        <script type="application/json" id="attnflow-data">"\u003c/script\u003e"</script>
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="attnflow-data">{text}</script>'


def document(*, title: str, style: str, main: str, data: str, script: str) -> str:
    """Return an HTML document that allows only its own script and style sheet.

    Args:
        title: The title, as plain text.
        style: The style sheet.
        main: HTML that is shown where scripts do not run.
        data: HTML of script elements that hold data.
        script: The script.

    Returns:
        A document that makes no network request.
    """
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(asset("document.html")).substitute(
        policy=policy, title=escape(title), style=style, main=main, data=data, script=script
    )


def direction(text: str) -> str:
    """Return the direction in which a text is read, by its first letter that has one.

    Args:
        text: The text.

    Returns:
        "ltr" or "rtl".

    Example:
        >>> direction("keys"), direction("\u0645\u0631\u062d\u0628\u0627")
        ('ltr', 'rtl')
    """
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
