"""Training that can be cut off at any moment and goes on to the same weights."""

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
from attnflow.files import replacing

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


class Status(NamedTuple):
    """How far training is.

    Attributes:
        epoch: The epoch, from 1.
        epochs: How many there are at most.
        step: How many batches are done.
        steps: About how many there will be.
        loss: The mean loss of the last hundred batches.
        accuracy: On the sentences held out, after the last epoch that ended; None before.
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
        epochs: How often the data is gone through at most.
        patience: Training ends when so many epochs have brought nothing.
        kept: The model whose weights are kept from the best epoch.
        parts: All that changes in training and has a `state_dict`.
        identity: What the training is of: two that say the same go the same way.
    """

    epochs: int
    patience: int
    kept: torch.nn.Module
    parts: Mapping[str, Any]
    identity: Mapping[str, Any]

    def batches(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch, the same whenever it is asked."""

    def learn(self, rows: NDArray[np.int64], step: int, steps: int) -> float:
        """Learn from one batch and return its loss."""

    def measure(self) -> dict[str, float]:
        """Return what is measured after an epoch; "held_out" is what the best is chosen by."""


class Loop:
    """The epochs of a training, with all that one cut off needs to go on as if it had not been.

    Args:
        lesson: What is learnt.
        folder: Where the state is saved.

    Attributes:
        curve: What was measured after each epoch.
        best: The weights of the best epoch so far.
        seconds: How long training has taken, over all its parts.
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
        """Train from where things stand to the end, and give the model its best weights.

        Args:
            progress: Called after every batch.
            save_every: So many seconds apart the state is saved; a kill loses what came after.
        """
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
        self.lesson.kept.load_state_dict(self.best)

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
        """Whether all epochs are through, or the last ones brought nothing."""
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
        """Take up the state that a training in this folder has left, if there is one.

        Raises:
            DataError: If it cannot be read.
            OptionError: If that training is of something else.
        """
        if not has_state(self.folder):
            return
        path = self.folder / _STATE
        try:
            state = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise DataError(
                f"{path} is damaged, so that the training cannot go on; remove it to start from "
                "the beginning"
            ) from error
        was, now = json.loads(state["identity"]), json.loads(json.dumps(self.lesson.identity))
        differ = [name for name in now if was.get(name) != now[name]]
        if differ:
            raise OptionError(
                f"the training in {self.folder} cannot be resumed: it has another "
                + ", ".join(f"{name} ({_short(was.get(name))})" for name in differ)
            )
        for name, part in self.lesson.parts.items():
            part.load_state_dict(state["parts"][name])
        self.best = state["best"]
        torch.set_rng_state(state["random"])
        numbers = json.loads(state["numbers"])
        self._epoch, self._batch = numbers["epoch"], numbers["batch"]
        self._step, self._losses = numbers["step"], numbers["losses"]
        self.curve, self.seconds = numbers["curve"], numbers["seconds"]

    def forget(self) -> None:
        """Remove the state, and what kills have left, once the trained model is written."""
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
        decay: What is left of the average, at most.
        step: The step, from 0. The first steps leave less of it, so that the average forgets the
            weights that training began with.
    """
    left = min(decay, (step + 1) / (step + 10))
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            if new.requires_grad:
                kept.lerp_(new, 1 - left)


def check_folder(folder: Path, resume: bool) -> None:
    """Check that a training can start in a folder, or go on in it.

    Args:
        folder: The folder.
        resume: Whether to go on with what is there. Where nothing is there yet, because a training
            was killed before it had saved anything, it starts from the beginning.

    Raises:
        OptionError: If a training has ended there, or there is one to resume and that was not asked
            for.
    """
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is not a folder")
    if (folder / REPORT).exists():
        raise OptionError(f"there is a trained model in {folder} already; name another folder")
    if has_state(folder) and not resume:
        raise OptionError(
            f"there is a training in {folder} that was cut off: go on with it (resume), or name "
            "another folder"
        )


def has_state(folder: Path) -> bool:
    """Whether a training in a folder has saved something to go on from."""
    return (folder / _STATE).exists()


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Give a folder to write files in, which move to another when all went well, the report last.

    Args:
        folder: Where the files go in the end.

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
