"""Input gradients: how much the answer changes with a token's embedding.

Abnar and Zuidema (2020) take the sum of the gradient over the embedding's dimensions. Gradient x
input is the first-order estimate of what the embedding as a whole adds to the answer (Denil et al.,
"Extraction of Salient Sentences from Labelled Documents", 2014; Shrikumar et al., "Not Just a Black
Box", 2016). The norm of the gradient is the largest change that a small step of the embedding, in
any direction, can make (Simonyan et al., "Deep Inside Convolutional Networks", 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import switch
from attnflow.errors import ModelError
from attnflow.importance.reading import check_batch_size, read
from attnflow.models import Explainer
from attnflow.models.adapter import Reading
from attnflow.models.answers import batches, log_odds, run, targets_of, values

# A backward pass keeps the activations of every layer, so fewer positions run together.
GRADIENT_POSITIONS: Final = 512


def input_gradient(
    explainer: Any,
    inputs: Any,
    *,
    target: Any = None,
    contrast: Any = None,
    position: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
) -> Any:
    """Differentiate the model's answer by each token's embedding, and sum over its dimensions.

    The importance of token t is ``|sum_d dp(y) / dx[t, d]|``, where p is the model's probability, y
    the class or token that it predicts, or the `target`, and x[t] is the word embedding of the
    token: what ``model.get_input_embeddings()`` gives, before positions and token types are added.
    Some models scale their embeddings in that module (BART, Gemma), others after it (Marian), most
    not at all; a scale that all tokens share changes no ranks. For a vision model, x[t] is what
    enters the first layer: a patch, or a special token, with its position.

    With a `contrast`, the difference of the two logits takes the place of the probability.

    Tokens that come after the position of a causal model get 0: it cannot see them.

    Beware of models with layer normalisation, such as BERT, DistilBERT and GPT-2. It subtracts the
    mean of the dimensions, so adding a constant to all of them changes nothing: **the sum is 0 for
    every token**, and what is returned is the rounding error of its terms. `gradient_norm` and
    `gradient_x_input` mean something there. Models with RMS normalisation (T5, Llama, Gemma) are
    not concerned.

    Args:
        explainer: An `attnflow.Explainer` whose model classifies or is a language model.
        inputs: What `Explainer.explain` takes.
        target: The class, by name or index, or the token. For a list of texts it may be a list, one
            for each. None is what the model predicts.
        contrast: The class or token that the target is compared with, or a list of them. None is
            none.
        position: Where a language model is asked, as in `Explainer.explain`.
        batch_size: How many texts run together at most; long ones are fewer.
        truncate: Cut a text that is longer than the model takes, instead of an error.

    Returns:
        The importance of every token that the model reads, float64 of shape (n,), source before
        target; or a list of such arrays, one for each text, in their order.

    Raises:
        OptionError: If an option is not valid for this model.
        TextError: If a text is empty, not text, or longer than the model takes.
        ModelError: If the model predicts nothing, or no gradient reaches its embeddings.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> [len(one) for one in input_gradient(explainer, ["the keys to the door", "the key"])]
        [6, 3]
    """
    return _importance("sum", explainer, inputs, target, contrast, position, batch_size, truncate)


def gradient_x_input(explainer: Any, inputs: Any, *, signed: bool = False, **options: Any) -> Any:
    """Multiply the gradient of the model's answer by each token's embedding.

    The importance of token t is ``|sum_d dp(y) / dx[t, d] * x[t, d]|``; `input_gradient` says what
    p, y and x are. A scale of the embeddings makes no difference here; therefore it is 0, up to
    rounding, for models that normalise word embeddings before anything is added to them, such as
    ModernBERT. `gradient_norm` means something there.

    With ``signed=True`` the absolute value is not taken: positive values speak for y. Besides, it
    takes, returns and raises what `input_gradient` does.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> found = gradient_x_input(explainer, "the keys to the cabinet", target="VBP")
        >>> found.shape  # [CLS], the, keys, to, the, cabinet
        (6,)
    """
    signed = switch(signed, "signed")
    return _importance("signed product" if signed else "product", explainer, inputs, **options)


def gradient_norm(explainer: Any, inputs: Any, **options: Any) -> Any:
    """Take the Euclidean norm of the gradient of the model's answer by each token's embedding.

    The importance of token t is ``sqrt(sum_d (dp(y) / dx[t, d])**2)``; `input_gradient` says what
    p, y and x are. Unlike the sum, and unlike gradient x input, the norm does not cancel out in any
    model.

    It takes, returns and raises what `input_gradient` does.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> norms = gradient_norm(explainer, "the keys to the cabinet")
        >>> int(norms.argmax())  # "keys"
        2
        >>> sums = input_gradient(explainer, "the keys to the cabinet")  # layers are normalised
        >>> bool((sums < 1e-4 * norms).all())
        True
    """
    return _importance("norm", explainer, inputs, **options)


def _importance(
    reduce: str,
    explainer: Any,
    inputs: Any,
    target: Any = None,
    contrast: Any = None,
    position: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
) -> Any:
    check_batch_size(batch_size)
    readings, many = read(
        explainer, inputs, target=target, contrast=contrast, position=position, truncate=truncate
    )
    modules = explainer.adapter.embeddings()
    results: list[NDArray[np.float64]] = [np.zeros(len(reading.tokens)) for reading in readings]
    for batch in batches(explainer, enumerate(readings), batch_size, GRADIENT_POSITIONS):
        together = [reading for _, reading in batch]
        found = differentiate(explainer, together, modules)
        for (index, _), row in zip(batch, _reduced(found, reduce), strict=True):
            # What is left over are tokens that the answer cannot depend on.
            results[index][: len(row)] = row
    return results if many else results[0]


def _reduced(found: Differentiated, reduce: str) -> NDArray[np.float64]:
    """Return the importance of each token, of shape (B, n)."""
    import torch

    parts = []
    for embedding, gradient in zip(found.embeddings, found.gradients, strict=True):
        exact = gradient * embedding if "product" in reduce else gradient
        values = exact.norm(dim=-1) if reduce == "norm" else exact.sum(dim=-1)
        values = values if "signed" in reduce else values.abs()
        parts.append(found.slopes[:, None] * values)
    result: NDArray[np.float64] = torch.cat(parts, dim=1).numpy()
    return result


class Differentiated(NamedTuple):
    """The answers of readings of one shape, and their gradients; float64 and on the CPU.

    Attributes:
        targets: The target of each of the B readings.
        answers: The log-odds of the target, or where there is a contrast the difference of logits,
            of shape (B,).
        slopes: What turns a change of an answer into one of the target's probability, of shape
            (B,). It is 1 where there is a contrast.
        embeddings: The embeddings of the tokens, source before target, each of shape (B, n, D).
        gradients: The gradients of the answers by them.
    """

    targets: list[int]
    answers: Any
    slopes: Any
    embeddings: list[Any]
    gradients: list[Any]


def differentiate(
    explainer: Explainer,
    readings: list[Reading],
    modules: list[Any],
    replaced: Callable[[int, Any], Any] | None = None,
) -> Differentiated:
    """Differentiate the answers to readings of one shape by the embeddings of their tokens.

    Args:
        explainer: The explainer.
        readings: The B readings.
        modules: The modules whose outputs are the embeddings.
        replaced: A function that gives what the model reads in place of embeddings, from which of
            the calls of those modules it is, counted from 0, and what it returned.

    Raises:
        ModelError: If no gradient reaches the embeddings.
    """
    import torch

    from attnflow.capture.borrow import borrowed

    name = type(explainer.model).__name__
    with torch.inference_mode(False), torch.enable_grad():
        # Borrowed first: no other thread may run the model while the hooks are set.
        with borrowed(explainer.model, None), _watched(modules, replaced) as embeddings:
            logits = run(explainer, readings)
        _check_calls(name, embeddings, explainer.adapter.embedded(readings[0]))
        targets = targets_of(explainer, readings, logits)
        contrasted = torch.tensor([reading.contrast is not None for reading in readings])
        odds = log_odds(explainer, targets, logits)
        answers = torch.where(contrasted, values(explainer, readings, targets, logits), odds)
        gradients: Any = [None]
        if answers.requires_grad:
            # Not backward(), which would leave gradients behind in the parameters. Readings do not
            # see each other, so the gradient of the sum is each one's own.
            gradients = torch.autograd.grad(answers.sum(), embeddings, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ModelError(
            f"no gradient reaches the embeddings of {name}: part of its forward pass turns "
            "gradients off, as torch.no_grad() does; use blank_out"
        )
    # The log-odds are differentiated, whose gradient does not vanish where p is nearly 0 or 1, and
    # dp = p (1 - p) dlog-odds.
    slopes = torch.where(contrasted, 1.0, odds.sigmoid() * (-odds).sigmoid()).detach()
    exact = [embedding.detach().to("cpu", torch.float64) for embedding in embeddings]
    return Differentiated(
        targets,
        answers.detach(),
        slopes,
        exact,
        [
            torch.zeros_like(one) if gradient is None else gradient.to("cpu", torch.float64)
            for one, gradient in zip(exact, gradients, strict=True)
        ],
    )


@contextmanager
def _watched(modules: list[Any], replaced: Callable[[int, Any], Any] | None) -> Iterator[list[Any]]:
    """Cut the graph at the outputs of some modules, and give those outputs as they come."""
    found: list[Any] = []

    def cut(_module: Any, _inputs: Any, output: Any) -> Any:
        read = output if replaced is None else replaced(len(found), output)
        found.append(read.detach().requires_grad_())
        return found[-1]

    handles = [module.register_forward_hook(cut) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _check_calls(name: str, embeddings: list[Any], expected: list[int]) -> None:
    """See that the embeddings are those of the reading's tokens, source before target."""
    if [tuple(one.shape[1:-1]) for one in embeddings] != [(count,) for count in expected]:
        shapes = ", ".join(str(tuple(one.shape)) for one in embeddings) or "nothing"
        raise ModelError(
            f"{name} embeds {shapes}, where one embedding for each of "
            f"{' and '.join(map(str, expected))} tokens is expected; use blank_out"
        )
