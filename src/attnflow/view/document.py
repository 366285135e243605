"""HTML documents of one file, which need neither a network nor a server.

Tokens and other data are text in a document and nothing else. The data is JSON, which no browser
runs; scripts put it into the page only as text; and the content security policy of the document
allows no script but its own.
"""

import base64
import hashlib
import json
import posixpath
import re
import unicodedata
from functools import cache
from html import escape
from string import Template
from typing import Any

_IMPORT = re.compile(r'^import\s[^;]*?from "([^"]+)";\n', re.MULTILINE)


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


@cache
def inlined(module: str) -> str:
    """Return a JavaScript module and all that it imports, as one.

    Args:
        module: The path of the module, as in `asset`.

    Returns:
        A module without imports, and without exports by name. Each module in it comes after those
        that it imports from.
    """
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in texts:
            for imported in _IMPORT.findall(asset(name)):
                add(posixpath.normpath(posixpath.join(posixpath.dirname(name), imported)))
            texts[name] = _IMPORT.sub("", asset(name))

    add(module)
    exported = r"^export (?=async |function |class |const )"
    return re.sub(exported, "", "\n".join(texts.values()), flags=re.MULTILINE)


def start(function: str, selector: str) -> str:
    """Return the last lines of a document's script, which show its data.

    Args:
        function: The function that shows data in an element.
        selector: Selects the element.

    Returns:
        JavaScript that calls the function with the data of `data_element`.
    """
    return f"""
{function}(
  document.querySelector("{selector}"),
  JSON.parse(document.getElementById("attnflow-data").textContent),
).catch((error) => {{
  document.querySelector("{selector}").append(`This page cannot be shown: ${{error.message}}`);
}});
"""


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
