"""Attention some rows at a time: the same numbers as attention that is kept, in every family."""

import numpy as np
import pytest
import torch
import transformers

from attnflow import AttentionGraph
from attnflow.capture import capture, contribute, rows
from attnflow.options import Options
from attnflow.scoring import Scorer, mask_of
from tests.models.test_sinks import FAMILIES as SINKS
from tests.support.architectures import MODELS, SMALL, build, score_of, state_of, texts

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

# Those whose layers compute attention without the interface.
OWN = ("DeBERTa-v2", "MPNet")
GROUPED = {"num_key_value_heads": 2, "head_dim": 4}
MORE = {
    # Soft caps, and windows in every other layer.
    "Gemma2ForCausalLM": {**GROUPED, "sliding_window": 3, "attn_logit_softcapping": 0.5},
    "Gemma3ForCausalLM": {**GROUPED, "sliding_window": 3},
    "Qwen3ForCausalLM": GROUPED,
    "Phi3ForCausalLM": {"num_key_value_heads": 2},
    "CohereForCausalLM": {"num_key_value_heads": 2},
    "OPTForCausalLM": {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "BloomForCausalLM": {"n_head": 4, "n_layer": 2},
    # Attention in chunks.
    "Llama4ForCausalLM": {
        **GROUPED,
        "attention_chunk_size": 4,
        "intermediate_size_mlp": 32,
        "num_local_experts": 2,
    },
    # A position bias in every score.
    "T5EncoderModel": {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4},
    "XLMRobertaForMaskedLM": {},
    "StableLmForCausalLM": {"num_key_value_heads": 2},
}


def made(name, seed=0):
    """A small model of a family."""
    if name in MODELS:
        return build(name, seed=seed)
    kind = getattr(transformers, name)
    torch.manual_seed(seed)
    return kind(kind.config_class(**{**SMALL, **{**MORE, **SINKS}[name]})).eval()


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of about two rows, so that a short text has many of them."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 4 * 4 * 9 * 2)


def graphs(model, lengths, heads="mean"):
    """Each text's attention, computed again, and the graph of the attention that is kept."""
    inputs = texts(*lengths)
    if len(set(lengths)) == 1:
        inputs.pop("attention_mask")
    again = capture(model, inputs, heads=heads, keep=False)
    assert again.layers == []
    kept = capture(model, inputs, heads=heads)
    for row, length in enumerate(lengths):
        count = length + kept.sink
        yield (
            again.rows.text(row, length, 0.3),
            AttentionGraph(
                [layer[row, :count, :count] for layer in kept.layers],
                residual=0.3,
                sink=kept.sink,
            ),
        )


def compare(streamed, graph):
    """Compare what can be read off both."""
    assert (streamed.layers, streamed.tokens) == (graph.layers, graph.tokens)
    assert (streamed.causal, streamed.sink) == (graph.causal, graph.sink)
    again, kept = Scorer(streamed), Scorer(graph)
    places = [graph.tokens - 1, graph.tokens // 2]
    for method in ("raw", "rollout"):
        for relative in (False, True):
            found = again.scores(method, places, relative=relative)
            expected = kept.scores(method, places, relative=relative)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(again.mask, mask_of(graph))
    assert [again.sinks(place) for place in places] == [kept.sinks(place) for place in places]
    mean = np.full(graph.tokens, 1 / graph.tokens)
    for field in (False, True):
        options = Options(method="rollout", receptive_field=field)
        [found] = again.score_means(options, graph.layers, [mean])
        [expected] = kept.score_means(options, graph.layers, [mean])
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5)
        assert found._replace(scores=None) == expected._replace(scores=None)


@pytest.mark.parametrize("lengths", [(9, 9), (9, 5, 2)], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [*sorted({*MODELS} - {*OWN}), *MORE, *SINKS])
def test_what_is_computed_again_is_what_is_kept(name, lengths, small_blocks):
    model = made(name)
    if name == "BloomForCausalLM":
        # It takes no part in the interface, so its attention is kept.
        assert capture(model, texts(5), keep=False).rows is None
        return
    if name.startswith(("Deepseek", "HYV4")) and len(set(lengths)) > 1:
        lengths = (9,)
    for streamed, graph in graphs(model, lengths):
        compare(streamed, graph)


# ---- Contributions -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS, *sorted({*MORE} - {"T5EncoderModel"})])
def test_layers_computed_again_give_the_same_contributions(name, small_blocks):
    model = made(name)
    inputs = {"input_ids": texts(9, 9)["input_ids"]}
    plain = contribute(model, inputs, score_of)
    again = contribute(model, inputs, score_of, again=True)
    assert not again.wrong
    scale = float(plain.scores[0].abs().max())
    for found, expected in zip(again.scores, plain.scores, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * scale)
    torch.testing.assert_close(again.biases, plain.biases, rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(again.values, plain.values, rtol=1e-5, atol=1e-5 * scale)
    if plain.reads is not None:
        torch.testing.assert_close(again.reads, plain.reads, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["BERT", "Llama", "Mistral", "ModernBERT"])
def test_a_padded_batch_gives_what_each_text_alone_gives(name, small_blocks):
    model = made(name).double()
    inputs = texts(9, 5)
    together = contribute(model, inputs, score_of, again=True)
    for row, length in enumerate((9, 5)):
        one = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        alone = contribute(model, one, score_of)
        found = together.scores[0][row, :length]
        torch.testing.assert_close(found, alone.scores[0][0], rtol=1e-6, atol=1e-8)


def test_an_encoder_decoder_is_followed_from_its_target_to_its_source(small_blocks):
    config = transformers.T5Config(
        **{**SMALL, **MORE["T5EncoderModel"], "decoder_start_token_id": 0, "num_decoder_layers": 2}
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    inputs = {**texts(9), "decoder_input_ids": torch.tensor([[0, 5, 9, 17]])}
    plain = contribute(model, inputs, score_of)
    again = contribute(model, inputs, score_of, again=True)
    assert len(again.scores) == 2
    for found, expected in zip(again.scores, plain.scores, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["BERT", "Llama", "ALBERT", "Gemma2ForCausalLM"])
def test_the_model_is_left_as_it_was_found(name):
    model = made(name).train()
    before = state_of(model)
    capture(model, texts(9), keep=False).rows.text(0, 9, 0.5).causal  # noqa: B018
    contribute(model, texts(9), score_of, again=True)
    assert state_of(model) == before


# ---- Memory --------------------------------------------------------------------------------------


def largest_tensor(run):
    """The most numbers that any tensor has that a function makes, and what the function returns."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for value in tree_flatten(result)[0]:
                if torch.is_tensor(value) and not isinstance(value, rows.RowMask):
                    stored = value.untyped_storage().nbytes() // value.element_size()
                    self.most = max(self.most, stored)
            return result

    with Watch() as watch:
        result = run()
    return watch.most, result


@pytest.mark.parametrize(
    "name", ["BERT", "Llama", "Mistral", "ModernBERT", "Gemma2ForCausalLM", "GptOssForCausalLM"]
)
@pytest.mark.parametrize("padded", [False, True])
def test_no_array_is_as_large_as_one_head_of_one_layer(name, padded, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK_BYTES", 2**14)
    # A row of the largest other array, the logits, has 50 numbers.
    count = 160
    changes = {"max_position_embeddings": count} if name in ("BERT", "Llama") else {}
    model = build(name, **changes) if name in MODELS else made(name)
    inputs = texts(count, count - 7) if padded else {"input_ids": texts(count)["input_ids"]}

    def read():
        streamed = capture(model, inputs, keep=False).rows.text(0, count, 0.5)
        return Scorer(streamed).scores("rollout", [count - 1], relative=True)

    size = len(inputs["input_ids"]) * count * count
    most, _ = largest_tensor(read)
    assert most < size
    if name != "GptOssForCausalLM":
        most, _ = largest_tensor(lambda: contribute(model, inputs, score_of, again=True))
        assert most < size
