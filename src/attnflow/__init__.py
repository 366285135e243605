"""Raw attention, attention rollout and exact attention flow.

attnflow answers one question about a Transformer: from which input tokens did this embedding get
its information? It implements the methods of Abnar and Zuidema, "Quantifying Attention Flow in
Transformers" (ACL 2020). Attention weights go in as arrays, token attention comes out as arrays.

Example:
    >>> import numpy as np
    >>> import attnflow
    >>> attention = np.array([[[0.5, 0.5], [0.0, 1.0]]] * 2)  # two layers, two tokens
    >>> attnflow.attention_rollout(attention)[-1, 0]  # last layer, first position
    array([0.5625, 0.4375])
"""

from attnflow import view  # noqa: F401 # registers the output formats
from attnflow.cancel import limited
from attnflow.cut import Cut, min_cut
from attnflow.dataset import run
from attnflow.errors import (
    AttentionError,
    AttnflowError,
    DataError,
    GraphSizeError,
    MissingExtraError,
    ModelError,
    OptionError,
    StoppedError,
    TextError,
)
from attnflow.explanation import Explanation
from attnflow.flow import attention_flow, head_flow, saturation
from attnflow.graph import AttentionGraph, encoder_decoder_graph
from attnflow.models import Explainer
from attnflow.raw import raw_attention
from attnflow.rollout import attention_rollout, head_rollout
from attnflow.version import __version__

__all__ = [
    "AttentionError",
    "AttentionGraph",
    "AttnflowError",
    "Cut",
    "DataError",
    "Explainer",
    "Explanation",
    "GraphSizeError",
    "MissingExtraError",
    "ModelError",
    "OptionError",
    "StoppedError",
    "TextError",
    "__version__",
    "attention_flow",
    "attention_rollout",
    "encoder_decoder_graph",
    "head_flow",
    "head_rollout",
    "limited",
    "min_cut",
    "raw_attention",
    "run",
    "saturation",
]
