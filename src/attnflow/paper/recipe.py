"""How the two models are trained: options with their defaults, limits and help, in one place each.

The command line makes its flags from these classes, and the model card its table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnflow.errors import OptionError

__all__ = ["FineTuning", "Recipe"]


class Range(NamedTuple):
    """The accepted values of an option.

    Attributes:
        holds: Whether a value is accepted.
        text: The accepted values in words.
    """

    holds: Callable[[float], bool]
    text: str


def _from(low: int) -> Range:
    return Range(lambda value: low <= value < math.inf, f"{low} or more")


_POSITIVE = Range(lambda value: 0 < value < math.inf, "more than 0")
_SHARE = Range(lambda value: 0 <= value < 1, "0 to less than 1")


def _option(default: Any, help: str, accepted: Range) -> Any:
    return dataclasses.field(default=default, metadata={"help": help, "accepted": accepted})


class Checked:
    """A dataclass of options that are checked when it is made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type] # subclasses are dataclasses
            value, accepted = getattr(self, field.name), field.metadata["accepted"]
            if not accepted.holds(value):
                raise OptionError(f"{field.name} is {value!r}; expected {accepted.text}")


@dataclass(frozen=True)
class Recipe(Checked):
    """How the verb-number model is trained. The defaults made the checkpoint in the package.

    The weights that are kept are averaged over the steps (`average`). Half of the hidden words are
    hidden as UNK and half as MASK, so that the model does not depend on single words and knows both
    tokens. A second loss, that of guessing the hidden words (`guessing`), costs little and teaches
    which words are similar. `held_out` sentences of the first file choose the best epoch; as many
    of the extra files are reported.
    """

    epochs: int = _option(12, "epochs at most", _from(1))
    learning_rate: float = _option(8e-4, "highest learning rate of AdamW", _POSITIVE)
    warmup: int = _option(300, "steps of warm-up; then the rate falls on a cosine", _from(0))
    batch_tokens: int = _option(1024, "tokens of a batch at most, with padding", _from(64))
    dropout: float = _option(0.1, "dropout", _SHARE)
    hidden_words: float = _option(0.12, "share of words hidden as UNK or MASK", _SHARE)
    guessing: float = _option(0.3, "weight of the loss of guessing hidden words", _from(0))
    weight_decay: float = _option(0.01, "weight decay of matrices", _from(0))
    average: float = _option(0.999, "decay of the averaged weights (EMA)", _SHARE)
    extra_per_epoch: int = _option(
        14_500, "sentences drawn from the extra files for an epoch", _from(0)
    )
    vocabulary: int = _option(10_000, "words that the model knows, at most", _from(5))
    held_out: int = _option(1_500, "sentences held out to choose the epoch by", _from(1))
    patience: int = _option(4, "epochs without gain before training ends", _from(1))
    layers: int = _option(6, "layers", _from(1))
    heads: int = _option(8, "heads", _from(1))
    dimensions: int = _option(128, "dimensions", _from(1))
    seed: int = _option(0, "seed of everything random", _from(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimensions % self.heads:
            raise OptionError(
                f"dimensions is {self.dimensions}; expected a multiple of the {self.heads} heads"
            )


@dataclass(frozen=True)
class FineTuning(Checked):
    """How an encoder is fine-tuned on SST-2.

    SST-2 has the phrases of its sentences, too. The same words are seen again and again, and an
    encoder soon memorises them. Hidden words and lower learning rates for lower layers prevent
    that. Both classes have the same weight. The learning rate rises over the first tenth of the
    steps and falls linearly to 0. Word embeddings are half of a small encoder, and most words are
    rare in SST-2: without training them, a step takes a fifth less time.
    """

    epochs: int = _option(2, "epochs at most", _from(1))
    learning_rate: float = _option(1e-4, "highest learning rate of AdamW", _POSITIVE)
    batch_tokens: int = _option(512, "tokens of a batch at most, with padding", _from(16))
    weight_decay: float = _option(0.01, "weight decay of matrices", _from(0))
    average: float = _option(0.998, "decay of the averaged weights (EMA)", _SHARE)
    hidden_words: float = _option(0.15, "share of words hidden as MASK, or else UNK", _SHARE)
    layer_decay: float = _option(
        0.85,
        "learning rate of a layer as a share of that of the layer above",
        Range(lambda value: 0 < value <= 1, "more than 0, and 1 at most"),
    )
    words: bool = _option(False, "train the embeddings of words, too", _from(0))
    longest: int = _option(96, "tokens of a sentence in training, at most", _from(4))
    patience: int = _option(2, "epochs without gain before training ends", _from(1))
    seed: int = _option(0, "seed of everything random", _from(0))
