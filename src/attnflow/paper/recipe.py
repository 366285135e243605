"""Options of the two trainings, with their defaults, limits and help.

The command line makes its flags from these classes, and the model card its table.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from attnflow.checks import integer, number
from attnflow.errors import OptionError


def _option(default: Any, help: str, **limits: float) -> Any:
    """Return a field. Its limits are arguments of `integer` or `number` in `attnflow.checks`."""
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits})


class Checked:
    """A dataclass of options that are checked when it is made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type] # subclasses are dataclasses
            check: Any = integer if isinstance(field.default, int) else number
            check(getattr(self, field.name), field.name, **field.metadata["limits"])


@dataclass(frozen=True)
class Recipe(Checked):
    """The training of the verb-number model. The defaults gave the checkpoint in the package.

    The weights that are saved are an exponential moving average over the steps (`average`). Half of
    the masked words become UNK and half MASK, so the model learns both tokens and does not depend
    on single words. A second loss, predicting the masked words (`guessing`), teaches the model
    which words are similar. The accuracy on `held_out` sentences of the first file decides which
    epoch is saved. As many sentences of the extra files are held out and reported.
    """

    epochs: int = _option(12, "largest number of epochs", least=1)
    learning_rate: float = _option(8e-4, "peak learning rate of AdamW", above=0)
    warmup: int = _option(300, "warm-up steps; a cosine decay follows", least=0)
    batch_tokens: int = _option(1024, "most tokens per batch, padding included", least=64)
    dropout: float = _option(0.1, "dropout", least=0, below=1)
    hidden_words: float = _option(0.12, "probability of masking a word", least=0, below=1)
    guessing: float = _option(0.3, "weight of the loss of predicting masked words", least=0)
    weight_decay: float = _option(0.01, "weight decay of matrices", least=0)
    average: float = _option(0.999, "decay of the moving average of weights", least=0, below=1)
    extra_per_epoch: int = _option(14_500, "sentences of the extra files per epoch", least=0)
    vocabulary: int = _option(10_000, "most words in the vocabulary", least=5)
    held_out: int = _option(1_500, "held-out sentences, which decide the epoch", least=1)
    patience: int = _option(4, "epochs without improvement before training ends", least=1)
    layers: int = _option(6, "layers", least=1)
    heads: int = _option(8, "heads", least=1)
    dimensions: int = _option(128, "dimensions", least=1)
    seed: int = _option(0, "random seed", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimensions % self.heads:
            raise OptionError(
                f"dimensions is {self.dimensions}; expected a multiple of the {self.heads} heads"
            )


@dataclass(frozen=True)
class FineTuning(Checked):
    """The fine-tuning of an encoder on SST-2.

    SST-2 also has the phrases of its sentences, so an encoder sees the same words many times and
    soon memorises them. Masked words and lower learning rates for lower layers prevent that. Both
    classes have the same weight. The learning rate rises over the first tenth of the steps and
    falls linearly to 0. The word embeddings are not trained: they are half of a small encoder, most
    words are rare in SST-2, and a step takes a fifth less time without them.
    """

    epochs: int = _option(2, "largest number of epochs", least=1)
    learning_rate: float = _option(1e-4, "peak learning rate of AdamW", above=0)
    batch_tokens: int = _option(512, "most tokens per batch, padding included", least=16)
    weight_decay: float = _option(0.01, "weight decay of matrices", least=0)
    average: float = _option(0.998, "decay of the moving average of weights", least=0, below=1)
    hidden_words: float = _option(0.15, "probability of masking a word", least=0, below=1)
    layer_decay: float = _option(
        0.85, "learning rate of a layer, relative to the layer above", above=0, most=1
    )
    longest: int = _option(96, "most tokens of a sentence in training", least=4)
    patience: int = _option(2, "epochs without improvement before training ends", least=1)
    seed: int = _option(0, "random seed", least=0)
