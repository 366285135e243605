"""Fine-tuning of an encoder on SST-2, for the paper's Table 3."""

from __future__ import annotations

import copy
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
from attnflow.paper.data import Agreement, OnError, read_sst2
from attnflow.paper.loop import Status, Training, check_folder
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
    recipe: FineTuning | None = None,
    limit: int | None = None,
    resume: bool = False,
    on_error: OnError = "raise",
    progress: Callable[[Status], object] | None = None,
    save_every: float = 120.0,
) -> dict[str, Any]:
    """Fine-tune an encoder to classify sentences as positive or negative, and write it.

    Args:
        model: The encoder: a folder, or a name on the hub such as "distilbert-base-uncased".
        train: SST-2's train.tsv.
        dev: SST-2's dev.tsv. The epoch that is best on it is saved, as is usual for SST-2, whose
            test labels are not public.
        out: The folder to write, created if it does not exist.
        recipe: The options. None means those behind the numbers in the documentation.
        limit: The largest number of sentences to train on.
        resume: Whether to resume a training that was stopped in this folder.
        on_error: What to do about a line that cannot be read, as in `attnflow.paper.read_sst2`.
        progress: Called after every batch.
        save_every: The number of seconds between saves.

    Returns:
        The report, which is also in training.json: "accuracy" on dev, "count", "curve" and how the
        model was made.

    Raises:
        DataError: If a file cannot be read.
        ModelError: If the encoder cannot be loaded.
        OptionError: If the folder has another training.
    """
    check_folder(Path(out), resume)
    # SST-2 has no attractors.
    rows = [Agreement(*row, None) for row in read_sst2(train, limit=limit, on_error=on_error)]
    tested = [Agreement(*row, None) for row in read_sst2(dev, on_error=on_error)]
    if not rows or not tested:
        raise DataError(f"{dev if rows else train} has no sentence")
    files = {"train": Path(train).name, "dev": Path(dev).name}
    training = _Sentiment(os.fspath(model), files, rows, tested, recipe or FineTuning())
    return training.complete(Path(out), resume=resume, progress=progress, save_every=save_every)


class _Sentiment(Training):
    """The training of an encoder with a classifier."""

    recipe: FineTuning

    def __init__(
        self,
        name: str,
        files: dict[str, str],
        rows: list[Agreement],
        tested: list[Agreement],
        recipe: FineTuning,
    ) -> None:
        torch.manual_seed(recipe.seed)
        try:
            config = AutoConfig.from_pretrained(
                name,
                id2label=dict(enumerate(LABELS)),
                label2id={label: index for index, label in enumerate(LABELS)},
            )
            # transformers would warn that the classifier has no weights yet.
            with quiet():
                tokenizer = AutoTokenizer.from_pretrained(name)
                model = AutoModelForSequenceClassification.from_pretrained(
                    name, config=config, dtype=torch.float32, use_safetensors=True
                )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{name} cannot be fine-tuned: {error}") from error
        model.get_input_embeddings().requires_grad_(False)
        self.about = {"model": Path(name).name, "data": {**files, "trained_on": len(rows)}}
        self.tokenizer = tokenizer
        self.layers = config.num_hidden_layers
        self.hidden = tokenizer.mask_token_id
        if self.hidden is None:
            self.hidden = tokenizer.unk_token_id
        if self.hidden is None and recipe.hidden_words:
            raise ModelError(f"{name} has neither MASK nor UNK; hidden_words=0 masks no words")
        self.special = torch.tensor(tokenizer.all_special_ids)
        data = encode(tokenizer, rows, "01", truncation=True, max_length=recipe.longest)
        counts = np.bincount(data.labels, minlength=len(LABELS)).clip(1)
        self.weights = torch.from_numpy(len(rows) / len(LABELS) / counts).float()
        held_out = {"held_out": encode(tokenizer, tested, "01", truncation=True)}
        average, pad = copy.deepcopy(model), tokenizer.pad_token_id
        super().__init__(recipe, model, average, pad, data, held_out, {"model": name})

    def share(self, name: str) -> float:
        """Return a lower learning rate for lower layers."""
        return float(self.recipe.layer_decay ** _layers_above(name, self.layers))

    def rate(self, step: int, steps: int) -> float:
        """Rise over the first tenth of the steps, and fall linearly to 0."""
        return min(1.0, (step + 1) / max(1, steps // 10)) * max(0.0, 1 - step / steps)

    def loss(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the classes, weighted equally, twice."""
        words, mask = padded(self.data.ids, rows, self.pad)
        if self.recipe.hidden_words:
            hide = torch.rand(words.shape) < self.recipe.hidden_words
            words = words.masked_fill(hide & ~torch.isin(words, self.special), self.hidden)
        logits = self.model(input_ids=words, attention_mask=mask).logits
        loss = cross_entropy(logits, torch.from_numpy(self.data.labels[rows]), self.weights)
        return loss, loss

    def write(self, folder: Path, report: dict[str, Any]) -> dict[str, Any]:
        """Write the best weights and the tokenizer."""
        self.average.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        found = measure(self.average, self.held_out["held_out"], self.pad)
        found.pop("by_attractors")
        return {**report, **self.about, **found}


def _layers_above(name: str, layers: int) -> int:
    """Return the number of layers above a parameter: all for embeddings, none for a head."""
    if "embedding" in name:
        return layers
    found = re.search(r"\.layers?\.(\d+)\.", name)
    return layers - 1 - int(found[1]) if found else 0
