"""One text, pair of texts or image: how far each method agrees with each reference."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_index
from attnflow.correlation import spearman
from attnflow.errors import TextError
from attnflow.evaluate.baselines import baseline_scores
from attnflow.formats import without_nan
from attnflow.models import Explainer
from attnflow.models.adapter import Question
from attnflow.models.explainer import LayerScores
from attnflow.options import Options

__all__ = ["Plan", "agreement", "listed", "measure"]


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
        removal: What removes them, as in `attnflow.evaluate.faithfulness.faithfulness`.
        replacement: As in `attnflow.importance.importance`.
        batch_size: As in `attnflow.importance.importance`.
        truncate: As in `Explainer.explain`.
        max_new_tokens: How many tokens an encoder-decoder writes where no target is given.
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
    removal: str | int
    replacement: str | int
    batch_size: int
    truncate: bool
    max_new_tokens: int
    seed: int

    def options(self, edges: str) -> Options:
        """Return the options of `Explainer.explain` for one kind of edges."""
        return Options(
            edges=edges,
            position=self.position,
            heads=self.heads,
            residual=self.residual,
            truncate=self.truncate,
        )

    def questions(
        self, explainer: Explainer, item: Any, target: int | str | None
    ) -> tuple[Any, list[Question]]:
        """Return an input with what is asked about it; a target is written if there is none."""
        return explainer.adapter.questions(
            item, Question(self.position, target), self.max_new_tokens, self.truncate
        )


def measure(
    explainer: Explainer,
    item: Any,
    plan: Plan,
    *,
    index: int,
    target: int | str | None,
    frequencies: Mapping[str, int],
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Measure one input. The result depends on nothing but the arguments.

    Every kind of edges takes one forward pass of the model, whatever the number of methods and
    layers. The input runs by itself: what stands beside it in a batch would change the last digits,
    and a run that was interrupted would not end with the same numbers.

    An encoder-decoder is asked about every token of the target, and what is returned are means over
    those, so that a text counts once, however long its target.

    Args:
        explainer: The model.
        item: The text; for an encoder-decoder the source, or a tuple of the source and its target;
            for a vision model the image.
        plan: What to measure.
        index: The input's index, which the random baseline starts from.
        target: The class or token that the model's answer is measured by; None is its own.
        frequencies: How often each token occurs.
        num_threads: How many threads compute flows. None is one for each CPU.

    Returns:
        What JSON can hold: the text's "tokens" (how many), "position", "target" and "prediction";
        "related", whether scores are divided by those of uniform attention by default; "layers";
        "correlations" as lists in lists, in the order of edges, methods, receptive fields, sinks
        kept and dropped, references, special tokens kept and left out, layers; and
        "baselines" in the order of baselines, sinks, references and special tokens. None where a
        correlation is not defined. If it is planned, "faithfulness" in the order of edges, methods,
        receptive fields, layers and measures, and "other_faithfulness" of references and baselines.

    Raises:
        TextError: If the input cannot be measured; the message says why.
        AttnflowError: Whatever explaining and the references raise.
    """
    item, asked = plan.questions(explainer, item, target)
    scored = [
        explainer.layer_scores(
            item,
            asked,
            methods=plan.methods,
            receptive_fields=plan.receptive_field,
            num_threads=num_threads,
            **plan.options(edges),
        )
        for edges in plan.edges
    ]
    seeds: list[tuple[int, ...]] = [(plan.seed, index)]
    if len(asked) > 1:
        seeds = [(plan.seed, index, place) for place in range(len(asked))]
    # All edges of one question after those of the other.
    answers = [
        _answer(explainer, item, question, list(found), plan, frequencies, seed)
        for question, seed, *found in zip(asked, seeds, *scored, strict=True)
    ]
    last = scored[_main(plan)][-1]
    # The questions of an encoder-decoder are about every token of its target.
    several = explainer.adapter.asks_about_targets and plan.position == "auto"
    prediction = None if several or last.prediction is None else last.prediction._asdict()
    return {
        "text": index,
        "tokens": min(len(found[-1].tokens) for found in scored),
        "position": last.position,
        "target": item[1] if several else last.target,
        "prediction": prediction,
        "related": last.relative,
        "layers": [layer + 1 for layer in _layers(last, plan)],
        **{name: listed(_mean([answer[name] for answer in answers])) for name in answers[0]},
    }


def _answer(
    explainer: Explainer,
    item: Any,
    question: Question,
    scored: list[LayerScores],
    plan: Plan,
    frequencies: Mapping[str, int],
    seed: Sequence[int],
) -> dict[str, NDArray[np.float64]]:
    """Measure what is asked about one position; `scored` has the scores of each kind of edges."""
    from attnflow.importance import importance

    references = np.stack(
        [
            importance(
                explainer,
                item,
                reference=name,
                target=question.target,
                position=question.position,
                replacement=plan.replacement if name == "blank_out" else "auto",
                batch_size=plan.batch_size,
                truncate=plan.truncate,
            )
            for name in plan.references
        ]
    )
    first = scored[_main(plan)]
    count = min(len(found.tokens) for found in scored)
    if count < 2:
        raise TextError("the position sees one token, and a rank correlation needs two")
    tokens, special = first.tokens.names[:count], np.array(first.tokens.special[:count])
    references = references[:, :count]
    layers = _layers(first, plan)
    scores = np.array(
        [
            [
                [
                    found.scores[method, found.relative if choice == "auto" else bool(choice)][
                        layers
                    ]
                    for choice in plan.receptive_field
                ]
                for method in plan.methods
            ]
            for found in scored
        ]
    )[..., :count]
    guesses = [
        baseline_scores(name, tokens, frequencies=frequencies, seed=seed) for name in plan.baselines
    ]
    kept = np.isin(np.arange(count), first.sinks, invert=True)
    answer = {
        # Layers last.
        "correlations": np.moveaxis(
            agreement(scores, references, special, kept, plan.drop_sink), 3, -1
        ),
        "baselines": agreement(np.array(guesses), references, special, kept, plan.drop_sink)
        if guesses
        else np.empty(0),
    }
    if plan.faithfulness:
        removed = partial(_removed, explainer, item, question, plan)
        answer["faithfulness"] = removed(scores)
        answer["other_faithfulness"] = removed(np.array([*references, *guesses]))
    return answer


def _main(plan: Plan) -> int:
    """Return which edges say what the sinks are, so that all are measured on the same tokens."""
    return plan.edges.index("attention") if "attention" in plan.edges else 0


def _layers(scored: LayerScores, plan: Plan) -> list[int]:
    """Return the layers that are measured, from 0."""
    depth = len(next(iter(scored.scores.values())))
    return [
        resolve_index(layer, depth, "layer", "layers", first=1) - 1
        for layer in plan.layers or range(1, depth + 1)
    ]


def _mean(values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean of arrays where they are defined."""
    if len(values) == 1:
        return values[0]
    every = np.stack(values)
    known = ~np.isnan(every)
    counts = known.sum(axis=0)
    result: NDArray[np.float64] = np.where(known, every, 0.0).sum(axis=0) / np.where(
        counts, counts, np.nan
    )
    return result


def _removed(
    explainer: Explainer,
    item: Any,
    question: Question,
    plan: Plan,
    scores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Measure what removing tokens in the order of scores (..., n) does, of shape (..., 4)."""
    from attnflow.evaluate.faithfulness import faithfulness

    rows = scores.reshape(-1, scores.shape[-1])
    found = faithfulness(
        explainer,
        [item] * len(rows),
        list(rows),
        target=[question.target] * len(rows),
        position=question.position,
        removal=plan.removal,
        batch_size=plan.batch_size,
        truncate=plan.truncate,
    )
    values = np.array(found, dtype=np.float64)
    # The odds of a certain answer are infinite, and have no mean.
    values[~np.isfinite(values)] = np.nan
    return values.reshape(*scores.shape[:-1], -1)


def agreement(
    scores: NDArray[np.float64],
    references: NDArray[np.float64],
    special: NDArray[np.bool_],
    kept: NDArray[np.bool_],
    drop_sink: tuple[bool, ...],
) -> NDArray[np.float64]:
    """Correlate scores with references on all and on some of the tokens.

    Args:
        scores: Of shape (..., n).
        references: Of shape (R, n).
        special: Which tokens are special.
        kept: Which tokens are no sinks.
        drop_sink: For each column whether sinks are left out.

    Returns:
        Of shape (..., sinks kept and dropped, R, special tokens kept and left out).
    """
    result = np.empty((*scores.shape[:-1], len(drop_sink), len(references), 2))
    for i, drop in enumerate(drop_sink):
        for j, wanted in enumerate((np.ones_like(special), ~special)):
            chosen = wanted & kept if drop else wanted
            for k, reference in enumerate(references):
                result[..., i, k, j] = spearman(scores[..., chosen], reference[chosen])
    return result


def listed(values: NDArray[np.float64]) -> Any:
    """Return an array as lists that JSON can hold, with None for NaN."""
    return without_nan(values.tolist())
