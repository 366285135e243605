"""Text as a reader sees it: visible, encodable, and fitted to a width.

Tokens can contain anything. Every view shows them as text and nothing else: control characters are
made visible and never sent on, and no cut divides what a reader sees as one character.
"""

import re
import unicodedata
from collections.abc import Callable
from html import escape

from attnflow.segment import clusters

_IN_ASCII = {"\u00b1": "+-", "\u00b7": "-", "\u2026": "..."}
# These change the direction of everything that follows on the line.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str, encoding: str = "utf-8", *, line_breaks: bool = True) -> str:
    r"""Return text in which invisible and unencodable characters are made visible.

    Args:
        text: Any text.
        encoding: The encoding that the text will be written in.
        line_breaks: Whether to keep line breaks. If not, a symbol is shown for each.

    Returns:
        The text with a symbol for each control character, and an escape for each character that
        changes the direction of others or that the encoding lacks.

    Example:
        >>> print(visible("\x1b[31mred"), visible("\x1b[31mred", "ascii"))
        ␛[31mred \x1b[31mred
    """
    lines = text.replace("\r\n", "\n").split("\n")
    shown = ["".join(_visible(character, encoding) for character in line) for line in lines]
    symbol = "\u21b5" if encodable("\u21b5", encoding) else "\\n"
    joined = ("\n" if line_breaks else symbol).join(shown)
    return joined.encode(encoding, "backslashreplace").decode(encoding)


def _visible(character: str, encoding: str) -> str:
    if character == "\t":
        return "    "
    unsafe = unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _DIRECTIONS
    if not unsafe:
        return character
    code = ord(character)
    # Unicode has a picture of each control character of ASCII.
    picture = chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else ""
    if picture and encodable(picture, encoding):
        return picture
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escaped(text: str, *, line_breaks: bool = False) -> str:
    """Return text for HTML, with invisible characters made visible.

    Args:
        text: Any text.
        line_breaks: Whether to keep line breaks.

    Returns:
        HTML that contains no element.

    Example:
        >>> escaped("<b>")
        '&lt;b&gt;'
    """
    return escape(visible(text, line_breaks=line_breaks))


def encodable(text: str, encoding: str) -> bool:
    """Return whether an encoding has all characters of a text.

    Args:
        text: The text.
        encoding: The encoding's name.

    Returns:
        Whether the text can be encoded.
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def transliterated(text: str, encoding: str) -> str:
    """Return one of our own texts in the characters of an encoding.

    Args:
        text: Text without control characters.
        encoding: The encoding's name.

    Returns:
        The text. Where the encoding lacks a character of it, signs that attnflow writes by itself
        are in ASCII, and other characters that are missing are escapes.

    Example:
        >>> transliterated("0.5 ±0.1 · a long na…", "ascii")
        '0.5 +-0.1 - a long na...'
    """
    if encodable(text, encoding):
        return text
    for sign, plain in _IN_ASCII.items():
        text = text.replace(sign, plain)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes.

    Args:
        text: Text without control characters.

    Returns:
        Two for a wide character such as Chinese or an emoji, none for a mark or a joiner alone,
        and one for all others.

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


def shorten(
    text: str, width: int, measure: Callable[[str], int] = len, encoding: str = "utf-8"
) -> str:
    """Return a text that is no wider than some width, cut between characters that a reader sees.

    Args:
        text: The text.
        width: The largest width, 1 or more.
        measure: Returns the width of a text. By default each character counts one.
        encoding: The encoding that the text will be written in.

    Returns:
        The text, or its beginning and an ellipsis.

    Example:
        >>> shorten("unforgettable", 8)
        'unforge…'
    """
    if measure(text) <= width:
        return text
    end = 0
    # Wide enough for the clusters of `width` characters, and not a cluster of ten thousand.
    for _, stop in clusters(text[: 8 * width + 32]):
        if measure(text[:stop]) > width - 1:
            break
        end = stop
    return text[:end].rstrip() + ("\u2026" if encodable("\u2026", encoding) else "~")


def wrap(text: str, width: int) -> list[str]:
    """Break text into lines at spaces, or within words that are longer than a line.

    Args:
        text: Text without control characters except line breaks.
        width: The number of cells that a line may take.

    Returns:
        The lines.
    """
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
