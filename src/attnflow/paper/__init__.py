"""The experiments of "Quantifying Attention Flow in Transformers" (Abnar and Zuidema, ACL 2020).

The readers and `checkpoint` need NumPy alone. The model, its training, the tables and the figures
are modules of their own, which need the extras hf and view.
"""

from pathlib import Path

from attnflow.paper.data import (
    Agreement,
    Fault,
    Labelled,
    read_agreement,
    read_json_lines,
    read_sst2,
)

__all__ = [
    "Agreement",
    "Fault",
    "Labelled",
    "checkpoint",
    "read_agreement",
    "read_json_lines",
    "read_sst2",
]


def checkpoint() -> Path:
    """Return the folder of the verb-number model that ships with attnflow.

    It reads a sentence up to its verb and tells whether the verb is singular or plural. The
    README.md in the folder says how it was trained and how accurate it is.

    Example:
        >>> from attnflow import Explainer
        >>> verb = Explainer.from_pretrained(checkpoint())
        >>> verb.explain("the keys to the cabinet").prediction.label
        'VBP'
    """
    return Path(__file__).parent / "checkpoint"
