"""What an edge weighs besides attention: effective attention and value norms."""

import re
import threading

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import attnflow
from attnflow.capture import capture
from attnflow.cli import main
from attnflow.edges.effective import effective_attention, effective_rows
from attnflow.edges.value_norm import value_norms
from attnflow.errors import AttentionError, ModelError, OptionError
from attnflow.models import Explainer
from tests.support import text as text_models
from tests.support.architectures import MODELS, build, score_of, state_of, texts, unusual
from tests.support.text import SIZES, VOCABULARY
from tests.support.tiny import sharpen, wordpiece_tokenizer
from tests.support.vision import explain as explain_image
from tests.support.vision import make as make_vision
from tests.support.vision import photo

# DeBERTa's code does this when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

TEXT = "the keys to the cabinet are on the table"


@pytest.fixture(scope="module")
def encoder():
    return text_models.encoder()


@pytest.fixture(scope="module")
def classifier():
    return text_models.classifier()


@pytest.fixture(scope="module")
def decoder():
    return text_models.decoder()


# ---- One layer -----------------------------------------------------------------------------------


def random_layer(tokens, size, heads=3, items=2, seed=0, causal=False):
    """Weights, values, projection and residual of a layer with a model of 12 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(items, heads, tokens, tokens, generator=generator).double()
    if causal:
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    values = torch.randn(items, heads, tokens, size, generator=generator).double()
    projection = torch.randn(heads, size, 12, generator=generator).double()
    residual = torch.randn(items, tokens, 12, generator=generator).double()
    return scores.softmax(-1), values, projection, residual


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [3, 4, 5, 20])
def test_effective_attention_gives_the_same_output(tokens, causal):
    weights, values, projection, _ = random_layer(tokens, size=4, causal=causal)
    effective = effective_attention(weights, values, projection)
    vectors = values @ projection
    assert torch.allclose(effective @ vectors, weights @ vectors, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_effective_attention_is_attention_where_the_head_is_large_enough(tokens):
    weights, values, projection, _ = random_layer(tokens, size=4)
    assert torch.allclose(effective_attention(weights, values, projection), weights, atol=1e-9)
    assert torch.allclose(effective_rows(weights, values, projection), weights, atol=1e-9)


def test_effective_attention_differs_where_there_are_more_tokens_than_dimensions():
    weights, values, projection, _ = random_layer(tokens=5, size=4)
    assert (effective_attention(weights, values, projection) - weights).abs().max() > 0.01


def test_effective_attention_is_attention_times_values_and_their_pseudoinverse():
    weights, values, projection, _ = random_layer(tokens=9, size=4)
    effective = effective_attention(weights, values, projection)
    for item in range(2):
        for head in range(3):
            vectors = (values[item, head] @ projection[head]).numpy()
            expected = weights[item, head].numpy() @ vectors @ np.linalg.pinv(vectors)
            np.testing.assert_allclose(effective[item, head].numpy(), expected, atol=1e-9)


def test_values_that_depend_on_each_other_count_as_fewer():
    weights, values, projection, _ = random_layer(tokens=4, size=4)
    values[:, :, 3] = values[:, :, 0]
    effective = effective_attention(weights, values, projection)
    assert torch.allclose(effective @ values, weights @ values, atol=1e-9)
    # Two tokens of the same value cannot be told apart.
    assert torch.allclose(effective[..., 0], effective[..., 3], atol=1e-9)
    assert not torch.allclose(weights[..., 0], weights[..., 3], atol=1e-2)


def test_padding_has_no_part_in_effective_attention():
    weights, values, projection, _ = random_layer(tokens=9, size=4)
    real = torch.arange(9)[None] < torch.tensor([[9], [6]])
    weights = weights * real[:, None, None]
    effective = effective_attention(weights, values, projection)
    alone = effective_attention(weights[1:, :, :6, :6], values[1:, :, :6], projection)
    assert torch.allclose(effective[1:, :, :6, :6], alone, atol=1e-9)
    assert not effective[1, :, :, 6:].any()


@pytest.mark.parametrize("causal", [False, True])
def test_effective_rows_are_not_negative_and_sum_to_one(causal):
    weights, values, projection, _ = random_layer(tokens=9, size=4, causal=causal)
    assert effective_attention(weights, values, projection).min() < 0
    rows = effective_rows(weights, values, projection)
    assert rows.min() >= 0
    assert torch.allclose(rows.sum(-1), torch.ones(()).double())


def test_effective_attention_of_a_causal_head_is_causal_and_knows_nothing_of_later_tokens():
    weights, values, projection, _ = random_layer(tokens=9, size=4, causal=True)
    effective = effective_attention(weights, values, projection)
    assert not effective.triu(1).any()
    assert (effective - weights).abs().max() > 0.01
    before = effective_attention(weights[:, :, :7, :7], values[:, :, :7], projection)
    assert torch.allclose(effective[:, :, :7, :7], before, atol=1e-9)
    assert torch.allclose(effective[:, :, :4], weights[:, :, :4], atol=1e-9)


def test_a_position_of_which_no_effective_attention_is_left_keeps_to_itself():
    weights, values, projection, _ = random_layer(tokens=3, size=4)
    rows = effective_rows(weights, torch.zeros_like(values), projection)
    assert torch.equal(rows, torch.eye(3).double().expand_as(rows))


def looped(weights, values, projection, residual):
    """Value norms and shares of one item, one pair of positions and one head at a time."""
    heads, tokens, _ = weights.shape
    rows, shares = np.zeros((tokens, tokens)), np.zeros(tokens)
    for k in range(tokens):
        for m in range(tokens):
            vector = 0.0
            for h in range(heads):
                vector = vector + weights[h, k, m] * (values[h, m] @ projection[h])
            rows[k, m] = np.linalg.norm(vector)
        length = np.linalg.norm(residual[k])
        shares[k] = length / (length + rows[k].sum())
        rows[k] /= rows[k].sum()
    return rows, shares


def test_value_norms_are_those_of_a_loop():
    layer = random_layer(tokens=7, size=4)
    rows, shares = value_norms(*layer)
    for item in range(2):
        weights, values, projection, residual = (part.numpy() for part in layer)
        expected = looped(weights[item], values[item], projection, residual[item])
        np.testing.assert_allclose(rows[item].numpy(), expected[0], atol=1e-9)
        np.testing.assert_allclose(shares[item].numpy(), expected[1], atol=1e-9)


def test_values_of_zero_leave_everything_to_the_residual():
    weights, values, projection, residual = random_layer(tokens=3, size=4)
    rows, shares = value_norms(weights, torch.zeros_like(values), projection, residual)
    assert torch.equal(rows, torch.eye(3).double().expand_as(rows))
    assert torch.equal(shares, torch.ones_like(shares))


# ---- Models --------------------------------------------------------------------------------------


def layers_of(name, model):
    """The layers of a model, for each a function from its input to values, and its projection."""
    if name == "BERT":
        for layer in model.bert.encoder.layer:
            yield layer.attention.self.value, layer.attention.output.dense.weight.T
    elif name == "DeBERTa-v2":
        for layer in model.deberta.encoder.layer:
            yield layer.attention.self.value_proj, layer.attention.output.dense.weight.T
    elif name == "MPNet":
        for layer in model.mpnet.encoder.layer:
            yield layer.attention.attn.v, layer.attention.attn.o.weight.T
    elif name == "GPT-2":
        for layer in model.transformer.h:
            yield (
                lambda x, layer=layer: layer.attn.c_attn(layer.ln_1(x))[..., 32:],
                layer.attn.c_proj.weight,
            )
    elif name == "Llama":
        for layer in model.model.layers:
            yield (
                lambda x, layer=layer: layer.self_attn.v_proj(layer.input_layernorm(x)),
                layer.self_attn.o_proj.weight.T,
            )
    elif name == "GPT-NeoX":
        for layer in model.gpt_neox.layers:

            def values(x, layer=layer):
                # Query, key and value of a head stand side by side.
                mixed = layer.attention.query_key_value(layer.input_layernorm(x))
                return mixed.unflatten(-1, (4, 12))[..., 8:].flatten(-2)

            yield values, layer.attention.dense.weight.T
    elif name == "DINOv2":
        for layer in model.encoder.layer:
            yield (
                lambda x, layer=layer: layer.attention.v_proj(layer.norm1(x)),
                layer.attention.o_proj.weight.T * layer.layer_scale1.lambda1,
            )
    else:
        for layer in model.layers:
            yield (
                lambda x, layer=layer: layer.attention.v_proj(layer.layernorm_before(x)),
                layer.attention.o_proj.weight.T,
            )


def parts_of(name, model, inputs, heads):
    """For each layer of the first item: weights, values, projection and the layer's input."""
    found = getattr(model.config, "_attn_implementation", None)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**inputs, output_attentions=True, output_hidden_states=True)
        model.set_attn_implementation(found)
        for layer, (values_of, projection) in enumerate(layers_of(name, model)):
            x = outputs.hidden_states[layer]
            values = values_of(x)[0].unflatten(-1, (-1, 16 // heads)).transpose(0, 1)
            # A head of grouped values serves neighbouring heads of queries.
            values = torch.stack([values[h * len(values) // heads] for h in range(heads)])
            weights = outputs.attentions[layer][0]
            parts = weights, values, projection.reshape(heads, 16 // heads, 16), x[0]
            yield tuple(part.double().numpy() for part in parts)


def model_and_inputs(name):
    if name == "ViT":
        return make_vision("ViTModel"), {"pixel_values": torch.randn(1, 3, 32, 32)}, 2
    if name == "DINOv2":
        model = make_vision("Dinov2Model")
        with torch.no_grad():
            for layer in model.encoder.layer:
                layer.layer_scale1.lambda1.uniform_(0.1, 2.0)
        return model, {"pixel_values": torch.randn(1, 3, 32, 32)}, 2
    return build(name), texts(9), 4


COMPARED = ["BERT", "DeBERTa-v2", "MPNet", "GPT-2", "Llama", "GPT-NeoX", "ViT", "DINOv2"]


@pytest.mark.parametrize("name", COMPARED)
def test_value_norms_and_shares_of_a_model_are_those_of_a_loop(name):
    model, inputs, heads = model_and_inputs(name)
    captured = capture(model, inputs, edges="value_norm")
    every = list(parts_of(name, model, inputs, heads))
    assert len(every) == len(captured.layers) == len(captured.residuals)
    for layer, parts in enumerate(every):
        rows, shares = looped(*parts)
        np.testing.assert_allclose(captured.layers[layer][0].numpy(), rows, atol=1e-5)
        np.testing.assert_allclose(captured.residuals[layer][0].numpy(), shares, atol=1e-5)


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_value_norms_of_one_head_are_its_own(name):
    model, inputs, heads = model_and_inputs(name)
    captured = capture(model, inputs, edges="value_norm", heads=-2)
    for layer, parts in enumerate(parts_of(name, model, inputs, heads)):
        weights, values, projection, residual = parts
        rows, shares = looped(weights[[2]], values[[2]], projection[[2]], residual)
        np.testing.assert_allclose(captured.layers[layer][0].numpy(), rows, atol=1e-5)
        np.testing.assert_allclose(captured.residuals[layer][0].numpy(), shares, atol=1e-5)


@pytest.mark.parametrize("name", COMPARED)
def test_effective_attention_of_a_model_is_that_of_its_values(name):
    model, inputs, heads = model_and_inputs(name)
    every = capture(model, inputs, edges="effective", heads=None)
    mean = capture(model, inputs, edges="effective")
    assert every.residuals is None
    for layer, parts in enumerate(parts_of(name, model, inputs, heads)):
        weights, values, projection, _ = parts
        expected = np.zeros_like(weights)
        for head in range(heads):
            for k in range(weights.shape[1]):
                seen = np.flatnonzero(weights[:, k].any(0))
                vectors = values[head, seen] @ projection[head]
                inverse = np.linalg.pinv(vectors, rcond=1e-12)
                expected[head, k, seen] = np.abs(weights[head, k, seen] @ vectors @ inverse)
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(every.layers[layer][0].numpy(), expected, atol=1e-4)
        np.testing.assert_allclose(mean.layers[layer][0].numpy(), expected.mean(0), atol=1e-4)


@pytest.mark.parametrize("heads", ["mean", "max", "min", "sum", 1])
def test_heads_of_effective_attention_are_fused_as_those_of_attention(heads):
    model = build("BERT")
    every = capture(model, texts(9), edges="effective", heads=None).layers
    fused = capture(model, texts(9), edges="effective", heads=heads).layers
    expected = attnflow.raw_attention([layer[0] for layer in every], heads=heads)
    np.testing.assert_allclose(torch.stack(fused)[:, 0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_sum_to_one_and_masks_are_kept(name, edges):
    model = build(name)
    attention = capture(model, texts(9), heads="max").layers
    captured = capture(model, texts(9), edges=edges)
    for layer, weights in zip(captured.layers, attention, strict=True):
        assert torch.allclose(layer.sum(-1), torch.ones(()), atol=1e-5)
        assert layer.min() >= 0
        assert not layer[weights == 0].any()


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
@pytest.mark.parametrize("name", MODELS)
def test_a_padded_batch_equals_its_items_one_by_one(name, edges):
    model = build(name)
    inputs = texts(9, 7, 4)
    together = capture(model, inputs, edges=edges)
    for row, length in enumerate((9, 7, 4)):
        alone = capture(model, {"input_ids": inputs["input_ids"][[row], :length]}, edges=edges)
        for layer, expected in zip(together.layers, alone.layers, strict=True):
            assert torch.allclose(layer[row, :length, :length], expected[0], atol=1e-4)
        for shares, expected in zip(together.residuals or [], alone.residuals or [], strict=True):
            assert torch.allclose(shares[row, :length], expected[0], atol=1e-5)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_left_as_it_was_found(name, edges):
    model = unusual(build(name))
    before = state_of(model)
    captured = capture(model, texts(6), edges=edges)
    assert state_of(model) == before
    expected = build(name)(**texts(6)).logits
    assert torch.allclose(captured.outputs.logits, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("error", "seen"), [(RuntimeError, ModelError), (KeyboardInterrupt, KeyboardInterrupt)]
)
@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_the_model_is_left_as_it_was_found_after_an_exception_in_it(edges, error, seen):
    model = unusual(build("BERT"))

    def stop(*_):
        raise error

    last = [module for module in model.modules() if isinstance(module, nn.LayerNorm)][-1]
    last.register_forward_pre_hook(stop)
    before = state_of(model)
    with pytest.raises(seen):
        capture(model, texts(6), edges=edges)
    assert state_of(model) == before


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_another_thread_may_run_the_model_during_a_capture(edges):
    model = build("BERT")
    expected = capture(model, texts(6), edges=edges)

    def run_elsewhere(*_):
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=lambda: model(**texts(9, seed=1)))
            thread.start()
            thread.join()

    # Between the projection and the residual of a layer, too.
    for layer in model.bert.encoder.layer:
        layer.attention.output.dropout.register_forward_pre_hook(run_elsewhere)
    captured = capture(model, texts(6), edges=edges)
    for layer, alone in zip(captured.layers, expected.layers, strict=True):
        assert torch.equal(layer, alone)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_a_model_whose_values_cannot_be_seen_is_an_error(edges):
    model = build("MPNet")
    for layer in model.mpnet.encoder.layer:
        layer.attention.attn.dropout = nn.Identity()  # its weights show nowhere
    before = state_of(model)
    with pytest.raises(AttentionError, match=f"{type(model).__name__}.*'attention'"):
        capture(model, texts(6), edges=edges)
    assert state_of(model) == before


def test_an_output_that_is_normalised_before_it_is_added_is_an_error():
    options = {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**options)).eval()
    before = state_of(model)
    with pytest.raises(AttentionError, match=r"layer 1.*Gemma2ForCausalLM.*normali[sz]ed"):
        capture(model, {"input_ids": torch.tensor([[5, 6, 7]])}, edges="value_norm")
    assert state_of(model) == before


class Halved(nn.Module):
    """Changes what attention returned before its projection."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, given):
        return self.linear(given / 2)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_a_projection_of_something_else_is_an_error(edges):
    model = build("Llama")
    layer = model.model.layers[1].self_attn
    layer.o_proj = Halved(layer.o_proj)
    with pytest.raises(AttentionError, match=r"layer 2.*LlamaForCausalLM.*linear"):
        capture(model, texts(6), edges=edges)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edges": "weights"}, "edges.*'weights'.*'attention'.*'effective'"),
        ({"edges": "gradient"}, "edges.*'gradient'"),
        ({"edges": "effective", "score": score_of}, "score.*edges"),
        ({"edges": "value_norm", "heads": "max"}, "heads.*'max'.*edges.*'value_norm'"),
        ({"edges": "value_norm", "heads": None}, "heads.*None.*edges.*'value_norm'"),
        ({"edges": "value_norm", "heads": 4}, "heads.*4"),
    ],
)
def test_a_bad_option_of_capture_is_an_error(options, message):
    with pytest.raises(OptionError, match=message):
        capture(build("BERT"), texts(6), **options)


# ---- A share for each layer and position ---------------------------------------------------------


@pytest.fixture
def measured(attention):
    """Shares of 4 layers and 6 tokens, and the edges that they make of the random attention."""
    shares = np.random.default_rng(1).random((4, 6))
    weights = attention.mean(1)
    edges = np.zeros_like(weights)
    for layer in range(4):
        for k in range(6):
            edges[layer, k] = (1 - shares[layer, k]) * weights[layer, k]
            edges[layer, k, k] += shares[layer, k]
    return shares, edges


def test_each_row_has_its_own_share(attention, measured):
    shares, edges = measured
    graph = attnflow.AttentionGraph(attention, residual=shares)
    np.testing.assert_allclose(graph.capacities, edges, atol=1e-12)
    assert (graph.residual == shares).all()
    assert not graph.residual.flags.writeable
    assert repr(graph).endswith("residual=array of shape (4, 6))")


@pytest.mark.parametrize("positions", [[0], [2, 5], None])
@pytest.mark.parametrize("start_layer", [0, 2])
def test_rollout_multiplies_edges_of_different_shares(attention, measured, positions, start_layer):
    shares, edges = measured
    graph = attnflow.AttentionGraph(attention, residual=shares)
    rollout = attnflow.attention_rollout(graph, positions=positions, start_layer=start_layer)
    product = np.eye(6)
    for layer in range(start_layer, 4):
        product = edges[layer] @ product
        expected = product if positions is None else product[positions]
        np.testing.assert_allclose(rollout[layer - start_layer], expected, atol=1e-12)


def test_flow_has_capacities_of_different_shares(attention, measured):
    shares, edges = measured
    graph = attnflow.AttentionGraph(attention, residual=shares)
    # The same edges with no residual of their own.
    plain = attnflow.AttentionGraph(edges, residual=0.0)
    flow = attnflow.attention_flow(graph)
    np.testing.assert_allclose(flow, attnflow.attention_flow(plain), atol=1e-12)
    cut = attnflow.min_cut(graph, 4, 0, 3)
    assert cut.value == pytest.approx(flow[3, 0, 3], abs=1e-12)


def test_single_heads_have_the_shares_of_their_layer(attention, measured):
    shares, edges = measured
    own = (1 - shares[2][:, None]) * attention[2, 1] + np.diag(shares[2])
    expected = own @ edges[1] @ edges[0]
    rollout = attnflow.head_rollout(attention, 3, 1, residual=shares)
    np.testing.assert_allclose(rollout, expected, atol=1e-12)
    stack = np.stack([edges[0], edges[1], own])
    np.testing.assert_allclose(
        attnflow.head_flow(attention, 3, 1, residual=shares),
        attnflow.attention_flow(stack, residual=0.0, layers=[3])[0],
        atol=1e-12,
    )


def test_equal_shares_are_one_share(attention):
    equal = attnflow.AttentionGraph(attention, residual=np.full((4, 6), 0.25))
    single = attnflow.AttentionGraph(attention, residual=0.25)
    assert (equal.capacities == single.capacities).all()
    for positions in ([1], None):
        np.testing.assert_allclose(
            attnflow.attention_rollout(equal, positions=positions),
            attnflow.attention_rollout(single, positions=positions),
            atol=1e-12,
        )


def test_padded_positions_have_no_share(measured, attention):
    weights = attention.copy()
    weights[..., 5] = 0
    weights /= weights.sum(-1, keepdims=True)
    graph = attnflow.AttentionGraph(weights, residual=measured[0], padding=[5])
    assert not graph.capacities[:, 5].any()
    np.testing.assert_allclose(graph.capacities[:, :5].sum(-1), 1.0)
    assert not attnflow.attention_rollout(graph)[:, 5].any()


def test_shares_given_later_are_not_those_of_the_graph(attention, measured):
    shares, _ = measured
    graph = attnflow.AttentionGraph(attention, residual=shares)
    expected = attnflow.attention_rollout(graph)
    assert (attnflow.attention_rollout(graph, residual=shares) == expected).all()
    for other in (0.25, 1 - shares):
        with pytest.raises(OptionError, match=r"residual.*\(4, 6\)"):
            attnflow.attention_rollout(graph, residual=other)


def with_value(value):
    shares = np.full((4, 6), 0.5)
    shares[1, 3] = value
    return shares


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        (np.full((4, 5), 0.5), r"residual.*\(4, 5\).*\(4, 6\)"),
        (np.full(6, 0.5), r"residual.*\(6,\).*\(4, 6\)"),
        ([0.5] * 4, r"residual.*\(4,\).*\(4, 6\)"),
        ([[0.5], [0.5, 0.5]], "residual.*array"),
        (with_value(np.nan), "residual.*nan.*layer 2.*position 3"),
        (with_value(np.inf), "residual.*inf.*layer 2.*position 3"),
        (with_value(-0.1), "residual.*-0.1.*layer 2.*position 3"),
        (with_value(1.5), "residual.*1.5.*layer 2.*position 3"),
        (np.full((4, 6), "half"), "residual.*real"),
        (np.ones((4, 6), dtype=bool), "residual.*real"),
    ],
)
def test_bad_shares_are_an_error(attention, residual, message):
    with pytest.raises(OptionError, match=message):
        attnflow.AttentionGraph(attention, residual=residual)


# ---- Explanations --------------------------------------------------------------------------------


def graph_of(explainer, edges, **options):
    """The graph that an explanation of the text has to be made from."""
    inputs = explainer.tokenizer(TEXT, return_tensors="pt")
    inputs = {"input_ids": inputs["input_ids"]}
    captured = capture(explainer.model, inputs, edges=edges, **options)
    residual = 0.5
    if edges == "value_norm":
        residual = np.stack([shares[0].numpy() for shares in captured.residuals])
    return attnflow.AttentionGraph([layer[0] for layer in captured.layers], residual=residual)


def scores_of(graph, method):
    if method == "raw":
        return attnflow.raw_attention(graph)
    if method == "rollout":
        return attnflow.attention_rollout(graph)
    return attnflow.attention_flow(graph)


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
@pytest.mark.parametrize("edges", ["effective", "value_norm"])
@pytest.mark.parametrize("kind", ["encoder", "classifier", "decoder"])
def test_explanations_are_made_of_the_edges_asked_for(request, kind, edges, method):
    explainer = request.getfixturevalue(kind)
    graph = graph_of(explainer, edges)
    explanation = explainer.explain(TEXT, edges=edges, method=method, receptive_field=False)
    position = graph.tokens - 1 if kind == "decoder" else 0
    expected = scores_of(graph, method)[:, position]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-6)
    assert explanation.options["edges"] == edges
    assert explanation.options["residual"] == ("measured" if edges == "value_norm" else 0.5)
    other = explainer.explain(TEXT, method=method, receptive_field=False)
    assert np.abs(other.scores - explanation.scores).max() > 1e-3


@pytest.mark.parametrize("method", ["rollout", "flow"])
@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_the_receptive_field_keeps_the_share_of_the_residual(decoder, edges, method):
    graph = graph_of(decoder, edges)
    assert graph.causal
    even = np.tril(np.ones((graph.tokens, graph.tokens)))
    even /= even.sum(-1, keepdims=True)
    uniform = attnflow.AttentionGraph([even] * graph.layers, residual=graph.residual)
    ratio = scores_of(graph, method)[-1, -1] / scores_of(uniform, method)[-1, -1]
    explanation = decoder.explain(TEXT, edges=edges, method=method)
    np.testing.assert_allclose(explanation.scores, ratio / ratio.sum(), atol=1e-6)
    # What is remembered of one text is not taken for another.
    decoder.explain("a film that no one will forget a film", edges=edges, method=method)
    again = decoder.explain(TEXT, edges=edges, method=method)
    assert (again.scores == explanation.scores).all()


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_many_texts_are_explained_as_one_by_one(classifier, edges):
    several = ["the keys", TEXT, "a film that no one will forget"]
    together = classifier.explain(several, edges=edges, method="rollout")
    for text, explanation in zip(several, together, strict=True):
        alone = classifier.explain(text, edges=edges, method="rollout")
        np.testing.assert_allclose(explanation.scores, alone.scores, atol=1e-5)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_generated_tokens_are_explained(decoder, edges):
    steps = decoder.generate("the keys to the", max_new_tokens=2, method="rollout", edges=edges)
    alone = decoder.explain("the keys to the", method="rollout", edges=edges)
    np.testing.assert_allclose(steps[0].scores, alone.scores, atol=1e-5)


def test_one_head_is_explained_by_its_own_norms(encoder):
    graph = graph_of(encoder, "value_norm", heads=1)
    explanation = encoder.explain(TEXT, edges="value_norm", heads=1, method="rollout")
    expected = attnflow.attention_rollout(graph)[-1, 0]
    np.testing.assert_allclose(explanation.scores, expected, atol=1e-6)


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
@pytest.mark.parametrize("edges", ["effective", "value_norm"])
@pytest.mark.parametrize("name", ["ViTModel", "DeiTModel", "Dinov2Model", "CLIPVisionModel"])
def test_images_are_explained(name, edges, method):
    model = make_vision(name)
    explanation = explain_image(model, photo(), edges=edges, method=method)
    assert explanation.options["residual"] == ("measured" if edges == "value_norm" else 0.5)
    assert np.isfinite(explanation.scores).all()
    other = explain_image(model, photo(), method=method)
    assert np.abs(other.scores - explanation.scores).max() > 1e-4
    if method != "flow":
        assert explanation.scores.sum() == pytest.approx(1)


def test_an_image_may_be_related_to_uniform_attention_with_measured_shares():
    model = make_vision("ViTModel")
    options = {"edges": "value_norm", "method": "rollout"}
    plain = explain_image(model, photo(), **options)
    related = explain_image(model, photo(), receptive_field=True, **options)
    assert related.scores.sum() == pytest.approx(1)
    assert related.scores[0] < plain.scores[0]  # the position's own residual is divided out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edges": "value_norm", "residual": 0.3}, "residual.*0.3.*edges.*'value_norm'"),
        ({"edges": "value_norm", "heads": "max"}, "heads.*'max'.*edges.*'value_norm'"),
        ({"edges": "value_norm", "heads": 2}, "heads.*2"),
        ({"edges": "values"}, "edges.*'values'.*attention.*gradient.*effective.*value_norm"),
        ({"residual": np.full((3, 11), 0.5)}, "(?s)residual.*0.*1"),
        ({"residual": 1.5}, "(?s)residual.*0.*1"),
    ],
)
def test_a_bad_option_of_explain_is_an_error(encoder, options, message):
    with pytest.raises(OptionError, match=message):
        encoder.explain(TEXT, **options)
    with pytest.raises(OptionError, match=message):
        explain_image(make_vision("ViTModel"), photo(), **options)


def test_a_model_whose_values_are_not_to_be_had_is_an_error_that_says_what_works():
    config = transformers.MPNetConfig(**SIZES)
    model = sharpen(transformers.MPNetForSequenceClassification(config))
    for layer in model.mpnet.encoder.layer:
        layer.attention.attn.dropout = nn.Identity()
    explainer = Explainer(model, wordpiece_tokenizer(VOCABULARY))
    for edges in ("effective", "value_norm"):
        with pytest.raises(AttentionError, match=r"MPNet.*edges.*'attention'"):
            explainer.explain(TEXT, edges=edges, method="rollout")


def test_the_command_line_names_all_edges(capsys):
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search("attention.*gradient.*effective.*value_norm", shown)
