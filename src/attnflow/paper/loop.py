"""Training that can be stopped at any moment and resumed, with the same weights in the end.

The Trainer of transformers is not used: it needs accelerate, and it saves between steps only every
so many steps, without the moving average of the weights.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import platform
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import DataError, OptionError
from attnflow.io.files import replacing
from attnflow.io.journal import difference, digest_of, locked
from attnflow.paper.accuracy import measure
from attnflow.paper.corpus import Corpus, batches
from attnflow.paper.recipe import FineTuning, Recipe

REPORT = "training.json"
"""The report in the folder of a trained model. It is written last."""

STATE = "training-state.pt"
"""The saved state in the folder of an unfinished training."""

_LOCK = ".attnflow-lock"
_PARTS = ("model", "average", "optimizer")
_NUMBERS = ("epoch", "batch", "step", "losses", "curve", "seconds")


class Status(NamedTuple):
    """The progress of a training.

    Attributes:
        epoch: The current epoch, from 1.
        epochs: The largest number of epochs.
        step: The number of batches done.
        steps: An estimate of their total number.
        loss: The mean loss of the last hundred batches.
        curve: The finished epochs, each with its "epoch", "loss" and "held_out" accuracy.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    curve: Sequence[Mapping[str, Any]]


class Training(ABC):
    """A model in training, and the moving average of its weights, which is what is saved.

    Args:
        recipe: The options of the training.
        model: The model.
        average: A copy of the model.
        pad: The token that pads sentences.
        data: The sentences to train on.
        held_out: Sentences to measure the accuracy on after every epoch. "held_out" decides which
            epoch is the best.
        identity: What else the result depends on. It is compared when a training is resumed.
    """

    betas: ClassVar = (0.9, 0.999)
    """The betas of AdamW."""

    def __init__(
        self,
        recipe: Recipe | FineTuning,
        model: Any,
        average: Any,
        pad: int,
        data: Corpus,
        held_out: Mapping[str, Corpus],
        identity: Mapping[str, Any],
    ) -> None:
        self.recipe = recipe
        self.model = model.train()
        self.average = average.eval()
        self.pad = pad
        self.data = data
        self.held_out = held_out
        groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                decay = recipe.weight_decay if parameter.ndim > 1 else 0.0
                groups.setdefault((self.share(name), decay), []).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": together, "share": share, "weight_decay": decay}
                for (share, decay), together in groups.items()
            ],
            betas=self.betas,
            fused=True,
        )
        self.identity = {
            **dataclasses.asdict(recipe),
            "data": digest_of([corpus.digest() for corpus in (data, *held_out.values())]),
            **identity,
            "threads": torch.get_num_threads(),
        }
        self.lengths = data.lengths
        self.steps = recipe.epochs * len(self._batches(0))
        self.best: dict[str, torch.Tensor] = {}
        self.epoch = self.batch = self.step = 0
        self.losses: list[float] = []  # of this epoch
        self.curve: list[dict[str, Any]] = []
        self.seconds = 0.0

    def share(self, name: str) -> float:
        """Return the learning rate of a parameter as a share of that of the others."""
        return 1.0

    def rows(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices of the sentences of an epoch; by default all."""
        return np.arange(len(self.data.ids))

    @abstractmethod
    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step as a share of the peak."""

    @abstractmethod
    def loss(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a batch to report, and the loss to minimise."""

    @abstractmethod
    def write(self, folder: Path, report: dict[str, Any]) -> dict[str, Any]:
        """Write the files of the model, and return the report so far with its own entries."""

    def complete(
        self,
        folder: Path,
        *,
        resume: bool,
        progress: Callable[[Status], object] | None,
        save_every: float,
    ) -> dict[str, Any]:
        """Train to the end, and write the trained model with its report.

        Args:
            folder: The folder to write, created if it does not exist. Until the end, the state is
                saved in it.
            resume: Whether to resume from a state that was saved in the folder.
            progress: Called after every batch.
            save_every: The number of seconds between saves. A kill loses what came after the last.

        Returns:
            The report, which is also in training.json.

        Raises:
            DataError: If the saved state is damaged.
            OptionError: If another process trains in the folder, or the saved state is of a
                training with other options or data.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / _LOCK, f"the training in {folder}"):
            if resume and (folder / STATE).exists():
                self._load(folder)
            try:
                self._run(folder, progress, save_every)
            except KeyboardInterrupt:
                self._save(folder)
                raise
            self.average.load_state_dict(self.best)
            report = {
                "recipe": dataclasses.asdict(self.recipe),
                "curve": self.curve,
                "seconds": round(self.seconds, 1),
                "threads": torch.get_num_threads(),
                "versions": {"python": platform.python_version(), "torch": torch.__version__},
            }
            with TemporaryDirectory(prefix=".attnflow-", dir=folder) as temporary:
                fresh = Path(temporary)
                report = self.write(fresh, report)
                (fresh / REPORT).write_text(json.dumps(report, indent=1) + "\n")
                for path in sorted(fresh.iterdir(), key=lambda path: path.name == REPORT):
                    os.chmod(path, 0o644)
                    os.replace(path, folder / path.name)
        (folder / STATE).unlink(missing_ok=True)
        for path in folder.glob(".attnflow-*"):  # left by processes that were killed
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return report

    def _run(
        self, folder: Path, progress: Callable[[Status], object] | None, save_every: float
    ) -> None:
        began = time.monotonic() - self.seconds
        saved = self.seconds
        while not self._done():
            todo = self._batches(self.epoch)
            while self.batch < len(todo):
                self.losses.append(self._learn(todo[self.batch]))
                self.batch += 1
                self.step += 1
                self.seconds = time.monotonic() - began
                if progress is not None:
                    loss = float(np.mean(self.losses[-100:]))
                    epoch, epochs = self.epoch + 1, self.recipe.epochs
                    progress(Status(epoch, epochs, self.step, self.steps, loss, self.curve))
                if self.seconds - saved >= save_every:
                    self._save(folder)
                    saved = time.monotonic() - began
            self._end_epoch()
            self.seconds = time.monotonic() - began
            self._save(folder)
            saved = time.monotonic() - began

    def _batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, which depend only on the seed and the epoch."""
        random = np.random.default_rng([self.recipe.seed, epoch])
        return batches(self.lengths, self.rows(random), self.recipe.batch_tokens, random)

    def _learn(self, rows: NDArray[np.int64]) -> float:
        """Learn from one batch and return its loss."""
        rate = self.recipe.learning_rate * self.rate(self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        loss, total = self.loss(rows)
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        # A smaller decay at first makes the average forget the initial weights.
        decay = min(self.recipe.average, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                if new.requires_grad:
                    mean.lerp_(new, 1 - decay)
        return float(loss.detach())

    def _done(self) -> bool:
        """Whether all epochs are done, or the last ones brought no improvement."""
        held_out = [point["held_out"] for point in self.curve]
        last = len(held_out) - self.recipe.patience
        return self.epoch >= self.recipe.epochs or (
            last > 0 and held_out.index(max(held_out)) < last
        )

    def _end_epoch(self) -> None:
        """Measure the accuracy, and keep the weights if they are the best."""
        point: dict[str, Any] = {"epoch": self.epoch + 1, "loss": float(np.mean(self.losses))}
        for name, corpus in self.held_out.items():
            point[name] = measure(self.average, corpus, self.pad)["accuracy"]
        if point["held_out"] > max((each["held_out"] for each in self.curve), default=-1.0):
            state = self.average.state_dict()
            self.best = {name: value.clone() for name, value in state.items()}
        self.curve.append(point)
        self.epoch, self.batch, self.losses = self.epoch + 1, 0, []

    def _save(self, folder: Path) -> None:
        state = {
            "identity": json.dumps(self.identity),
            "parts": {name: getattr(self, name).state_dict() for name in _PARTS},
            "best": self.best,
            "random": torch.get_rng_state(),
            "numbers": json.dumps({name: getattr(self, name) for name in _NUMBERS}),
        }
        with replacing(folder / STATE) as temporary:
            torch.save(state, temporary)

    def _load(self, folder: Path) -> None:
        try:
            state = torch.load(folder / STATE, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise DataError(
                f"{folder / STATE} is damaged, so the training cannot be resumed; remove it to "
                "start from the beginning"
            ) from error
        was, now = json.loads(state["identity"]), json.loads(json.dumps(self.identity))
        different = difference({"options": was}, {"options": now})
        if different:
            raise OptionError(f"the training in {folder} cannot be resumed: {different}")
        for name in _PARTS:
            getattr(self, name).load_state_dict(state["parts"][name])
        self.best = state["best"]
        torch.set_rng_state(state["random"])
        vars(self).update(json.loads(state["numbers"]))


def check_folder(folder: Path, resume: bool) -> None:
    """Check that a training can start in a folder, or be resumed in it.

    Args:
        folder: The folder.
        resume: Whether to resume a training. If nothing was saved yet, it starts from the
            beginning.

    Raises:
        OptionError: If there is a trained model, or there is a training to resume and `resume` is
            False.
    """
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is not a folder")
    if (folder / REPORT).exists():
        raise OptionError(f"there is a trained model in {folder} already; choose another folder")
    if (folder / STATE).exists() and not resume:
        raise OptionError(
            f"there is an unfinished training in {folder}; resume it with resume=True, or choose "
            "another folder"
        )
