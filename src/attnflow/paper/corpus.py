"""Sentences as numbers, and batches of them, for training and for measuring accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnflow.paper.data import Agreement

if TYPE_CHECKING:
    import torch


Item = TypeVar("Item")


class Corpus(NamedTuple):
    """Encoded sentences.

    Attributes:
        ids: The tokens of each sentence.
        labels: The class of each sentence, of shape (N,).
        attractors: The number of attractors of each sentence, of shape (N,); -1 if unknown.
    """

    ids: list[NDArray[np.int32]]
    labels: NDArray[np.int64]
    attractors: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sentence, of shape (N,)."""
        return np.array([len(row) for row in self.ids], np.int64)

    def digest(self) -> str:
        """Return a digest of the tokens and classes."""
        content = hashlib.sha256(self.labels.tobytes())
        for row in self.ids:
            content.update(row.tobytes())
        return content.hexdigest()


def encode(
    tokenizer: Any, sentences: Iterable[Agreement], labels: Sequence[str], **options: Any
) -> Corpus:
    """Encode sentences.

    Args:
        tokenizer: The model's tokenizer.
        sentences: The sentences.
        labels: The classes of the model.
        **options: Options of the tokenizer.

    Returns:
        The sentences in the order given.
    """
    ids: list[NDArray[np.int32]] = []
    numbers: list[int] = []
    attractors: list[int] = []
    for part in parts(sentences, 4096):
        encoded = tokenizer([row.text for row in part], **options)["input_ids"]
        ids += [np.array(row, np.int32) for row in encoded]
        numbers += [labels.index(row.label) for row in part]
        attractors += [-1 if row.attractors is None else row.attractors for row in part]
    return Corpus(ids, np.array(numbers, np.int64), np.array(attractors, np.int64))


def padded(
    ids: Sequence[NDArray[np.int32]], rows: Iterable[int], pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of some sentences and their attention mask, both (rows, longest)."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    chosen = [torch.from_numpy(ids[row]).long() for row in rows]
    mask = pad_sequence([torch.ones_like(row) for row in chosen], batch_first=True)
    return pad_sequence(chosen, batch_first=True, padding_value=pad), mask


def batches(
    lengths: NDArray[np.int64],
    rows: NDArray[np.int64],
    tokens: int,
    random: np.random.Generator | None = None,
) -> list[NDArray[np.int64]]:
    """Divide sentences into batches of similar length.

    Args:
        lengths: The length of every sentence.
        rows: The indices of the sentences to use.
        tokens: The most tokens per batch, padding included. A longer sentence is a batch of its
            own.
        random: If given, sentences and batches are shuffled.

    Returns:
        The indices of the sentences of each batch.
    """
    if random is not None:
        rows = random.permutation(rows)
    found: list[NDArray[np.int64]] = []
    # Sorted by length within large parts only, so batches differ from epoch to epoch.
    for part in np.array_split(rows, range(20_000, len(rows), 20_000)):
        chunk = part[np.argsort(lengths[part], kind="stable")]
        first = 0
        for last in range(1, len(chunk)):
            if (last - first + 1) * lengths[chunk[last]] > tokens:
                found.append(chunk[first:last])
                first = last
        if len(chunk):
            found.append(chunk[first:])
    if random is not None:
        found = [found[index] for index in random.permutation(len(found)).tolist()]
    return found


def parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of at most a size."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
