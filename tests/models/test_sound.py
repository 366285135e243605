"""Whisper: sound in, an explanation of the text that is written out, on tiny models."""

import copy
import io
import json
import wave

import numpy as np
import pytest
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

import attnflow
from attnflow.capture import capture_pair
from attnflow.cli import main
from attnflow.graph import UNIT, encoder_decoder_graph
from attnflow.models import Explainer
from attnflow.models.sound import Listener, stretches
from tests.support.arcs import flow_of_ortools, layered_arcs

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "a"), ("ca", "t"), ("Ġ", "cat")]
SPECIAL = ["startoftranscript", "en", "zh", "de", "translate", "transcribe", "notimestamps"]
RATE = 16_000
TEXT = " the cat"


def tokenizer(**options):
    """Letters and two words, and the special tokens of Whisper with three languages."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    for first, second in MERGES:
        vocabulary[first + second] = len(vocabulary)
    vocabulary["<|endoftext|>"] = len(vocabulary)
    made = transformers.WhisperTokenizer(
        vocab=vocabulary,
        merges=MERGES,
        pad_token="<|endoftext|>",
        extra_special_tokens=[f"<|{name}|>" for name in SPECIAL],
        **options,
    )
    made.set_prefix_tokens()
    return made


def processor(seconds=1, **options):
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=seconds)
    return transformers.WhisperProcessor(extractor, tokenizer(**options))


def whisper(seconds=1, **changes):
    """A model that hears some seconds, at 50 positions a second."""
    words = tokenizer()
    end = words.eos_token_id
    config = transformers.WhisperConfig(
        **{
            "vocab_size": len(words),
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
            "num_mel_bins": 8,
            "max_source_positions": 50 * seconds,
            "max_target_positions": 24,
            "pad_token_id": end,
            "bos_token_id": end,
            "eos_token_id": end,
            "decoder_start_token_id": end + 1,
            **changes,
        }
    )
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    return model


def multilingual(model):
    """Let a model know its languages, as the generation_config of a real one does."""
    model = copy.deepcopy(model)
    words, config = tokenizer(), model.generation_config
    config.lang_to_id = {f"<|{x}|>": words.convert_tokens_to_ids(f"<|{x}|>") for x in SPECIAL[1:4]}
    config.task_to_id = {x: words.convert_tokens_to_ids(f"<|{x}|>") for x in SPECIAL[4:6]}
    config.no_timestamps_token_id = words.convert_tokens_to_ids("<|notimestamps|>")
    return model


def noise(seconds, seed=0):
    samples = np.random.default_rng(seed).normal(size=round(seconds * RATE)) * 0.1
    return np.clip(samples, -1, 1).astype(np.float32)


@pytest.fixture(scope="module")
def explainer():
    return Explainer(whisper(), processor())


def model_inputs(explainer, sound, target):
    """What the model is given: features of the processor's, and the ids of the target."""
    read = explainer.tokenizer(audio=sound, sampling_rate=RATE, return_tensors="pt")
    said = explainer.tokenizer.tokenizer(target)["input_ids"][:-1]
    return {
        "input_features": read["input_features"],
        "decoder_input_ids": torch.tensor([said]),
    }


def added_up(scores, sizes):
    """Scores of positions, added up to those of stretches and of single target tokens."""
    ends = np.cumsum([*sizes, *[1] * (scores.shape[-1] - sum(sizes))])
    return np.stack([scores[..., a:b].sum(-1) for a, b in zip([0, *ends], ends, strict=False)], -1)


# ---- Explanations --------------------------------------------------------------------------------


def test_the_task_is_recognised_and_source_tokens_are_stretches_of_time(explainer):
    assert explainer.task == "speech-to-text"
    explanation = explainer.explain((noise(0.57), TEXT), method="rollout")
    assert explanation.tokens == (
        *("0.00-0.10 s", "0.10-0.20 s", "0.20-0.30 s", "0.30-0.40 s", "0.40-0.50 s"),
        *("0.50-0.58 s", "[silence 0.58-1.00 s]"),
        *("<|startoftranscript|>", "<|notimestamps|>", "the", "cat"),
    )
    assert explanation.special == (*[False] * 6, *[True] * 3, False, False)
    assert explanation.text == TEXT
    assert explanation.task == "speech-to-text"
    assert explanation.options["source_tokens"] == 7
    assert explanation.position == 10
    assert explanation.scores.sum() == pytest.approx(1)
    plain = explainer.explain((noise(0.57), TEXT), method="rollout", special_tokens=False)
    assert plain.tokens == (*explanation.tokens[:6], "the", "cat")


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
def test_scores_are_those_of_the_models_own_attention(explainer, method):
    sound = noise(0.57)
    explanation = explainer.explain((sound, TEXT), method=method)
    model = copy.deepcopy(explainer.model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(
            **model_inputs(explainer, sound, TEXT), output_attentions=True, use_cache=False
        )
    graph = encoder_decoder_graph(
        outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions
    )
    if method == "raw":
        raw = attnflow.raw_attention(graph)[:, 53]
        expected = (raw[[2, 4, 6]] + raw[[3, 5, 7]]) / 2
    elif method == "rollout":
        expected = attnflow.attention_rollout(graph)[[3, 5, 7], 53]
    else:
        expected = attnflow.attention_flow(graph, positions=[53])[[3, 5, 7], 0]
    sizes = [5, 5, 5, 5, 5, 4, 21]
    np.testing.assert_allclose(explanation.layer_scores, added_up(expected, sizes), atol=1e-5)
    logits = outputs.logits[0, -1]
    assert explanation.prediction.index == int(logits.argmax())
    assert explanation.prediction.probability == pytest.approx(float(logits.softmax(0).max()), 1e-4)


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
@pytest.mark.parametrize("edges", ["gradient", "effective", "value_norm"])
def test_other_edges_are_had_with_every_method(explainer, edges, method):
    sound = noise(0.57)
    explanation = explainer.explain((sound, TEXT), method=method, edges=edges)
    options = (
        {"score": lambda outputs: outputs.logits[:, -1].max(-1).values}
        if edges == "gradient"
        else {"edges": edges}
    )
    captured = capture_pair(explainer.model, model_inputs(explainer, sound, TEXT), **options)
    encoder, decoder, cross = ([layer[0].double().numpy() for layer in x] for x in captured[:3])
    residual = np.full((8, 54), 0.5)
    if edges == "value_norm":
        residual[:2, :50] = [share[0] for share in captured.residuals[0]]
        residual[2::2, 50:] = [share[0] for share in captured.residuals[1]]
        residual[3::2, 50:] = [share[0] for share in captured.residuals[2]]
    if edges == "gradient":

        def normal(rows, alone):
            sums = rows.sum(-1, keepdims=True)
            return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), alone)

        encoder = [normal(rows, np.eye(50)) for rows in encoder]
        decoder = [normal(rows, np.eye(4)) for rows in decoder]
        cross = [normal(rows, 0.0) for rows in cross]
    graph = encoder_decoder_graph(encoder, decoder, cross, residual=residual, allow_empty=True)
    if method == "raw":
        raw = attnflow.raw_attention(graph)[-2:, 53]
        expected = raw.mean(0)
    elif method == "rollout":
        expected = attnflow.attention_rollout(graph)[-1, 53]
    else:
        arcs = layered_arcs(graph, 8)
        expected = [flow_of_ortools(arcs, (8, 53), (0, token)) * UNIT for token in range(54)]
    sizes = [5, 5, 5, 5, 5, 4, 21]
    np.testing.assert_allclose(explanation.scores, added_up(np.array(expected), sizes), atol=1e-4)
    plain = explainer.explain((sound, TEXT), method=method)
    assert np.abs(plain.layer_scores - explanation.layer_scores).max() > 1e-3


def test_contributions_of_stretches_and_text_add_up(explainer):
    explained = explainer.explain((noise(0.5), "a"))
    assert explained.method == "contribution"
    assert len(explained.scores) == len(explained.tokens)
    size = np.abs(explained.scores).sum()
    assert abs(explained.scores.sum() + explained.bias - explained.value) < 1e-4 * size
    with pytest.raises(attnflow.ModelError, match="reads sound"):
        explainer.explain(noise(0.5), check=True)


def test_where_attention_has_no_preference_the_receptive_field_leaves_none():
    model = whisper()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    even = Explainer(model, processor())
    for method in ("rollout", "flow"):
        explanation = even.explain((noise(0.57), TEXT), method=method, receptive_field=True)
        np.testing.assert_allclose(explanation.layer_scores, 1 / 11, rtol=1e-5)


def test_many_sounds_equal_themselves_alone(explainer):
    inputs = [(noise(0.3), TEXT), noise(1.0, seed=1), (noise(0.8, seed=2), " the")]
    passes = []
    handle = explainer.model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        several = explainer.explain(inputs, method="rollout")
    finally:
        handle.remove()
    assert len(passes) == 1
    for item, together in zip(inputs, several, strict=True):
        alone = explainer.explain(item, method="rollout")
        assert together.tokens == alone.tokens
        np.testing.assert_allclose(together.layer_scores, alone.layer_scores, atol=1e-5)


def test_sounds_are_prepared_as_they_run_and_not_all_at_once(explainer, monkeypatch):
    monkeypatch.setattr("attnflow.models.adapter.BATCH_POSITIONS", 110)
    prepared = []
    own = Listener.features
    monkeypatch.setattr(
        Listener, "features", lambda self, samples: prepared.append(1) or own(self, samples)
    )
    sounds = [noise(0.2, seed) for seed in range(6)]
    results = explainer.explain_each(sounds, method="raw")
    next(results)
    assert len(prepared) == 2
    assert len(list(results)) == 5


def test_every_token_written_is_explained_as_if_asked_for_alone(explainer):
    steps = explainer.generate(noise(0.57), max_new_tokens=4, method="rollout")
    ids = explainer.tokenizer.tokenizer(" ")["input_ids"][:-2]
    for step in steps:
        inputs = model_inputs(explainer, noise(0.57), "")
        inputs["decoder_input_ids"] = torch.tensor([ids])
        captured = capture_pair(explainer.model, inputs)
        graph = encoder_decoder_graph(*([layer[0] for layer in x] for x in captured[:3]))
        expected = attnflow.attention_rollout(graph)[-1, -1]
        np.testing.assert_allclose(
            step.scores, added_up(expected, [5, 5, 5, 5, 5, 4, 21]), atol=1e-5
        )
        token = int(captured.outputs.logits[0, -1].argmax())
        assert step.target == step.prediction.label
        assert step.prediction.index == token
        ids.append(token)
    assert len(steps) == 4


def test_the_whole_text_heard_is_the_sum_over_its_tokens(explainer):
    generation = explainer.generate(noise(0.57), max_new_tokens=4)
    whole = generation.whole
    assert generation.prompt == ""
    assert "".join(step.target for step in generation) == generation.text
    np.testing.assert_allclose(np.nansum(generation.matrix, axis=0), whole.scores, atol=1e-4)
    assert whole.scores.sum() + whole.bias == pytest.approx(whole.value, abs=1e-4)
    assert generation.top(1)[0][0].endswith(" s")
    generation.show(io.StringIO())
    assert "0.10-0.20 s" in generation.to_html()


def test_words_are_those_of_the_text_and_stretches_stay(explainer):
    parts = explainer.explain((noise(0.15), " the thecat"), method="rollout")
    words = explainer.explain((noise(0.15), " the thecat"), method="rollout", units="words")
    assert words.tokens == (*parts.tokens[:5], "the", "thecat")
    assert words.scores[-1] == pytest.approx(parts.scores[6:].sum())


def test_the_silence_that_was_added_is_a_sink_like_any_other(explainer):
    quiet = explainer.explain(noise(0.1), method="rollout")
    assert quiet.notes[0].startswith("Token 1, '[silence 0.10-1.00 s]'")
    left = explainer.explain(noise(0.1), method="rollout", drop_sink=True)
    assert left.tokens == ("0.00-0.10 s", "<|notimestamps|>")
    assert "'<|startoftranscript|>'" in left.notes[-1]
    assert "'[silence 0.10-1.00 s]'" in left.notes[-1]


# ---- Languages -----------------------------------------------------------------------------------


def test_the_language_is_the_one_that_the_model_hears(explainer):
    model = multilingual(explainer.model)
    features = model_inputs(explainer, noise(0.4), "")["input_features"]
    start = torch.tensor([[model.config.decoder_start_token_id]])
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=start).logits[0, -1]
    ids = list(model.generation_config.lang_to_id.values())
    heard = list(model.generation_config.lang_to_id)[int(logits[ids].argmax())]
    explanation = Explainer(model, processor()).explain((noise(0.4), TEXT), method="rollout")
    expected = ("<|startoftranscript|>", heard, "<|transcribe|>", "<|notimestamps|>", "the", "cat")
    assert explanation.tokens[5:] == expected
    written = Explainer(model, processor()).generate(noise(0.4), max_new_tokens=2, method="rollout")
    assert written[0].tokens == explanation.tokens[:-2]


def test_a_language_that_is_given_is_taken(explainer):
    model = multilingual(explainer.model)
    told = Explainer(model, processor(language="german", task="translate"))
    tokens = told.explain(noise(0.4), method="rollout").tokens[5:]
    assert tokens == ("<|startoftranscript|>", "<|de|>", "<|translate|>", "<|notimestamps|>")
    model.generation_config.language = "zh"
    tokens = Explainer(model, processor()).explain(noise(0.4), method="rollout").tokens[5:]
    assert tokens == ("<|startoftranscript|>", "<|zh|>", "<|transcribe|>", "<|notimestamps|>")
    model.generation_config.language = "klingon"
    with pytest.raises(attnflow.ModelError, match=r"language.*'klingon'"):
        Explainer(model, processor()).explain(noise(0.4))


# ---- Sounds --------------------------------------------------------------------------------------


def test_positions_are_put_together_to_tenths_of_a_second():
    tokens, sizes = stretches(1500, 1500, 0.02)
    names, special = tokens.names, tokens.special
    assert (len(names), set(sizes), any(special)) == (300, {5}, False)
    assert (names[0], names[-1]) == ("0.00-0.10 s", "29.90-30.00 s")
    # Positions that are longer than that stay as they are.
    assert stretches(3, 2, 0.25)[0].names == (
        *("0.00-0.25 s", "0.25-0.50 s"),
        "[silence 0.50-0.75 s]",
    )


def write_wave(path, samples, *, width=2, channels=1, rate=RATE):
    """Write samples from -1 to 1, of shape (n,) or (n, channels), as whole numbers."""
    numbers = np.rint(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64).reshape(-1)
    if width == 1:
        numbers = numbers + 128
    data = b"".join(int(x).to_bytes(width, "little", signed=width > 1) for x in numbers)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_wave_file_is_read_whatever_its_width(explainer, tmp_path, width):
    write_wave(tmp_path / "sound.wav", noise(0.05), width=width)
    listener = Listener(None, RATE, RATE, 50)
    samples = listener.read(tmp_path / "sound.wav")
    np.testing.assert_allclose(samples, noise(0.05), atol=2.0 ** (1 - 8 * width) + 1e-7)


def test_the_channels_of_a_wave_file_are_averaged(tmp_path):
    left, right = noise(0.05), noise(0.05, seed=1)
    write_wave(tmp_path / "sound.wav", np.stack([left, right], axis=1), channels=2)
    samples = Listener(None, RATE, RATE, 50).read(str(tmp_path / "sound.wav"))
    np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-4)


def test_a_sound_may_come_as_array_tensor_mapping_or_file(explainer, tmp_path):
    sound = np.rint(noise(0.3) * 32767) / 32767
    write_wave(tmp_path / "sound.wav", sound)
    expected = explainer.explain(sound, method="rollout").scores
    forms = [
        torch.from_numpy(sound),
        {"array": sound, "sampling_rate": RATE},
        str(tmp_path / "sound.wav"),
        tmp_path / "sound.wav",
    ]
    for form in forms:
        np.testing.assert_allclose(
            explainer.explain(form, method="rollout").scores, expected, atol=1e-3
        )


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros(0), "sound.*empty"),
        (np.zeros((2, 100)), r"\(2, 100\).*channel"),
        (np.zeros(100, dtype=np.int16), "int16"),
        (np.array([0.0, np.nan]), "NaN"),
        (3.5, r"sound.*\bfloat\b"),
        ([0.1, 0.2], r"sound.*\bfloat\b"),
        ([], "inputs.*empty"),
        ((np.zeros(100), 3), r"\btuple\b"),
        (np.zeros(RATE + 1), "16001 samples.*16000"),
        ({"array": np.zeros(100)}, "array.*sampling_rate"),
        ({"array": np.zeros(9), "sampling_rate": 44_100}, "44100"),
        ("no-such.wav", r"no-such\.wav"),
        (__file__, r"test_sound\.py.*\.wav"),
        ((np.zeros(100), "cat " * 40), "24"),
    ],
)
def test_what_cannot_be_heard_says_why(explainer, inputs, message):
    with pytest.raises(attnflow.TextError, match=message):
        explainer.explain(inputs)


def test_a_long_sound_is_cut_only_when_told_to(explainer):
    whole = explainer.explain(noise(1.0), method="rollout")
    cut = explainer.explain(
        np.concatenate([noise(1.0), noise(0.5)]), method="rollout", truncate=True
    )
    np.testing.assert_allclose(cut.scores, whole.scores, atol=1e-6)
    assert not any("silence" in token for token in cut.tokens)


def test_what_is_not_for_the_model_is_refused(explainer):
    with pytest.raises(attnflow.ModelError, match="processor"):
        Explainer(explainer.model, tokenizer())
    with pytest.raises(attnflow.ModelError, match=r"100 frames.*8"):
        Explainer(explainer.model, processor(seconds=2))
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 9}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    other = transformers.Speech2TextForConditionalGeneration(
        transformers.Speech2TextConfig(**sizes, **heads)
    )
    with pytest.raises(attnflow.ModelError, match=r"sound.*Whisper"):
        Explainer(other, processor())


# ---- Saved models --------------------------------------------------------------------------------


def test_references_are_not_for_sound(explainer):
    from attnflow.importance import blank_out

    with pytest.raises(attnflow.ModelError, match="sound"):
        blank_out(explainer, noise(0.5))


@pytest.fixture(scope="module")
def saved(explainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    explainer.model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)
    write_wave(folder / "sound.wav", noise(0.3))
    return folder


def test_a_saved_model_is_loaded_with_its_processor(saved, explainer):
    loaded = Explainer.from_pretrained(saved)
    assert loaded.task == "speech-to-text"
    sound = saved / "sound.wav"
    np.testing.assert_allclose(
        loaded.explain(sound).scores, explainer.explain(sound).scores, atol=1e-5
    )
    with pytest.raises(attnflow.OptionError, match="encoder-decoder"):
        Explainer.from_pretrained(saved, task="seq2seq-lm")


def test_the_command_explains_a_sound(saved, capsys):
    arguments = ["explain", "--model", str(saved), "--method", "rollout"]
    assert main([*arguments, "--json", str(saved / "sound.wav")]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][0] == "0.00-0.10 s"
    assert main([*arguments, str(saved / "sound.wav")]) == 0
    assert "[silence 0.30-1.00 s]" in capsys.readouterr().out
    assert main([*arguments, "missing.wav"]) == 1
    assert "missing.wav" in capsys.readouterr().err
