"""Every architecture that is said to be supported, from a text to explanations, on tiny models.

What the numbers are is compared elsewhere with other ways to have them. Here each model goes the
whole way, through each method and each kind of edge.
"""

import copy

import numpy as np
import pytest
import torch

import attnflow
from attnflow.models import Explainer
from tests.support.architectures import CAUSAL, MODELS, build, state_of, unusual
from tests.support.text import VOCABULARY, decoder_tokenizer
from tests.support.tiny import wordpiece_tokenizer

# DeBERTa's code does this when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

METHODS = ("raw", "rollout", "flow")
EDGES = ("attention", "gradient", "effective", "value_norm")
TEXTS = ["the keys to the cabinet are on a table", "a film", "no one will forget that film"]


def explainer_of(name):
    model = build(name)
    causal = name in CAUSAL
    tokenizer = decoder_tokenizer() if causal else wordpiece_tokenizer(VOCABULARY)
    return Explainer(model, tokenizer)


def inputs_of(explainer):
    """The texts, with a mask in each for a masked language model."""
    if explainer.task != "masked-lm":
        return TEXTS
    return [text.replace("film", "[MASK]").replace("table", "[MASK]") for text in TEXTS]


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def explainer(name):
    return explainer_of(name)


def test_what_it_is_for_and_which_position_is_explained_is_known(name, explainer):
    text = inputs_of(explainer)[0]
    explanation = explainer.explain(text, method="rollout")
    ids = explainer.tokenizer(text)["input_ids"]
    if name in CAUSAL:
        assert explainer.task == "causal-lm"
        position = len(ids) - 1
    elif MODELS[name][0].endswith("ForMaskedLM"):
        assert explainer.task == "masked-lm"
        position = ids.index(explainer.tokenizer.mask_token_id)
    else:
        assert explainer.task == "classification"
        position = 0
    assert explanation.position == position
    assert explanation.options["receptive_field"] is (name in CAUSAL)
    with torch.no_grad():
        logits = explainer.model(torch.tensor([ids])).logits[0]
    logits = logits if logits.ndim == 1 else logits[position]
    assert explanation.prediction.index == int(logits.argmax())
    expected = float(logits.softmax(0).max())
    assert explanation.prediction.probability == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_models_own_attention(name, explainer, method):
    text = inputs_of(explainer)[0]
    model = copy.deepcopy(explainer.model)
    model.set_attn_implementation("eager")
    ids = explainer.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    function = {
        "raw": attnflow.raw_attention,
        "rollout": attnflow.attention_rollout,
        "flow": attnflow.attention_flow,
    }[method]
    explanation = explainer.explain(text, method=method, receptive_field=False)
    expected = function(attentions)[:, explanation.position]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-5)


@pytest.mark.parametrize("edges", EDGES)
def test_every_method_goes_with_every_kind_of_edge(name, explainer, edges):
    for method in METHODS:
        explanation = explainer.explain(inputs_of(explainer)[0], method=method, edges=edges)
        assert (explanation.scores >= 0).all()
        assert explanation.options["edges"] == edges
        # Flow is no share, unless it is related to that of uniform attention.
        if method != "flow" or name in CAUSAL:
            assert explanation.scores.sum() == pytest.approx(1)
        else:
            assert explanation.scores.sum() > 0


@pytest.mark.parametrize("edges", EDGES)
def test_many_texts_equal_themselves_alone(explainer, edges):
    texts = inputs_of(explainer)
    several = explainer.explain(texts, method="rollout", edges=edges)
    for text, together in zip(texts, several, strict=True):
        alone = explainer.explain(text, method="rollout", edges=edges)
        assert together.tokens == alone.tokens
        assert together.prediction.index == alone.prediction.index
        np.testing.assert_allclose(together.layer_scores, alone.layer_scores, atol=1e-5)


def test_the_model_is_left_as_it_was_found(name):
    explainer = explainer_of(name)
    unusual(explainer.model)
    before = state_of(explainer.model)
    for edges in EDGES:
        explainer.explain(inputs_of(explainer), method="rollout", edges=edges)
    if name in CAUSAL:
        explainer.generate("the keys to", max_new_tokens=2, method="rollout")
    assert state_of(explainer.model) == before


def test_a_decoder_in_train_mode_writes_without_dropout():
    dropout = {"resid_pdrop": 0.9, "embd_pdrop": 0.9, "attn_pdrop": 0.9}
    written = []
    for training in (False, True):
        explainer = Explainer(build("GPT-2", **dropout).train(training), decoder_tokenizer())
        steps = explainer.generate("the keys to", max_new_tokens=8, method="raw")
        written.append([step.target for step in steps])
        assert explainer.model.training is training
    assert written[0] == written[1]


def test_contributions_add_up_to_the_answer(explainer):
    for text in inputs_of(explainer):
        explanation = explainer.explain(text)
        assert explanation.method == "contribution"
        assert explanation.notes == ()
        size = np.abs(explanation.scores).sum()
        error = explanation.scores.sum() + explanation.bias - explanation.value
        assert abs(error) < 1e-4 * size
        ids = explainer.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = explainer.model(ids).logits[0].double()
        row = logits if logits.ndim == 1 else logits[explanation.position]
        own = row[explanation.prediction.index]
        others = row.sum() - own
        mean = others / (len(row) - 1) if logits.ndim == 1 else row.mean()
        assert explanation.value == pytest.approx(float(own - mean), abs=1e-4)


def test_contributions_of_many_texts_equal_themselves_alone(explainer):
    texts = inputs_of(explainer)
    for texts_ in (texts, texts[::-1]):
        for text, together in zip(texts_, explainer.explain(texts_), strict=True):
            alone = explainer.explain(text)
            np.testing.assert_allclose(together.scores, alone.scores, atol=2e-4)
            assert together.bias == pytest.approx(alone.bias, abs=2e-4)


def test_what_flowed_is_conserved_from_layer_to_layer(explainer):
    explanation = explainer.explain(inputs_of(explainer)[0])
    carried = explanation.trace.carried
    if carried is None:
        # Their attention can be read, and not followed.
        assert type(explainer.model).__name__.startswith(("Deberta", "MPNet"))
        return
    np.testing.assert_allclose(carried.sum(axis=1), explanation.layer_scores, atol=1e-5)
    np.testing.assert_allclose(carried[0].sum(axis=0), explanation.scores, atol=1e-5)
    # What arrives at a position and does not leave it is what biases add there.
    biases = carried[1:].sum(axis=1) - carried[:-1].sum(axis=2)
    below = explanation.value - carried[-1].sum() + biases.sum()
    assert below == pytest.approx(explanation.bias, abs=1e-3)
