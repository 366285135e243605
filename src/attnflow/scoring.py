"""From a graph to the scores of an explanation, the same for texts, pairs of texts and images."""

from collections.abc import Sequence
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError
from attnflow.explanation import Prediction
from attnflow.flow import attention_flow, flow_bound
from attnflow.graph import AttentionGraph
from attnflow.rollout import attention_rollout

__all__ = [
    "BATCH_POSITIONS",
    "EDGES",
    "METHODS",
    "check_choices",
    "check_edges",
    "gradient_rows",
    "notes_on",
    "predict",
    "relative_to",
    "saturation_of",
    "scores_of",
    "shares",
    "sink_of",
]

METHODS: Final = ("raw", "rollout", "flow")
EDGES: Final = ("attention", "gradient", "effective", "value_norm")

# Items of a batch run together; this many positions keep a processor busy without holding much
# more attention than one long text would.
BATCH_POSITIONS: Final = 4096

# From this share on, flow says next to nothing about the position asked about.
SATURATED: Final = 0.95
# A token with more than this share of the scores, and most of the attention, is named as a sink.
SINK: Final = 0.5


def check_choices(method: Any, edges: Any, receptive_field: Any, switches: dict[str, Any]) -> None:
    """Check the options that are the same for every kind of model.

    Raises:
        OptionError: If one is not valid; the message lists what is.
    """
    if method not in METHODS:
        raise OptionError(f"method is {method!r}; expected {', '.join(METHODS)}")
    if edges not in EDGES:
        raise OptionError(f"edges is {edges!r}; expected {', '.join(EDGES)}")
    if receptive_field not in ("auto", True, False):
        raise OptionError(f"receptive_field is {receptive_field!r}; expected 'auto', True or False")
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise OptionError(f"{name} is {value!r}; expected True or False")


def check_edges(edges: str, heads: Any, residual: Any) -> None:
    """Check the residual, and the options that gradients and value norms settle by themselves.

    Raises:
        OptionError: If the residual is not a number from 0 to 1, or `edges` settles an option that
            is given.

    Example:
        >>> check_edges("value_norm", heads="mean", residual=0.5)
    """
    # A graph takes a share for each position too, but that is no option of an explanation.
    if (
        not isinstance(residual, Real)
        or isinstance(residual, bool | np.bool_)
        or not 0.0 <= float(residual) <= 1.0
    ):
        raise OptionError(f"residual must be a number from 0 to 1, got {residual!r}")
    if edges == "gradient" and heads != "mean":
        raise OptionError(
            f"heads is {heads!r}, but edges='gradient' is the mean over heads of relu(dy/dA * A); "
            "expected 'mean'"
        )
    if edges != "value_norm":
        return
    if isinstance(heads, str) and heads != "mean":
        raise OptionError(
            f"heads is {heads!r}, but edges='value_norm' adds up the vectors of all heads before "
            "it takes their norm; expected 'mean', which stands for all heads, or the index of one"
        )
    if residual != 0.5:
        raise OptionError(
            f"residual is {residual!r}, but edges='value_norm' measures the share of the residual; "
            "leave it out"
        )


def scores_of(
    graph: AttentionGraph, method: str, positions: Sequence[int], num_threads: int | None = None
) -> NDArray[np.float64]:
    """Return the scores of every layer, of shape (L, P, n).

    Flow uses as many threads as it is told, by default all CPUs.

    Example:
        >>> graph = AttentionGraph([[[0.5, 0.5], [0.0, 1.0]]])
        >>> scores_of(graph, "raw", [0])
        array([[[0.5, 0.5]]])
    """
    if method == "raw":
        return graph.attention[:, list(positions)].copy()
    if method == "rollout":
        return attention_rollout(graph, positions=positions)
    return attention_flow(graph, positions=positions, num_threads=num_threads)


def saturation_of(
    graph: AttentionGraph, flow: NDArray[np.float64], layer: int, positions: Sequence[int]
) -> list[float]:
    """Return the share of tokens whose flow is saturated, for each position of a layer.

    Args:
        graph: The graph.
        flow: The flows of every layer, of shape (L, P, n).
        layer: The layer, from 1.
        positions: The positions.
    """
    full = flow[layer - 1] == flow_bound(graph, positions)[layer - 1]
    return [float(row.mean()) for row in full]


def shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows divided by their sums; a row of zeros stays one.

    Example:
        >>> shares(np.array([[1.0, 3.0], [0.0, 0.0]]))
        array([[0.25, 0.75],
               [0.  , 0.  ]])
    """
    sums = scores.sum(axis=-1, keepdims=True)
    result: NDArray[np.float64] = scores / np.where(sums > 0, sums, 1.0)
    return result


def relative_to(uniform: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores over those of uniform attention, as shares.

    Example:
        >>> relative_to(np.array([[0.5, 0.25, 0.25]]), np.array([[0.5, 0.5, 0.0]]))
        array([[0.33333333, 0.66666667, 0.        ]])
    """
    return shares(np.divide(scores, uniform, out=np.zeros_like(scores), where=uniform > 0))


def gradient_rows(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gradient-weighted attention of shape (n, n) as rows that sum to 1.

    Where nothing that a position attends to helps the target, the position keeps to itself.

    Example:
        >>> gradient_rows(np.array([[0.1, 0.3], [0.0, 0.0]]))
        array([[0.25, 0.75],
               [0.  , 1.  ]])
    """
    empty = weights.sum(axis=-1, keepdims=True) <= 0
    result: NDArray[np.float64] = np.where(empty, np.eye(len(weights)), shares(weights))
    return result


def sink_of(graph: AttentionGraph, seen: int | None = None) -> int:
    """Return the token that gets most attention from the others, over all layers.

    Args:
        graph: The graph.
        seen: Look at this many first tokens only. None means all.
    """
    attention = graph.attention[:, :seen, :seen]
    return int(np.argmax(attention.sum(axis=(0, 1)) - np.einsum("lkk->k", attention)))


def notes_on(
    tokens: Sequence[str],
    scores: NDArray[np.float64],
    position: int,
    layer: int,
    saturation: float | None,
    sink: int | None,
) -> list[str]:
    """Return, in words, what a reader of the scores has to be warned of.

    Args:
        tokens: The tokens scored.
        scores: Their scores, of shape (n,).
        position: The position explained.
        layer: Its layer.
        saturation: The share of saturated flows, None if the scores are not flows.
        sink: The token that most attention goes to, None if it was left out.
    """
    notes = []
    if saturation is not None and saturation >= SATURATED:
        notes.append(
            f"Flow is saturated for {saturation:.0%} of the tokens in layer {layer}: they get all "
            "that they could get from any position, so that these scores say little about this "
            "one. A lower layer, or rollout, says more."
        )
    total = scores.sum()
    # A position that scores for being the one explained is no sink.
    if sink is not None and sink != position and total > 0:
        share = scores[sink] / total
        if share > SINK:
            notes.append(
                f"Token {sink}, {tokens[sink]!r}, takes {share:.0%} of the scores: an attention "
                "sink, where attention goes that has nowhere to go. drop_sink=True leaves it out."
            )
    return notes


def predict(logits: NDArray[np.float64], label: Any) -> Prediction:
    """Return what logits of shape (classes,) predict; `label` names an index."""
    exponentials = np.exp(logits - logits.max())
    top = int(logits.argmax())
    return Prediction(label(top), top, float(exponentials[top] / exponentials.sum()))
