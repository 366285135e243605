"""Evaluation: how far methods agree with references over many texts, and how sure that is."""

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MissingExtraError, OptionError
from attnflow.evaluate.measure import listed
from attnflow.evaluate.significance import bootstrap_interval, holm, sign_flip_test
from attnflow.explanation import Prediction
from attnflow.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COMPARISONS", "FAITHFULNESS", "EvaluatedText", "Evaluation", "Skipped"]

FORMAT = "attnflow.evaluation"
VERSION = 1

FAITHFULNESS = ("comprehensiveness", "sufficiency", "aopc", "log_odds")
"""What is measured when tokens are really removed."""

COMPARISONS = ("method", "edges", "receptive_field", "baseline")
"""What two things that are compared may differ in."""


class EvaluatedText(NamedTuple):
    """A text, a pair of texts or an image that was evaluated.

    Attributes:
        number: Its number among those given, or its line in their file, from 1.
        tokens: How many tokens were scored, special ones included.
        position: The position explained; the last, if every token of a target was asked about.
        target: The class or token that the references are for; the whole target, if every token of
            it was asked about.
        prediction: What the model answered; None if it was asked more than once.
    """

    number: int
    tokens: int
    position: int
    target: str | None
    prediction: Prediction | None


class Skipped(NamedTuple):
    """A text that could not be evaluated.

    Attributes:
        number: Its number among those given, or its line in their file, from 1.
        reason: Why not.
    """

    number: int
    reason: str


class Evaluation:
    """Rank correlations of methods with references, one a text, and what follows from them.

    Evaluations are immutable. `attnflow.evaluate.evaluate` makes them.

    Args:
        model: The model's name.
        task: What the model does.
        fingerprint: What stands for the model's weights, see `Explainer.fingerprint`.
        layers: The L layers, from 1.
        methods: The M methods.
        edges: The E kinds of edges.
        receptive_fields: For each of F columns whether scores are related to uniform attention.
        drop_sinks: For each of D columns whether the attention sink was left out.
        references: The R references.
        baselines: The B baselines.
        options: Every other option. "samples", "permutations", "level" and "seed" are those of the
            statistics.
        texts: The N texts evaluated.
        skipped: The texts that could not be.
        pending: How many texts there was no time for.
        notes: Warnings, in words.
        correlations: Spearman's rank correlations, of shape (N, E, M, F, D, R, 2, L). The axis of
            length 2 has all tokens first, then those that are not special. NaN where fewer than
            two tokens are left, or all scores are the same.
        baseline_correlations: The same for the baselines, of shape (N, B, D, R, 2).
        faithfulness: What removing tokens in the order of the scores does, of shape
            (N, E, M, F, L, 4), or None; the last axis is `FAITHFULNESS`.
        other_faithfulness: The same for references and baselines, of shape (N, R + B, 4), or None.

    Attributes:
        model: As given.
        task: As given.
        fingerprint: As given.
        layers: As given, a tuple; so are `methods`, `edges`, `receptive_fields`, `drop_sinks`,
            `references`, `baselines`, `texts`, `skipped` and `notes`.
        options: As given, read-only.
        pending: As given.
        correlations: As given, read-only; so are the other arrays.

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

    __slots__ = (
        "_cache",
        "baseline_correlations",
        "baselines",
        "correlations",
        "drop_sinks",
        "edges",
        "faithfulness",
        "fingerprint",
        "layers",
        "methods",
        "model",
        "notes",
        "options",
        "other_faithfulness",
        "pending",
        "receptive_fields",
        "references",
        "skipped",
        "task",
        "texts",
    )

    model: str
    task: str
    fingerprint: str
    layers: tuple[int, ...]
    methods: tuple[str, ...]
    edges: tuple[str, ...]
    receptive_fields: tuple[bool, ...]
    drop_sinks: tuple[bool, ...]
    references: tuple[str, ...]
    baselines: tuple[str, ...]
    options: Mapping[str, Any]
    texts: tuple[EvaluatedText, ...]
    skipped: tuple[Skipped, ...]
    pending: int
    notes: tuple[str, ...]
    correlations: NDArray[np.float64]
    baseline_correlations: NDArray[np.float64]
    faithfulness: NDArray[np.float64] | None
    other_faithfulness: NDArray[np.float64] | None
    _cache: dict[Any, Any]

    def __init__(
        self,
        *,
        model: str,
        task: str,
        fingerprint: str,
        layers: Sequence[int],
        methods: Sequence[str],
        edges: Sequence[str],
        receptive_fields: Sequence[bool],
        drop_sinks: Sequence[bool],
        references: Sequence[str],
        baselines: Sequence[str],
        options: Mapping[str, Any],
        texts: Sequence[EvaluatedText],
        skipped: Sequence[Skipped],
        pending: int,
        correlations: Any,
        baseline_correlations: Any,
        faithfulness: Any = None,
        other_faithfulness: Any = None,
        notes: Sequence[str] = (),
    ) -> None:
        count, depth = len(texts), len(layers)
        rows = (len(edges), len(methods), len(receptive_fields))
        columns = (len(drop_sinks), len(references), 2)
        others = len(references) + len(baselines)
        given: dict[str, Any] = {
            "model": model,
            "task": task,
            "fingerprint": fingerprint,
            "layers": tuple(layers),
            "methods": tuple(methods),
            "edges": tuple(edges),
            "receptive_fields": tuple(receptive_fields),
            "drop_sinks": tuple(drop_sinks),
            "references": tuple(references),
            "baselines": tuple(baselines),
            "options": MappingProxyType(dict(options)),
            "texts": tuple(texts),
            "skipped": tuple(skipped),
            "pending": pending,
            "notes": tuple(notes),
            "correlations": _array(
                correlations, "correlations", (count, *rows, *columns, depth), bound=True
            ),
            "baseline_correlations": _array(
                baseline_correlations,
                "baseline_correlations",
                (count, len(baselines), *columns),
                bound=True,
            ),
            "faithfulness": None
            if faithfulness is None
            else _array(faithfulness, "faithfulness", (count, *rows, depth, len(FAITHFULNESS))),
            "other_faithfulness": None
            if other_faithfulness is None
            else _array(
                other_faithfulness, "other_faithfulness", (count, others, len(FAITHFULNESS))
            ),
            "_cache": {},
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Evaluation is immutable: {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Evaluation is immutable: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        mine, others = self._given(), other._given()
        arrays = [name for name, value in mine.items() if isinstance(value, np.ndarray)]
        return (
            all(
                isinstance(others[name], np.ndarray)
                and np.array_equal(mine.pop(name), others.pop(name), equal_nan=True)
                for name in arrays
            )
            and mine == others
        )

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.layers, self.methods, self.texts))

    def __reduce__(self) -> "tuple[Callable[..., Evaluation], tuple[dict[str, Any]]]":
        return _from_given, (self._given(),)

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.model!r}, {len(self.texts)} texts, {', '.join(self.methods)} "
            f"against {', '.join(self.references)}, {len(self.layers)} layers)"
        )

    # ---- Correlations ----------------------------------------------------------------------------

    def per_text(
        self,
        method: str,
        layer: int | None = None,
        *,
        reference: str | None = None,
        edges: str | None = None,
        special_tokens: bool = True,
        receptive_field: bool | None = None,
        drop_sink: bool | None = None,
    ) -> NDArray[np.float64]:
        """Return one correlation a text.

        Args:
            method: The method, or a baseline.
            layer: The layer, from 1; -1 is the last evaluated. None means all, and is the only
                choice for a baseline, which has no layers.
            reference: The reference. None means the first evaluated; so it does for all below.
            edges: The edges.
            special_tokens: Whether special tokens are among those scored.
            receptive_field: Whether scores are related to uniform attention.
            drop_sink: Whether the attention sink is left out.

        Returns:
            The correlations, of shape (texts,), or (texts, layers) of a method without a layer.
            NaN where the correlation is not defined.

        Raises:
            OptionError: If something was not evaluated; the message says what was.
        """
        column = self._column(reference, special_tokens, drop_sink)
        if method in self.baselines:
            if layer is not None:
                raise OptionError(f"layer is {layer!r}, but the baseline {method!r} has no layers")
            return self.baseline_correlations[:, self.baselines.index(method), *column]
        values = self.correlations[:, *self._row(method, edges, receptive_field), *column]
        return values if layer is None else values[:, self._layer(layer)]

    def summary(
        self,
        method: str,
        *,
        reference: str | None = None,
        edges: str | None = None,
        special_tokens: bool = True,
        receptive_field: bool | None = None,
        drop_sink: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Return the mean correlation over texts, layer by layer.

        The arguments are those of `per_text`.

        Returns:
            For each layer its "layer", the "mean", "std" (standard deviation over texts), "ci" (the
            ends of the confidence interval of the mean), "count" (texts with a correlation) and
            "undefined" (texts without). For a baseline, one of these, whose layer is None.

        Raises:
            OptionError: If something was not evaluated; the message says what was.
        """
        column = self._column(reference, special_tokens, drop_sink)
        if method in self.baselines:
            place: tuple[int, ...] = (self.baselines.index(method), *column)
            return [_statistics(None, self._baseline_table, place)]
        place = (*self._row(method, edges, receptive_field), *column)
        return [
            _statistics(layer, self._method_table, (*place, i))
            for i, layer in enumerate(self.layers)
        ]

    def compare(
        self,
        over: str = "method",
        *,
        reference: str | None = None,
        special_tokens: bool = True,
        drop_sink: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Test differences between the mean correlations of two rows of the table, text by text.

        All pairs are tested that differ in one thing, in every layer. They are one family, over
        which Holm's method corrects the p-values.

        Args:
            over: What the two differ in: "method", "edges" or "receptive_field"; or "baseline":
                every method against every baseline.
            reference: As in `per_text`.
            special_tokens: As in `per_text`.
            drop_sink: As in `per_text`.

        Returns:
            For each pair and layer: "layer", "first" and "second" (each with its "method", "edges"
            and "receptive_field", or its "baseline"), "difference" (the mean of first minus
            second), its "ci", "count" (texts that have both), "p" of the sign-flip test and
            "p_holm". The list is empty if there is nothing to compare.

        Raises:
            OptionError: If something was not evaluated, or `over` is not valid.
        """
        if over not in COMPARISONS:
            raise OptionError(f"over is {over!r}; expected {', '.join(COMPARISONS)}")
        column = self._column(reference, special_tokens, drop_sink)
        key = ("compare", over, column)
        if key not in self._cache:
            self._cache[key] = self._compare(over, column)
        return [dict(item) for item in self._cache[key]]

    def _compare(self, over: str, column: tuple[int, int, int]) -> list[dict[str, Any]]:
        pairs: list[tuple[dict[str, Any], dict[str, Any], NDArray[np.float64]]] = []
        rows = [(row, self.correlations[:, *place, *column]) for place, row in self._rows()]
        if over == "baseline":
            for (row, mine), (i, name) in itertools.product(rows, enumerate(self.baselines)):
                theirs = self.baseline_correlations[:, i, *column]
                pairs.append((row, {"baseline": name}, mine - theirs[:, None]))
        else:
            for (row, mine), (other, theirs) in itertools.combinations(rows, 2):
                if [name for name in row if row[name] != other[name]] == [over]:
                    pairs.append((row, other, mine - theirs))
        if not pairs:
            return []
        differences = np.stack([difference for *_, difference in pairs], axis=1)
        options = self.options
        ends = bootstrap_interval(
            differences,
            samples=options["samples"],
            level=options["level"],
            seed=options["seed"],
        )
        p = sign_flip_test(differences, permutations=options["permutations"], seed=options["seed"])
        corrected = holm(p)
        known = ~np.isnan(differences)
        counts = known.sum(axis=0)
        means = np.where(known, differences, 0.0).sum(axis=0) / np.where(counts, counts, np.nan)
        return [
            {
                "layer": layer,
                "first": dict(first),
                "second": dict(second),
                "difference": float(means[i, j]),
                "ci": [float(end) for end in ends[:, i, j]],
                "count": int(counts[i, j]),
                "p": float(p[i, j]),
                "p_holm": float(corrected[i, j]),
            }
            for i, (first, second, _) in enumerate(pairs)
            for j, layer in enumerate(self.layers)
        ]

    def _rows(self) -> Iterator[tuple[tuple[int, int, int], dict[str, Any]]]:
        """Yield the place of each row of the table, and what it is; equal rows once only."""
        for e, edges in enumerate(self.edges):
            for m, method in enumerate(self.methods):
                for f, relative in enumerate(self.receptive_fields):
                    # Ranks of raw attention do not change with the receptive field.
                    if method == "raw" and f:
                        continue
                    row = {"method": method, "edges": edges, "receptive_field": relative}
                    yield (e, m, f), row

    # ---- Faithfulness ----------------------------------------------------------------------------

    def faithfulness_summary(self) -> list[dict[str, Any]]:
        """Return what happens to the answer when tokens are removed in the order of the scores.

        Returns:
            For each method (with its "edges", "receptive_field" and "layer"), each reference and
            each baseline, the "measure" (of `FAITHFULNESS`), and as in `summary` "mean", "std",
            "ci", "count" and "undefined". Empty if it was not asked for.
        """
        if self.faithfulness is None or self.other_faithfulness is None:
            return []
        result = []
        table = self._table("faithfulness", self.faithfulness)
        for (e, m, f), row in self._rows():
            for j, layer in enumerate(self.layers):
                for k, measure in enumerate(FAITHFULNESS):
                    values = _statistics(layer, table, (e, m, f, j, k))
                    result.append({**row, "measure": measure, **values})
        table = self._table("other_faithfulness", self.other_faithfulness)
        names = [("reference", name) for name in self.references]
        names += [("baseline", name) for name in self.baselines]
        for i, (kind, name) in enumerate(names):
            for k, measure in enumerate(FAITHFULNESS):
                result.append({kind: name, "measure": measure, **_statistics(None, table, (i, k))})
        return result

    # ---- Files and tables ------------------------------------------------------------------------

    def to_dict(self, *, per_text: bool = True) -> dict[str, Any]:
        """Return the evaluation as lists, dictionaries, strings and numbers.

        Args:
            per_text: Whether the correlations of every text are there, too. Without them it cannot
                be read again.

        Returns:
            What JSON can hold without loss, with the keys "format" and "version" first. None stands
            for what is not defined.
        """
        columns: list[dict[str, Any]] = [
            {"reference": reference, "special_tokens": special, "drop_sink": drop}
            for drop in self.drop_sinks
            for reference in self.references
            for special in (True, False)
        ]
        results = []
        for e, m, f in np.ndindex(*self.correlations.shape[1:4]):
            row: dict[str, Any] = {
                "method": self.methods[m],
                "edges": self.edges[e],
                "receptive_field": self.receptive_fields[f],
            }
            for column in columns:
                result = {**row, **column, "layers": self.summary(**row, **column)}
                if per_text:
                    result["per_text"] = listed(self.per_text(**row, **column))
                results.append(result)
        guesses = []
        for name in self.baselines:
            for column in columns:
                (values,) = self.summary(name, **column)
                del values["layer"]
                result = {"baseline": name, **column, **values}
                if per_text:
                    result["per_text"] = listed(self.per_text(name, **column))
                guesses.append(result)
        data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "task": self.task,
            "fingerprint": self.fingerprint,
            "methods": list(self.methods),
            "edges": list(self.edges),
            "receptive_fields": list(self.receptive_fields),
            "drop_sinks": list(self.drop_sinks),
            "references": list(self.references),
            "layers": list(self.layers),
            "options": dict(self.options),
            "count": len(self.texts),
            "pending": self.pending,
            "skipped": [item._asdict() for item in self.skipped],
            "notes": list(self.notes),
            "results": results,
            "baselines": guesses,
            "comparisons": [
                {"over": over, **column, **item}
                for over in COMPARISONS
                for column in columns
                for item in self.compare(over, **column)
            ],
            "faithfulness": self.faithfulness_summary(),
        }
        if per_text:
            data["texts"] = [
                {
                    **text._asdict(),
                    "prediction": None if text.prediction is None else text.prediction._asdict(),
                }
                for text in self.texts
            ]
            for name in ("faithfulness", "other_faithfulness"):
                values = getattr(self, name)
                data[f"{name}_per_text"] = None if values is None else listed(values)
        defined: dict[str, Any] = _defined(data)
        return defined

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `to_dict` made a dictionary of.

        Args:
            data: The dictionary. Statistics are worked out again, from the correlations of the
                texts.

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
                "data has the means over texts only; expected what to_dict(per_text=True) gives"
            )
        try:
            texts = [
                EvaluatedText(
                    **{
                        **text,
                        "prediction": None
                        if text["prediction"] is None
                        else Prediction(**text["prediction"]),
                    }
                )
                for text in data["texts"]
            ]
            count, depth = len(texts), len(data["layers"])
            names = ("edges", "methods", "receptive_fields")
            rows = [len(data[name]) for name in names]
            columns = (len(data["drop_sinks"]), len(data["references"]), 2)
            baselines = list(dict.fromkeys(item["baseline"] for item in data["baselines"]))
            results = _numbers([item["per_text"] for item in data["results"]])
            guesses = _numbers([item["per_text"] for item in data["baselines"]])
            shape = (len(baselines), *columns, count)
            return cls(
                model=data["model"],
                task=data["task"],
                fingerprint=data["fingerprint"],
                layers=data["layers"],
                methods=data["methods"],
                edges=data["edges"],
                receptive_fields=data["receptive_fields"],
                drop_sinks=data["drop_sinks"],
                references=data["references"],
                baselines=baselines,
                options=data["options"],
                texts=texts,
                skipped=[Skipped(**item) for item in data["skipped"]],
                pending=data["pending"],
                notes=data["notes"],
                correlations=np.moveaxis(results.reshape(*rows, *columns, count, depth), -2, 0),
                baseline_correlations=np.moveaxis(guesses.reshape(shape), -1, 0),
                faithfulness=_numbers(data["faithfulness_per_text"]),
                other_faithfulness=_numbers(data["other_faithfulness_per_text"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"data is not a whole evaluation: {error!r}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the evaluation to a file, whole or not at all.

        Args:
            path: The file. Its ending says what is written: ".json" holds all there is and is what
                `load` reads; ".csv" is the table of `to_dataframe`; ".png", ".svg" and ".pdf" are
                `plot`.

        Raises:
            OptionError: If the ending is not one of these.
            MissingExtraError: If a figure is asked for and matplotlib is not installed.
            OSError: If the file cannot be written. A file that was there before is then as it was.
        """
        name = os.fspath(path)
        ending = check_path(name)
        if ending == ".json":
            content = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)
            write_whole(name, content.encode() + b"\n")
        elif ending == ".csv":
            write_whole(name, self._csv(per_text=False).encode())
        else:
            from attnflow.view.evaluation import render

            write_whole(name, render(self, ending))

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
            of tokens and layer, and for each baseline. Its columns name these; then follow mean,
            std, low and high (the ends of the confidence interval), count and undefined; or with
            `per_text` the number of the text and its correlation.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        import importlib

        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtraError(
                "to_dataframe needs pandas, which cannot be found; run: pip install pandas"
            ) from error
        frame = pandas.DataFrame(list(self._records(per_text)))
        frame["layer"] = frame["layer"].astype("Int64")
        frame["receptive_field"] = frame["receptive_field"].astype("boolean")
        return frame

    def to_csv(self, path: str | os.PathLike[str], *, per_text: bool = False) -> None:
        """Write the table of `to_dataframe` to a file, whole or not at all.

        Args:
            path: The file.
            per_text: As in `to_dataframe`.

        Raises:
            OSError: If the file cannot be written.
        """
        write_whole(os.fspath(path), self._csv(per_text).encode())

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
        from attnflow.view.evaluation import plot

        return plot(self, ax, **options)

    # ---- Inside ----------------------------------------------------------------------------------

    def _given(self) -> dict[str, Any]:
        """Return what the evaluation was made of."""
        given = {name: getattr(self, name) for name in self.__slots__ if name != "_cache"}
        return {**given, "options": dict(self.options)}

    def _row(
        self, method: str, edges: str | None, receptive_field: bool | None
    ) -> tuple[int, int, int]:
        return (
            _place(edges, self.edges, "edges"),
            _place(method, self.methods, "method", self.baselines),
            _place(receptive_field, self.receptive_fields, "receptive_field"),
        )

    def _column(
        self, reference: str | None, special_tokens: bool, drop_sink: bool | None
    ) -> tuple[int, int, int]:
        return (
            _place(drop_sink, self.drop_sinks, "drop_sink"),
            _place(reference, self.references, "reference"),
            _place(special_tokens, (True, False), "special_tokens"),
        )

    def _layer(self, layer: int) -> int:
        if isinstance(layer, int) and layer == -1:
            return len(self.layers) - 1
        return _place(layer, self.layers, "layer")

    @property
    def _method_table(self) -> "_Table":
        return self._table("correlations", self.correlations)

    @property
    def _baseline_table(self) -> "_Table":
        return self._table("baseline_correlations", self.baseline_correlations)

    def _table(self, name: str, values: NDArray[np.float64]) -> "_Table":
        """Return the statistics over texts of an array, worked out once."""
        if name not in self._cache:
            self._cache[name] = _table(values, self.options)
        table: _Table = self._cache[name]
        return table

    def _records(self, per_text: bool) -> Iterator[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"method": method, "edges": edges, "receptive_field": relative}
            for edges in self.edges
            for method in self.methods
            for relative in self.receptive_fields
        ]
        none = {"edges": None, "receptive_field": None}
        rows += [{"method": name, **none} for name in self.baselines]
        columns = itertools.product(self.references, (True, False), self.drop_sinks)
        for row, (reference, special, drop) in itertools.product(rows, list(columns)):
            column: dict[str, Any] = {
                "reference": reference,
                "special_tokens": special,
                "drop_sink": drop,
            }
            named = {**row, **column}
            for j, values in enumerate(self.summary(**row, **column)):
                layer = values.pop("layer")
                if per_text:
                    numbers = self.per_text(**row, **column)
                    numbers = numbers if layer is None else numbers[:, j]
                    for text, number in zip(self.texts, numbers, strict=True):
                        yield {
                            **named,
                            "layer": layer,
                            "text": text.number,
                            "correlation": float(number),
                        }
                else:
                    values["low"], values["high"] = values.pop("ci")
                    order = ("mean", "std", "low", "high", "count", "undefined")
                    yield {**named, "layer": layer, **{name: values[name] for name in order}}

    def _csv(self, per_text: bool) -> str:
        table = io.StringIO()
        writer: Any = None
        for record in self._records(per_text):
            if writer is None:
                writer = csv.DictWriter(table, record)
                writer.writeheader()
            writer.writerow({name: _cell(value) for name, value in record.items()})
        return table.getvalue()


def _from_given(given: dict[str, Any]) -> Evaluation:
    return Evaluation(**given)


class _Table(NamedTuple):
    """Statistics over texts, each of the shape of one text's numbers; `ends` has two of them."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    ends: NDArray[np.float64]
    counts: NDArray[np.int64]
    texts: int


def _table(values: NDArray[np.float64], options: Mapping[str, Any]) -> _Table:
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    filled = np.where(known, values, 0.0)
    means = filled.sum(axis=0) / np.where(counts, counts, np.nan)
    squares = (np.where(known, values - means, 0.0) ** 2).sum(axis=0)
    return _Table(
        means,
        np.sqrt(squares / np.where(counts > 1, counts - 1, np.nan)),
        bootstrap_interval(
            values, samples=options["samples"], level=options["level"], seed=options["seed"]
        ),
        counts,
        len(values),
    )


def _statistics(layer: int | None, table: _Table, place: tuple[int, ...]) -> dict[str, Any]:
    count = int(table.counts[place])
    return {
        "layer": layer,
        "mean": float(table.mean[place]),
        "std": float(table.std[place]),
        "ci": [float(table.ends[0][place]), float(table.ends[1][place])],
        "count": count,
        "undefined": table.texts - count,
    }


def _place(value: Any, valid: Sequence[Any], name: str, more: Sequence[Any] = ()) -> int:
    """Return where an option is among those evaluated; None is the first."""
    if value is None and name != "method":
        return 0
    for place, item in enumerate(valid):
        if type(item) is type(value) and item == value:
            return place
    evaluated = ", ".join(map(repr, (*valid, *more)))
    raise OptionError(f"{name} is {value!r}, which was not evaluated; expected {evaluated}")


def _array(
    values: Any, name: str, shape: tuple[int, ...], *, bound: bool = False
) -> NDArray[np.float64]:
    # The same order in memory makes sums over it the same to the last digit.
    array = np.array(values, dtype=np.float64, order="C")
    if array.shape != shape:
        raise OptionError(f"{name} has shape {array.shape}; expected {shape}")
    if bound and (np.abs(array) > 1).any():
        raise OptionError(f"{name} has a number beyond 1; expected correlations, from -1 to 1")
    array.flags.writeable = False
    return array


def _numbers(values: Any) -> Any:
    """Return nested lists as an array, with NaN for None; None as it is."""
    return None if values is None else np.array(values, dtype=np.float64)


def _defined(value: Any) -> Any:
    """Return a value for JSON, with None for every number that is not defined."""
    if isinstance(value, dict):
        return {name: _defined(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if isinstance(value, float) and value != value else value


ENDINGS = (".json", ".csv", ".png", ".svg", ".pdf")


def check_path(path: str | os.PathLike[str], endings: Sequence[str] = ENDINGS) -> str:
    """See that an evaluation can be saved to a path, before there is one.

    Args:
        path: The file.
        endings: How its name may end.

    Returns:
        How the file's name ends, in small letters.

    Raises:
        OptionError: If the name does not end in one of these, or the folder does not exist.
    """
    name = os.fspath(path)
    ending = os.path.splitext(name)[1].lower()
    if ending not in endings:
        raise OptionError(f"path must end in {' or '.join(endings)}, got {name!r}")
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise OptionError(f"{name!r} cannot be written: there is no folder {folder!r}")
    return ending
