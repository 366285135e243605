"""Contributions: against a forward decomposition, in batches, and what the model is like after."""

import threading
from functools import partial

import pytest
import torch
import transformers
from torch import nn

from attnflow.capture import contribute
from attnflow.capture.rules import RULES
from attnflow.errors import AttentionError, OptionError
from benchmarks import decomposition
from tests.support.architectures import (
    MODELS,
    SMALL,
    build,
    eager_run,
    randomised,
    score_of,
    state_of,
    texts,
    tiny_t5,
    unusual,
)

# DeBERTa's code does this when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

IDS = torch.tensor([[5, 9, 17, 3, 21, 8]])


# ---- Against a forward decomposition -------------------------------------------------------------


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
def test_text_models_decompose_as_n_vectors_carried_forward_do(name):
    model = randomised(build(name)).double()
    classes = name == "BERT"
    found = contribute(
        model,
        {"input_ids": IDS},
        lambda outputs: outputs.logits[:, 1] if classes else outputs.logits[:, -1, 7],
    )
    outputs = eager_run(model, input_ids=IDS)
    decompose = {
        "BERT": decomposition.bert,
        "GPT-2": decomposition.gpt2,
        "Llama": decomposition.llama,
    }
    parts = decompose[name](model, outputs.hidden_states, outputs.attentions)
    expected = parts[:, 1 if classes else 7].detach()
    torch.testing.assert_close(found.scores[0][0], expected[:-1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.biases[0], expected[-1], rtol=1e-6, atol=1e-6)


def test_a_vision_model_decomposes_as_n_vectors_carried_forward_do():
    sizes = {"image_size": 12, "patch_size": 4, "num_channels": 3, "initializer_range": 0.4}
    torch.manual_seed(0)
    kept = {name: SMALL[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size")}
    config = transformers.ViTConfig(**kept, **sizes, num_attention_heads=4)
    model = randomised(transformers.ViTForImageClassification(config).eval()).double()
    pixels = torch.randn(1, 3, 12, 12, dtype=torch.double)
    found = contribute(model, {"pixel_values": pixels}, lambda outputs: outputs.logits[:, 1])
    outputs = eager_run(model, pixel_values=pixels)
    parts = decomposition.vit(model, outputs.hidden_states, outputs.attentions)[:, 1].detach()
    torch.testing.assert_close(found.scores[0][0], parts[:-1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.biases[0], parts[-1], rtol=1e-6, atol=1e-6)


def test_an_encoder_decoder_decomposes_as_n_vectors_carried_forward_do():
    model, inputs = tiny_t5(IDS)
    found = contribute(model, inputs, lambda outputs: outputs.logits[:, -1, 7])
    outputs = eager_run(model, **inputs)
    parts = decomposition.t5(
        model,
        outputs.encoder_hidden_states[0],
        outputs.decoder_hidden_states[0],
        (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions),
    )[:, 7].detach()
    scores = torch.cat([stack[0] for stack in found.scores])
    torch.testing.assert_close(scores, parts[:-1], rtol=1e-5, atol=1e-6)
    assert float(found.biases[0]) == 0.0


class Plain(nn.Module):
    """Attention layers without norms and activations."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(30, 8)
        self.layers = nn.ModuleList(
            [nn.ModuleDict({"attention": nn.Linear(8, 8)}) for _ in range(2)]
        )
        for layer in self.layers:
            layer.forward = layer["attention"].forward
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids):
        hidden = self.embeddings(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return {"logits": self.head(hidden.mean(1))}


def test_one_token_of_a_token_classifier_and_a_span_of_several_are_explained():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, num_hidden_layers=2, num_labels=3, **sizes)
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(config).eval()
    ids = torch.tensor([[1, 7, 9, 4]])
    one = contribute(model, {"input_ids": ids}, lambda out: out.logits[:, 2, 1])
    span = contribute(model, {"input_ids": ids}, lambda out: out.logits[:, 1:3, 1].sum(1))
    for found in (one, span):
        assert not found.wrong
        total = found.scores[0].sum(1) + found.biases
        torch.testing.assert_close(total, found.values, atol=1e-5, rtol=0)
    other = contribute(model, {"input_ids": ids}, lambda out: out.logits[:, 1, 1])
    # The span is the sum of its tokens, from one backward pass.
    torch.testing.assert_close(span.scores[0], one.scores[0] + other.scores[0], atol=1e-5, rtol=0)


def test_without_norms_and_activations_they_are_gradient_times_input():
    torch.manual_seed(0)
    model = Plain().double()
    found = contribute(model, {"input_ids": IDS}, lambda outputs: outputs["logits"][:, 1])
    x = model.embeddings(IDS).detach().requires_grad_()
    hidden = x
    for layer in model.layers:
        hidden = layer["attention"](hidden)
    (gradient,) = torch.autograd.grad(model.head(hidden.mean(1))[0, 1], x)
    torch.testing.assert_close(found.scores[0], (x * gradient).sum(-1).detach())


# ---- Adding up -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_they_add_up_in_every_architecture(name):
    model = randomised(build(name))
    inputs = texts(5, 7)
    found = contribute(model, inputs, score_of)
    assert float(found.errors.max()) < 1e-4
    assert not found.wrong
    assert found.without_rule == ()
    total = found.scores[0].sum(1) + found.biases
    torch.testing.assert_close(total, found.values, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["layer_norm", "linear"])
def test_a_rule_that_is_missing_is_seen_and_named(monkeypatch, name):
    # Without the rule of linear layers, only their biases are missing from the sum.
    monkeypatch.delitem(RULES, name)
    model = randomised(build("BERT"))
    found = contribute(model, {"input_ids": IDS}, lambda outputs: outputs.logits[:, 1])
    assert found.wrong
    assert found.without_rule == (name,)


# ---- Batches, padding and types ------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_with_padding_gives_what_each_text_alone_gives(name):
    model = randomised(build(name)).double()
    lengths = (4, 7, 6)
    inputs = texts(*lengths)
    last = inputs["attention_mask"].sum(1) - 1

    def score(outputs, rows=slice(None)):
        logits = outputs.logits
        if logits.ndim == 3:
            logits = logits[torch.arange(len(logits)), last[rows]]
        return logits[:, 1]

    together = contribute(model, inputs, score)
    for row, length in enumerate(lengths):
        one = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        alone = contribute(model, one, partial(score, rows=[row]))
        torch.testing.assert_close(
            together.scores[0][row, :length], alone.scores[0][0], rtol=1e-6, atol=1e-8
        )
        assert together.scores[0][row, length:].abs().max() < 1e-8 if length < 7 else True
        torch.testing.assert_close(together.biases[row], alone.biases[0], rtol=1e-5, atol=1e-6)


def test_bfloat16_gives_about_the_same():
    model = randomised(build("Llama"))
    score = score_of
    exact = contribute(model, {"input_ids": IDS}, score)
    rounded = contribute(model.bfloat16(), {"input_ids": IDS}, score)
    assert not rounded.wrong
    scale = exact.scores[0].abs().max()
    assert float((exact.scores[0] - rounded.scores[0]).abs().max() / scale) < 0.1


def test_experts_that_mix_the_items_of_a_batch_are_right_one_by_one():
    config = transformers.GptOssConfig(
        **{**SMALL, "num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 4}
    )
    torch.manual_seed(0)
    model = randomised(transformers.GptOssForCausalLM(config).eval())
    found = contribute(model, {"input_ids": IDS}, score_of)
    assert not found.wrong, found


# ---- What is left behind -------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_left_as_it_was_found(name):
    model = unusual(build(name))
    inputs = texts(5, 7)
    before = state_of(model)
    with torch.no_grad():
        logits = model(**inputs).logits
    contribute(model, inputs, score_of)
    assert state_of(model) == before
    with torch.no_grad():
        assert model(**inputs).logits.shape == logits.shape


def test_the_model_is_left_as_it_was_found_after_an_exception():
    model = unusual(build("BERT"))
    before = state_of(model)

    def fail(outputs):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        contribute(model, {"input_ids": IDS}, fail)
    assert state_of(model) == before


def test_another_thread_is_not_hooked():
    model = randomised(build("BERT"))
    with torch.no_grad():
        expected = model(IDS).logits
    seen = []

    def score(outputs):
        def run():
            with torch.no_grad():
                seen.append(model(IDS).logits)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return outputs.logits[:, 1]

    contribute(model, {"input_ids": IDS}, score)
    assert torch.equal(seen[0], expected)


# ---- Wrong calls ---------------------------------------------------------------------------------


def test_a_model_without_attention_layers_is_refused():
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(AttentionError, match="Sequential"):
        contribute(model, {"input": torch.ones(1, 3)}, lambda outputs: outputs[:, 0])


def test_a_score_of_another_shape_is_refused():
    with pytest.raises(OptionError, match="score"):
        contribute(build("BERT"), {"input_ids": IDS}, lambda outputs: outputs.logits)


# ---- Steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 1])
def test_a_step_carries_what_vectors_carried_forward_edge_by_edge_say(layer):
    model = randomised(build("GPT-2")).double()
    found = contribute(model, {"input_ids": IDS}, lambda out: out.logits[:, -1, 7], steps=True)
    outputs = eager_run(model, input_ids=IDS)
    parts = decomposition.gpt2(model, outputs.hidden_states, outputs.attentions, layer, edges=True)
    size = IDS.shape[1]
    edges, kept = parts[: size * size, 7].reshape(size, size), parts[size * size : -1, 7]
    step = found.steps[layer]
    assert (step.stack, step.layer, step.cross) == (0, layer, False)
    torch.testing.assert_close(step.edges[0], edges.detach())
    torch.testing.assert_close(step.entering[0] - step.edges[0].sum(0), kept.detach())


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_what_leaves_a_layer_enters_the_next_where_there_are_no_biases(name):
    model = randomised(build(name)).double()
    found = contribute(model, {"input_ids": IDS}, score_of, steps=True)
    plain = contribute(model, {"input_ids": IDS}, score_of)
    torch.testing.assert_close(found.scores[0], plain.scores[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.steps[0].entering, found.scores[0])
    for lower, upper in zip(found.steps, found.steps[1:], strict=False):
        kept = lower.entering - lower.edges.sum(1)
        after = lower.edges.sum(2) + kept
        torch.testing.assert_close(after, upper.entering, rtol=1e-5, atol=1e-6)


def test_all_of_the_source_comes_through_cross_attention():
    model, inputs = tiny_t5(IDS)
    found = contribute(model, inputs, lambda outputs: outputs.logits[:, -1, 7], steps=True)
    assert [(step.stack, step.layer, step.cross) for step in found.steps] == [
        (0, 0, False),
        (0, 1, False),
        (1, 0, False),
        (1, 0, True),
        (1, 1, False),
        (1, 1, True),
    ]
    crossed = sum(step.edges.sum() for step in found.steps if step.cross)
    torch.testing.assert_close(crossed, found.scores[0].sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["BERT", "ModernBERT", "GPT-2", "Llama", "T5"])
def test_the_parts_of_the_heads_add_up_to_those_of_the_edges(name):
    if name == "T5":
        model, inputs = tiny_t5(IDS)
    else:
        model, inputs = randomised(build(name)).double(), {"input_ids": IDS}
    for step in contribute(model, inputs, score_of, steps=True).steps:
        assert step.heads.shape == (1, 4)
        assert step.heads.abs().min() > 0
        torch.testing.assert_close(step.heads.sum(1), step.edges.sum((1, 2)))


@pytest.mark.parametrize("head", [0, 2, 3])
def test_a_head_whose_output_is_the_only_one_has_all(head):
    model = randomised(build("Llama")).double()
    size = model.config.head_dim
    with torch.no_grad():
        # The output projection reads this head alone.
        kept = model.model.layers[1].self_attn.o_proj.weight[:, head * size : (head + 1) * size]
        alone = torch.zeros_like(model.model.layers[1].self_attn.o_proj.weight)
        alone[:, head * size : (head + 1) * size] = kept
        model.model.layers[1].self_attn.o_proj.weight.copy_(alone)
    step = contribute(model, {"input_ids": IDS}, score_of, steps=True).steps[1]
    expected = torch.zeros_like(step.heads)
    expected[:, head] = step.edges.sum((1, 2))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(step.heads, expected)


def test_steps_of_a_model_that_has_its_own_attention_are_refused():
    with pytest.raises(AttentionError, match="MPNet"):
        contribute(build("MPNet"), {"input_ids": IDS}, score_of, steps=True)
