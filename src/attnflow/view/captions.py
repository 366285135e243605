"""What is written beside the scores of an explanation, and how numbers are written."""

import math
from pathlib import PurePosixPath
from typing import Any

from attnflow.explanation import Explanation
from attnflow.view.pieces import labels

METHOD_NAMES = {
    "raw": "Raw attention",
    "rollout": "Attention rollout",
    "flow": "Attention flow",
}


# ---- Explanations --------------------------------------------------------------------------------


def title(explanation: Explanation) -> str:
    """Return the method and what was explained, in one line.

    Args:
        explanation: The explanation.

    Returns:
        The name of the method and the `headline`.
    """
    return f"{METHOD_NAMES[explanation.method]}, {headline(explanation)}"


def headline(explanation: Explanation) -> str:
    """Return what was explained, in a few words.

    Args:
        explanation: The explanation.

    Returns:
        The layer, the position with its token where that is known, and the model's name.
    """
    name = _position_name(explanation)
    position = f"position {explanation.position}" + (f" {name}" if name else "")
    parts = [f"layer {explanation.layer} of {len(explanation.layer_scores)}", position]
    if explanation.model:
        parts.append(model_name(explanation.model))
    return ", ".join(parts)


def reading(explanation: Explanation) -> str:
    """Return how to read the scores, in one line.

    Args:
        explanation: The explanation.

    Returns:
        What a high score means for the explanation's method.
    """
    position = _position_name(explanation) or f"position {explanation.position}"
    meaning = {
        "raw": f"the more {position} attends to it in layer {explanation.layer}",
        "rollout": f"the larger its share in {position} at layer {explanation.layer}, "
        "by attention multiplied along every path",
        "flow": f"the more attention can flow from {position} at layer {explanation.layer} "
        "down to it, over all paths at once",
    }[explanation.method]
    relative = ""
    if explanation.options.get("receptive_field") is True:
        relative = " Scores are relative to uniform attention."
    return f"The higher a token's score, {meaning}.{relative}"


def answers(explanation: Explanation) -> list[tuple[str, str]]:
    """Return what the model answered and what the explanation is for.

    Args:
        explanation: The explanation.

    Returns:
        Names and values to print; empty if the model gives no answer.
    """
    found = []
    prediction = explanation.prediction
    if prediction is not None:
        label = prediction.label.strip() or repr(prediction.label)
        found.append(("Prediction", f"{label} ({prediction.probability:.1%})"))
    if explanation.target is not None and (
        prediction is None or prediction.label != explanation.target
    ):
        found.append(("Explained for", explanation.target.strip() or repr(explanation.target)))
    return found


def has_all_tokens(explanation: Explanation) -> bool:
    """Return whether the tokens of an explanation are exactly those the model was given.

    Args:
        explanation: The explanation.

    Returns:
        False if tokens were grouped or left out.
    """
    made = explanation.options
    return bool(
        made.get("units", "tokens") == "tokens"
        and made.get("special_tokens", True)
        and not made.get("drop_sink")
    )


def _position_name(explanation: Explanation) -> str:
    """Return the label of the token at the explained position, empty if it is not known."""
    if not has_all_tokens(explanation) or explanation.position >= len(explanation.tokens):
        return ""
    return labels(explanation.pieces)[explanation.position]


def model_name(model: str) -> str:
    """Return the name of a model as views show it.

    Args:
        model: A name on the hub, or a path.

    Returns:
        A hub name as it is, and the last folder of a path.

    Example:
        >>> model_name("/home/me/models/bert-tiny/"), model_name("google/bert-tiny")
        ('bert-tiny', 'google/bert-tiny')
        >>> model_name("verb_number/checkpoint")  # the model that comes with attnflow
        'verb_number'
    """
    path = PurePosixPath(model.replace("\\", "/"))
    if path.parts[-2:] == ("verb_number", "checkpoint"):
        return "verb_number"
    is_hub_name = len(path.parts) == 2 and not model.startswith((".", "~", "/"))
    return str(path) if is_hub_name else path.name


# ---- Numbers -------------------------------------------------------------------------------------


def format_score(score: float, largest: float) -> str:
    """Return a score with as many digits as the largest beside it needs.

    Args:
        score: The score.
        largest: The largest magnitude of the scores shown with it.

    Returns:
        The number, with three decimals or more, or with a power of ten where that would be long.

    Example:
        >>> format_score(0.25, 0.5), format_score(0.00125, 0.004), format_score(1e-9, 1e-8)
        ('0.250', '0.00125', '1.00e-09')
    """
    if largest >= 1e6 or 0 < largest < 1e-5:
        return f"{score:.2e}"
    decimals = 3
    while 0 < largest * 10**decimals < 100 and decimals < 7:
        decimals += 1
    # Zero is written without a sign.
    return f"{score:.{decimals}f}".replace("-0." + "0" * decimals, "0." + "0" * decimals)


def mean_and_interval(values: dict[str, Any]) -> tuple[str, str]:
    """Return a mean with its standard deviation, and its confidence interval.

    Args:
        values: A row of `Evaluation.summary`.

    Returns:
        Two strings. A number that is not defined is left out.

    Example:
        >>> mean_and_interval({"mean": 0.5, "std": 0.25, "ci": [0.125, 1.0], "count": 9})
        ('0.50 ±.25', '.12,1.00')
    """
    if not values["count"]:
        return "undefined", ""
    std = "" if math.isnan(values["std"]) else f" \u00b1{_short(values['std'])}"
    low, high = values["ci"]
    interval = "" if math.isnan(low) else f"{_short(low)},{_short(high)}"
    return f"{values['mean']:.2f}{std}", interval


def _short(number: float) -> str:
    """Return a number without the 0 before its point, so that six layers fit into a terminal."""
    digits = f"{number:.2f}"
    if abs(number) >= 0.995:
        return digits
    return digits.replace("-0.00", "0.00").replace("0.", ".", 1)


def signed(difference: float) -> str:
    """Return a difference with its sign, "undefined" if it is NaN."""
    return "undefined" if math.isnan(difference) else f"{difference:+.2f}"


def p_value(p: float) -> str:
    """Return a p-value with its name; empty if it is not defined."""
    if math.isnan(p):
        return ""
    return "p<.001" if p < 0.001 else f"p={p:.3f}"


def counted(count: int, noun: str = "text") -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1), counted(3, "sentence")
        ('1 text', '3 sentences')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def spaced(name: str) -> str:
    """Return the name of an option's value as words."""
    return name.replace("_", " ")
