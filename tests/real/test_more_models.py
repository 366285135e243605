"""Trained models that are read by the exhaustive tests only."""

import numpy as np
import pytest
import torch

from attnflow import Explainer
from attnflow.capture import contribute

KEYS = "The keys to the cabinet"


def complete(explanation):
    size = np.abs(explanation.scores).sum()
    return abs(explanation.scores.sum() + explanation.bias - explanation.value) < 1e-4 * size


def test_a_tagger_corrects_a_verb_because_of_its_subject(tagger):
    explainer = Explainer(tagger.model, tagger.tokenizer)
    text = "He have a car."
    found = explainer.explain(text)
    assert found.task == "token-classification"
    assert found.target == "$REPLACE_has"
    assert [explainer.adapter.read(text).tokens.names[read.position] for read in found.reads] == [
        "have"
    ]
    assert complete(found)
    assert {name for name, _ in found.top(2)} == {"He", "have"}
    kept = explainer.explain(text, target="$REPLACE_has", contrast="$KEEP", check=True)
    logits = tagger.model(**tagger.tokenizer(text, return_tensors="pt")).logits[0, 2]
    index = explainer.adapter.target
    difference = logits[index("$REPLACE_has")] - logits[index("$KEEP")]
    assert kept.value == pytest.approx(float(difference.detach()), abs=1e-3)
    assert (kept.check.answer, kept.check.removed_answer) == ("$REPLACE_has", "$KEEP")


def test_gemma_reads_bos_and_is_explained_across_its_windows(gemma):
    explainer = Explainer.from_pretrained(gemma)
    found = explainer.explain(KEYS, target=" are", contrast=" is")
    assert found.tokens[0] == "<bos>"
    # Without BOS the model would prefer "is".
    assert found.value > 2
    assert complete(found)
    assert found.without_special_tokens().top(1)[0][0] == "keys"
    # Longer than a window of 512 tokens.
    long = explainer.explain("One two three four. " * 105 + KEYS, target=" are", contrast=" is")
    assert len(long.tokens) > 520
    assert complete(long)


def test_whisper_hears_and_reads_what_it_writes(whisper):
    torch.manual_seed(0)
    features = torch.randn(2, 80, 3000)
    ids = torch.tensor([[50257, 50362, 440], [50257, 50362, 1770]])
    inputs = {"input_features": features, "decoder_input_ids": ids}
    with torch.no_grad():
        best = whisper(**inputs).logits[:, -1].argmax(-1)
    found = contribute(
        whisper, inputs, lambda out: out.logits[:, -1].gather(1, best[:, None])[:, 0]
    )
    heard, written = found.scores
    assert (heard.shape, written.shape) == ((2, 1500), (2, 3))
    assert float(found.errors.max()) < 1e-5
