"""ALTI edges: against plain loops from the models' weights, and what must add up."""

import numpy as np
import pytest
import torch
import transformers

from attnflow import attention_rollout
from attnflow.capture import capture, capture_pair
from attnflow.capture import watch as watching
from attnflow.edges import alti
from attnflow.edges.alti import Block, alti_rows, linearised
from attnflow.errors import AttentionError, OptionError
from attnflow.options import Options
from tests.support import text as text_models
from tests.support.architectures import (
    MODELS,
    SMALL,
    build,
    eager_run,
    randomised,
    state_of,
    texts,
    tiny_t5,
)
from tests.support.vision import make as make_vision

# DeBERTa's code does this when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

TEXT = "the keys to the cabinet are on the table"
# Models with a norm between the output projection and the residual.
SANDWICHES = ("Gemma2", "Gemma3Text", "Olmo2")


def sandwich(name):
    options = {"num_key_value_heads": 2, "head_dim": 8}
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **options})
    torch.manual_seed(0)
    return randomised(transformers.AutoModelForCausalLM.from_config(config).eval())


def model_named(name):
    return sandwich(name) if name in SANDWICHES else randomised(build(name))


def contributions(vectors):
    """The rows of one item, from vectors (n, m, D), one pair of positions at a time."""
    rows = np.zeros(vectors.shape[:2])
    for i in range(len(rows)):
        total = vectors[i].sum(0)
        for j in range(rows.shape[1]):
            rows[i, j] = max(0.0, np.abs(total).sum() - np.abs(total - vectors[i, j]).sum())
        if rows[i].sum() == 0:
            rows[i, i] = 1.0
        rows[i] /= rows[i].sum()
    return rows


# ---- One layer -----------------------------------------------------------------------------------


def block_of(weights, values, residual, **others):
    """A block of one item and one head, whose projection is the identity."""
    weights, values, residual = (
        torch.tensor(part).double() for part in (weights, values, residual)
    )
    size = values.shape[-1]
    zero = torch.zeros_like(residual)[None]
    return Block(
        weights[None, None],
        values[None, None],
        torch.eye(size).double()[None],
        residual[None],
        zero,
        zero,
        **others,
    )


def test_two_tokens_are_as_worked_out_by_hand():
    block = block_of([[1.0, 0.0], [0.5, 0.5]], [[2.0, 0.0], [0.0, 4.0]], [[0.0, 1.0], [-3.0, 0.0]])
    # T_00 = (2, 1). T_10 = (1, 0), T_11 = (0, 2) + (-3, 0), their sum (-2, 2) of length 4. Without
    # T_10 (-3, 2) is left, longer than before: nothing. Without T_11 (1, 0): 4 - 1.
    rows, shares = alti_rows(block)
    assert rows[0].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert shares.tolist() == [[0.0, 0.0]]
    # Seen from another encoder, the residual (-3, 0) is a vector of its own: without it (1, 2), so
    # 4 - 3; without (0, 2) there is (-2, 0), so 4 - 2.
    rows, shares = alti_rows(block, cross=True)
    assert rows[0, 1].tolist() == [0.0, 1.0]
    assert shares[0, 1] == pytest.approx(1 / 3)


def test_a_row_of_zeros_keeps_to_itself():
    block = block_of([[0.0, 0.0], [1.0, 0.0]], [[1.0], [1.0]], [[0.0], [-1.0]])
    rows, shares = alti_rows(block)
    assert rows[0].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    rows, shares = alti_rows(block, cross=True)
    assert rows[0, 0].tolist() == [0.0, 0.0]
    assert shares[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_rows_do_not_matter(causal, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 7, 7, generator=generator).double()
    if causal:
        scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    values, projection, residual = (
        torch.randn(*shape, generator=generator).double()
        for shape in ((2, 3, 7, 4), (3, 4, 12), (2, 7, 12))
    )
    block = Block(scores.softmax(-1), values, projection, residual, residual, residual)
    whole, _ = alti_rows(block)
    vectors = torch.einsum("bhij,bhjd,hdx->bijx", block.weights, values, projection)
    vectors[:, range(7), range(7)] += residual
    for item in range(2):
        expected = contributions(vectors[item].numpy())
        np.testing.assert_allclose(whole[item].numpy(), expected, atol=1e-12)
    monkeypatch.setattr(alti, "BLOCK_NUMBERS", 2 * 7 * 12)
    torch.testing.assert_close(alti_rows(block)[0], whole)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.LayerNorm(6),
        torch.nn.LayerNorm(6, bias=False),
        torch.nn.LayerNorm(6, elementwise_affine=False),
        torch.nn.RMSNorm(6, eps=1e-6),
        transformers.models.gemma.modeling_gemma.GemmaRMSNorm(6),
        transformers.models.t5.modeling_t5.T5LayerNorm(6),
    ],
)
def test_norms_are_recognised_by_what_they_return(module):
    randomised(module)
    given = torch.randn(2, 3, 6)
    returned = module(given).detach()
    norm = linearised(module, given, returned)
    torch.testing.assert_close((norm.apply(given.double()) + norm.bias).float(), returned)
    assert linearised(module, given, returned.abs()) is None


# ---- Models --------------------------------------------------------------------------------------


def bert_vectors(model, outputs, layer):
    """T of a layer that normalises after the residual."""
    part = model.bert.encoder.layer[layer].attention
    x, weights = outputs.hidden_states[layer][0], outputs.attentions[layer][0]
    values = x @ part.self.value.weight.T
    moved = moved_by(weights, values, part.output.dense.weight.T, 4)
    moved[range(len(x)), range(len(x))] += x
    attended = weights @ (values + part.self.value.bias).unflatten(-1, (4, 4)).transpose(0, 1)
    before = part.output.dense(attended.transpose(0, 1).flatten(-2)) + x
    spread = (before.var(-1, unbiased=False) + part.output.LayerNorm.eps).sqrt()
    centred = moved - moved.mean(-1, keepdim=True)
    return centred * part.output.LayerNorm.weight / spread[:, None, None]


def gpt2_vectors(model, outputs, layer, residual=True):
    part = model.transformer.h[layer]
    x, weights = outputs.hidden_states[layer][0], outputs.attentions[layer][0]
    values = part.ln_1(x) @ part.attn.c_attn.weight[:, 32:]
    moved = moved_by(weights, values, part.attn.c_proj.weight, 4)
    if residual:
        moved[range(len(x)), range(len(x))] += x
    return moved


def llama_vectors(model, outputs, layer, residual=True):
    part = model.model.layers[layer]
    x, weights = outputs.hidden_states[layer][0], outputs.attentions[layer][0]
    values = part.self_attn.v_proj(part.input_layernorm(x))
    # Two heads of queries share one of values.
    values = values.unflatten(-1, (2, 1, 4)).expand(-1, 2, 2, 4).flatten(-3)
    moved = moved_by(weights, values, part.self_attn.o_proj.weight.T, 4)
    if residual:
        moved[range(len(x)), range(len(x))] += x
    return moved


def moved_by(weights, values, projection, heads):
    """The vector from each position to each other, head by head, (n, m, D)."""
    size = values.shape[-1] // heads
    moved = torch.zeros(*weights.shape[1:], projection.shape[-1], dtype=values.dtype)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        moved += weights[head][..., None] * (values[:, part] @ projection[part])
    return moved


VECTORS = {"BERT": bert_vectors, "GPT-2": gpt2_vectors, "Llama": llama_vectors}


@pytest.mark.parametrize("name", VECTORS)
@torch.no_grad()
def test_rows_of_a_model_are_those_of_a_loop(name):
    model, inputs = randomised(build(name)).double(), texts(9)
    captured = capture(model, inputs, edges="alti")
    outputs = eager_run(model, **inputs)
    for layer, rows in enumerate(captured.layers):
        expected = contributions(VECTORS[name](model, outputs, layer).numpy())
        np.testing.assert_allclose(rows[0].numpy(), expected, atol=1e-6)
        assert not captured.residuals[layer].any()
    # A row that is all on one position would agree with nearly anything.
    assert np.median(rows[0].numpy().max(axis=-1)) < 0.99


@torch.no_grad()
def test_rows_of_an_encoder_decoder_are_those_of_a_loop():
    model, inputs = tiny_t5(texts(6)["input_ids"])
    captured = capture_pair(model, inputs, edges="alti")
    outputs = eager_run(model, **inputs)
    source = outputs.encoder_last_hidden_state[0]
    for layer, block in enumerate(model.decoder.block):
        x = outputs.decoder_hidden_states[layer][0]
        own, across = block.layer[0], block.layer[1]
        values = own.SelfAttention.v(own.layer_norm(x))
        weights = outputs.decoder_attentions[layer][0]
        moved = moved_by(weights, values, own.SelfAttention.o.weight.T, 4)
        moved[range(3), range(3)] += x
        expected = contributions(moved.numpy())
        np.testing.assert_allclose(captured.decoder[layer][0].numpy(), expected, atol=1e-6)
        assert not captured.residuals[1][layer].any()
        stream = moved.sum(1)
        weights = outputs.cross_attentions[layer][0]
        crossed = moved_by(
            weights, across.EncDecAttention.v(source), across.EncDecAttention.o.weight.T, 4
        )
        # The target's own vector is one more, whose part is the residual's share.
        every = contributions(torch.cat([crossed, stream[:, None]], dim=1).numpy())
        np.testing.assert_allclose(captured.residuals[2][layer][0], every[:, -1], atol=1e-6)
        rest = every[:, :-1] / every[:, :-1].sum(-1, keepdims=True)
        np.testing.assert_allclose(captured.cross[layer][0].numpy(), rest, atol=1e-6)


@pytest.mark.parametrize("name", [*MODELS, *SANDWICHES])
def test_parts_add_up_to_the_layers_of_every_architecture(name, monkeypatch):
    errors = []
    inner = Block.error
    monkeypatch.setattr(Block, "error", lambda block: errors.append(inner(block)) or errors[-1])
    model = model_named(name)
    before = state_of(model)
    captured = capture(model, texts(7, 4), edges="alti")
    assert len(errors) == len(captured.layers)
    assert max(errors) < 1e-5
    for layer in captured.layers:
        assert float(layer.min()) >= 0
        torch.testing.assert_close(layer[0].sum(-1), torch.ones(7))
    alone = capture(model, {"input_ids": texts(7, 4)["input_ids"][1:, :4]}, edges="alti")
    for layer, expected in zip(captured.layers, alone.layers, strict=True):
        torch.testing.assert_close(layer[1, :4, :4], expected[0], atol=1e-4, rtol=0)
    assert state_of(model) == before


@pytest.mark.parametrize("name", ["BERT", "Llama", "GPT-NeoX", "Gemma3Text"])
def test_bfloat16_is_near_float32(name):
    model = model_named(name)
    expected = capture(model, texts(7), edges="alti").layers
    found = capture(model.bfloat16(), texts(7), edges="alti").layers
    for layer, rows in zip(found, expected, strict=True):
        assert (layer - rows).abs().mean() < 0.05


@pytest.mark.parametrize("name", ["ViTModel", "Dinov2Model"])
def test_images_have_rows_too(name):
    model = make_vision(name)
    captured = capture(model, {"pixel_values": torch.randn(1, 3, 32, 32)}, edges="alti")
    for layer in captured.layers:
        torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer[..., 0]))


def norms_of(model):
    """How many norms the layers of a model have after their residual, as they are found."""
    found = []
    inner = watching.alti_rows

    def spied(block, **options):
        found.append((len(block.inner), len(block.outer)))
        return inner(block, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "alti_rows", spied)
        capture(model, texts(7), edges="alti")
    return set(found)


def test_norms_are_where_the_architecture_has_them():
    for name in ("BERT", "DistilBERT", "RoBERTa", "ALBERT", "ELECTRA", "DeBERTa-v2", "MPNet"):
        assert norms_of(model_named(name)) == {(0, 1)}, name
    # The first layer of ModernBERT reads its residual as it is, and carries the sum on.
    for name in ("ModernBERT", "GPT-2", "Llama", "Mistral", "Qwen2", "GPT-NeoX"):
        assert norms_of(model_named(name)) == {(0, 0)}, name
    for name in SANDWICHES:
        assert norms_of(model_named(name)) == {(1, 0)}, name


def test_biases_of_values_are_left_out():
    model = build("Qwen2")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.bias.zero_()
            layer.self_attn.o_proj.weight.mul_(0.5)
    plain = capture(model, texts(7), edges="alti").layers[0]
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.bias.fill_(3.0)
    torch.testing.assert_close(capture(model, texts(7), edges="alti").layers[0], plain)


@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_parts_that_do_not_add_up_are_an_error_that_says_by_how_much(name, monkeypatch):
    inner = Block.biases
    monkeypatch.setattr(Block, "biases", lambda block: inner(block) + 0.5)
    with pytest.raises(AttentionError, match=r"'alti'.*layer 1.*off by 0\.\d+"):
        capture(build(name), texts(7), edges="alti")


# ---- Explanations --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_rollout_has_no_further_residual(kind):
    explainer = getattr(text_models, kind)()
    explanation = explainer.explain(TEXT, edges="alti", method="rollout")
    assert explanation.options["edges"] == "alti"
    assert explanation.options["residual"] == "measured"
    assert explanation.options["receptive_field"] is False
    inputs = explainer.tokenizer(TEXT, return_tensors="pt")
    layers = capture(explainer.model, dict(inputs), edges="alti").layers
    product = np.eye(layers[0].shape[-1])
    for layer in layers:
        product = layer[0].double().numpy() @ product
    position = explanation.position
    np.testing.assert_allclose(explanation.scores, product[position], atol=1e-6)
    stacked = np.stack([layer[0].numpy() for layer in layers])
    np.testing.assert_allclose(
        attention_rollout(stacked, residual=0.0)[-1, position], product[position], atol=1e-6
    )
    # Asked for, it is there all the same.
    assert explainer.explain(TEXT, edges="alti", method="rollout", receptive_field=True).options[
        "receptive_field"
    ]


def test_many_texts_are_explained_as_one_by_one():
    explainer = text_models.decoder()
    several = ["the keys", TEXT, "a table"]
    together = explainer.explain(several, edges="alti", method="rollout")
    for text, found in zip(several, together, strict=True):
        alone = explainer.explain(text, edges="alti", method="rollout")
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"heads": "max"}, "heads.*'max'.*'alti'"),
        ({"heads": 1}, "heads.*1.*'alti'"),
        ({"residual": 0.3}, "residual.*0.3.*'alti'"),
    ],
)
def test_options_that_alti_determines_by_itself_are_refused(given, named):
    with pytest.raises(OptionError, match=named):
        Options(edges="alti", **given)
    if "heads" in given:
        with pytest.raises(OptionError, match=named):
            capture(build("BERT"), texts(5), edges="alti", **given)
