"""Tables: plain text, Markdown, or as rich draws them on a terminal."""

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from attnflow.view.stream import ACCENT, console_for, encoding_of, width_of
from attnflow.view.text import transliterated

if TYPE_CHECKING:
    from rich.table import Table as RichTable


STRONG = f"bold {ACCENT}"
"""The style of a cell that stands out."""


class Cell(NamedTuple):
    """A cell of a table that is more than a string.

    Attributes:
        lines: Its lines of text. On a terminal all but the first are dim.
        style: The style of the first line on a terminal, as rich names styles. A style that begins
            with "bold" is bold in Markdown, too.
    """

    lines: tuple[str, ...]
    style: str = ""


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        title: What the table shows.
        columns: The names of the columns.
        rows: The cells, as many in each row as there are columns.
        notes: Lines to print below the table.
        left: How many columns, from the first, are aligned to the left. The others are aligned to
            the right.

    Example:
        >>> table = Table("Sizes", ["tokens", "time"], [["16", "3 us"], ["128", "20 us"]])
        >>> print(table.plain())
        Sizes
        tokens   time
        -------------
        16       3 us
        128     20 us
        >>> print(table.markdown())
        | tokens | time |
        | --- | ---: |
        | 16 | 3 us |
        | 128 | 20 us |
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    notes: Sequence[str] = ()
    left: int = 1

    def plain(self) -> str:
        """Return the table as plain text.

        Returns:
            The title, the columns, and the notes.
        """
        rows = [[_lines(cell) for cell in row] for row in self.rows]
        widths = self._widths()

        def line(parts: Sequence[str]) -> str:
            padded = (
                part.ljust(width) if i < self.left else part.rjust(width)
                for i, (part, width) in enumerate(zip(parts, widths, strict=True))
            )
            return "  ".join(padded).rstrip()

        text = [self.title, line(self.columns), "-" * (sum(widths) + 2 * (len(widths) - 1))]
        for row in rows:
            for k in range(max(map(len, row))):
                text.append(line([lines[k] if k < len(lines) else "" for lines in row]))
        return "\n".join([*text, *self.notes])

    def markdown(self) -> str:
        """Return the rows and columns as a Markdown table, without title and notes.

        Returns:
            Lines of Markdown. What cells contain is not taken for Markdown where it would end a
            cell.
        """

        def line(cells: Sequence[str | Cell]) -> str:
            return "| " + " | ".join(map(_markdown, cells)) + " |"

        rules = ["---" if i < self.left else "---:" for i in range(len(self.columns))]
        return "\n".join([line(self.columns), line(rules), *map(line, self.rows)])

    def rich(self, shown: Callable[[str], str] = str) -> "RichTable":
        """Return the rows and columns as rich draws them, without title and notes.

        Args:
            shown: Returns a text as the terminal can show it.

        Returns:
            Something that a `rich.console.Console` prints.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for i, name in enumerate(self.columns):
            side: Literal["left", "right"] = "left" if i < self.left else "right"
            table.add_column(Text(shown(name)), justify=side, no_wrap=True)
        for row in self.rows:
            # Text, not markup: brackets in a cell are shown as they are.
            table.add_row(
                *(
                    Text.assemble(
                        (shown(first), "" if isinstance(cell, str) else cell.style),
                        ("".join(f"\n{shown(line)}" for line in rest), "dim"),
                    )
                    for cell in row
                    for first, *rest in [_lines(cell)]
                )
            )
        return table

    def divided(self, width: int) -> Iterator["Table"]:
        """Divide a table that is too wide into several that repeat the left columns.

        Args:
            width: The number of characters that a line may have.

        Yields:
            The tables. The notes are below the last.
        """
        widths = self._widths()
        first = sum(widths[: self.left]) + 2 * (self.left - 1)
        fit = max(1, (width - first) // (max(widths[self.left :], default=0) + 2))
        places = range(self.left, len(self.columns), fit)
        for start in places:
            yield replace(
                self,
                title=self.title if start == self.left else f"{self.title} (continued)",
                columns=[*self.columns[: self.left], *self.columns[start : start + fit]],
                rows=[[*row[: self.left], *row[start : start + fit]] for row in self.rows],
                notes=self.notes if start == places[-1] else (),
            )
        if not places:
            yield self

    def _widths(self) -> list[int]:
        """Return how many characters each column has."""
        return [
            max(len(name), *(len(line) for row in self.rows for line in _lines(row[i])), 0)
            for i, name in enumerate(self.columns)
        ]


def _lines(cell: str | Cell) -> tuple[str, ...]:
    return (cell,) if isinstance(cell, str) else cell.lines or ("",)


def _markdown(cell: str | Cell) -> str:
    lines = [line.replace("|", "\\|") for line in _lines(cell)]
    if isinstance(cell, Cell) and cell.style.startswith("bold"):
        lines[0] = f"**{lines[0]}**"
    return "<br>".join(line for line in lines if line)


@dataclass(frozen=True)
class Report:
    """Tables with a headline above them and notes below.

    Attributes:
        headline: What the tables are about.
        tables: The tables.
        notes: Sentences that explain the tables.
    """

    headline: str
    tables: Sequence[Table]
    notes: Sequence[str]

    def show(self, file: TextIO | None = None) -> None:
        """Print the report.

        A terminal gets the tables as rich draws them, without colours if NO_COLOR is set. Other
        streams get plain text.

        Args:
            file: The text stream to print to. None means standard output.
        """
        stream = sys.stdout if file is None else file
        encoding = encoding_of(stream)
        console = console_for(stream)
        if console is None:
            stream.write(self.plain(width_of(stream), encoding))
            return
        from rich.text import Text

        def shown(text: str) -> str:
            return transliterated(text, encoding)

        console.print(Text(shown(self.headline), style="bold"))
        for table in self.tables:
            for part in table.divided(console.width):
                console.print()
                console.print(Text(shown(part.title), style="italic"))
                console.print(part.rich(shown))
                for note in part.notes:
                    console.print(Text(shown(note)))
        console.print()
        for note in self.notes:
            console.print(Text(shown(note)))

    def plain(self, width: int = 80, encoding: str = "utf-8") -> str:
        """Return the report as plain text.

        Args:
            width: The number of characters that a line may have. Wider tables are divided.
            encoding: The encoding that the text will be written in.

        Returns:
            The text, with a line break at its end.
        """
        blocks = [self.headline]
        blocks += [part.plain() for table in self.tables for part in table.divided(width)]
        lines: list[str] = []
        for note in self.notes:
            lines += textwrap.wrap(note, max(width, 20), subsequent_indent="  ") or [""]
        text = "\n\n".join([*blocks, "\n".join(lines)])
        return transliterated(text.rstrip("\n") + "\n", encoding)
