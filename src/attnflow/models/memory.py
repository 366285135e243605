"""About how much memory an input takes in a model, told from the model's configuration.

What grows with the square of a text, attention that is kept, and what grows with its length, the
queries and keys that it can be computed from again, cross at about a thousand tokens. The choice
between the two is made here, for explanations and for data sets.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from attnflow.checks import available_memory
from attnflow.errors import GraphSizeError
from attnflow.flow import check_flow

# What takes so many bytes for one input is kept, which is faster than to compute it again.
SMALL: Final = 2**30
# But not where that is more than this share of the memory available.
SHARE: Final = 0.25
# Before flow that takes longer, or more memory, it is said how much.
LONG_SECONDS: Final = 10.0
MUCH_MEMORY: Final = 2**32

_log: Final = logging.getLogger("attnflow.models")


class Shape(NamedTuple):
    """What the size of a model's activations depends on.

    Attributes:
        layers: The number of layers.
        heads: The number of heads that have queries.
        keys: The number of heads that have keys.
        width: The dimensions of the residual stream.
        inner: The dimensions of the feed-forward layers.
        head: The dimensions of a head.
        item: The bytes of a number.
    """

    layers: int
    heads: int
    keys: int
    width: int
    inner: int
    head: int
    item: int

    @classmethod
    def of(cls, model: Any) -> Shape:
        """Return the shape of a model; what its configuration does not say is that of BERT."""
        config = model.config.get_text_config()

        def size(name: str, otherwise: int) -> int:
            value = getattr(config, name, None)
            return value if isinstance(value, int) else otherwise

        width, heads = size("hidden_size", 768), size("num_attention_heads", 12)
        return cls(
            size("num_hidden_layers", 12),
            heads,
            size("num_key_value_heads", heads),
            width,
            size("intermediate_size", 4 * width),
            size("head_dim", max(1, width // heads)),
            model.dtype.itemsize,
        )

    def forward(self, tokens: int) -> int:
        """Return what one layer holds while it runs."""
        return tokens * self.item * (8 * self.width + 2 * self.inner)

    def kept(self, tokens: int) -> int:
        """Return what the attention of all layers takes, and the graph made of it.

        These are one layer's scores before and after the softmax and a copy; the fused weights of
        every layer; and those of the graph in float64, twice, and in integers for flow.
        """
        return tokens * tokens * (4 * (3 * self.heads + self.layers) + 24 * self.layers)

    def streamed(self, tokens: int) -> int:
        """Return what the queries and keys of all layers take, and one pass over them."""
        held = self.layers * (self.heads + self.keys) * self.head * self.item
        return tokens * (held + 8 * 3 * self.layers)

    def activations(self, tokens: int) -> int:
        """Return what contributions hold if every layer is kept until the backward pass.

        Measured on Llama: as much as 9 arrays as wide as the stream in each layer, and 3 as wide as
        its feed-forward layer.
        """
        return self.layers * tokens * self.item * (9 * self.width + 3 * self.inner)

    def again(self, tokens: int) -> int:
        """Return what contributions hold if one layer at a time is computed again."""
        return self.layers * tokens * self.item * self.width + self.activations(tokens) // (
            self.layers
        )


def fits(size: int, count: int = 1) -> bool:
    """Whether something is small, and all of it small beside the memory that is available.

    Args:
        size: How many bytes it takes for one input.
        count: How many inputs there are at a time.
    """
    available = available_memory()
    return size <= SMALL and (available is None or size * count <= SHARE * available)


def check_flow_room(shape: Shape, tokens: int, positions: int) -> None:
    """See that there is room for the flows of a text, and say beforehand what large ones need.

    Args:
        shape: The model's shape.
        tokens: How many tokens the text has.
        positions: From how many of them flows start.

    Raises:
        GraphSizeError: If there is no room.
    """
    tops = range(1, shape.layers + 1)
    cost = check_flow(shape.layers, tokens, positions, tops=tops)
    if cost.seconds >= LONG_SECONDS or cost.bytes >= MUCH_MEMORY:
        _log.info(
            "flow over %s tokens and %s layers needs about %.1f GB of memory and %.0f seconds "
            "after the forward pass; sharply peaked attention takes longer",
            f"{tokens:,}",
            shape.layers,
            cost.bytes / 1e9,
            cost.seconds,
        )


def check_attention_room(shape: Shape, tokens: int, count: int, why: str) -> None:
    """See that there is room for attention that is kept.

    Args:
        shape: The model's shape.
        tokens: How many tokens the longest text has.
        count: How many texts there are at a time.
        why: The option that needs it, for the error.

    Raises:
        GraphSizeError: If there is no room.
    """
    needed, available = count * shape.kept(tokens), available_memory()
    if available is not None and needed > available:
        raise GraphSizeError(
            f"{why} keeps the attention of {tokens:,} tokens in {shape.layers} layers, which takes "
            f"about {needed / 1e9:,.1f} GB of memory, but {available / 1e9:,.1f} GB are available; "
            "shorten the text, or use method='contribution', or method='rollout' of attention "
            "itself, which keep none"
        )
