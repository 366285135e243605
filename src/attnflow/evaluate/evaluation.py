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
from attnflow.evaluate.evidence import tally
from attnflow.evaluate.significance import Differences, Means, holm
from attnflow.explanation import Prediction
from attnflow.io.files import write_whole
from attnflow.options import ANSWER_METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMAT = "attnflow.evaluation"
VERSION = 1

FAITHFULNESS = ("comprehensiveness", "sufficiency", "aopc", "log_odds", "aopc_shares")
"""What is measured when tokens are removed."""

EVIDENCE = ("mrr", "pointing", "mass")
"""What is measured where the evidence for an answer is known."""

MEASURES = {
    "faithfulness": FAITHFULNESS,
    "other_faithfulness": FAITHFULNESS,
    "evidence": EVIDENCE,
    "other_evidence": EVIDENCE,
}
"""The arrays of measures other than correlations, and the names along their last axis.

An array named "other_..." has one row for each reference and baseline, and no axis of layers.
"""

MAIN_MEASURES = ("mrr", "aopc_shares")
"""The measures that `Evaluation.to_dict` compares methods by, beside correlations."""

EVERY = slice(None)
"""The index of all layers."""

COMPARISONS = ("method", "edges", "receptive_field", "baseline", "reference")
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
        contrast: The class or token that the target is compared with; None if there is none.
    """

    number: int
    tokens: int
    position: int
    target: str | None
    prediction: Prediction | None
    contrast: str | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "EvaluatedText":
        """Make it from a dictionary that has its fields, the prediction as a dictionary too."""
        given = {name: data[name] for name in cls._fields if name in data}
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
        methods: The M methods. Those of `attnflow.options.ANSWER_METHODS`, such as contributions,
            have no layers, edges or receptive field: their numbers are the same along these axes
            of the arrays, and they are reported once.
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
            fewer than two tokens are left, or all scores are equal. Contributions have a sign, and
            references do not: of contributions, the absolute values are correlated.
        baseline_correlations: The same for the baselines, of shape (N, B, D, R, 2).
        faithfulness: The effect of removing tokens in the order of the scores, of shape
            (N, E, M, F, L, 5), or None. The last axis is `FAITHFULNESS`.
        other_faithfulness: The same for references and baselines, of shape (N, R + B, 5), or None.
        evidence: How far up the scores rank the evidence, of shape (N, E, M, F, L, 3), or None. The
            last axis is `EVIDENCE`; see `attnflow.evaluate.evidence.evidence_measures`.
        other_evidence: The same for references and baselines, of shape (N, R + B, 3), or None. The
            baseline "random" is the mean over all orders.
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
    evidence: NDArray[np.float64] | None = None
    other_evidence: NDArray[np.float64] | None = None
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
        """Return the rows of the tables.

        Returns:
            The "method", "edges" and "receptive_field" of each row. Raw attention is there once for
            each kind of edges, because the receptive field does not change its ranks. A method
            without layers is there once, and its edges and receptive field are None.
        """
        return [row for _, row in self._rows(unique=True)]

    def per_text(
        self, method: str, layer: int | None = None, **choices: Any
    ) -> NDArray[np.float64]:
        """Return one correlation per text, or one number of another measure.

        Args:
            method: The method, a baseline, or for a measure other than correlations a reference.
            layer: The layer, from 1; -1 is the last one evaluated. None means all layers. What has
                no layers takes only None.
            **choices: `measure`, one of `FAITHFULNESS` and `EVIDENCE`, by default "correlation";
                `edges`; and `receptive_field`, whether scores are relative to uniform attention.
                For correlations also `reference`; `special_tokens`, whether special tokens are
                among those scored, by default True; and `drop_sink`, whether the attention sink is
                left out. The default of the others is the first one evaluated.

        Returns:
            The numbers, of shape (texts,), or (texts, layers) for a method with all layers. NaN
            where one is not defined.

        Raises:
            OptionError: If a choice was not evaluated. The message lists what was.
        """
        name, place = self._index(method, **choices)
        values: NDArray[np.float64] = getattr(self, name)[:, *place]
        if layer is None:
            return values
        if values.ndim == 1:
            raise OptionError(f"layer is {layer!r}, but {method!r} has no layers")
        last = isinstance(layer, int) and layer == -1
        return values[:, -1 if last else _place(layer, self.layers, "layer")]

    def summary(self, method: str, **choices: Any) -> list[dict[str, Any]]:
        """Return the mean over texts for each layer.

        Args:
            method: As in `per_text`.
            **choices: As in `per_text`.

        Returns:
            For each layer the "layer", "mean", "std" (standard deviation over texts), "ci" (the
            ends of the confidence interval of the mean), "count" (texts with a correlation) and
            "undefined" (texts without). What has no layers, such as a baseline, has one row, whose
            layer is None.

        Raises:
            OptionError: If a choice was not evaluated. The message lists what was.
        """
        name, place = self._index(method, **choices)
        means = self._means(name)
        layers: Sequence[int | None] = self.layers if EVERY in place else [None]
        places = [
            [i if isinstance(part, slice) else part for part in place] for i in range(len(layers))
        ]
        return [
            {"layer": layer, **means.at(tuple(at))}
            for layer, at in zip(layers, places, strict=True)
        ]

    def compare(
        self,
        over: str = "method",
        *,
        measure: str = "correlation",
        layer: int | None = None,
        **column: Any,
    ) -> list[dict[str, Any]]:
        """Test the differences between the means of two rows, paired by text.

        All pairs of rows that differ in one option are tested, in every layer. The tests are one
        family: their p-values are corrected together by Holm's method.

        Args:
            over: What the two rows differ in: "method", "edges" or "receptive_field"; or
                "baseline": every method against every baseline; or for a measure other than
                correlations "reference": every method against every reference.
            measure: What is compared: "correlation", or one of `FAITHFULNESS` and `EVIDENCE`.
            layer: Compare only this layer, -1 for the last one evaluated. None means all.
            **column: For correlations `reference`, `special_tokens` and `drop_sink`, as in
                `per_text`.

        Returns:
            For each pair and layer: "layer", "first" and "second" (each with its "method", "edges"
            and "receptive_field", or its "baseline" or "reference"), "difference" (the mean of
            first minus second), its "ci", "count" (texts that have both), "p" of the sign-flip test
            and "p_holm". The layer is None if neither has layers. The list is empty if there is
            nothing to compare.

        Raises:
            OptionError: If a choice was not evaluated, or `over` is not valid.
        """
        over = choice(over, "over", COMPARISONS)
        key = ("compare", over, measure, layer, *sorted(column.items()))
        if key not in self._cache:
            self._cache[key] = self._compare(over, layer, {"measure": measure, **column})
        return [dict(item) for item in self._cache[key]]

    def _compare(
        self, over: str, layer: int | None, choices: dict[str, Any]
    ) -> list[dict[str, Any]]:
        correlated = choices["measure"] == "correlation"
        if correlated and (over == "reference" or not self.references):
            return []
        rows = self.rows()
        pairs: list[tuple[dict[str, Any], dict[str, Any]]]
        if over in ("baseline", "reference"):
            others = self.baselines if over == "baseline" else self.references
            pairs = [(row, {over: name}) for row in rows for name in others]
        else:
            pairs = [
                pair for pair in itertools.combinations(rows, 2) if _differ_in(*pair) == [over]
            ]
        tested: list[tuple[int | None, dict[str, Any], dict[str, Any], NDArray[np.float64]]] = []
        for first, second in pairs:
            mine, theirs = (self._by_layer(row, layer, choices) for row in (first, second))
            # What has no layers is compared with each of the other's.
            for one in {**mine, **theirs}:
                if one is not None or mine.keys() == theirs.keys():
                    values = [found[one if one in found else None] for found in (mine, theirs)]
                    tested.append((one, first, second, values[0] - values[1]))
        if not tested:
            return []
        differences = Differences.of(np.stack([item[-1] for item in tested], 1), self.options)
        corrected = holm(differences.p)
        return [
            {
                "layer": one,
                "first": dict(first),
                "second": dict(second),
                **differences.at((i,)),
                "p_holm": float(corrected[i]),
            }
            for i, (one, first, second, _) in enumerate(tested)
        ]

    def _by_layer(
        self, row: dict[str, Any], layer: int | None, choices: dict[str, Any]
    ) -> dict[int | None, NDArray[np.float64]]:
        """Return a row's numbers of each text by layer; by None if it has no layers."""
        values = self.per_text(**_named(row), **choices)
        if values.ndim == 1:
            return {None: values}
        found: dict[int | None, NDArray[np.float64]]
        found = {one: values[:, i] for i, one in enumerate(self.layers)}
        if layer is None:
            return found
        one = self.layers[-1] if layer == -1 else layer
        return {one: values[:, _place(one, self.layers, "layer")]}

    def faithfulness_summary(self) -> list[dict[str, Any]]:
        """Return how the answer changes when tokens are removed in the order of the scores.

        Returns:
            For each method (with its "edges", "receptive_field" and "layer"), each reference and
            each baseline, the "measure" (of `FAITHFULNESS`), and as in `summary` "mean", "std",
            "ci", "count" and "undefined". Empty if faithfulness was not measured.
        """
        return self._measured("faithfulness")

    def evidence_summary(self) -> list[dict[str, Any]]:
        """Return how far up the scores rank the evidence.

        Returns:
            As in `faithfulness_summary`; the "measure" is of `EVIDENCE`. Empty if no evidence was
            given.
        """
        return self._measured("evidence")

    def _measured(self, name: str) -> list[dict[str, Any]]:
        if getattr(self, name) is None:
            return []
        rows = [*self.rows(), *({"reference": one} for one in self.references)]
        rows += [{"baseline": one} for one in self.baselines]
        result = []
        for row in rows:
            found = [self.summary(measure=measure, **_named(row)) for measure in MEASURES[name]]
            for values in zip(*found, strict=True):
                result += [
                    {**row, "measure": measure, **one}
                    for measure, one in zip(MEASURES[name], values, strict=True)
                ]
        return result

    def counts(self) -> dict[str, int]:
        """Return how many texts were given, measured, and left out for what reason.

        Returns:
            "texts", "measured", each reason of `attnflow.evaluate.evidence.LEFT_OUT` that occurs,
            and "other reasons". Texts that are pending are not counted.
        """
        return tally(len(self.texts), [item.reason for item in self.skipped])

    # ---- Files and tables ------------------------------------------------------------------------

    def to_dict(self, *, per_text: bool = True) -> dict[str, Any]:
        """Return the evaluation as lists, dictionaries, strings and numbers.

        Args:
            per_text: Whether to include the numbers of every text. Without them, `from_dict`
                cannot read the evaluation.

        Returns:
            What JSON can hold without loss, with the keys "format" and "version" first. None stands
            for a number that is not defined. By `MAIN_MEASURES`, methods are compared in the last
            layer.
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
            "counts": self.counts(),
            "skipped": self.skipped,
            "results": results,
            "baseline_names": self.baselines,
            "baselines": baselines,
            "comparisons": [
                {"over": over, "measure": "correlation", **column, **item}
                for over in COMPARISONS
                for column in columns
                for item in self.compare(over, **column)
            ]
            + [
                {"over": over, "measure": measure, **item}
                for measure in self.main_measures
                for over in COMPARISONS
                for item in self.compare(over, measure=measure, layer=-1)
            ],
            "faithfulness": self.faithfulness_summary(),
            "evidence": self.evidence_summary(),
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
            count = len(texts)
            columns = (len(data["drop_sinks"]), len(data["references"]), 2)
            baselines = data["baseline_names"]
            guesses = _numbers([item["per_text"] for item in data["baselines"]])
            shape = (len(baselines), *columns, count)
            return cls(
                **{name: data[name] for name in _PLAIN},
                baselines=baselines,
                texts=texts,
                skipped=[Skipped(**item) for item in data["skipped"]],
                correlations=_read_results(data, count, columns),
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
        """Return the correlations and other measures as a pandas data frame.

        Args:
            per_text: Whether there is a row for every text, instead of the mean over texts.

        Returns:
            A `pandas.DataFrame`, one row for each method, edges, receptive field, reference, choice
            of tokens and layer, and for each baseline. Its first columns name these, and the
            measure: "correlation", or one of `FAITHFULNESS` and `EVIDENCE`, for which there is also
            a row for each reference. Then follow mean, std, low and high (the ends of the
            confidence interval), count and undefined; or with `per_text` the number of the text and
            its value.

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
        baselines, references = (
            [{"method": name, "edges": None, "receptive_field": None} for name in names]
            for names in (self.baselines, self.references)
        )
        entries = [
            (row, {"measure": "correlation", **column})
            for row, column in itertools.product([*rows, *baselines], self._columns())
        ]
        nothing = dict.fromkeys(("reference", "special_tokens", "drop_sink"))
        for name in ("faithfulness", "evidence"):
            if getattr(self, name) is not None:
                entries += [
                    (row, {"measure": measure, **nothing})
                    for row in [*self.rows(), *references, *baselines]
                    for measure in MEASURES[name]
                ]
        for row, column in entries:
            numbers = self.per_text(**row, **column) if per_text else None
            for j, values in enumerate(self.summary(**row, **column)):
                named = {**row, **column, "layer": values.pop("layer")}
                if numbers is None:
                    low, high = values.pop("ci")
                    mean, std = values.pop("mean"), values.pop("std")
                    yield {**named, "mean": mean, "std": std, "low": low, "high": high, **values}
                    continue
                chosen = numbers if numbers.ndim == 1 else numbers[:, j]
                for text, number in zip(self.texts, chosen.tolist(), strict=True):
                    yield {**named, "text": text.number, "value": number}

    # ---- Indices ---------------------------------------------------------------------------------

    def _given(self) -> dict[str, Any]:
        """Return the arguments that the evaluation was made from."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {**given, "options": dict(self.options)}

    @property
    def main_measures(self) -> tuple[str, ...]:
        """Those of `MAIN_MEASURES` that were measured."""
        return tuple(
            measure for measure in MAIN_MEASURES if getattr(self, _array_of(measure)) is not None
        )

    def _rows(self, *, unique: bool = False) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
        """Return the index of each row in the arrays, and the row.

        With `unique`, raw attention has one row for all receptive fields, because the receptive
        field does not change its ranks.
        """
        return _rows_of(self.edges, self.methods, self.receptive_fields, unique)

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
        measure: str = "correlation",
        edges: str | None = None,
        receptive_field: bool | None = None,
        drop_sink: bool | None = None,
        reference: str | None = None,
        special_tokens: bool | None = True,
    ) -> tuple[str, tuple[int | slice, ...]]:
        """Return the name of the array that has the numbers of a choice, and their index there."""
        column: tuple[int, ...]
        if measure == "correlation":
            name, fixed, others = "correlations", "baseline_correlations", self.baselines
            column = (
                _place(drop_sink, self.drop_sinks, "drop_sink"),
                _place(reference, self.references, "reference"),
                _place(special_tokens, (True, False), "special_tokens"),
            )
        else:
            name = _array_of(measure)
            fixed, others = f"other_{name}", (*self.references, *self.baselines)
            column = (MEASURES[name].index(measure),)
            if getattr(self, name) is None:
                raise OptionError(f"measure is {measure!r}, but {name} was not evaluated")
        if method in others:
            return fixed, (others.index(method), *column)
        row = (
            _place(edges, self.edges, "edges"),
            _place(method, self.methods, "method"),
            _place(receptive_field, self.receptive_fields, "receptive_field"),
        )
        layer = 0 if method in ANSWER_METHODS else EVERY
        # Correlations have their layers last.
        return name, (*row, *column, layer) if measure == "correlation" else (*row, layer, *column)

    def _means(self, name: str) -> Means:
        """Return the means over texts of an array, computed once."""
        if name not in self._cache:
            self._cache[name] = Means.of(getattr(self, name), self.options)
        means: Means = self._cache[name]
        return means


# The fields that `to_dict` writes as they are.
_AXES = ("methods", "edges", "receptive_fields", "drop_sinks", "references", "layers")
_PLAIN = ("model", "task", "fingerprint", *_AXES, "options", "pending", "notes")


def _array_of(measure: str) -> str:
    """Return the name of the array of a measure other than correlations."""
    choice(measure, "measure", ("correlation", *FAITHFULNESS, *EVIDENCE))
    return "faithfulness" if measure in FAITHFULNESS else "evidence"


def _rows_of(
    edges: Sequence[str], methods: Sequence[str], fields: Sequence[bool], unique: bool = False
) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """Return the index of each row in the arrays, and the row. A method without layers has one."""
    rows: list[tuple[tuple[int, ...], dict[str, Any]]] = []
    for (e, kind), (m, method), (f, relative) in itertools.product(
        *map(enumerate, (edges, methods, fields))
    ):
        row: dict[str, Any] = {"method": method, "edges": kind, "receptive_field": relative}
        if method in ANSWER_METHODS:
            if e or f:
                continue
            row |= {"edges": None, "receptive_field": None}
        if not unique or method != "raw" or f == 0:
            rows.append(((e, m, f), row))
    return rows


def _read_results(
    data: Mapping[str, Any], count: int, columns: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return the correlations of the texts from the "results" of a dictionary."""
    axes = [data[name] for name in ("edges", "methods", "receptive_fields")]
    rows, each = _rows_of(*axes), int(np.prod(columns))
    results = data["results"]
    if len(results) != len(rows) * each:
        raise ValueError(f"{len(results)} results instead of {len(rows) * each}")
    depth = len(data["layers"])
    found = np.empty((count, *map(len, axes), *columns, depth))
    for i, ((e, m, f), row) in enumerate(rows):
        values = _numbers([item["per_text"] for item in results[i * each : (i + 1) * each]])
        if row["edges"] is None:
            values = np.moveaxis(values.reshape(*columns, count, 1), -2, 0)
            found[:, :, m] = values[:, None, None]
        else:
            found[:, e, m, f] = np.moveaxis(values.reshape(*columns, count, depth), -2, 0)
    return found


def _differ_in(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return what two rows differ in, but for what one of them has not."""
    pairs = {name: (first[name], second[name]) for name in first}
    return [name for name, (a, b) in pairs.items() if a != b and None not in (a, b)]


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Evaluation.per_text` for a row, a baseline or a reference."""
    if "method" in row:
        return dict(row)
    [name] = row.values()
    return {"method": name}


def _place(value: Any, valid: Sequence[Any], name: str) -> int:
    """Return the index of a choice among those evaluated. None is the first."""
    if value is None and name != "method" and valid:
        return 0
    for place, item in enumerate(valid):
        if type(item) is type(value) and item == value:
            return place
    evaluated = ", ".join(map(repr, valid)) or "none"
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
    if array.size == 0 and 0 in shape:
        # Nested lists do not say what axes come after an empty one.
        array = array.reshape(shape)
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
