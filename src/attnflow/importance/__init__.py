"""What a model's answer really depends on: the references that attention is compared with.

A reference changes the input, or follows the gradient, and so measures how much each token matters
to the answer, without reading the attention:

- `blank_out`: how much the answer's probability changes when a token is replaced;
- `input_gradient`: how much it changes with the token's embedding;
- `gradient_x_input`: the same, times the embedding;
- `gradient_norm`: the norm of the gradient, where `input_gradient` takes its sum;
- `integrated_gradients`: the gradient along a path from a baseline to the input.

Running a model needs torch and transformers; importing this package does not import them.
"""

from __future__ import annotations

from typing import Any, Final

from attnflow.checks import choice, switch
from attnflow.errors import OptionError
from attnflow.importance.blank_out import blank_out
from attnflow.importance.gradient import gradient_norm, gradient_x_input, input_gradient
from attnflow.importance.integrated import Integrated, integrate, integrated_gradients

__all__ = [
    "REFERENCES",
    "SIGNED",
    "Integrated",
    "blank_out",
    "gradient_norm",
    "gradient_x_input",
    "importance",
    "input_gradient",
    "integrate",
    "integrated_gradients",
]

REFERENCES: Final = (
    "blank_out",
    "input_gradient",
    "gradient_x_input",
    "gradient_norm",
    "integrated_gradients",
)
SIGNED: Final = ("blank_out", "gradient_x_input", "integrated_gradients")
"""The references whose values have a sign: what speaks for the answer is positive."""


def importance(
    explainer: Any,
    inputs: Any,
    *,
    reference: str = "blank_out",
    target: Any = None,
    contrast: Any = None,
    position: int | str = "auto",
    replacement: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
    signed: bool = False,
) -> Any:
    """Measure how much each token matters to the model's answer.

    Args:
        explainer: An `attnflow.Explainer` whose model classifies or is a language model.
        inputs: What `Explainer.explain` takes: a text, or a list of texts; for an encoder-decoder
            source texts, or tuples of a source and the target so far; for a vision model images.
        reference: "blank_out", "input_gradient", "gradient_x_input", "gradient_norm" or
            "integrated_gradients"; the functions of these names say what they compute.
        target: The class, by name or index, or the token. For a list of texts it may be a list, one
            for each. None is what the model predicts.
        contrast: The class or token that the target is compared with, or a list of them: the
            difference of the two logits is what tokens matter to. None is none.
        position: Where a language model is asked, as in `Explainer.explain`.
        replacement: What replaces a token: "unk", "mask", a token of the vocabulary, or its id.
            "auto" is UNK if the tokenizer has one, and else MASK. Only for "blank_out".
        batch_size: How many texts run together at most; long ones are fewer.
        truncate: Cut a text that is longer than the model takes, instead of an error.
        signed: Whether to keep the signs of the references that have one, which are `SIGNED`.

    Returns:
        The importance of every token that the model reads, special tokens included, float64 of
        shape (n,), source before target; or a list of such arrays, one for each text, in their
        order.

    Raises:
        OptionError: If an option is not valid for this model.
        TextError: If a text is empty, not text, or longer than the model takes.
        ModelError: If the model predicts nothing that tokens could matter to.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> importance(explainer, "the keys to the cabinet").shape
        (6,)
        >>> [len(one) for one in importance(explainer, ["keys", "the keys"], target="VBP")]
        [2, 3]
    """
    options = {
        "target": target,
        "contrast": contrast,
        "position": position,
        "batch_size": batch_size,
        "truncate": truncate,
    }
    choice(reference, "reference", REFERENCES)
    if switch(signed, "signed") and reference in SIGNED:
        options["signed"] = True
    if reference == "blank_out":
        return blank_out(explainer, inputs, replacement=replacement, **options)
    if replacement != "auto":
        raise OptionError(
            f"replacement is {replacement!r}, but reference={reference!r} replaces nothing; leave "
            "it out, or use reference='blank_out'"
        )
    functions = {
        "input_gradient": input_gradient,
        "gradient_x_input": gradient_x_input,
        "gradient_norm": gradient_norm,
        "integrated_gradients": integrated_gradients,
    }
    return functions[reference](explainer, inputs, **options)
