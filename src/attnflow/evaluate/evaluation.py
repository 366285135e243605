"""Evaluation: how far methods agree with references over many texts, with their statistics."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow import formats
from attnflow.checks import choice
from attnflow.errors import OptionError
from attnflow.evaluate.significance import Differences, Means, holm
from attnflow.explanation import Prediction
from attnflow.io.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMAT = "attnflow.evaluation"
VERSION = 1

FAITHFULNESS = ("comprehensiveness", "sufficiency", "aopc", "log_odds")
"""What is measured when tokens are removed."""

MEASURES = {"faithfulness": FAITHFULNESS, "other_faithfulness": FAITHFULNESS}
"""The arrays of measures other than correlations, and the names along their last axis.

An array named "other_..." has one row for each reference and baseline, and no axis of layers.
"""

COMPARISONS = ("method", "edges", "receptive_field", "baseline")
"""What two rows that are compared may differ in."""


class EvaluatedText(NamedTuple):
    """A text, a pair of texts or an image that was evaluated.

    Attributes:
        number: Its number among those given, or its line in their file, from 1.
        tokens: How many tokens were scored, special tokens included.
        position: The position explained; the last one if every token of a target was explained.
        target: The class or token that the references are for; the whole target if every token of
            it was explained.
        prediction: The model's prediction; None if there was more than one.
    """

    number: int
    tokens: int
    position: int
    target: str | None
    prediction: Prediction | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "EvaluatedText":
        """Make it from a dictionary that has its fields, the prediction as a dictionary too."""
        given = {name: data[name] for name in cls._fields}
        if given["prediction"] is not None:
            given["prediction"] = Prediction(**given["prediction"])
        return cls(**given)


class Skipped(NamedTuple):
    """A text that could not be evaluated.

    Attributes:
        number: Its number among those given, or its line in their file, from 1.
        reason: Why it was skipped.
    """

    number: int
    reason: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation:
    """Rank correlations of methods with references, one per text, with their statistics.

    Evaluations are immutable. `attnflow.evaluate.evaluate` makes them.

    Attributes:
        model: The model's name.
        task: The model's task.
        fingerprint: The fingerprint of the model's weights, see `Explainer.fingerprint`.
        layers: The L layers, from 1.
        methods: The M methods.
        edges: The E kinds of edges.
        receptive_fields: For each of F columns whether scores are relative to uniform attention.
        drop_sinks: For each of D columns whether the attention sink was left out.
        references: The R references.
        baselines: The B baselines.
        options: Every other option, read-only. "samples", "permutations", "level" and "seed" are
            those of the statistics.
        texts: The N texts evaluated.
        skipped: The texts that could not be evaluated.
        pending: How many texts are not evaluated yet.
        correlations: Spearman's rank correlations, of shape (N, E, M, F, D, R, 2, L), read-only.
            The axis of length 2 has all tokens first, then those that are not special. NaN where
            fewer than two tokens are left, or all scores are equal.
        baseline_correlations: The same for the baselines, of shape (N, B, D, R, 2).
        faithfulness: The effect of removing tokens in the order of the scores, of shape
            (N, E, M, F, L, 4), or None. The last axis is `FAITHFULNESS`.
        other_faithfulness: The same for references and baselines, of shape (N, R + B, 4), or None.
        notes: Warnings, in words.

    Raises:
        OptionError: If an array has another shape.

    Example:
        >>> evaluation = Evaluation(
        ...     model="tiny", task="classification", fingerprint="", layers=[1, 2],
        ...     methods=["raw"], edges=["attention"], receptive_fields=[False],
        ...     drop_sinks=[False], references=["blank_out"], baselines=[],
        ...     options={"samples": 100, "permutations": 99, "level": 0.95, "seed": 0},
        ...     texts=[EvaluatedText(i, 5, 0, None, None) for i in (1, 2)], skipped=[], pending=0,
        ...     correlations=np.array([[0.5, 0.25], [1.0, 0.75]]).reshape(2, 1, 1, 1, 1, 1, 1, 2)
        ...     * np.ones((1, 1, 1, 1, 1, 1, 2, 1)),
        ...     baseline_correlations=np.empty((2, 0, 1, 1, 2)),
        ... )
        >>> [(row["layer"], row["mean"]) for row in evaluation.summary("raw")]
        [(1, 0.75), (2, 0.5)]
        >>> evaluation.per_text("raw", layer=1)
        array([0.5, 1. ])
    """

    model: str
    task: str
    fingerprint: str
    layers: Sequence[int]
    methods: Sequence[str]
    edges: Sequence[str]
    receptive_fields: Sequence[bool]
    drop_sinks: Sequence[bool]
    references: Sequence[str]
    baselines: Sequence[str]
    options: Mapping[str, Any]
    texts: Sequence[EvaluatedText]
    skipped: Sequence[Skipped]
    pending: int
    correlations: NDArray[np.float64]
    baseline_correlations: NDArray[np.float64]
    faithfulness: NDArray[np.float64] | None = None
    other_faithfulness: NDArray[np.float64] | None = None
    notes: Sequence[str] = ()
    _cache: dict[Any, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        count, depth = len(self.texts), len(self.layers)
        rows = (len(self.edges), len(self.methods), len(self.receptive_fields))
        columns = (len(self.drop_sinks), len(self.references), 2)
        others = len(self.references) + len(self.baselines)
        shapes: dict[str, tuple[int, ...]] = {
            "correlations": (count, *rows, *columns, depth),
            "baseline_correlations": (count, len(self.baselines), *columns),
        }
        for name, measures in MEASURES.items():
            axes = (others,) if name.startswith("other_") else (*rows, depth)
            shapes[name] = (count, *axes, len(measures))
        for name, value in self._given().items():
            frozen: Any = value
            if name == "options":
                frozen = MappingProxyType(value)
            elif name in shapes and value is not None:
                frozen = read_only(value, name, shapes[name], bound="correlations" in name)
            elif not isinstance(value, str | int | None):
                frozen = tuple(value)
            object.__setattr__(self, name, frozen)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        theirs = other._given()
        return all(_equal(value, theirs[name]) for name, value in self._given().items())

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.layers, self.methods, self.texts))

    def __reduce__(self) -> "tuple[partial[Evaluation], tuple[()]]":
        return partial(Evaluation, **self._given()), ()

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.model!r}, {len(self.texts)} texts, {', '.join(self.methods)} "
            f"against {', '.join(self.references)}, {len(self.layers)} layers)"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table of correlations.

        Returns:
            The "method", "edges" and "receptive_field" of each row. Raw attention is there once for
            each kind of edges, because the receptive field does not change its ranks.
        """
        return [row for _, row in self._rows(unique=True)]

    def per_text(
        self, method: str, layer: int | None = None, **choices: Any
    ) -> NDArray[np.float64]:
        """Return one correlation per text.

        Args:
            method: The method, or a baseline.
            layer: The layer, from 1; -1 is the last one evaluated. None means all layers. A
                baseline has no layers and takes only None.
            **choices: `reference`; `edges`; `special_tokens`, whether special tokens are among
                those scored, by default True; `receptive_field`, whether scores are relative to
                uniform attention; and `drop_sink`, whether the attention sink is left out. The
                default of the others is the first one evaluated.

        Returns:
            The correlations, of shape (texts,), or (texts, layers) for a method with all layers.
            NaN where the correlation is not defined.

        Raises:
            OptionError: If a choice was not evaluated. The message lists what was.
        """
        name, place = self._index(method, **choices)
        values: NDArray[np.float64] = getattr(self, name)[:, *place]
        if layer is None:
            return values
        if name != "correlations":
            raise OptionError(f"layer is {layer!r}, but the baseline {method!r} has no layers")
        last = isinstance(layer, int) and layer == -1
        return values[:, -1 if last else _place(layer, self.layers, "layer")]

    def summary(self, method: str, **choices: Any) -> list[dict[str, Any]]:
        """Return the mean correlation over texts for each layer.

        Args:
            method: As in `per_text`.
            **choices: `reference`, `edges`, `special_tokens`, `receptive_field` and `drop_sink`, as
                in `per_text`.

        Returns:
            For each layer the "layer", "mean", "std" (standard deviation over texts), "ci" (the
            ends of the confidence interval of the mean), "count" (texts with a correlation) and
            "undefined" (texts without). A baseline has one row, whose layer is None.

        Raises:
            OptionError: If a choice was not evaluated. The message lists what was.
        """
        name, place = self._index(method, **choices)
        means = self._means(name)
        if name != "correlations":
            return [{"layer": None, **means.at(place)}]
        return [{"layer": layer, **means.at((*place, i))} for i, layer in enumerate(self.layers)]

    def compare(self, over: str = "method", **column: Any) -> list[dict[str, Any]]:
        """Test the differences between the mean correlations of two rows, paired by text.

        All pairs of rows that differ in one option are tested, in every layer. The tests are one
        family: their p-values are corrected together by Holm's method.

        Args:
            over: What the two rows differ in: "method", "edges" or "receptive_field"; or
                "baseline": every method against every baseline.
            **column: `reference`, `special_tokens` and `drop_sink`, as in `per_text`.

        Returns:
            For each pair and layer: "layer", "first" and "second" (each with its "method", "edges"
            and "receptive_field", or its "baseline"), "difference" (the mean of first minus
            second), its "ci", "count" (texts that have both), "p" of the sign-flip test and
            "p_holm". The list is empty if there is nothing to compare.

        Raises:
            OptionError: If a choice was not evaluated, or `over` is not valid.
        """
        over = choice(over, "over", COMPARISONS)
        key = ("compare", over, *sorted(column.items()))
        if key not in self._cache:
            self._cache[key] = self._compare(over, column)
        return [dict(item) for item in self._cache[key]]

    def _compare(self, over: str, column: dict[str, Any]) -> list[dict[str, Any]]:
        pairs: list[tuple[dict[str, Any], dict[str, Any], NDArray[np.float64]]] = []
        rows = [(row, self.per_text(**row, **column)) for row in self.rows()]
        if over == "baseline":
            for (row, mine), name in itertools.product(rows, self.baselines):
                theirs = self.per_text(name, **column)
                pairs.append((row, {"baseline": name}, mine - theirs[:, None]))
        else:
            for (row, mine), (other, theirs) in itertools.combinations(rows, 2):
                if [name for name in row if row[name] != other[name]] == [over]:
                    pairs.append((row, other, mine - theirs))
        if not pairs:
            return []
        differences = Differences.of(np.stack([values for *_, values in pairs], 1), self.options)
        corrected = holm(differences.p)
        return [
            {
                "layer": layer,
                "first": dict(first),
                "second": dict(second),
                **differences.at((i, j)),
                "p_holm": float(corrected[i, j]),
            }
            for i, (first, second, _) in enumerate(pairs)
            for j, layer in enumerate(self.layers)
        ]

    def faithfulness_summary(self) -> list[dict[str, Any]]:
        """Return how the answer changes when tokens are removed in the order of the scores.

        Returns:
            For each method (with its "edges", "receptive_field" and "layer"), each reference and
            each baseline, the "measure" (of `FAITHFULNESS`), and as in `summary` "mean", "std",
            "ci", "count" and "undefined". Empty if faithfulness was not measured.
        """
        if self.faithfulness is None or self.other_faithfulness is None:
            return []
        means, others = self._means("faithfulness"), self._means("other_faithfulness")
        result = [
            {**row, "measure": measure, "layer": layer, **means.at((*place, j, k))}
            for place, row in self._rows(unique=True)
            for j, layer in enumerate(self.layers)
            for k, measure in enumerate(FAITHFULNESS)
        ]
        names = [("reference", name) for name in self.references]
        names += [("baseline", name) for name in self.baselines]
        return result + [
            {kind: name, "measure": measure, "layer": None, **others.at((i, k))}
            for i, (kind, name) in enumerate(names)
            for k, measure in enumerate(FAITHFULNESS)
        ]

    # ---- Files and tables ------------------------------------------------------------------------

    def to_dict(self, *, per_text: bool = True) -> dict[str, Any]:
        """Return the evaluation as lists, dictionaries, strings and numbers.

        Args:
            per_text: Whether to include the correlations of every text. Without them, `from_dict`
                cannot read the evaluation.

        Returns:
            What JSON can hold without loss, with the keys "format" and "version" first. None stands
            for a number that is not defined.
        """
        columns = self._columns()

        def values(row: dict[str, Any], column: dict[str, Any]) -> dict[str, Any]:
            return {"per_text": self.per_text(**row, **column)} if per_text else {}

        results = [
            {**row, **column, "layers": self.summary(**row, **column), **values(row, column)}
            for (_, row), column in itertools.product(self._rows(), columns)
        ]
        baselines = []
        for name, column in itertools.product(self.baselines, columns):
            (summary,) = self.summary(name, **column)
            del summary["layer"]
            baselines.append(
                {"baseline": name, **column, **summary, **values({"method": name}, column)}
            )
        data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(self, name) for name in _PLAIN},
            "count": len(self.texts),
            "skipped": self.skipped,
            "results": results,
            "baselines": baselines,
            "comparisons": [
                {"over": over, **column, **item}
                for over in COMPARISONS
                for column in columns
                for item in self.compare(over, **column)
            ],
            "faithfulness": self.faithfulness_summary(),
        }
        if per_text:
            data["texts"] = self.texts
            data |= {f"{name}_per_text": getattr(self, name) for name in MEASURES}
        plain: dict[str, Any] = formats.without_nan(data)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Evaluation":
        """Read an evaluation from the dictionary that `to_dict` returned.

        Args:
            data: The dictionary. Statistics are computed again, from the correlations of the texts.

        Returns:
            The evaluation.

        Raises:
            OptionError: If it is not such a dictionary, or its version is not known.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise OptionError(f"data must be a dictionary with the format {FORMAT!r}")
        if data.get("version") != VERSION:
            raise OptionError(
                f"data has version {data.get('version')!r} of {FORMAT!r}; this release of attnflow "
                f"reads version {VERSION}"
            )
        if "texts" not in data:
            raise OptionError(
                "data has only means over texts; expected the result of to_dict(per_text=True)"
            )
        try:
            texts = [EvaluatedText.of(text) for text in data["texts"]]
            count, depth = len(texts), len(data["layers"])
            rows = [len(data[name]) for name in ("edges", "methods", "receptive_fields")]
            columns = (len(data["drop_sinks"]), len(data["references"]), 2)
            baselines = list(dict.fromkeys(item["baseline"] for item in data["baselines"]))
            results = _numbers([item["per_text"] for item in data["results"]])
            guesses = _numbers([item["per_text"] for item in data["baselines"]])
            shape = (len(baselines), *columns, count)
            return cls(
                **{name: data[name] for name in _PLAIN},
                baselines=baselines,
                texts=texts,
                skipped=[Skipped(**item) for item in data["skipped"]],
                correlations=np.moveaxis(results.reshape(*rows, *columns, count, depth), -2, 0),
                baseline_correlations=np.moveaxis(guesses.reshape(shape), -1, 0),
                **{name: _numbers(data[f"{name}_per_text"]) for name in MEASURES},
            )
        except OptionError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"data is not a complete evaluation: {error!r}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the evaluation to a file. A failure leaves no partial file.

        Args:
            path: The file. Its ending chooses the format: ".json" is complete and what `load`
                reads; ".csv" is the table of `to_dataframe`; ".png", ".svg" and ".pdf" are `plot`,
                with a panel for each reference and choice of tokens.

        Raises:
            OptionError: If the ending is not one of these.
            MissingExtraError: If the format is a figure and matplotlib is not installed.
            OSError: If the file cannot be written. A file that was there before is then unchanged.
        """
        formats.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Evaluation":
        """Read an evaluation that `save` wrote to a ".json" file.

        Args:
            path: The file.

        Returns:
            The evaluation, equal to the one saved.

        Raises:
            OptionError: If the file is not an evaluation.
            OSError: If the file cannot be read.
        """
        with open(path, "rb") as file:
            content = file.read()
        try:
            return cls.from_dict(json.loads(content))
        except (ValueError, RecursionError) as error:
            name = os.fspath(path)
            raise OptionError(f"{name} is not an evaluation that can be read: {error}") from error

    def to_dataframe(self, *, per_text: bool = False) -> Any:
        """Return the correlations as a pandas data frame.

        Args:
            per_text: Whether there is a row for every text, instead of the mean over texts.

        Returns:
            A `pandas.DataFrame`, one row for each method, edges, receptive field, reference, choice
            of tokens and layer, and for each baseline. Its first columns name these. Then follow
            mean, std, low and high (the ends of the confidence interval), count and undefined; or
            with `per_text` the number of the text and its correlation.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        return formats.render(self, "dataframe", per_text=per_text)

    def to_csv(self, path: str | os.PathLike[str], *, per_text: bool = False) -> None:
        """Write the table of `to_dataframe` to a file. A failure leaves no partial file.

        Args:
            path: The file.
            per_text: As in `to_dataframe`.

        Raises:
            OSError: If the file cannot be written.
        """
        write_whole(path, formats.render(self, ".csv", per_text=per_text))

    def show(self, file: TextIO | None = None) -> None:
        """Print the evaluation as tables: the layers across, the methods down.

        Args:
            file: The text stream to print to. None means standard output.
        """
        formats.render(self, "terminal", file)

    def plot(self, ax: Any = None, **options: Any) -> "tuple[Figure, Axes]":
        """Draw the mean correlation over the layers, with its confidence interval.

        Args:
            ax: Axes of matplotlib to draw into. None makes a figure.
            **options: `reference`, `special_tokens` and `drop_sink`, as in `per_text`.

        Returns:
            The figure and the axes. The figure is not shown.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        drawn: tuple[Figure, Axes] = formats.render(self, "plot", ax, **options)
        return drawn

    def records(self, *, per_text: bool = False) -> Iterator[dict[str, Any]]:
        """Return the rows of `to_dataframe`.

        Args:
            per_text: As in `to_dataframe`.

        Yields:
            Dictionaries with equal keys.
        """
        rows = [row for _, row in self._rows()]
        rows += [
            {"method": name, "edges": None, "receptive_field": None} for name in self.baselines
        ]
        for row, column in itertools.product(rows, self._columns()):
            for j, values in enumerate(self.summary(**row, **column)):
                named = {**row, **column, "layer": values.pop("layer")}
                if not per_text:
                    low, high = values.pop("ci")
                    mean, std = values.pop("mean"), values.pop("std")
                    yield {**named, "mean": mean, "std": std, "low": low, "high": high, **values}
                    continue
                numbers = self.per_text(**row, **column)
                numbers = numbers if numbers.ndim == 1 else numbers[:, j]
                for text, number in zip(self.texts, numbers.tolist(), strict=True):
                    yield {**named, "text": text.number, "correlation": number}

    # ---- Indices ---------------------------------------------------------------------------------

    def _given(self) -> dict[str, Any]:
        """Return the arguments that the evaluation was made from."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {**given, "options": dict(self.options)}

    def _rows(self, *, unique: bool = False) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
        """Return the index of each row in the arrays, and the row.

        With `unique`, raw attention has one row for all receptive fields, because the receptive
        field does not change its ranks.
        """
        axes = (enumerate(axis) for axis in (self.edges, self.methods, self.receptive_fields))
        return [
            ((e, m, f), {"method": method, "edges": edges, "receptive_field": relative})
            for (e, edges), (m, method), (f, relative) in itertools.product(*axes)
            if not unique or method != "raw" or f == 0
        ]

    def _columns(self) -> list[dict[str, Any]]:
        return [
            {"reference": reference, "special_tokens": special, "drop_sink": drop}
            for drop in self.drop_sinks
            for reference in self.references
            for special in (True, False)
        ]

    def _index(
        self,
        method: str,
        *,
        edges: str | None = None,
        receptive_field: bool | None = None,
        drop_sink: bool | None = None,
        reference: str | None = None,
        special_tokens: bool = True,
    ) -> tuple[str, tuple[int, ...]]:
        """Return the name of the array with the correlations of a choice, and their index there."""
        column = (
            _place(drop_sink, self.drop_sinks, "drop_sink"),
            _place(reference, self.references, "reference"),
            _place(special_tokens, (True, False), "special_tokens"),
        )
        if method in self.baselines:
            return "baseline_correlations", (self.baselines.index(method), *column)
        row = (
            _place(edges, self.edges, "edges"),
            _place(method, self.methods, "method"),
            _place(receptive_field, self.receptive_fields, "receptive_field"),
        )
        return "correlations", (*row, *column)

    def _means(self, name: str) -> Means:
        """Return the means over texts of an array, computed once."""
        if name not in self._cache:
            self._cache[name] = Means.of(getattr(self, name), self.options)
        means: Means = self._cache[name]
        return means


# The fields that `to_dict` writes as they are.
_AXES = ("methods", "edges", "receptive_fields", "drop_sinks", "references", "layers")
_PLAIN = ("model", "task", "fingerprint", *_AXES, "options", "pending", "notes")


def _place(value: Any, valid: Sequence[Any], name: str) -> int:
    """Return the index of a choice among those evaluated. None is the first."""
    if value is None and name != "method":
        return 0
    for place, item in enumerate(valid):
        if type(item) is type(value) and item == value:
            return place
    evaluated = ", ".join(map(repr, valid))
    raise OptionError(f"{name} is {value!r}, which was not evaluated; expected {evaluated}")


def read_only(
    values: Any, name: str, shape: tuple[int, ...], bound: bool = False
) -> NDArray[np.float64]:
    """Return an array of a known shape that cannot be changed.

    Args:
        values: The numbers.
        name: The name of the argument, for error messages.
        shape: The expected shape.
        bound: Whether the numbers must be from -1 to 1.

    Returns:
        A copy of the array.

    Raises:
        OptionError: If the shape or a number is not as expected.
    """
    # C order makes sums over equal arrays equal to the last digit.
    array = np.array(values, dtype=np.float64, order="C")
    if array.shape != shape:
        raise OptionError(f"{name} has shape {array.shape}; expected {shape}")
    if bound and (np.abs(array) > 1).any():
        raise OptionError(f"{name} has a number beyond 1; expected correlations, from -1 to 1")
    array.flags.writeable = False
    return array


def _equal(first: Any, second: Any) -> bool:
    arrays = isinstance(first, np.ndarray) + isinstance(second, np.ndarray)
    if arrays:
        return arrays == 2 and np.array_equal(first, second, equal_nan=True)
    return bool(first == second)


def _numbers(values: Any) -> Any:
    """Return nested lists as an array, with NaN for None; None stays None."""
    return None if values is None else np.array(values, dtype=np.float64)
