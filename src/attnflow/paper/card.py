"""The model card of a trained verb-number model, and a picture of its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnflow.paper.recipe import Recipe
from attnflow.view import theme


def picture(report: dict[str, Any]) -> bytes:
    """Draw the accuracy after each epoch.

    Args:
        report: What `attnflow.paper.train.train` returns.

    Returns:
        A PNG.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = theme.new_figure(4.6, 2.9)
    ax = figure.add_subplot()
    curve = report["curve"]
    epochs = [point["epoch"] for point in curve]
    names = {"held_out": "held out", "extra": "held out of the extra files"}
    for (key, name), method in zip(names.items(), ("flow", "rollout"), strict=True):
        if key in curve[0]:
            style = theme.style_of(method)
            accuracies = [point[key] for point in curve]
            ax.plot(epochs, accuracies, f"{style.marker}-", color=style.colour, label=name)
    theme.dress(ax, frame=("left", "bottom"))
    theme.set_title(ax, "accuracy after each epoch")
    ax.set_xlabel("epoch", fontsize=theme.TEXT_SIZE)
    ax.legend(frameon=False, fontsize=theme.SMALL_SIZE, loc="lower right")
    ax.locator_params(axis="x", integer=True)
    return theme.content(figure, ".png")


def card(report: dict[str, Any]) -> str:
    """Write a model card in Markdown from the report of a training.

    Args:
        report: What `attnflow.paper.train.train` returns.

    Returns:
        The card: what the model is, its data, its recipe, its accuracy and its limits.
    """
    data = report["data"]
    extra_held_out = report["extra_held_out"] or {"by_attractors": {}}
    # If the number of attractors is not known, the name of the test is enough.
    accuracies = {
        f"{name} {attractors_text(number)}" if number != "unknown" else name: entry
        for name, test in report["tests"].items()
        for number, entry in test["by_attractors"].items()
    }
    accuracies[f"held out of {data['files'][0]}"] = report["held_out"]
    for number, entry in extra_held_out["by_attractors"].items():
        accuracies[f"held out of the extra files, {attractors_text(number)}"] = entry
    help = {field.name: field.metadata["help"] for field in dataclasses.fields(Recipe)}
    tests = "".join(f"the first {one['first']:,} of {one['file']}, " for one in data["tests"])
    extra = (
        f" and on some of {data['drawn_from']:,} others, drawn again for every epoch "
        f"({', '.join(data['extra'])})"
    )
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    return template.format(
        read=_lines(f"{name} | {count:,}" for name, count in data["read"].items()),
        trained_on=data["trained_on"],
        files=", ".join(data["files"]),
        extra=extra if data["extra"] else "",
        tests=f"{tests}and " if tests else "",
        vocabulary=data["vocabulary"],
        recipe=_lines(f"{help[name]} | {value:,}" for name, value in report["recipe"].items()),
        epochs=len(report["curve"]),
        minutes=report["seconds"] / 60,
        threads=report["threads"],
        accuracies=_lines(
            f"{name} | {entry['count']:,} | {entry['accuracy']:.4f}"
            for name, entry in accuracies.items()
        ),
    )


def attractors_text(number: str) -> str:
    """Return a number of attractors, or "unknown", in words."""
    if number == "unknown":
        return "attractors not known"
    return f"{number} attractor" if number == "1" else f"{number} attractors"


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(f"| {row} |" for row in rows)
