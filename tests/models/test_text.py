"""From a text to an explanation, on tiny models of random weights."""

import copy
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import attnflow
from attnflow.cli import explain as explain_command
from attnflow.cli import main
from attnflow.models import Explainer
from attnflow.models.load import begins_texts
from tests.support import text as text_models
from tests.support.text import SIZES, VOCABULARY, decoder_tokenizer
from tests.support.tiny import sharpen, wordpiece_tokenizer


@pytest.fixture(scope="module")
def encoder():
    return text_models.encoder()


@pytest.fixture(scope="module")
def classifier():
    return text_models.classifier()


@pytest.fixture(scope="module")
def decoder():
    return text_models.decoder()


@pytest.fixture(scope="module")
def masked():
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    return Explainer(sharpen(model), wordpiece_tokenizer(VOCABULARY))


def eager_copy(explainer):
    model = copy.deepcopy(explainer.model).eval()
    model.set_attn_implementation("eager")
    return model


def eager_attentions(explainer, text):
    """What the model's own eager attention returns, asked for the ordinary way."""
    model = eager_copy(explainer)
    with torch.no_grad():
        inputs = explainer.tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        return model(**inputs, output_attentions=True)


def test_tasks_are_recognised_from_the_model(encoder, classifier, masked, decoder):
    tasks = [explainer.task for explainer in (encoder, classifier, masked, decoder)]
    assert tasks == ["encoder", "classification", "masked-lm", "causal-lm"]


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("raw", lambda attentions: attnflow.raw_attention(attentions)[:, 0]),
        ("rollout", lambda attentions: attnflow.attention_rollout(attentions)[:, 0]),
        ("flow", lambda attentions: attnflow.attention_flow(attentions)[:, 0]),
    ],
)
def test_scores_are_those_of_the_method_on_the_models_attention(encoder, method, function):
    text = "the keys to the cabinet"
    explanation = encoder.explain(text, method=method, layer=2)
    expected = function(eager_attentions(encoder, text).attentions)
    assert explanation.tokens == ("[CLS]", *text.split(), "[SEP]")
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)
    np.testing.assert_array_equal(explanation.scores, explanation.layer_scores[1])
    assert (explanation.method, explanation.layer, explanation.position) == (method, 2, 0)
    assert explanation.prediction is None
    assert explanation.target is None


def test_heads_and_residual_and_position_are_passed_on(encoder):
    text = "the keys to the cabinet"
    attentions = eager_attentions(encoder, text).attentions
    explanation = encoder.explain(text, method="rollout", heads=1, residual=0.2, position=-2)
    expected = attnflow.attention_rollout(attentions, heads=1, residual=0.2)[:, -2]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)
    assert explanation.position == 5
    assert explanation.options["heads"] == 1


def test_a_classifiers_prediction_comes_with_its_probability(classifier):
    text = "a film that no one will forget"
    explanation = classifier.explain(text)
    probabilities = eager_attentions(classifier, text).logits[0].softmax(0)
    index = int(probabilities.argmax())
    assert explanation.position == 0
    assert explanation.prediction.label == explanation.target == ["bad", "good"][index]
    assert explanation.prediction.probability == pytest.approx(float(probabilities[index]), 1e-5)
    assert classifier.explain(text, target="bad").target == "bad"
    assert classifier.explain(text, target=1).target == "good"


def test_a_masked_model_is_explained_at_its_mask(masked):
    text = "the keys [MASK] on the table"
    explanation = masked.explain(text)
    logits = eager_attentions(masked, text).logits[0, 3]
    assert explanation.position == 3
    assert explanation.tokens[3] == "[MASK]"
    assert explanation.text[slice(*explanation.spans[3])] == "[MASK]"
    assert explanation.prediction.index == int(logits.argmax())
    assert masked.explain(text, target="are").target == "are"


def test_a_causal_model_is_explained_at_its_last_token(decoder):
    text = "the keys to the cabinet"
    explanation = decoder.explain(text, method="raw")
    outputs = eager_attentions(decoder, text)
    assert explanation.position == 4
    assert explanation.prediction.index == int(outputs.logits[0, -1].argmax())
    expected = attnflow.raw_attention(outputs.attentions)[:, -1]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)


@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_where_attention_has_no_preference_the_receptive_field_leaves_none(method):
    config = transformers.GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=16, n_layer=3, n_head=2, n_positions=24
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight.zero_()
            block.attn.c_attn.bias.zero_()
    explainer = Explainer(model, decoder_tokenizer())
    text = "the keys to the cabinet are on"
    even = explainer.explain(text, method=method)
    np.testing.assert_allclose(even.layer_scores, 1 / 7, rtol=1e-6)
    assert even.options["receptive_field"] is True
    # Without it the first tokens score for being first.
    plain = explainer.explain(text, method=method, receptive_field=False)
    assert plain.scores[0] > plain.scores[2] > 0
    assert plain.options["receptive_field"] is False


def test_a_sliding_window_is_part_of_the_receptive_field():
    config = transformers.MistralConfig(**SIZES, num_key_value_heads=1, sliding_window=3)
    model = transformers.MistralForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    explainer = Explainer(model, decoder_tokenizer())
    scores = explainer.explain("the keys to the cabinet are on a", method="rollout").layer_scores
    np.testing.assert_allclose(scores[0], [0] * 5 + [1 / 3] * 3, rtol=1e-6)
    np.testing.assert_allclose(scores[1], [0] * 3 + [1 / 5] * 5, rtol=1e-6)


@pytest.mark.parametrize("fixture", ["encoder", "classifier", "decoder"])
@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_many_texts_are_explained_as_one_by_one(request, fixture, method):
    explainer = request.getfixturevalue(fixture)
    texts = ["the keys to the cabinet are on the table", "keys", "a film", "the key is on a table"]
    together = explainer.explain(texts, method=method)
    for text, explanation in zip(texts, together, strict=True):
        alone = explainer.explain(text, method=method)
        assert explanation.tokens == alone.tokens
        np.testing.assert_allclose(explanation.layer_scores, alone.layer_scores, atol=1e-5)
        if alone.prediction:
            assert explanation.prediction.probability == pytest.approx(
                alone.prediction.probability, abs=1e-5
            )


def test_gradient_edges_are_attention_times_its_gradient(classifier):
    text = "a film that no one will forget"
    model = eager_copy(classifier)
    outputs = model(**classifier.tokenizer(text, return_tensors="pt"), output_attentions=True)
    gradients = torch.autograd.grad(outputs.logits[0, 0], outputs.attentions)
    edges = [
        (weights * gradient).relu().mean(1)[0].detach().double().numpy()
        for weights, gradient in zip(outputs.attentions, gradients, strict=True)
    ]
    sums = [layer.sum(-1, keepdims=True) for layer in edges]
    rows = [
        np.where(total > 0, layer / np.where(total > 0, total, 1), np.eye(9))
        for layer, total in zip(edges, sums, strict=True)
    ]
    explanation = classifier.explain(text, method="rollout", edges="gradient", target="bad")
    expected = attnflow.attention_rollout(rows)[:, 0]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-5)


def test_every_generated_token_is_explained_by_what_came_before(decoder):
    prompt = "the keys to the"
    steps = decoder.generate(prompt, max_new_tokens=3, method="rollout")
    assert len(steps) == 3
    text = prompt
    for step in steps:
        alone = decoder.explain(text, method="rollout")
        assert step.position == alone.position
        assert step.target == alone.prediction.label
        assert step.prediction.index == alone.prediction.index
        assert step.prediction.probability == pytest.approx(alone.prediction.probability, abs=1e-5)
        np.testing.assert_allclose(step.layer_scores, alone.layer_scores, atol=1e-5)
        text += " " + alone.prediction.label
    assert [len(step.tokens) for step in steps] == [4, 5, 6]


def test_gradient_edges_of_generated_tokens_are_each_for_its_own_token(decoder):
    steps = decoder.generate(
        "the keys to the", max_new_tokens=2, method="rollout", edges="gradient"
    )
    alone = decoder.explain("the keys to the", method="rollout", edges="gradient")
    np.testing.assert_allclose(steps[0].layer_scores, alone.layer_scores, atol=1e-5)


def test_words_sum_their_tokens_and_special_tokens_can_go(encoder):
    text = "the cabinets on a table"
    tokens = encoder.explain(text, method="rollout")
    assert tokens.tokens == ("[CLS]", "the", "cabinet", "s", "on", "a", "table", "[SEP]")
    words = encoder.explain(text, method="rollout", units="words", special_tokens=False)
    assert words.tokens == ("the", "cabinets", "on", "a", "table")
    assert words.scores[1] == pytest.approx(tokens.scores[2] + tokens.scores[3])


def test_saturated_flow_comes_with_a_warning_in_words():
    model = transformers.BertModel(transformers.BertConfig(**{**SIZES, "num_hidden_layers": 8}))
    explainer = Explainer(model.eval(), wordpiece_tokenizer(VOCABULARY))
    explanation = explainer.explain("the keys to the cabinet are on a table", method="flow")
    assert explanation.saturation == 1
    assert re.search("saturated.*100%.*layer 8", explanation.notes[0])
    low = explainer.explain("the keys to the cabinet are on a table", method="flow", layer=1)
    assert low.saturation < 0.5
    assert low.notes == ()


def test_an_attention_sink_is_named_and_can_be_left_out():
    config = transformers.GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=16, n_layer=2, n_head=2, n_positions=24
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        # Every query is the same, and only the first position's key answers to it.
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[0] = 10 * torch.eye(16)[0]
        for block in model.transformer.h:
            block.attn.c_attn.weight.zero_()
            block.attn.c_attn.bias.zero_()
            block.attn.c_attn.bias[:16] = 2.0
            block.attn.c_attn.weight[0, 16:32] = 4.0
    explainer = Explainer(model, decoder_tokenizer())
    options = {"method": "rollout", "receptive_field": False}
    explanation = explainer.explain("the keys to the cabinet are on a", **options)
    assert "Token 0, 'the'" in explanation.notes[0]
    assert "drop_sink=True" in explanation.notes[0]
    without = explainer.explain("the keys to the cabinet are on a", drop_sink=True, **options)
    assert without.tokens == explanation.tokens[1:]
    assert "token 0, 'the'" in without.notes[0]


def test_the_model_is_left_as_it_was_found(classifier):
    classifier.model.train()
    try:
        explanation = classifier.explain("a film")
        assert classifier.model.training
        assert classifier.model.config._attn_implementation == "sdpa"
    finally:
        classifier.model.eval()
    np.testing.assert_array_equal(explanation.scores, classifier.explain("a film").scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "attention"}, "method.*'attention'.*raw.*rollout.*flow"),
        ({"edges": "weights"}, "edges.*'weights'.*attention.*gradient"),
        ({"layer": 4}, "layer.*4.*1.*3"),
        ({"position": "first"}, "position.*'first'.*auto.*cls.*mask.*last"),
        ({"position": 7}, "position.*7"),
        ({"target": "fine"}, "target.*'fine'.*bad.*good"),
        ({"target": 2}, "target.*2"),
        ({"heads": "median"}, "heads"),
        ({"heads": 2}, "heads"),
        ({"residual": -1}, "residual"),
        ({"receptive_field": "on"}, "receptive_field.*'on'.*'auto'.*True.*False"),
        ({"units": 1}, "units.*1"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(classifier, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        classifier.explain("a film", **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text.*empty"),
        (" \n", "text.*empty"),
        (7, r"(text|inputs).*\bint\b"),
        ([], "inputs.*empty"),
        (["a film", ""], "text.*empty"),
        (["a film", None], "text.*NoneType"),
        ("the " * 30, "32 tokens.*24"),
    ],
)
def test_a_text_that_cannot_be_explained_says_why(encoder, text, message):
    with pytest.raises(attnflow.TextError, match=message):
        encoder.explain(text)


def test_a_long_text_is_cut_only_when_told_to(encoder):
    explanation = encoder.explain("the " * 30, truncate=True)
    assert len(explanation.tokens) == 24


def test_masks_that_are_missing_or_many_are_errors(masked):
    with pytest.raises(attnflow.TextError, match=r"\[MASK\]"):
        masked.explain("the keys are on the table")
    with pytest.raises(attnflow.OptionError, match=r"2.*\[MASK\].*position.*2.*4"):
        masked.explain("the [MASK] to [MASK]")
    assert masked.explain("the [MASK] to [MASK]", position=4).position == 4


def test_a_target_of_several_tokens_is_an_error(masked):
    with pytest.raises(attnflow.OptionError, match=r"'cabinets'.*2 tokens.*cabinet.*##s"):
        masked.explain("the [MASK] is on a table", target="cabinets")


def test_a_model_without_a_head_has_no_target_and_no_gradient(encoder):
    with pytest.raises(attnflow.OptionError, match=r"BertModel.*head"):
        encoder.explain("a film", target=0)
    with pytest.raises(attnflow.OptionError, match="prediction"):
        encoder.explain("a film", edges="gradient")


def test_generate_is_for_causal_models_and_checks_its_options(decoder, masked):
    with pytest.raises(attnflow.OptionError, match="masked-lm"):
        masked.generate("the")
    with pytest.raises(attnflow.OptionError, match="position"):
        decoder.generate("the", position=0)
    with pytest.raises(attnflow.OptionError, match=r"option.*'layers'"):
        decoder.generate("the", layers=2)
    with pytest.raises(attnflow.OptionError, match=r"max_new_tokens.*0"):
        decoder.generate("the", max_new_tokens=0)
    with pytest.raises(attnflow.TextError, match=r"1 token.*30"):
        decoder.generate("the", max_new_tokens=30)


def test_what_is_not_a_model_is_refused():
    with pytest.raises(attnflow.ModelError, match=r"model.*\bstr\b"):
        Explainer("bert-base-uncased", wordpiece_tokenizer(VOCABULARY))


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    classifier.model.save_pretrained(folder)
    classifier.tokenizer.save_pretrained(folder)
    return folder


def test_a_saved_model_is_loaded_for_what_it_was_saved_as(saved, classifier):
    explainer = Explainer.from_pretrained(saved)
    assert explainer.task == "classification"
    assert Explainer.from_pretrained(saved, task="encoder").task == "encoder"
    expected = classifier.explain("a film").scores
    np.testing.assert_allclose(explainer.explain("a film").scores, expected, atol=1e-6)


def test_loading_problems_say_what_is_wrong(saved, tmp_path):
    with pytest.raises(attnflow.ModelError, match="no-such-model"):
        Explainer.from_pretrained("no-such-model")
    with pytest.raises(attnflow.ModelError, match=r"missing.*folder"):
        Explainer.from_pretrained(tmp_path / "missing")
    with pytest.raises(attnflow.ModelError, match=r"config\.json"):
        Explainer.from_pretrained(tmp_path)
    with pytest.raises(attnflow.OptionError, match=r"task.*'sentiment'.*auto.*classification"):
        Explainer.from_pretrained(saved, task="sentiment")
    with pytest.raises(attnflow.OptionError, match=r"device.*'abacus'"):
        Explainer.from_pretrained(saved, device="abacus")
    with pytest.raises(attnflow.OptionError, match=r"dtype.*'int8'"):
        Explainer.from_pretrained(saved, dtype="int8")


def test_pickled_weights_are_loaded_only_when_asked_for(saved, classifier, tmp_path):
    for file in saved.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(classifier.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(attnflow.ModelError, match="code"):
        Explainer.from_pretrained(tmp_path)
    explainer = Explainer.from_pretrained(tmp_path, allow_pickle=True)
    expected = classifier.explain("a film").scores
    np.testing.assert_allclose(explainer.explain("a film").scores, expected, atol=1e-6)


def test_without_torch_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import attnflow\n"
        "try: attnflow.Explainer.from_pretrained('x')\n"
        "except attnflow.MissingExtraError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert 'pip install "attnflow[hf]"' in result.stdout


def test_the_command_prints_what_python_gives(saved, classifier, capsys):
    text = "a film that no one will forget"
    assert main(["explain", "--model", str(saved), "--method", "rollout", "--json", text]) == 0
    printed = json.loads(capsys.readouterr().out)
    explanation = classifier.explain(text, method="rollout")
    assert printed["tokens"] == list(explanation.tokens)
    np.testing.assert_allclose(printed["scores"], explanation.scores, atol=1e-6)


def test_the_command_shows_a_person_the_text_and_the_prediction(saved, classifier, capsys):
    assert main(["explain", "--model", str(saved), "the keys to the cabinet"]) == 0
    shown = capsys.readouterr().out
    assert "the keys to the cabinet" in shown
    assert classifier.explain("the keys to the cabinet").prediction.label in shown


def test_lines_of_standard_input_give_lines_of_json_in_their_order(saved):
    texts = ["the keys to the cabinet are on a table", "", "a film", "the keys"]
    result = subprocess.run(
        [sys.executable, "-m", "attnflow", "explain", "--model", str(saved), "--json"],
        input="\n".join(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("text", "") for line in lines] == texts
    error = {"number": 2, "kind": "empty", "message": "the text is empty"}
    assert lines[1] == {"error": error}
    assert result.stderr == ""


# A process started in the background of a shell script ignores Ctrl-C, and so do its children.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from attnflow.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.exhaustive
def test_ctrl_c_leaves_what_is_done_so_far(saved, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the keys to the cabinet are on a table\n" * 20_000)
    command = ["explain", "--model", str(saved), "--method", "rollout", "--json"]
    with (
        texts.open() as lines,
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTIBLE, *command],
            stdin=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            lines_out = [process.stdout.readline()]
            process.send_signal(signal.SIGINT)
            lines_out += process.stdout  # not communicate(), which would miss what was read ahead
            said = process.stderr.read()
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    done = [json.loads(line) for line in lines_out]
    assert 0 < len(done) < 20_000
    # The signal may come between the printing of a line and its counting.
    count = int(re.search(r"attnflow: .*?(\d+) of 20000 texts.*\n$", said)[1])
    assert abs(count - len(done)) <= 1


def test_the_command_saves_and_says_what_is_wrong(saved, tmp_path, capsys):
    path = tmp_path / "film.json"
    assert main(["explain", "--model", str(saved), "--output", str(path), "a film"]) == 0
    assert attnflow.Explanation.load(path).text == "a film"
    capsys.readouterr()
    assert main(["explain", "--model", str(saved), "--output", str(path), "a", "film"]) == 1
    assert re.search("--output.*2 texts", capsys.readouterr().err)
    assert main(["explain", "--model", str(saved), "--layer", "9", "a film"]) == 1
    assert re.search("layer.*9", capsys.readouterr().err)
    # Before the model is loaded: there is none of that name.
    assert main(["explain", "--model", "none", "--output", str(tmp_path / "x.docx"), "a"]) == 1
    assert re.search(r"\.json", capsys.readouterr().err)
    missing = tmp_path / "no" / "x.json"
    assert main(["explain", "--model", "none", "--output", str(missing), "a"]) == 1
    assert "folder" in capsys.readouterr().err


def test_the_command_saves_a_page_and_a_figure_beside_the_output(saved, tmp_path, capsys):
    files = {option: tmp_path / f"film.{option}" for option in ("html", "png", "json")}
    arguments = ["explain", "--model", str(saved), "a film that no one will forget"]
    pictures = ["--html", str(files["html"]), "--png", str(files["png"])]
    assert main([*arguments, *pictures, "--output", str(files["json"])]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert [f"saved {files[x]}" in said.err for x in files] == [True] * 3
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert files["html"].read_text().lower().startswith("<!doctype html>")
    explanation = attnflow.Explanation.load(files["json"])
    assert "forget" in files["html"].read_text()
    # A picture or a page beside what the terminal shows; with --json the result is printed, too.
    assert main([*arguments, *pictures]) == 0
    assert "forget" in capsys.readouterr().out
    assert main([*arguments, *pictures[:2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == list(explanation.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "keys.png", "a"], r"--html(?=.*'keys\.png').*\.html"),
        (["--png", "keys.html", "a"], r"--png(?=.*'keys\.html').*\.png"),
        (["--png", "no/such/keys.png", "a"], "folder"),
        (["--html", "keys.html", "a", "b"], "--html.*2 texts"),
        (["--png", "keys.png", "a", "b"], "--png.*2 texts"),
    ],
)
def test_where_a_picture_goes_is_checked_before_the_model_is_loaded(options, message, capsys):
    assert main(["explain", "--model", "no-such-model", *options]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_without_matplotlib_a_figure_is_refused_before_the_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(explain_command, "find_spec", lambda name: None)
    for option, path in (("--png", "keys.png"), ("--output", "keys.svg")):
        assert main(["explain", "--model", "no-such-model", option, path, "a"]) == 1
        assert 'pip install "attnflow[view]"' in capsys.readouterr().err


def test_without_a_model_the_command_takes_the_one_that_comes_along(
    saved, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("attnflow.models.verb_number.checkpoint", lambda: saved)
    assert main(["explain", "--json", "a film"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == saved.name
    monkeypatch.setattr("attnflow.models.verb_number.checkpoint", lambda: tmp_path)
    assert main(["explain", "a film"]) == 1
    assert str(tmp_path) in capsys.readouterr().err


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A vision classifier in a folder, with its image processor and an image."""
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=24,
        patch_size=8,
        id2label={0: "cat", 1: "dog"},
    )
    model = sharpen(transformers.ViTForImageClassification(config))
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 24, "width": 24}).save_pretrained(folder)
    image = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(image).save(folder / "image.png")
    return folder, image


def test_a_vision_model_is_loaded_and_explained_like_any_other(seeing):
    folder, image = seeing
    explainer = Explainer.from_pretrained(folder)
    assert explainer.task == "image-classification"
    explanation = explainer.explain(image, method="rollout")
    assert explanation.grid == (3, 3)
    assert explanation.tokens[:2] == ("[CLS]", "0,0")
    assert explanation.prediction.label in ("cat", "dog")
    assert explanation.map("image").shape == (30, 40)
    together = explainer.explain([image, folder / "image.png"], method="rollout")
    for one in together:
        np.testing.assert_allclose(one.layer_scores, explanation.layer_scores, atol=1e-5)


def test_the_command_explains_an_image(seeing, capsys):
    folder, _ = seeing
    arguments = ["explain", "--model", str(folder), "--method", "rollout", "--json"]
    assert main([*arguments, str(folder / "image.png")]) == 0
    assert json.loads(capsys.readouterr().out)["grid"] == [3, 3]
    assert main([*arguments, str(folder / "missing.png")]) == 1
    assert "missing.png" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "expected"), [(b"\x01", True), (b"\x00", False), (None, False)])
def test_a_gguf_file_says_whether_texts_begin_with_bos(tmp_path, value, expected):
    key = b"" if value is None else b"tokenizer.ggml.add_bos_token\x07\x00\x00\x00" + value
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + key + b"\x00" * 8)
    assert begins_texts(tmp_path / "model.gguf") is expected
