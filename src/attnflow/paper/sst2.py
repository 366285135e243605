"""Fine-tuning of an encoder on SST-2, for the paper's Table 3."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

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

    Attributes:
        epochs: How often the data is gone through at most.
        learning_rate: The highest learning rate; it rises over the first tenth of the steps and
            falls in a straight line to 0.
        batch_tokens: How many tokens a batch has at most, padding among them.
        weight_decay: AdamW's, of matrices only.
        average: What is kept are weights averaged over the steps, with this decay.
        words: Whether the embeddings of words learn too. They are half of a small encoder, and
            most words are rare in SST-2; left as they are, a step takes a fifth less time.
        longest: Sentences are cut to so many tokens in training.
        patience: Training ends when so many epochs have brought nothing.
        seed: Of the classifier's weights, the order and the dropping.
    """

    epochs: int = 3
    learning_rate: float = 5e-5
    batch_tokens: int = 512
    weight_decay: float = 0.01
    average: float = 0.998
    words: bool = False
    longest: int = 96
    patience: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        lowest = {"epochs": 1, "batch_tokens": 16, "weight_decay": 0, "longest": 4, "patience": 1}
        for name, low in {**lowest, "seed": 0}.items():
            if not getattr(self, name) >= low:
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected {low} or more")
        if not 0 <= self.average < 1:
            raise OptionError(f"average is {self.average!r}; expected 0 to below 1")
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
            self.tokenizer = AutoTokenizer.from_pretrained(model)
            self.model = AutoModelForSequenceClassification.from_pretrained(
                model, config=config, dtype=torch.float32, use_safetensors=True
            ).train()
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{model} cannot be fine-tuned: {error}") from error
        self.kept = copy.deepcopy(self.model).eval()
        self.model.get_input_embeddings().requires_grad_(how.words)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": how.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=how.learning_rate, fused=True)
        self.parts: Mapping[str, Any] = {
            "model": self.model,
            "average": self.kept,
            "optimizer": self.optimizer,
        }
        options = {"truncation": True, "max_length": how.longest}
        self.ids = self.tokenizer([row.text for row in rows], **options)["input_ids"]
        self.labels = np.array([int(row.label) for row in rows])
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
            group["lr"] = self.how.learning_rate * rate
        given = self.tokenizer.pad({"input_ids": [self.ids[row] for row in rows]})
        words = torch.tensor(given["input_ids"])
        mask = torch.tensor(given["attention_mask"])
        logits = self.model(input_ids=words, attention_mask=mask).logits
        loss = cross_entropy(logits, torch.from_numpy(self.labels[rows]))
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
