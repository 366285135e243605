"""One text, pair of texts or image: how far each method agrees with each reference."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_layer
from attnflow.correlation import spearman
from attnflow.errors import TextError
from attnflow.evaluate.baselines import every_baseline
from attnflow.evaluate.evidence import (
    candidate_tokens,
    check_preference,
    evidence_measures,
    evidence_tokens,
)
from attnflow.evaluate.faithfulness import Faithfulness, faithfulness
from attnflow.evaluate.significance import defined_mean
from attnflow.formats import without_nan
from attnflow.importance import importance
from attnflow.models import Explainer
from attnflow.models.adapter import Question
from attnflow.models.explainer import LayerScores
from attnflow.options import ANSWER_METHODS, Options


class Plan(NamedTuple):
    """What is measured of every text: options of `attnflow.evaluate.evaluate`, checked.

    Lists are tuples, and not empty but for `baselines` and `references`. `layers` are counted from
    1, or None for all layers; `receptive_field` is ("auto",) or has booleans. There is one kind of
    edges if all methods explain the answer.
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
    keep_wrong: bool
    replacement: str | int
    batch_size: int
    truncate: bool
    max_new_tokens: int
    seed: int

    def options(self, edges: str) -> Options:
        """Return the options of `Explainer.explain` for one kind of edges."""
        names = ("position", "heads", "residual", "truncate")
        return Options(edges=edges, **{name: getattr(self, name) for name in names})

    def questions(
        self, explainer: Explainer, item: Any, target: int | None, contrast: int | None
    ) -> tuple[Any, list[Question]]:
        """Return an input and what is asked about it. A missing target text is generated."""
        return explainer.adapter.questions(
            item, Question(self.position, target, contrast), self.max_new_tokens, self.truncate
        )

    @property
    def main(self) -> int:
        """The index of the edges whose sinks are dropped, for all edges."""
        return self.edges.index("attention") if "attention" in self.edges else 0


def measure(
    explainer: Explainer,
    item: Any,
    plan: Plan,
    *,
    index: int,
    target: int | None,
    contrast: int | None = None,
    evidence: Any = None,
    frequencies: Mapping[str, int],
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Measure one input. The result depends only on the arguments.

    Each kind of edges takes one forward pass, for all methods and layers. The input is not batched
    with others, because padding changes the last digits, and a resumed run would then end with
    other numbers.

    For an encoder-decoder, every token of the target is explained, and the results are means over
    these tokens. A text counts once, however long its target is.

    Args:
        explainer: The model.
        item: The text; for an encoder-decoder the source, or a tuple of the source and its target;
            for a vision model the image.
        plan: What to measure.
        index: The input's index, part of the seed of the random baseline.
        target: The class or token that is explained. None means what the model predicts.
        contrast: The class or token that it is compared with. None means none.
        evidence: What the answer must come from, as in
            `attnflow.evaluate.evidence.evidence_spans`. None means that it is not known.
        frequencies: How often each token occurs.
        num_threads: How many threads compute flows. None means one for each CPU.

    Returns:
        A JSON-serialisable record: "tokens" (how many), "position", "target" and "prediction";
        "related", whether scores are divided by those of uniform attention by default; "layers";
        and nested lists with None for NaN. "correlations" has the axes edges, methods, receptive
        fields, sinks, references, special tokens and layers. "baselines" has the axes baselines,
        sinks, references and special tokens. With `plan.faithfulness`, "faithfulness" has the axes
        edges, methods, receptive fields, layers and measures, and "other_faithfulness" has
        references and baselines, and measures; likewise "evidence" and "other_evidence" if there is
        evidence.

    Raises:
        TextError: If the input cannot be measured; the message says why.
        AttnflowError: Whatever `Explainer.explain` and the references raise.
    """
    item, asked = plan.questions(explainer, item, target, contrast)
    for question in asked:
        check_preference(
            explainer,
            item,
            question,
            keep_wrong=plan.keep_wrong or evidence is None,
            truncate=plan.truncate,
        )
    scored = [
        explainer.layer_scores(
            item,
            asked,
            # Edges make no difference to a method that explains the answer.
            methods=[one for one in plan.methods if i == plan.main or one not in ANSWER_METHODS],
            receptive_fields=plan.receptive_field,
            num_threads=num_threads,
            **plan.options(edges),
        )
        for i, edges in enumerate(plan.edges)
    ]
    answers = []
    for place, question in enumerate(asked):
        seed = (plan.seed, index, place) if len(asked) > 1 else (plan.seed, index)
        found = [by_question[place] for by_question in scored]
        answers.append(_answer(explainer, item, question, found, plan, evidence, frequencies, seed))
    last = scored[plan.main][-1]
    several = explainer.adapter.asks_about_targets and plan.position == "auto"
    return {
        "text": index,
        "tokens": min(len(found[-1].tokens) for found in scored),
        "position": last.position,
        "target": item[1] if several else last.target,
        "contrast": None if contrast is None else explainer.adapter.label(contrast),
        "prediction": None if several else without_nan(last.prediction),
        "related": last.relative,
        "layers": [layer + 1 for layer in _layers(last, plan)],
        **{
            name: without_nan(defined_mean(np.stack([answer[name] for answer in answers])))
            for name in answers[0]
        },
    }


def _answer(
    explainer: Explainer,
    item: Any,
    question: Question,
    scored: list[LayerScores],
    plan: Plan,
    evidence: Any,
    frequencies: Mapping[str, int],
    seed: Sequence[int],
) -> dict[str, NDArray[np.float64]]:
    """Measure one question. `scored` has the scores for each kind of edges."""
    first = scored[plan.main]
    count = min(len(found.tokens) for found in scored)
    if count < 2:
        raise TextError("the position sees one token, and a rank correlation needs two")
    tokens = first.tokens.first(count)
    if evidence is not None:
        # What cannot be measured is found out before the references take their time.
        ranked = candidate_tokens(explainer, tokens)
        marked = evidence_tokens(tokens, evidence, ranked)
    asked = {"truncate": plan.truncate, "position": question.position, "target": question.target}
    contrast = {} if question.contrast is None else {"contrast": question.contrast}
    references = reference_values(explainer, item, plan, count, **asked, **contrast)
    layers = _layers(first, plan)

    def scores_of(found: LayerScores, method: str, field: str | bool) -> NDArray[np.float64]:
        source = first if method in ANSWER_METHODS else found
        relative = source.relative if field == "auto" else bool(field)
        return source.scores[method, relative][layers, :count]

    scores = np.array(
        [
            [
                [scores_of(found, method, field) for field in plan.receptive_field]
                for method in plan.methods
            ]
            for found in scored
        ]
    )
    guesses = every_baseline(
        plan.baselines, tokens.names, frequencies=frequencies, seed=seed, special=tokens.special
    )
    special = np.array(tokens.special)
    kept = np.isin(np.arange(count), first.sinks, invert=True)
    # Agreement is of sizes, for a token that speaks against the answer matters to it, too.
    answering = np.array([method in ANSWER_METHODS for method in plan.methods])
    sizes = np.where(answering[:, None, None, None], np.abs(scores), scores)
    answer = {
        # Layers last.
        "correlations": np.moveaxis(
            agreement(sizes, np.abs(references), special, kept, plan.drop_sink), 3, -1
        ),
        "baselines": agreement(guesses, np.abs(references), special, kept, plan.drop_sink),
    }
    if plan.faithfulness:
        others = np.concatenate([references, guesses])
        for name, order in (("faithfulness", scores), ("other_faithfulness", others)):
            answer[name] = _removed(explainer, item, plan, order, asked)
    if evidence is not None:
        names = [name for name, wanted in zip(tokens.names, ranked, strict=True) if wanted]
        guesses[:, ranked] = every_baseline(
            plan.baselines, names, frequencies=frequencies, seed=seed
        )
        if "random" in plan.baselines:
            # All are equal, which measures as the mean over all orders.
            guesses[plan.baselines.index("random")] = 1.0
        others = np.concatenate([references, guesses])
        for name, order in (("evidence", scores), ("other_evidence", others)):
            answer[name] = evidence_measures(order, marked, ranked)
    return answer


def _layers(scored: LayerScores, plan: Plan) -> list[int]:
    """Return the layers that are measured, from 0."""
    depth = len(next(iter(scored.scores.values())))
    return [resolve_layer(layer, depth) - 1 for layer in plan.layers or range(1, depth + 1)]


def reference_values(
    explainer: Explainer, item: Any, plan: Any, count: int, **options: Any
) -> NDArray[np.float64]:
    """Return the references of an input, of shape (R, count), with their signs if they have one.

    Args:
        explainer: The model.
        item: The input.
        plan: Anything with `references`, `replacement` and `batch_size`.
        count: How many tokens, from the first.
        **options: "target", "contrast", "position" and "truncate" of
            `attnflow.importance.importance`.

    Raises:
        AttnflowError: Whatever `attnflow.importance.importance` raises.
    """
    found = [
        importance(
            explainer,
            item,
            reference=name,
            replacement=plan.replacement if name == "blank_out" else "auto",
            batch_size=plan.batch_size,
            signed=True,
            **options,
        )[:count]
        for name in plan.references
    ]
    return np.array(found, dtype=np.float64).reshape(-1, count)


def _removed(
    explainer: Explainer,
    item: Any,
    plan: Plan,
    scores: NDArray[np.float64],
    asked: Mapping[str, Any],
) -> NDArray[np.float64]:
    """Measure what removing tokens in the order of scores (..., n) does, of shape (..., 5)."""
    if not scores.size:
        return np.empty((*scores.shape[:-1], len(Faithfulness._fields)))
    # Scores of an answer are the same in every layer.
    rows, places = np.unique(scores.reshape(-1, scores.shape[-1]), axis=0, return_inverse=True)
    found = faithfulness(
        explainer,
        [item] * len(rows),
        list(rows),
        removal=plan.removal,
        batch_size=plan.batch_size,
        **asked,
    )
    values = np.array(found, dtype=np.float64)
    # The log-odds of a certain prediction are infinite and have no mean.
    values[~np.isfinite(values)] = np.nan
    return values[places].reshape(*scores.shape[:-1], -1)


def agreement(
    scores: NDArray[np.float64],
    references: NDArray[np.float64],
    special: NDArray[np.bool_],
    kept: NDArray[np.bool_],
    drop_sink: tuple[bool, ...],
) -> NDArray[np.float64]:
    """Correlate scores with references, on all tokens and on some of them.

    Args:
        scores: Of shape (..., n).
        references: Of shape (R, n).
        special: Which tokens are special, of shape (n,).
        kept: Which tokens are not sinks, of shape (n,).
        drop_sink: For each of D columns whether sinks are left out.

    Returns:
        Spearman's rank correlations, of shape (..., D, R, 2). The last axis has all tokens first,
        then those that are not special.
    """
    result = np.empty((*scores.shape[:-1], len(drop_sink), len(references), 2))
    for i, drop in enumerate(drop_sink):
        for j, wanted in enumerate((np.ones_like(special), ~special)):
            chosen = wanted & kept if drop else wanted
            for k, reference in enumerate(references):
                result[..., i, k, j] = spearman(scores[..., chosen], reference[chosen])
    return result
