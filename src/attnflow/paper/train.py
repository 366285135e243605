"""Training of the verb-number model."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from attnflow.errors import DataError, OptionError
from attnflow.io.journal import digest_of
from attnflow.models.verb_number.model import (
    LABELS,
    VerbNumberConfig,
    VerbNumberForSequenceClassification,
)
from attnflow.models.verb_number.tokenizer import SPECIAL, build_tokenizer
from attnflow.paper import card
from attnflow.paper.accuracy import accuracy, measure
from attnflow.paper.corpus import encode, padded
from attnflow.paper.data import Agreement, OnError, read_agreement
from attnflow.paper.loop import Status, Training, check_folder
from attnflow.paper.recipe import Recipe
from attnflow.view import theme

__all__ = ["Recipe", "Reserved", "train"]

_PAD, _UNK, _MASK = (SPECIAL.index(name) for name in ("[PAD]", "[UNK]", "[MASK]"))

Files = Sequence[str | os.PathLike[str]]


class Reserved(NamedTuple):
    """The first sentences of a file, for testing. The model is never trained on them."""

    path: str | os.PathLike[str]
    first: int


def train(
    data: Files,
    out: str | os.PathLike[str],
    *,
    extra: Files = (),
    test: Sequence[Reserved] = (),
    recipe: Recipe | None = None,
    resume: bool = False,
    on_error: OnError = "raise",
    progress: Callable[[Status], object] | None = None,
    save_every: float = 60.0,
) -> dict[str, Any]:
    """Train a verb-number model, and write it with a report and a model card.

    Args:
        data: Files of sentences, as `attnflow.paper.read_agreement` reads them. Every epoch uses
            all of their sentences.
        out: The folder to write, created if it does not exist.
        extra: Files from which `recipe.extra_per_epoch` sentences are drawn for every epoch. They
            are for sentences with attractors: with too many of these, the model would learn that
            attractors are the rule.
        test: Sentences to test on. No sentence that equals one of them is trained on.
        recipe: The options of the training. None means those of the checkpoint in the package.
        resume: Whether to resume a training that was stopped in this folder. The result is the
            same as without the stop. If nothing was saved yet, training starts from the beginning.
        on_error: What to do about a line that cannot be read, as in `read_agreement`.
        progress: Called after every batch.
        save_every: The number of seconds between saves. A kill loses what came after the last.

    Returns:
        The report: "recipe", "data", "curve" (one entry for each epoch), "held_out",
        "extra_held_out" and "tests" with the accuracies, "seconds", and the versions used. It is
        also in training.json.

    Raises:
        DataError: If a file cannot be read or has too few sentences.
        OptionError: If the folder has a trained model, has an unfinished training and `resume` is
            False, or has one of another recipe or other data.
    """
    check_folder(Path(out), resume)
    theme.require()  # for the picture, which is drawn at the end
    training = _VerbNumber(data, extra, test, recipe or Recipe(), on_error)
    return training.complete(Path(out), resume=resume, progress=progress, save_every=save_every)


class _VerbNumber(Training):
    """The training of a verb-number model."""

    recipe: Recipe
    betas: ClassVar = (0.9, 0.98)

    def __init__(
        self,
        data: Files,
        extra: Files,
        test: Sequence[Reserved],
        recipe: Recipe,
        on_error: OnError,
    ) -> None:
        if not data:
            raise OptionError("data is empty; expected at least one file of sentences")
        self.test = test
        # Read with on_error="raise", so it is certain which sentences are the first.
        tested = {row.text for path, count in test for row in read_agreement(path, limit=count)}
        skipped: Counter[str] = Counter()
        names = [Path(path).name for path in (*data, *extra)]
        files = [
            [row for row in _read(path, on_error, skipped) if row.text not in tested]
            for path in (*data, *extra)
        ]
        others = [row for rows in files[len(data) :] for row in rows]
        random = np.random.default_rng(recipe.seed)
        held_out = _choose(files[0], recipe.held_out, random)
        if not held_out:
            raise DataError(f"{data[0]} has too few sentences to hold some out for validation")
        extra_held_out = _choose(others, recipe.held_out, random)
        without = {row.text for row in (*held_out, *extra_held_out)}
        first = [row for rows in files[: len(data)] for row in rows if row.text not in without]
        then = [row for row in others if row.text not in without]
        if not first:
            raise DataError("no sentence is left to train on: all are equal to a held-out one")
        self.extra_from = len(first)
        self.tokenizer = build_tokenizer((row.text for row in (*first, *then)), recipe.vocabulary)
        self.counts = {
            "files": names[: len(data)],
            "extra": names[len(data) :],
            "read": {name: len(rows) for name, rows in zip(names, files, strict=True)},
            "skipped": skipped,
            "tests": [{"file": Path(path).name, "first": count} for path, count in test],
            "trained_on": len(first),
            "drawn_from": len(then),
            "held_out": len(held_out),
            "extra_held_out": len(extra_held_out),
            "vocabulary": len(self.tokenizer),
        }
        torch.manual_seed(recipe.seed)
        config = VerbNumberConfig(
            vocab_size=len(self.tokenizer),
            n_layer=recipe.layers,
            n_head=recipe.heads,
            n_embd=recipe.dimensions,
            **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), recipe.dropout),
        )
        model = VerbNumberForSequenceClassification(config)
        _embed_by_spelling(model.wte.weight, self.tokenizer, config.initializer_range)
        average = VerbNumberForSequenceClassification(config)
        average.load_state_dict(model.state_dict())
        apart = {"held_out": held_out, "extra": extra_held_out}
        super().__init__(
            recipe,
            model,
            average,
            _PAD,
            encode(self.tokenizer, [*first, *then], LABELS),
            {name: encode(self.tokenizer, rows, LABELS) for name, rows in apart.items() if rows},
            {"words": digest_of(sorted(self.tokenizer.get_vocab().items()))},
        )

    def rows(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Return all sentences of `data`, and some of `extra`."""
        others = len(self.data.ids) - self.extra_from
        count = min(self.recipe.extra_per_epoch, others)
        drawn = self.extra_from + random.choice(others, count, replace=False)
        return np.concatenate([np.arange(self.extra_from), drawn]).astype(np.int64)

    def rate(self, step: int, steps: int) -> float:
        """Rise linearly over the warm-up, and fall on a cosine."""
        rate = min(1.0, (step + 1) / max(1, self.recipe.warmup))
        rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return max(rate, 0.01)

    def loss(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the classes, and the same plus that of predicting masked words."""
        recipe = self.recipe
        words, mask = padded(self.data.ids, rows, _PAD)
        chance = torch.rand(words.shape)
        chance[words < len(SPECIAL)] = 1.0
        hidden = chance < recipe.hidden_words
        read = words.masked_fill(hidden, _UNK)
        read = read.masked_fill(chance < recipe.hidden_words / 2, _MASK)
        last = self.model.encode(read, mask)
        labels = torch.from_numpy(self.data.labels[rows])
        loss = total = cross_entropy(self.model.score(last[:, 0]), labels)
        if recipe.guessing and bool(hidden.any()):
            guesses = last[hidden] @ self.model.wte.weight.T
            total = loss + recipe.guessing * cross_entropy(guesses, words[hidden])
        return loss, total

    def write(self, folder: Path, report: dict[str, Any]) -> dict[str, Any]:
        """Write the best weights, and test what was written."""
        # Half precision halves the size. The accuracies below are those of the weights in the file.
        self.average.half().save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        config["dtype"] = "float32"  # what the weights are loaded as
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        self.tokenizer.save_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        found = {name: measure(model, corpus, _PAD) for name, corpus in self.held_out.items()}
        report = {
            **report,
            "data": self.counts,
            "held_out": found["held_out"],
            "extra_held_out": found.get("extra"),
            "tests": {
                Path(path).name: accuracy(model, self.tokenizer, read_agreement(path, limit=count))
                for path, count in self.test
            },
        }
        (folder / "training.png").write_bytes(card.picture(report))
        (folder / "README.md").write_text(card.card(report))
        return report


def _read(
    path: str | os.PathLike[str], on_error: OnError, skipped: Counter[str]
) -> list[Agreement]:
    """Read a file, and count the lines that cannot be read."""

    def count(fault: Any) -> None:
        skipped[Path(path).name] += 1
        if callable(on_error):
            on_error(fault)

    return list(read_agreement(path, on_error="raise" if on_error == "raise" else count))


def _choose(rows: list[Agreement], count: int, random: np.random.Generator) -> list[Agreement]:
    """Choose sentences to hold out, a fifth of them at most."""
    chosen = random.choice(len(rows), min(count, len(rows) // 5), replace=False)
    return [rows[index] for index in sorted(chosen.tolist())]


def _embed_by_spelling(weight: torch.Tensor, tokenizer: Any, scale: float) -> None:
    """Initialise words of similar spelling with similar embeddings.

    A word's vector is a random vector of its own, plus one for each of its last one, two and three
    letters, plus one for its stem without a plural ending. A rare word ending in "s" then shares
    what the model learns about other plurals, and "keys" shares with "key". Without this, most
    mistakes are simple words of which the data has too few sentences. The idea is that of
    Bojanowski et al., "Enriching Word Vectors with Subword Information" (TACL 2017).
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
