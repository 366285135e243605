"""Long texts and trained models: what is computed again is what is kept."""

import numpy as np
import pytest

from attnflow import trace
from attnflow.models import Explainer, memory
from tests.support import ROOT

TEXT = (ROOT / "benchmarks" / "text.txt").read_text(encoding="utf-8")


def both(explainer, text, monkeypatch, **options):
    """An explanation with attention or activations that are kept, and one where nothing is."""
    monkeypatch.setattr(memory, "SMALL", 2**34)
    kept = explainer.explain(text, **options)
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(trace, "MOST_WEIGHTS", 0)
    return kept, explainer.explain(text, **options)


@pytest.mark.parametrize("method", ["raw", "rollout", "contribution"])
def test_smollm_gives_the_same_scores_of_a_text(smollm, method, monkeypatch):
    kept, again = both(Explainer(*smollm[:2]), TEXT[:1000], monkeypatch, method=method)
    scale = abs(kept.scores).max()
    np.testing.assert_allclose(again.scores, kept.scores, rtol=0, atol=1e-5 * max(1.0, scale))
    assert again.notes == kept.notes
    if method == "contribution":
        assert again.scores.sum() + again.bias == pytest.approx(again.value, abs=1e-3)


@pytest.mark.parametrize("method", ["rollout", "contribution"])
def test_gemma_gives_the_same_scores_beyond_its_window(gemma, method, monkeypatch):
    # Most layers see 512 positions, three see all.
    kept, again = both(Explainer.from_pretrained(gemma), TEXT * 2, monkeypatch, method=method)
    assert len(kept.tokens) > 700
    scale = abs(kept.scores).max()
    np.testing.assert_allclose(again.scores, kept.scores, rtol=0, atol=2e-5 * max(1.0, scale))


def test_a_long_answer_is_explained_as_a_whole(smollm, monkeypatch):
    monkeypatch.setattr("attnflow.models.explainer.MOST_EXPLAINED", 0)
    explainer = Explainer(*smollm[:2])
    found = explainer.generate(TEXT[:2000], max_new_tokens=8)
    assert len(found) == 0
    every = explainer.generate(TEXT[:2000], max_new_tokens=8, each=True)
    assert len(every) == 8
    assert found.whole.value == pytest.approx(sum(one.value for one in every), rel=1e-4)
    np.testing.assert_allclose(found.whole.scores, np.nansum(every.matrix, axis=0), atol=2e-3)
