"""Generation: what a language model wrote, and what every token of it came from.

A generation is immutable, can be saved and loaded without loss, and is a sequence of the
explanations of its tokens.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO, overload

import numpy as np
from numpy.typing import NDArray

from attnflow import fields, formats
from attnflow.checks import choice, integer, invalid, items, string, switch
from attnflow.errors import OptionError
from attnflow.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMAT = "attnflow.generation"
VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Generation(Sequence[Explanation]):
    """What a language model wrote, and what every token of it came from.

    As a sequence it has the explanations of the N new tokens: `len`, an index, a slice and a loop
    work as with a list. Generations are immutable. Two are equal if they differ in traces only.

    Attributes:
        prompt: The text that was continued: of a chat what the chat template made of the messages,
            of an encoder-decoder the source and the target so far. Empty for a sound.
        text: What the model wrote.
        explanations: One for each new token, in their order. Its target is the token, and it
            scores the tokens before it. Empty if only the whole answer was explained, as after a
            long prompt.
        whole: The explanation of the whole answer. Of contributions it explains the sum over the
            new tokens, in `value`, `bias` and every score; of other methods it is their mean. The
            tokens of the answer are among those scored: each was read to write the next. None if
            nothing was written.
        written: For each token of `whole` whether the model wrote it.
        ended: Whether the model ended its answer by itself. Otherwise `max_new_tokens` did.
        options: How the text was written: ``max_new_tokens``, ``do_sample``, ``temperature``,
            ``top_p``, ``top_k`` and ``seed``.

    Raises:
        OptionError: If an argument has the wrong type or length.

    Example:
        >>> def scored(scores, target):
        ...     count = len(scores)
        ...     return Explanation(
        ...         tokens=["the", "keys", "are"][:count], scores=scores, layer_scores=[scores],
        ...         spans=[(0, 3), (3, 8), (8, 12)][:count], special=[False] * count,
        ...         method="contribution", layer=1, position=count - 1, target=target,
        ...         value=sum(scores), bias=0.0, text="the keys are on", model="tiny",
        ...         task="causal-lm",
        ...     )
        >>> generation = Generation(
        ...     prompt="the keys", text=" are on",
        ...     explanations=[scored([0.5, 2.0], " are"), scored([0.0, 1.0, 0.5], " on")],
        ...     whole=scored([0.5, 3.0, 0.5], " are on"), written=[False, False, True],
        ... )
        >>> generation.matrix
        array([[0.5, 2. , nan],
               [0. , 1. , 0.5]])
        >>> generation.top(1), generation.itself
        ([('keys', 3.0)], 0.5)
        >>> [one.target for one in generation]
        [' are', ' on']
    """

    prompt: str
    text: str
    explanations: tuple[Explanation, ...]
    whole: Explanation | None
    written: tuple[bool, ...]
    ended: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = tuple(items(self.explanations, "explanations", "explanations", allow_empty=True))
        for i, step in enumerate(steps):
            if not isinstance(step, Explanation):
                raise invalid(f"explanations[{i}]", step, "an Explanation")
        if self.whole is not None and not isinstance(self.whole, Explanation):
            raise invalid("whole", self.whole, "an Explanation, or None")
        if self.whole is None and steps:
            raise OptionError(
                f"whole is None, but there are {len(steps)} explanations; expected the explanation "
                "of the whole answer"
            )
        if not isinstance(self.options, Mapping):
            raise invalid("options", self.options, "a dictionary")
        fields.set_fields(
            self,
            prompt=string(self.prompt, "prompt"),
            text=string(self.text, "text"),
            explanations=steps,
            written=fields.booleans(self.written, "written", len(self.tokens)),
            ended=switch(self.ended, "ended"),
            options=fields.frozen(self.options, "options"),
        )

    # ---- As a sequence ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.explanations)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    @overload
    def __getitem__(self, index: int) -> Explanation: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Explanation, ...]: ...

    def __getitem__(self, index: int | slice) -> Explanation | tuple[Explanation, ...]:
        return self.explanations[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Generation):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.prompt, self.text, self.explanations))

    def __reduce__(self) -> tuple[Any, ...]:
        given = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return _made, ({**given, "options": fields.thawed(self.options)},)

    def __repr__(self) -> str:
        best = ", ".join(f"{token!r} {score:.3g}" for token, score in self.top(3))
        return f"Generation({self.text!r}, {len(self)} tokens, highest: {best or 'none'})"

    # ---- What it came from -----------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[str, ...]:
        """The columns of `matrix`: the T tokens of the prompt, and of the answer but for its last.

        No other token was written from the last one.
        """
        return () if self.whole is None else self.whole.tokens

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The scores of every new token, float64 of shape (N, T).

        A row is an explanation, and a column one of `tokens`. NaN stands where a token has no
        score: it was not written yet, or it was left out. That is not the same as a score of 0.
        """
        matrix = np.full((len(self), len(self.tokens)), np.nan)
        for row, step in zip(matrix, self.explanations, strict=True):
            for column, score in zip(self._columns(step), step.scores, strict=True):
                if column is not None:
                    row[column] = score + (0.0 if np.isnan(row[column]) else row[column])
        return fields.read_only(matrix)

    def _columns(self, step: Explanation) -> list[int | None]:
        """Return for each token of an explanation the token of the whole that it is part of.

        Both are in the same order. A word of the whole may be longer than it was at this step.
        """
        if self.whole is None:
            return [None] * len(step.tokens)
        whole, column, found = self.whole, 0, []
        for name, span in zip(step.tokens, step.spans, strict=True):
            place: int | None = None
            for other in range(column, len(whole.tokens)):
                around = whole.spans[other]
                if span is None or around is None:
                    inside = span is around and name == whole.tokens[other]
                else:
                    inside = around[0] <= span[0] and span[1] <= around[1]
                if inside:
                    place = column = other
                    break
            found.append(place)
            # Only the parts of a word share a column.
            column += place is not None and whole.spans[place] == span
        return found

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return what of the prompt speaks most for the whole answer.

        Args:
            k: How many, 1 or more. If there are fewer, all are returned.

        Returns:
            Tokens, or other units, that the model did not write and that are not special, and
            their scores, highest first.

        Raises:
            OptionError: If `k` is not an integer of 1 or more.
        """
        count = integer(k, "k", least=1)
        if self.whole is None:
            return []
        order = np.argsort(-self.whole.scores, kind="stable").tolist()
        kept = [i for i in order if not self.written[i] and not self.whole.special[i]][:count]
        return [(self.tokens[i], float(self.whole.scores[i])) for i in kept]

    @property
    def itself(self) -> float:
        """What the answer's own tokens add to it: each was read to write those after it."""
        if self.whole is None:
            return 0.0
        return float(self.whole.scores[list(self.written)].sum())

    def by_unit(self, units: str | Sequence[Any]) -> "Generation":
        """Return the generation with the scores of each word, sentence or segment added up.

        Args:
            units: As in `Explanation.by_unit`.

        Returns:
            The generation, whose explanations score these units.

        Raises:
            OptionError: If there are no such units.
        """
        if self.whole is None:
            return self
        _, groups = self.whole.pieces.grouped(units)
        return replace(
            self,
            explanations=tuple(step.by_unit(units) for step in self.explanations),
            whole=self.whole.by_unit(units),
            written=tuple(all(self.written[i] for i in group) for group in groups),
        )

    # ---- Where it goes ---------------------------------------------------------------------------

    def to_dict(self, *, trace: bool = False) -> dict[str, Any]:
        """Return the generation as lists, dictionaries, strings and numbers.

        Args:
            trace: Whether the trace of `whole` is among them. Those of the tokens never are: they
                would be as many times as large.

        Returns:
            Values that JSON represents without loss, with the keys "format" and "version" first.
        """
        data = {
            "format": FORMAT,
            "version": VERSION,
            **{
                one.name: fields.thawed(getattr(self, one.name)) for one in dataclasses.fields(self)
            },
        }
        data["explanations"] = [step.to_dict() for step in self.explanations]
        data["whole"] = None if self.whole is None else self.whole.to_dict(trace=trace)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Generation":
        """Return the generation of a dictionary that `to_dict` returned.

        Args:
            data: The dictionary. Unknown keys are ignored.

        Returns:
            The generation.

        Raises:
            OptionError: If it is not such a dictionary, its version is not known, a key is
                missing or a value is not valid.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else data
            raise invalid("the format of data", found, f"a dictionary with the format {FORMAT!r}")
        choice(data.get("version"), "the version of data", (VERSION,))
        names = [one.name for one in dataclasses.fields(cls)]
        missing = [repr(name) for name in names if name not in data]
        if missing:
            raise OptionError(f"data has no {', '.join(missing)}")
        given = {name: data[name] for name in names}
        steps = items(given["explanations"], "explanations", "explanations", allow_empty=True)
        given["explanations"] = [Explanation.from_dict(step) for step in steps]
        if given["whole"] is not None:
            given["whole"] = Explanation.from_dict(given["whole"])
        return cls(**given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the generation to a file. A failure leaves no partial file.

        Args:
            path: The file. Its ending chooses the format: ".json" is what `load` reads; ".csv" has
                a row for each score of `matrix`; ".html" is a page to share; ".png", ".svg" and
                ".pdf" are `plot`.

        Raises:
            OptionError: If the ending is not one of these.
            MissingExtraError: If the format is a figure and matplotlib is not installed.
            OSError: If the file cannot be written. A file that was there before is then unchanged.
        """
        formats.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Generation":
        """Read a generation that `save` wrote to a ".json" file.

        Args:
            path: The file.

        Returns:
            The generation, equal to the one saved.

        Raises:
            OptionError: If the file does not end in ".json" or is not a generation.
            OSError: If the file cannot be read.
        """
        return fields.load_json(path, "a generation", cls.from_dict)

    def show(self, file: TextIO | None = None) -> None:
        """Print the answer, its sources in the prompt, and the source of each of its tokens.

        On a terminal the output has colours, unless NO_COLOR is set; any other stream gets plain
        text. In a notebook, and without a stream, it displays the generation instead.

        Args:
            file: The text stream to print to. None means standard output.
        """
        formats.render(self, "terminal", file)

    def plot(self, ax: Any = None) -> "tuple[Figure, Axes]":
        """Draw the answer, the prompt shaded by what it adds to it, and `matrix` as a heat map.

        Args:
            ax: Axes of matplotlib to draw the heat map into. None makes a figure of a suitable
                size.

        Returns:
            The figure and the axes. The figure is not shown.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        drawn: tuple[Figure, Axes] = formats.render(self, "plot", ax)
        return drawn

    def to_html(self) -> str:
        """Return the generation as an HTML page: the answer, its sources, and the matrix.

        On the page a token of the answer, or a span of it, is chosen to see what it came from.

        Returns:
            A self-contained HTML document that makes no network request.
        """
        page: str = formats.render(self, ".html")
        return page

    def to_dataframe(self) -> Any:
        """Return one row for each score of `matrix` as a pandas data frame.

        Returns:
            A `pandas.DataFrame` with the columns of `columns`.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        return formats.render(self, "dataframe")

    def widget(self) -> Any:
        """Return a widget that shows the generation in a notebook, as the page does.

        A notebook displays one for a generation by itself. Call this to read which tokens the
        reader has chosen, and to choose: ``widget.selection``.

        Returns:
            The widget, an `attnflow.view.widget.GenerationWidget`.

        Raises:
            MissingExtraError: If anywidget is not installed.
        """
        return formats.render(self, "widget")

    def _repr_html_(self) -> str:
        fragment: str = formats.render(self, "notebook")
        return fragment

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return formats.render(self, "mimebundle")

    def columns(self) -> dict[str, list[Any]]:
        """Return the scores of every new token as plain lists.

        Returns:
            By the name of the column, one value for each score: the number of the new token from 0
            ("step"), the token ("written"), its "value" and "bias", and the "token" that the score
            is of, with its "start", "end", "special" and "score".
        """
        names = ("step", "written", "value", "bias", "token", "start", "end", "special", "score")
        table: dict[str, list[Any]] = {name: [] for name in names}
        for number, step in enumerate(self.explanations):
            own = step.columns()
            count = len(step.tokens)
            for name, one in (("step", number), ("written", step.target)):
                table[name] += [one] * count
            for name in ("value", "bias"):
                table[name] += [getattr(step, name)] * count
            for name in names[4:]:
                table[name] += own[name]
        return table


def _made(given: dict[str, Any]) -> Generation:
    return Generation(**given)
