"""Raw attention: the attention weights of each layer, with its heads fused."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.graph import as_graph


def raw_attention(attentions: Any, *, heads: str | int = "mean") -> NDArray[np.float64]:
    """Return the attention weights of each layer, without the residual connection.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: How heads are fused: "mean", "max", "min", "sum", or the index of a head.

    Returns:
        Array of shape (L, n, n). Item l - 1 belongs to layer l. Rows attend and sum to 1, columns
        are attended to.

    Raises:
        AttnflowError: Whatever `AttentionGraph` raises.
        OptionError: If `attentions` is a graph that was built with different `heads`.

    Example:
        >>> import numpy as np
        >>> one_layer_two_heads = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]]])
        >>> raw_attention(one_layer_two_heads)
        array([[[0.75, 0.25],
                [0.  , 1.  ]]])
        >>> raw_attention(one_layer_two_heads, heads=1)
        array([[[0.5, 0.5],
                [0. , 1. ]]])
    """
    return as_graph(attentions, heads).attention.copy()
