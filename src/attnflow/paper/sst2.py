"""Fine-tuning of an encoder on SST-2, for the paper's Table 3."""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from attnflow.capture.quiet import quiet
from attnflow.errors import DataError, ModelError
from attnflow.paper.accuracy import measure
from attnflow.paper.corpus import encode, padded
from attnflow.paper.data import Agreement, Fault, read_sst2
from attnflow.paper.loop import Lesson, Status, check_folder, complete
from attnflow.paper.recipe import FineTuning

__all__ = ["FineTuning", "fine_tune"]

LABELS = ("negative", "positive")
"""The classes, by SST-2's own numbers."""


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
        how: How to fine-tune; None means the settings behind the numbers in the documentation.
        limit: How many sentences to train on at most.
        resume: Whether to resume a training that was stopped in this folder.
        on_error: What to do about a line that cannot be read, as in `attnflow.paper.read_sst2`.
        progress: Called after every batch.
        save_every: How many seconds apart the state is saved.

    Returns:
        The report, which is also in training.json: "accuracy" on dev, "count", "curve" and how the
        model was made.

    Raises:
        DataError: If a file cannot be read.
        ModelError: If the encoder cannot be loaded.
        OptionError: If the folder has another training.
    """
    folder = Path(out)
    check_folder(folder, resume)
    # SST-2 has no attractors.
    rows = [Agreement(*row, None) for row in read_sst2(train, limit=limit, on_error=on_error)]
    tested = [Agreement(*row, None) for row in read_sst2(dev, on_error=on_error)]
    if not rows or not tested:
        raise DataError(f"{dev if rows else train}: there is no sentence")
    lesson = _Sentiment(os.fspath(model), rows, tested, how or FineTuning())

    def write(fresh: Path, report: dict[str, Any]) -> dict[str, Any]:
        lesson.kept.save_pretrained(fresh)
        lesson.tokenizer.save_pretrained(fresh)
        return {
            **report,
            "model": Path(model).name,
            "data": {"train": Path(train).name, "dev": Path(dev).name, "trained_on": len(rows)},
            "accuracy": lesson.measure()["held_out"],
            "count": len(tested),
        }

    return complete(lesson, folder, write, resume=resume, progress=progress, save_every=save_every)


class _Sentiment(Lesson):
    """An encoder with a classifier, in training."""

    recipe: FineTuning

    def __init__(
        self, name: str, rows: list[Agreement], tested: list[Agreement], how: FineTuning
    ) -> None:
        torch.manual_seed(how.seed)
        try:
            config = AutoConfig.from_pretrained(
                name,
                id2label=dict(enumerate(LABELS)),
                label2id={label: index for index, label in enumerate(LABELS)},
            )
            # transformers would warn that the classifier has no weights yet.
            with quiet():
                self.tokenizer = AutoTokenizer.from_pretrained(name)
                model = AutoModelForSequenceClassification.from_pretrained(
                    name, config=config, dtype=torch.float32, use_safetensors=True
                )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{name} cannot be fine-tuned: {error}") from error
        kept = copy.deepcopy(model)
        model.get_input_embeddings().requires_grad_(how.words)
        groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
        for parameter_name, parameter in model.named_parameters():
            if parameter.requires_grad:
                share = how.layer_decay ** _layers_above(parameter_name, config.num_hidden_layers)
                decay = how.weight_decay if parameter.ndim > 1 else 0.0
                groups.setdefault((share, decay), []).append(parameter)
        self.hidden = self.tokenizer.mask_token_id
        if self.hidden is None:
            self.hidden = self.tokenizer.unk_token_id
        if self.hidden is None and how.hidden_words:
            raise ModelError(f"{name} has neither MASK nor UNK; hidden_words=0 hides no words")
        self.special = torch.tensor(self.tokenizer.all_special_ids)
        self.pad = self.tokenizer.pad_token_id
        data = encode(self.tokenizer, rows, "01", truncation=True, max_length=how.longest)
        self.dev = encode(self.tokenizer, tested, "01", truncation=True)
        counts = np.bincount(data.labels, minlength=len(LABELS)).clip(1)
        self.weights = torch.from_numpy(len(rows) / len(LABELS) / counts).float()
        content = hashlib.sha256(repr([rows, tested]).encode()).hexdigest()
        super().__init__(
            how,
            model,
            kept,
            [
                {"params": together, "weight_decay": decay, "share": share}
                for (share, decay), together in groups.items()
            ],
            data,
            {"model": name, "data": content},
        )

    def rows(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Return all sentences."""
        return np.arange(len(self.data.ids))

    def rate(self, step: int, steps: int) -> float:
        """Rise over the first tenth of the steps, and fall linearly to 0."""
        return min(1.0, (step + 1) / max(1, steps // 10)) * max(0.0, 1 - step / steps)

    def losses(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the classes, which have the same weight, twice."""
        words, mask = padded(self.data.ids, rows, self.pad)
        if self.recipe.hidden_words:
            hide = torch.rand(words.shape) < self.recipe.hidden_words
            words = words.masked_fill(hide & ~torch.isin(words, self.special), self.hidden)
        logits = self.model(input_ids=words, attention_mask=mask).logits
        loss = cross_entropy(logits, torch.from_numpy(self.data.labels[rows]), self.weights)
        return loss, loss

    def measure(self) -> dict[str, float]:
        """Return the accuracy on the development set."""
        return {"held_out": measure(self.kept, self.dev, self.pad)["accuracy"]}


def _layers_above(name: str, layers: int) -> int:
    """Return the number of layers above a parameter: all for embeddings, none for a head."""
    if "embedding" in name:
        return layers
    found = re.search(r"\.layers?\.(\d+)\.", name)
    return layers - 1 - int(found[1]) if found else 0
