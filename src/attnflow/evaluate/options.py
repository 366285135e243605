"""Checks of the options that `evaluate` and `evaluate_stored` share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from attnflow.checks import choice, integer, invalid, items, number
from attnflow.errors import OptionError

TASKS: Final = ("classification", "masked-lm", "causal-lm", "seq2seq-lm", "image-classification")
"""The tasks of models that references can be computed for."""

_T = TypeVar("_T")


def check_task(task: str, model: str) -> None:
    """Check that references can be computed for a model.

    Args:
        task: The model's task.
        model: What to call the model in the error.

    Raises:
        OptionError: If the model predicts no class and no token.
    """
    if task not in TASKS:
        raise OptionError(
            f"{model} is a model for {task}, and references need a model that predicts a class or "
            f"a token: {', '.join(TASKS)}"
        )


def check_replacement(replacement: int | str, references: Collection[str]) -> None:
    """Check that a replacement is used by one of the references.

    Raises:
        OptionError: If it is not.
    """
    if replacement != "auto" and "blank_out" not in references:
        raise OptionError(
            f"replacement is {replacement!r}, but only the reference blank_out replaces tokens; "
            "leave it out, or add blank_out to the references"
        )


def choose(value: Any, name: str, valid: Sequence[_T], *, otherwise: str = "") -> tuple[_T, ...]:
    """Return one or several of some values, each once.

    Args:
        value: A value, or a list of values.
        name: The argument's name, for the error.
        valid: The valid values: strings or booleans.
        otherwise: What else the caller accepts, for the error.

    Raises:
        OptionError: If a value is not valid or is given twice, or the list is empty.

    Example:
        >>> choose("flow", "methods", ("raw", "rollout", "flow"))
        ('flow',)
    """
    several = hasattr(value, "__iter__") and not isinstance(value, str)
    given = items(value, name, "values") if several else [value]
    chosen = tuple(choice(item, name, valid, otherwise=otherwise) for item in given)
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"{name} is {value!r}; a value is given twice")
    return chosen


def choose_baselines(given: Any, valid: Sequence[str]) -> tuple[str, ...]:
    """Return the baselines: True means all, False means none; otherwise these are their names."""
    if isinstance(given, bool):
        return tuple(valid) if given else ()
    return choose(given, "baselines", valid)


def statistics_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of confidence intervals and tests.

    Raises:
        OptionError: If one is not valid.
    """
    return {
        "samples": integer(options["samples"], "samples", least=1),
        "permutations": integer(options["permutations"], "permutations", least=1),
        "level": number(options["level"], "level", above=0, below=1),
        "seed": integer(options["seed"], "seed", least=0),
    }


def token_counts(given: Any, counted: Mapping[str, int]) -> Mapping[str, int]:
    """Return how often each token occurs, for the frequency baseline.

    Args:
        given: A dictionary, or None.
        counted: What is used if it is None.

    Raises:
        OptionError: If it is neither None nor a dictionary with tokens as keys.
    """
    if given is None:
        return counted
    if not isinstance(given, Mapping) or not all(isinstance(token, str) for token in given):
        raise invalid("frequencies", given, "a dictionary from tokens to how often they occur")
    return dict(given)
