"""The trace of an explanation: kept in little space, and given back as it was."""

import copy
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow import AttentionGraph, Explainer, Explanation, attention_flow, attention_rollout
from attnflow.cli import main
from attnflow.errors import OptionError
from attnflow.graph import encoder_decoder_graph
from attnflow.trace import Trace


def trace_of(graph, **given):
    count = graph.tokens
    named = {
        "tokens": [f"t{i}" for i in range(count)],
        "spans": [None] * count,
        "special": [False] * count,
    }
    return Trace.of(graph, **{**named, **given})


def explanation_of(trace, /, **given):
    scores = attention_flow(trace.graph(), positions=[0])[:, 0]
    named = {
        "tokens": trace.tokens,
        "scores": scores[-1],
        "layer_scores": scores,
        "method": "flow",
        "layer": trace.layers,
        "position": 0,
        "text": "",
        "spans": trace.spans,
        "special": trace.special,
        "model": "tiny",
        "task": "encoder",
        "trace": trace,
    }
    return Explanation(**{**named, **given})


def test_a_small_graph_is_kept_to_seven_digits(attention):
    graph = AttentionGraph(attention)
    trace = trace_of(graph)
    np.testing.assert_allclose(trace.attention(), graph.attention, atol=1e-7)
    np.testing.assert_allclose(
        attention_rollout(trace.graph()), attention_rollout(graph), atol=1e-6
    )
    np.testing.assert_allclose(attention_flow(trace.graph()), attention_flow(graph), atol=1e-6)


def test_a_large_graph_is_kept_in_two_bytes_a_weight():
    weights = np.random.default_rng(0).random((3, 420, 420)) ** 8
    graph = AttentionGraph(weights / weights.sum(axis=-1, keepdims=True))
    trace = trace_of(graph)
    assert trace.nbytes == 2 * graph.attention.size
    highest = graph.attention.max(axis=-1, keepdims=True)
    assert (np.abs(trace.attention() - graph.attention) <= highest * 1e-4).all()


def test_a_graph_too_large_for_a_page_has_no_trace():
    even = np.full((3, 1200, 1200), 1 / 1200, dtype=np.float32)
    assert trace_of(AttentionGraph(even)) is None


def pair_graph(residual=0.5, *, empty=False):
    """The graph of an encoder of 3 layers and 4 tokens and a decoder of 2 layers and 3 tokens."""
    random = np.random.default_rng(5)

    def rows(*shape):
        weights = random.random(shape) ** 4 + 1e-3
        return weights / weights.sum(axis=-1, keepdims=True)

    decoder = np.tril(rows(2, 3, 3))
    cross = rows(2, 3, 4)
    if empty:
        cross[1, 2] = 0.0
    return encoder_decoder_graph(
        rows(3, 4, 4),
        decoder / decoder.sum(axis=-1, keepdims=True),
        cross,
        residual=residual,
        allow_empty=empty,
    )


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("residual", [0.3, "measured"])
def test_an_encoder_decoder_keeps_both_sides_and_what_passes(residual, empty):
    if residual == "measured":
        residual = np.linspace(0, 1, 49).reshape(7, 7)
    graph = pair_graph(residual, empty=empty)
    trace = Trace.from_dict(json.loads(json.dumps(trace_of(graph).to_dict())))
    assert trace.encoder == (3, 4)
    assert (trace.layers, trace.depth) == (7, 2)
    again = trace.graph()
    np.testing.assert_array_equal(again.passing, graph.passing)
    np.testing.assert_allclose(attention_rollout(again), attention_rollout(graph), atol=1e-6)
    np.testing.assert_allclose(attention_flow(again), attention_flow(graph), atol=1e-6)


def test_the_first_tokens_of_a_target_are_a_trace_of_their_own():
    graph = pair_graph(np.linspace(0, 1, 49).reshape(7, 7))
    mask = np.ones((7, 13), dtype=bool)
    mask[3::2, 7:] = False
    trace = trace_of(graph, mask=mask)
    first = trace.first(6)
    assert first.tokens == trace.tokens[:6]
    np.testing.assert_array_equal(
        attention_rollout(first.graph()), attention_rollout(trace.graph())[:, :6, :6]
    )
    np.testing.assert_array_equal(
        attention_rollout(first.uniform()), attention_rollout(trace.uniform())[:, :6, :6]
    )
    with pytest.raises(OptionError, match="first 2 tokens"):
        trace.first(2)


def test_uniform_attention_of_both_sides_is_over_what_each_sees():
    mask = np.ones((7, 13), dtype=bool)
    mask[3::2, 7:] = False
    uniform = trace_of(pair_graph(), mask=mask).uniform()
    assert uniform.attention[0, 1].tolist() == [0.25] * 4 + [0.0] * 3
    assert uniform.attention[3, 5].tolist() == [0.0] * 4 + [0.5, 0.5, 0.0]
    assert uniform.attention[4, 5].tolist() == [0.25] * 4 + [0.0] * 3
    assert uniform.attention[4, 1].tolist() == [0.0, 1.0, *[0.0] * 5]
    with pytest.raises(OptionError, match="mask"):
        trace_of(pair_graph()).uniform()


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ([3], "encoder.*two integers"),
        ([3, -4], "encoder.*-4"),
        ([0, 4], "decoder"),
        ([7, 4], "decoder"),
        ([4, 4], "decoder"),
        ([3, 7], "tokens"),
        ([3, 3], "edge"),
        ([5, 4], "edge"),
    ],
)
def test_sides_that_do_not_fit_the_weights_are_refused(encoder, message):
    data = trace_of(pair_graph()).to_dict() | {"encoder": encoder}
    with pytest.raises(OptionError, match=message):
        Trace.from_dict(data)


@pytest.mark.parametrize("residual", [0.0, 0.25, "measured"])
def test_json_gives_back_what_was_kept(attention, residual):
    if residual == "measured":
        residual = np.linspace(0, 1, 24).reshape(4, 6)
    graph = AttentionGraph(attention, residual=residual)
    mask = np.random.default_rng(1).random((4, 11)) < 0.5
    heads = list(attention)
    trace = trace_of(graph, mask=mask, heads=heads, spans=[(0, 1), *[None] * 5])
    again = Trace.from_dict(json.loads(json.dumps(trace.to_dict())))
    for name in ("weights", "residual", "mask", "heads"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trace, name))
    for name in ("tokens", "spans", "special", "bits", "layers"):
        assert getattr(again, name) == getattr(trace, name)
    codes = trace.heads / trace.heads.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(codes, attention, atol=1e-4)


def test_bits_are_left_out_where_there_is_no_room_for_them(attention):
    trace = trace_of(AttentionGraph(attention))
    whole = trace.to_dict()
    small = trace.to_dict(most_bytes=len(whole["weights"]) - 100)
    assert 8 <= small["bits"] < trace.bits
    assert len(small["weights"]) <= len(whole["weights"]) - 100
    assert trace.to_dict(most_bytes=1)["bits"] == 8
    again = Trace.from_dict(trace.to_dict(most_bytes=1))
    np.testing.assert_allclose(again.attention(), trace.attention(), atol=0.01)


def test_bits_of_heads_are_left_out_where_there_is_no_room_for_them(attention):
    trace = trace_of(AttentionGraph(attention), heads=list(attention))
    whole = trace.to_dict()
    room = len(whole["weights"]) + len(whole["heads"]["weights"])
    assert trace.to_dict(most_bytes=room) == whole
    small = trace.to_dict(most_bytes=room - 200)
    assert small["weights"] == whole["weights"]
    assert 8 <= small["heads"]["bits"] < 16
    assert len(small["heads"]["weights"]) <= len(whole["heads"]["weights"]) - 200
    again = Trace.from_dict(json.loads(json.dumps(trace.to_dict(most_bytes=1))))
    assert trace.to_dict(most_bytes=1)["heads"]["bits"] == 8
    for codes in (again.heads, trace.heads):
        np.testing.assert_allclose(codes / codes.sum(-1, keepdims=True), attention, atol=5e-3)


def test_a_trace_cannot_be_changed(attention):
    trace = trace_of(AttentionGraph(attention))
    with pytest.raises(AttributeError, match="bits"):
        trace.bits = 8
    with pytest.raises(AttributeError, match="bits"):
        del trace.bits
    with pytest.raises(ValueError, match="read-only"):
        trace.weights[0] = 0


def test_an_explanation_keeps_its_trace_in_a_file_a_copy_and_a_pickle(attention, tmp_path):
    explanation = explanation_of(trace_of(AttentionGraph(attention)))
    explanation.save(tmp_path / "kept.json")
    for again in (
        Explanation.load(tmp_path / "kept.json"),
        copy.deepcopy(explanation),
        pickle.loads(pickle.dumps(explanation)),
    ):
        assert again == explanation
        np.testing.assert_array_equal(again.trace.weights, explanation.trace.weights)
    assert "trace" not in explanation.to_dict()
    assert Explanation.from_dict(explanation.to_dict()).trace is None
    assert explanation.without_trace().trace is None
    assert explanation.without_trace() == explanation


def test_words_and_dropped_tokens_leave_the_trace_alone(attention):
    explanation = explanation_of(trace_of(AttentionGraph(attention), special=[True, *[False] * 5]))
    assert explanation.without_special_tokens().trace is explanation.trace
    assert explanation.by_unit("words").trace is explanation.trace


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 30}, "bits"),
        ({"bits": 25}, "bits"),
        ({"layers": 10**9}, "cannot be read"),
        ({"layers": 3}, "108"),
        ({"layers": True}, "layers.*True"),
        ({"weights": "!"}, "weights.*unpacked"),
        ({"weights": 5}, "weights.*unpacked"),
        ({"weights": "eJwDAAAAAAE="}, "144"),
        ({"tokens": "abcdef"}, "tokens.*strings"),
        ({"tokens": []}, "0 tokens"),
        ({"special": [0] * 6}, "special"),
        ({"special": [True]}, "special"),
        ({"spans": [[0, -1]] * 6}, "spans"),
        ({"spans": 3}, "spans"),
        ({"residual": 1.5}, "residual.*0.*1"),
        ({"residual": "half"}, "residual.*number"),
        ({"residual": [[0.5]]}, "shape"),
        ({"residual": [["a"]]}, "residual.*numbers"),
        ({"mask": "AA=="}, "mask"),
        ({"heads": [1]}, "heads.*count.*weights"),
        ({"heads": {"count": 10**9, "weights": ""}}, "cannot be read"),
        ({"heads": {"count": 1, "bits": 24, "weights": ""}}, "bits.*24"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_with_a_reason(attention, change, message):
    data = trace_of(AttentionGraph(attention)).to_dict() | change
    with pytest.raises(OptionError, match=message):
        Trace.from_dict(data)


def test_weights_that_unfold_without_end_are_not_unfolded(attention):
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(50_000_000))).decode()
    data = trace_of(AttentionGraph(attention)).to_dict() | {"weights": bomb}
    with pytest.raises(OptionError, match="144"):
        Trace.from_dict(data)


def test_a_row_without_any_weight_is_refused(attention):
    trace = trace_of(AttentionGraph(attention))
    weights = trace.weights.copy()
    weights[1, 2] = 0
    with pytest.raises(OptionError, match=r"highest weight.*0"):
        Trace(
            tokens=trace.tokens,
            spans=trace.spans,
            special=trace.special,
            weights=weights,
            bits=trace.bits,
            residual=0.5,
        )


@given(st.sampled_from(["layers", "tokens", "spans", "bits", "weights", "residual", "heads"]))
def test_a_trace_without_one_of_its_parts_is_refused_or_complete(name):
    data = trace_of(AttentionGraph([[[0.5, 0.5], [0.0, 1.0]]])).to_dict()
    del data[name]
    if name == "heads":
        assert Trace.from_dict(data).heads is None
    else:
        with pytest.raises(OptionError, match="dictionary"):
            Trace.from_dict(data)


def test_a_trace_belongs_to_its_explanation(attention):
    trace = trace_of(AttentionGraph(attention))
    with pytest.raises(OptionError, match=r"trace.*4 layers.*layer_scores.*2"):
        explanation_of(trace, layer=1, layer_scores=np.zeros((2, 6)))
    with pytest.raises(OptionError, match=r"position.*6.*6 tokens"):
        explanation_of(trace, position=6)
    with pytest.raises(OptionError, match=r"trace.*Trace"):
        explanation_of(trace, trace="a trace")
    with pytest.raises(OptionError, match=r"spans\[0\]"):
        explanation_of(
            trace_of(AttentionGraph(attention), spans=[(0, 9), *[None] * 5]), spans=[None] * 6
        )


# ---- From a model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader():
    """A small encoder with random weights, 3 layers and 2 heads."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "keys", "open", "doors", "the"]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=1.0,
    )
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(words)})
    return Explainer(BertModel(config), tokenizer)


def test_an_explanation_of_a_text_keeps_the_graph_it_was_read_off(reader):
    explanation = reader.explain("keys open the doors", method="rollout", units="words")
    trace = explanation.trace
    assert trace.tokens == ("[CLS]", "keys", "open", "the", "doors", "[SEP]")
    assert trace.special == (True, False, False, False, False, True)
    assert trace.mask is None
    assert trace.heads is None
    rollout = attention_rollout(trace.graph(), positions=[explanation.position])[:, 0]
    np.testing.assert_allclose(rollout, explanation.layer_scores, atol=1e-6)


def test_heads_are_kept_when_asked_for_and_give_the_same_scores(reader):
    text = "keys open the doors"
    plain = reader.explain(text, heads="max")
    kept = reader.explain(text, heads="max", keep_heads=True)
    np.testing.assert_allclose(kept.layer_scores, plain.layer_scores, atol=1e-6)
    assert kept.trace.heads.shape == (3, 2, 6, 6)
    heads = kept.trace.heads / kept.trace.heads.sum(axis=-1, keepdims=True)
    fused = AttentionGraph(heads, heads="max").attention
    np.testing.assert_allclose(fused, kept.trace.attention(), atol=1e-4)
    with pytest.raises(OptionError, match=r"keep_heads.*True.*edges.*'attention'"):
        reader.explain(text, keep_heads=True, edges="value_norm")
    with pytest.raises(OptionError, match="keep_heads"):
        reader.explain(text, keep_heads="yes")


def test_of_a_long_list_the_traces_take_no_more_memory_than_allowed(reader, monkeypatch):
    one = reader.explain("keys open the doors").trace.nbytes
    monkeypatch.setattr("attnflow.models.explainer.MOST_TRACES", 2 * one)
    found = reader.explain(["keys open the doors"] * 4, method="raw")
    assert sum(explanation.trace is not None for explanation in found) == 2
    # One by one they are the caller's to keep.
    each = [item for _, item in reader.explain_each(["keys open the doors"] * 4)]
    assert all(explanation.trace is not None for explanation in each)


def test_a_causal_model_keeps_all_tokens_and_what_each_position_sees():
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate("?abcd")}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    config = GPT2Config(
        vocab_size=5, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    explainer = Explainer(
        GPT2LMHeadModel(config), PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    )
    explanation = explainer.explain("a b c d", position=1)
    assert explanation.tokens == ("a", "b")
    assert explanation.trace.tokens == ("a", "b", "c", "d")
    assert explanation.trace.mask.tolist() == [[True] * 4 + [False] * 3] * 2


def vision_model():
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
    )
    return ViTModel(config)


def test_an_image_keeps_its_graph_too():
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    image = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    explanation = Explainer(vision_model(), processor).explain(image, method="rollout")
    assert explanation.trace.tokens == ("[CLS]", "0,0", "0,1", "1,0", "1,1")
    rollout = attention_rollout(explanation.trace.graph(), positions=[0])[:, 0]
    np.testing.assert_allclose(rollout, explanation.layer_scores, atol=1e-6)


def image_explanation(**given):
    named = {
        "tokens": ["[CLS]", "0,0"],
        "scores": [0.5, 0.5],
        "layer_scores": [[0.5, 0.5]],
        "method": "raw",
        "layer": 1,
        "position": 0,
        "text": "",
        "spans": [None, None],
        "special": [True, False],
        "model": "tiny",
        "task": "image-encoder",
        "grid": (1, 1),
    }
    return Explanation(**{**named, **given})


@pytest.mark.parametrize(
    ("size", "crop", "covered"),
    [((40, 80), False, (40, 80)), ((400, 800), True, (400, 400)), ((9, 2000), False, (9, 2000))],
)
def test_an_image_keeps_a_small_copy_of_what_its_patches_cover(size, crop, covered, tmp_path):
    import io

    from PIL import Image
    from transformers import CLIPImageProcessor, ViTImageProcessor

    if crop:
        processor = CLIPImageProcessor(
            size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}
        )
    else:
        processor = ViTImageProcessor(size={"height": 8, "width": 8})
    # Red in the first quarter, then green, blue in the last.
    colours = np.zeros((*size, 3), dtype=np.uint8)
    quarter = np.arange(size[1]) * 4 // size[1]
    colours[:, np.arange(size[1]), np.array([0, 1, 1, 2])[quarter]] = 255
    explanation = Explainer(vision_model(), processor).explain(colours, method="raw")
    picture = Image.open(io.BytesIO(explanation.picture))
    assert max(picture.size) == min(384, max(covered))
    assert picture.width / picture.height == pytest.approx(covered[1] / covered[0], rel=0.15)
    left = np.asarray(picture)[picture.height // 2, picture.width // 16]
    assert int(left.argmax()) == (1 if crop else 0)
    explanation.save(tmp_path / "image.json")
    assert Explanation.load(tmp_path / "image.json").picture == explanation.picture
    assert explanation.without_special_tokens().picture == explanation.picture
    assert "picture" not in explanation.to_dict()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"picture": "text"}, "picture.*JPEG.*PNG"),
        ({"picture": b"<svg>"}, "picture.*JPEG.*PNG"),
        ({"picture": b"\xff\xd8\xff" + bytes(1_000_000)}, "1000000"),
        ({"picture": b"\xff\xd8\xff", "grid": None}, "picture.*text"),
    ],
)
def test_what_is_no_picture_of_an_image_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        image_explanation(**given)
    data = image_explanation().to_dict() | {"picture": "?"}
    with pytest.raises(OptionError, match=r"picture.*base64"):
        Explanation.from_dict(data)


def test_explain_saves_the_page_and_the_figure_beside_each_other(reader, tmp_path, capsys):
    reader.model.save_pretrained(tmp_path)
    reader.tokenizer.save_pretrained(tmp_path)
    page, figure = tmp_path / "keys.html", tmp_path / "keys.png"
    arguments = ["explain", "--model", str(tmp_path), "--html", str(page), "keys open"]
    assert main([*arguments, "--png", str(figure), "--keep-heads"]) == 0
    assert "keys" in capsys.readouterr().out
    assert '"heads":{"count":2' in page.read_text(encoding="utf-8")
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--png", str(tmp_path / "keys.svg")]) == 1
    assert re.search(r"--png.*\.png", capsys.readouterr().err)
    assert main([*arguments, "another text"]) == 1
    assert re.search("--html.*2 texts", capsys.readouterr().err)
