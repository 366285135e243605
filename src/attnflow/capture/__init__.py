"""A model's forward pass in, its attention out, or what its answer came from.

One mechanism serves every architecture: `transformers` lets an attention function be registered,
and calls it for every layer. Where a model does not take part in that, its own attention output is
read. `contribute` runs the model with everything that multiplies held at its value, forward and
backward, and returns what each position adds to the answer; `alti_logit` what attention to each
position adds. The model is not changed.

This package needs torch and transformers, and is not imported by ``import attnflow``.
"""

from attnflow.errors import MissingExtraError

try:
    from attnflow.capture.alti_logit import AltiLogit, alti_logit
    from attnflow.capture.forward import Captured, capture
    from attnflow.capture.frozen import Contributions, Step, contribute
    from attnflow.capture.pair import CapturedPair, capture_pair
    from attnflow.capture.places import locate
except ImportError as error:
    raise MissingExtraError(
        "capturing a model's attention needs torch and transformers 5.10 or later "
        f'({error}); run: pip install "attnflow[hf]"'
    ) from error

__all__ = [
    "AltiLogit",
    "Captured",
    "CapturedPair",
    "Contributions",
    "Step",
    "alti_logit",
    "capture",
    "capture_pair",
    "contribute",
    "locate",
]
