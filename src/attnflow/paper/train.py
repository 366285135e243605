"""Training of the verb-number model."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from attnflow.errors import DataError, OptionError
from attnflow.models.verb_number.model import (
    LABELS,
    VerbNumberConfig,
    VerbNumberForSequenceClassification,
)
from attnflow.models.verb_number.tokenizer import SPECIAL, build_tokenizer
from attnflow.paper import card
from attnflow.paper.accuracy import accuracy, measure
from attnflow.paper.corpus import Corpus, encode, padded
from attnflow.paper.data import Agreement, Fault, read_agreement
from attnflow.paper.loop import Lesson, Status, check_folder, complete
from attnflow.paper.recipe import Recipe
from attnflow.view import theme

__all__ = ["Recipe", "Reserved", "train"]

_PAD = SPECIAL.index("[PAD]")

Files = Sequence[str | os.PathLike[str]]


class Reserved(NamedTuple):
    """The first sentences of a file, which the trained model is tested on and never trained on."""

    path: str | os.PathLike[str]
    first: int


class _Material(NamedTuple):
    """What training works on."""

    tokenizer: Any
    data: Corpus  # the sentences of `data`, then those of `extra`
    extra_from: int  # the first sentence of `extra`
    held_out: Corpus
    held_out_extra: Corpus
    counts: dict[str, Any]


def train(
    data: Files,
    out: str | os.PathLike[str],
    *,
    extra: Files = (),
    test: Sequence[Reserved] = (),
    recipe: Recipe | None = None,
    resume: bool = False,
    on_error: str | Callable[[Fault], object] = "raise",
    progress: Callable[[Status], object] | None = None,
    save_every: float = 60.0,
) -> dict[str, Any]:
    """Train a verb-number model, and write it with a report and a model card.

    Args:
        data: Files of sentences, as `attnflow.paper.read_agreement` reads them. Every epoch uses
            all of their sentences.
        out: The folder to write, made if need be.
        extra: Files of which `recipe.extra_per_epoch` sentences are drawn for every epoch. They
            are for sentences with attractors: too many would teach that attractors are the rule.
        test: Sentences to test on. No sentence that equals one of them is trained on.
        recipe: How to train; None means the recipe of the checkpoint in the package.
        resume: Whether to resume a training that was stopped in this folder. The result is the
            same as without the stop. If nothing was saved yet, training starts from the beginning.
        on_error: What to do about a line that cannot be read, as in `read_agreement`.
        progress: Called after every batch.
        save_every: How many seconds apart the state is saved; a kill loses what came after.

    Returns:
        The report: "recipe", "data", "curve" (one entry for each epoch), "held_out",
        "extra_held_out" and "tests" with the accuracies, "seconds", and the versions used. It is
        also in training.json.

    Raises:
        DataError: If a file cannot be read or has too few sentences.
        OptionError: If the folder has a trained model, a training that is to be resumed although
            `resume` is False, or one of another recipe or other data.
    """
    recipe = recipe or Recipe()
    folder = Path(out)
    check_folder(folder, resume)
    theme.require()  # for the picture, which is drawn after all the work
    lesson = _VerbNumber(_material(data, extra, test, recipe, on_error), recipe)

    def write(fresh: Path, report: dict[str, Any]) -> dict[str, Any]:
        return _write(lesson, test, fresh, report)

    return complete(lesson, folder, write, resume=resume, progress=progress, save_every=save_every)


class _VerbNumber(Lesson):
    """The verb-number model in training."""

    recipe: Recipe

    def __init__(self, material: _Material, recipe: Recipe) -> None:
        self.material = material
        torch.manual_seed(recipe.seed)
        config = VerbNumberConfig(
            vocab_size=len(material.tokenizer),
            n_layer=recipe.layers,
            n_head=recipe.heads,
            n_embd=recipe.dimensions,
            embd_pdrop=recipe.dropout,
            attn_pdrop=recipe.dropout,
            resid_pdrop=recipe.dropout,
        )
        model = VerbNumberForSequenceClassification(config)
        _embed_by_spelling(model.wte.weight, material.tokenizer, config.initializer_range)
        kept = VerbNumberForSequenceClassification(config)
        kept.load_state_dict(model.state_dict())
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        content = hashlib.sha256(material.data.labels.tobytes())
        for row in material.data.ids:
            content.update(row.tobytes())
        identity = {"data": {"sha256": content.hexdigest(), **material.counts}}
        super().__init__(recipe, model, kept, groups, material.data, identity, betas=(0.9, 0.98))

    def rows(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Return all sentences of `data`, and some of `extra`."""
        first = self.material.extra_from
        others = len(self.data.ids) - first
        count = min(self.recipe.extra_per_epoch, others)
        drawn = first + random.choice(others, count, replace=False)
        return np.concatenate([np.arange(first), drawn]).astype(np.int64)

    def rate(self, step: int, steps: int) -> float:
        """Rise over the warm-up, and fall on a cosine."""
        rate = min(1.0, (step + 1) / max(1, self.recipe.warmup))
        rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return max(rate, 0.01)

    def losses(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the classes, and the same with that of guessing hidden words."""
        recipe = self.recipe
        words, mask = padded(self.data.ids, rows, _PAD)
        chance = torch.rand(words.shape)
        chance[words < len(SPECIAL)] = 1.0
        hidden = chance < recipe.hidden_words
        read = words.masked_fill(hidden, SPECIAL.index("[UNK]"))
        read = read.masked_fill(chance < recipe.hidden_words / 2, SPECIAL.index("[MASK]"))
        last = self.model.encode(read, mask)
        labels = torch.from_numpy(self.data.labels[rows])
        loss = total = cross_entropy(self.model.score(last[:, 0]), labels)
        if recipe.guessing and bool(hidden.any()):
            guesses = last[hidden] @ self.model.wte.weight.T
            total = loss + recipe.guessing * cross_entropy(guesses, words[hidden])
        return loss, total

    def measure(self) -> dict[str, float]:
        """Return the accuracies of the averaged weights on the held-out sentences."""
        corpora = {"held_out": self.material.held_out, "extra": self.material.held_out_extra}
        return {
            name: measure(self.kept, corpus, _PAD)["accuracy"]
            for name, corpus in corpora.items()
            if corpus.ids
        }


def _embed_by_spelling(weight: torch.Tensor, tokenizer: Any, scale: float) -> None:
    """Initialise words of similar spelling with similar embeddings.

    A word's vector is a random vector of its own, plus one for its last one, two and three letters
    each, plus one for its stem without a plural ending. A rare word ending in "s" thus shares what
    the model learns about the others, and "keys" shares with "key". Otherwise most mistakes are
    simple words that the data has too few sentences of. The idea is that of Bojanowski et al.,
    "Enriching Word Vectors with Subword Information" (TACL 2017).
    """
    parts: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for word, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            if not word.isalpha() or not word.islower():
                continue
            ends = [f"-{word[-length:]}" for length in (1, 2, 3) if len(word) > length]
            for part in (*ends, _stem(word)):
                if part not in parts:
                    parts[part] = torch.randn(weight.shape[1]) * scale
                weight[index] += parts[part]


def _stem(word: str) -> str:
    for plural, singular in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh")):
        if word.endswith(plural) and len(word) > len(plural) + 1:
            return word.removesuffix(plural) + singular
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _write(
    lesson: _VerbNumber, test: Sequence[Reserved], folder: Path, report: dict[str, Any]
) -> dict[str, Any]:
    """Write the best weights, and test what was written."""
    material = lesson.material
    # Half precision halves the size. The accuracies below are those of the weights in the file.
    lesson.kept.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"  # what the weights are loaded as
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    material.tokenizer.save_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    extra = material.held_out_extra
    report = {
        **report,
        "data": material.counts,
        "held_out": measure(model, material.held_out, _PAD),
        "extra_held_out": measure(model, extra, _PAD) if extra.ids else None,
        "tests": {
            Path(path).name: accuracy(model, material.tokenizer, read_agreement(path, limit=count))
            for path, count in test
        },
    }
    (folder / "training.png").write_bytes(card.picture(report))
    (folder / "README.md").write_text(card.card(report))
    return report


def _material(
    data: Files,
    extra: Files,
    test: Sequence[Reserved],
    recipe: Recipe,
    on_error: str | Callable[[Fault], object],
) -> _Material:
    if not data:
        raise OptionError("data is empty; expected at least one file of sentences")
    # These are read with on_error="raise": which sentences are the first must be certain.
    tested = {row.text for path, count in test for row in read_agreement(path, limit=count)}
    random = np.random.default_rng(recipe.seed)
    skipped: dict[str, int] = {}

    def read(path: str | os.PathLike[str]) -> list[Agreement]:
        def fault(what: Fault) -> None:
            skipped[Path(path).name] = skipped.get(Path(path).name, 0) + 1
            if callable(on_error):
                on_error(what)

        policy = on_error if on_error == "raise" else fault
        return [row for row in read_agreement(path, on_error=policy) if row.text not in tested]

    def hold_out(rows: list[Agreement]) -> list[Agreement]:
        count = min(recipe.held_out, len(rows) // 5)
        chosen = random.choice(len(rows), count, replace=False)
        return [rows[index] for index in sorted(chosen.tolist())]

    files = [read(path) for path in (*data, *extra)]
    others = [row for rows in files[len(data) :] for row in rows]
    held_out = hold_out(files[0])
    if not held_out:
        raise DataError(f"{data[0]}: too few sentences to hold some out and train on the others")
    held_out_extra = hold_out(others) if extra else []
    without = {row.text for row in (*held_out, *held_out_extra)}
    first = [row for rows in files[: len(data)] for row in rows if row.text not in without]
    then = [row for row in others if row.text not in without]
    if not first:
        raise DataError("no sentence is left to train on: all are equal to a held-out one")
    tokenizer = build_tokenizer((row.text for row in (*first, *then)), recipe.vocabulary)
    names = [Path(path).name for path in (*data, *extra)]
    return _Material(
        tokenizer,
        encode(tokenizer, [*first, *then], LABELS),
        len(first),
        encode(tokenizer, held_out, LABELS),
        encode(tokenizer, held_out_extra, LABELS),
        {
            "files": names[: len(data)],
            "extra": names[len(data) :],
            "read": {name: len(rows) for name, rows in zip(names, files, strict=True)},
            "skipped": skipped,
            "tests": [{"file": Path(path).name, "first": count} for path, count in test],
            "trained_on": len(first),
            "drawn_from": len(then),
            "held_out": len(held_out),
            "extra_held_out": len(held_out_extra),
            "vocabulary": len(tokenizer),
        },
    )
