"""Check: whether an explanation holds for the very input that it explains.

Each unit that was scored is replaced by a blank, and the answer is read again. If the scores say
what the answer came from, the units that change it most have the highest scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from attnflow.checks import number, string
from attnflow.correlation import spearman
from attnflow.errors import OptionError

# A p-value below this counts as agreement that chance does not explain.
SIGNIFICANT: Final = 0.05
# Up to this many units every order is tried; for more, this many random orders are.
MOST_EXACT: Final = 7
ORDERS: Final = 9999


class Check(NamedTuple):
    """What blanking out each unit of an input does to the answer, compared with the scores.

    Attributes:
        units: What was blanked out: "tokens", "words", "sentences", "segments" or "patches"; for an
            image with a text both, "words and patches".
        names: The units that were blanked out, one after the other.
        scores: The score of each. Those of attention have no sign.
        effects: How much the answer falls without each: `value` minus the value after it is
            replaced. Where scores have no sign, the size of this.
        agreement: Spearman's rank correlation of scores and effects, from -1 to 1; NaN if there
            are fewer than two units, or one of them does not vary.
        p: The share of random orders of the scores that agree as well or better.
        value: The answer: the target's logit minus that of the contrast, or the mean of the others.
        removed_value: The same without the unit of the highest score.
        removed_answer: What the model predicts then.
        answer: What it predicts for the whole input.
        replacement: What units are replaced by.
    """

    units: str
    names: tuple[str, ...]
    scores: tuple[float, ...]
    effects: tuple[float, ...]
    agreement: float
    p: float
    value: float
    removed_value: float
    removed_answer: str
    answer: str
    replacement: str

    @property
    def top(self) -> str | None:
        """The unit with the highest score; None if there is none."""
        return self.names[int(np.argmax(self.scores))] if self.names else None

    @property
    def same_top(self) -> bool:
        """Whether the unit with the highest score is also the one that changes the answer most."""
        return bool(self.names) and int(np.argmax(self.scores)) == int(np.argmax(self.effects))

    @property
    def random_effect(self) -> float:
        """How much the answer changes when a random unit is removed, on average."""
        return float(np.mean(self.effects)) if self.effects else math.nan

    @property
    def top_effect(self) -> float:
        """How much the answer changes when the unit of the highest score is removed."""
        return self.effects[int(np.argmax(self.scores))] if self.effects else math.nan

    @property
    def holds(self) -> bool | None:
        """Whether the scores agree with blank-out; None if there are too few units to tell.

        They do if fewer than one in twenty random orders of the scores agree as well, and removing
        the unit of the highest score does more than removing a random one.
        """
        if math.isnan(self.agreement) or len(self.names) < 4:
            return None
        return self.p < SIGNIFICANT and self.top_effect > self.random_effect

    @property
    def summary(self) -> str:
        """The verdict in one sentence: what removing the first unit does, and the agreement.

        Example:
            >>> check = Check.of("words", ["the", "keys", "to", "it"], [0.1, 2.0, 0.0, -0.5],
            ...                  [0.2, 3.0, 0.1, -0.1], value=2.5, removed=-0.5,
            ...                  answers=("plural", "singular"), replacement="[UNK]")
            >>> check.summary  # doctest: +ELLIPSIS
            "Removing 'keys' changes the answer; scores and blank-out agree (rank correlation ..."
        """
        if self.top is None:
            return self.sentences()[0]
        start = f"Removing {self.top!r} changes the answer"
        if self.answer == self.removed_answer:
            start = f"Removing {self.top!r} does not change the answer"
            if self.removed_value < self.value:
                start += f", but lowers its value from {self.value:.2f} to {self.removed_value:.2f}"
        if self.holds is None:
            return f"{start}; there are too few {self.units} to compare scores with blank-out."
        agree = "agree" if self.holds else "do not agree"
        return f"{start}; scores and blank-out {agree} (rank correlation {self.agreement:.2f})."

    def sentences(self) -> list[str]:
        """Return the verdict in words and numbers.

        Example:
            >>> import textwrap
            >>> check = Check.of("words", ["the", "keys", "to", "it"], [0.1, 2.0, 0.0, -0.5],
            ...                  [0.2, 3.0, 0.1, -0.1], value=2.5, removed=-0.5,
            ...                  answers=("plural", "singular"), replacement="[UNK]")
            >>> for sentence in check.sentences():
            ...     print(textwrap.fill(sentence, 75))
            Blank-out agrees: rank correlation 1.00 over 4 words, p = 0.042.
            'keys' comes first in both.
            Without 'keys' the answer changes from 'plural' to 'singular', 2.50 to
            -0.50. A random word takes away 0.80 on average.
        """
        one = "patch" if self.units == "patches" else self.units.removesuffix("s")
        one = "unit" if " and " in self.units else one
        if self.top is None:
            return [f"There is no {one} that could be blanked out."]
        verdict = {True: "agrees", False: "does not agree", None: "cannot tell"}[self.holds]
        found = f"Blank-out {verdict}: "
        if math.isnan(self.agreement):
            found += f"a rank correlation needs two {self.units} that differ."
        else:
            found += (
                f"rank correlation {self.agreement:.2f} over {len(self.names)} "
                f"{self.units if len(self.names) > 1 else one}, p = {self.p:.2g}."
            )
        other = self.names[int(np.argmax(self.effects))]
        first = f"{self.top!r} comes first in both."
        if not self.same_top:
            first = f"{self.top!r} has the highest score; blanking out {other!r} changes it most."
        before, after = self.answer.strip(), self.removed_answer.strip()
        stays = f"the answer stays {before!r}"
        changes = f"the answer changes from {before!r} to {after!r}"
        return [
            found,
            first,
            f"Without {self.top!r} {stays if self.answer == self.removed_answer else changes}, "
            f"{self.value:.2f} to {self.removed_value:.2f}. A random {one} takes away "
            f"{self.random_effect:.2f} on average.",
        ]

    @classmethod
    def of(
        cls,
        units: str,
        names: Sequence[str],
        scores: Sequence[float],
        effects: Sequence[float],
        *,
        value: float,
        removed: float,
        answers: tuple[str, str],
        replacement: str,
        seed: int = 0,
    ) -> Check:
        """Compare scores with effects.

        Args:
            units: As in `Check`.
            names: As in `Check`.
            scores: As in `Check`.
            effects: As in `Check`.
            value: The answer for the whole input.
            removed: The answer without the unit of the highest score.
            answers: What the model predicts for the whole input, and without that unit.
            replacement: What units are replaced by.
            seed: The seed of the random orders, for more than seven units.
        """
        agreement, p = agreement_of(scores, effects, seed)
        return cls(
            units,
            tuple(names),
            tuple(map(float, scores)),
            tuple(map(float, effects)),
            agreement,
            p,
            float(value),
            float(removed),
            answers[1],
            answers[0],
            replacement,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, NaN as None, and what follows from them."""
        fields = {
            name: list(value)
            if isinstance(value, tuple)
            else None
            if isinstance(value, float) and math.isnan(value)
            else value
            for name, value in self._asdict().items()
        }
        return {
            **fields,
            "top": self.top,
            "same_top": self.same_top,
            "top_effect": None if not self.names else self.top_effect,
            "random_effect": None if not self.names else self.random_effect,
            "holds": self.holds,
            "verdict": self.sentences(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Check:
        """Return the check of a dictionary that `to_dict` returned.

        Raises:
            OptionError: If it is not such a dictionary.
        """
        missing = [name for name in cls._fields if name not in data]
        if missing:
            raise OptionError(f"check has no {', '.join(missing)}")
        names = tuple(string(name, "check.names") for name in data["names"])
        rows = {
            name: tuple(number(value, f"check.{name}") for value in data[name])
            for name in ("scores", "effects")
        }
        if {len(row) for row in rows.values()} != {len(names)}:
            raise OptionError("check.scores and check.effects need one number for each name")
        numbers = {
            name: math.nan if data[name] is None else number(data[name], f"check.{name}")
            for name in ("agreement", "p", "value", "removed_value")
        }
        texts = {
            name: string(data[name], f"check.{name}")
            for name in ("units", "removed_answer", "answer", "replacement")
        }
        return cls(names=names, **rows, **numbers, **texts)  # type: ignore[arg-type]


def agreement_of(
    scores: Sequence[float], effects: Sequence[float], seed: int = 0
) -> tuple[float, float]:
    """Return the rank correlation of scores and effects, and its p-value by permutation.

    The p-value is the share of orders of the scores whose correlation is as large or larger: every
    order of up to seven, 9,999 random ones and the one given of more.

    Args:
        scores: The scores.
        effects: The effects, as many.
        seed: The seed of the random orders.

    Returns:
        Spearman's correlation and p; NaN and 1 if the correlation is not defined.

    Example:
        >>> agreement_of([1.0, 2.0, 3.0], [0.0, 5.0, 9.0])  # one of six orders is as good
        (1.0, 0.16666666666666666)
    """
    first, second = np.asarray(scores, dtype=np.float64), np.asarray(effects, dtype=np.float64)
    found = float(spearman(first, second)) if len(first) > 1 else math.nan
    if math.isnan(found):
        return math.nan, 1.0
    if len(first) <= MOST_EXACT:
        orders = np.array(list(itertools.permutations(range(len(first)))))
    else:
        random = np.random.default_rng(seed)
        orders = random.permuted(np.tile(np.arange(len(first)), (ORDERS, 1)), axis=1)
        orders = np.concatenate([np.arange(len(first))[None], orders])
    tried = spearman(first[orders], second)
    return found, float((tried >= found - 1e-12).mean())
