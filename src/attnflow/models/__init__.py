"""Models of transformers: loading them, reading inputs for them, running and explaining them.

`Explainer` goes through one adapter a kind of input (`attnflow.models.adapter`): texts, pairs of a
source and a target, sound, images. A new kind of input is one new file and one row in `ADAPTERS`.

Importing this package needs NumPy only; running a model needs torch and transformers.
"""

from attnflow.models.explainer import Explainer

__all__ = ["Explainer"]
