"""Training that can be stopped at any moment and resumed, with the same weights in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import DataError, OptionError
from attnflow.io.files import replacing
from attnflow.io.journal import difference, locked
from attnflow.paper.corpus import Corpus, batches
from attnflow.paper.recipe import FineTuning, Recipe

__all__ = ["Lesson", "Status", "check_folder", "complete", "has_state"]

REPORT = "training.json"
"""The report's name in the folder of a trained model; it is written last."""

_STATE = "training-state.pt"
_LOCK = ".attnflow-lock"


class Status(NamedTuple):
    """How far training is.

    Attributes:
        epoch: The epoch, from 1.
        epochs: The largest number of epochs.
        step: The number of batches done.
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


class Lesson:
    """A model in training, and its averaged weights, which are those kept.

    Args:
        recipe: How to train.
        model: The model.
        kept: Another model of the same weights, which becomes the average.
        groups: The parameters, as AdamW takes them. "share" is the share of a group's learning
            rate.
        data: The sentences to train on.
        identity: What the training depends on besides the recipe.
        betas: Those of AdamW.
    """

    def __init__(
        self,
        recipe: Recipe | FineTuning,
        model: Any,
        kept: Any,
        groups: list[dict[str, Any]],
        data: Corpus,
        identity: Mapping[str, Any],
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.recipe = recipe
        self.model = model.train()
        self.kept = kept.eval()
        self.data = data
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, fused=True)
        self.identity = {
            **dataclasses.asdict(recipe),
            **identity,
            "threads": torch.get_num_threads(),
        }
        self._lengths = data.lengths

    def rows(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Return the sentences of an epoch."""
        raise NotImplementedError

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step as a share of the highest."""
        raise NotImplementedError

    def losses(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a batch to report, and the loss to minimise."""
        raise NotImplementedError

    def measure(self) -> dict[str, float]:
        """Return what is measured after an epoch; "held_out" decides which epoch is best."""
        raise NotImplementedError

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, which depend on the seed and the epoch only."""
        random = np.random.default_rng([self.recipe.seed, epoch])
        return batches(self._lengths, self.rows(random), self.recipe.batch_tokens, random)

    def learn(self, rows: NDArray[np.int64], step: int, steps: int) -> float:
        """Learn from one batch and return its loss."""
        rate = self.rate(step, steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * rate * group.get("share", 1.0)
        loss, total = self.losses(rows)
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        # The first steps leave less of the average, so it forgets the initial weights.
        left = min(self.recipe.average, (step + 1) / (step + 10))
        with torch.no_grad():
            for kept, new in zip(self.kept.parameters(), self.model.parameters(), strict=True):
                if new.requires_grad:
                    kept.lerp_(new, 1 - left)
        return float(loss.detach())


class _Loop:
    """The epochs of a training, and the state from which a stopped one is resumed."""

    def __init__(self, lesson: Lesson, folder: Path) -> None:
        self.lesson = lesson
        self.folder = folder
        self.steps = lesson.recipe.epochs * len(lesson.batches(0))
        self.best: dict[str, torch.Tensor] = {}
        # Everything else that changes and is saved.
        self.epoch = self.batch = self.step = 0
        self.losses: list[float] = []  # of this epoch
        self.curve: list[dict[str, Any]] = []
        self.seconds = 0.0

    def run(self, progress: Callable[[Status], object] | None, save_every: float) -> None:
        """Train from the current state to the end, and give the kept model its best weights."""
        begun = saved = time.monotonic()
        before, first = self.seconds, self.step
        try:
            while not self._done():
                todo = self.lesson.batches(self.epoch)
                while self.batch < len(todo):
                    self.losses.append(self.lesson.learn(todo[self.batch], self.step, self.steps))
                    self.batch += 1
                    self.step += 1
                    now = time.monotonic()
                    self.seconds = before + now - begun
                    if progress is not None:
                        progress(self._status((now - begun) / (self.step - first)))
                    if now - saved >= save_every:
                        self._save()
                        saved = time.monotonic()
                self._end_epoch()
                self.seconds = before + time.monotonic() - begun
                self._save()
                saved = time.monotonic()
        except KeyboardInterrupt:
            self._save()
            raise
        self.lesson.kept.load_state_dict(self.best)

    def _status(self, pace: float) -> Status:
        return Status(
            self.epoch + 1,
            self.lesson.recipe.epochs,
            self.step,
            self.steps,
            float(np.mean(self.losses[-100:])),
            self.curve[-1]["held_out"] if self.curve else None,
            pace * max(0, self.steps - self.step),
        )

    def _done(self) -> bool:
        """Whether all epochs are done, or the last ones brought no improvement."""
        held_out = [point["held_out"] for point in self.curve]
        last = len(held_out) - self.lesson.recipe.patience
        return self.epoch >= self.lesson.recipe.epochs or (
            last > 0 and held_out.index(max(held_out)) < last
        )

    def _end_epoch(self) -> None:
        """Measure, and keep the weights if they are the best."""
        loss = float(np.mean(self.losses))
        point = {"epoch": self.epoch + 1, "loss": loss, **self.lesson.measure()}
        if point["held_out"] > max((each["held_out"] for each in self.curve), default=-1.0):
            state = self.lesson.kept.state_dict()
            self.best = {name: value.clone() for name, value in state.items()}
        self.curve.append(point)
        self.epoch, self.batch, self.losses = self.epoch + 1, 0, []

    def _parts(self) -> dict[str, Any]:
        lesson = self.lesson
        return {"model": lesson.model, "average": lesson.kept, "optimizer": lesson.optimizer}

    def _save(self) -> None:
        names = ("epoch", "batch", "step", "losses", "curve", "seconds")
        state = {
            "identity": json.dumps(self.lesson.identity),
            "parts": {name: part.state_dict() for name, part in self._parts().items()},
            "best": self.best,
            "random": torch.get_rng_state(),
            "numbers": json.dumps({name: getattr(self, name) for name in names}),
        }
        with replacing(self.folder / _STATE) as temporary:
            torch.save(state, temporary)

    def load(self) -> None:
        """Load the state that a training in this folder has saved, if there is one."""
        path = self.folder / _STATE
        if not path.exists():
            return
        try:
            state = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise DataError(
                f"{path} is damaged, so the training cannot be resumed; remove it to start from "
                "the beginning"
            ) from error
        was, now = json.loads(state["identity"]), json.loads(json.dumps(self.lesson.identity))
        different = difference({"options": was}, {"options": now})
        if different:
            raise OptionError(f"the training in {self.folder} cannot be resumed: {different}")
        for name, part in self._parts().items():
            part.load_state_dict(state["parts"][name])
        self.best = state["best"]
        torch.set_rng_state(state["random"])
        vars(self).update(json.loads(state["numbers"]))


def complete(
    lesson: Lesson,
    folder: Path,
    write: Callable[[Path, dict[str, Any]], dict[str, Any]],
    *,
    resume: bool,
    progress: Callable[[Status], object] | None,
    save_every: float,
) -> dict[str, Any]:
    """Train to the end, and write the trained model with its report.

    Args:
        lesson: The model in training.
        folder: The folder to write, made if need be. The state is saved in it until the end.
        write: Writes the files of the model into a folder. It is given the report so far and
            returns the whole report.
        resume: Whether to continue from a state that was saved in the folder.
        progress: Called after every batch.
        save_every: How many seconds apart the state is saved; a kill loses what came after.

    Returns:
        The report, which is also in training.json.

    Raises:
        DataError: If the saved state is damaged.
        OptionError: If another process trains in the folder, or the saved state is of a training
            with other options or data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    loop = _Loop(lesson, folder)
    with locked(folder / _LOCK, f"the training in {folder}"):
        if resume:
            loop.load()
        loop.run(progress, save_every)
        report = {
            "recipe": dataclasses.asdict(lesson.recipe),
            "curve": loop.curve,
            "seconds": round(loop.seconds, 1),
            "threads": torch.get_num_threads(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        with _filling(folder) as fresh:
            report = write(fresh, report)
            (fresh / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    (folder / _STATE).unlink(missing_ok=True)
    for path in folder.glob(".attnflow-*"):  # left by processes that were killed
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return report


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
def _filling(folder: Path) -> Iterator[Path]:
    """Give a temporary folder whose files move to another at the end, the report last."""
    with TemporaryDirectory(prefix=".attnflow-", dir=folder) as name:
        fresh = Path(name)
        yield fresh
        for path in sorted(fresh.iterdir(), key=lambda path: path.name == REPORT):
            os.chmod(path, 0o644)
            os.replace(path, folder / path.name)
