"""What an answer came from, by the interface: contrasts, words of several tokens, errors, notes."""

import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import attnflow
from attnflow.capture import rules
from attnflow.cli import main
from attnflow.models import Explainer
from attnflow.models.verb_number import checkpoint
from tests.support.text import VOCABULARY
from tests.support.tiny import wordpiece_tokenizer
from tests.support.vision import make, photo, processor

TEXT = "the keys to the cabinet"
PIECES = ["<unk>", "the", "keys", "are", "is", "un", "happy", "known", "."]


@pytest.fixture(scope="module")
def shipped():
    return Explainer.from_pretrained(checkpoint())


@pytest.fixture(scope="module")
def writer():
    """A decoder whose words are made of pieces: "unhappy" is un and happy."""
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>", continuing_subword_prefix=""))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(PIECES), **sizes))
    return Explainer(model.eval(), tokenizer)


def adds_up(explanation):
    size = np.abs(explanation.scores).sum()
    return abs(explanation.scores.sum() + explanation.bias - explanation.value) < 1e-4 * size


def test_a_contrast_is_the_difference_of_two_logits(writer):
    ids = writer.tokenizer("the keys", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = writer.model(ids).logits[0, -1]
    explained = writer.explain("the keys", target="are", contrast="is")
    assert (explained.target, explained.contrast) == ("are", "is")
    expected = logits[PIECES.index("are")] - logits[PIECES.index("is")]
    assert explained.value == pytest.approx(float(expected), abs=1e-5)
    assert adds_up(explained)
    by_id = writer.explain("the keys", target=PIECES.index("are"), contrast=PIECES.index("is"))
    np.testing.assert_array_equal(by_id.scores, explained.scores)
    swapped = writer.explain("the keys", target="is", contrast="are")
    np.testing.assert_allclose(swapped.scores, -explained.scores, atol=1e-6)


def test_words_of_several_tokens_are_compared_where_they_differ(writer):
    explained = writer.explain("the keys", target="unhappy", contrast="unknown")
    assert explained.tokens == ("the", "keys", "un")
    assert (explained.target, explained.contrast, explained.position) == ("happy", "known", 2)
    # The text may as well be written that far.
    assert explained.value == writer.explain("the keys un", target="happy", contrast="known").value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "unhappy"}, r"target is 'unhappy', which is 2 tokens \('un', 'happy'\)"),
        ({"contrast": "unhappy"}, r"contrast is 'unhappy', which is 2 tokens \('un', 'happy'\)"),
        ({"target": "un", "contrast": "unhappy"}, r"one begins .* \('un' and 'un', 'happy'\)"),
        ({"target": "are", "contrast": "are"}, "contrast is 'are', the same as the target"),
        ({"target": "are", "contrast": 99}, "contrast is 99.* 9 tokens of the vocabulary"),
        (
            {"target": "unhappy", "contrast": "unknown", "position": 0},
            "position is 0, but target and contrast are words of several tokens",
        ),
    ],
)
def test_wrong_targets_and_contrasts_of_tokens(writer, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        writer.explain("the keys", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contrast": "VBD"}, "contrast is 'VBD'; expected one of VBZ, VBP"),
        ({"contrast": 2}, "contrast is 2"),
        ({"target": "VBZ", "contrast": 0}, "contrast is 0, the same as the target"),
        ({"contrast": 0.5}, "contrast is 0.5"),
    ],
)
def test_wrong_targets_and_contrasts_of_classes(shipped, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        shipped.explain(TEXT, **options)


def test_an_option_without_an_effect_is_noted(shipped):
    for options, name, other in (
        ({"method": "rollout", "target": "VBZ"}, "target", "contribution"),
        ({"method": "raw", "contrast": "VBZ"}, "contrast", "contribution"),
        ({"method": "contribution", "edges": "gradient"}, "edges", "rollout"),
        ({"layer": 2}, "layer", "rollout"),
    ):
        [note] = shipped.explain(TEXT, **options).notes
        assert note.startswith(f"{name} is ")
        assert "no effect" in note
        assert f"method={other!r} depends" in note
    assert shipped.explain(TEXT, method="rollout", edges="gradient", target="VBZ").notes == ()


def test_a_contrast_that_is_predicted_is_noted(shipped):
    explained = shipped.explain(TEXT, contrast="VBP", check=True)
    assert explained.prediction.label == "VBP"
    assert "what the model predicts" in explained.notes[0]
    assert (explained.value, explained.check) == (0.0, None)


def test_gradient_edges_follow_the_contrast(writer):
    options = {"method": "rollout", "edges": "gradient", "receptive_field": False}
    alone = writer.explain("the keys are happy .", target="is", **options)
    against = writer.explain("the keys are happy .", target="is", contrast="are", **options)
    assert np.abs(alone.scores - against.scores).max() > 1e-4
    assert against.notes == ()


def test_where_there_is_no_answer_rollout_is_the_default():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(VOCABULARY), num_hidden_layers=2, **sizes)
    explainer = Explainer(transformers.BertModel(config).eval(), wordpiece_tokenizer(VOCABULARY))
    assert explainer.explain("the keys").method == "rollout"
    for name, value in (("method", "contribution"), ("contrast", 1), ("check", True)):
        with pytest.raises(attnflow.OptionError, match=f"{name} is .*has no head"):
            explainer.explain("the keys", **{name: value})


def test_a_rule_that_is_broken_is_noted(shipped, monkeypatch):
    def broken(frozen, function, values, *rest, **options):
        return function(values, *rest, **options)

    monkeypatch.setitem(rules.RULES, "layer_norm", broken)
    explained = shipped.explain(TEXT)
    [note] = explained.notes
    assert "do not add up" in note
    assert "layer_norm" in note
    assert not adds_up(explained)


def test_an_image_is_explained_by_its_patches():
    explainer = Explainer(make("ViTForImageClassification"), processor())
    explained = explainer.explain(photo(), contrast=1, target=0)
    assert adds_up(explained)
    assert explained.map().shape == explained.grid
    assert explained.trace.carried.shape == (
        len(explained.layer_scores),
        len(explained.tokens),
        len(explained.tokens),
    )


def test_a_model_that_reads_one_token_has_all_its_contribution_there():
    """Attention is off: what the class is read from sees itself only."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(VOCABULARY), num_hidden_layers=2, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    for layer in model.bert.encoder.layer:
        torch.nn.init.zeros_(layer.attention.output.dense.weight)
    explained = Explainer(model, wordpiece_tokenizer(VOCABULARY)).explain("the keys to a table")
    assert adds_up(explained)
    assert explained.scores[0] != 0
    np.testing.assert_array_equal(explained.scores[1:], 0.0)


def test_units_special_tokens_and_data_keep_the_sum(shipped, tmp_path):
    whole = shipped.explain(TEXT)
    words = shipped.explain(TEXT, units="words")
    assert words.scores.sum() == pytest.approx(whole.scores.sum())
    plain = shipped.explain(TEXT, special_tokens=False)
    assert plain.tokens == tuple(TEXT.split())
    assert (plain.value, plain.bias) == (whole.value, whole.bias)
    whole.save(tmp_path / "x.json")
    assert attnflow.Explanation.load(tmp_path / "x.json") == whole


def test_every_token_that_is_written_is_explained(writer):
    written = writer.generate("the keys", max_new_tokens=3)
    assert [len(one.tokens) for one in written] == [2, 3, 4]
    for one in written:
        assert one.method == "contribution"
        assert adds_up(one)
        assert one.target == one.prediction.label
    against = writer.generate("the keys", max_new_tokens=2, contrast="is")
    assert [one.contrast for one in against] == ["is", "is"]


# ---- The check -----------------------------------------------------------------------------------


def plain_effects(explainer, text, target, other, fill):
    """Blank out token by token, one forward pass each."""
    ids = explainer.tokenizer(text, return_tensors="pt")["input_ids"]

    def value(ids):
        with torch.no_grad():
            logits = explainer.model(ids).logits
        row = logits[0] if logits.ndim == 2 else logits[0, -1]
        return float(row[target] - row[other])

    whole, effects = value(ids), []
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[0, place] = fill
        effects.append(whole - value(changed))
    return whole, effects


def test_the_check_is_blank_out_of_this_very_text(shipped):
    explained = shipped.explain(TEXT, check=True)
    check = explained.check
    unknown = shipped.tokenizer.unk_token_id
    whole, effects = plain_effects(shipped, TEXT, 1, 0, unknown)
    assert check.names == tuple(TEXT.split())
    np.testing.assert_allclose(check.effects, effects[1:], atol=1e-4)
    np.testing.assert_allclose(check.scores, explained.scores[1:])
    assert (check.value, check.answer, check.top) == (pytest.approx(whole, abs=1e-4), "VBP", "keys")
    assert check.top_effect == max(check.effects)
    assert check.same_top
    assert check.random_effect == pytest.approx(np.mean(effects[1:]), abs=1e-4)
    removed = "VBP" if whole - check.top_effect > 0 else "VBZ"
    assert check.removed_answer == removed


def test_the_check_of_attention_ignores_the_sign(shipped):
    explained = shipped.explain(TEXT, method="rollout", check=True)
    _, effects = plain_effects(shipped, TEXT, 1, 0, shipped.tokenizer.unk_token_id)
    np.testing.assert_allclose(explained.check.effects, np.abs(effects[1:]), atol=1e-4)


def test_the_check_blanks_out_the_units_asked_for(writer):
    explained = writer.explain("unhappy keys are", target="is", units="words", check=True)
    assert explained.check.names == ("unhappy", "keys", "are")
    assert explained.check.units == "words"
    assert explained.check.holds is None  # three words are too few to tell
    assert "cannot tell" in explained.check.sentences()[0]


def test_the_check_of_an_image_paints_patches():
    explainer = Explainer(make("ViTForImageClassification"), processor())
    check = explainer.explain(photo(), check=True).check
    assert check.units == "patches"
    assert check.replacement == "the mean colour"
    assert len(check.names) == len([name for name in check.names if "," in name]) > 3


def test_the_command_takes_a_contrast_and_a_check(capsys):
    given = ["explain", TEXT, "--target", "VBP", "--contrast", "VBZ", "--check", "--json"]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["contrast"]) == ("contribution", "VBZ")
    assert sum(found["scores"]) + found["bias"] == pytest.approx(found["value"], abs=1e-4)
    assert found["check"]["top"] == "keys"
    assert len(found["check"]["verdict"]) == 3
