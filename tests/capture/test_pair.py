"""Capturing the attention of an encoder-decoder."""

import copy
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow.capture import CapturedPair, capture, capture_pair
from attnflow.edges.effective import effective_attention
from attnflow.graph import UNIT, encoder_decoder_graph

# ---- Capture: models -----------------------------------------------------------------------------

SMALL = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    # Large weights, so that attention is far from uniform.
    "init_std": 0.8,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5 = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "initializer_factor": 1.5,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
MODELS = {
    "T5": ("T5ForConditionalGeneration", T5),
    "BART": ("BartForConditionalGeneration", {**SMALL, "forced_eos_token_id": 2}),
    "Marian": ("MarianMTModel", {**SMALL, "forced_eos_token_id": 2}),
    "Whisper": (
        "WhisperForConditionalGeneration",
        # Sound of 14 frames, which a convolution makes 7.
        {**SMALL, "num_mel_bins": 4, "max_source_positions": 7, "max_target_positions": 16},
    ),
}
SOURCE = 7


def build(name, implementation=None):
    """A small model with random weights, in eval mode."""
    class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    config = kind.config_class(**options)
    if implementation is not None:
        config._attn_implementation = implementation
    torch.manual_seed(0)
    return kind(config).eval()


def inputs_for(name, target, batch=2):
    """Inputs of 7 source positions; those of a text are padded after 5 in the second item."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (batch, SOURCE), generator=generator)
    inputs = {"decoder_input_ids": torch.randint(3, 50, (batch, target), generator=generator)}
    if name == "Whisper":
        inputs["input_features"] = torch.randn(batch, 4, 2 * SOURCE, generator=generator)
        return inputs
    mask = torch.ones_like(ids)
    mask[1:, 5:] = 0
    return {**inputs, "input_ids": ids * mask, "attention_mask": mask}


def eager_copy(model):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return eager


def score_of(outputs):
    """A number for each item: a logit of its last target position."""
    return outputs.logits[:, -1, 7]


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


# The second is as long as the source, so that shapes do not tell the kinds of attention apart.
@pytest.fixture(params=[4, SOURCE], ids=["shorter target", "target as long as the source"])
def target(request):
    return request.param


# ---- Capture: what comes out ---------------------------------------------------------------------


def test_weights_are_those_the_model_returns_with_eager_attention(name, target):
    model, inputs = build(name), inputs_for(name, target)
    captured = capture_pair(model, inputs, heads=None)
    with torch.no_grad():
        outputs = eager_copy(model)(**inputs, output_attentions=True)
    assert isinstance(captured, CapturedPair)
    assert [len(part) for part in captured[:3]] == [3, 2, 2]
    for layers, expected, shape in (
        (captured.encoder, outputs.encoder_attentions, (2, 4, SOURCE, SOURCE)),
        (captured.decoder, outputs.decoder_attentions, (2, 4, target, target)),
        (captured.cross, outputs.cross_attentions, (2, 4, target, SOURCE)),
    ):
        for layer, weights in zip(layers, expected, strict=True):
            assert (layer.shape, layer.dtype) == (shape, torch.float32)
            torch.testing.assert_close(layer, weights, atol=1e-5, rtol=0)
        # Attention that is all but uniform would agree with nearly anything.
        assert layers[-1].amax() > 0.5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_outputs_are_those_of_the_model_as_it_is(name, implementation):
    model, inputs = build(name, implementation), inputs_for(name, 4)
    with torch.no_grad():
        expected = model(**inputs)
    for options in ({}, {"score": score_of}):
        outputs = capture_pair(model, inputs, **options).outputs
        assert type(outputs) is type(expected)
        torch.testing.assert_close(outputs.logits, expected.logits, atol=1e-5, rtol=1e-5)
        assert not outputs.logits.requires_grad
        for field in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            assert field not in outputs
        assert "past_key_values" not in outputs


def test_heads_fused_as_they_pass_equal_heads_fused_afterwards(name):
    model, inputs = build(name), inputs_for(name, 4)
    apart = capture_pair(model, inputs, heads=None)
    for heads in ("mean", "max", "min", "sum", 2, -1):
        fused = capture_pair(model, inputs, heads=heads)
        graphs = [
            encoder_decoder_graph(*([layer[0] for layer in part] for part in pair[:3]), heads=given)
            for pair, given in ((fused, "mean"), (apart, heads))
        ]
        np.testing.assert_allclose(graphs[0].attention, graphs[1].attention, atol=1e-6)


def test_a_target_position_is_explained_by_the_source_and_by_what_precedes_it(name):
    captured = capture_pair(build(name), inputs_for(name, 4))
    graph = encoder_decoder_graph(*([layer[0] for layer in part] for part in captured[:3]))
    assert (graph.layers, graph.tokens) == (3 + 2 * 2, SOURCE + 4)
    rollout = attnflow.attention_rollout(graph, positions=[SOURCE + 2])[-1, 0]
    flow = attnflow.attention_flow(graph, layers=[-1], positions=[SOURCE + 2])[0, 0]
    assert rollout.sum() == pytest.approx(1)
    for scores in (rollout, flow):
        assert (scores[: SOURCE + 3] > 0).all()
        assert (scores <= 1 + 100 * UNIT).all()  # rows are rounded to units
        assert scores[SOURCE + 3] == 0  # the target token that comes after it


def test_padded_items_equal_themselves_alone():
    for name in ("T5", "BART", "Marian"):
        model, inputs = build(name), inputs_for(name, 4)
        batch = capture_pair(model, inputs)
        alone = capture_pair(
            model,
            {
                "input_ids": inputs["input_ids"][1:, :5],
                "decoder_input_ids": inputs["decoder_input_ids"][1:],
            },
        )
        for part, expected, rows, columns in zip(
            batch[:3], alone[:3], (5, 4, 4), (5, 4, 5), strict=True
        ):
            for layer, weights in zip(part, expected, strict=True):
                torch.testing.assert_close(layer[1, :rows, :columns], weights[0], atol=1e-5, rtol=0)
                assert not layer[1, :rows, columns:].any()


def test_gradients_are_those_of_the_weights_an_eager_model_returns(name, target):
    model, inputs = build(name), inputs_for(name, target)
    outputs = eager_copy(model)(**inputs, output_attentions=True)
    weights = [
        *outputs.encoder_attentions,
        *outputs.decoder_attentions,
        *outputs.cross_attentions,
    ]
    gradients = torch.autograd.grad(score_of(outputs).sum(), weights)
    apart = capture_pair(model, inputs, score=score_of, heads=None)
    fused = capture_pair(model, inputs, score=score_of)
    assert [len(part) for part in apart[:3]] == [len(part) for part in fused[:3]] == [3, 2, 2]
    layers = [*apart.encoder, *apart.decoder, *apart.cross]
    fused_layers = [*fused.encoder, *fused.decoder, *fused.cross]
    for i, (layer, one) in enumerate(zip(layers, fused_layers, strict=True)):
        expected = (gradients[i] * weights[i]).clamp(min=0).detach()
        assert expected.any()
        assert not layer.requires_grad
        torch.testing.assert_close(layer, expected, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(one, expected.mean(1), atol=1e-5, rtol=1e-3)


def test_gradients_are_had_where_every_parameter_is_frozen(name):
    model, inputs = build(name), inputs_for(name, 4)
    expected = capture_pair(model, inputs, score=score_of)
    frozen = capture_pair(model.requires_grad_(False), inputs, score=score_of)
    for part, other in zip(frozen[:3], expected[:3], strict=True):
        for layer, weights in zip(part, other, strict=True):
            torch.testing.assert_close(layer, weights)


def test_inputs_made_in_inference_mode_may_be_used(name):
    model = build(name)
    with torch.inference_mode():
        inputs = {key: value.clone() for key, value in inputs_for(name, 4).items()}
        captured = capture_pair(model, inputs, score=score_of)
    assert captured.cross[0].any()


def test_labels_stand_for_the_target(name):
    model, inputs = build(name), inputs_for(name, 4)
    labels = inputs.pop("decoder_input_ids")
    captured = capture_pair(model, {**inputs, "labels": labels})
    assert captured.cross[0].shape == (2, 4, SOURCE)
    assert captured.outputs.loss is not None


def test_a_classifier_makes_its_own_target():
    torch.manual_seed(0)
    model = transformers.BartForSequenceClassification(transformers.BartConfig(**SMALL)).eval()
    ids = inputs_for("BART", 4)["input_ids"][:1]
    ids[:, -1] = 2
    captured = capture_pair(model, {"input_ids": ids})
    assert captured.cross[0].shape == (1, SOURCE, SOURCE)


def test_float64_stays_float64_and_bfloat16_sums_to_one():
    inputs = inputs_for("T5", 4)
    for part in capture_pair(build("T5").double(), inputs)[:3]:
        assert {layer.dtype for layer in part} == {torch.float64}
    for heads in (None, "mean", "max", 1):
        captured = capture_pair(build("T5").to(torch.bfloat16), inputs, heads=heads)
        for layer in captured.encoder + captured.decoder + captured.cross:
            assert layer.dtype == torch.float32
            torch.testing.assert_close(
                layer.sum(-1), torch.ones(layer.shape[:-1]), atol=1e-6, rtol=0
            )


# ---- Capture: other edges ------------------------------------------------------------------------


@contextmanager
def inputs_of(modules):
    """Collect the first input of each module while it runs."""
    found = {}

    def collect(module, arguments, options):
        found[module] = arguments[0] if arguments else options["hidden_states"]

    handles = [m.register_forward_pre_hook(collect, with_kwargs=True) for m in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def attention_parts(name, model):
    """For each kind: its layers' attention, the module whose input is the residual, and the norm.

    The norm is what is between the residual and the attention; None where there is none.
    """
    encoder, decoder = model.get_encoder(), model.get_decoder()
    if name == "T5":
        own, before = (
            [(b.layer[0].SelfAttention, b.layer[0], b.layer[0].layer_norm) for b in part.block]
            for part in (encoder, decoder)
        )
        across = [(b.layer[1].EncDecAttention, b.layer[1], None) for b in decoder.block]
        return own, before, across
    first = name == "Whisper"  # its norms come before attention, those of BART and Marian after
    own, before = (
        [(b.self_attn, b, b.self_attn_layer_norm if first else None) for b in part.layers]
        for part in (encoder, decoder)
    )
    across = [
        (b.encoder_attn, b.encoder_attn_layer_norm if first else b.encoder_attn, None)
        for b in decoder.layers
    ]
    return own, before, across


def layer_parts(name, model, inputs, item=0):
    """For each kind, each layer's weights, values, projection and residual, read off the model."""
    model = eager_copy(model)
    kinds = attention_parts(name, model)
    with torch.no_grad(), inputs_of([m for kind in kinds for _, m, _ in kind]) as given:
        outputs = model(**inputs, output_attentions=True, use_cache=False)
    weights = outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions
    result = []
    for kind, layers in enumerate(kinds):
        result.append([])
        for layer, (attention, module, norm) in enumerate(layers):
            residual = given[module]
            with torch.no_grad():
                read = outputs.encoder_last_hidden_state if kind == 2 else residual
                value, project = (
                    (attention.v, attention.o)
                    if name == "T5"
                    else (attention.v_proj, attention.out_proj)
                )
                values = value(read if norm is None else norm(read))
            result[-1].append(
                tuple(
                    part.double().numpy()
                    for part in (
                        weights[kind][layer][item],
                        values[item].unflatten(-1, (4, 4)).transpose(0, 1),
                        project.weight.detach().T.reshape(4, 4, 16),
                        residual[item],
                    )
                )
            )
    return result


def looped(weights, values, projection, residual):
    """Value norms and shares, one pair of positions and one head at a time."""
    heads, rows, columns = weights.shape
    norms, shares = np.zeros((rows, columns)), np.zeros(rows)
    for k in range(rows):
        for m in range(columns):
            vector = 0.0
            for h in range(heads):
                vector = vector + weights[h, k, m] * (values[h, m] @ projection[h])
            norms[k, m] = np.linalg.norm(vector)
        length = np.linalg.norm(residual[k])
        shares[k] = length / (length + norms[k].sum())
        norms[k] /= norms[k].sum()
    return norms, shares


def test_value_norms_and_shares_are_those_of_a_loop(name, target):
    model, inputs = build(name), inputs_for(name, target)
    captured = capture_pair(model, inputs, edges="value_norm")
    for kind, parts in enumerate(layer_parts(name, model, inputs)):
        assert len(captured[kind]) == len(captured.residuals[kind]) == len(parts)
        apart = []
        for layer, part in enumerate(parts):
            rows, shares = looped(*part)
            apart.append(np.ptp(shares))
            np.testing.assert_allclose(captured[kind][layer][0].numpy(), rows, atol=1e-5)
            np.testing.assert_allclose(captured.residuals[kind][layer][0], shares, atol=1e-5)
        # Shares that are all alike would agree with nearly any vector.
        assert max(apart) > 1e-3


def test_value_norms_of_one_head_are_its_own(name):
    model, inputs = build(name), inputs_for(name, 4)
    captured = capture_pair(model, inputs, edges="value_norm", heads=-2)
    for kind, parts in enumerate(layer_parts(name, model, inputs)):
        for layer, (weights, values, projection, residual) in enumerate(parts):
            rows, shares = looped(weights[[2]], values[[2]], projection[[2]], residual)
            np.testing.assert_allclose(captured[kind][layer][0].numpy(), rows, atol=1e-5)
            np.testing.assert_allclose(captured.residuals[kind][layer][0], shares, atol=1e-5)


def test_effective_attention_is_what_the_values_let_through(name, target):
    model, inputs = build(name), inputs_for(name, target)
    apart = capture_pair(model, inputs, edges="effective", heads=None)
    fused = capture_pair(model, inputs, edges="effective")
    assert apart.residuals is None
    for kind, parts in enumerate(layer_parts(name, model, inputs)):
        for layer, (weights, values, projection, _) in enumerate(parts):
            vectors = values @ projection
            expected = np.zeros_like(weights)
            for head, k in np.ndindex(*weights.shape[:2]):
                seen = np.flatnonzero(weights[:, k].any(0))
                inverse = np.linalg.pinv(vectors[head, seen], rcond=1e-12)
                expected[head, k, seen] = weights[head, k, seen] @ vectors[head, seen] @ inverse
            found = effective_attention(
                *(torch.from_numpy(part) for part in (weights[None], values[None], projection))
            )[0].numpy()
            np.testing.assert_allclose(found @ vectors, weights @ vectors, atol=1e-6)
            np.testing.assert_allclose(found, expected, atol=1e-6)
            rows = np.abs(expected) / np.abs(expected).sum(-1, keepdims=True)
            np.testing.assert_allclose(apart[kind][layer][0].numpy(), rows, atol=1e-4)
            np.testing.assert_allclose(fused[kind][layer][0].numpy(), rows.mean(0), atol=1e-4)
    # Seven positions do not fit into four dimensions.
    assert np.abs(rows - weights).max() > 0.01


@pytest.mark.parametrize("heads", ["mean", "max", "min", "sum", 1])
def test_heads_of_effective_attention_are_fused_as_those_of_attention(heads):
    model, inputs = build("BART"), inputs_for("BART", 4)
    apart = capture_pair(model, inputs, edges="effective", heads=None)
    fused = capture_pair(model, inputs, edges="effective", heads=heads)
    graphs = [
        encoder_decoder_graph(*([layer[0] for layer in part] for part in pair[:3]), heads=given)
        for pair, given in ((fused, "mean"), (apart, heads))
    ]
    np.testing.assert_allclose(graphs[0].attention, graphs[1].attention, atol=1e-6)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_padded_items_have_the_edges_that_they_have_alone(edges):
    for name in ("T5", "BART", "Marian"):
        model, inputs = build(name), inputs_for(name, 4)
        batch = capture_pair(model, inputs, edges=edges)
        alone = capture_pair(
            model,
            {
                "input_ids": inputs["input_ids"][1:, :5],
                "decoder_input_ids": inputs["decoder_input_ids"][1:],
            },
            edges=edges,
        )
        for kind, (rows, columns) in enumerate(((5, 5), (4, 4), (4, 5))):
            for layer, weights in zip(batch[kind], alone[kind], strict=True):
                torch.testing.assert_close(layer[1, :rows, :columns], weights[0], atol=1e-4, rtol=0)
            if edges == "value_norm":
                for shares, expected in zip(
                    batch.residuals[kind], alone.residuals[kind], strict=True
                ):
                    torch.testing.assert_close(shares[1, :rows], expected[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_cross_attention_to_values_of_zero_leaves_a_position_to_itself(edges):
    model, inputs = build("BART"), inputs_for("BART", 4)
    with torch.no_grad():
        for layer in model.get_decoder().layers:
            layer.encoder_attn.v_proj.weight.zero_()
            layer.encoder_attn.v_proj.bias.zero_()
    captured = capture_pair(model, inputs, edges=edges)
    assert not any(layer.any() for layer in captured.cross)
    parts = ([layer[0] for layer in part] for part in captured[:3])
    graph = encoder_decoder_graph(*parts, allow_empty=True)
    for method in (attnflow.attention_rollout, attnflow.attention_flow):
        assert not method(graph, positions=[SOURCE, SOURCE + 3])[-1, :, :SOURCE].any()


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", ["T5", "BART"])
def test_gradients_are_those_of_finite_differences(name, kind, monkeypatch):
    model = build(name, "eager").double()
    # T5's norms round to float32, which is too coarse to see a small difference through.
    exact = lambda norm, x: norm.weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    monkeypatch.setattr(transformers.models.t5.modeling_t5.T5LayerNorm, "forward", exact)
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8]]),
        "decoder_input_ids": torch.tensor([[1, 9, 4]]),
    }
    layer = 0
    gradients = capture_pair(model, inputs, score=score_of, heads=None)[kind][layer]
    weights = capture_pair(model, inputs, heads=None)[kind][layer]
    # The encoder's three layers run first, then self- and cross-attention of each decoder layer.
    wanted = {0: layer, 1: 3 + 2 * layer, 2: 3 + 2 * layer + 1}[kind]
    source = sys.modules[type(model).__module__]
    own = source.eager_attention_forward
    change = torch.zeros_like(weights)
    calls = []

    def disturbed(module, query, key, value, *arguments, **options):
        output, attention = own(module, query, key, value, *arguments, **options)
        calls.append(module)
        if len(calls) == wanted + 1:
            output = output + (change @ value).transpose(1, 2)
        return output, attention

    monkeypatch.setattr(source, "eager_attention_forward", disturbed)

    def score_with(place, by):
        calls.clear()
        change.zero_()
        change[place] = by
        with torch.no_grad():
            value = score_of(model(**inputs, use_cache=False)).item()
        assert len(calls) == 7
        return value

    assert gradients.any()
    for place in np.ndindex(*weights.shape):
        slope = (score_with(place, 1e-5) - score_with(place, -1e-5)) / 2e-5
        assert gradients[place].item() == pytest.approx(
            max(0.0, slope * weights[place].item()), abs=1e-8, rel=1e-6
        )


# ---- Capture: what the model is like afterwards --------------------------------------------------


def state_of(model):
    """All that must be as before: implementations, modes, hooks, flags, gradients and values."""
    state = {}
    for path, module in model.named_modules():
        state[path, "mode"] = module.training
        state[path, "attributes"] = sorted(vars(module))
        for kind in sorted(vars(module)):
            if "hooks" in kind and isinstance(vars(module)[kind], dict):
                state[path, kind] = list(vars(module)[kind].items())
        config = getattr(module, "config", None)
        if config is not None:
            state[path, "implementation"] = config._attn_implementation
            state[path, "config"] = config.to_dict()
    for path, parameter in model.named_parameters():
        state[path, "parameter"] = (
            parameter.requires_grad,
            parameter.grad,
            parameter.data_ptr(),
            parameter._version,
        )
    return state


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "options", [{}, {"heads": None}, {"score": score_of}, {"edges": "value_norm"}]
)
def test_the_model_is_left_as_it_was_found(name, implementation, options):
    model = build(name, implementation).train()
    model.get_decoder().eval()
    before = state_of(model)
    capture_pair(model, inputs_for(name, 4), **options)
    assert state_of(model) == before


def test_the_model_is_left_as_it_was_found_after_an_exception(name):
    model, inputs = build(name).train(), inputs_for(name, 4)
    before = state_of(model)
    with pytest.raises(ZeroDivisionError):
        capture_pair(model, inputs, score=lambda outputs: 1 / 0)
    assert state_of(model) == before

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = list(model.get_decoder().modules())[-1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        capture_pair(model, inputs)
    with pytest.raises(KeyboardInterrupt):
        capture_pair(model, inputs, edges="value_norm")
    handle.remove()
    assert state_of(model) == before


def test_dropout_does_not_touch_the_weights_of_a_model_in_train_mode(name):
    model, inputs = build(name), inputs_for(name, 4)
    expected = capture_pair(model, inputs)
    captured = capture_pair(model.train(), inputs)
    for part, other in zip(captured[:3], expected[:3], strict=True):
        for layer, weights in zip(part, other, strict=True):
            assert torch.equal(layer, weights)


def test_threads_do_not_mix_what_they_capture():
    jobs = [(build(name), inputs_for(name, target)) for name, target in (("T5", 4), ("BART", 6))]
    found = [[], []]

    def capture_often(which):
        found[which].extend(capture_pair(*jobs[which]).cross for _ in range(10))

    threads = [threading.Thread(target=capture_often, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job, runs in zip(jobs, found, strict=True):
        expected = capture_pair(*job).cross
        assert len(runs) == 10
        for run in runs:
            for layer, weights in zip(run, expected, strict=True):
                torch.testing.assert_close(layer, weights)


# ---- Capture: what is refused --------------------------------------------------------------------


def test_capture_of_an_encoder_decoder_names_what_to_use_and_takes_its_encoder(name):
    model, inputs = build(name), inputs_for(name, 4)
    with pytest.raises(attnflow.AttentionError, match="capture_pair"):
        capture(model, inputs)
    del inputs["decoder_input_ids"]
    expected = capture_pair(model, inputs_for(name, 4)).encoder
    for layer, weights in zip(capture(model.get_encoder(), inputs).layers, expected, strict=True):
        torch.testing.assert_close(layer, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"decoder_input_ids": None},
            "inputs.*decoder_input_ids",
        ),
        (
            {"decoder_input_ids": torch.ones(3, 4, dtype=torch.long)},
            r"2.*encoder.*decoder.*\(3, 4\)",
        ),
        (
            {"decoder_input_ids": torch.ones(2, 0, dtype=torch.long)},
            r"decoder.*\(2, 0\)",
        ),
        ({"encoder_outputs": (torch.zeros(2, 7, 16),)}, "encoder_outputs"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, r"empty.*\(2, 0\)"),
    ],
)
def test_bad_inputs_are_an_error_before_the_model_runs(change, message):
    model = build("BART")
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(attnflow.OptionError, match=message):
        capture_pair(model, {**inputs_for("BART", 4), **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "median"}, "heads.*'median'.*'mean'.*'max'.*'min'.*'sum'"),
        ({"heads": 4}, "heads.*4.*0.*3"),
        ({"heads": True}, "heads.*True"),
        ({"score": 3}, "score.*3"),
        ({"edges": "gradient"}, "edges.*'gradient'.*'attention'.*'effective'.*'value_norm'"),
        ({"edges": "effective", "score": score_of}, "score.*edges|edges.*score"),
        ({"edges": "value_norm", "heads": "max"}, "heads.*'max'.*edges.*'value_norm'"),
    ],
)
def test_a_bad_option_is_an_error_before_the_model_runs(name, options, message):
    model = build(name)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(attnflow.OptionError, match=message):
        capture_pair(model, inputs_for(name, 4), **options)


def test_a_model_of_another_kind_is_an_error():
    with pytest.raises(attnflow.OptionError, match=r"model.*\bstr\b"):
        capture_pair("t5-small", inputs_for("T5", 4))
    encoder = build("T5").get_encoder()
    with pytest.raises(attnflow.AttentionError, match=r"T5Stack.*encoder-decoder.*capture"):
        capture_pair(encoder, inputs_for("T5", 4))


def test_a_model_outside_the_attention_interface_is_an_error():
    config = transformers.FSMTConfig(
        langs=["en", "de"],
        src_vocab_size=50,
        tgt_vocab_size=50,
        **{key: value for key, value in SMALL.items() if key != "vocab_size"},
    )
    model = transformers.FSMTForConditionalGeneration(config)
    with pytest.raises(attnflow.AttentionError, match="FSMT"):
        capture_pair(model, inputs_for("BART", 4))
    model = transformers.LongT5ForConditionalGeneration(transformers.LongT5Config(**T5))
    with pytest.raises(attnflow.AttentionError, match=r"encoder.*attention"):
        capture_pair(model, inputs_for("T5", 4))


def test_a_cache_is_an_error():
    model, inputs = build("BART"), inputs_for("BART", 4)
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    with pytest.raises(
        attnflow.AttentionError,
        match=r"layer 1.*BartForConditionalGeneration.*decoder.*4 positions.*8",
    ):
        capture_pair(model, {**inputs, "past_key_values": cache})


def test_a_layer_that_does_not_attend_is_an_error():
    model, inputs = build("BART"), inputs_for("BART", 4)
    layer = model.get_decoder().layers[1]
    layer.encoder_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(
        attnflow.AttentionError,
        match=r"layer 2.*BartForConditionalGeneration.*decoder.*1.*2",
    ):
        capture_pair(model, inputs)


def test_attention_outside_the_layers_is_an_error():
    model = build("BART")
    model.get_decoder().final_attn = copy.deepcopy(model.get_decoder().layers[0].self_attn)
    model.get_decoder().register_forward_hook(
        lambda decoder, _, output: decoder.final_attn(output.last_hidden_state) and None
    )
    with pytest.raises(attnflow.AttentionError, match=r"BartAttention.*Bart\w+.*layer"):
        capture_pair(model, inputs_for("BART", 4))
