"""The sentences that the verb-number model is trained on, as numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.models.verb_number.model import LABELS
from attnflow.paper.data import Agreement

__all__ = ["Corpus", "batches", "encode"]


class Corpus(NamedTuple):
    """Sentences end to end in one array, so that millions of them fit into memory.

    Attributes:
        words: The tokens of all sentences, CLS first in each.
        starts: Where each sentence starts in `words`, and the end: one more than there are
            sentences.
        labels: The class of each sentence, (N,).
        attractors: How many attractors each sentence has, (N,); -1 where that is not known.
    """

    words: NDArray[np.int32]
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    attractors: NDArray[np.int32]

    @property
    def size(self) -> int:
        """How many sentences there are."""
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each sentence has, (N,)."""
        return np.diff(self.starts)

    def padded(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of some sentences, (rows, longest), 0 where a sentence has ended."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max())
        inside = columns < lengths[:, None]
        places = self.starts[rows][:, None] + columns
        return np.where(inside, self.words[np.where(inside, places, 0)], 0).astype(np.int64)

    def chosen(self, rows: NDArray[np.bool_]) -> Corpus:
        """Return the sentences of a mask, (N,)."""
        lengths = self.lengths
        return Corpus(
            self.words[np.repeat(rows, lengths)],
            np.concatenate([[0], np.cumsum(lengths[rows])]),
            self.labels[rows],
            self.attractors[rows],
        )

    def joined(self, other: Corpus) -> Corpus:
        """Return these sentences and then the other ones."""
        return Corpus(
            np.concatenate([self.words, other.words]),
            np.concatenate([self.starts, other.starts[1:] + self.starts[-1]]),
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.attractors, other.attractors]),
        )


def encode(
    tokenizer: Any, sentences: Iterable[Agreement], *, without: Collection[str] = ()
) -> Corpus:
    """Turn sentences into numbers, a few thousand at a time.

    Args:
        tokenizer: The model's tokenizer.
        sentences: The sentences; they are read once and not kept.
        without: Texts that are left out.

    Returns:
        The sentences in their order.
    """
    words: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    labels: list[int] = []
    attractors: list[int] = []
    for part in _parts((row for row in sentences if row.text not in without), 4096):
        rows = tokenizer([sentence.text for sentence in part])["input_ids"]
        words.append(np.concatenate([np.array(row, np.int32) for row in rows]))
        lengths += map(len, rows)
        labels += [LABELS.index(sentence.label) for sentence in part]
        attractors += [-1 if row.attractors is None else row.attractors for row in part]
    return Corpus(
        np.concatenate([np.zeros(0, np.int32), *words]),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        np.array(labels, np.int64),
        np.array(attractors, np.int32),
    )


def batches(
    lengths: NDArray[np.int64],
    rows: NDArray[np.int64],
    tokens: int,
    random: np.random.Generator | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Cut sentences into batches of similar length that hold at most so many tokens, padding too.

    Args:
        lengths: The length of every sentence.
        rows: Which sentences.
        tokens: The tokens of a batch at most; a longer sentence is a batch of its own.
        random: If given, the sentences are shuffled, and the batches too.

    Yields:
        The sentences of one batch.
    """
    if random is not None:
        rows = random.permutation(rows)
    found: list[NDArray[np.int64]] = []
    # Sorted by length within large parts only, so that batches differ from epoch to epoch.
    part = 20_000 if random is not None else max(1, len(rows))
    for start in range(0, len(rows), part):
        chunk = rows[start : start + part]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        first = 0
        for last in range(len(chunk)):
            if last > first and (last - first + 1) * lengths[chunk[last]] > tokens:
                found.append(chunk[first:last])
                first = last
        found.append(chunk[first:])
    order: Sequence[int] = range(len(found))
    if random is not None:
        order = random.permutation(len(found)).tolist()
    for index in order:
        yield found[index]


def _parts(rows: Iterable[Agreement], size: int) -> Iterator[list[Agreement]]:
    rows = iter(rows)
    while part := list(islice(rows, size)):
        yield part
