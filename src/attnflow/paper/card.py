"""What a trained verb-number model says of itself: a model card and a picture of its training."""

from __future__ import annotations

import textwrap
from typing import Any

from attnflow.view import theme

__all__ = ["card", "picture"]

_RECIPE = {
    "layers": "layers",
    "heads": "heads",
    "dimensions": "dimensions",
    "vocabulary": "words at most",
    "epochs": "epochs at most",
    "patience": "epochs without gain before the end",
    "batch_tokens": "tokens a batch",
    "learning_rate": "highest learning rate (AdamW)",
    "warmup": "steps of warm-up",
    "weight_decay": "weight decay of matrices",
    "dropout": "dropout",
    "hidden_words": "share of words hidden as UNK or MASK",
    "guessing": "weight of the loss of guessing hidden words",
    "average": "decay of the averaged weights",
    "extra_per_epoch": "sentences drawn from the extra files for an epoch",
    "held_out": "sentences held out",
    "seed": "seed",
}


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
    epochs = [point["epoch"] for point in report["curve"]]
    lines = {"held out": "held_out", "held out of the extra files": "extra"}
    for index, (name, key) in enumerate(lines.items()):
        if all(key in point for point in report["curve"]):
            style = theme.style_of(("flow", "rollout")[index])
            values = [point[key] for point in report["curve"]]
            left.plot(
                epochs,
                values,
                color=style.colour,
                marker=style.marker,
                markersize=4,
                linestyle=style.dashes,
                label=name,
            )
    theme.set_title(left, "accuracy after each epoch")
    left.set_xlabel("epoch", fontsize=theme.TEXT_SIZE)
    left.legend(frameon=False, fontsize=theme.SMALL_SIZE, loc="lower right")
    left.xaxis.get_major_locator().set_params(integer=True)
    groups = _groups(report)
    style = theme.style_of("rollout")
    bars = right.bar(
        range(len(groups)), [group[1]["accuracy"] for group in groups], 0.6, color=style.colour
    )
    right.bar_label(bars, fmt="%.3f", fontsize=theme.SMALL_SIZE, padding=2)
    theme.set_ticks(
        right.xaxis,
        range(len(groups)),
        [f"{name}\n{entry['count']:,}" for name, entry in groups],
        theme.SMALL_SIZE,
    )
    right.set_ylim(0, 1.08)
    theme.set_title(right, "accuracy of the tests, and how many sentences")
    for ax in (left, right):
        theme.dress(ax, frame=("left", "bottom"))
    return theme.content(figure, ".png")


def _groups(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the accuracies to show: of each test, or of what was held out, by attractors."""
    found = []
    tests = report["tests"] or {"held out": report["held_out"]}
    for name, test in tests.items():
        for attractors, entry in test["by_attractors"].items():
            known = "" if attractors == "unknown" else f"\n{_attractors(attractors)}"
            found.append((f"{name}{known}", entry))
    return found


def _attractors(number: str) -> str:
    if number == "unknown":
        return "attractors not known"
    return f"{number} attractor" if number == "1" else f"{number} attractors"


def card(report: dict[str, Any]) -> str:
    """Write a model card in Markdown from the report of a training.

    Args:
        report: What `attnflow.paper.train.train` returns.

    Returns:
        The card: what the model is, its data, its recipe, its accuracy and its limits.
    """
    data = report["data"]
    read = "\n".join(f"| {name} | {count:,} |" for name, count in data["read"].items())
    accuracies = "\n".join(
        f"| {' '.join(name.split())} | {entry['count']:,} | {entry['accuracy']:.4f} |"
        for name, entry in _groups(report)
    )
    held = [f"| held out of {data['files'][0]} | {_entry(report['held_out'])} |"]
    for attractors, entry in (report["extra_held_out"] or {"by_attractors": {}})[
        "by_attractors"
    ].items():
        held.append(f"| held out of the extra files, {_attractors(attractors)} | {_entry(entry)} |")
    recipe = "\n".join(
        f"| {_RECIPE[name]} | {value:,} |" for name, value in report["recipe"].items()
    )
    tests = ", ".join(f"the first {test['first']:,} of {test['file']}" for test in data["tests"])
    trained_on = _filled(
        f"Trained on {data['trained_on']:,} sentences in every epoch "
        f"({', '.join(data['files'])}){_extra(data)}."
    )
    left_out = _filled(
        "Left out of training altogether, with every sentence equal to one of them: "
        f"{tests + ', and ' if tests else ''}what was held out to choose the epoch by. The "
        f"{data['vocabulary']:,} words that the model knows are those of the sentences it was "
        "trained on."
    )
    trained_for = _filled(
        f"Trained for {len(report['curve'])} epochs in {report['seconds'] / 60:.0f} minutes on "
        f"{report['threads']} thread{'s' * (report['threads'] > 1)}. What is kept are the "
        "averaged weights of the epoch that was best on the sentences held out, in half "
        "precision; all accuracies are of those."
    )
    return f"""\
# Verb-number model

Reads an English sentence up to its verb and tells whether the verb is singular (VBZ) or plural
(VBP). It has the architecture of Abnar and Zuidema, "Quantifying Attention Flow in Transformers"
(ACL 2020): GPT-2 Transformer blocks without the causal mask, and a classifier on the last embedding
of a CLS token.

## Data

Sentences read, without those equal to a sentence of the tests:

| file | sentences |
| --- | --- |
{read}

{trained_on}

{left_out}

## Recipe

| | |
| --- | --- |
{recipe}

{trained_for}

## Accuracy

| sentences | count | accuracy |
| --- | --- | --- |
{accuracies}
{chr(10).join(held)}

![curve and accuracy](training.png)

## Limits

- It knows the words of its data, lower-cased; any other word is UNK, unless a text gives its
  part-of-speech tag (NN, NNS, NNP ...) in its place, as the data does.
- It is made to be explained. It is no grammar checker, and it has been tested on sentences of the
  kind it was trained on alone.
- More attractors, more mistakes: see the table.
"""


def _entry(part: dict[str, Any]) -> str:
    return f"{part['count']:,} | {part['accuracy']:.4f}"


def _extra(data: dict[str, Any]) -> str:
    if not data["extra"]:
        return ""
    return (
        f" and on some of {data['drawn_from']:,} others, drawn anew for every epoch "
        f"({', '.join(data['extra'])})"
    )


def _filled(paragraph: str) -> str:
    return textwrap.fill(paragraph, 100)
