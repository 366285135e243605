"""Training of the verb-number model, resumable to the same weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from attnflow.errors import DataError, OptionError
from attnflow.models.verb_number.model import VerbNumberConfig, VerbNumberForSequenceClassification
from attnflow.models.verb_number.tokenizer import SPECIAL, build_tokenizer
from attnflow.paper import card
from attnflow.paper.accuracy import accuracy, summary
from attnflow.paper.corpus import Corpus, batches, encode
from attnflow.paper.data import Agreement, Fault, read_agreement
from attnflow.paper.loop import REPORT, Loop, Status, check_folder, filling, move_average
from attnflow.view import theme

__all__ = ["Recipe", "Reserved", "train"]

_EVALUATION_TOKENS = 8192


@dataclass(frozen=True)
class Recipe:
    """How the model is trained; the defaults made the checkpoint that ships with attnflow.

    Attributes:
        epochs: How often the data is gone through at most.
        learning_rate: The highest learning rate; it rises over `warmup` steps and falls on a
            cosine.
        warmup: How many steps it rises.
        batch_tokens: How many tokens a batch has at most, padding among them.
        dropout: The share of activations dropped, in all the places GPT-2 has.
        hidden_words: The share of words that are hidden in training, half of them as UNK and half
            as MASK, so that the model does not hang on a single word and knows both tokens.
        guessing: The weight of a second loss, that of guessing the hidden words. It costs next to
            nothing, and teaches which words are alike. 0 trains without.
        weight_decay: AdamW's, of matrices only.
        average: What is kept are weights averaged over the steps, with this decay.
        extra_per_epoch: How many sentences of the `extra` files are drawn for an epoch.
        vocabulary: How many words the model knows.
        held_out: How many sentences of the first file are held out, to choose the epoch by; and at
            most as many of the `extra` files, which are reported.
        patience: Training ends when so many epochs have brought nothing.
        layers: How many layers the model has.
        heads: How many heads.
        dimensions: How many dimensions.
        seed: Of the weights, the order, the dropping and what is held out.
    """

    epochs: int = 12
    learning_rate: float = 8e-4
    warmup: int = 300
    batch_tokens: int = 1024
    dropout: float = 0.1
    hidden_words: float = 0.12
    guessing: float = 0.3
    weight_decay: float = 0.01
    average: float = 0.999
    extra_per_epoch: int = 14_500
    vocabulary: int = 10_000
    held_out: int = 1_500
    patience: int = 4
    layers: int = 6
    heads: int = 8
    dimensions: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in _SMALLEST.items():
            if not getattr(self, name) >= low:
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected {low} or more")
        for name in ("dropout", "hidden_words", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected 0 to below 1")
        if not 0 < self.learning_rate < math.inf:
            raise OptionError(f"learning_rate is {self.learning_rate!r}; expected more than 0")
        if self.dimensions % self.heads:
            raise OptionError(
                f"dimensions is {self.dimensions}, which {self.heads} heads do not divide"
            )


_SMALLEST = {
    "epochs": 1,
    "warmup": 0,
    "batch_tokens": 64,
    "guessing": 0,
    "weight_decay": 0,
    "extra_per_epoch": 0,
    "vocabulary": len(SPECIAL) + 1,
    "held_out": 1,
    "patience": 1,
    "layers": 1,
    "heads": 1,
    "dimensions": 1,
    "seed": 0,
}


class Reserved(NamedTuple):
    """The first sentences of a file, on which the trained model is tested and never trained."""

    path: str | os.PathLike[str]
    first: int


class _Material(NamedTuple):
    """What training works on."""

    tokenizer: Any
    data: Corpus  # the sentences of `data`, then those of `extra`
    extra_from: int  # where those of `extra` start
    held_out: Corpus
    held_out_extra: Corpus
    counts: dict[str, Any]


def train(
    data: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    extra: Sequence[str | os.PathLike[str]] = (),
    test: Sequence[Reserved] = (),
    recipe: Recipe | None = None,
    resume: bool = False,
    on_error: str | Callable[[Fault], object] = "raise",
    progress: Callable[[Status], object] | None = None,
    save_every: float = 60.0,
) -> dict[str, Any]:
    """Train a verb-number model, and write it with a report and a model card.

    Args:
        data: Files of sentences, read by `attnflow.paper.read_agreement`. All of their sentences
            are trained on in every epoch.
        out: The folder to write, made if need be.
        extra: Files of which `recipe.extra_per_epoch` sentences are drawn for every epoch: for
            sentences with attractors, which would otherwise teach that they are the rule.
        test: Sentences to test on. No sentence that is equal to one of them is trained on.
        recipe: How to train; None is the recipe of the checkpoint that ships with attnflow.
        resume: Go on where a training in this folder was cut off, with the same result as if it
            had not been. If nothing was saved yet, it starts from the beginning.
        on_error: What a line does that cannot be read, as in `read_agreement`.
        progress: Called after every batch.
        save_every: So many seconds apart the state is saved; a kill loses what came after.

    Returns:
        The report: "recipe", "data", "curve" (one entry an epoch), "held_out", "extra_held_out" and
        "tests" with the accuracies, "seconds", and the versions used. It is in training.json.

    Raises:
        DataError: If a file cannot be read or has too few sentences.
        OptionError: If the folder has a training that was not asked to be resumed, or one of
            another recipe or other data.
    """
    recipe = recipe or Recipe()
    folder = Path(out)
    check_folder(folder, resume)
    theme.require()  # for the picture, before the work and not after it
    material = _material(data, extra, test, recipe, on_error)
    folder.mkdir(parents=True, exist_ok=True)
    lesson = _Lesson(material, recipe)
    loop = Loop(lesson, folder)
    if resume:
        loop.load()
    loop.run(progress, save_every)
    report = _finish(loop, lesson, folder, test)
    loop.forget()
    return report


class _Lesson:
    """The verb-number model in training, and its averaged weights, which are those kept."""

    def __init__(self, material: _Material, recipe: Recipe) -> None:
        self.material = material
        self.recipe = recipe
        self.epochs = recipe.epochs
        self.patience = recipe.patience
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
        self.model = VerbNumberForSequenceClassification(config).train()
        _embed_by_spelling(self.model.wte.weight, material.tokenizer, config.initializer_range)
        self.kept = VerbNumberForSequenceClassification(config).eval()
        self.kept.load_state_dict(self.model.state_dict())
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True
        )
        self.parts: Mapping[str, Any] = {
            "model": self.model,
            "average": self.kept,
            "optimizer": self.optimizer,
        }
        content = hashlib.sha256(material.data.words.tobytes())
        content.update(material.data.labels.tobytes())
        self.identity: Mapping[str, Any] = {
            **dataclasses.asdict(recipe),
            "data": {"sha256": content.hexdigest(), **material.counts},
            "threads": torch.get_num_threads(),
        }

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, which depend on the seed and the epoch alone."""
        material, recipe = self.material, self.recipe
        random = np.random.default_rng([recipe.seed, epoch])
        others = material.data.size - material.extra_from
        count = min(recipe.extra_per_epoch, others)
        drawn = material.extra_from + random.choice(others, count, replace=False)
        rows = np.concatenate([np.arange(material.extra_from), drawn]).astype(np.int64)
        return list(batches(material.data.lengths, rows, recipe.batch_tokens, random))

    def learn(self, rows: NDArray[np.int64], step: int, steps: int) -> float:
        """Learn from one batch and return its loss."""
        recipe = self.recipe
        words = torch.from_numpy(self.material.data.padded(rows))
        labels = torch.from_numpy(self.material.data.labels[rows])
        chance = torch.rand(words.shape)
        chance[words < len(SPECIAL)] = 1.0
        hidden = chance < recipe.hidden_words
        read = words.masked_fill(hidden, SPECIAL.index("[UNK]"))
        read = read.masked_fill(chance < recipe.hidden_words / 2, SPECIAL.index("[MASK]"))
        rate = min(1.0, (step + 1) / max(1, recipe.warmup))
        rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * max(rate, 0.01)
        last = self.model.encode(read, (words != 0).long())
        loss = total = cross_entropy(self.model.score(last[:, 0]), labels)
        if recipe.guessing and bool(hidden.any()):
            guesses = last[hidden] @ self.model.wte.weight.T
            total = loss + recipe.guessing * cross_entropy(guesses, words[hidden])
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        move_average(self.kept, self.model, recipe.average, step)
        return float(loss.detach())

    def measure(self) -> dict[str, float]:
        """Return the accuracy of the averaged weights on what is held out."""
        found = {"held_out": _measure(self.kept, self.material.held_out)["accuracy"]}
        if self.material.held_out_extra.size:
            found["extra"] = _measure(self.kept, self.material.held_out_extra)["accuracy"]
        return found


def _embed_by_spelling(weight: torch.Tensor, tokenizer: Any, scale: float) -> None:
    """Let words that are spelt alike begin with embeddings that are alike.

    A word's vector is its own random part, plus one for each of its last one, two and three
    letters, plus one for what is left of it without a plural ending. So a rare word ending in "s"
    shares with all the others what the model learns of them, and "keys" shares with "key". Without
    it, most mistakes are plain words that the data has too few sentences of. The idea is that of
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


def _finish(loop: Loop, lesson: _Lesson, folder: Path, test: Sequence[Reserved]) -> dict[str, Any]:
    """Write the best weights, and test what was written."""
    material = lesson.material
    # Half the size; what is lost is in the accuracies below, which are of the file's weights.
    half = lesson.kept.half()
    with filling(folder) as fresh:
        half.save_pretrained(fresh)
        config = json.loads((fresh / "config.json").read_text())
        config["dtype"] = "float32"  # what it is read as
        (fresh / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        material.tokenizer.save_pretrained(fresh)
        model = AutoModelForSequenceClassification.from_pretrained(fresh).eval()
        tests = {
            Path(path).name: accuracy(model, material.tokenizer, read_agreement(path, limit=count))
            for path, count in test
        }
        extra = material.held_out_extra
        report = {
            "recipe": dataclasses.asdict(lesson.recipe),
            "data": material.counts,
            "curve": loop.curve,
            "held_out": _measure(model, material.held_out),
            "extra_held_out": _measure(model, extra) if extra.size else None,
            "tests": tests,
            "seconds": round(loop.seconds, 1),
            "threads": torch.get_num_threads(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        (fresh / REPORT).write_text(json.dumps(report, indent=1) + "\n")
        (fresh / "training.png").write_bytes(card.picture(report))
        (fresh / "README.md").write_text(card.card(report))
    return report


def _material(
    data: Sequence[str | os.PathLike[str]],
    extra: Sequence[str | os.PathLike[str]],
    test: Sequence[Reserved],
    recipe: Recipe,
    on_error: str | Callable[[Fault], object],
) -> _Material:
    if not data:
        raise OptionError("data is empty; expected at least one file of sentences")
    tested = {
        row.text for path, count in test for row in read_agreement(path, limit=count)
    }  # the first lines are read as they are: a fault there is fatal
    random = np.random.default_rng(recipe.seed)
    skipped: dict[str, int] = {}

    def read(path: str | os.PathLike[str], count_faults: bool = False) -> Iterator[Agreement]:
        """Read a file, telling each fault of it once."""

        def fault(what: Fault) -> None:
            if count_faults:
                skipped[Path(path).name] = skipped.get(Path(path).name, 0) + 1
                if callable(on_error):
                    on_error(what)

        policy = on_error if on_error == "raise" else fault
        return (row for row in read_agreement(path, on_error=policy) if row.text not in tested)

    counts: dict[str, int] = {}
    for path in (*data, *extra):
        counts[Path(path).name] = sum(1 for _ in read(path, count_faults=True))

    def hold_out(paths: Sequence[str | os.PathLike[str]], most: int) -> list[Agreement]:
        total = sum(counts[Path(path).name] for path in paths)
        chosen = set(random.choice(total, min(most, total // 5), replace=False).tolist())
        rows = (row for path in paths for row in read(path))
        return [row for index, row in enumerate(rows) if index in chosen]

    held_out = hold_out(data[:1], recipe.held_out)
    if not held_out:
        raise DataError(f"{data[0]}: too few sentences to hold some out and train on the others")
    held_out_extra = hold_out(extra, recipe.held_out) if extra else []
    without = {row.text for row in (*held_out, *held_out_extra)}

    def training(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Agreement]:
        return (row for path in paths for row in read(path) if row.text not in without)

    tokenizer = build_tokenizer((row.text for row in training([*data, *extra])), recipe.vocabulary)
    main = encode(tokenizer, training(data))
    others = encode(tokenizer, training(extra))
    if not main.size:
        raise DataError("no sentence is left to train on: all are equal to one held out")
    return _Material(
        tokenizer,
        main.joined(others),
        main.size,
        encode(tokenizer, held_out),
        encode(tokenizer, held_out_extra),
        {
            "files": [Path(path).name for path in data],
            "extra": [Path(path).name for path in extra],
            "read": counts,
            "skipped": skipped,
            "tests": [{"file": Path(path).name, "first": count} for path, count in test],
            "trained_on": main.size,
            "drawn_from": others.size,
            "held_out": len(held_out),
            "extra_held_out": len(held_out_extra),
            "vocabulary": len(tokenizer),
        },
    )


def _measure(model: Any, corpus: Corpus) -> dict[str, Any]:
    right = np.zeros(corpus.size, bool)
    for rows in batches(corpus.lengths, np.arange(corpus.size), _EVALUATION_TOKENS):
        words = torch.from_numpy(corpus.padded(rows))
        with torch.no_grad():
            logits = model(input_ids=words, attention_mask=(words != 0).long()).logits
        right[rows] = logits.argmax(-1).numpy() == corpus.labels[rows]
    return summary(right, corpus.attractors)
