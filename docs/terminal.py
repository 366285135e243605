"""Draws docs/terminal.svg, the picture of the terminal view in the README.

Run it as: python docs/terminal.py
"""

import io
import re
from pathlib import Path

from rich.console import Console

import attnflow
from attnflow.models.verb_number import checkpoint
from attnflow.view import terminal

WIDTH = 84


def main() -> None:
    """Explain a sentence with the model that ships with attnflow and draw the terminal's output."""
    explainer = attnflow.Explainer.from_pretrained(checkpoint())
    explanation = explainer.explain("the keys to the cabinet", check=True)
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(terminal.render(explanation, width=WIDTH, encoding="utf-8", colour=True))
    svg = console.export_svg(title="attnflow explain")
    # The picture must not load anything from the network, so it uses the reader's fonts.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    Path(__file__).with_name("terminal.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
