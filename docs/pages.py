"""Generates pages of the site; mkdocs calls this hook.

notebook.md is docs/notebook.ipynb with its outputs, keys.html is the page of the
explanation in docs/keys.json, reference/commands.md is the help of the commands, and
reference/options.md is the table of options.
"""

import contextlib
import io
import json
import os
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from attnflow import Explanation
from attnflow.cli import COMMANDS, main
from attnflow.options import OPTIONS

HERE = Path(__file__).parent
# Commands that have subcommands.
NESTED = {"paper"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages to those that mkdocs found."""
    made = {
        "keys.html": Explanation.load(HERE / "keys.json").to_html(),
        "notebook.md": notebook(json.loads((HERE / "notebook.ipynb").read_text(encoding="utf-8"))),
        "reference/commands.md": commands(),
        "reference/options.md": "# Options of an explanation\n\n" + markdown_table(),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def markdown_table() -> str:
    """Return the options of an explanation as a Markdown table."""
    rows = [
        f"| `{option.name}` | `{option.default!r}` | {option.help.replace('|', chr(92) + '|')} |"
        for option in OPTIONS
    ]
    return "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def notebook(content: dict[str, Any]) -> str:
    """Return a notebook as Markdown."""
    parts = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def shown(output: dict[str, Any]) -> str:
    """Return a cell's output in the richest form that works without a kernel."""
    if output["output_type"] == "stream":
        return _plain("".join(output["text"]))
    data = output["data"]
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="What the cell draws" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        # On one line, so that Markdown leaves it alone.
        return "".join(data["text/html"]).replace("\n", "&#10;")
    return _plain("".join(data["text/plain"]))


def _plain(text: str) -> str:
    return f'<pre class="shown">{escape(text.rstrip()).replace(chr(10), "&#10;")}</pre>'


def commands() -> str:
    """Return the help of every command and subcommand."""
    parts = ["# Command line\n\n`attnflow COMMAND --help` prints the same text."]
    for name in COMMANDS:
        text = _help([name])
        parts.append(f"## attnflow {name}\n\n```text\n{text}\n```")
        if name in NESTED:
            for inner in _choices(text):
                parts.append(f"### attnflow {name} {inner}\n\n```text\n{_help([name, inner])}\n```")
    return "\n\n".join(parts)


def _help(words: list[str]) -> str:
    said = io.StringIO()
    columns = os.environ.get("COLUMNS")
    # argparse wraps lines at the width of the terminal.
    os.environ["COLUMNS"] = "82"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return said.getvalue().rstrip()


def _choices(text: str) -> list[str]:
    """Return the subcommands that a help text lists, one per line, indented by four."""
    lines = text.partition("positional arguments:")[2].partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("    ") and line[4:5] not in " "]
