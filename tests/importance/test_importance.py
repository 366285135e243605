"""Blank-out and gradients, against plain loops and finite differences, on tiny models."""

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.modeling_outputs import SequenceClassifierOutput

import attnflow
from attnflow.importance import (
    REFERENCES,
    blank_out,
    gradient_norm,
    gradient_x_input,
    importance,
    input_gradient,
)
from attnflow.models import Explainer, answers
from tests.support.pair import IDS, WORDS, build_pair, photo
from tests.support.tiny import sharpen

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # DeBERTa's code does this when it is imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

TEXT = "the keys to the cabinet are on"
MASKED = "the keys [MASK] the cabinet on"
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    # Large weights, so that every token matters.
    "initializer_range": 0.5,
}

# The class of each model, and what its configuration has besides.
MODELS = {
    "BERT": ("BertForSequenceClassification", {}),
    "BERT, labels apart": (
        "BertForSequenceClassification",
        {"problem_type": "multi_label_classification", "num_labels": 3},
    ),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16},
    ),
    "DeBERTa-v2": (
        "DebertaV2ForSequenceClassification",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
    ),
    "GPT-2, classifying": ("GPT2ForSequenceClassification", {"n_inner": 16}),
    "Llama, classifying": ("LlamaForSequenceClassification", {"num_key_value_heads": 1}),
    "RoBERTa": ("RobertaForMaskedLM", {}),
    "ALBERT": ("AlbertForMaskedLM", {"embedding_size": 8}),
    "BERT, pretraining": ("BertForPreTraining", {}),
    "MPNet": ("MPNetForMaskedLM", {}),
    "ModernBERT": (
        "ModernBertForMaskedLM",
        {"local_attention": 4, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "GPT-2": ("GPT2LMHeadModel", {"n_inner": 16}),
    "Llama": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "Mistral": ("MistralForCausalLM", {"num_key_value_heads": 1, "sliding_window": 3}),
    "Gemma": ("GemmaForCausalLM", {"num_key_value_heads": 1, "head_dim": 8}),
}
RMS_NORM = ("Llama", "Llama, classifying", "Mistral", "Gemma")
PAIRS = ("T5", "BART", "Marian")


def encoder_tokenizer(**names):
    """Whole words between CLS and SEP."""
    inner = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    given = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **{**given, **names})


def decoder_tokenizer(**names):
    """Whole words, no special tokens around the text."""
    inner = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    given = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **{**given, **names})


def build(name, **changes):
    """A tiny model of a kind, its tokenizer beside it."""
    class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    model = sharpen(kind(kind.config_class(**{**SIZES, **options, **changes})), 0.5)
    writes = class_name.endswith(("ForCausalLM", "LMHeadModel")) or "classifying" in name
    return Explainer(model, decoder_tokenizer() if writes else encoder_tokenizer())


def text_for(explainer):
    return MASKED if explainer.task == "masked-lm" else TEXT


def probabilities(explainer, inputs, position):
    """The model's probabilities, asked for the ordinary way."""
    model = explainer.model
    outputs = model(**inputs)
    logits = outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits
    if logits.ndim == 3:
        logits = logits[:, position]
    if model.config.problem_type == "multi_label_classification":
        return logits[0].double().sigmoid()
    return logits[0].double().softmax(-1)


def position_of(explainer, ids):
    if explainer.task == "masked-lm":
        return ids.index(IDS["[MASK]"])
    return len(ids) - 1


def blank_out_loop(explainer, text, fill=IDS["[UNK]"]):
    """Blank-out as its definition reads, one forward pass for each token."""
    ids = explainer.tokenizer(text)["input_ids"]
    position = position_of(explainer, ids)
    with torch.no_grad():
        whole = probabilities(explainer, {"input_ids": torch.tensor([ids])}, position)
        result = []
        for token in range(len(ids)):
            changed = [fill if index == token else one for index, one in enumerate(ids)]
            # All of it is text, whatever its id.
            given = {
                "input_ids": torch.tensor([changed]),
                "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
            }
            p = probabilities(explainer, given, position)
            result.append(abs(float(whole[whole.argmax()] - p[whole.argmax()])))
    return np.array(result)


def slopes(explainer, text, by_input, step):
    """Central differences in the direction that sums the gradient, or in that of the embedding."""
    ids = explainer.tokenizer(text)["input_ids"]
    position = position_of(explainer, ids)
    with torch.no_grad():
        embeddings = explainer.model.get_input_embeddings()(torch.tensor([ids]))
        whole = probabilities(explainer, {"inputs_embeds": embeddings}, position)
        target = int(whole.argmax())
        result = []
        for token in range(len(ids)):
            direction = torch.zeros_like(embeddings)
            direction[0, token] = embeddings[0, token] if by_input else 1.0
            above, below = (
                probabilities(
                    explainer, {"inputs_embeds": embeddings + sign * step * direction}, position
                )[target]
                for sign in (1, -1)
            )
            result.append(abs(float(above - below)) / (2 * step))
    return np.array(result)


@pytest.fixture(scope="module")
def classifier():
    return build("BERT", id2label={0: "bad", 1: "good"})


@pytest.fixture(scope="module")
def masked():
    return build("ALBERT")


@pytest.fixture(scope="module")
def decoder():
    return build("Llama")


# ---- Against plain loops and finite differences --------------------------------------------------


def test_words_and_stretches_are_blanked_out_as_a_whole():
    explainer = build("BERT")
    whole = explainer.adapter.read(TEXT)
    unit = whole.tokens.grouped("words")[1]
    found = blank_out(explainer, TEXT, units="words", replacement="mask", signed=True)
    assert len(found) == len(unit)

    def probability(ids, best=None):
        with torch.no_grad():
            shares = explainer.model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)
        return float(shares.max() if best is None else shares[best]), int(shares.argmax())

    ids = whole.inputs["input_ids"]
    value, best = probability(ids)
    mask = explainer.tokenizer.mask_token_id
    for effect, tokens in zip(found, unit, strict=True):
        changed = [mask if place in tokens else one for place, one in enumerate(ids)]
        assert effect == pytest.approx(value - probability(changed, best)[0], abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_blank_out_is_the_difference_that_replacing_each_token_makes(name):
    explainer = build(name)
    text = text_for(explainer)
    expected = blank_out_loop(explainer, text)
    result = blank_out(explainer, text)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, atol=2e-6)
    assert expected.max() > 1e-3  # where nothing matters, anything would agree


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_finite_differences(name):
    explainer = build(name)
    explainer.model.double()
    text = text_for(explainer)
    # These compute part of their layers in float32 whatever the model is, and a small step would
    # drown in rounding.
    rounds = name in RMS_NORM or name == "ModernBERT"
    step, close = (1e-3, {"rtol": 0.02, "atol": 2e-4}) if rounds else (1e-5, {"atol": 1e-9})
    for function, by_input in ((input_gradient, False), (gradient_x_input, True)):
        expected = slopes(explainer, text, by_input, step)
        np.testing.assert_allclose(function(explainer, text), expected, **close)
        # Layer normalisation takes away what all dimensions have in common, and ModernBERT, which
        # normalises word embeddings by themselves, their size as well.
        matters = name in RMS_NORM or (by_input and name != "ModernBERT")
        assert (expected.max() > 1e-3) == matters


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_by_the_embeddings_that_a_model_takes_as_input(name):
    explainer = build(name)
    text = text_for(explainer)
    ids = explainer.tokenizer(text)["input_ids"]
    embeddings = explainer.model.get_input_embeddings()(torch.tensor([ids])).detach()
    embeddings.requires_grad_()
    p = probabilities(explainer, {"inputs_embeds": embeddings}, position_of(explainer, ids))
    p.max().backward()
    gradient, x = embeddings.grad[0].double(), embeddings.detach()[0].double()
    scale = float(gradient.abs().sum(-1).max())
    for function, expected in (
        (input_gradient, gradient.sum(-1).abs()),
        (gradient_x_input, (gradient * x).sum(-1).abs()),
        (gradient_norm, gradient.norm(dim=-1)),
    ):
        np.testing.assert_allclose(function(explainer, text), expected, atol=1e-5 * scale)
    assert scale > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_many_texts_are_measured_as_one_by_one(name):
    explainer = build(name)
    mask = " [MASK]" if explainer.task == "masked-lm" else ""
    texts = [f"{text}{mask}" for text in ("the keys to the", "keys", "a film", "the key", "a")]
    for reference in REFERENCES:
        together = importance(explainer, texts, reference=reference, batch_size=3)
        for text, one in zip(texts, together, strict=True):
            alone = importance(explainer, text, reference=reference)
            np.testing.assert_allclose(one, alone, atol=2e-6, rtol=1e-4)


def pair_probability(explainer, source, target, token):
    """The probability of a token after a target, given ids or embeddings."""
    names = (
        ("input_ids", "decoder_input_ids")
        if source.ndim == 2
        else ("inputs_embeds", "decoder_inputs_embeds")
    )
    with torch.no_grad():
        outputs = explainer.model(**dict(zip(names, (source, target), strict=True)))
    return float(outputs.logits[0, -1].double().softmax(-1)[token])


@pytest.mark.parametrize("name", PAIRS)
def test_an_encoder_decoder_is_blanked_out_on_both_sides(name):
    explainer = build_pair(name)
    source = [IDS[word] for word in ("the", "keys", "to", "the", "[SEP]")]
    target = [IDS[word] for word in ("[PAD]", "cabinet", "are")]
    expected = []
    for token in range(8):
        ids = [*source, *target]
        ids[token] = IDS["[UNK]"]
        p, changed = (
            pair_probability(explainer, torch.tensor([one[:5]]), torch.tensor([one[5:]]), 12)
            for one in ([*source, *target], ids)
        )
        expected.append(abs(p - changed))
    result = blank_out(explainer, ("the keys to the", "cabinet are"), target=12)
    np.testing.assert_allclose(result, expected, atol=2e-6)
    assert min(result) > 0


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_of_an_encoder_decoder_are_those_of_finite_differences(name):
    explainer = build_pair(name)
    model = explainer.model.double()
    with torch.no_grad():
        source = model.get_encoder().get_input_embeddings()(torch.tensor([[5, 6, 8, 5, 3]]))
        target = model.get_decoder().get_input_embeddings()(torch.tensor([[0, 9, 10]]))
    # T5's norms are computed in float32 whatever the model is.
    step, close = (1e-3, {"rtol": 0.02, "atol": 1e-4}) if name == "T5" else (1e-5, {"atol": 1e-9})
    both = torch.cat([source, target], dim=1)
    # Marian scales what it looks up in the source, but takes embeddings of the source scaled.
    scale = model.get_encoder().embed_scale if name == "Marian" else 1.0
    for function, by_input in ((input_gradient, False), (gradient_x_input, True)):
        expected = []
        for token in range(8):
            direction = torch.zeros_like(both)
            direction[0, token] = step * (both[0, token] if by_input else 1.0)
            above, below = (
                pair_probability(explainer, scale * moved[:, :5], moved[:, 5:], 12)
                for moved in (both + direction, both - direction)
            )
            expected.append(abs(above - below) / (2 * step))
        result = function(explainer, ("the keys to the", "cabinet are"), target=12)
        np.testing.assert_allclose(result, expected, **close)
        assert by_input <= (min(expected) > 1e-6)


@pytest.mark.parametrize("reference", REFERENCES)
def test_pairs_are_measured_together_as_alone_and_nothing_after_the_position_matters(reference):
    explainer = build_pair("T5")
    pairs = [("the keys to the", "cabinet are"), "a film", ("keys", "the"), ("a key", "")]
    together = importance(explainer, pairs, reference=reference)
    for pair, one in zip(pairs, together, strict=True):
        alone = importance(explainer, pair, reference=reference)
        np.testing.assert_allclose(one, alone, atol=1e-6, rtol=1e-4)
    early = importance(explainer, pairs[0], reference=reference, position=1)
    assert len(early) == 8
    assert early[7] == 0
    cut = importance(explainer, ("the keys to the", "cabinet"), reference=reference)
    np.testing.assert_allclose(early[:7], cut, atol=1e-7)


# ---- A model whose answer is known ---------------------------------------------------------------


class OneWordForSequenceClassification(transformers.PreTrainedModel):
    """Reads the word at one place of a text, and nothing else."""

    config_class = transformers.BertConfig

    def __init__(self, config, place=3):
        super().__init__(config)
        self.place = place
        self.words = torch.nn.Embedding(config.vocab_size, 4)
        self.head = torch.nn.Linear(4, config.num_labels)
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids=None, attention_mask=None, return_dict=True):
        return SequenceClassifierOutput(logits=self.head(self.words(input_ids))[:, self.place])


@pytest.fixture
def one_word():
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_labels=3)
    return Explainer(OneWordForSequenceClassification(config).eval(), encoder_tokenizer())


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_model_that_reads_one_word_depends_on_that_word_alone(one_word, reference):
    result = importance(one_word, TEXT, reference=reference)
    assert result[3] > 1e-3
    np.testing.assert_allclose(np.delete(result, 3), 0, atol=1e-12)


def test_importance_of_the_one_word_is_as_worked_out_by_hand(one_word):
    model = one_word.model
    words, weight, bias = (
        value.detach().double().numpy()
        for value in (model.words.weight, model.head.weight, model.head.bias)
    )

    def softmax(logits):
        return np.exp(logits) / np.exp(logits).sum()

    x = words[IDS["to"]]
    p, blank = softmax(weight @ x + bias), softmax(weight @ words[IDS["[UNK]"]] + bias)
    y = p.argmax()
    # dp_y/dx = p_y (w_y - sum_c p_c w_c)
    gradient = p[y] * (weight[y] - p @ weight)
    assert blank_out(one_word, TEXT)[3] == pytest.approx(abs(p[y] - blank[y]), rel=1e-5)
    assert input_gradient(one_word, TEXT)[3] == pytest.approx(abs(gradient.sum()), rel=1e-5)
    assert gradient_x_input(one_word, TEXT)[3] == pytest.approx(abs(gradient @ x), rel=1e-5)


def test_a_model_that_is_nearly_certain_still_tells_tokens_apart(one_word):
    with torch.no_grad():
        one_word.model.head.weight.mul_(0.1)
        one_word.model.head.bias.copy_(torch.tensor([24.0, 0.0, 0.0]))
    # In float32 both probabilities would be 1.
    result = blank_out(one_word, TEXT)
    assert 0 < result[3] < 1e-9
    assert 0 < input_gradient(one_word, TEXT)[3] < 1e-9


# ---- What is asked, and where --------------------------------------------------------------------


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_target_is_the_prediction_or_what_is_given(classifier, reference):
    p = probabilities(classifier, classifier.tokenizer(TEXT, return_tensors="pt"), 0)
    best = int(p.argmax())
    results = [
        importance(classifier, TEXT, reference=reference, target=target)
        for target in (None, best, ["bad", "good"][best])
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    if reference == "blank_out":
        # With two classes, what one loses the other gains.
        np.testing.assert_allclose(
            importance(classifier, TEXT, target=1 - best), results[0], atol=1e-9
        )


def test_many_texts_may_have_targets_of_their_own(masked):
    texts = ["the [MASK] are", "a [MASK] is", "no [MASK]"]
    together = blank_out(masked, texts, target=["keys", None, 11])
    for text, target, one in zip(texts, ["keys", None, "is"], together, strict=True):
        alone = blank_out(masked, text, target=target)
        np.testing.assert_allclose(one, alone, atol=1e-6)
    for target, message in (
        ([["keys"], "a", "is"], "target"),
        (["keys"], "target.*1.*3 inputs"),
        ("keys key", "target.*'keys key'.*2 tokens"),
        (99, "target.*99.*21"),
    ):
        with pytest.raises(attnflow.OptionError, match=message):
            blank_out(masked, texts, target=target)
    with pytest.raises(attnflow.OptionError, match="one input"):
        blank_out(masked, texts[0], target=["keys"])


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mistral"])
@pytest.mark.parametrize("reference", REFERENCES)
def test_what_follows_the_position_of_a_causal_model_does_not_matter(name, reference):
    explainer = build(name)
    result = importance(explainer, TEXT, reference=reference, position=3)
    assert len(result) == 7
    np.testing.assert_array_equal(result[4:], 0)
    alone = importance(explainer, "the keys to the", reference=reference)
    np.testing.assert_allclose(result[:4], alone, atol=1e-6)
    assert min(alone) > 0


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_follows_matters_where_a_model_that_writes_looks_ahead(reference):
    config = transformers.BertConfig(**SIZES, is_decoder=False)
    explainer = Explainer(sharpen(transformers.BertLMHeadModel(config), 0.5), encoder_tokenizer())
    assert explainer.task == "causal-lm"
    found = importance(explainer, TEXT, reference=reference, position=3)
    if reference == "integrated_gradients":
        found = found[1:-1]  # special tokens are part of the baseline
    elif reference == "input_gradient":
        # Behind layer normalisation it is only what rounding leaves, which may be 0 for a token.
        found = [max(found[4:])]
    assert min(found) > 0


def test_the_mask_is_replaced_like_any_other_token_and_asked_at_its_place(masked):
    place = MASKED.split().index("[MASK]") + 1
    result = blank_out(masked, MASKED)
    assert result[place] == pytest.approx(blank_out_loop(masked, MASKED)[place], abs=1e-6)
    assert result[place] > 0
    # A mask that replaces a mask changes nothing.
    by_mask = blank_out(masked, MASKED, replacement="mask")
    assert by_mask[place] == 0
    expected = blank_out_loop(masked, MASKED, fill=IDS["[MASK]"])
    np.testing.assert_allclose(by_mask, expected, atol=1e-6)


def test_a_token_that_is_the_replacement_already_does_not_matter(classifier):
    assert blank_out(classifier, "the unheard film")[2] == 0
    assert blank_out(classifier, "the film", replacement="film")[2] == 0


@pytest.mark.parametrize(
    ("replacement", "fill"),
    [("unk", "[UNK]"), ("mask", "[MASK]"), ("[PAD]", None), ("film", "film"), (13, "table")],
)
def test_the_replacement_can_be_chosen(classifier, replacement, fill):
    if fill is None:
        with pytest.raises(attnflow.OptionError, match=r"replacement.*\[PAD\].*padding"):
            blank_out(classifier, TEXT, replacement=replacement)
        return
    expected = blank_out_loop(classifier, TEXT, fill=IDS[fill])
    result = blank_out(classifier, TEXT, replacement=replacement)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_without_unk_masks_replace_and_without_either_one_must_choose(classifier, decoder):
    masks = Explainer(classifier.model, encoder_tokenizer(unk_token=None))
    expected = blank_out_loop(classifier, TEXT, fill=IDS["[MASK]"])
    np.testing.assert_allclose(blank_out(masks, TEXT), expected, atol=1e-6)
    neither = Explainer(decoder.model, decoder_tokenizer(unk_token=None))
    with pytest.raises(attnflow.OptionError, match=r"UNK.*MASK"):
        blank_out(neither, TEXT)
    expected = blank_out_loop(decoder, TEXT, fill=IDS["a"])
    np.testing.assert_allclose(blank_out(neither, TEXT, replacement="a"), expected, atol=1e-6)


def test_a_decoder_classifies_at_the_last_token_also_if_that_becomes_padding():
    # As for GPT-2, whose tokenizer has one token for the end, for UNK, and mostly for padding.
    explainer = build("GPT-2, classifying", pad_token_id=1)
    explainer.tokenizer = decoder_tokenizer(pad_token="[UNK]")
    alone = build("GPT-2, classifying", pad_token_id=None)
    expected = blank_out_loop(alone, TEXT)
    np.testing.assert_allclose(blank_out(explainer, TEXT), expected, atol=1e-6)
    together = blank_out(explainer, [TEXT, "a film", "keys"])
    np.testing.assert_allclose(together[0], expected, atol=1e-6)
    # Without a token for padding, transformers itself refuses more than one text at a time.
    np.testing.assert_allclose(blank_out(alone, TEXT), expected, atol=1e-6)
    assert (explainer.model.config.pad_token_id, alone.model.config.pad_token_id) == (1, None)


# ---- Images --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["ViT", "DeiT", "Dinov2"])
def seeing(request):
    config = getattr(transformers, f"{request.param}Config")(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=24,
        patch_size=8,
        num_labels=3,
    )
    model = getattr(transformers, f"{request.param}ForImageClassification")(config)
    processor = transformers.ViTImageProcessorPil(size={"height": 24, "width": 24})
    return Explainer(sharpen(model, 0.3), processor)


def test_patches_are_painted_over_one_by_one(seeing):
    pixels = seeing.tokenizer(images=[photo()], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        whole = seeing.model(pixels).logits[0].double().softmax(-1)
        special = len(seeing.explain(photo(), method="raw").tokens) - 9
        expected = [0.0] * special
        for row in range(3):
            for column in range(3):
                painted = pixels.clone()
                painted[..., 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
                p = seeing.model(painted).logits[0].double().softmax(-1)
                expected.append(abs(float(whole.max() - p[whole.argmax()])))
    np.testing.assert_allclose(blank_out(seeing, photo()), expected, atol=1e-6)
    together = blank_out(seeing, [photo(1), photo()])
    np.testing.assert_allclose(together[1], expected, atol=1e-6)
    assert max(expected) > 1e-3


def test_what_is_not_for_images_is_refused(seeing):
    for options, message in (
        ({"replacement": "mask"}, "replacement.*'mask'.*images"),
        ({"position": "last"}, "position.*'last'.*auto.*cls"),
        ({"target": 3}, "target.*3"),
    ):
        with pytest.raises(attnflow.OptionError, match=message):
            blank_out(seeing, photo(), **options)


def test_gradients_of_an_image_are_those_of_finite_differences(seeing):
    model = copy.deepcopy(seeing.model).double()
    explainer = Explainer(model, seeing.tokenizer)
    pixels = seeing.tokenizer(images=[photo()], return_tensors="pt")["pixel_values"].double()
    embeddings = next(module for module in model.modules() if hasattr(module, "patch_embeddings"))

    def probability(token, size, by_input):
        def move(_module, _inputs, output):
            moved = output.clone()
            moved[:, token] += size * (moved[:, token] if by_input else 1.0)
            return moved

        handle = embeddings.register_forward_hook(move)
        with torch.no_grad():
            p = model(pixels).logits[0].softmax(-1)[2]
        handle.remove()
        return float(p)

    for function, by_input in ((input_gradient, False), (gradient_x_input, True)):
        result = function(explainer, photo(), target=2)
        expected = [
            abs(probability(token, 1e-5, by_input) - probability(token, -1e-5, by_input)) / 2e-5
            for token in range(len(result))
        ]
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-9)


# ---- The model is left as it was found -----------------------------------------------------------


def state_of(model):
    return [
        (
            module.training,
            dict(module._forward_hooks),
            dict(module._forward_pre_hooks),
            set(vars(module)),
        )
        for module in model.modules()
    ] + [
        (parameter.requires_grad, parameter.grad, parameter._version)
        for parameter in model.parameters()
    ]


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_model_is_left_as_it_was_found(reference):
    explainer = build("BERT")
    model = explainer.model
    expected = importance(explainer, TEXT, reference=reference)
    model.train()
    model.bert.encoder.eval()
    model.classifier.weight.requires_grad_(False)
    before, config = state_of(model), model.config.to_dict()
    enabled = torch.is_grad_enabled()
    np.testing.assert_array_equal(importance(explainer, TEXT, reference=reference), expected)
    assert state_of(model) == before
    assert model.config.to_dict() == config
    assert torch.is_grad_enabled() == enabled

    def fail(*_):
        raise RuntimeError("out of order")

    handle = model.classifier.register_forward_pre_hook(fail)
    before = state_of(model)
    with pytest.raises(attnflow.ModelError, match="out of order"):
        importance(explainer, TEXT, reference=reference)
    assert state_of(model) == before
    assert model.config.to_dict() == config
    handle.remove()


def test_threads_that_share_a_model_take_turns():
    explainer = build("BERT")
    expected = {name: importance(explainer, TEXT, reference=name) for name in REFERENCES}
    explainer.model.train()
    with ThreadPoolExecutor(4) as pool:
        names = [name for name in REFERENCES for _ in range(3)]
        found = list(pool.map(lambda name: importance(explainer, TEXT, reference=name), names))
    for name, result in zip(names, found, strict=True):
        np.testing.assert_allclose(result, expected[name], atol=1e-7)
    assert explainer.model.training


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_references_work_where_gradients_are_off_and_parameters_frozen(reference, context):
    explainer = build("BERT")
    expected = importance(explainer, TEXT, reference=reference)
    explainer.model.requires_grad_(False)
    with context():
        np.testing.assert_array_equal(importance(explainer, TEXT, reference=reference), expected)


def test_a_forward_pass_that_turns_gradients_off_is_an_error(one_word):
    inner = one_word.model.forward

    def forward(input_ids=None, return_dict=True):
        with torch.no_grad():
            return inner(input_ids)

    one_word.model.forward = forward
    with pytest.raises(attnflow.ModelError, match=r"gradient.*OneWord"):
        input_gradient(one_word, TEXT)


def test_a_bfloat16_model_is_measured(classifier):
    model = copy.deepcopy(classifier.model).bfloat16()
    explainer = Explainer(model, classifier.tokenizer)
    for reference in REFERENCES:
        result = importance(explainer, TEXT, reference=reference)
        assert result.dtype == np.float64
        assert np.isfinite(result).all()


def test_long_texts_run_in_smaller_batches(classifier, monkeypatch):
    expected = blank_out(classifier, TEXT)
    sizes = []
    inner = answers.run

    def run(explainer, readings):
        sizes.append(len(readings))
        return inner(explainer, readings)

    monkeypatch.setattr(answers, "run", run)
    np.testing.assert_allclose(blank_out(classifier, TEXT, batch_size=4), expected, atol=1e-6)
    assert sizes == [1, 4, 4, 1]
    sizes.clear()
    monkeypatch.setattr(answers, "WAITING_POSITIONS", 9 * 3)
    np.testing.assert_allclose(blank_out(classifier, TEXT), expected, atol=1e-6)
    assert max(sizes) == 4
    sizes.clear()
    monkeypatch.setattr(answers, "BATCH_LOGITS", 2 * 8 * len(WORDS))
    blank_out(build("ALBERT"), MASKED)
    assert max(sizes) == 2


# ---- What cannot be measured ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "shapley"}, "reference.*'shapley'.*blank_out.*input_gradient"),
        (
            {"reference": "input_gradient", "replacement": "unk"},
            "replacement.*'unk'.*reference.*'input_gradient'",
        ),
        ({"replacement": "unheard"}, "replacement.*'unheard'"),
        ({"replacement": "the keys"}, "replacement.*'the keys'"),
        ({"replacement": 21}, "replacement.*21.*21 tokens"),
        ({"replacement": -1}, "replacement.*0.*20"),
        ({"replacement": True}, "replacement.*True.*'auto'.*'unk'.*'mask'"),
        ({"replacement": 1.5}, "replacement.*1.5"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"batch_size": True}, "batch_size.*True"),
        ({"position": "first"}, "position.*'first'.*auto.*cls.*mask.*last"),
        ({"position": 30}, "position.*30"),
        ({"target": "fine"}, "target.*'fine'.*bad.*good"),
        ({"target": 2}, "target.*2"),
        ({"truncate": "yes"}, "truncate.*'yes'"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(classifier, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        importance(classifier, TEXT, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text.*empty"),
        ([], "inputs.*empty"),
        (7, r"inputs.*\bint\b"),
        (["a film", None], "text.*NoneType"),
        ("the " * 40, "42 tokens.*32"),
    ],
)
def test_a_text_that_cannot_be_measured_says_why(classifier, text, message):
    with pytest.raises(attnflow.TextError, match=message):
        importance(classifier, text)


def test_a_long_text_is_cut_only_when_told_to(classifier):
    assert len(blank_out(classifier, "the " * 40, truncate=True)) == 32


def test_models_without_a_probability_are_refused(classifier):
    tokenizer = encoder_tokenizer()
    encoder = transformers.BertModel(transformers.BertConfig(**SIZES))
    with pytest.raises(attnflow.ModelError, match=r"BertModel.*head"):
        blank_out(Explainer(encoder, tokenizer), TEXT)
    kind = transformers.BertForSequenceClassification
    regression = kind(transformers.BertConfig(**SIZES, num_labels=1))
    with pytest.raises(attnflow.ModelError, match="single output"):
        input_gradient(Explainer(regression, tokenizer), TEXT)
    with pytest.raises(attnflow.OptionError, match=r"explainer.*Bert.*Explainer"):
        blank_out(encoder, TEXT)


def test_logits_that_are_no_numbers_are_an_error(one_word):
    with torch.no_grad():
        one_word.model.head.bias[0] = torch.nan
    with pytest.raises(attnflow.ModelError, match="logits"):
        blank_out(one_word, TEXT)


def test_importing_the_references_imports_no_torch():
    code = (
        "import sys, attnflow.importance, attnflow.evaluate.faithfulness\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
