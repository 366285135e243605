"""Show a saved explanation or generation, or a data set, in the browser.

The command writes the page of a saved explanation or generation, or a page that browses the output
of attnflow run, and opens it in the browser if there is one. The page is one file and needs neither
a network nor a server.

Examples:
  attnflow view keys.json
  attnflow view keys.json --output keys.html --no-open
  attnflow view out/
  attnflow view out/ --shuffle 0 --limit 2000 --output sample.html
  attnflow view out/ --row 812
"""

import argparse
import os
import sys
import tempfile
import webbrowser
from pathlib import Path

from attnflow.cli import options
from attnflow.errors import OptionError
from attnflow.explanation import Explanation
from attnflow.formats import check_path
from attnflow.generation import FORMAT, Generation
from attnflow.io.files import write_whole


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    from attnflow.view.browse import MOST_PAGES, MOST_ROWS

    parser = options.add_command(subparsers, "view", __doc__)
    parser.add_argument(
        "file",
        type=Path,
        help="a .json file that Explanation.save or Generation.save wrote, or the output folder of "
        "attnflow run",
    )
    parser.add_argument(
        "--output", type=Path, help="the .html file to write (default: a temporary file)"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open the page")
    folder = parser.add_argument_group("the output of attnflow run")
    for flag, unit, text in (
        ("--limit", "N", f"the largest number of rows to show (default: {MOST_ROWS:,})"),
        ("--shuffle", "SEED", "take a random sample, not the first rows"),
        (
            "--pages",
            "N",
            f"how many rows open with every method, layer and position, if attentions "
            f"were kept (default: {MOST_PAGES})",
        ),
        ("--row", "N", "the page of this one row, from its kept attention"),
    ):
        folder.add_argument(flag, type=int, metavar=unit, help=text)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status, 0.

    Raises:
        OptionError: If the file is not a saved explanation or generation, the folder is not the
            output of a run, or the page cannot be written.
        DataError: If a file of the folder is damaged.
    """
    if args.output is not None:
        check_path(args.output, [".html"], "--output")
    chosen = {
        name: getattr(args, name)
        for name in ("limit", "shuffle", "pages", "row")
        if getattr(args, name) is not None
    }
    if args.file.is_dir():
        content = _of_folder(args.file, chosen)
    elif chosen:
        raise OptionError(f"--{next(iter(chosen))} is for the output folder of attnflow run")
    else:
        try:
            content = _kind(args.file).load(args.file).to_html()
        except OSError as error:
            raise OptionError(f"{args.file} cannot be read: {error.strerror or error}") from error
    page = args.output or _temporary(args.file)
    try:
        write_whole(page, content)
    except OSError as error:
        raise OptionError(f"{page} cannot be written: {error.strerror or error}") from error
    print(page)
    if not args.no_open and not _open(page):
        print("attnflow: no browser was found; open the page in one", file=sys.stderr)
    return 0


def _kind(file: Path) -> type[Explanation] | type[Generation]:
    """Return what a file holds. The format is the first thing in it."""
    if file.suffix.lower() != ".json":
        return Explanation  # which says what it reads
    with file.open("rb") as opened:
        head = opened.read(100)
    return Generation if f'"{FORMAT}"'.encode() in head else Explanation


def _of_folder(folder: Path, chosen: dict[str, int]) -> str:
    from attnflow.view.browse import browse, explain_row

    if "row" not in chosen:
        return browse(folder, **chosen)
    number = chosen.pop("row")
    if chosen:
        raise OptionError(f"--row shows one row; leave --{next(iter(chosen))} out")
    return explain_row(folder, number).to_html()


def _temporary(source: Path) -> Path:
    # The browser reads the file after this command has ended, so it is not deleted.
    return Path(tempfile.mkdtemp(prefix="attnflow-")) / f"{source.resolve().stem}.html"


def _open(page: Path) -> bool:
    # Without a screen this would find a browser for the terminal, which runs no script.
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    return webbrowser.open(page.resolve().as_uri())
