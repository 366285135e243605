"""The paper's Tables 1 to 3: how well attention agrees with what the model depends on.

`attnflow.evaluate.evaluate` makes them, like any other evaluation. This module has the paper's
settings, and the numbers that the paper prints, to compare with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attnflow.errors import OptionError
from attnflow.evaluate import evaluate
from attnflow.formats import without_nan
from attnflow.paper.result import METHODS, Result, digits, spread
from attnflow.view.export import csv_text
from attnflow.view.tables import Report, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.evaluate import Evaluation
    from attnflow.models import Explainer

__all__ = ["METHODS", "TABLES", "Printed", "Replication", "Setting", "make_table"]

COLUMNS: Final = (
    *("special_tokens", "method", "layer", "mean", "std", "ci_low", "ci_high", "count"),
    *("paper_mean", "paper_std"),
)
PANELS: Final = {
    True: "Special tokens scored too, as in the paper",
    False: "Special tokens left out",
}
"""The two halves of a table: whether special tokens are among those scored."""


class Printed(NamedTuple):
    """A number as the paper prints it: the mean and standard deviation over sentences."""

    mean: float
    std: float


class Setting(NamedTuple):
    """The settings and the numbers of a table of the paper.

    Attributes:
        number: The table's number in the paper.
        task: The task, in words.
        reference: What attention is compared with.
        layers: The layers that the table has columns for.
        depth: The number of layers of the paper's model.
        sentences: The number of sentences.
        printed: The paper's numbers: for each method one for each layer.
    """

    number: int
    task: str
    reference: str
    layers: tuple[int, ...]
    depth: int
    sentences: int
    printed: Mapping[str, tuple[Printed, ...]]


def _printed(**rows: str) -> Mapping[str, tuple[Printed, ...]]:
    return {
        method: tuple(Printed(*map(float, cell.split("\u00b1"))) for cell in row.split())
        for method, row in rows.items()
    }


# Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.
TABLES: Final = {
    1: Setting(
        1,
        "verb number",
        "blank_out",
        (1, 2, 3, 4, 5, 6),
        6,
        2000,
        _printed(
            raw="0.69±0.27 0.10±0.43 -0.11±0.49 -0.09±0.52 0.20±0.45 0.29±0.39",
            rollout="0.32±0.26 0.38±0.27 0.51±0.26 0.62±0.26 0.70±0.25 0.71±0.24",
            flow="0.32±0.26 0.44±0.29 0.70±0.25 0.70±0.22 0.71±0.22 0.70±0.22",
        ),
    ),
    2: Setting(
        2,
        "verb number",
        "input_gradient",
        (1, 2, 3, 4, 5, 6),
        6,
        2000,
        _printed(
            raw="0.53±0.33 0.16±0.38 -0.06±0.42 0.00±0.47 0.24±0.40 0.46±0.35",
            rollout="0.22±0.31 0.27±0.32 0.39±0.32 0.47±0.32 0.53±0.32 0.54±0.31",
            flow="0.22±0.31 0.31±0.34 0.54±0.32 0.61±0.28 0.60±0.28 0.61±0.28",
        ),
    ),
    3: Setting(
        3,
        "sentiment (SST-2)",
        "input_gradient",
        (1, 3, 5, 6),
        6,
        100,
        _printed(
            raw="0.12±0.21 0.09±0.21 0.08±0.20 0.09±0.21",
            rollout="0.11±0.19 0.12±0.21 0.13±0.21 0.13±0.20",
            flow="0.11±0.19 0.11±0.21 0.12±0.22 0.14±0.21",
        ),
    ),
}

_REFERENCES: Final = {
    "blank_out": "blank-out",
    "input_gradient": "input gradients (summed)",
    "gradient_norm": "input gradients (norm)",
    "gradient_x_input": "gradient x input",
}
# The paper sums a token's gradient over the dimensions. In a model that begins or ends with layer
# normalisation, which subtracts the mean, this sum is 0 up to rounding. The default is the norm.
_INSTEAD: Final = {"input_gradient": "gradient_norm"}


class Replication(NamedTuple):
    """A table of the paper, made again.

    Attributes:
        setting: What the paper did and found.
        evaluation: What was measured.
        labels: The correct class of each sentence, by its number from 1.
        data: Where the sentences are from.
        depth: The number of layers of the model. It is compared with the paper's layer by layer
            only if both have the same number.
    """

    setting: Setting
    evaluation: Evaluation
    labels: Mapping[int, int | str]
    data: str
    depth: int | None

    def rows(self, method: str, *, special_tokens: bool = True) -> list[dict[str, Any]]:
        """Return what was measured for a method or a baseline.

        Args:
            method: "raw", "rollout", "flow", or one of the evaluation's baselines.
            special_tokens: Whether special tokens are among those scored, as in the paper.

        Returns:
            For each layer its "layer", "mean", "std", "ci", "count" and "undefined".
        """
        return self.evaluation.summary(
            method, reference=self.setting.reference, special_tokens=special_tokens
        )

    def printed(self, method: str, layer: int) -> Printed | None:
        """Return the paper's number for a method and layer.

        Args:
            method: The method.
            layer: The layer, from 1.

        Returns:
            The number; None for a layer that the paper does not show, or a model of another depth.
        """
        if self.depth != self.setting.depth:
            return None
        if method not in self.setting.printed or layer not in self.setting.layers:
            return None
        return self.setting.printed[method][self.setting.layers.index(layer)]

    @property
    def accuracy(self) -> float | None:
        """The share of sentences that the model classifies correctly; None if unknown."""
        right = [
            self.labels[text.number] in (text.prediction.index, text.prediction.label)
            for text in self.evaluation.texts
            if text.prediction is not None and text.number in self.labels
        ]
        return sum(right) / len(right) if right else None

    def result(self) -> Result:
        """Return the table for printing and saving."""
        texts = {".md": self.to_markdown, ".csv": self.to_csv}
        return Result(self.to_dict(), self.report, self.draw, texts)

    def to_dict(self) -> dict[str, Any]:
        """Return the table's numbers.

        Returns:
            "raw", "rollout" and "flow", each a list over layers of "mean", "std" and "ci"; the same
            three under "without_special_tokens"; "layers", and under "defined" the number of
            sentences that each mean is of; "baselines"; the paper's numbers under "paper"; and how
            the table was made. What is not defined, such as the mean of no correlation, is None.
        """
        measured = self.evaluation
        sides = {"with_special_tokens": True, "without_special_tokens": False}

        def numbers(name: str, special: bool) -> list[dict[str, Any]]:
            rows = self.rows(name, special_tokens=special)
            return [{key: row[key] for key in ("mean", "std", "ci")} for row in rows]

        found: dict[str, Any] = {
            **{method: numbers(method, True) for method in METHODS},
            "without_special_tokens": {method: numbers(method, False) for method in METHODS},
            "layers": list(measured.layers),
            "defined": {
                side: {
                    method: [row["count"] for row in self.rows(method, special_tokens=special)]
                    for method in METHODS
                }
                for side, special in sides.items()
            },
            "baselines": {
                name: {side: numbers(name, special)[0] for side, special in sides.items()}
                for name in measured.baselines
            },
            "paper": {
                method: [
                    {"layer": layer, **number._asdict()}
                    for layer, number in zip(self.setting.layers, numbers, strict=True)
                ]
                for method, numbers in self.setting.printed.items()
            },
            "table": self.setting.number,
            "task": self.setting.task,
            "reference": self.setting.reference,
            "count": len(measured.texts),
            "skipped": len(measured.skipped),
            "accuracy": self.accuracy,
            "model": measured.model,
            "fingerprint": measured.fingerprint,
            "data": self.data,
            "options": dict(measured.options),
        }
        defined: dict[str, Any] = without_nan(found)
        return defined

    def report(self) -> Report:
        """Return the table for printing: our numbers, with the paper's below them."""
        tables = [self._panel(special) for special in PANELS]
        return Report(f"Table {self.setting.number}: {self.caption()}", tables, self._remarks())

    def to_text(self) -> str:
        """Return the table as plain text, in lines of up to 100 characters."""
        return self.report().plain(100)

    def to_markdown(self) -> str:
        """Return the table in Markdown: with special tokens, as in the paper, and without."""
        parts = [f"**Table {self.setting.number}.** {self.caption()}"]
        for special, title in PANELS.items():
            parts += [f"{title}:", self._panel(special).markdown()]
        return "\n\n".join([*parts, *self._remarks()]) + "\n"

    def to_csv(self) -> str:
        """Return the table as comma-separated values, one line for each number.

        Returns:
            The columns are special_tokens, method, layer, mean, std, ci_low, ci_high, count,
            paper_mean and paper_std.
        """
        rows = []
        for special in PANELS:
            for method in (*METHODS, *self.evaluation.baselines):
                for row in self.rows(method, special_tokens=special):
                    known = self.printed(method, row["layer"]) if special else None
                    mine = (row["layer"], row["mean"], row["std"], *row["ci"], row["count"])
                    rows.append((special, method, *mine, *(known or (None, None))))
        return csv_text(COLUMNS, rows)

    def plot(self, ax: Any = None, *, special_tokens: bool = True) -> tuple[Figure, Axes]:
        """Draw the correlation over the layers, with the paper's as dotted lines.

        Args:
            ax: The axes of matplotlib to draw into. None makes a figure.
            special_tokens: Whether special tokens are among those scored.

        Returns:
            The figure and the axes.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        from attnflow.view.figures import correlation_over_layers

        curves: dict[str, Any] = {
            method: self.rows(method, special_tokens=special_tokens) for method in METHODS
        }
        if special_tokens:
            for method in METHODS:
                curves[f"{method}, paper"] = [
                    {"layer": row["layer"], "mean": number.mean}
                    for row in curves[method]
                    if (number := self.printed(method, row["layer"])) is not None
                ]
        baselines = {
            name: self.rows(name, special_tokens=special_tokens)[0]["mean"]
            for name in self.evaluation.baselines
            # The same line with the other sign.
            if name != "position_reversed"
        }
        return correlation_over_layers(
            {name: curve for name, curve in curves.items() if curve},
            ax,
            baselines={name: mean for name, mean in baselines.items() if mean == mean},
            title=f"Table {self.setting.number}: {self.setting.task}, "
            f"{_REFERENCES[self.setting.reference]}",
        )

    def draw(self) -> Figure:
        """Draw the table twice: with special tokens, as in the paper, and without.

        Returns:
            The figure, of two panels with one scale.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        from attnflow.view import theme

        figure = theme.new_figure(10.4, 3.3)
        left, right = figure.subplots(1, 2, sharey=True)
        for ax, special, title in (
            (left, True, "special tokens scored, as in the paper"),
            (right, False, "special tokens left out"),
        ):
            self.plot(ax, special_tokens=special)
            theme.set_title(ax, f"Table {self.setting.number}: {title}")
        # The left panel has all curves of the right one, and the paper's.
        handles, names = left.get_legend_handles_labels()
        left.get_legend().remove()
        right.get_legend().remove()
        right.legend(
            handles,
            names,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.02),
            frameon=False,
            handlelength=2.6,
            prop={"family": theme.FONT, "size": theme.TEXT_SIZE},
        )
        right.set_ylabel("")
        return figure

    def caption(self) -> str:
        """Return what the table shows, without the table's number."""
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.3f}"
        return (
            f"Spearman's rank correlation of attention with {_REFERENCES[self.setting.reference]}, "
            f"{self.setting.task}.\nMean \u00b1 standard deviation over "
            f"{len(self.evaluation.texts):,} sentences of {self.data}; model "
            f"{_short(self.evaluation.model)}{accuracy}."
        )

    def _panel(self, special: bool) -> Table:
        layers = [row["layer"] for row in self.rows("raw")]
        cells = []
        for method in METHODS:
            rows = self.rows(method, special_tokens=special)
            cells.append([method, "ours", *(spread(row["mean"], row["std"]) for row in rows)])
            cells.append(["", "95% CI", *(_interval(row["ci"]) for row in rows)])
            known = [self.printed(method, layer) for layer in layers]
            if special and any(known):
                cells.append(
                    ["", "paper", *(spread(*number) if number else "" for number in known)]
                )
        return Table(PANELS[special], ["", "", *(f"L{layer}" for layer in layers)], cells, left=2)

    def _remarks(self) -> list[str]:
        measured, setting = self.evaluation, self.setting
        remarks = []
        for title, special in (("with", True), ("without", False)):
            known = [
                f"{name} {spread(row['mean'], row['std'])}"
                for name in measured.baselines
                for row in self.rows(name, special_tokens=special)
            ]
            if known:
                remarks.append(f"Baselines {title} special tokens: {', '.join(known)}.")
        undefined = max(row["undefined"] for method in METHODS for row in self.rows(method))
        if undefined:
            remarks.append(
                f"Up to {undefined:,} sentences have no correlation, because all their scores or "
                "all their importances are equal; the means leave them out."
            )
        if measured.skipped:
            remarks.append(f"{len(measured.skipped):,} sentences could not be evaluated.")
        if self.depth != setting.depth:
            remarks.append(
                f"The paper's model has {setting.depth} layers; its numbers are not shown beside "
                "those of a model of another depth."
            )
        if TABLES[setting.number].reference != setting.reference:
            remarks.append(
                "The paper compares with the gradient summed over the dimensions, which is 0 up to "
                "rounding in a model with layer normalisation; --reference chooses another."
            )
        remarks += [f"Note: {note}" for note in measured.notes]
        if len(measured.texts) != setting.sentences:
            remarks.append(f"The paper has {setting.sentences:,} sentences.")
        return remarks


def make_table(
    number: int,
    explainer: Explainer,
    sentences: Sequence[tuple[str, int | str]],
    *,
    reference: str | None = None,
    layers: Sequence[int] | None = None,
    data: str = "the sentences given",
    baselines: bool = True,
    samples: int = 2000,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    progress: Callable[..., Any] | None = None,
) -> Replication:
    """Make one of the paper's tables again, on any model and any sentences.

    As in the paper, importance is measured on the probability of the correct class, and attention
    is that of the CLS embedding.

    Args:
        number: The table: 1, 2 or 3.
        explainer: The model, a classifier.
        sentences: Texts, each with its correct class by name or index.
        reference: What attention is compared with, of `attnflow.importance.REFERENCES`. None means
            blank-out for Table 1, and the norm of the input gradient for Tables 2 and 3: the sum
            that the paper uses is 0 up to rounding in models with layer normalisation.
        layers: The layers. None means the paper's if the model has as many layers as the paper's,
            and all otherwise.
        data: Where the sentences are from, in words.
        baselines: Whether to add the correlations of baselines that do not know the model.
        samples: How many bootstrap samples to draw for confidence intervals.
        seed: The seed of the samples.
        store: A file to keep finished sentences in, from which a run is resumed.
        progress: Called as described in `attnflow.evaluate.evaluate`.

    Returns:
        The table.

    Raises:
        OptionError: If an argument is not valid, or the model is not a classifier of these classes.
    """
    if number not in TABLES:
        raise OptionError(f"number is {number!r}; expected {', '.join(map(str, TABLES))}")
    setting = TABLES[number]
    if reference is None:
        reference = _INSTEAD.get(setting.reference, setting.reference)
    elif reference not in _REFERENCES:
        raise OptionError(f"reference is {reference!r}; expected {', '.join(_REFERENCES)}")
    if explainer.task != "classification":
        raise OptionError(
            f"table {number} needs a classifier, but {explainer.name} is a model for "
            f"{explainer.task}"
        )
    if not sentences:
        raise OptionError("sentences is empty; expected one or more")
    known = {str(name) for name in explainer.model.config.id2label.values()}
    for text, label in sentences:
        if isinstance(label, str) and label not in known:
            raise OptionError(
                f"the sentence {text!r} has the label {label!r}, but the classes of "
                f"{_short(explainer.name)} are {', '.join(sorted(known))}"
            )
    depth = getattr(explainer.model.config, "num_hidden_layers", None)
    if layers is None and depth == setting.depth:
        layers = setting.layers
    evaluation = evaluate(
        explainer,
        [text for text, _ in sentences],
        methods=METHODS,
        references=(reference,),
        layers=layers,
        targets=[label for _, label in sentences],
        # For a bidirectional model "auto" means this, and the paper has no other models.
        receptive_field=False,
        baselines=baselines,
        samples=samples,
        seed=seed,
        store=store,
        progress=progress,
    )
    labels = {i: label for i, (_, label) in enumerate(sentences, 1)}
    return Replication(setting._replace(reference=reference), evaluation, labels, data, depth)


def _interval(ends: Sequence[float] | None) -> str:
    known = [end for end in ends or () if end == end]
    # Without the zeros before the points, an interval is as narrow as a mean and its deviation.
    return " to ".join(digits(end).replace("0.", ".", 1) for end in known)


def _short(name: str) -> str:
    """Return the last folder of a path, which tells which model it is."""
    return name.replace("\\", "/").rstrip("/").split("/")[-1] or name
