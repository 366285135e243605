"""Table 3 as the authors' published script computes it, which is not what the paper describes.

The script is compute_corel_distilbert_sst.py of https://github.com/samiraabnar/attention_flow. It
differs from the text of the paper in four ways:

- A token's score is its largest score over all positions, not its score at CLS.
- The gradient is that of the logit of the last class. The script means the label, but the test set
  that it reads has no labels.
- The embeddings go through the embedding layer's positions and normalisation a second time. Their
  gradient, summed over the dimensions, is therefore 0 up to rounding.
- Ties get the same integer rank (dense ranks), in a formula that is valid only without ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.correlation import spearman
from attnflow.errors import ModelError
from attnflow.flow import attention_flow
from attnflow.graph import AttentionGraph
from attnflow.options import ATTENTION_METHODS as METHODS
from attnflow.paper.findings import measured
from attnflow.paper.result import Result, spread, summarize
from attnflow.paper.tables import TABLES
from attnflow.raw import raw_attention
from attnflow.rollout import attention_rollout
from attnflow.scoring import settled, shares
from attnflow.view.figures import correlation_over_layers
from attnflow.view.tables import Report, Table

if TYPE_CHECKING:
    from attnflow.models import Explainer


REFERENCES: Final = {
    "script": "sum, as in the script",
    "sum": "sum, ties ranked properly",
    "norm": "norm",
}
"""How a token's gradient becomes a number, and how it is described."""

VARIANTS: Final = {"all": "largest of all positions", "cls": "of CLS"}
"""Which position's score a token has, and how it is described. The first is the script's."""


def as_scripted(
    explainer: Explainer,
    texts: Sequence[str],
    *,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Measure what the authors' script measures, and the effect of correcting each difference.

    Args:
        explainer: A classifier with an embedding layer of its own, such as BERT or DistilBERT.
        texts: The texts.
        progress: Called with the number of texts done, and the total number of texts.

    Returns:
        For each of `VARIANTS` and each of `REFERENCES` the three methods, each a list over the
        layers of {"mean", "std", "ci"}. "share": the sum relative to the norm of the same gradient,
        as the median over all tokens. And "count", the number of texts.

    Raises:
        DataError: If there is no text.
        ModelError: If the model is not a classifier with an embedding layer.
        TextError: If a text is empty, or longer than the model accepts.
    """
    embeddings = getattr(explainer.model.base_model, "embeddings", None)
    if explainer.task != "classification" or embeddings is None:
        raise ModelError(
            f"{explainer.name} is not a classifier with an embedding layer, such as BERT or "
            "DistilBERT; the script works with such models only"
        )
    shares = []

    def measure(text: str) -> NDArray[np.float64]:
        graph, sums, norms = _read(explainer, embeddings, text)
        shares.append(sums / norms)
        return _agreement(graph, sums, norms)

    cells = summarize(measured(texts, measure, progress))
    result: dict[str, Any] = {variant: {} for variant in VARIANTS}
    for (i, variant), (j, reference) in product(enumerate(VARIANTS), enumerate(REFERENCES)):
        result[variant][reference] = dict(zip(METHODS, cells[i, j].tolist(), strict=True))
    return {**result, "share": float(np.median(np.concatenate(shares))), "count": len(texts)}


def scripted_result(
    explainer: Explainer, texts: Sequence[str], progress: Callable[[int, int], object]
) -> Result:
    """Follow the script, for printing and saving; see `as_scripted`."""
    found = as_scripted(explainer, texts, progress=progress)

    def text() -> str:
        depth = len(found["all"]["script"]["raw"])
        layers = [layer for layer in TABLES[3].layers if layer <= depth]
        columns = ["", *(f"L{layer}" for layer in layers)]
        tables = []
        for variant, reference in product(VARIANTS, REFERENCES):
            cells = []
            for method, row in found[variant][reference].items():
                chosen = [row[layer - 1] for layer in layers]
                cells.append([method, *(spread(cell["mean"], cell["std"]) for cell in chosen)])
            title = f"scores: {VARIANTS[variant]}; gradient: {REFERENCES[reference]}"
            tables.append(Table(title, columns, cells))
        what = "mean Spearman correlation with gradients"
        note = f"The sum is {found['share']:.1e} of the norm of the same gradient: rounding."
        return Report(f"{len(texts):,} texts; {what}; {explainer.name}", tables, [note]).plain(100)

    def figure() -> Any:
        script = found["all"]["script"]
        curves = {method: [cell["mean"] for cell in row] for method, row in script.items()}
        return correlation_over_layers(curves)[0]

    return Result(found, text, figure)


def dense_spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return what the script calls Spearman's correlation.

    It is Spearman's correlation only without ties. With ties it may be outside of -1 to 1.

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
    # The rank among the distinct numbers, smallest first.
    x, y = (np.unique(values, return_inverse=True)[1] for values in (a, b))
    count = len(x)
    return float(1 - 6 * ((x - y) ** 2).sum() / (count * (count**2 - 1)))


def _read(
    explainer: Explainer, embeddings: Any, text: str
) -> tuple[AttentionGraph, NDArray[np.float64], NDArray[np.float64]]:
    """Return the attention, and the absolute sum and the norm of each token's gradient."""
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
    # Summed in the precision of the model, as in the script, which leaves its rounding error.
    sums, norms = gradient[0].sum(dim=-1).abs(), gradient[0].norm(dim=-1)
    graph = AttentionGraph([layer[0].numpy() for layer in layers])
    return graph, sums.double().cpu().numpy(), norms.double().cpu().numpy()


def _agreement(
    graph: AttentionGraph, sums: NDArray[np.float64], norms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the correlations: variants, references, methods, layers."""
    every = np.stack(
        [raw_attention(graph), attention_rollout(graph), shares(settled(attention_flow(graph)))]
    )
    result = np.empty((len(VARIANTS), len(REFERENCES), *every.shape[:2]))
    for variant, scores in enumerate((every.max(axis=2), every[:, :, 0])):
        for method, layer in np.ndindex(every.shape[:2]):
            result[variant, 0, method, layer] = dense_spearman(scores[method, layer], sums)
        result[variant, 1] = spearman(scores, sums)
        result[variant, 2] = spearman(scores, norms)
    return result
