r"""Evidence: data that marks the words an answer must come from, and whether scores find them.

After "A niece of most senators" comes "hasn't" and not "haven't", because of "niece": the evidence.
It is given as a word or phrase of the text, or as spans of characters. All tokens that a position
sees are ranked by their scores, but for special tokens, and but for the first position of a causal
language model that reads no BOS token: that is its attention sink.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import TextError
from attnflow.importance.reading import read
from attnflow.models import Explainer
from attnflow.models.adapter import Question
from attnflow.models.answers import ask
from attnflow.tokens import Span, Tokens

PREFERS_OTHER: Final = "the model prefers the bad answer"
SAME_TOKEN: Final = "the good and the bad answer begin with the same token"
NO_DIFFERENCE: Final = "the contrast is what the model predicts"
NOT_IN_TEXT: Final = "the evidence is not in the text"
NOT_SEEN: Final = "the evidence is not among the tokens that the position sees"
ONLY_FIRST: Final = "the evidence is only at the first position"

LEFT_OUT: Final = (
    PREFERS_OTHER,
    SAME_TOKEN,
    NO_DIFFERENCE,
    NOT_IN_TEXT,
    NOT_SEEN,
    ONLY_FIRST,
)
"""Why texts are left out whose answers or evidence show nothing. A report counts them."""

_SPANS: Final = re.compile(r"\s*\d+\s*-\s*\d+\s*(,\s*\d+\s*-\s*\d+\s*)*")


# ---- Measures ------------------------------------------------------------------------------------


def evidence_measures(
    scores: Any, evidence: NDArray[np.bool_], candidates: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Measure how far up scores rank the evidence.

    Equal scores are in no order. The first two measures are means over all orders of them, so that
    scores which are all equal measure as a random order does.

    Args:
        scores: Of shape (..., n). The higher, the more the answer came from the token.
        evidence: Which tokens are evidence, of shape (n,).
        candidates: Which tokens are ranked, of shape (n,). At least one is evidence.

    Returns:
        Of shape (..., 3): the reciprocal rank of the best-ranked evidence token, whose mean over
        texts is the MRR; the pointing game, whether a token of the evidence ranks first; and the
        mass, the sum of the positive scores of the evidence as a share of those of all candidates.
        NaN if a score is NaN; the mass also if no score is positive.

    Example:
        >>> evidence = np.array([False, True, False, False])
        >>> evidence_measures([3.0, 2.0, -1.0, 0.0], evidence, np.full(4, True))
        array([0.5, 0. , 0.4])
        >>> evidence_measures([0.0, 0.0, 0.0, 0.0], evidence, np.full(4, True)).round(4)
        array([0.5208, 0.25  ,    nan])
    """
    values = np.asarray(scores, dtype=np.float64)[..., candidates]
    marked = evidence[candidates]
    rows = [_measured(row, marked) for row in values.reshape(-1, values.shape[-1])]
    return np.array(rows, dtype=np.float64).reshape(*values.shape[:-1], 3)


def _measured(scores: NDArray[np.float64], evidence: NDArray[np.bool_]) -> tuple[float, ...]:
    if np.isnan(scores).any():
        return np.nan, np.nan, np.nan
    best = scores[evidence].max()
    tied = scores == best
    reciprocal = expected_reciprocal_rank(
        int((scores > best).sum()), int(tied.sum()), int((tied & evidence).sum())
    )
    top = scores == scores.max()
    positive = np.maximum(scores, 0.0)
    total = positive.sum()
    mass = positive[evidence].sum() / total if total > 0 else np.nan
    return reciprocal, (top & evidence).sum() / top.sum(), mass


def expected_reciprocal_rank(above: int, tied: int, marked: int) -> float:
    """Return the mean reciprocal rank of the first marked token, over all orders of equal scores.

    The first of k marked tokens among t that are tied comes j-th with probability
    C(t - j, k - 1) / C(t, k).

    Args:
        above: How many tokens have a higher score.
        tied: How many have the same score, t; the marked ones are among them.
        marked: How many of these are marked, k; at least 1.

    Example:
        >>> expected_reciprocal_rank(0, 1, 1), expected_reciprocal_rank(0, 2, 1)
        (1.0, 0.75)
    """
    chance, total = marked / tied, 0.0
    for place in range(1, tied - marked + 2):
        total += chance / (above + place)
        chance *= (tied - place - marked + 1) / (tied - place) if place < tied else 0.0
    return total


# ---- Tokens --------------------------------------------------------------------------------------


def candidate_tokens(explainer: Explainer, tokens: Tokens) -> NDArray[np.bool_]:
    """Return which tokens are ranked, of shape (n,).

    Args:
        explainer: The model.
        tokens: The tokens that a position sees.
    """
    candidates = ~np.array(tokens.special)
    adapter = explainer.adapter
    if adapter.writes and not adapter.asks_about_targets:
        candidates[0] = False
    return candidates


def evidence_tokens(
    tokens: Tokens, evidence: Any, candidates: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which tokens are evidence, of shape (n,): those that share a character with it.

    Args:
        tokens: The tokens that a position sees.
        evidence: As in `evidence_spans`.
        candidates: Which tokens are ranked.

    Raises:
        TextError: If the evidence is not in the text, or none of it is a candidate.
    """
    spans = evidence_spans(evidence, tokens.text)
    found = np.zeros(len(tokens), dtype=np.bool_)
    for index, span in enumerate(tokens.spans):
        if span is not None:
            piece = tokens.text[slice(*span)]
            # A token may begin with the space before a word.
            start = span[0] + len(piece) - len(piece.lstrip())
            end = start + len(piece.strip())
            found[index] = any(max(start, first) < min(end, last) for first, last in spans)
    if not found.any():
        raise TextError(NOT_SEEN)
    if not (found & candidates).any():
        raise TextError(ONLY_FIRST if found[0] else NOT_SEEN)
    return found


def evidence_spans(evidence: Any, text: str) -> list[Span]:
    """Return the spans of a text that are evidence.

    Args:
        evidence: A word or phrase of the text: every place at which it stands as whole words is
            evidence. Or spans of characters, counted from 0, without their end: "2-7", "2-7,10-14",
            or a list of pairs. What looks like spans is not taken for a word.
        text: The text.

    Raises:
        TextError: If it is neither, or is not in the text.

    Example:
        >>> evidence_spans("niece", "A niece of most nieces")
        [(2, 7)]
        >>> evidence_spans("2-7, 16-22", "A niece of most nieces")
        [(2, 7), (16, 22)]
        >>> evidence_spans([[2, 7]], "A niece of most nieces")
        [(2, 7)]
    """
    if isinstance(evidence, str) and not _SPANS.fullmatch(evidence):
        word = evidence.strip()
        if not word:
            raise TextError(NOT_IN_TEXT)
        found = re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)
        spans = [match.span() for match in found]
        if not spans:
            raise TextError(NOT_IN_TEXT)
        return spans
    if isinstance(evidence, str):
        evidence = [part.split("-") for part in evidence.split(",")]
    try:
        pairs = [(int(start), int(end)) for start, end in evidence]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        raise TextError(
            f"the evidence is {evidence!r}; expected a word, spans such as 2-7, or a list of pairs"
        )
    for start, end in pairs:
        if not 0 <= start < end <= len(text):
            raise TextError(
                f"the evidence is at {start}-{end}, but the text has {len(text)} characters"
            )
    return pairs


# ---- Answers -------------------------------------------------------------------------------------


def first_token(explainer: Explainer, item: Any, answer: str) -> int:
    """Return the token that a language model has to predict first to answer with a word.

    A space is put before the word, unless the text ends in white space, or the tokenizer would
    make a token of that space alone. A word of several tokens is represented by its first.

    Args:
        explainer: The model.
        item: The input that the answer follows. For a masked language model the answer takes the
            place of the mask.
        answer: The word.

    Raises:
        TextError: If the tokenizer finds no token in the answer.
    """
    adapter = explainer.adapter
    mask = getattr(explainer.tokenizer, "mask_token", None)
    text = item if isinstance(item, str) else ""
    if adapter.reads_pairs and not text and mask:
        text = next((part for part in item if mask in part), "")
    before, masked, _ = text.partition(mask) if mask else (text, "", "")
    # A mask stands for a word with the space before it.
    apart = before[-1:].isspace() if masked else bool(text) and not text[-1:].isspace()
    spaced = f" {answer}" if apart and not answer[:1].isspace() else answer
    ids = adapter.token_ids(spaced, "target")
    if adapter.writes and text:
        ids = _following(explainer, text, spaced) or ids
    if ids and not explainer.tokenizer.decode(ids[:1]).strip():
        ids = adapter.token_ids(answer.lstrip(), "target")
    if not ids:
        raise TextError(f"the tokenizer finds no token in the answer {answer!r}")
    return int(ids[0])


def _following(explainer: Explainer, text: str, answer: str) -> list[int]:
    """Return the tokens of an answer after a text; none if the text's own tokens would change."""
    alone, both = (
        explainer.adapter.token_ids(part, "target") for part in (text, f"{text}{answer}")
    )
    return both[len(alone) :] if alone and both[: len(alone)] == alone else []


def check_preference(
    explainer: Explainer, item: Any, question: Question, *, keep_wrong: bool, truncate: bool
) -> None:
    """See that a model prefers the answer explained to the one that it is compared with.

    Without a contrast, a class is compared with what the model predicts.

    Args:
        explainer: The model.
        item: The input.
        question: What is asked, in indices.
        keep_wrong: Whether the model may prefer the other answer.
        truncate: As in `Explainer.explain`.

    Raises:
        TextError: If it does not, or both answers are the same.
    """
    target, contrast = question.target, question.contrast
    if contrast is None and (target is None or not explainer.adapter.has_classes):
        return
    if keep_wrong and target is not None:
        return
    readings, _ = read(
        explainer,
        [item],
        target=target,
        contrast=None if target is None else contrast,
        position=question.position,
        truncate=truncate,
    )
    [answer] = ask(explainer, readings, 1)
    if target is None and answer.predicted == contrast:
        raise TextError(NO_DIFFERENCE)
    if target is not None and (
        answer.value <= 0 if contrast is not None else answer.predicted != target
    ):
        raise TextError(PREFERS_OTHER)


def tally(measured: int, reasons: Sequence[str]) -> dict[str, int]:
    """Count the texts that were given, measured, and left out for each reason of `LEFT_OUT`.

    Args:
        measured: How many were measured.
        reasons: Why the others were not.

    Returns:
        "texts", "measured", the reasons that occur, and "other reasons".

    Example:
        >>> tally(2, [PREFERS_OTHER, "the text is empty", PREFERS_OTHER])
        {'texts': 5, 'measured': 2, 'the model prefers the bad answer': 2, 'other reasons': 1}
    """
    counts = {reason: reasons.count(reason) for reason in LEFT_OUT if reason in reasons}
    other = len(reasons) - sum(counts.values())
    if other:
        counts["other reasons"] = other
    return {"texts": measured + len(reasons), "measured": measured, **counts}
