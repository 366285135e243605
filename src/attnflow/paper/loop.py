"""Training that can be stopped at any moment and resumed, with the same weights in the end."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import DataError, OptionError
from attnflow.io.files import replacing
from attnflow.io.journal import difference, locked

__all__ = [
    "REPORT",
    "Lesson",
    "Loop",
    "Status",
    "check_folder",
    "filling",
    "has_state",
    "move_average",
]

REPORT = "training.json"
"""The report's name in the folder of a trained model; it is written last."""

_STATE = "training-state.pt"
_LOCK = ".attnflow-lock"


class Status(NamedTuple):
    """How far training is.

    Attributes:
        epoch: The epoch, from 1.
        epochs: How many there are at most.
        step: How many batches are done.
        steps: About how many there will be.
        loss: The mean loss of the last hundred batches.
        accuracy: On the held-out sentences, after the last finished epoch; None before.
        seconds_left: An estimate.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float | None
    seconds_left: float


class Lesson(Protocol):
    """What is learnt, and how.

    Attributes:
        epochs: The largest number of epochs.
        patience: Training ends after this many epochs without improvement.
        kept: The model whose weights are kept from the best epoch.
        parts: Everything that changes in training and has a `state_dict`.
        identity: What the training depends on: two with the same identity give the same weights.
    """

    epochs: int
    patience: int
    kept: torch.nn.Module
    parts: Mapping[str, Any]
    identity: Mapping[str, Any]

    def batches(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch, the same at every call."""

    def learn(self, rows: NDArray[np.int64], step: int, steps: int) -> float:
        """Learn from one batch and return its loss."""

    def measure(self) -> dict[str, float]:
        """Return what is measured after an epoch; "held_out" decides which epoch is best."""


class Loop:
    """The epochs of a training, and the state from which a stopped one is resumed.

    Args:
        lesson: What is learnt.
        folder: Where the state is saved.

    Attributes:
        curve: What was measured after each epoch.
        best: The weights of the best epoch so far.
        seconds: How long training has taken, over all runs.
    """

    def __init__(self, lesson: Lesson, folder: Path) -> None:
        self.lesson = lesson
        self.folder = folder
        self.steps = lesson.epochs * len(lesson.batches(0))
        self.curve: list[dict[str, Any]] = []
        self.best: dict[str, torch.Tensor] = {}
        self.seconds = 0.0
        self._epoch = 0
        self._batch = 0  # of this epoch
        self._step = 0
        self._losses: list[float] = []  # of this epoch

    def run(self, progress: Callable[[Status], object] | None, save_every: float) -> None:
        """Train from the current state to the end, and give the model its best weights.

        Args:
            progress: Called after every batch.
            save_every: How many seconds apart the state is saved; a kill loses what came after.

        Raises:
            OptionError: If another process trains in this folder.
        """
        with locked(self.folder / _LOCK, f"the training in {self.folder}"):
            self._run(progress, save_every)
        self.lesson.kept.load_state_dict(self.best)

    def _run(self, progress: Callable[[Status], object] | None, save_every: float) -> None:
        begun = saved = time.monotonic()
        before, first = self.seconds, self._step
        try:
            while not self._done():
                todo = self.lesson.batches(self._epoch)
                while self._batch < len(todo):
                    loss = self.lesson.learn(todo[self._batch], self._step, self.steps)
                    self._losses.append(loss)
                    self._batch += 1
                    self._step += 1
                    now = time.monotonic()
                    self.seconds = before + now - begun
                    if progress is not None:
                        progress(self._status((now - begun) / (self._step - first)))
                    if now - saved >= save_every:
                        self.save()
                        saved = time.monotonic()
                self._end_epoch()
                self.seconds = before + time.monotonic() - begun
                self.save()
                saved = time.monotonic()
        except KeyboardInterrupt:
            self.save()
            raise

    def _status(self, pace: float) -> Status:
        return Status(
            self._epoch + 1,
            self.lesson.epochs,
            self._step,
            self.steps,
            float(np.mean(self._losses[-100:])),
            self.curve[-1]["held_out"] if self.curve else None,
            pace * max(0, self.steps - self._step),
        )

    def _done(self) -> bool:
        """Whether all epochs are done, or the last ones brought no improvement."""
        if self._epoch >= self.lesson.epochs:
            return True
        held_out = [point["held_out"] for point in self.curve]
        patience = self.lesson.patience
        return len(held_out) > patience and held_out.index(max(held_out)) < len(held_out) - patience

    def _end_epoch(self) -> None:
        """Measure, and keep the weights if they are the best."""
        point = {
            "epoch": self._epoch + 1,
            "loss": float(np.mean(self._losses)),
            **self.lesson.measure(),
        }
        if point["held_out"] > max((each["held_out"] for each in self.curve), default=-1.0):
            state = self.lesson.kept.state_dict()
            self.best = {name: value.clone() for name, value in state.items()}
        self.curve.append(point)
        self._epoch, self._batch, self._losses = self._epoch + 1, 0, []

    def save(self) -> None:
        """Write the state, whole or not at all."""
        numbers = {
            "epoch": self._epoch,
            "batch": self._batch,
            "step": self._step,
            "losses": self._losses,
            "curve": self.curve,
            "seconds": self.seconds,
        }
        state = {
            "identity": json.dumps(self.lesson.identity),
            "parts": {name: part.state_dict() for name, part in self.lesson.parts.items()},
            "best": self.best,
            "random": torch.get_rng_state(),
            "numbers": json.dumps(numbers),
        }
        with replacing(self.folder / _STATE) as temporary:
            torch.save(state, temporary)

    def load(self) -> None:
        """Load the state that a training in this folder has saved, if there is one.

        Raises:
            DataError: If it cannot be read.
            OptionError: If that training has other options or data.
        """
        if not has_state(self.folder):
            return
        path = self.folder / _STATE
        try:
            state = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise DataError(
                f"{path} is damaged, so the training cannot be resumed; remove it to start from "
                "the beginning"
            ) from error
        was, now = json.loads(state["identity"]), json.loads(json.dumps(self.lesson.identity))
        different = difference({"options": was}, {"options": now}, _short)
        if different:
            raise OptionError(f"the training in {self.folder} cannot be resumed: {different}")
        for name, part in self.lesson.parts.items():
            part.load_state_dict(state["parts"][name])
        self.best = state["best"]
        torch.set_rng_state(state["random"])
        numbers = json.loads(state["numbers"])
        self._epoch, self._batch = numbers["epoch"], numbers["batch"]
        self._step, self._losses = numbers["step"], numbers["losses"]
        self.curve, self.seconds = numbers["curve"], numbers["seconds"]

    def forget(self) -> None:
        """Remove the state and temporary files, once the trained model is written."""
        (self.folder / _STATE).unlink(missing_ok=True)
        for path in self.folder.glob(".attnflow-*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def move_average(average: torch.nn.Module, model: torch.nn.Module, decay: float, step: int) -> None:
    """Move averaged weights towards those of a model, after a step.

    Args:
        average: The model with the averaged weights, which are changed.
        model: The model in training. Weights that do not learn are the same in both.
        decay: The largest share of the average that a step leaves.
        step: The step, from 0. The first steps leave less, so the average forgets the initial
            weights.
    """
    left = min(decay, (step + 1) / (step + 10))
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            if new.requires_grad:
                kept.lerp_(new, 1 - left)


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
    if has_state(folder) and not resume:
        raise OptionError(
            f"there is an unfinished training in {folder}: resume it (resume=True), or choose "
            "another folder"
        )


def has_state(folder: Path) -> bool:
    """Return whether a training in a folder has saved a state to resume from."""
    return (folder / _STATE).exists()


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Give a temporary folder whose files move to another when the block succeeds, the report last.

    Args:
        folder: Where the files are moved.

    Yields:
        The folder to write them in.
    """
    with TemporaryDirectory(prefix=".attnflow-", dir=folder) as name:
        fresh = Path(name)
        yield fresh
        for path in sorted(fresh.iterdir(), key=lambda path: path.name == REPORT):
            os.chmod(path, 0o644)
            os.replace(path, folder / path.name)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
