"""The verb-number model that ships with attnflow: its class, its tokenizer and its checkpoint.

It reads a sentence up to its verb, and predicts whether the verb is singular (VBZ) or plural (VBP).
`attnflow.paper` trains it. Importing this package needs neither torch nor transformers.
"""

from pathlib import Path

__all__ = ["checkpoint"]


def checkpoint() -> Path:
    """Return the folder of the model that ships with attnflow.

    The README.md in the folder says how it was trained and how accurate it is.

    Example:
        >>> from attnflow import Explainer
        >>> verb = Explainer.from_pretrained(checkpoint())
        >>> verb.explain("the keys to the cabinet").prediction.label
        'VBP'
    """
    return Path(__file__).parent / "checkpoint"
