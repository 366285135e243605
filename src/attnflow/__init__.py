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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnflow import formats
from attnflow.cancel import limited
from attnflow.cut import Cut, min_cut
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
from attnflow.flow import attention_flow, head_flow, saturation
from attnflow.graph import AttentionGraph, encoder_decoder_graph
from attnflow.raw import raw_attention
from attnflow.rollout import attention_rollout, head_rollout
from attnflow.version import __version__

if TYPE_CHECKING:
    from attnflow.attention import show
    from attnflow.dataset import run
    from attnflow.explanation import Explanation
    from attnflow.generation import Generation
    from attnflow.models import Explainer

__all__ = [
    "AttentionError",
    "AttentionGraph",
    "AttnflowError",
    "Cut",
    "DataError",
    "Explainer",
    "Explanation",
    "Generation",
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
    "show",
]

# Imported at the first access, which keeps `import attnflow` fast.
_LAZY = {
    "Explainer": "attnflow.models",
    "Explanation": "attnflow.explanation",
    "Generation": "attnflow.generation",
    "run": "attnflow.dataset",
    "show": "attnflow.attention",
}

formats.provide("attnflow.view")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module of the package, when it is first used."""
        try:
            if name in _LAZY:
                found = getattr(import_module(_LAZY[name]), name)
            else:
                found = import_module(f"attnflow.{name}")
        except ModuleNotFoundError as error:
            if name in _LAZY or error.name != f"attnflow.{name}":
                raise
            raise AttributeError(f"module 'attnflow' has no attribute {name!r}") from None
        globals()[name] = found
        return found
