"""Audio classifiers: which stretch of a sound an answer came from, on tiny models."""

import json

import numpy as np
import pytest
import torch
import transformers

from attnflow.capture import capture, contribute
from attnflow.cli import main
from attnflow.errors import ModelError, OptionError, TextError
from attnflow.importance import blank_out
from attnflow.models import Explainer
from tests.models.test_sound import RATE, noise, write_wave

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
}
# As real ones have it, a position is 320 samples: 0.02 seconds.
WAVES = {
    **SMALL,
    "conv_dim": (8, 8, 8),
    "conv_stride": (8, 8, 5),
    "conv_kernel": (10, 8, 5),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "vocab_size": 12,
}


def made(name, config):
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    return model


def waves(name="Wav2Vec2ForSequenceClassification", kind="Wav2Vec2Config", **changes):
    config = getattr(transformers, kind)(**{**WAVES, **changes})
    return Explainer(made(name, config), transformers.Wav2Vec2FeatureExtractor())


def spectrogram(name="ASTForAudioClassification"):
    config = transformers.ASTConfig(**SMALL, num_mel_bins=36, max_length=106)
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=36, max_length=106)
    return Explainer(made(name, config), extractor)


@pytest.fixture(scope="module")
def wav2vec2():
    return waves()


@pytest.fixture(scope="module")
def ast():
    return spectrogram()


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert"])
def test_contributions_of_stretches_add_up_and_are_the_sums_of_their_positions(family):
    explainer = waves(f"{family}ForSequenceClassification", f"{family}Config")
    sound = noise(0.5)
    explanation = explainer.explain(sound, target=1)
    assert explanation.method == "contribution"
    assert explanation.tokens == (
        "0.00-0.10 s",
        "0.10-0.20 s",
        "0.20-0.30 s",
        "0.30-0.40 s",
        "0.40-0.48 s",
    )
    assert explanation.scores.sum() + explanation.bias == pytest.approx(explanation.value, abs=1e-5)
    inputs = explainer.tokenizer(sound, sampling_rate=RATE, return_tensors="pt")
    given = {"input_values": inputs["input_values"]}
    found = contribute(
        explainer.model,
        given,
        lambda outputs: outputs.logits[:, 1] - outputs.logits[:, [0, 2]].mean(1),
    )
    positions = found.scores[0][0].numpy()
    expected = [positions[start : start + 5].sum() for start in range(0, 24, 5)]
    np.testing.assert_allclose(explanation.scores, expected, atol=1e-6)
    assert explanation.notes == ()


def test_a_spectrograms_patches_of_one_time_are_one_stretch(ast):
    sound = noise(0.55)
    explanation = ast.explain(sound, target=1)
    assert explanation.tokens[:3] == ("[CLS]", "[DIST]", "0.00-0.10 s")
    assert explanation.tokens[-1] == "[silence 0.60-1.00 s]"
    assert explanation.special == (True, True, *[False] * 6, True)
    assert explanation.scores.sum() + explanation.bias == pytest.approx(explanation.value, abs=1e-5)
    given = ast.tokenizer(sound, sampling_rate=RATE, return_tensors="pt")
    found = contribute(
        ast.model,
        dict(given),
        lambda outputs: outputs.logits[:, 1] - outputs.logits[:, [0, 2]].mean(1),
    )
    # Three rows of frequencies, of ten times each.
    patches = found.scores[0][0, 2:].numpy().reshape(3, 10).sum(0)
    np.testing.assert_allclose(explanation.scores[2:8], patches[:6], atol=1e-6)


def test_attention_is_that_of_the_model_with_the_positions_of_a_stretch_added_up(ast, wav2vec2):
    sound = noise(0.4)
    for explainer, place, name in ((wav2vec2, 12, 2), (ast, 0, "cls")):
        explanation = explainer.explain(sound, method="raw", layer=1, position=name)
        given = explainer.tokenizer(sound, sampling_rate=RATE, return_tensors="pt")
        row = capture(explainer.model, dict(given)).layers[0][0, place].numpy()
        if explainer is ast:
            patches = row[2:].reshape(3, 10).sum(0)
            expected = [*row[:2], *patches[:4], patches[4:].sum()]
        else:
            expected = [row[start : start + 5].sum() for start in range(0, len(row), 5)]
        np.testing.assert_allclose(explanation.scores, expected, atol=1e-6)
        assert np.isfinite(explainer.explain(sound, method="flow").scores).all()


def test_sounds_together_give_what_each_gives_alone(ast, wav2vec2):
    sounds = [noise(0.3, 1), noise(0.5, 2), noise(0.3, 3)]
    for explainer in (ast, wav2vec2):
        for method in ("contribution", "rollout"):
            many = explainer.explain(sounds, method=method)
            for sound, together in zip(sounds, many, strict=True):
                alone = explainer.explain(sound, method=method)
                assert alone.tokens == together.tokens
                np.testing.assert_allclose(alone.scores, together.scores, atol=1e-5)


def test_silence_replaces_a_stretch_and_nothing_else(ast, wav2vec2):
    sound = noise(0.5)
    for explainer in (ast, wav2vec2):
        adapter = explainer.adapter
        encoded = adapter.read(sound)
        stretch = encoded.tokens.names.index("0.20-0.30 s")
        [reading] = adapter.readings([encoded], [question()], False)
        changed = adapter.replaced(reading, [stretch], adapter.fill("auto"))
        before, after = (one.inputs["input_values"] for one in (reading, changed))
        differs = (before != after).reshape(len(before), -1).any(1).nonzero()[:, 0] / len(before)
        length = 1.06 if explainer is ast else 0.5
        assert float(differs.min()) * length >= 0.19
        assert float(differs.max()) * length < 0.3
        effects = blank_out(explainer, sound)
        assert (effects[[not flag for flag in encoded.tokens.special]] > 0).all()
        assert explainer.explain(sound, check=True).check is not None


def question():
    from attnflow.models.adapter import Question

    return Question("auto", None)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("Wav2Vec2Model", waves),
        ("Wav2Vec2ForCTC", waves),
        ("ASTModel", spectrogram),
    ],
)
def test_a_model_without_a_classifier_is_an_encoder(name, make):
    explainer = make(name)
    assert explainer.task == "audio-encoder"
    explanation = explainer.explain(noise(0.3))
    assert explanation.method == "rollout"
    assert explanation.scores.sum() == pytest.approx(1)
    with pytest.raises(OptionError, match="contribution"):
        explainer.explain(noise(0.3), method="contribution")


def test_wrong_sounds_are_refused(ast, wav2vec2):
    with pytest.raises(TextError, match="5 samples"):
        wav2vec2.explain(np.zeros(5, dtype=np.float32))
    with pytest.raises(TextError, match="32000 samples"):
        ast.explain(noise(2))
    assert len(ast.explain(noise(2), truncate=True).tokens) > 10
    with pytest.raises(TextError, match="8000 samples a second"):
        wav2vec2.explain({"array": noise(0.3), "sampling_rate": 8000})
    with pytest.raises(OptionError, match="position is 'mask'"):
        wav2vec2.explain(noise(0.3), position="mask")
    with pytest.raises(OptionError, match="units is 'words'"):
        wav2vec2.explain(noise(0.3), units="words")
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=36, max_length=64)
    with pytest.raises(ModelError, match="106 frames"):
        Explainer(ast.model, extractor)


def test_a_saved_classifier_is_loaded_and_explained_from_a_file(tmp_path, wav2vec2, capsys):
    wav2vec2.model.save_pretrained(tmp_path / "model")
    wav2vec2.tokenizer.save_pretrained(tmp_path / "model")
    sound = noise(0.3)
    write_wave(tmp_path / "sound.wav", sound)
    loaded = Explainer.from_pretrained(tmp_path / "model")
    assert loaded.task == "audio-classification"
    arguments = ["explain", "--model", str(tmp_path / "model"), "--json"]
    assert main([*arguments, str(tmp_path / "sound.wav")]) == 0
    printed = json.loads(capsys.readouterr().out)
    explained = loaded.explain(str(tmp_path / "sound.wav"))
    np.testing.assert_allclose(printed["scores"], explained.scores, atol=1e-6)
    with pytest.raises(OptionError, match="task is 'masked-lm'"):
        Explainer.from_pretrained(tmp_path / "model", task="masked-lm")
