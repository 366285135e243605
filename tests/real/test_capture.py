"""Capturing the attention of trained models."""

import pytest
import torch

import attnflow
from attnflow.capture import capture

SENTENCES = [
    "The keys to the cabinet are on the table.",
    "A dog barked.",
    "The author who the critics met last year in the old town writes novels about the sea.",
]
REACTIONS = ["CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1", "CCO>>CC=O"]


@pytest.fixture(params=["minilm", "smollm", "albert"])
def trained(request):
    """A trained model, and a padded batch of what it was trained on."""
    model, tokenizer, _ = request.getfixturevalue(request.param)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    texts = REACTIONS if request.param == "albert" else SENTENCES
    return model, tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")


def own_run(model, inputs, implementation, **options):
    """The model's own forward pass with another attention implementation."""
    found = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        with torch.no_grad():
            return model(**inputs, **options)
    finally:
        model.set_attn_implementation(found)


def test_weights_are_those_the_model_returns_with_eager_attention(trained):
    model, inputs = trained
    expected = own_run(model, inputs, "eager", output_attentions=True).attentions
    captured = capture(model, inputs, heads=None).layers
    assert len(captured) == len(expected) == model.config.num_hidden_layers
    for layer, weights in zip(captured, expected, strict=True):
        torch.testing.assert_close(layer, weights, atol=1e-5, rtol=0)


def test_outputs_are_those_of_the_model_as_it_is(trained):
    model, inputs = trained
    assert model.config._attn_implementation == "sdpa"
    expected = own_run(model, inputs, "sdpa")
    outputs = capture(model, inputs).outputs
    assert type(outputs) is type(expected)
    real = inputs["attention_mask"].bool()
    # Logits, or the last layer's states: numbers between 1 and 30 in size.
    torch.testing.assert_close(outputs[0][real], expected[0][real], atol=1e-3, rtol=1e-4)
    assert model.config._attn_implementation == "sdpa"


def test_an_item_of_a_padded_batch_equals_the_item_alone(trained):
    model, inputs = trained
    batch = capture(model, inputs).layers
    for row, mask in enumerate(inputs["attention_mask"]):
        length = int(mask.sum())
        alone = {name: value[row : row + 1, :length] for name, value in inputs.items()}
        for layer, expected in zip(batch, capture(model, alone).layers, strict=True):
            torch.testing.assert_close(layer[row, :length, :length], expected[0], atol=1e-5, rtol=0)


def test_a_graph_is_made_of_what_was_captured(trained):
    model, inputs = trained
    layers = capture(model, inputs).layers
    padding = ~inputs["attention_mask"][1].bool()
    graph = attnflow.AttentionGraph([layer[1] for layer in layers], padding=padding)
    assert graph.layers == model.config.num_hidden_layers
    assert graph.causal == (model.config.model_type == "llama")


def test_gradients_are_those_of_the_weights_an_eager_model_returns(albert):
    model, tokenizer, folder = albert
    inputs = tokenizer(REACTIONS[0], return_tensors="pt")
    assert tokenizer.unk_token_id not in inputs["input_ids"]
    eager = type(model).from_pretrained(folder, attn_implementation="eager").eval()

    def score(outputs):
        return outputs.logits[:, 3, 20]

    outputs = eager(**inputs, output_attentions=True)
    gradients = torch.autograd.grad(score(outputs).sum(), outputs.attentions)
    layers = capture(model, inputs, score=score).layers
    assert len(layers) == 12
    for layer, weights, gradient in zip(layers, outputs.attentions, gradients, strict=True):
        expected = (weights * gradient).clamp(min=0).mean(1).detach()
        torch.testing.assert_close(layer, expected, atol=1e-6, rtol=1e-3)
