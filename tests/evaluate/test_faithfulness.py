"""Faithfulness, by hand on a model that adds up words, and against a plain loop on others."""

import math

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.modeling_outputs import SequenceClassifierOutput

import attnflow
from attnflow.evaluate import faithfulness as module
from attnflow.evaluate.faithfulness import FRACTIONS, Faithfulness, faithfulness
from attnflow.models import Explainer
from tests.support.tiny import sharpen

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]
IDS = {word: index for index, word in enumerate(WORDS)}
# What each word adds to the log-odds of the second class; special tokens add nothing.
WEIGHTS = np.array([0, 0, 0, 0, 0, *(0.25 * k for k in range(1, 21))])
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
}
TEXT = "b g a t c f e d j h"


def tokenizer(around=True):
    """Letters, between CLS and SEP or by themselves."""
    inner = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if around:
        inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("unk", "pad", "cls", "sep", "mask")
    given = {f"{name}_token": f"[{name.upper()}]" for name in names}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **given)


class SumForSequenceClassification(transformers.PreTrainedModel):
    """The log-odds of the second class are the sum of the words' weights, wherever they stand."""

    config_class = transformers.BertConfig

    def __init__(self, config):
        super().__init__(config)
        self.weights = torch.nn.Embedding(len(WORDS), 1)
        self.post_init()
        with torch.no_grad():
            self.weights.weight[:, 0] = torch.tensor(WEIGHTS)

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        return self.weights

    def forward(self, input_ids=None, attention_mask=None, return_dict=True):
        total = self.weights(input_ids).sum(dim=1)
        return SequenceClassifierOutput(logits=torch.cat([torch.zeros_like(total), total], dim=1))


@pytest.fixture(scope="module")
def adding():
    model = SumForSequenceClassification(transformers.BertConfig(**SIZES)).double().eval()
    return Explainer(model, tokenizer())


@pytest.fixture(scope="module")
def classifier():
    config = transformers.BertConfig(**SIZES, num_labels=3)
    return Explainer(sharpen(transformers.BertForSequenceClassification(config)), tokenizer())


@pytest.fixture(scope="module")
def masked():
    config = transformers.BertConfig(**SIZES)
    return Explainer(sharpen(transformers.BertForMaskedLM(config)), tokenizer())


@pytest.fixture(scope="module")
def decoder():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1)
    return Explainer(sharpen(transformers.LlamaForCausalLM(config)), tokenizer(around=False))


def logistic(x):
    return 1 / (1 + math.exp(-x))


def weights_of(text):
    return np.array([WEIGHTS[IDS[word]] for word in text.split()])


# ---- By hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("removal", ["auto", "delete", "unk", "mask", "[UNK]", 1])
def test_measures_are_as_worked_out_by_hand_where_words_add_up(adding, removal):
    # Ten words of weights 0.5 1.75 0.25 5 0.75 1.5 1.25 1 2.5 2; the highest are 5, 2.5, 2, 1.75
    # and 1.5, and all of them are 16.5. With the fractions 0.1, 0.2, 0.3 and 0.5, one, two, three
    # and five words go.
    scores = [9.0, *weights_of(TEXT), 9.0]
    left = [11.5, 9.0, 7.0, 5.25, 3.75]
    kept = [5.0, 7.5, 9.5, 12.75]
    p = logistic(16.5)
    removed = [left[0], left[1], left[2], left[4]]
    result = faithfulness(adding, TEXT, scores, target=1, removal=removal)
    assert isinstance(result, Faithfulness)
    assert result.comprehensiveness == pytest.approx(
        sum(p - logistic(x) for x in removed) / 4, abs=1e-14
    )
    assert result.sufficiency == pytest.approx(sum(p - logistic(x) for x in kept) / 4, abs=1e-14)
    assert result.aopc == pytest.approx(sum(p - logistic(x) for x in left) / 6, abs=1e-14)
    assert result.log_odds == pytest.approx(sum(x - 16.5 for x in removed) / 4, abs=1e-9)
    shares = [11.5, 9.0, 7.0, 5.25, 3.75, 2.5, 1.5, 0.75, 0.25, 0.0]
    assert result.aopc_shares == pytest.approx(sum(p - logistic(x) for x in shares) / 10, abs=1e-14)


def test_the_right_scores_are_more_faithful_than_any_others(adding):
    rng = np.random.default_rng(0)
    right = np.array([0, *weights_of(TEXT), 0])
    others = [rng.permutation(right) for _ in range(20)]
    best, *rest = faithfulness(adding, [TEXT] * 21, [right, *others])
    worst = faithfulness(adding, TEXT, -right)
    for other in (*rest, worst):
        assert best.comprehensiveness >= other.comprehensiveness
        assert best.sufficiency <= other.sufficiency
        assert best.aopc >= other.aopc
        assert best.log_odds <= other.log_odds
    assert worst.log_odds == min(0, max(other.log_odds for other in (*rest, worst)))


def test_special_tokens_and_masks_stay_whatever_they_score(adding):
    text = "a [MASK] c unheard"
    low, high = (
        faithfulness(adding, text, [s, 1.0, s, 3.0, 2.0, s], fractions=[1.0]) for s in (-9, 9)
    )
    assert low == high
    # Removed one by one: c, of weight 0.75, an unknown word of none, and a, of 0.25.
    curve = [0, *(logistic(1.0) - logistic(x) for x in (0.25, 0.25, 0.0))]
    assert high.aopc == pytest.approx(np.mean(curve), abs=1e-14)


def test_equal_scores_are_removed_from_left_to_right(adding):
    flat = faithfulness(adding, TEXT, np.zeros(12))
    falling = faithfulness(adding, TEXT, -np.arange(12.0))
    assert flat == falling


def test_the_target_is_the_prediction_for_the_whole_text_or_what_is_given(adding):
    scores = [0.0, *weights_of(TEXT), 0.0]
    assert faithfulness(adding, TEXT, scores) == faithfulness(adding, TEXT, scores, target=1)
    other = faithfulness(adding, TEXT, scores, target=0)
    assert other.comprehensiveness == pytest.approx(
        -faithfulness(adding, TEXT, scores).comprehensiveness
    )
    assert other.log_odds > 0


def test_one_token_at_least_is_removed_and_halves_are_rounded_up(adding):
    scores = [0.0, 1.0, 2.0, 0.0]  # a, of weight 0.25, and then b, of 0.5
    one = faithfulness(adding, "a b", scores, fractions=[0.01])
    assert one.log_odds == pytest.approx(-0.5)
    assert faithfulness(adding, "a b", scores, fractions=[0.74]) == one
    assert faithfulness(adding, "a b", scores, fractions=[0.75]).log_odds == pytest.approx(-0.75)


# ---- Against a plain loop ------------------------------------------------------------------------


def plain(explainer, text, scores, fill=None, fractions=FRACTIONS, shares=range(10, 101, 10)):
    """The five measures as their definitions read, one forward pass after the other."""
    reader, model = explainer.tokenizer, explainer.model
    ids = reader(text)["input_ids"]

    def answer(gone):
        left = (
            [one for i, one in enumerate(ids) if i not in gone]
            if fill is None
            else [fill if i in gone else one for i, one in enumerate(ids)]
        )
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([left])).logits[0].double()
        if explainer.task == "masked-lm":
            # Before the mask, tokens may be gone, or replaced by further masks.
            place = ids.index(IDS["[MASK]"])
            logits = logits[place - (fill is None) * sum(i < place for i in gone)]
        elif explainer.task == "causal-lm":
            logits = logits[-1]
        return logits.softmax(-1).numpy()

    removable = [i for i, one in enumerate(ids) if one not in (2, 3, 4)]
    order = sorted(removable, key=lambda i: (-scores[i], i))
    counts = [max(1, int(fraction * len(order) + 0.5)) for fraction in fractions]
    whole = answer(set())
    y = whole.argmax()
    p = whole[y]
    without = {k: answer(set(order[:k]))[y] for k in range(max(counts) + 1)}
    only = {k: answer(set(order[k:]))[y] for k in counts}
    drops = []
    for share in shares:
        gone = order[: max(1, int(share * len(order) / 100 + 0.5))]
        # A model without special tokens has nothing left to read where everything is deleted.
        if fill is not None or len(gone) < len(ids):
            drops.append(p - answer(set(gone))[y])
    return Faithfulness(
        np.mean([p - without[k] for k in counts]),
        np.mean([p - only[k] for k in counts]),
        np.mean([p - without[k] for k in range(max(counts) + 1)]),
        np.mean([np.log(without[k] / (1 - without[k]) * (1 - p) / p) for k in counts]),
        np.mean(drops),
    )


@pytest.mark.parametrize("fixture", ["classifier", "masked", "decoder"])
@pytest.mark.parametrize("removal", ["delete", "unk", "mask"])
def test_measures_are_those_of_a_plain_loop(request, fixture, removal):
    explainer = request.getfixturevalue(fixture)
    mask = " [MASK] k" if explainer.task == "masked-lm" else ""
    texts = [f"{text}{mask}" for text in (TEXT, "a b c", "q r s t a b", "c a", TEXT)]
    rng = np.random.default_rng(0)
    scores = [rng.random(len(explainer.tokenizer(text)["input_ids"])) for text in texts]
    found = faithfulness(explainer, texts, scores, removal=removal, batch_size=5)
    for text, values, result in zip(texts, scores, found, strict=True):
        fill = {"delete": None, "unk": IDS["[UNK]"], "mask": IDS["[MASK]"]}[removal]
        expected = plain(explainer, text, values, fill)
        np.testing.assert_allclose(result, expected, atol=1e-5)
        alone = faithfulness(explainer, text, values, removal=removal)
        np.testing.assert_allclose(result, alone, atol=1e-5)
    assert np.ptp([result.aopc for result in found]) > 1e-3


def test_what_follows_the_position_of_a_causal_model_stays_out_of_it(decoder):
    scores = np.random.default_rng(0).random(10)
    expected = faithfulness(decoder, "b g a t c", scores[:5])
    for values in (scores, scores[:5]):
        found = faithfulness(decoder, TEXT, values, position=4)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_source_and_a_target_lose_tokens_together():
    config = transformers.T5Config(
        vocab_size=len(WORDS),
        d_model=16,
        num_layers=2,
        num_heads=2,
        d_kv=8,
        d_ff=16,
        decoder_start_token_id=0,
        eos_token_id=3,
        pad_token_id=0,
    )
    reader = tokenizer(around=False)
    explainer = Explainer(sharpen(transformers.T5ForConditionalGeneration(config)), reader)

    def probability(source, target):
        with torch.no_grad():
            outputs = explainer.model(
                input_ids=torch.tensor([[IDS[word] for word in source]]),
                decoder_input_ids=torch.tensor([[0, *(IDS[word] for word in target)]]),
            )
        return float(outputs.logits[0, -1].double().softmax(-1)[9])

    # a, b and c, the start of the target, d and e; removed are e, b and d, in this order.
    scores = [0.1, 0.5, 0.2, 9.0, 0.4, 0.6]
    found = faithfulness(explainer, ("a b c", "d e"), scores, target=9, fractions=[0.6])
    p = probability("abc", "de")
    curve = [0, *(p - x for x in (probability("abc", "d"), probability("ac", "d")))]
    curve.append(p - probability("ac", ""))
    assert found.comprehensiveness == pytest.approx(curve[-1], abs=1e-6)
    assert found.sufficiency == pytest.approx(p - probability("b", "de"), abs=1e-6)
    assert found.aopc == pytest.approx(np.mean(curve), abs=1e-6)


def test_patches_are_painted_over_and_cannot_be_deleted():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=24,
        patch_size=8,
        num_labels=3,
    )
    processor = transformers.ViTImageProcessorPil(size={"height": 24, "width": 24})
    model = sharpen(transformers.ViTForImageClassification(config))
    explainer = Explainer(model, processor)
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    pixels = processor(images=[image], return_tensors="pt")["pixel_values"]
    painted = pixels.clone()
    painted[..., 0:8, 16:24] = 0
    with torch.no_grad():
        p, without = (model(one).logits[0].double().softmax(-1) for one in (pixels, painted))
    scores = [9, 0, 1, 5, 2, 3, 0, 0, 0, 0]  # the third patch first
    found = faithfulness(explainer, image, scores, fractions=[0.1])
    expected = float(p.max() - without[p.argmax()])
    assert found.comprehensiveness == pytest.approx(expected, abs=1e-6)
    with pytest.raises(attnflow.OptionError, match="patches"):
        faithfulness(explainer, image, scores, removal="delete")


def test_texts_that_come_again_run_once(classifier, monkeypatch):
    runs = []
    inner = module.answers

    def answers(explainer, readings, batch_size):
        readings = list(readings)
        runs.append(len(readings))
        return inner(explainer, readings, batch_size)

    monkeypatch.setattr(module, "answers", answers)
    scores = np.arange(12.0)
    once = faithfulness(classifier, TEXT, scores)
    again = faithfulness(classifier, [TEXT] * 3, [scores] * 3)
    assert runs[0] == runs[1] == 14  # 1 to 10 removed, and 1, 2, 3 and 5 kept
    np.testing.assert_allclose(again, [once] * 3, atol=1e-6)
    runs.clear()
    monkeypatch.setattr(module, "WINDOW", 10)
    np.testing.assert_allclose(faithfulness(classifier, [TEXT] * 3, [scores] * 3), again, atol=1e-6)
    assert len(runs) > 1


def test_it_is_nan_where_nothing_can_be_removed_or_would_be_left(masked, decoder):
    assert np.isnan(faithfulness(masked, "[MASK]", [0.0, 0.0, 0.0])).all()
    alone = faithfulness(decoder, "a", [1.0])
    assert np.isnan([alone.comprehensiveness, alone.aopc, alone.log_odds]).all()
    assert alone.sufficiency == pytest.approx(0, abs=1e-6)
    # Replaced instead of deleted, the token leaves something to read.
    assert np.isfinite(faithfulness(decoder, "a", [1.0], removal="unk")).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": np.zeros(10)}, r"scores.*\(10,\).*12 tokens"),
        ({"scores": np.zeros((1, 12))}, r"scores.*\(1, 12\)"),
        ({"scores": [np.nan] * 12}, "scores.*nan"),
        ({"scores": "abc"}, "scores.*'abc'"),
        ({"scores": None}, "scores"),
        ({"fractions": []}, "fractions.*0.*1"),
        ({"fractions": [0.0]}, "fractions"),
        ({"fractions": [1.5]}, "fractions"),
        ({"fractions": 0.5}, "fractions.*0.5"),
        ({"fractions": ["half"]}, "fractions"),
        ({"removal": "unheard"}, "removal.*'unheard'"),
        ({"removal": 99}, "removal.*99.*25 tokens"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"target": 5}, "target.*5.*3"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(classifier, options, message):
    given = {"scores": np.zeros(12), **options}
    with pytest.raises(attnflow.OptionError, match=message):
        faithfulness(classifier, TEXT, **given)


def test_many_texts_need_as_many_lists_of_scores(classifier):
    with pytest.raises(attnflow.OptionError, match=r"scores.*1.*2 texts"):
        faithfulness(classifier, [TEXT, TEXT], [np.zeros(12)])
    with pytest.raises(attnflow.OptionError, match=r"scores\[1\].*\(3,\)"):
        faithfulness(classifier, [TEXT, TEXT], [np.zeros(12), np.zeros(3)])
