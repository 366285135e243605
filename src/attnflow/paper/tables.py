"""The paper's Tables 1 to 3: how well attention agrees with what the model depends on.

`attnflow.evaluate.evaluate` makes them, like any other evaluation. This module has the paper's
settings, and the numbers that the paper prints, for comparison.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attnflow.checks import choice
from attnflow.errors import OptionError
from attnflow.evaluate import evaluate
from attnflow.formats import without_nan
from attnflow.options import ATTENTION_METHODS as METHODS
from attnflow.paper.result import Result, digits, spread
from attnflow.view import theme
from attnflow.view.evaluation import panels, skipped_notes, statistics_notes
from attnflow.view.export import csv_text
from attnflow.view.tables import Report, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.evaluate import Evaluation
    from attnflow.models import Explainer

__all__ = ["METHODS", "TABLES", "Printed", "Replication", "Setting", "make_table"]

COLUMNS: Final = (
    *("special_tokens", "method", "layer", "mean", "std", "ci_low", "ci_high", "count"),
    *("paper_mean", "paper_std"),
)
PANELS: Final = {
    True: "special tokens scored, as in the paper",
    False: "special tokens left out",
}
"""The two halves of a table: whether special tokens are among those scored."""

DEPTH: Final = 6
"""The number of layers of the paper's models."""


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
        sentences: The number of sentences.
        printed: The paper's numbers: for each method one for each layer.
    """

    number: int
    task: str
    reference: str
    layers: tuple[int, ...]
    sentences: int
    printed: Mapping[str, tuple[Printed, ...]]


def _setting(
    number: int, task: str, reference: str, layers: str, sentences: int, *rows: str
) -> Setting:
    printed = {
        method: tuple(Printed(*map(float, cell.split("\u00b1"))) for cell in row.split())
        for method, row in zip(METHODS, rows, strict=True)
    }
    return Setting(number, task, reference, tuple(map(int, layers.split())), sentences, printed)


# Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.
TABLES: Final = {
    1: _setting(
        *(1, "verb number", "blank_out", "1 2 3 4 5 6", 2000),
        "0.69±0.27 0.10±0.43 -0.11±0.49 -0.09±0.52 0.20±0.45 0.29±0.39",
        "0.32±0.26 0.38±0.27 0.51±0.26 0.62±0.26 0.70±0.25 0.71±0.24",
        "0.32±0.26 0.44±0.29 0.70±0.25 0.70±0.22 0.71±0.22 0.70±0.22",
    ),
    2: _setting(
        *(2, "verb number", "input_gradient", "1 2 3 4 5 6", 2000),
        "0.53±0.33 0.16±0.38 -0.06±0.42 0.00±0.47 0.24±0.40 0.46±0.35",
        "0.22±0.31 0.27±0.32 0.39±0.32 0.47±0.32 0.53±0.32 0.54±0.31",
        "0.22±0.31 0.31±0.34 0.54±0.32 0.61±0.28 0.60±0.28 0.61±0.28",
    ),
    3: _setting(
        *(3, "sentiment (SST-2)", "input_gradient", "1 3 5 6", 100),
        "0.12±0.21 0.09±0.21 0.08±0.20 0.09±0.21",
        "0.11±0.19 0.12±0.21 0.13±0.21 0.13±0.20",
        "0.11±0.19 0.11±0.21 0.12±0.22 0.14±0.21",
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
    """A replication of a table of the paper.

    Attributes:
        setting: The paper's settings and numbers.
        evaluation: What was measured.
        accuracy: The share of sentences that the model classifies correctly.
        data: The source of the sentences.
        depth: The number of layers of the model. The paper's numbers are shown beside those of a
            model with the same number of layers.
    """

    setting: Setting
    evaluation: Evaluation
    accuracy: float
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
        return self.evaluation.summary(method, special_tokens=special_tokens)

    def printed(self, method: str, layer: int) -> Printed | None:
        """Return the paper's number for a method and layer.

        Args:
            method: The method.
            layer: The layer, from 1.

        Returns:
            The number. None if the paper does not show the layer, or the model has another number
            of layers.
        """
        known = dict(zip(self.setting.layers, self.setting.printed.get(method, ()), strict=False))
        return known.get(layer) if self.depth == DEPTH else None

    def result(self) -> Result:
        """Return the table for printing and saving."""
        texts = {".md": self.to_markdown, ".csv": self.to_csv}
        return Result(self.to_dict(), self.to_text, self.draw, texts)

    def to_dict(self) -> dict[str, Any]:
        """Return the table's numbers.

        Returns:
            "raw", "rollout" and "flow", each a list over layers of "mean", "std" and "ci"; the same
            three under "without_special_tokens"; "layers", and under "defined" the number of
            sentences of each mean; "baselines"; the paper's numbers under "paper"; and how the
            table was made. None stands for a number that is not defined.
        """
        measured, setting = self.evaluation, self.setting
        sides = {"with_special_tokens": True, "without_special_tokens": False}

        def numbers(name: str, special: bool) -> list[dict[str, Any]]:
            rows = self.rows(name, special_tokens=special)
            return [{key: row[key] for key in ("mean", "std", "ci")} for row in rows]

        def counts(method: str, special: bool) -> list[int]:
            return [row["count"] for row in self.rows(method, special_tokens=special)]

        found: dict[str, Any] = {
            **{method: numbers(method, True) for method in METHODS},
            "without_special_tokens": {method: numbers(method, False) for method in METHODS},
            "layers": list(measured.layers),
            "defined": {
                side: {method: counts(method, special) for method in METHODS}
                for side, special in sides.items()
            },
            "baselines": {
                name: {side: numbers(name, special)[0] for side, special in sides.items()}
                for name in measured.baselines
            },
            "paper": {
                method: [
                    {"layer": layer, **number._asdict()}
                    for layer, number in zip(setting.layers, row, strict=True)
                ]
                for method, row in setting.printed.items()
            },
            "table": setting.number,
            "task": setting.task,
            "reference": setting.reference,
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

    def to_text(self) -> str:
        """Return the table as plain text, in lines of up to 100 characters."""
        headline = f"Table {self.setting.number}: {self._caption()}"
        return Report(headline, [*map(self._panel, PANELS)], self._notes()).plain(100)

    def to_markdown(self) -> str:
        """Return the table in Markdown: with special tokens, as in the paper, and without."""
        parts = [f"**Table {self.setting.number}.** {self._caption()}"]
        for table in map(self._panel, PANELS):
            parts += [f"{table.title}:", table.markdown()]
        return "\n\n".join([*parts, *self._notes()]) + "\n"

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

    def draw(self) -> Figure:
        """Draw the correlation over the layers twice, with the paper's numbers as dotted lines.

        Returns:
            A figure of two panels with one scale: with special tokens, as in the paper, and
            without.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        figure = panels(self.evaluation)
        for ax, title in zip(figure.axes, PANELS.values(), strict=True):
            theme.set_title(ax, f"Table {self.setting.number}: {title}")
        if self.depth == DEPTH:
            theme.put_text(figure.axes[0].xaxis.label, "layer (dotted: the paper)", theme.TEXT_SIZE)
            for method, numbers in self.setting.printed.items():
                style = theme.style_of(method)
                means = [number.mean for number in numbers]
                look: dict[str, Any] = {"color": style.colour, "markersize": 4}
                figure.axes[0].plot(self.setting.layers, means, f"{style.marker}:", **look)
        return figure

    def _caption(self) -> str:
        return (
            f"Spearman's rank correlation of attention with {_REFERENCES[self.setting.reference]}, "
            f"{self.setting.task}.\n{len(self.evaluation.texts):,} sentences of {self.data}; model "
            f"{self.evaluation.model}, accuracy {self.accuracy:.3f}."
        )

    def _panel(self, special: bool) -> Table:
        layers = self.evaluation.layers
        cells = []
        for method in METHODS:
            rows = self.rows(method, special_tokens=special)
            cells.append([method, "ours", *(spread(row["mean"], row["std"]) for row in rows)])
            cells.append(["", "95% CI", *(_interval(row["ci"]) for row in rows)])
            known = [self.printed(method, layer) for layer in layers]
            if special and any(known):
                numbers = (spread(*number) if number else "" for number in known)
                cells.append(["", "paper", *numbers])
        title = PANELS[special].capitalize()
        return Table(title, ["", "", *(f"L{layer}" for layer in layers)], cells, left=2)

    def _notes(self) -> list[str]:
        measured, setting = self.evaluation, self.setting
        notes = []
        for title, special in (("with", True), ("without", False)):
            known = [
                f"{name} {spread(row['mean'], row['std'])}"
                for name in measured.baselines
                for row in self.rows(name, special_tokens=special)
            ]
            notes.append(f"Baselines {title} special tokens: {', '.join(known)}.")
        undefined = sum(row["undefined"] for method in METHODS for row in self.rows(method))
        notes += statistics_notes(measured.options["level"], measured.notes, undefined)
        notes += skipped_notes(measured.skipped, "could not be evaluated")
        if self.depth != DEPTH:
            notes.append(
                f"The paper's numbers are not shown: they are of a model with {DEPTH} layers."
            )
        if TABLES[setting.number].reference != setting.reference:
            notes.append(
                "The paper compares with the gradient summed over the dimensions, which is 0 up to "
                "rounding in a model with layer normalisation; --reference chooses another."
            )
        if len(measured.texts) != setting.sentences:
            notes.append(f"The paper has {setting.sentences:,} sentences.")
        return notes


def make_table(
    number: int,
    explainer: Explainer,
    sentences: Sequence[tuple[str, int | str]],
    *,
    reference: str | None = None,
    data: str = "the sentences given",
    samples: int = 2000,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    progress: Callable[..., Any] | None = None,
) -> Replication:
    """Replicate one of the paper's tables, with any model and any sentences.

    As in the paper, importance is measured on the probability of the correct class, and attention
    is that of the CLS embedding. A model with six layers has the paper's layers, any other model
    all of its layers.

    Args:
        number: The table: 1, 2 or 3.
        explainer: The model, a classifier.
        sentences: Texts, each with its correct class by name or index.
        reference: What attention is compared with, of `attnflow.importance.REFERENCES`. None means
            blank-out for Table 1, and the norm of the input gradient for Tables 2 and 3. The sum
            that the paper uses is 0 up to rounding in models with layer normalisation.
        data: The source of the sentences, for the caption.
        samples: The number of bootstrap samples for confidence intervals.
        seed: The seed of the samples.
        store: A file that stores finished sentences, from which a run is resumed.
        progress: As in `attnflow.evaluate.evaluate`.

    Returns:
        The table.

    Raises:
        OptionError: If an argument is not valid, or the model is not a classifier of these classes.
    """
    setting = TABLES[choice(number, "number", TABLES)]
    if reference is None:
        reference = _INSTEAD.get(setting.reference, setting.reference)
    choice(reference, "reference", _REFERENCES)
    if explainer.task != "classification":
        raise OptionError(
            f"table {number} needs a classifier, but {explainer.name} is a model for "
            f"{explainer.task}"
        )
    if not sentences:
        raise OptionError("sentences is empty; expected one or more")
    depth = explainer.adapter.depth
    evaluation = evaluate(
        explainer,
        [text for text, _ in sentences],
        methods=METHODS,
        references=(reference,),
        layers=setting.layers if depth == DEPTH else None,
        targets=[label for _, label in sentences],
        # As "auto" gives for a bidirectional model, and the paper has no others.
        receptive_field=False,
        samples=samples,
        seed=seed,
        store=store,
        progress=progress,
    )
    right = [
        text.prediction is not None
        and sentences[text.number - 1][1] in (text.prediction.index, text.prediction.label)
        for text in evaluation.texts
    ]
    accuracy = sum(right) / len(right)
    return Replication(setting._replace(reference=reference), evaluation, accuracy, data, depth)


def _interval(ends: Sequence[float]) -> str:
    # Without the zeros before the points, an interval is as narrow as a mean and its deviation.
    return " to ".join(digits(end).replace("0.", ".", 1) for end in ends if end == end)
