"""Capturing a model's attention: what comes out, and what the model is like afterwards."""

import copy
import gc
import logging
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert

import attnflow
from attnflow.capture import Captured, capture, recording
from attnflow.capture.interface import NAME
from tests.support.architectures import (
    CAUSAL,
    MODELS,
    ROPE,
    SMALL,
    build,
    score_of,
    state_of,
    texts,
    unusual,
)

# DeBERTa's code does this when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

# ---- Models --------------------------------------------------------------------------------------


def own_attention(model, inputs):
    """What an eager copy of a model returns by itself: logits and attention."""
    eager = type(model)(eager_config(model.config)).eval().to(model.dtype)
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        outputs = eager(**inputs, output_attentions=True)
    return outputs.logits, outputs.attentions


def eager_config(config):
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    return config


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture(params=CAUSAL)
def causal_name(request):
    return request.param


@pytest.fixture
def bert():
    return build("BERT")


# ---- The weights ---------------------------------------------------------------------------------


def test_weights_are_those_the_model_returns_with_eager_attention(name):
    model, inputs = build(name), texts(7, 5)
    captured = capture(model, inputs, heads=None)
    _, attentions = own_attention(model, inputs)
    assert len(captured.layers) == len(attentions) == model.config.num_hidden_layers
    for layer, expected in zip(captured.layers, attentions, strict=True):
        assert layer.shape == (2, 4, 7, 7)
        torch.testing.assert_close(layer, expected, atol=1e-5, rtol=0)
    # Attention that is all but uniform would agree with nearly anything.
    assert captured.layers[0].amax() > 0.5


def test_outputs_are_those_of_the_model_as_it_is(name):
    model, inputs = build(name), texts(7, 5)
    with torch.no_grad():
        expected = model(**inputs)
    outputs = capture(model, inputs).outputs
    real = inputs["attention_mask"].bool() if expected.logits.ndim == 3 else slice(None)
    assert type(outputs) is type(expected)
    torch.testing.assert_close(outputs.logits[real], expected.logits[real], atol=1e-5, rtol=1e-5)
    assert "attentions" not in outputs
    assert "past_key_values" not in outputs


def test_rows_sum_to_one_for_every_fusion(name):
    model, inputs = build(name), texts(6)
    for heads in ("mean", "max", "min", "sum", 0, -1):
        for layer in capture(model, inputs, heads=heads).layers:
            assert (layer.shape, layer.dtype) == ((1, 6, 6), torch.float32)
            torch.testing.assert_close(layer.sum(-1), torch.ones(1, 6), atol=1e-5, rtol=0)


def test_heads_fused_as_they_pass_equal_heads_fused_afterwards(name):
    model, inputs = build(name), texts(6)
    every_head = capture(model, inputs, heads=None).layers
    for heads in ("mean", "max", "min", "sum", 2, -1):
        fused = capture(model, inputs, heads=heads).layers
        np.testing.assert_allclose(
            attnflow.AttentionGraph([layer[0] for layer in fused]).attention,
            attnflow.AttentionGraph(every_head, heads=heads).attention,
            atol=1e-6,
        )


def test_attention_of_a_causal_model_is_causal(causal_name):
    layers = capture(build(causal_name), texts(6)).layers
    assert attnflow.AttentionGraph([layer[0] for layer in layers]).causal


def test_attention_of_an_encoder_is_not_causal(bert):
    layers = capture(bert, texts(6)).layers
    assert not attnflow.AttentionGraph([layer[0] for layer in layers]).causal


def test_a_sliding_window_is_seen():
    for layer in capture(build("Mistral"), texts(8)).layers:
        assert torch.equal(layer[0] > 0, torch.ones(8, 8).tril().triu(-2) > 0)


def test_local_and_global_layers_are_told_apart():
    layers = capture(build("ModernBERT"), texts(8)).layers
    near = (torch.arange(8)[:, None] - torch.arange(8)).abs() <= 2
    assert [bool(((layer[0] > 0) == near).all()) for layer in layers] == [False, True, False]


def test_layers_that_share_their_weights_are_layers_of_their_own():
    model = build("ALBERT", num_hidden_layers=5)
    layers = capture(model, texts(6)).layers
    assert len(layers) == 5
    assert not torch.allclose(layers[0], layers[1])


def test_a_group_of_albert_layers_is_counted_as_several():
    model, inputs = build("ALBERT", inner_group_num=2), texts(6)
    assert len(capture(model, inputs).layers) == 6


def test_soft_caps_are_the_models_own():
    config = transformers.Gemma2Config(
        **ROPE, head_dim=4, num_key_value_heads=2, attn_logit_softcapping=0.5
    )
    torch.manual_seed(0)
    model, inputs = transformers.Gemma2ForCausalLM(config).eval(), texts(6)
    captured = capture(model, inputs, heads=None).layers
    for layer, expected in zip(captured, own_attention(model, inputs)[1], strict=True):
        torch.testing.assert_close(layer, expected, atol=1e-5, rtol=0)


def test_position_biases_are_the_models_own():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4
    )
    encoder, inputs = transformers.T5Model(config).eval().get_encoder(), texts(6)
    eager = copy.deepcopy(encoder)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager(**inputs, output_attentions=True).attentions
    for layer, weights in zip(capture(encoder, inputs, heads=None).layers, expected, strict=True):
        torch.testing.assert_close(layer, weights, atol=1e-5, rtol=0)


def test_attention_in_float64_stays_in_float64():
    layers = capture(build("BERT").double(), texts(6)).layers
    assert {layer.dtype for layer in layers} == {torch.float64}
    torch.testing.assert_close(
        layers[0].sum(-1), torch.ones(1, 6, dtype=torch.float64), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize("heads", [None, "mean", "max", 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_sum_to_one_although_the_model_rounds(dtype, heads):
    model = build("Llama").to(dtype)
    for layer in capture(model, texts(40), heads=heads).layers:
        assert layer.dtype == torch.float32
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]), atol=1e-6, rtol=0)


def test_dropout_does_not_touch_the_weights_of_a_model_in_train_mode(name):
    model, inputs = build(name), texts(6)
    expected = capture(model, inputs, heads=None).layers
    model.train()
    layers = capture(model, inputs, heads=None).layers
    for layer, weights in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer, weights, atol=0, rtol=0)
        torch.testing.assert_close(layer.sum(-1), torch.ones(1, 4, 6), atol=1e-5, rtol=0)
    assert all(module.training for module in model.modules())


def test_layers_are_detached_and_on_the_cpu(name):
    for options in ({}, {"heads": None}, {"score": score_of}):
        captured = capture(build(name), texts(6), **options)
        assert isinstance(captured, Captured)
        for layer in captured.layers:
            assert not layer.requires_grad
            assert layer.device.type == "cpu"
        assert not captured.outputs.logits.requires_grad


@pytest.mark.parametrize("score", [None, score_of], ids=["attention", "gradient"])
def test_a_padded_batch_equals_its_items_one_by_one(name, score):
    model, lengths = build(name), (7, 4, 1)
    if score is not None:
        lengths = (7, 4, 3)
    batch = texts(*lengths)
    captured = capture(model, batch, score=score)
    for row, length in enumerate(lengths):
        alone = {key: value[row : row + 1, :length] for key, value in batch.items()}
        for layer, expected in zip(
            captured.layers, capture(model, alone, score=score).layers, strict=True
        ):
            torch.testing.assert_close(
                layer[row, :length, :length], expected[0], atol=1e-5, rtol=1e-4
            )
            if score is None:
                assert not layer[row, :length, length:].any()


@pytest.mark.parametrize("heads", ["mean", "max", 1])
def test_attention_computed_some_items_at_a_time_is_the_same(name, heads, monkeypatch):
    model = build(name)
    inputs = texts(7, 4, 7, 5, 6)
    whole = capture(model, inputs, heads=heads)
    # Room for the attention of two of the five.
    size = 2 * SMALL["num_attention_heads"] * 7 * 7 * 4
    monkeypatch.setattr("attnflow.capture.interface.PART_BYTES", size)
    calls = []
    fuse = recording.fuse_heads

    def noted(weights, *options):
        calls.append(len(weights))
        return fuse(weights, *options)

    monkeypatch.setattr(recording, "fuse_heads", noted)
    parts = capture(model, inputs, heads=heads)
    # These two take no part in the attention interface, and return all weights themselves.
    sizes = [5] if name in ("DeBERTa-v2", "MPNet") else [2, 2, 1]
    assert calls == sizes * len(whole.layers)
    for layer, other in zip(parts.layers, whole.layers, strict=True):
        torch.testing.assert_close(layer, other, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.outputs[0], whole.outputs[0], rtol=1e-4, atol=1e-5)


def test_embeddings_may_be_given_in_the_place_of_token_ids(name):
    model, inputs = build(name), texts(6)
    embeddings = model.get_input_embeddings()(inputs["input_ids"]).detach()
    for options in ({}, {"score": score_of}):
        expected = capture(model, {"input_ids": inputs["input_ids"]}, **options).layers
        layers = capture(model, {"inputs_embeds": embeddings}, **options).layers
        for layer, weights in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer, weights)


def test_a_model_inside_another_module_is_captured(bert):
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = bert.bert

        def forward(self, input_ids, attention_mask):
            return self.encoder(input_ids, attention_mask).last_hidden_state.mean(1)

    inputs = texts(6)
    captured = capture(Probe(), inputs)
    expected = capture(bert, inputs)
    assert captured.outputs.shape == (1, 16)
    for layer, weights in zip(captured.layers, expected.layers, strict=True):
        torch.testing.assert_close(layer, weights)


def test_choices_of_one_item_are_items_of_their_own():
    torch.manual_seed(0)
    model = transformers.BertForMultipleChoice(transformers.BertConfig(**SMALL)).eval()
    inputs = {key: value.view(1, 3, 5) for key, value in texts(5, 5, 5).items()}
    assert [layer.shape for layer in capture(model, inputs).layers] == [(3, 5, 5)] * 2


class GroupedAttention(nn.Module):
    """Causal attention with grouped heads whose file has no eager function of the usual name."""

    is_causal = True
    num_key_value_groups = 2

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 8)
        self.value = nn.Linear(16, 8)

    def forward(self, states):
        def split(projected):
            return projected.view(*projected.shape[:2], -1, 4).transpose(1, 2)

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        output, _ = attend(
            self,
            split(self.query(states)),
            split(self.key(states)),
            split(self.value(states)),
            None,
            softcap=self.config.softcap,
        )
        return output.reshape(states.shape)


class GroupedModel(PreTrainedModel):
    config_class = PretrainedConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(50, 16)
        self.attention = GroupedAttention(config)
        self.post_init()

    def forward(self, input_ids):
        return self.attention(self.embeddings(input_ids))


def grouped_model(**options):
    torch.manual_seed(0)
    return GroupedModel(PretrainedConfig(num_hidden_layers=1, **options)).eval()


def test_a_model_without_an_eager_function_gets_the_softmax_of_scaled_products():
    model, ids = grouped_model(softcap=None), texts(5)["input_ids"]
    captured = capture(model, {"input_ids": ids}, heads=None)
    states = model.embeddings(ids)[0]
    query = model.attention.query(states).view(5, 4, 4)
    key = model.attention.key(states).view(5, 2, 4)
    for head in range(4):
        scores = query[:, head] @ key[:, head // 2].T / 2  # the root of the head's size
        scores[torch.ones(5, 5).triu(1) > 0] = -torch.inf
        torch.testing.assert_close(captured.layers[0][0, head], scores.softmax(-1))
    with torch.no_grad():
        torch.testing.assert_close(captured.outputs, model(ids))


def test_a_soft_cap_without_a_function_that_applies_it_is_an_error():
    with pytest.raises(attnflow.AttentionError, match=r"GroupedAttention.*softcap"):
        capture(grouped_model(softcap=30.0), {"input_ids": texts(5)["input_ids"]})


# ---- Gradients -----------------------------------------------------------------------------------


def test_gradients_are_those_of_the_weights_an_eager_model_returns(name):
    model, inputs = build(name), texts(7, 5)
    eager = type(model)(eager_config(model.config)).eval()
    eager.load_state_dict(model.state_dict())
    outputs = eager(**inputs, output_attentions=True)
    gradients = torch.autograd.grad(score_of(outputs).sum(), outputs.attentions)
    apart = capture(model, inputs, score=score_of, heads=None)
    fused = capture(model, inputs, score=score_of)
    assert len(apart.layers) == len(fused.layers) == len(outputs.attentions)
    for i, (weights, gradient) in enumerate(zip(outputs.attentions, gradients, strict=True)):
        expected = (gradient * weights).clamp(min=0).detach()
        assert expected.any()
        torch.testing.assert_close(apart.layers[i], expected, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(fused.layers[i], expected.mean(1), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(fused.outputs.logits, outputs.logits.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
def test_gradients_are_those_of_finite_differences(layer, monkeypatch):
    model, inputs = build("BERT", "eager").double(), texts(4)
    captured = capture(model, inputs, score=score_of, heads=None).layers[layer]
    weights = capture(model, inputs, heads=None).layers[layer]
    change = torch.zeros_like(weights)
    calls = []

    def changed(module, query, key, value, attention_mask, scaling, **_):
        scores = query @ key.transpose(-1, -2) * scaling
        attention = scores.softmax(-1)
        calls.append(module)
        if len(calls) == layer + 1:
            attention = attention + change
        return (attention @ value).transpose(1, 2).contiguous(), attention

    # The forward pass is the model's own, with another attention function in the eager one's place.
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", changed)

    def score_with(place, by):
        calls.clear()
        change.zero_()
        change[place] = by
        with torch.no_grad():
            value = score_of(model(**inputs)).item()
        assert len(calls) == 2
        return value

    for place in np.ndindex(*weights.shape):
        slope = (score_with(place, 1e-5) - score_with(place, -1e-5)) / 2e-5
        assert captured[place].item() == pytest.approx(
            max(0.0, slope * weights[place].item()), abs=1e-8, rel=1e-6
        )


def test_a_model_whose_parameters_are_frozen_gives_the_same_gradients(name):
    model, inputs = build(name), texts(6)
    expected = capture(model, inputs, score=score_of).layers
    model.requires_grad_(False)
    layers = capture(model, inputs, score=score_of).layers
    for layer, weights in zip(layers, expected, strict=True):
        assert weights.any()
        torch.testing.assert_close(layer, weights)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_gradients_are_had_where_the_caller_turned_them_off(mode, name):
    model = build(name)
    expected = capture(model, texts(6), score=score_of).layers
    with mode():
        layers = capture(model, texts(6), score=score_of).layers
    for layer, weights in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer, weights)


def test_a_score_read_off_a_lower_layer_has_no_gradient_above_it():
    def score(outputs):
        return outputs.hidden_states[1][:, 0, 0]

    inputs = {**texts(6), "output_hidden_states": True}
    lower, upper = capture(build("BERT"), inputs, score=score).layers
    assert lower.any()
    assert upper.shape == (1, 6, 6)
    assert not upper.any()


# ---- The model afterwards ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"heads": None}, {"score": score_of}], ids=["mean", "all heads", "gradient"]
)
def test_the_model_is_left_as_it_was_found(name, options):
    model = unusual(build(name))
    before = state_of(model)
    capture(model, texts(6), **options)
    assert state_of(model) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("score", [None, score_of], ids=["attention", "gradient"])
def test_the_model_is_left_as_it_was_found_after_an_exception_in_it(name, error, score):
    model = unusual(build(name))

    def stop(*_):
        raise error

    last = [module for module in model.modules() if isinstance(module, nn.LayerNorm | nn.Linear)]
    last[-1].register_forward_pre_hook(stop)
    before = state_of(model)
    # An error of the model's own is told as one of attnflow.
    with pytest.raises(attnflow.ModelError if error is RuntimeError else error):
        capture(model, texts(6), score=score)
    assert state_of(model) == before


def test_the_model_is_left_as_it_was_found_after_an_exception_in_score(name):
    model = unusual(build(name))
    before = state_of(model)
    with pytest.raises(ZeroDivisionError):
        capture(model, texts(6), score=lambda outputs: 1 / 0)
    assert state_of(model) == before


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_implementation_found_is_the_one_left(implementation):
    model = build("Llama", implementation)
    capture(model, texts(6))
    assert model.config._attn_implementation == implementation


def two_towers():
    """A model with a configuration for text and one for images."""
    config = transformers.CLIPConfig(
        text_config=SMALL,
        vision_config={**SMALL, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    return transformers.CLIPModel(config)


def test_every_part_of_a_model_keeps_its_own_implementation():
    model = two_towers()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    before = state_of(model)
    assert before["", "text_config"] != before["", "vision_config"]
    with pytest.raises(attnflow.AttentionError):
        capture(model, {**texts(6), "pixel_values": torch.zeros(1, 3, 8, 8)})
    assert state_of(model) == before


def test_a_configuration_that_no_module_holds_is_changed_and_restored_too():
    model, seen = two_towers(), []
    model.config.text_config = copy.deepcopy(model.config.text_config)
    model.register_forward_pre_hook(
        lambda *_: seen.append(model.config.text_config._attn_implementation)
    )
    before = state_of(model)
    with pytest.raises(attnflow.AttentionError):
        capture(model, {**texts(6), "pixel_values": torch.zeros(1, 3, 8, 8)})
    assert seen == [NAME]
    assert state_of(model) == before


def test_hooks_that_transformers_adds_to_return_attention_are_removed(bert):
    bert.config._attn_implementation = "eager"
    bert.config.output_attentions = True
    bert.config.output_hidden_states = True
    before = state_of(bert)
    outputs = capture(bert, texts(6)).outputs
    assert len(outputs.hidden_states) == 3
    assert state_of(bert) == before
    # And attention is still returned to those who ask for it.
    assert len(bert(**texts(6)).attentions) == 2


def test_the_model_gives_the_same_afterwards(name):
    model, inputs = build(name), texts(7, 5)
    with torch.no_grad():
        before = model(**inputs).logits
        capture(model, inputs, score=score_of)
        torch.testing.assert_close(model(**inputs).logits, before, atol=0, rtol=0)


def test_nothing_is_written_to_the_log(name):
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        model = build(name)
        capture(model, texts(7, 5))
        capture(model, texts(7, 5), score=score_of)
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []


# ---- Threads and memory --------------------------------------------------------------------------


def run_at_once(*tasks):
    """Run tasks in threads of their own, and raise what any of them raises."""
    start, errors = threading.Barrier(len(tasks)), []

    def run(task):
        start.wait()
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("shared", ["nothing", "configuration", "model"])
def test_threads_do_not_mix_what_they_capture(shared):
    one = build("BERT", num_hidden_layers=4)
    two = {
        "nothing": lambda: build("Llama", num_hidden_layers=3),
        "configuration": lambda: type(one)(one.config),
        "model": lambda: one,
    }[shared]()
    jobs = [(one, texts(9)), (two, texts(6, seed=1))]
    expected = [capture(model, inputs).layers for model, inputs in jobs]
    before = [state_of(model) for model, _ in jobs]
    found = [[], []]

    def capture_often(which):
        for _ in range(15):
            found[which].append(capture(*jobs[which]).layers)

    run_at_once(lambda: capture_often(0), lambda: capture_often(1))
    assert [state_of(model) for model, _ in jobs] == before
    for layers, runs in zip(expected, found, strict=True):
        assert len(runs) == 15
        for run in runs:
            assert len(run) == len(layers)
            for layer, weights in zip(run, layers, strict=True):
                torch.testing.assert_close(layer, weights)


def test_another_thread_may_run_the_model_during_a_capture(bert):
    inputs, other = texts(6), texts(9, seed=1)
    with torch.no_grad():
        expected = bert(**other).logits
    seen = []

    def run_elsewhere(*_):
        def run():
            with torch.no_grad():
                seen.append(bert(**other).logits)

        if threading.current_thread() is threading.main_thread():
            run_at_once(run)

    bert.bert.encoder.layer[1].register_forward_pre_hook(run_elsewhere)
    captured = capture(bert, inputs)
    assert [layer.shape for layer in captured.layers] == [(1, 6, 6)] * 2
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("heads", ["mean", "max", "min", "sum", 1])
def test_the_heads_of_a_layer_are_gone_once_they_are_fused(heads, monkeypatch):
    own = modeling_bert.eager_attention_forward
    held = []
    alive = []

    def count(*_):
        alive.append(sum(weights() is not None for weights in held))

    def watched(*arguments, **options):
        count()
        output, weights = own(*arguments, **options)
        held.append(weakref.ref(weights))
        return output, weights

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", watched)
    model = build("BERT", num_hidden_layers=5)
    for block in model.bert.encoder.layer:
        block.intermediate.register_forward_pre_hook(count)
    capture(model, texts(9))  # the first time, a few tokens are tried without attention
    held.clear()
    alive.clear()
    captured = capture(model, texts(9, 9), heads=heads)
    # Before each layer's attention is computed, and before what follows it in the layer.
    assert alive == [0] * 10
    assert len(held) == 5
    for layer in captured.layers:
        assert layer.untyped_storage().nbytes() == 2 * 9 * 9 * 4


def test_gradients_leave_no_graph_in_memory():
    model = build("BERT")
    captured = capture(model, texts(9, 9), score=score_of)
    gc.collect()
    heads = [
        item
        for item in gc.get_objects()
        # Not isinstance, which asks the item, and some answer with a warning.
        if issubclass(type(item), torch.Tensor) and item.shape == (2, 4, 9, 9)
    ]
    assert heads == []
    assert len(captured.layers) == 2


# ---- What is refused -----------------------------------------------------------------------------


def test_windowed_attention_is_an_error_that_names_cause_and_cure():
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    model = transformers.SwinForImageClassification(config)
    before = state_of(model)
    with pytest.raises(
        attnflow.AttentionError,
        match=r"layer 1.*SwinForImageClassification.*\(4, 1, 16, 16\).*windows",
    ):
        capture(model, {"pixel_values": torch.zeros(1, 3, 32, 32)})
    assert state_of(model) == before


def test_layers_over_different_tokens_are_an_error():
    config = transformers.FunnelConfig(
        vocab_size=50, d_model=16, n_head=2, d_head=8, d_inner=16, block_sizes=[1, 2]
    )
    model = transformers.FunnelBaseModel(config)
    with pytest.raises(attnflow.AttentionError, match=r"layer 2.*4 positions.*8.*pooled"):
        capture(model, texts(8))


def test_positions_that_are_no_tokens_of_the_input_are_an_error(bert):
    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = bert.bert

        def forward(self, input_ids):
            embeddings = self.encoder.get_input_embeddings()(input_ids)
            prompt = torch.zeros(len(input_ids), 2, 16)
            return self.encoder(inputs_embeds=torch.cat([prompt, embeddings], dim=1))

    with pytest.raises(attnflow.AttentionError, match=r"\(1, 4, 8, 8\).*6 tokens"):
        capture(Prompted(), {"input_ids": texts(6)["input_ids"]})


def test_a_model_without_attention_is_an_error():
    config = transformers.FNetConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, intermediate_size=32
    )
    model = transformers.FNetModel(config)
    before = state_of(model)
    with pytest.raises(attnflow.AttentionError, match="FNetModel"):
        capture(model, {"input_ids": texts(6)["input_ids"]})
    assert state_of(model) == before


def test_a_model_with_layers_that_are_no_attention_is_an_error():
    config = transformers.Lfm2Config(
        **SMALL, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    )
    model = transformers.Lfm2ForCausalLM(config)
    with pytest.raises(attnflow.AttentionError, match=r"layers\.0\.conv.*ShortConv"):
        capture(model, texts(6))


def test_an_encoder_decoder_is_an_error_that_says_what_can_be_captured():
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    model = transformers.BartModel(config)
    with pytest.raises(attnflow.AttentionError, match="get_encoder"):
        capture(model, texts(6))


def test_attention_to_another_models_output_is_an_error():
    config = transformers.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)
    model = transformers.BertLMHeadModel(config)
    with pytest.raises(attnflow.AttentionError, match=r"6 positions.*4"):
        capture(model, {**texts(6), "encoder_hidden_states": torch.zeros(1, 4, 16)})
    with pytest.raises(attnflow.AttentionError, match=r"2 layers.*4"):
        capture(model, {**texts(6), "encoder_hidden_states": torch.zeros(1, 6, 16)})


def test_a_cache_is_an_error():
    model = build("Llama")
    with torch.no_grad():
        cache = model(**texts(3), use_cache=True).past_key_values
    inputs = {"input_ids": texts(6)["input_ids"], "past_key_values": cache}
    with pytest.raises(attnflow.AttentionError, match=r"6 positions.*9"):
        capture(model, inputs)


def test_a_part_that_runs_without_gradients_is_an_error(bert):
    layer = bert.bert.encoder.layer[0]
    layer.forward = torch.no_grad()(layer.forward)
    with pytest.raises(attnflow.AttentionError, match=r"layer 1.*gradients"):
        capture(bert, texts(6), score=score_of)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "median"}, "heads.*'median'.*'mean'.*'max'.*'min'.*'sum'"),
        ({"heads": 4}, "heads.*4.*0.*3"),
        ({"heads": -5}, "heads.*-5"),
        ({"heads": 1.0}, "heads.*1.0"),
        ({"heads": True}, "heads.*True"),
        ({"score": 3}, "score.*3"),
    ],
)
def test_a_bad_option_is_an_error_before_the_model_runs(bert, options, message):
    bert.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(attnflow.OptionError, match=message):
        capture(bert, texts(6), **options)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("a text", r"inputs.*\bstr\b"),
        ({}, "inputs.*tensor"),
        ({"input_ids": [[1, 2]]}, "inputs.*input_ids.*return_tensors"),
        (
            {"input_ids": None, "pixel_values": torch.zeros(0, 3, 8, 8)},
            r"empty.*\(0, 3, 8, 8\)",
        ),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"empty.*\(1, 0\)"),
    ],
)
def test_bad_inputs_are_an_error_before_the_model_runs(bert, inputs, message):
    bert.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(attnflow.OptionError, match=message):
        capture(bert, inputs)


def test_what_is_no_model_is_an_error():
    with pytest.raises(attnflow.OptionError, match=r"model.*\bstr\b"):
        capture("bert-base-uncased", texts(6))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda outputs: 1.0, r"score(?=.*\(2,\)).*\bfloat\b"),
        (lambda outputs: outputs.logits, r"score(?=.*\(2,\)).*\(2, 2\)"),
        (lambda outputs: outputs.logits.sum(), r"score(?=.*\(2,\)).*\(\)"),
        (lambda outputs: outputs.logits[:, 0].detach(), "score.*gradient"),
        (lambda outputs: outputs.logits.argmax(1), "score.*gradient"),
        (lambda outputs: torch.ones(2, requires_grad=True), "score.*attention"),
    ],
)
def test_a_score_that_is_not_one_number_for_each_item_is_an_error(bert, score, message):
    with pytest.raises(attnflow.OptionError, match=message):
        capture(bert, texts(6, 5), score=score)


def test_a_head_that_only_the_layers_know_to_be_missing_is_an_error(bert):
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = bert.bert

        def forward(self, input_ids):
            return self.encoder(input_ids)

    with pytest.raises(attnflow.OptionError, match=r"heads.*4"):
        capture(Bare(), {"input_ids": texts(6)["input_ids"]}, heads=4)


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    for module in [module for module in sys.modules if module.startswith("attnflow.capture")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(attnflow.MissingExtraError, match=r'pip install "attnflow\[hf\]"'):
        __import__("attnflow.capture")
