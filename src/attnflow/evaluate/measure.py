"""One text: how far each method agrees with each reference."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.correlation import spearman
from attnflow.errors import TextError
from attnflow.evaluate.baselines import baseline_scores
from attnflow.explain import Explainer
from attnflow.graph import resolve_index

__all__ = ["Plan", "listed", "measure"]


class Plan(NamedTuple):
    """What is measured of every text. Lists are never empty.

    Attributes:
        methods: Of "raw", "rollout" and "flow".
        edges: Of what `Explainer.explain` knows.
        references: Of what `attnflow.importance.importance` knows.
        layers: The layers, from 1; None for all.
        position: As in `Explainer.explain`.
        heads: As in `Explainer.explain`.
        residual: As in `Explainer.explain`.
        receptive_field: "auto" alone, or booleans.
        drop_sink: Booleans.
        baselines: Of `attnflow.evaluate.baselines.BASELINES`; may be empty.
        faithfulness: Whether tokens are really removed, too.
        replacement: As in `attnflow.importance.importance`.
        batch_size: As in `attnflow.importance.importance`.
        truncate: As in `Explainer.explain`.
        seed: Where random numbers start.
    """

    methods: tuple[str, ...]
    edges: tuple[str, ...]
    references: tuple[str, ...]
    layers: tuple[int, ...] | None
    position: int | str
    heads: str | int
    residual: float
    receptive_field: tuple[str | bool, ...]
    drop_sink: tuple[bool, ...]
    baselines: tuple[str, ...]
    faithfulness: bool
    replacement: str | int
    batch_size: int
    truncate: bool
    seed: int


def measure(
    explainer: Explainer,
    text: str,
    plan: Plan,
    *,
    index: int,
    target: int | str | None,
    frequencies: Mapping[str, int],
) -> dict[str, Any]:
    """Measure one text. The result depends on nothing but the arguments.

    Every kind of edges takes one forward pass of the model, whatever the number of methods and
    layers. The text runs by itself: what stands beside it in a batch would change the last digits,
    and a run that was interrupted would not end with the same numbers.

    Args:
        explainer: The model.
        text: The text.
        plan: What to measure.
        index: The text's index, which the random baseline starts from.
        target: The class or token that the model's answer is measured by; None is its own.
        frequencies: How often each token occurs.

    Returns:
        What JSON can hold: the text's "tokens" (how many), "position", "target" and "prediction";
        "causal"; "layers"; "correlations" as lists in lists, in the order of edges, methods,
        receptive fields, sinks kept and dropped, references, special tokens kept and left out,
        layers; and
        "baselines" in the order of baselines, sinks, references and special tokens. None where a
        correlation is not defined. If it is planned, "faithfulness" in the order of edges, methods,
        receptive fields, layers and measures, and "other_faithfulness" of references and baselines.

    Raises:
        TextError: If the text cannot be measured; the message says why.
        AttnflowError: Whatever explaining and the references raise.
    """
    from attnflow.importance import importance

    scored = [
        explainer.layer_scores(
            text,
            methods=plan.methods,
            edges=kind,
            position=plan.position,
            target=target,
            heads=plan.heads,
            residual=plan.residual,
            receptive_field=plan.receptive_field,
            truncate=plan.truncate,
        )
        for kind in plan.edges
    ]
    references = np.stack(
        [
            importance(
                explainer,
                text,
                reference=name,
                target=target,
                position=plan.position,
                replacement=plan.replacement if name == "blank_out" else "auto",
                batch_size=plan.batch_size,
                truncate=plan.truncate,
            )
            for name in plan.references
        ]
    )
    # The sink is the same token for all edges, so that all are measured on the same tokens.
    first = scored[plan.edges.index("attention") if "attention" in plan.edges else 0]
    count = min(len(item.tokens) for item in scored)
    if count < 2:
        raise TextError("the position sees one token, and a rank correlation needs two")
    tokens, special = first.tokens[:count], np.array(first.special[:count])
    references = references[:, :count]
    depth = len(next(iter(first.scores.values())))
    layers = [
        resolve_index(layer, depth, "layer", "layers", first=1) - 1
        for layer in plan.layers or range(1, depth + 1)
    ]
    scores = np.array(
        [
            [
                [
                    item.scores[method, item.causal if choice == "auto" else bool(choice)][layers]
                    for choice in plan.receptive_field
                ]
                for method in plan.methods
            ]
            for item in scored
        ]
    )[..., :count]
    guesses = [
        baseline_scores(name, tokens, frequencies=frequencies, seed=(plan.seed, index))
        for name in plan.baselines
    ]
    record = {
        "text": index,
        "tokens": count,
        "position": first.position,
        "target": first.target,
        "prediction": None if first.prediction is None else first.prediction._asdict(),
        "causal": first.causal,
        "layers": [layer + 1 for layer in layers],
        # Layers last.
        "correlations": listed(
            np.moveaxis(_agreement(scores, references, special, first.sink, plan.drop_sink), 3, -1)
        ),
        "baselines": listed(
            _agreement(np.array(guesses), references, special, first.sink, plan.drop_sink)
            if guesses
            else np.empty(0)
        ),
    }
    if plan.faithfulness:
        removed = partial(_removed, explainer, text, target, plan)
        record["faithfulness"] = listed(removed(scores))
        record["other_faithfulness"] = listed(removed(np.array([*references, *guesses])))
    return record


def _removed(
    explainer: Explainer,
    text: str,
    target: int | str | None,
    plan: Plan,
    scores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Measure what removing tokens in the order of scores (..., n) does, of shape (..., 4)."""
    from attnflow.evaluate.faithfulness import faithfulness

    rows = scores.reshape(-1, scores.shape[-1])
    found = faithfulness(
        explainer,
        [text] * len(rows),
        list(rows),
        target=[target] * len(rows),
        position=plan.position,
        batch_size=plan.batch_size,
        truncate=plan.truncate,
    )
    values = np.array(found, dtype=np.float64)
    # The odds of a certain answer are infinite, and have no mean.
    values[~np.isfinite(values)] = np.nan
    return values.reshape(*scores.shape[:-1], -1)


def _agreement(
    scores: NDArray[np.float64],
    references: NDArray[np.float64],
    special: NDArray[np.bool_],
    sink: int,
    drop_sink: tuple[bool, ...],
) -> NDArray[np.float64]:
    """Correlate scores (..., n) with references (R, n) on all and on some of the tokens.

    Returns:
        Of shape (..., sinks kept and dropped, R, special tokens kept and left out).
    """
    result = np.empty((*scores.shape[:-1], len(drop_sink), len(references), 2))
    others = np.arange(len(special)) != sink
    for i, drop in enumerate(drop_sink):
        for j, wanted in enumerate((np.ones_like(special), ~special)):
            kept = wanted & others if drop else wanted
            for k, reference in enumerate(references):
                result[..., i, k, j] = spearman(scores[..., kept], reference[kept])
    return result


def listed(values: NDArray[np.float64]) -> Any:
    """Return an array as lists that JSON can hold, with None for NaN."""
    return _without_nan(values.tolist())


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
