"""Explanation: scores for the tokens of a text or an image, and how they were made.

An explanation is the result for one position of one text or image. It is immutable, can be saved
and loaded without loss, and records every option that it was made with.
"""

import base64
import binascii
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow import fields, formats
from attnflow.checks import choice, integer, invalid, items, number, string, strings
from attnflow.correlation import spearman
from attnflow.errors import OptionError
from attnflow.options import ANSWER_METHODS, METHODS
from attnflow.resample import INTERPOLATIONS, Area, resampled
from attnflow.tokens import Tokens, summed
from attnflow.trace import Trace
from attnflow.verdict import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# How a JPEG and a PNG file begin, and how long a picture may be, in bytes.
PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
MOST_PICTURE = 1_000_000
FORMAT = "attnflow.explanation"
VERSION = 1


class Prediction(NamedTuple):
    """What the model answered.

    Attributes:
        label: The class or token predicted.
        index: Its index among the model's classes or in its vocabulary.
        probability: The model's probability for it, from 0 to 1.
    """

    label: str
    index: int  # type: ignore[assignment] # the interface's name; tuple.index is of no use here
    probability: float


class Read(NamedTuple):
    """A position that the answer is read at.

    Attributes:
        position: Its index among the tokens that the model was given.
        weight: How much of the reading is there; the weights of an explanation add up to 1.
    """

    position: int
    weight: float


class Comparison(NamedTuple):
    """How far two explanations of the same tokens agree.

    Attributes:
        spearman: Spearman's rank correlation of the scores, from -1 to 1. Tied scores share the
            mean of their ranks. NaN if there are fewer than two tokens, or if all scores of either
            explanation are the same.
        top_k_overlap: The share of tokens, from 0 to 1, that are among the k highest of both. NaN
            if there are no tokens.
    """

    spearman: float
    top_k_overlap: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Explanation:
    """Scores for the tokens of a text or an image, and how they were made.

    Explanations are immutable: arrays are read-only copies, lists become tuples, and attributes
    cannot be set. Two explanations are equal if they differ in `trace` and `picture` only.

    Attributes:
        tokens: The T tokens, each named by its part of the text, without spaces around it. One that
            is not part of the text, such as "[CLS]", is named by the tokenizer.
        scores: One finite number for each token, float64 of shape (T,). Contributions have a sign:
            what speaks for the target is positive, and their sum and `bias` are `value`.
        layer_scores: The same for every layer of the model, lowest first, shape (L, T).
        method: "contribution", "raw", "rollout" or "flow".
        layer: The layer that `scores` belong to, from 1 to L. For contributions 1: the embeddings
            that enter the first layer, and `layer_scores` has what those entering each layer add.
        position: The index of the explained position among the tokens that the model was given.
            `by_unit` and `without_special_tokens` do not change it. If the answer is read at
            several, the one that counts most.
        reads: The positions that are explained, with their weights: where the model's head reads
            the answer, such as CLS, or all tokens for a mean. By default `position` alone.
        text: The text explained.
        spans: For each token its start and end in `text`, counted in characters; None for a token
            that is not part of the text.
        special: For each token whether the tokenizer added it, or it has a special meaning.
        segments: The parts of the text that have a name, each with its start and end: the two
            texts of a pair, the messages of a chat. Empty for a text without parts.
        model: The model's name.
        task: What the model does, such as "classification".
        target: The class or token that the explanation is for, if there is one.
        contrast: The class or token that it is compared with, if one was given.
        value: For contributions, the answer that they add up to: the target's logit minus that of
            the contrast, or minus the mean of the others. None for other methods.
        bias: For contributions, what the model's biases add to the answer, which comes from no
            token. None for other methods.
        check: What blanking out each unit of this input does to the answer, if that was measured.
        prediction: What the model answered, if it answers.
        options: Every other option that the explanation was made with, a read-only mapping of
            names to values that JSON can represent. "read" is how much of the text was read, in
            characters, if the rest was written later, comes after the position, or was cut.
        saturation: For flow, the share of tokens, from 0 to 1, whose flow is the largest that any
            position could have. None for other methods.
        notes: Warnings, in words.
        grid: For an image, how many rows and columns of patches it was divided into. The tokens
            that are neither special nor part of the text are then patches (`patches`), each named
            by its row and column: "0,0", "0,1" and so on. The text is empty, or what the model read
            with the image. None for a text.
        trace: The graph that the scores come from, for a page that shows more than the scores.
            None if there is none, for example because the text is too long.
        picture: For an image, a small copy of the area that its patches cover: a JPEG or PNG file
            of at most 1,000,000 bytes. None if there is none.

    Raises:
        OptionError: If an argument has the wrong type, shape, length or range.

    Example:
        >>> explanation = Explanation(
        ...     tokens=["[CLS]", "the", "key", "##s", "[SEP]"],
        ...     scores=[0.1, 0.1, 0.5, 0.2, 0.1],
        ...     layer_scores=[[0.1, 0.1, 0.5, 0.2, 0.1]],
        ...     method="rollout",
        ...     layer=1,
        ...     position=0,
        ...     text="the keys",
        ...     spans=[None, (0, 3), (4, 7), (7, 8), None],
        ...     special=[True, False, False, False, True],
        ...     model="tiny",
        ...     task="encoder",
        ... )
        >>> explanation.top(2)
        [('key', 0.5), ('##s', 0.2)]
        >>> explanation.by_unit("words").tokens
        ('[CLS]', 'the', 'keys', '[SEP]')
    """

    model: str
    task: str
    method: str
    layer: int
    position: int
    target: str | None = None
    contrast: str | None = None
    value: float | None = None
    bias: float | None = None
    prediction: Prediction | None = None
    text: str
    tokens: tuple[str, ...]
    scores: NDArray[np.float64]
    layer_scores: NDArray[np.float64]
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]
    segments: tuple[fields.Segment, ...] = ()
    saturation: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    check: Check | None = None
    reads: tuple[Read, ...] = ()
    grid: tuple[int, int] | None = None
    trace: Trace | None = None
    picture: bytes | None = None

    def __post_init__(self) -> None:
        tokens = strings(self.tokens, "tokens", allow_empty=True)
        count = len(tokens)
        scores = fields.numbers(self.scores, "scores", "(T,)")
        layer_scores = fields.numbers(self.layer_scores, "layer_scores", "(L, T)")
        if len(scores) != count:
            raise OptionError(f"scores has {len(scores)} numbers, but there are {count} tokens")
        if layer_scores.shape[1] != count:
            raise OptionError(
                f"layer_scores has shape {layer_scores.shape}; expected (L, {count}) for {count} "
                "tokens"
            )
        depth = len(layer_scores)
        if not 1 <= integer(self.layer, "layer") <= depth:
            raise OptionError(f"layer is {self.layer}, but layer_scores has {depth} layers")
        text = string(self.text, "text")
        special = fields.booleans(self.special, "special", count)
        if not isinstance(self.options, Mapping):
            raise invalid("options", self.options, "a dictionary")
        fields.set_fields(
            self,
            model=string(self.model, "model"),
            task=string(self.task, "task"),
            method=choice(self.method, "method", METHODS),
            layer=int(self.layer),
            position=integer(self.position, "position", least=0),
            reads=_reads(self.reads, self.position),
            target=None if self.target is None else string(self.target, "target"),
            contrast=None if self.contrast is None else string(self.contrast, "contrast"),
            value=None if self.value is None else number(self.value, "value"),
            bias=None if self.bias is None else number(self.bias, "bias"),
            prediction=None if self.prediction is None else _prediction(self.prediction),
            text=text,
            tokens=tokens,
            scores=scores,
            layer_scores=layer_scores,
            spans=fields.spans(self.spans, count, len(text)),
            special=special,
            segments=fields.segments_in(self.segments or (), "segments", len(text)),
            saturation=None if self.saturation is None else _share(self.saturation, "saturation"),
            options=fields.frozen(self.options, "options"),
            notes=strings(self.notes, "notes", allow_empty=True),
        )
        if self.grid is not None:
            fields.set_fields(self, grid=_grid(self.grid, tokens, self.patches))
        if self.trace is not None:
            # Contributions have no layers where attention cannot be followed.
            known = None if self.method in ANSWER_METHODS and depth == 1 else depth
            _check_trace(self.trace, known, self.position, len(text))
        if self.picture is not None:
            _check_picture(self.picture, self.grid)
        if self.check is not None and not isinstance(self.check, Check):
            raise invalid("check", self.check, "a Check")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.tokens, self.text, self.method, self.layer, self.position))

    def __reduce__(self) -> tuple[Callable[..., "Explanation"], tuple[dict[str, Any]]]:
        return Explanation.from_dict, (self.to_dict(trace=True),)

    def __repr__(self) -> str:
        best = ", ".join(f"{token!r} {score:.3g}" for token, score in self.top(3))
        grid = "" if self.grid is None else f"grid={self.grid}, "
        return (
            f"Explanation(method={self.method!r}, layer={self.layer}, position={self.position}, "
            f"{grid}{len(self.tokens)} tokens, highest: {best or 'none'})"
        )

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the tokens with the highest scores.

        Of contributions these are the tokens that speak most for the target.

        Args:
            k: How many, 1 or more. If there are fewer tokens, all are returned.

        Returns:
            Tokens and their scores, highest first. Tokens with the same score keep their order.

        Raises:
            OptionError: If `k` is not an integer of 1 or more.
        """
        return [(self.tokens[i], float(self.scores[i])) for i in self._highest(k)]

    def compare(self, other: "Explanation", k: int = 5) -> Comparison:
        """Return how far another explanation of the same tokens agrees with this one.

        Args:
            other: The other explanation.
            k: How many of the highest tokens are compared, 1 or more. If there are fewer tokens,
                all are. Where tokens with the same score compete for the last place, the earlier
                one gets it.

        Returns:
            The rank correlation of the scores, and the share of the k highest tokens in common.

        Raises:
            OptionError: If the tokens are not the same, or `k` is not an integer of 1 or more.
        """
        if not isinstance(other, Explanation):
            raise OptionError(f"other is a {type(other).__name__}; expected an Explanation")
        if self.tokens != other.tokens:
            raise OptionError(
                f"other has different tokens: {_difference(self.tokens, other.tokens)}"
            )
        mine, others = self._highest(k), other._highest(k)
        common = len(set(mine) & set(others))
        overlap = common / len(mine) if mine else math.nan
        return Comparison(float(spearman(self.scores, other.scores)), overlap)

    def without_special_tokens(self) -> "Explanation":
        """Return the explanation without its special tokens.

        They are left out of `tokens`, `scores`, `layer_scores`, `spans` and `special`. The scores
        that remain are what they were: they are not normalised again.

        Returns:
            The explanation, with the option ``special_tokens`` set to False.
        """
        kept = [i for i, special in enumerate(self.special) if not special]
        options = {**self.options, "special_tokens": False}
        return self._with(self.pieces.select(kept), [[i] for i in kept], options)

    def by_unit(self, units: str | Sequence[Any]) -> "Explanation":
        r"""Return the explanation with the scores of each word, sentence or segment added up.

        `attnflow.tokens.Tokens.grouped` says what belongs together.

        Args:
            units: "tokens", "words", "sentences" or "segments"; or stretches of the text, such as
                the passages of a retrieved context: a list of (start, end) or (name, start, end),
                counted in characters. What is between them is a unit of its own.

        Returns:
            The explanation of the units, with the option ``units`` set. Its tokens are pieces of
            the text, with their spans, or the names of segments. `position` remains an index among
            the model's tokens.

        Raises:
            OptionError: If there are no such units, or it is the explanation of an image.

        Example:
            >>> import numpy as np
            >>> explanation = Explanation(
            ...     tokens=["\u2581don", "'", "t", "\u2581panic", "!"],
            ...     scores=[0.25, 0.125, 0.125, 0.25, 0.25],
            ...     layer_scores=np.full((1, 5), 0.2),
            ...     method="flow",
            ...     layer=1,
            ...     position=4,
            ...     text="don't panic!",
            ...     spans=[(0, 3), (3, 4), (4, 5), (5, 11), (11, 12)],
            ...     special=[False] * 5,
            ...     model="tiny",
            ...     task="causal-lm",
            ... )
            >>> explanation.by_unit("words").top(3)
            [("don't", 0.5), ('panic', 0.25), ('!', 0.25)]
        """
        if self.grid is not None and not self.text:
            raise OptionError(f"units is {units!r}, but the patches of an image have no text")
        return self._with(*self.pieces.grouped(units), {**self.options, "units": units})

    @property
    def pieces(self) -> Tokens:
        """The tokens with their text, spans and special marks, as one value."""
        return Tokens(self.text, self.tokens, self.spans, self.special, self.segments)

    @property
    def patches(self) -> tuple[int, ...]:
        """The indices of the tokens that are patches of an image: no special ones, no text."""
        return () if self.grid is None else self.pieces.patches

    def map(
        self, size: tuple[int, int] | str | None = None, *, interpolation: str = "bilinear"
    ) -> NDArray[np.float64]:
        """Return the scores of an image's patches as a map.

        The map is of the whole image as it was given, before the model's preprocessing made it
        smaller or cut off its edges. What the model did not see has no score: the map is NaN
        there, which is not the same as a patch that scores 0.

        Args:
            size: The height and width of the map; "image" for those of the image; None for one
                number a patch.
            interpolation: Between the middles of patches, "bilinear"; or "nearest", where every
                patch is an area of one value. Without a size it has no effect.

        Returns:
            float64 of shape (height, width); without a size, the grid of patches of shape (rows,
            columns). NaN where the option ``area`` says that the model did not see the image, and
            where the score of a patch was left out.

        Raises:
            OptionError: If it is not the explanation of an image, or an argument is not valid.

        Example:
            >>> explanation = Explanation(
            ...     tokens=["[CLS]", "0,0", "0,1"],
            ...     scores=[0.5, 0.25, 0.75],
            ...     layer_scores=[[0.5, 0.25, 0.75]],
            ...     method="raw",
            ...     layer=1,
            ...     position=0,
            ...     text="",
            ...     spans=[None, None, None],
            ...     special=[True, False, False],
            ...     model="tiny",
            ...     task="image-encoder",
            ...     grid=(1, 2),
            ... )
            >>> explanation.map()
            array([[0.25, 0.75]])
            >>> explanation.map((1, 4))
            array([[0.25 , 0.375, 0.625, 0.75 ]])
            >>> explanation.map((1, 4), interpolation="nearest")
            array([[0.25, 0.25, 0.75, 0.75]])
        """
        if self.grid is None:
            raise OptionError("map needs the explanation of an image, and this is one of a text")
        choice(interpolation, "interpolation", INTERPOLATIONS)
        values = np.full(self.grid, np.nan)
        for index in self.patches:
            row, _, column = self.tokens[index].partition(",")
            values[int(row), int(column)] = self.scores[index]
        if size is None:
            return values
        if isinstance(size, str):
            if size != "image":
                raise invalid("size", size, "(height, width), 'image' or None")
            size = self.options.get("image_size")
            if size is None:
                raise OptionError("size is 'image', but the image's size is not known; give it")
        area = self.options.get("area", (0.0, 0.0, 1.0, 1.0))
        return resampled(values, fields.pair(size, "size"), _area(area), interpolation)

    @property
    def trace_position(self) -> int:
        """The index of the explained position among the tokens of the trace.

        It is `position`, but for contributions with a trace that has a learned sink: it comes
        before the tokens there, and contributions do not count it.
        """
        sink = self.trace is not None and self.trace.sink
        return self.position + int(sink and self.method in ANSWER_METHODS)

    def without_trace(self) -> "Explanation":
        """Return the explanation without its trace, which is by far the largest part of it.

        Returns:
            The explanation. A page made of it shows its scores, and no other method or position.
        """
        return replace(self, trace=None)

    def to_dict(self, *, trace: bool = False) -> dict[str, Any]:
        """Return the explanation as lists, dictionaries, strings and numbers.

        Args:
            trace: Whether the trace is among them, if there is one, and the picture.

        Returns:
            Values that JSON represents without loss, with the keys "format" and "version" first.
        """
        data: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for name, value in vars(self).items():
            if name not in ("trace", "picture", "check"):
                data[name] = fields.thawed(value)
        data["check"] = None if self.check is None else self.check.to_dict()
        if self.prediction is not None:
            data["prediction"] = self.prediction._asdict()
        if trace and self.trace is not None:
            data["trace"] = self.trace.to_dict()
        if trace and self.picture is not None:
            data["picture"] = base64.b64encode(self.picture).decode("ascii")
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Explanation":
        """Return the explanation of a dictionary that `to_dict` returned.

        Args:
            data: The dictionary. Unknown keys are ignored.

        Returns:
            The explanation.

        Raises:
            OptionError: If it is not such a dictionary, its version is not known, a key is
                missing or a value is not valid.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else data
            raise invalid("the format of data", found, f"a dictionary with the format {FORMAT!r}")
        choice(data.get("version"), "the version of data", (VERSION,))
        # Older explanations have fewer fields, and many have no trace.
        optional = (
            "reads",
            "segments",
            "contrast",
            "value",
            "bias",
            "check",
            "grid",
            "trace",
            "picture",
        )
        data = {**dict.fromkeys(optional), **data}
        names = [one.name for one in dataclasses.fields(cls)]
        missing = [repr(name) for name in names if name not in data]
        if missing:
            raise OptionError(f"data has no {', '.join(missing)}")
        given = {name: data[name] for name in names}
        prediction = given["prediction"]
        if isinstance(prediction, Mapping):
            if set(prediction) != set(Prediction._fields):
                raise invalid("prediction", prediction, ", ".join(Prediction._fields))
            given["prediction"] = Prediction(**prediction)
        if isinstance(given["check"], Mapping):
            given["check"] = Check.from_dict(given["check"])
        if isinstance(given["trace"], Mapping):
            given["trace"] = Trace.from_dict(given["trace"])
        if isinstance(given["picture"], str):
            try:
                given["picture"] = base64.b64decode(given["picture"], validate=True)
            except (ValueError, binascii.Error) as error:
                raise OptionError(f"picture is not base64: {error}") from error
        return cls(**given)

    def to_dataframe(self) -> Any:
        """Return one row for each token as a pandas data frame.

        Returns:
            A `pandas.DataFrame` with the columns token, start, end, special, score and layer_1 to
            layer_L. A token without a span has no start and no end. That of contributions also has
            the columns target, contrast, value and bias, the same in every row.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        return formats.render(self, "dataframe")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the explanation to a file. A failure leaves no partial file.

        Args:
            path: The file. Its ending chooses the format: ".json" is complete, trace included, and
                what `load` reads; ".csv" is the table of `to_dataframe`; ".html" is `to_html`;
                ".png", ".svg" and ".pdf" are `plot`.

        Raises:
            OptionError: If the ending is not one of these.
            MissingExtraError: If the format is a figure and matplotlib is not installed.
            OSError: If the file cannot be written. A file that was there before is then unchanged.
        """
        formats.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Explanation":
        """Read an explanation that `save` wrote to a ".json" file.

        Args:
            path: The file.

        Returns:
            The explanation, equal to the one saved.

        Raises:
            OptionError: If the file does not end in ".json" or is not an explanation.
            OSError: If the file cannot be read.
        """
        return fields.load_json(path, "an explanation", cls.from_dict)

    def show(self, file: TextIO | None = None) -> None:
        """Print the text with its tokens shaded, the highest scores, and the prediction.

        Of a long text only the sentences with the largest scores are printed, a line each. On a
        terminal the output has colours, unless NO_COLOR is set; any other stream gets plain text.
        Without `file`, a notebook displays the explanation's widget or HTML instead.

        Args:
            file: The text stream to print to. None means standard output.
        """
        formats.render(self, "terminal", file)

    def plot(self, ax: Any = None) -> "tuple[Figure, Axes]":
        """Draw what the answer came from, or the scores of every layer over the tokens.

        Of contributions: the answer, the text with its tokens shaded, the check's verdict and
        signed bars; of an image its map. Of other methods a heat map of all layers, which
        `attnflow.view.figures.heat_map` draws of contributions, too. Of a long text, the sentences
        with the largest scores are drawn.

        Args:
            ax: Axes of matplotlib to draw the bars, the map or the heat map into. None makes a
                figure of a suitable size.

        Returns:
            The figure and the axes. The figure is not shown.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        drawn: tuple[Figure, Axes] = formats.render(self, "plot", ax)
        return drawn

    def to_html(self) -> str:
        """Return the explanation as an HTML page.

        With a trace the page shows raw attention, rollout and flow for every layer and position,
        the graph, and what limits a flow. Without a trace it shows the scores of the explanation.
        Contributions come first, with what they add up to and the check. A long text is shown by
        its sentences, which open to show their tokens.

        Returns:
            A self-contained HTML document that makes no network request. Tokens are shown as text,
            and only the page's own script can run.
        """
        page: str = formats.render(self, ".html")
        return page

    def widget(self) -> Any:
        """Return a widget that shows the explanation in a notebook, as the page does.

        A notebook displays one for an explanation by itself. Call this to read what the reader
        has chosen, and to choose: ``widget.position``, ``widget.layer`` and ``widget.method``.

        Returns:
            The widget, an `attnflow.view.widget.Widget`.

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
        """Return the table of `to_dataframe` as plain lists.

        Returns:
            By the name of the column, one value for each token.
        """
        columns: dict[str, list[Any]] = {
            "token": list(self.tokens),
            "start": [None if span is None else span[0] for span in self.spans],
            "end": [None if span is None else span[1] for span in self.spans],
            "special": list(self.special),
            "score": self.scores.tolist(),
        }
        for layer, row in enumerate(self.layer_scores, 1):
            columns[f"layer_{layer}"] = row.tolist()
        if self.method in ANSWER_METHODS:
            for name in ("target", "contrast", "value", "bias"):
                columns[name] = [getattr(self, name)] * len(self.tokens)
        return columns

    def _highest(self, k: int) -> list[int]:
        count = integer(k, "k", least=1)
        order: list[int] = np.argsort(-self.scores, kind="stable")[:count].tolist()
        return order

    def _with(
        self, pieces: Tokens, groups: list[list[int]], options: Mapping[str, Any]
    ) -> "Explanation":
        """Return this explanation with other tokens, whose scores are sums over groups of mine."""
        return replace(
            self,
            tokens=pieces.names,
            spans=pieces.spans,
            special=pieces.special,
            options=options,
            scores=summed(self.scores, groups),
            layer_scores=summed(self.layer_scores, groups),
        )


def _difference(mine: tuple[str, ...], others: tuple[str, ...]) -> str:
    if len(mine) != len(others):
        return f"{len(others)} of them, not {len(mine)}"
    index = next(i for i in range(len(mine)) if mine[i] != others[i])
    return f"token {index} is {others[index]!r}, not {mine[index]!r}"


def _grid(value: Any, tokens: Sequence[str], patches: Sequence[int]) -> tuple[int, int]:
    rows, columns = fields.pair(value, "grid")
    cells = {f"{row},{column}" for row in range(rows) for column in range(columns)}
    for i in patches:
        token = tokens[i]
        if token not in cells:
            raise OptionError(
                f"tokens[{i}] is {token!r}, which is a duplicate or not a patch of the grid "
                f"({rows}, {columns}); expected a row and a column such as '0,0'"
            )
        cells.remove(token)
    return rows, columns


def _area(value: Any) -> Area:
    numbers = value if isinstance(value, tuple) else ()
    valid = len(numbers) == 4 and all(isinstance(number, int | float) for number in numbers)
    if not valid or not (numbers[0] < numbers[2] and numbers[1] < numbers[3]):
        raise invalid("the option area", value, "top, left, bottom and right")
    top, left, bottom, right = (float(number) for number in numbers)
    return top, left, bottom, right


def _prediction(value: Any) -> Prediction:
    if not (isinstance(value, tuple) and len(value) == 3):
        raise invalid("prediction", value, "a Prediction")
    label, index, probability = value
    return Prediction(
        string(label, "prediction.label"),
        integer(index, "prediction.index"),
        _share(probability, "prediction.probability"),
    )


def _share(value: Any, name: str) -> float:
    return number(value, name, least=0, most=1)


def _check_trace(trace: Any, depth: int | None, position: int, length: int) -> None:
    if not isinstance(trace, Trace):
        raise invalid("trace", trace, "a Trace")
    if depth not in (None, trace.depth):
        raise OptionError(f"trace has {trace.depth} layers, but layer_scores has {depth}")
    if position >= len(trace.tokens):
        raise OptionError(f"position is {position}, but trace has {len(trace.tokens)} tokens")
    fields.spans(trace.spans, len(trace.tokens), length, "trace.spans")


def _reads(reads: Any, position: Any) -> tuple[Read, ...]:
    """Return where an answer is read; by default at the position explained."""
    found = []
    given = reads if reads not in (None, ()) else [(position, 1.0)]
    for i, value in enumerate(items(given, "reads", "pairs of a position and its weight")):
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise invalid(f"reads[{i}]", value, "a position and its weight")
        place = integer(value[0], f"reads[{i}]", least=0)
        found.append(Read(place, _share(value[1], f"reads[{i}]")))
    if abs(sum(read.weight for read in found) - 1.0) > 1e-6:
        raise OptionError(
            f"the weights of reads add up to {sum(read.weight for read in found):g}; expected 1"
        )
    return tuple(found)


def _check_picture(picture: Any, grid: Any) -> None:
    if not isinstance(picture, bytes) or not picture.startswith(PICTURES):
        raise invalid("picture", picture, "the bytes of a JPEG or PNG file")
    if len(picture) > MOST_PICTURE:
        raise OptionError(f"picture has {len(picture)} bytes; expected {MOST_PICTURE} or fewer")
    if grid is None:
        raise OptionError("picture is given for a text; expected None, or a grid of patches")
