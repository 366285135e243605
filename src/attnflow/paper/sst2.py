"""Fine-tuning of an encoder on SST-2, for the paper's Table 3."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from attnflow.capture.quiet import quiet
from attnflow.errors import DataError, ModelError, OptionError
from attnflow.paper.accuracy import predictions
from attnflow.paper.corpus import batches
from attnflow.paper.data import Fault, Labelled, read_sst2
from attnflow.paper.loop import REPORT, Loop, Status, check_folder, filling, move_average

__all__ = ["LABELS", "FineTuning", "fine_tune"]

LABELS = ("negative", "positive")
"""The classes, by SST-2's own numbers."""


@dataclass(frozen=True)
class FineTuning:
    """How an encoder is fine-tuned.

    The sentences of SST-2 come with all their phrases, so that the same words are seen again and
    again, and an encoder soon knows them by heart. Hidden words and lower learning rates for lower
    layers keep it from that. Both classes weigh the same, however many sentences each has.

    Attributes:
        epochs: How often the data is gone through at most.
        learning_rate: The highest learning rate; it rises over the first tenth of the steps and
            falls in a straight line to 0.
        batch_tokens: How many tokens a batch has at most, padding among them.
        weight_decay: AdamW's, of matrices only.
        average: What is kept are weights averaged over the steps, with this decay.
        hidden_words: The share of words that are hidden by MASK, or UNK if there is none.
        layer_decay: The learning rate of a layer, as a share of that of the layer above it.
        words: Whether the embeddings of words learn too. They are half of a small encoder, and
            most words are rare in SST-2; left as they are, a step takes a fifth less time.
        longest: Sentences are cut to so many tokens in training.
        patience: Training ends when so many epochs have brought nothing.
        seed: Of the classifier's weights, the order and the dropping.
    """

    epochs: int = 2
    learning_rate: float = 1e-4
    batch_tokens: int = 512
    weight_decay: float = 0.01
    average: float = 0.998
    hidden_words: float = 0.15
    layer_decay: float = 0.85
    words: bool = False
    longest: int = 96
    patience: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        lowest = {"epochs": 1, "batch_tokens": 16, "weight_decay": 0, "longest": 4, "patience": 1}
        for name, low in {**lowest, "seed": 0}.items():
            if not getattr(self, name) >= low:
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected {low} or more")
        for name in ("average", "hidden_words"):
            if not 0 <= getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected 0 to below 1")
        if not 0 < self.layer_decay <= 1:
            raise OptionError(f"layer_decay is {self.layer_decay!r}; expected above 0, 1 at most")
        if not self.learning_rate > 0:
            raise OptionError(f"learning_rate is {self.learning_rate!r}; expected more than 0")


def fine_tune(
    model: str | os.PathLike[str],
    train: str | os.PathLike[str],
    dev: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    how: FineTuning | None = None,
    limit: int | None = None,
    resume: bool = False,
    on_error: str | Callable[[Fault], object] = "raise",
    progress: Callable[[Status], object] | None = None,
    save_every: float = 120.0,
) -> dict[str, Any]:
    """Fine-tune an encoder to tell positive from negative sentences, and write it.

    Args:
        model: The encoder: a folder, or a name on the hub such as "distilbert-base-uncased".
        train: SST-2's train.tsv.
        dev: SST-2's dev.tsv. The epoch that is best on it is kept, as is usual for SST-2, whose
            test labels are not public.
        out: The folder to write, made if need be.
        how: How to fine-tune; None is what made the figures in the documentation.
        limit: How many sentences to train on at most.
        resume: Go on where a training in this folder was cut off.
        on_error: What a line does that cannot be read, as in `attnflow.paper.read_sst2`.
        progress: Called after every batch.
        save_every: So many seconds apart the state is saved.

    Returns:
        The report, which is in training.json: "accuracy" on dev, "count", "curve" and how it was
        made.

    Raises:
        DataError: If a file cannot be read.
        ModelError: If the encoder cannot be loaded.
        OptionError: If the folder has another training.
    """
    how = how or FineTuning()
    folder = Path(out)
    check_folder(folder, resume)
    rows = list(read_sst2(train, limit=limit, on_error=on_error))
    tested = list(read_sst2(dev, on_error=on_error))
    if not rows or not tested:
        raise DataError(f"{dev if rows else train}: there is no sentence")
    lesson = _Lesson(os.fspath(model), rows, tested, how)
    folder.mkdir(parents=True, exist_ok=True)
    loop = Loop(lesson, folder)
    if resume:
        loop.load()
    loop.run(progress, save_every)
    report = {
        "model": lesson.name,
        "recipe": dataclasses.asdict(how),
        "data": {"train": Path(train).name, "dev": Path(dev).name, "trained_on": len(rows)},
        "accuracy": lesson.measure()["held_out"],
        "count": len(tested),
        "curve": loop.curve,
        "seconds": round(loop.seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    with filling(folder) as fresh:
        lesson.kept.save_pretrained(fresh)
        lesson.tokenizer.save_pretrained(fresh)
        (fresh / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    loop.forget()
    return report


class _Lesson:
    """An encoder with a classifier, in training."""

    def __init__(
        self, model: str, rows: list[Labelled], tested: list[Labelled], how: FineTuning
    ) -> None:
        self.how = how
        self.epochs = how.epochs
        self.patience = how.patience
        self.name = Path(model).name
        torch.manual_seed(how.seed)
        try:
            config = AutoConfig.from_pretrained(
                model,
                id2label=dict(enumerate(LABELS)),
                label2id={label: index for index, label in enumerate(LABELS)},
            )
            # That the classifier's own weights are not there is no news here.
            with quiet():
                self.tokenizer = AutoTokenizer.from_pretrained(model)
                self.model = AutoModelForSequenceClassification.from_pretrained(
                    model, config=config, dtype=torch.float32, use_safetensors=True
                ).train()
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{model} cannot be fine-tuned: {error}") from error
        self.kept = copy.deepcopy(self.model).eval()
        self.model.get_input_embeddings().requires_grad_(how.words)
        groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                share = how.layer_decay ** _layers_above(name, config.num_hidden_layers)
                decay = how.weight_decay if parameter.ndim > 1 else 0.0
                groups.setdefault((share, decay), []).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": together, "weight_decay": decay, "share": share}
                for (share, decay), together in groups.items()
            ],
            lr=how.learning_rate,
            fused=True,
        )
        tokenizer = self.tokenizer
        self.hidden = tokenizer.mask_token_id
        if self.hidden is None:
            self.hidden = tokenizer.unk_token_id
        if self.hidden is None and how.hidden_words:
            raise ModelError(f"{model} has neither MASK nor UNK; hidden_words=0 hides no words")
        self.special = torch.tensor(tokenizer.all_special_ids)
        self.parts: Mapping[str, Any] = {
            "model": self.model,
            "average": self.kept,
            "optimizer": self.optimizer,
        }
        options = {"truncation": True, "max_length": how.longest}
        self.ids = self.tokenizer([row.text for row in rows], **options)["input_ids"]
        self.labels = np.array([int(row.label) for row in rows])
        counts = np.bincount(self.labels, minlength=len(LABELS)).clip(1)
        self.weights = torch.from_numpy(len(rows) / len(LABELS) / counts).float()
        self.lengths = np.array([len(row) for row in self.ids])
        self.dev_ids = self.tokenizer([row.text for row in tested], truncation=True)["input_ids"]
        self.dev_labels = np.array([int(row.label) for row in tested])
        content = hashlib.sha256(repr([rows, tested]).encode()).hexdigest()
        self.identity: Mapping[str, Any] = {
            **dataclasses.asdict(how),
            "model": model,
            "data": content,
            "threads": torch.get_num_threads(),
        }

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, which depend on the seed and the epoch alone."""
        random = np.random.default_rng([self.how.seed, epoch])
        rows = np.arange(len(self.ids))
        return list(batches(self.lengths, rows, self.how.batch_tokens, random))

    def learn(self, rows: NDArray[np.int64], step: int, steps: int) -> float:
        """Learn from one batch and return its loss."""
        rate = min(1.0, (step + 1) / max(1, steps // 10)) * max(0.0, 1 - step / steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.how.learning_rate * rate * group["share"]
        given = self.tokenizer.pad({"input_ids": [self.ids[row] for row in rows]})
        words = torch.tensor(given["input_ids"])
        mask = torch.tensor(given["attention_mask"])
        if self.how.hidden_words:
            hide = torch.rand(words.shape) < self.how.hidden_words
            words = words.masked_fill(hide & ~torch.isin(words, self.special), self.hidden)
        logits = self.model(input_ids=words, attention_mask=mask).logits
        loss = cross_entropy(logits, torch.from_numpy(self.labels[rows]), self.weights)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        move_average(self.kept, self.model, self.how.average, step)
        return float(loss.detach())

    def measure(self) -> dict[str, float]:
        """Return the accuracy on the development set."""
        found = predictions(self.kept, self.dev_ids, self.tokenizer.pad_token_id)
        return {"held_out": float((found == self.dev_labels).mean())}


def _layers_above(name: str, layers: int) -> int:
    """Return how many layers stand above a parameter: all above embeddings, none above a head."""
    if "embedding" in name:
        return layers
    found = re.search(r"\.layers?\.(\d+)\.", name)
    return layers - 1 - int(found[1]) if found else 0
