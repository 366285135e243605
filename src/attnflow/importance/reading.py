"""Reading inputs for a reference: what is asked about each of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.checks import integer, switch
from attnflow.errors import OptionError
from attnflow.models import Explainer
from attnflow.models.adapter import Question, Reading


def read(
    explainer: Any,
    inputs: Any,
    *,
    target: Any,
    contrast: Any = None,
    position: Any,
    truncate: Any,
) -> tuple[list[Reading], bool]:
    """Read inputs as `Explainer.explain` does, and check what is asked about them.

    Args:
        explainer: The explainer.
        inputs: What `Explainer.explain` takes.
        target: The class or token asked about, or a list of them, one for each of many inputs. None
            is what the model predicts.
        contrast: The class or token that it is compared with, or a list of them; None is none.
        position: As in `Explainer.explain`.
        truncate: Whether to cut a text that is longer than the model takes.

    Returns:
        The readings, and whether there are many.

    Raises:
        OptionError: If an option is not valid for this model.
        TextError: If an input is empty, malformed, or longer than the model takes.
        ModelError: If the model gives no answer that tokens could matter to.
    """
    if not isinstance(explainer, Explainer):
        raise OptionError(
            f"explainer is {type(explainer).__name__}; expected an attnflow.Explainer"
        )
    truncate = switch(truncate, "truncate")
    adapter = explainer.adapter
    adapter.check_answers()
    items, many = adapter.items(inputs)
    asked = {}
    for name, given in (("target", target), ("contrast", contrast)):
        one_each = isinstance(given, list | tuple | np.ndarray)
        if one_each and (not many or len(given) != len(items)):
            count = f"{len(items)} inputs" if many else "one input"
            raise OptionError(
                f"{name} lists {len(given)} classes or tokens for {count}; expected one for each "
                "of a list of inputs, or one for all"
            )
        asked[name] = list(given) if one_each else [given] * len(items)
    questions = [
        Question(position, adapter.target(target), adapter.target(contrast, "contrast"))
        for target, contrast in zip(asked["target"], asked["contrast"], strict=True)
    ]
    adapter.check_position(position)
    return adapter.readings(items, questions, truncate), many


def check_batch_size(batch_size: Any) -> None:
    """See that a batch size is a whole number of 1 or more.

    Raises:
        OptionError: If it is not.
    """
    integer(batch_size, "batch_size", least=1)
