"""The model card of a trained verb-number model, and a picture of its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnflow.paper.recipe import Recipe
from attnflow.view import theme

__all__ = ["attractors_text", "card", "picture"]


def picture(report: dict[str, Any]) -> bytes:
    """Draw the training curve and the accuracy by the number of attractors.

    Args:
        report: What `attnflow.paper.train.train` returns.

    Returns:
        A PNG.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = theme.new_figure(7.4, 2.9)
    left, right = figure.subplots(1, 2)
    curve = report["curve"]
    for key, name, method in (
        ("held_out", "held out", "flow"),
        ("extra", "held out of the extra files", "rollout"),
    ):
        if all(key in point for point in curve):
            style = theme.style_of(method)
            look = {"color": style.colour, "marker": style.marker, "linestyle": style.dashes}
            epochs, values = zip(*((point["epoch"], point[key]) for point in curve), strict=True)
            left.plot(epochs, values, markersize=4, label=name, **look)
    theme.set_title(left, "accuracy after each epoch")
    left.set_xlabel("epoch", fontsize=theme.TEXT_SIZE)
    left.legend(frameon=False, fontsize=theme.SMALL_SIZE, loc="lower right")
    left.xaxis.get_major_locator().set_params(integer=True)
    groups = _groups(report)
    places = range(len(groups))
    colour = theme.style_of("rollout").colour
    bars = right.bar(places, [entry["accuracy"] for _, entry in groups], 0.6, color=colour)
    right.bar_label(bars, fmt="%.3f", fontsize=theme.SMALL_SIZE, padding=2)
    names = ["\n".join((*name, f"{entry['count']:,}")) for name, entry in groups]
    theme.set_ticks(right.xaxis, places, names, theme.SMALL_SIZE)
    right.set_ylim(0, 1.08)
    theme.set_title(right, "accuracy of the tests, and how many sentences")
    for ax in (left, right):
        theme.dress(ax, frame=("left", "bottom"))
    return theme.content(figure, ".png")


def card(report: dict[str, Any]) -> str:
    """Write a model card in Markdown from the report of a training.

    Args:
        report: What `attnflow.paper.train.train` returns.

    Returns:
        The card: what the model is, its data, its recipe, its accuracy and its limits.
    """
    data = report["data"]
    accuracies = [(" ".join(name), entry) for name, entry in _groups(report)]
    accuracies.append((f"held out of {data['files'][0]}", report["held_out"]))
    for number, entry in ((report["extra_held_out"] or {}).get("by_attractors") or {}).items():
        accuracies.append((f"held out of the extra files, {attractors_text(number)}", entry))
    help = {field.name: field.metadata["help"] for field in dataclasses.fields(Recipe)}
    tests = "".join(f"the first {one['first']:,} of {one['file']}, " for one in data["tests"])
    extra = (
        f" and on some of {data['drawn_from']:,} others, drawn anew for every epoch "
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
            f"{name} | {entry['count']:,} | {entry['accuracy']:.4f}" for name, entry in accuracies
        ),
    )


def attractors_text(number: str) -> str:
    """Return a number of attractors in words; "unknown" is one of them."""
    if number == "unknown":
        return "attractors not known"
    return f"{number} attractor" if number == "1" else f"{number} attractors"


def _groups(report: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the accuracies to show, by attractors: of the tests, or of the held-out sentences."""
    tests = report["tests"] or {"held out": report["held_out"]}
    return [
        ([name] if number == "unknown" else [name, attractors_text(number)], entry)
        for name, test in tests.items()
        for number, entry in test["by_attractors"].items()
    ]


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(f"| {row} |" for row in rows)
