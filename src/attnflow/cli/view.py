"""``attnflow view``: a saved explanation as a page in the browser."""

import argparse
import os
import sys
import tempfile
import webbrowser
from pathlib import Path

from attnflow.errors import OptionError
from attnflow.explanation import Explanation, check_path

__all__ = ["add_parser", "run"]

EPILOG = """\
examples:
  attnflow view keys.json
  attnflow view keys.json --output keys.html --no-open
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "view",
        help="show a saved explanation in the browser",
        description=(
            "Make the page of a saved explanation, and open it in the browser if there is one. "
            "The page is one file, which needs neither a network nor a server."
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="what Explanation.save wrote to a .json file")
    parser.add_argument(
        "--output", type=Path, help="the page, an .html file (default: a temporary file)"
    )
    parser.add_argument("--no-open", action="store_true", help="make the page and do not open it")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status, 0.

    Raises:
        OptionError: If the file is not a saved explanation, or the page cannot be written there.
    """
    if args.output is not None:
        if args.output.suffix.lower() != ".html":
            raise OptionError(f"--output must end in .html, got {str(args.output)!r}")
        check_path(args.output)
    try:
        explanation = Explanation.load(args.file)
    except OSError as error:
        raise OptionError(f"{args.file} cannot be read: {error.strerror or error}") from error
    page = args.output or _temporary(args.file)
    try:
        explanation.save(page)
    except OSError as error:
        raise OptionError(f"{page} cannot be written: {error.strerror or error}") from error
    print(page)
    if not args.no_open and not _open(page):
        print("attnflow: no browser was found; open the page yourself", file=sys.stderr)
    return 0


def _temporary(source: Path) -> Path:
    # The browser reads it after this command has ended, so that it stays.
    return Path(tempfile.mkdtemp(prefix="attnflow-")) / f"{source.stem}.html"


def _open(page: Path) -> bool:
    # Without a screen, what would be found is a browser for the terminal, which runs no script.
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    return webbrowser.open(page.resolve().as_uri())
