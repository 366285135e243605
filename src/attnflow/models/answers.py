"""Running a model on many readings: what it answers, and how sure it is.

Readings of one shape run together without padding, so an answer does not depend on the batch. The
model is restored, also after an exception.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from attnflow.cancel import check_limits
from attnflow.errors import ModelError, OptionError
from attnflow.models.adapter import BATCH_POSITIONS, Reading

if TYPE_CHECKING:
    from attnflow.models.explainer import Explainer

Key = TypeVar("Key")

# So many logits are computed at once where a model computes those of every position: 128 MB of
# float32.
BATCH_LOGITS: Final = 2**25

# So many positions wait at most for others of their shape.
WAITING_POSITIONS: Final = 2**18


class Answer(NamedTuple):
    """What a model says about the class or token asked about.

    Attributes:
        target: Its index.
        log_odds: The logarithm of p / (1 - p), where p is its probability.
        value: y, the number that contributions add up to: its logit, minus that of the contrast, or
            minus the mean of the others if there is no contrast.
        predicted: The index of what the model predicts.
    """

    target: int
    log_odds: float
    value: float
    predicted: int

    @property
    def probability(self) -> float:
        """The probability p."""
        return float(1 / (1 + np.exp(-self.log_odds))) if self.log_odds > -700 else 0.0


def ask(explainer: Explainer, readings: list[Reading], batch_size: int) -> list[Answer]:
    """Return the model's answer to each reading.

    Args:
        explainer: The explainer.
        readings: The readings.
        batch_size: How many run together at most.
    """
    found = dict(answers(explainer, enumerate(readings), batch_size))
    return [found[index] for index in range(len(readings))]


def answers(
    explainer: Explainer, readings: Iterable[tuple[Key, Reading]], batch_size: int
) -> Iterator[tuple[Key, Answer]]:
    """Yield the model's answers as they come, each with the key of its reading.

    Args:
        explainer: The explainer.
        readings: The readings, each with a key. They are taken as they are needed.
        batch_size: How many run together at most.
    """
    import torch

    for batch in batches(explainer, readings, batch_size):
        check_limits()
        together = [reading for _, reading in batch]
        with torch.no_grad():
            logits = run(explainer, together)
        targets = targets_of(explainer, together, logits)
        found = zip(
            targets,
            log_odds(explainer, targets, logits).tolist(),
            values(explainer, together, targets, logits).tolist(),
            logits.argmax(dim=-1).tolist(),
            strict=True,
        )
        for (key, _), answer in zip(batch, found, strict=True):
            yield key, Answer(*answer)


def targets_of(explainer: Explainer, readings: list[Reading], logits: Any) -> list[int]:
    """Return the target of each of some readings: the one asked about, or what is predicted.

    Args:
        explainer: The explainer.
        readings: The B readings.
        logits: Their logits, a tensor of shape (B, classes).

    Raises:
        OptionError: If a target or a contrast is not a class of the model, or both are the same.
        ModelError: If the logits are not numbers.
    """
    count = logits.shape[-1]
    found = [
        best if reading.target is None else reading.target
        for reading, best in zip(readings, logits.argmax(dim=-1).tolist(), strict=True)
    ]
    for reading, target in zip(readings, found, strict=True):
        for name, index in (("target", target), ("contrast", reading.contrast)):
            if index is not None and index >= count:
                raise OptionError(f"{name} is {index}, but there are {count} classes")
        if target == reading.contrast:
            label = explainer.adapter.label(target)
            asked = "the target" if reading.target is not None else "what the model predicts"
            raise OptionError(
                f"contrast is {label!r}, which is {asked} too, and a difference to itself is 0; "
                "expected another class or token"
            )
    if bool(logits.isnan().any()):
        raise ModelError(
            f"{type(explainer.model).__name__} answers with logits that are not a number (NaN)"
        )
    return found


def log_odds(explainer: Explainer, targets: list[int], logits: Any) -> Any:
    """Return the log-odds of targets.

    The probability p of a target is its softmax, or its sigmoid where a model gives each class a
    probability of its own, and the log-odds are log p / (1 - p), which do not run out of digits
    where p is nearly 1.

    Args:
        explainer: The explainer.
        targets: The B targets.
        logits: The logits, a tensor of shape (B, classes).

    Returns:
        A tensor of shape (B,).
    """
    import torch

    places = torch.tensor(targets)[:, None]
    own = logits.gather(1, places)[:, 0]
    if explainer.adapter.multi_label:
        return own
    return own - logits.scatter(1, places, -torch.inf).logsumexp(dim=-1)


def values(explainer: Explainer, readings: list[Reading], targets: list[int], logits: Any) -> Any:
    """Return y, the number that contributions add up to, of each of some readings.

    Args:
        explainer: The explainer.
        readings: The B readings, for their contrasts.
        targets: Their targets.
        logits: Their logits, a tensor of shape (B, classes).

    Returns:
        A tensor of shape (B,).
    """
    import torch

    asked = zip(logits, targets, readings, strict=True)
    return torch.stack(
        [explainer.adapter.value(row, target, one.contrast) for row, target, one in asked]
    )


# ---- Batches -------------------------------------------------------------------------------------


def batches(
    explainer: Explainer,
    readings: Iterable[tuple[Key, Reading]],
    batch_size: int,
    positions: int = BATCH_POSITIONS,
) -> Iterator[list[tuple[Key, Reading]]]:
    """Yield readings that run together: of one shape, and not too many.

    Args:
        explainer: The explainer.
        readings: The readings, each with a key.
        batch_size: How many a batch has at most.
        positions: How many positions a batch has at most, if it has more than one reading.
    """
    waiting: dict[Any, list[tuple[Key, Reading]]] = {}
    stored = 0
    vocabulary = _logits_a_position(explainer)
    for key, reading in readings:
        batch = waiting.setdefault(reading.shape, [])
        batch.append((key, reading))
        stored += reading.length
        most = min(batch_size, positions // reading.length)
        if vocabulary:
            most = min(most, BATCH_LOGITS // (reading.length * vocabulary))
        if len(batch) >= most:
            yield waiting.pop(reading.shape)
            stored -= reading.length * len(batch)
        while stored > WAITING_POSITIONS:
            shape = max(waiting, key=lambda shape: len(waiting[shape]))
            batch = waiting.pop(shape)
            yield batch
            stored -= batch[0][1].length * len(batch)
    yield from waiting.values()


def _logits_a_position(explainer: Explainer) -> int:
    """Return how many logits the model computes for each position, 0 if for one position only."""
    if explainer.adapter.has_classes:
        return 0
    if "logits_to_keep" in inspect.signature(explainer.model.forward).parameters:
        return 0
    size = getattr(explainer.model.config.get_text_config(), "vocab_size", None)
    return size if isinstance(size, int) else 0


# ---- Running the model ---------------------------------------------------------------------------


def run(explainer: Explainer, readings: list[Reading]) -> Any:
    """Run a model on readings of one shape, in eval mode, with gradients if they are enabled.

    Args:
        explainer: The explainer.
        readings: The B readings.

    Returns:
        The logits of the answers, float64 of shape (B, classes), on the CPU.

    Raises:
        ModelError: If the model returns no logits.
    """
    import torch

    from attnflow.capture.borrow import borrowed
    from attnflow.capture.running import forward

    model = explainer.model
    names = inspect.signature(model.forward).parameters
    position = readings[0].position
    # Not in inference mode: its tensors cannot be used where gradients are wanted, and a model that
    # keeps one, such as a table of positions, would keep it for good. Leaving it enables gradients.
    wanted = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(wanted):
        inputs = explainer.adapter.together(readings)
        passes_on = any(item.kind is item.VAR_KEYWORD for item in names.values())
        if "use_cache" in names or (passes_on and hasattr(model.config, "use_cache")):
            inputs["use_cache"] = False
        if position is not None and "logits_to_keep" in names:
            # Logits of every position over a whole vocabulary are the largest thing in memory.
            inputs["logits_to_keep"] = torch.tensor([position], device=model.device)
            position = 0
        with borrowed(model, None), _unpadded(explainer):
            outputs = forward(model, {**inputs, "return_dict": True})
        # In float64: a probability near 1 keeps its digits.
        logits = explainer.adapter.answer_logits(outputs, position)
        return logits.to("cpu", torch.float64)


@contextmanager
def _unpadded(explainer: Explainer) -> Iterator[None]:
    """Run a block with no id that a classifier takes for padding.

    Decoders that classify do so at the last token that is not padding, which they tell by its id.
    Nothing is padded here, and the id may be the replacement's, as it is for GPT-2.
    """
    from attnflow.capture.borrow import configs_of

    configs = configs_of(explainer.model) if explainer.adapter.has_classes else []
    padding = [
        (config, config.pad_token_id) for config in configs if "pad_token_id" in vars(config)
    ]
    try:
        for config, _ in padding:
            config.pad_token_id = -1
        yield
    finally:
        for config, found in padding:
            config.pad_token_id = found
