"""Table 3 as the authors' published script computes it, which is not what the paper says.

The script is compute_corel_distilbert_sst.py of https://github.com/samiraabnar/attention_flow.
Where it differs from the text of the paper:

- A token's score is the largest that any position gives it, not the one that CLS gives it.
- The gradient is that of the logit of the last class. It stands where the label would, which the
  test set that is read does not have.
- The embeddings that the gradient is of, already complete, go through the embedding layer's
  positions and normalisation once more. So their gradient, summed over the dimensions, is 0 but for
  rounding.
- Equal numbers get the same whole rank (dense ranks), in a formula that holds without ties only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.correlation import spearman
from attnflow.errors import DataError, ModelError
from attnflow.evaluate.significance import bootstrap_interval
from attnflow.flow import attention_flow
from attnflow.graph import AttentionGraph
from attnflow.raw import raw_attention
from attnflow.rollout import attention_rollout

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = ["METHODS", "REFERENCES", "VARIANTS", "as_scripted", "dense_spearman"]

METHODS: Final = ("raw", "rollout", "flow")
REFERENCES: Final = ("script", "sum", "norm")
"""The script's own; the same sum, with ties ranked properly; the norm of the same gradient."""
VARIANTS: Final = ("all", "cls")
"""A token's score: the largest of all positions, as in the script, or that of CLS."""


def as_scripted(
    explainer: Explainer,
    texts: Sequence[str],
    *,
    samples: int = 2000,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Measure what the authors' script measures, and what becomes of it one change at a time.

    Args:
        explainer: A classifier with an embedding layer of its own, such as BERT or DistilBERT.
        texts: The texts.
        samples: How often texts are drawn for a confidence interval.
        seed: Of the drawing.
        progress: Called with how many texts are done, and how many there are.

    Returns:
        For each of `VARIANTS` and each of `REFERENCES` the three methods, each a list over the
        layers of {"mean", "std", "ci"}. "share": how large the sum is, relative to the norm of the
        same gradient, in the middle of all tokens. And "count", how many texts there were.

    Raises:
        DataError: If there is no text.
        ModelError: If the model is no such classifier.
        TextError: If a text is empty, or longer than the model takes.
    """
    if not texts:
        raise DataError("there is no text")
    embeddings = getattr(explainer.model.base_model, "embeddings", None)
    if explainer.task != "classification" or embeddings is None:
        raise ModelError(
            f"{explainer.name} is no classifier with an embedding layer, as BERT and DistilBERT "
            "are; the script can be followed with such a model only"
        )
    found, shares = [], []
    for index, text in enumerate(texts):
        graph, sums, norms = _read(explainer, embeddings, text)
        found.append(_agreement(graph, sums, norms))
        shares.append(sums / norms)
        if progress is not None:
            progress(index + 1, len(texts))
    values = np.array(found)  # texts, variants, references, methods, layers
    means, spreads = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    intervals = bootstrap_interval(values, samples=samples, seed=seed)

    def cell(*place: int) -> dict[str, Any]:
        return {
            "mean": float(means[place]),
            "std": float(spreads[place]),
            "ci": [float(ends[place]) for ends in intervals],
        }

    result: dict[str, Any] = {
        variant: {
            reference: {
                method: [cell(v, r, m, layer) for layer in range(values.shape[-1])]
                for m, method in enumerate(METHODS)
            }
            for r, reference in enumerate(REFERENCES)
        }
        for v, variant in enumerate(VARIANTS)
    }
    return {
        **result,
        "share": float(np.median(np.concatenate(shares))),
        "count": len(texts),
    }


def dense_spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return what the script calls Spearman's correlation.

    Without ties it is that. With ties it is something else, and may lie outside of -1 to 1.

    Args:
        a: Numbers.
        b: As many numbers.

    Example:
        >>> import numpy as np
        >>> dense_spearman(np.array([0.1, 0.5, 0.3]), np.array([1.0, 9.0, 4.0]))
        1.0
        >>> dense_spearman(np.array([0.5, 0.5, 0.5]), np.array([1.0, 9.0, 4.0]))
        -0.25
    """
    # The place among the different numbers, smallest first.
    x, y = (np.unique(values, return_inverse=True)[1] for values in (a, b))
    count = len(x)
    return float(1 - 6 * ((x - y) ** 2).sum() / (count * (count**2 - 1)))


def _read(
    explainer: Explainer, embeddings: Any, text: str
) -> tuple[AttentionGraph, NDArray[np.float64], NDArray[np.float64]]:
    """Return the attention, and the sums (absolute) and norms of the gradient of each token."""
    import torch

    from attnflow.capture import capture
    from attnflow.capture.borrow import borrowed

    encoded = explainer.adapter.read(text)
    ids = torch.tensor([encoded.inputs["input_ids"]], device=explainer.model.device)
    with borrowed(explainer.model, None), torch.enable_grad():
        embedded = embeddings(input_ids=ids).detach().requires_grad_()
        inputs = {"inputs_embeds": embedded, "attention_mask": torch.ones_like(ids)}
        logits = explainer.model(**inputs).logits
        [gradient] = torch.autograd.grad(logits[0, -1], embedded)
    layers = capture(explainer.model, {**inputs, "inputs_embeds": embedded.detach()}).layers
    # Summed in the precision of the model, as the script does: what is left is its rounding.
    sums, norms = gradient[0].sum(dim=-1).abs(), gradient[0].norm(dim=-1)
    graph = AttentionGraph([layer[0].numpy() for layer in layers])
    return graph, sums.double().cpu().numpy(), norms.double().cpu().numpy()


def _agreement(
    graph: AttentionGraph, sums: NDArray[np.float64], norms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the correlations: variants, references, methods, layers."""
    every = np.stack(
        [raw_attention(graph), attention_rollout(graph), attention_flow(graph, normalize=True)]
    )
    result = np.empty((len(VARIANTS), len(REFERENCES), *every.shape[:2]))
    for variant, scores in enumerate((every.max(axis=2), every[:, :, 0])):
        for method, layer in np.ndindex(every.shape[:2]):
            result[variant, 0, method, layer] = dense_spearman(scores[method, layer], sums)
        result[variant, 1] = spearman(scores, sums)
        result[variant, 2] = spearman(scores, norms)
    return result
