"""How often a model gives a verb the right number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import DataError, ModelError
from attnflow.paper.corpus import batches
from attnflow.paper.data import Agreement

__all__ = ["accuracy", "summary"]

_BATCH_TOKENS = 8192
_PART = 10_000


def accuracy(
    model: Any,
    tokenizer: Any,
    sentences: Iterable[Agreement],
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Measure how often a classifier gives the verb its number.

    Args:
        model: A sequence classifier whose labels are VBZ and VBP.
        tokenizer: Its tokenizer.
        sentences: The sentences; they are read once, and never all in memory.
        progress: Called with the number of sentences done so far.

    Returns:
        "accuracy", "count", and "by_attractors": the same two for every number of attractors, as a
        string, "unknown" where the data does not say.

    Raises:
        DataError: If there is no sentence.
        ModelError: If the model has other labels.

    Example:
        >>> from attnflow import Explainer
        >>> from attnflow.models.verb_number import checkpoint
        >>> verb = Explainer.from_pretrained(checkpoint())
        >>> keys = Agreement("the keys to the cabinet", "VBP", 1)
        >>> accuracy(verb.model, verb.tokenizer, [keys])
        {'accuracy': 1.0, 'count': 1, 'by_attractors': {'1': {'accuracy': 1.0, 'count': 1}}}
    """
    labels = {str(name): int(index) for index, name in model.config.id2label.items()}
    missing = [label for label in ("VBZ", "VBP") if label not in labels]
    if missing:
        raise ModelError(
            f"the model's labels are {', '.join(labels)}; expected VBZ and VBP, a verb's number"
        )
    right: list[NDArray[np.bool_]] = []
    attractors: list[int] = []
    for part in _parts(sentences):
        ids = tokenizer([row.text for row in part])["input_ids"]
        wanted = np.array([labels[row.label] for row in part])
        right.append(predictions(model, ids, tokenizer.pad_token_id) == wanted)
        attractors += [-1 if row.attractors is None else row.attractors for row in part]
        if progress is not None:
            progress(len(attractors))
    if not attractors:
        raise DataError("there is no sentence to measure the accuracy on")
    return summary(np.concatenate(right), np.array(attractors))


def predictions(model: Any, ids: list[list[int]], pad: int) -> NDArray[np.int64]:
    """Return the class that a model gives each sentence, (N,)."""
    import torch

    found = np.zeros(len(ids), np.int64)
    lengths = np.array([len(row) for row in ids])
    training = model.training
    model.eval()
    try:
        for rows in batches(lengths, np.arange(len(ids)), _BATCH_TOKENS):
            longest = int(lengths[rows].max())
            padded = torch.full((len(rows), longest), pad)
            mask = torch.zeros((len(rows), longest), dtype=torch.long)
            for place, row in enumerate(rows):
                padded[place, : lengths[row]] = torch.tensor(ids[row])
                mask[place, : lengths[row]] = 1
            with torch.no_grad():
                given = {"input_ids": padded, "attention_mask": mask}
                logits = model(**{k: v.to(model.device) for k, v in given.items()}).logits
            found[rows] = logits.argmax(-1).cpu().numpy()
    finally:
        model.train(training)
    return found


def summary(right: NDArray[np.bool_], attractors: NDArray[Any]) -> dict[str, Any]:
    """Count how many of some sentences are right, altogether and by their attractors.

    Args:
        right: Whether each sentence is right, (N,).
        attractors: How many attractors each has, (N,); -1 where that is not known.

    Returns:
        What `accuracy` returns.
    """
    groups: dict[str, list[bool]] = {}
    for number in sorted(set(attractors.tolist())):
        name = "unknown" if number < 0 else str(number)
        groups[name] = right[attractors == number].tolist()
    return {
        "accuracy": float(right.mean()),
        "count": len(right),
        "by_attractors": {
            name: {"accuracy": float(np.mean(group)), "count": len(group)}
            for name, group in groups.items()
        },
    }


def _parts(sentences: Iterable[Agreement]) -> Iterator[list[Agreement]]:
    rows = iter(sentences)
    while part := list(islice(rows, _PART)):
        yield part
