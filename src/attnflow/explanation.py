"""Explanation: scores for the tokens of a text or an image, and how they were made.

An explanation is what `attnflow` found out about one position of one text or image. It is
immutable, it is stored and read without loss, and it says everything that is needed to make it
again.
"""

import base64
import binascii
import json
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow import formats
from attnflow.correlation import spearman
from attnflow.errors import MissingExtraError, OptionError
from attnflow.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Comparison", "Explanation", "Prediction", "clusters"]

METHODS = ("raw", "rollout", "flow")
INTERPOLATIONS = ("bilinear", "nearest")
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


class Explanation:
    """Scores for the tokens of a text or an image, and how they were made.

    Explanations are immutable: arrays are read-only copies, and attributes cannot be set.

    Args:
        tokens: The T tokens, as the tokenizer names them.
        scores: One finite number for each token, shape (T,).
        layer_scores: The same for every layer of the model, lowest first, shape (L, T).
        method: "raw", "rollout" or "flow".
        layer: The layer that `scores` belong to, from 1 to L.
        position: The index of the explained position among the tokens that the model was given.
        text: The text explained.
        spans: For each token its start and end in `text`, counted in characters; None for a token
            that stands for no part of the text.
        special: For each token whether the tokenizer added it, or it has a special meaning.
        model: The model's name.
        task: What the model does, such as "classification".
        target: The class or token that the explanation is for, if there is one.
        prediction: What the model answered, if it answers.
        options: Every other option that the explanation was made with. Names are strings, values
            are what JSON can hold.
        saturation: For flow, the share of tokens, from 0 to 1, to which the flow is as large as
            it can be whatever the position. None for other methods.
        notes: Warnings, in words.
        grid: For an image, how many rows and columns of patches it was divided into. The tokens
            that are not special are then patches, each named by its row and column: "0,0", "0,1"
            and so on. Its text is empty. None for a text.
        trace: The graph that the scores were read off, for a page that shows more than the scores.
            None if there is none, as of a text too long for it.
        picture: For an image, a small copy of what its patches cover, to show the scores on: a JPEG
            or PNG file, of no more than 1,000,000 bytes. None if there is none.

    Attributes:
        tokens: As given, a tuple.
        scores: As given, float64, read-only.
        layer_scores: As given, float64, read-only.
        method: As given.
        layer: As given.
        position: As given. `words` and `without_special_tokens` leave it alone, so that it
            remains the index among the model's tokens, not among `tokens`.
        text: As given.
        spans: As given, a tuple.
        special: As given, a tuple.
        model: As given.
        task: As given.
        target: As given.
        prediction: As given.
        options: As given, a read-only mapping. Lists are tuples.
        saturation: As given.
        notes: As given, a tuple.
        grid: As given, a tuple.
        trace: As given. It is no part of what makes two explanations equal.
        picture: As given. It is no part of it either.

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
        >>> explanation.words().tokens
        ('[CLS]', 'the', 'keys', '[SEP]')
    """

    __slots__ = (
        "grid",
        "layer",
        "layer_scores",
        "method",
        "model",
        "notes",
        "options",
        "picture",
        "position",
        "prediction",
        "saturation",
        "scores",
        "spans",
        "special",
        "target",
        "task",
        "text",
        "tokens",
        "trace",
    )

    tokens: tuple[str, ...]
    scores: NDArray[np.float64]
    layer_scores: NDArray[np.float64]
    method: str
    layer: int
    position: int
    target: str | None
    prediction: Prediction | None
    text: str
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]
    model: str
    task: str
    options: Mapping[str, Any]
    saturation: float | None
    notes: tuple[str, ...]
    grid: tuple[int, int] | None
    trace: Trace | None
    picture: bytes | None

    def __init__(
        self,
        *,
        tokens: Sequence[str],
        scores: Any,
        layer_scores: Any,
        method: str,
        layer: int,
        position: int,
        text: str,
        spans: Sequence[tuple[int, int] | None],
        special: Sequence[bool],
        model: str,
        task: str,
        target: str | None = None,
        prediction: Prediction | None = None,
        options: Mapping[str, Any] | None = None,
        saturation: float | None = None,
        notes: Sequence[str] = (),
        grid: tuple[int, int] | None = None,
        trace: Trace | None = None,
        picture: bytes | None = None,
    ) -> None:
        names = _strings(tokens, "tokens")
        values = _numbers(scores, "scores", 1)
        layers = _numbers(layer_scores, "layer_scores", 2)
        if values.shape != (len(names),):
            raise OptionError(
                f"scores has {len(values)} numbers, but there are {len(names)} tokens"
            )
        if layers.shape[1] != len(names):
            raise OptionError(
                f"layer_scores has shape {layers.shape}, but there are {len(names)} tokens: "
                f"expected (L, {len(names)})"
            )
        if _string(method, "method") not in METHODS:
            raise OptionError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        number = _integer(layer, "layer")
        if not 1 <= number <= len(layers):
            raise OptionError(
                f"layer is {number}, but layer_scores has {len(layers)} layers: "
                f"expected 1 to {len(layers)}"
            )
        index = _integer(position, "position")
        if index < 0:
            raise OptionError(f"position must be 0 or more, got {index}")
        source = _string(text, "text")
        given: dict[str, Any] = {
            "tokens": names,
            "scores": values,
            "layer_scores": layers,
            "method": method,
            "layer": number,
            "position": index,
            "target": None if target is None else _string(target, "target"),
            "prediction": None if prediction is None else _prediction(prediction),
            "text": source,
            "spans": _spans(spans, len(names), len(source)),
            "special": (flags := _booleans(special, "special", len(names))),
            "model": _string(model, "model"),
            "task": _string(task, "task"),
            "options": _options(options),
            "saturation": None if saturation is None else _share(saturation, "saturation"),
            "notes": _strings(notes, "notes"),
            "grid": None if grid is None else _grid(grid, names, flags),
            "trace": None if trace is None else _trace(trace, layers, index, len(source)),
            "picture": None if picture is None else _picture(picture, grid),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Explanation is immutable: {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Explanation is immutable: {name!r} cannot be deleted")

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

        Args:
            k: How many, 1 or more. If there are fewer tokens, all are returned.

        Returns:
            Tokens and their scores, highest first. Tokens with the same score keep their order.

        Raises:
            OptionError: If `k` is not an integer of 1 or more.
        """
        return [(self.tokens[i], float(self.scores[i])) for i in self._highest(_count(k))]

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
        count = _count(k)
        if not isinstance(other, Explanation):
            raise OptionError(f"other must be an Explanation, got {type(other).__name__}")
        if self.tokens != other.tokens:
            raise OptionError(f"other has other tokens: {_difference(self.tokens, other.tokens)}")
        mine, others = self._highest(count), other._highest(count)
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
        return self._regrouped(
            [[i] for i in kept],
            tokens=[self.tokens[i] for i in kept],
            spans=[self.spans[i] for i in kept],
            special=[False] * len(kept),
            options={**self.options, "special_tokens": False},
        )

    def words(self) -> "Explanation":
        r"""Return the explanation with the tokens of each word added up.

        Words are found in the text, and tokens belong to words by their spans. A word is what
        lies between whitespace, with punctuation and symbols apart, much as in Unicode's word
        boundaries (UAX #29): "don't", "e-mail" and "3.14" are words, and "table." is two. What a
        reader sees as one character, such as an emoji with joiners or a letter with combining
        marks, is never divided. Chinese, Japanese, Thai, Lao, Khmer and Burmese do not mark where
        words end; there a token stays as it is.

        A token that reaches into several words makes them one. A token of spaces alone counts for
        the word that follows it, as the space before a word does; one with a line break stands
        for itself. Special tokens, and tokens without a span, stay as they are.

        Returns:
            The explanation of the words, with the option ``words`` set to True. Its tokens are the
            words as the text has them, with their spans. Scores, of every layer too, are the sums
            over the tokens of a word. `position` is still the index among the model's tokens.

        Raises:
            OptionError: If it is the explanation of an image, which has no words.

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
            >>> explanation.words().top(3)
            [("don't", 0.5), ('panic', 0.25), ('!', 0.25)]
        """
        if self.grid is not None:
            raise OptionError("this is the explanation of an image, which has patches and no words")
        groups, spans = _group_into_words(self.text, self.spans, self.special)
        names = []
        for group, span in zip(groups, spans, strict=True):
            first = group[0]
            own = "" if span is None or self.special[first] else self.text[span[0] : span[1]]
            # What has no text of its own is a single token, and keeps its name.
            names.append(own or self.tokens[first])
        return self._regrouped(
            groups,
            tokens=names,
            spans=spans,
            special=[self.special[group[0]] for group in groups],
            options={**self.options, "words": True},
        )

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
            raise OptionError("this is the explanation of a text, and a map is made of an image's")
        if interpolation not in INTERPOLATIONS:
            raise OptionError(
                f"interpolation is {interpolation!r}; expected {' or '.join(INTERPOLATIONS)}"
            )
        values = np.full(self.grid, np.nan)
        for token, score, special in zip(self.tokens, self.scores, self.special, strict=True):
            if not special:
                values[_cell(token)] = score
        if size is None:
            return values
        if isinstance(size, str):
            if size != "image":
                raise OptionError(f"size is {size!r}; expected (height, width), 'image' or None")
            size = self.options.get("image_size")
            if size is None:
                raise OptionError("size is 'image', but the image's size is not known; give it")
        area = self.options.get("area", (0.0, 0.0, 1.0, 1.0))
        return _resampled(values, _pair(size, "size"), _area(area), interpolation)

    def without_trace(self) -> "Explanation":
        """Return the explanation without its trace, which is by far the largest part of it.

        Returns:
            The explanation. A page made of it shows its scores, and no other method or position.
        """
        given = {name: getattr(self, name) for name in self.__slots__}
        return Explanation(**{**given, "trace": None})

    def to_dict(self, *, trace: bool = False) -> dict[str, Any]:
        """Return the explanation as lists, dictionaries, strings and numbers.

        Args:
            trace: Whether the trace is among them, if there is one, and the picture.

        Returns:
            What JSON can hold without loss, with the keys "format" and "version" first.
        """
        data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "task": self.task,
            "method": self.method,
            "layer": self.layer,
            "position": self.position,
            "target": self.target,
            "prediction": None if self.prediction is None else self.prediction._asdict(),
            "text": self.text,
            "tokens": list(self.tokens),
            "scores": self.scores.tolist(),
            "layer_scores": self.layer_scores.tolist(),
            "spans": [None if span is None else list(span) for span in self.spans],
            "special": list(self.special),
            "saturation": self.saturation,
            "options": _thawed(self.options),
            "notes": list(self.notes),
            "grid": None if self.grid is None else list(self.grid),
        }
        if trace and self.trace is not None:
            data["trace"] = self.trace.to_dict()
        if trace and self.picture is not None:
            data["picture"] = base64.b64encode(self.picture).decode("ascii")
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Explanation":
        """Return the explanation that `to_dict` made a dictionary of.

        Args:
            data: The dictionary. Keys that are not known are left alone.

        Returns:
            The explanation.

        Raises:
            OptionError: If it is not such a dictionary, its version is not known, a key is
                missing or a value is not valid.
        """
        if not isinstance(data, Mapping):
            raise OptionError(
                f'data must be a dictionary with "format": {FORMAT!r}, got {_short(data)}'
            )
        if data.get("format") != FORMAT:
            found = f"its format is {_short(data['format'])}" if "format" in data else "it has none"
            raise OptionError(f"data must have the format {FORMAT!r}, but {found}")
        version = data.get("version")
        if isinstance(version, bool) or version != VERSION:
            raise OptionError(
                f"data has version {_short(version)} of {FORMAT!r}; "
                f"this release of attnflow reads version {VERSION}"
            )
        # Explanations stored before there were any of images have no grid, and many no trace.
        data = {"grid": None, "trace": None, "picture": None, **data}
        names = [name for name in cls.__slots__ if name not in data]
        if names:
            raise OptionError(f"data lacks {', '.join(repr(name) for name in names)}")
        given = {name: data[name] for name in cls.__slots__}
        prediction = given["prediction"]
        if isinstance(prediction, Mapping):
            if set(prediction) != set(Prediction._fields):
                raise OptionError(
                    f"prediction must have {', '.join(Prediction._fields)}, "
                    f"got {_short(prediction)}"
                )
            given["prediction"] = Prediction(**prediction)
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
            layer_L. A token without a span has no start and no end.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        # Through importlib, so that pandas is not needed to check the types.
        import importlib

        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtraError(
                "to_dataframe needs pandas, which cannot be found; run: pip install pandas"
            ) from error
        columns = self.columns()
        for name in ("start", "end"):
            columns[name] = pandas.array(columns[name], dtype="Int64")
        return pandas.DataFrame(columns)

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
        name = os.fspath(path)
        if os.path.splitext(name)[1].lower() != ".json":
            raise OptionError(f"path must end in .json, which alone can be loaded, got {name!r}")
        with open(name, "rb") as file:
            content = file.read()
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{name} is not an explanation: it is not JSON ({error})") from error
        try:
            return cls.from_dict(data)
        except (OptionError, RecursionError) as error:
            raise OptionError(f"{name} is not an explanation that can be read: {error}") from error

    def show(self, file: TextIO | None = None) -> None:
        """Print the text with its tokens shaded, the highest scores, and the prediction.

        On a terminal the output has colours, unless NO_COLOR is set; any other stream gets plain
        text. Without `file`, a notebook displays the explanation's widget or HTML instead.

        Args:
            file: The text stream to print to. None means standard output.
        """
        formats.render(self, "terminal", file)

    def plot(self, ax: Any = None) -> "tuple[Figure, Axes]":
        """Draw the scores of every layer over the tokens, or over an image's patches.

        Args:
            ax: Axes of matplotlib to draw into. None makes a figure of a suitable size.

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
        return columns

    def _highest(self, k: int) -> list[int]:
        order: list[int] = np.argsort(-self.scores, kind="stable")[:k].tolist()
        return order

    def _regrouped(self, groups: list[list[int]], **changed: Any) -> "Explanation":
        """Return this explanation with other tokens, whose scores are sums over groups of mine."""
        layers = np.empty((len(self.layer_scores), len(groups)))
        for column, group in enumerate(groups):
            layers[:, column] = self.layer_scores[:, group].sum(axis=1)
        given = {name: getattr(self, name) for name in self.__slots__} | changed
        given["scores"] = [self.scores[group].sum() for group in groups]
        given["layer_scores"] = layers
        return Explanation(**given)


# Words. Python's standard library has neither character clusters nor word boundaries; what is
# here follows Unicode's annex 29 as far as grouping tokens needs it.

_ZERO_WIDTH_SPACE = "\u200b"
_ZERO_WIDTH_JOINER = "\u200d"
# Letters that are written as part of the letter before, although Unicode does not call them marks:
# Thai and Lao "am", the halfwidth voicing marks of Kana, and skin tones.
_EXTENDING = frozenset("\u0e33\u0eb3\uff9e\uff9f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
# Between two letters or digits these are part of the word; the others are so between two digits.
_WITHIN_WORDS = frozenset("'\u2019.\u2024\u00b7-\u2010\u2011\u05f3\u05f4")
_WITHIN_NUMBERS = frozenset(",:\u066b\u066c")
# Scripts that are written without a space between words.
_WITHOUT_SPACES = (
    (0x0E01, 0x0EDF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17D3),  # Khmer
    (0x2E80, 0x2FDF),  # radicals of Han
    (0x3005, 0x3007),  # marks and numbers of Han
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303C),
    (0x3041, 0x309F),  # Hiragana
    (0x30A1, 0x30FA),  # Katakana, but for its middle dot
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FE),  # Myanmar
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x1AFF0, 0x1B16F),  # Kana
    (0x20000, 0x3FFFF),  # Han
)


def clusters(text: str) -> list[tuple[int, int]]:
    r"""Divide a text into the characters that a reader sees.

    A letter with its combining marks, an emoji with its joiners, skin tone or variation selector,
    a flag, and a syllable of Hangul letters are one such character each.

    Args:
        text: Any text.

    Returns:
        The start and end of each, in order and without gaps.

    Example:
        >>> clusters("ne\u0301e")  # an e with a combining accent, and one without
        [(0, 1), (1, 3), (3, 4)]
    """
    starts: list[int] = []
    half_flag = False
    for index, character in enumerate(text):
        before = text[index - 1] if index else " "
        flag = "\U0001f1e6" <= character <= "\U0001f1ff"
        other_half = flag and half_flag
        half_flag = flag and not other_half
        if _is_space(before) or not (other_half or _extends(character, before)):
            starts.append(index)
    return list(zip(starts, [*starts[1:], len(text)], strict=True)) if text else []


def _extends(character: str, before: str) -> bool:
    if character.isascii() or _is_space(character):
        # Nothing in ASCII is a mark, and a joiner before it has nothing to join.
        return False
    return (
        unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf")
        or character in _EXTENDING
        or before == _ZERO_WIDTH_JOINER
        or (_is_inner_jamo(character) and _is_hangul(before))
    )


def _is_inner_jamo(character: str) -> bool:
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"


def _is_hangul(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff" or "\ua960" <= character <= "\ud7fb"


def _is_space(character: str) -> bool:
    return character.isspace() or character == _ZERO_WIDTH_SPACE


def _kind(character: str) -> str:
    """Say what a character does to words: "space", "alone", "word" or "other"."""
    if _is_space(character):
        return "space"
    code = ord(character)
    if code >= 0x0E01 and any(first <= code <= last for first, last in _WITHOUT_SPACES):
        return "alone"
    category = unicodedata.category(character)
    return "word" if category[0] in "LNM" or category == "Pc" else "other"


def _stretches(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Divide a text into words and what stands beside them.

    Returns:
        For each character the number of its stretch, -1 for whitespace; and for each character
        the start and end of its cluster.
    """
    bounds = clusters(text)
    parts = [text[start:end] for start, end in bounds]
    kinds = [_kind(part[0]) for part in parts]

    def inside(i: int) -> bool:
        """Whether the cluster is punctuation between two parts of a word."""
        if not (0 < i < len(parts) - 1 and kinds[i - 1] == kinds[i + 1] == "word"):
            return False
        if parts[i][0] in _WITHIN_WORDS:
            return True
        digits = parts[i - 1][0].isdigit() and parts[i + 1][0].isdigit()
        return digits and parts[i][0] in _WITHIN_NUMBERS

    stretch_of: list[int] = []
    cluster_of: list[tuple[int, int]] = []
    stretch = -1
    for i, part in enumerate(parts):
        size = len(part)
        cluster_of += [bounds[i]] * size
        if kinds[i] == "space":
            stretch_of += [-1] * size
            continue
        if kinds[i] == "word":
            joined = i > 0 and (kinds[i - 1] == "word" or inside(i - 1))
        else:
            # An ellipsis or a dash of hyphens is one, but each emoji is one of its own.
            repeated = i > 0 and kinds[i] == "other" and part == parts[i - 1]
            joined = inside(i) or (repeated and unicodedata.category(part[0]) != "So")
        if not joined:
            stretch += 1
        stretch_of += [stretch] * size
    return stretch_of, cluster_of


def _group_into_words(
    text: str, spans: Sequence[tuple[int, int] | None], special: Sequence[bool]
) -> tuple[list[list[int]], list[tuple[int, int] | None]]:
    """Return the tokens of each word, and its span, in the order of their first tokens."""
    stretch_of, cluster_of = _stretches(text)
    # Per token: the characters it stands for, whole clusters without the whitespace around them.
    extents: dict[int, tuple[int, int]] = {}
    blanks: dict[int, tuple[int, int]] = {}
    for token, span in enumerate(spans):
        if span is None or special[token]:
            continue
        visible = [i for i in range(*span) if stretch_of[i] >= 0]
        if visible:
            extents[token] = (cluster_of[visible[0]][0], cluster_of[visible[-1]][1])
        else:
            blanks[token] = span

    # A token that reaches into several stretches makes them one word.
    glued: set[int] = set()
    for start, end in extents.values():
        glued.update(range(stretch_of[start] + 1, stretch_of[end - 1] + 1))
    word_of = {}
    word = -1
    for stretch in range(max(stretch_of, default=-1) + 1):
        word += stretch not in glued
        word_of[stretch] = word

    words = {token: word_of[stretch_of[start]] for token, (start, _) in extents.items()}
    ends: dict[int, int] = {}
    for token, (_, end) in extents.items():
        ends[words[token]] = max(end, ends.get(words[token], 0))
    for token, (start, end) in blanks.items():
        if ends and not any(character in "\n\r" for character in text[start:end]):
            # The first word that ends after the token, or else the last.
            words[token] = min((w for w in ends if ends[w] > start), default=max(ends))

    members: dict[tuple[str, int], list[int]] = {}
    for token in range(len(spans)):
        key = ("word", words[token]) if token in words else ("token", token)
        members.setdefault(key, []).append(token)
    groups = list(members.values())
    return groups, [_extent(group, extents, spans) for group in groups]


def _extent(
    group: list[int],
    extents: Mapping[int, tuple[int, int]],
    spans: Sequence[tuple[int, int] | None],
) -> tuple[int, int] | None:
    inside = [extents[token] for token in group if token in extents]
    if not inside:
        return spans[group[0]]
    return min(start for start, _ in inside), max(end for _, end in inside)


# Maps of images.


def _resampled(
    values: NDArray[np.float64],
    size: tuple[int, int],
    area: tuple[float, float, float, float],
    interpolation: str,
) -> NDArray[np.float64]:
    """Return the map of an image, of which a grid of patches covers an area."""
    rows, row_of, rows_seen = _weights(size[0], values.shape[0], area[0], area[2])
    columns, column_of, columns_seen = _weights(size[1], values.shape[1], area[1], area[3])
    nearest: NDArray[np.float64] = values[row_of][:, column_of]
    if interpolation == "bilinear":
        known = np.isfinite(values)
        # Beside a patch without a score, its share goes to the others.
        shares = rows @ known @ columns.T
        sums = rows @ np.where(known, values, 0.0) @ columns.T
        smooth = np.divide(sums, shares, out=np.full(size, np.nan), where=shares > 0)
        nearest = np.where(np.isfinite(nearest), smooth, np.nan)
    nearest[~rows_seen] = np.nan
    nearest[:, ~columns_seen] = np.nan
    return nearest


def _weights(
    pixels: int, patches: int, start: float, end: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return how the pixels of one axis depend on its patches.

    Args:
        pixels: How many pixels there are.
        patches: How many patches there are.
        start: Where the first patch begins, as a share of the axis.
        end: Where the last patch ends.

    Returns:
        The weights of the patches in each pixel, (pixels, patches), rows summing to 1; the patch
        that each pixel lies in; and whether it lies in one at all.
    """
    # Where the middle of a pixel is, counted in patches.
    place = ((np.arange(pixels) + 0.5) / pixels - start) / (end - start) * patches
    inside = (place >= 0) & (place < patches)
    nearest = np.clip(np.floor(place), 0, patches - 1).astype(np.int64)
    middle = np.clip(place - 0.5, 0, patches - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(middle[:, None] - np.arange(patches)))
    return weights, nearest, inside


def _cell(token: str) -> tuple[int, int]:
    row, _, column = token.partition(",")
    return int(row), int(column)


# Comparison.


def _difference(mine: tuple[str, ...], others: tuple[str, ...]) -> str:
    if len(mine) != len(others):
        return f"{len(others)} of them, not {len(mine)}"
    index = next(i for i in range(len(mine)) if mine[i] != others[i])
    return f"token {index} is {others[index]!r}, not {mine[index]!r}"


# Checks of what an explanation is made from.


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _count(k: Any) -> int:
    count = _integer(k, "k")
    if count < 1:
        raise OptionError(f"k must be 1 or more, got {count}")
    return count


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise OptionError(f"{name} must be an integer, got {_short(value)}")
    return int(value)


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a string, got {_short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{name} has half a character, {value[error.start]!r}, at {error.start}; "
            "such text cannot be stored"
        ) from error
    return str(value)


def _sequence(value: Any, name: str, what: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise OptionError(f"{name} must be a list of {what}, got {_short(value)}")
    return list(value)


def _strings(values: Any, name: str) -> tuple[str, ...]:
    items = _sequence(values, name, "strings")
    return tuple(_string(item, f"{name}[{i}]") for i, item in enumerate(items))


def _booleans(values: Any, name: str, count: int) -> tuple[bool, ...]:
    items = _sequence(values, name, "booleans")
    for i, item in enumerate(items):
        if not isinstance(item, bool | np.bool_):
            raise OptionError(f"{name}[{i}] must be True or False, got {_short(item)}")
    if len(items) != count:
        raise OptionError(f"{name} has {len(items)} items, but there are {count} tokens")
    return tuple(bool(item) for item in items)


def _spans(values: Any, count: int, length: int) -> tuple[tuple[int, int] | None, ...]:
    items = _sequence(values, "spans", "pairs")
    if len(items) != count:
        raise OptionError(f"spans has {len(items)} items, but there are {count} tokens")
    spans: list[tuple[int, int] | None] = []
    for i, item in enumerate(items):
        if item is None:
            spans.append(None)
            continue
        pair = _sequence(item, f"spans[{i}]", "two integers")
        if len(pair) != 2:
            raise OptionError(f"spans[{i}] must be a start and an end, got {_short(item)}")
        start, end = (_integer(number, f"spans[{i}]") for number in pair)
        if not 0 <= start <= end <= length:
            raise OptionError(
                f"spans[{i}] is ({start}, {end}), but the text has {length} characters: "
                f"expected 0 <= start <= end <= {length}"
            )
        spans.append((start, end))
    return tuple(spans)


def _pair(value: Any, name: str) -> tuple[int, int]:
    numbers = _sequence(value, name, "two integers")
    if len(numbers) != 2:
        raise OptionError(f"{name} must be two integers, got {_short(value)}")
    first, second = (_integer(number, name) for number in numbers)
    if min(first, second) < 1:
        raise OptionError(f"{name} is ({first}, {second}); expected two integers of 1 or more")
    return first, second


def _grid(value: Any, tokens: Sequence[str], special: Sequence[bool]) -> tuple[int, int]:
    rows, columns = _pair(value, "grid")
    cells = {f"{row},{column}" for row in range(rows) for column in range(columns)}
    for i, token in enumerate(tokens):
        if special[i]:
            continue
        if token not in cells:
            raise OptionError(
                f"tokens[{i}] is {token!r}, given before or no patch of the grid ({rows}, "
                f"{columns}); expected a row and a column such as '0,0'"
            )
        cells.remove(token)
    return rows, columns


def _area(value: Any) -> tuple[float, float, float, float]:
    message = f"the option area is {_short(value)}; expected top, left, bottom and right"
    numbers = value if isinstance(value, tuple) else ()
    if len(numbers) != 4 or not all(isinstance(number, int | float) for number in numbers):
        raise OptionError(message)
    top, left, bottom, right = (float(number) for number in numbers)
    if not (top < bottom and left < right):
        raise OptionError(message)
    return top, left, bottom, right


def _numbers(values: Any, name: str, axes: int) -> NDArray[np.float64]:
    shape = "(T,)" if axes == 1 else "(L, T)"
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} must be an array of shape {shape}: {error}") from error
    if array.dtype.kind not in "iuf":
        raise OptionError(f"{name} must be numbers of shape {shape}, got {_short(values)}")
    if array.ndim != axes:
        raise OptionError(f"{name} has shape {array.shape}; expected {shape}")
    numbers = np.array(array, dtype=np.float64, order="C")
    if not np.isfinite(numbers).all():
        where = np.argwhere(~np.isfinite(numbers))[0].tolist()
        raise OptionError(f"{name}{where} is {numbers[tuple(where)]}; expected a finite number")
    numbers.flags.writeable = False
    return numbers


def _share(value: Any, name: str) -> float:
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not (number and 0 <= value <= 1):
        raise OptionError(f"{name} must be a number from 0 to 1, got {_short(value)}")
    return float(value)


def _prediction(value: Any) -> Prediction:
    if not (isinstance(value, tuple) and len(value) == 3):
        raise OptionError(f"prediction must be a Prediction, got {_short(value)}")
    label, index, probability = value
    return Prediction(
        _string(label, "prediction.label"),
        _integer(index, "prediction.index"),
        _share(probability, "prediction.probability"),
    )


def _trace(value: Any, layers: NDArray[np.float64], position: int, length: int) -> Trace:
    if not isinstance(value, Trace):
        raise OptionError(f"trace must be a Trace, got {_short(value)}")
    if value.depth != len(layers):
        raise OptionError(
            f"trace has {value.depth} layers, but layer_scores has {len(layers)}; "
            "expected as many of each"
        )
    if position >= len(value.tokens):
        raise OptionError(f"position is {position}, but trace has {len(value.tokens)} tokens")
    _spans(value.spans, len(value.tokens), length)
    return value


def _picture(value: Any, grid: Any) -> bytes:
    if not isinstance(value, bytes) or not value.startswith(PICTURES):
        raise OptionError(f"picture must be the bytes of a JPEG or PNG file, got {_short(value)}")
    if len(value) > MOST_PICTURE:
        raise OptionError(f"picture has {len(value)} bytes; expected {MOST_PICTURE} or fewer")
    if grid is None:
        raise OptionError("picture is given for a text; expected None, or a grid of patches")
    return value


def _options(options: Any) -> Mapping[str, Any]:
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise OptionError(f"options must be a dictionary, got {_short(options)}")
    frozen: Mapping[str, Any] = _frozen(options, "options")
    return frozen


def _frozen(value: Any, name: str) -> Any:
    """Return a value that JSON can hold, with nothing in it that can be changed."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _string(value, name)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OptionError(f"{name} is {value}; expected a finite number")
        return value
    if isinstance(value, Mapping):
        return MappingProxyType(
            {
                _string(k, f"a name in {name}"): _frozen(v, f"{name}[{k!r}]")
                for k, v in value.items()
            }
        )
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, f"{name}[{i}]") for i, item in enumerate(value))
    raise OptionError(f"{name} must be something that JSON can hold, got {_short(value)}")


def _thawed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _thawed(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_thawed(item) for item in value]
    return value
