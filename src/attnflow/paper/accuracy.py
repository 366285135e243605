"""How often a model predicts the correct number of a verb."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import DataError, ModelError
from attnflow.paper.corpus import Corpus, batches, encode, padded, parts
from attnflow.paper.data import Agreement

_BATCH_TOKENS = 8192
_PART = 10_000


def accuracy(
    model: Any,
    tokenizer: Any,
    sentences: Iterable[Agreement],
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Measure how often a classifier predicts the correct number of the verb.

    Args:
        model: A sequence classifier whose labels are VBZ and VBP.
        tokenizer: Its tokenizer.
        sentences: The sentences. They are read once and in parts, so they may be many.
        progress: Called with the number of sentences done so far.

    Returns:
        "accuracy", "count", and "by_attractors": the same two for each number of attractors, as a
        string, "unknown" if the data does not say.

    Raises:
        DataError: If there is no sentence.
        ModelError: If the model has other labels.

    Example:
        >>> from attnflow.models import Explainer
        >>> from attnflow.models.verb_number import checkpoint
        >>> verb = Explainer.from_pretrained(checkpoint())
        >>> keys = Agreement("the keys to the cabinet", "VBP", 1)
        >>> accuracy(verb.model, verb.tokenizer, [keys])
        {'accuracy': 1.0, 'count': 1, 'by_attractors': {'1': {'accuracy': 1.0, 'count': 1}}}
    """
    names = [str(name) for _, name in sorted(model.config.id2label.items())]
    if not {"VBZ", "VBP"} <= set(names):
        raise ModelError(
            f"the model's labels are {', '.join(names)}; expected VBZ and VBP, a verb's number"
        )
    right: list[NDArray[np.bool_]] = []
    attractors: list[NDArray[np.int64]] = []
    for part in parts(sentences, _PART):
        corpus = encode(tokenizer, part, names)
        right.append(_right(model, corpus, tokenizer.pad_token_id))
        attractors.append(corpus.attractors)
        if progress is not None:
            progress(sum(map(len, right)))
    if not right:
        raise DataError("there is no sentence to measure the accuracy on")
    return _summary(np.concatenate(right), np.concatenate(attractors))


def measure(model: Any, corpus: Corpus, pad: int) -> dict[str, Any]:
    """Measure the accuracy of a model on encoded sentences; see `accuracy`."""
    return _summary(_right(model, corpus, pad), corpus.attractors)


def _right(model: Any, corpus: Corpus, pad: int) -> NDArray[np.bool_]:
    """Return for each sentence whether the model predicts its class, of shape (N,)."""
    import torch

    from attnflow.capture.borrow import borrowed

    found = np.zeros(len(corpus.ids), np.int64)
    with borrowed(model, None), torch.no_grad():
        for rows in batches(corpus.lengths, np.arange(len(found)), _BATCH_TOKENS):
            words, mask = (given.to(model.device) for given in padded(corpus.ids, rows, pad))
            logits = model(input_ids=words, attention_mask=mask).logits
            found[rows] = logits.argmax(-1).cpu().numpy()
    right: NDArray[np.bool_] = found == corpus.labels
    return right


def _summary(right: NDArray[np.bool_], attractors: NDArray[np.int64]) -> dict[str, Any]:
    """Return the share of correct answers, in total and by the number of attractors."""

    def share(chosen: NDArray[np.bool_]) -> dict[str, Any]:
        return {"accuracy": float(chosen.mean()), "count": len(chosen)}

    return {
        **share(right),
        "by_attractors": {
            "unknown" if number < 0 else str(number): share(right[attractors == number])
            for number in np.unique(attractors).tolist()
        },
    }
