"""Learned sinks: a node of its own that takes part of each row of attention, and is no token."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import attnflow
from attnflow.capture import capture
from attnflow.dataset import load_attentions
from attnflow.errors import AttentionError, OptionError
from attnflow.evaluate import evaluate, evaluate_stored
from attnflow.models import Explainer
from attnflow.trace import Trace
from attnflow.view.attention import attention_report
from attnflow.view.page import data
from tests.support.architectures import SMALL, state_of
from tests.support.text import decoder_tokenizer

TEXT = "the keys to the cabinet are on a table"
TEXTS = [TEXT, "a film that no one will forget", "the key", "keys are on a table"]
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
GROUPED = {"num_key_value_heads": 2, "head_dim": 4}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 8}
FAMILIES = {
    "GptOssForCausalLM": {**GROUPED, **EXPERTS, **LAYERS},
    # Returns weights of rows that sum to 1, and scales the output instead.
    "GraniteSWAForCausalLM": {**GROUPED, **LAYERS},
    # Only layers with a window have a sink.
    "MiMoV2FlashForCausalLM": {
        **GROUPED,
        **ROUTED,
        "n_routed_experts": 4,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 3,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 4,
        "swa_v_head_dim": 4,
        "v_head_dim": 4,
        "swa_num_attention_heads": 4,
        "n_group": 1,
        "topk_group": 1,
    },
    "GraniteMoeSWAForCausalLM": {**GROUPED, **EXPERTS, "sliding_window": 3},
    "FlintForCausalLM": {**GROUPED, **ROUTED, "num_experts": 4},
    # Attends to both sides.
    "OpenAIPrivacyFilterModel": {**GROUPED, **EXPERTS},
    # Positions have several streams in these two.
    "DeepseekV4ForCausalLM": {
        **ROUTED,
        "n_routed_experts": 4,
        "head_dim": 8,
        "q_lora_rank": 8,
        "o_lora_rank": 8,
        "o_groups": 2,
        "qk_rope_head_dim": 4,
    },
    "HYV4ForCausalLM": {
        **ROUTED,
        "num_experts": 4,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "index_topk": 4,
        "index_n_heads": 2,
        "index_head_dim": 8,
    },
}
FAST = ("GptOssForCausalLM", "GraniteSWAForCausalLM", "MiMoV2FlashForCausalLM")
EVERY = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES
]
CAUSAL = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in FAMILIES
    if name.endswith("ForCausalLM")
]


def build(name):
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**{**SMALL, **FAMILIES[name]})).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("sinks"):
                parameter.normal_(0.5, 1.0)
    return Explainer(model, decoder_tokenizer())


@pytest.fixture(scope="module")
def gpt_oss():
    return build("GptOssForCausalLM")


def looped(query, key, mask, scaling, sinks):
    """Attention of one item, with its sink first, by a plain loop: (H, n + 1, n + 1)."""
    heads, count = query.shape[:2]
    found = np.zeros((heads, count + 1, count + 1))
    for head in range(heads):
        found[head, 0, 0] = 1.0
        keys = key[head * len(key) // heads]
        for row in range(count):
            logits = [float(query[head, row] @ keys[column]) * scaling for column in range(count)]
            if mask is not None:
                logits = [a + float(b) for a, b in zip(logits, mask[row], strict=True)]
            logits.insert(0, -math.inf if sinks is None else float(sinks[head]))
            top = max(logits)
            powers = [math.exp(logit - top) for logit in logits]
            found[head, row + 1] = [power / sum(powers) for power in powers]
    return found


@pytest.fixture
def probe():
    """An attention function that notes what each layer is given, and gives what eager gives."""
    seen = []

    def function(module, query, key, value, attention_mask=None, scaling=1.0, **options):
        mask = None if attention_mask is None else attention_mask[0, 0].double()
        sinks = options.get("s_aux")
        weights = looped(query[0].double(), key[0].double(), mask, scaling, sinks)
        seen.append(weights)
        values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        tokens = torch.tensor(weights[:, 1:, 1:], dtype=value.dtype)[None]
        return (tokens @ values).transpose(1, 2).contiguous(), None

    AttentionInterface.register("probe", function)
    AttentionMaskInterface.register("probe", eager_mask)
    return seen


def ids_of(explainer, text=TEXT):
    return torch.tensor([explainer.tokenizer(text)["input_ids"]])


def own_rows(explainer, probe, text=TEXT):
    """The attention of a model's layers by the plain loop, (L, H, n + 1, n + 1)."""
    own = explainer.model.config._attn_implementation
    explainer.model.set_attn_implementation("probe")
    try:
        with torch.no_grad():
            explainer.model(ids_of(explainer, text), use_cache=False)
    finally:
        explainer.model.set_attn_implementation(own)
    found = np.stack(probe)
    probe.clear()
    return found


@pytest.mark.parametrize("name", EVERY)
def test_rows_are_those_of_a_softmax_with_one_more_logit(name, probe):
    explainer = build(name)
    before = state_of(explainer.model)
    found = capture(explainer.model, {"input_ids": ids_of(explainer)}, heads=None)
    expected = own_rows(explainer, probe)
    assert found.sink
    rows = np.stack([layer[0].numpy() for layer in found.layers])
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-6)
    # The sink takes a share worth showing, and nothing where a layer has none.
    shares = expected[:, :, 1:, 0].mean(axis=(1, 2))
    assert shares.max() > 0.01
    np.testing.assert_array_equal(rows[shares == 0][:, :, 1:, 0], 0)
    assert state_of(explainer.model) == before


@pytest.mark.parametrize("name", EVERY)
def test_each_method_scores_the_sink_as_a_node_before_the_tokens(name, probe):
    explainer = build(name)
    rows = own_rows(explainer, probe)
    place = 9 if name.endswith("ForCausalLM") else 1
    for method, expected in (
        ("raw", rows.mean(axis=1)[-1, place]),
        ("rollout", attnflow.attention_rollout(rows)[-1, place]),
        ("flow", attnflow.attention_flow(rows)[-1, place]),
    ):
        found = explainer.explain(TEXT, method=method, receptive_field=False)
        assert found.tokens == ("sink", *TEXT.split())
        assert found.special[0]
        assert found.spans[0] is None
        assert found.position == place
        np.testing.assert_allclose(found.scores, expected, atol=1e-5)
        assert any("'sink' is no token" in note for note in found.notes)
    one = explainer.explain(TEXT, method="rollout", heads=1, receptive_field=False)
    expected = attnflow.attention_rollout(rows[:, 1])[-1, place]
    np.testing.assert_allclose(one.scores, expected, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_contributions_are_complete_and_leave_out_the_sink_which_carries_nothing(name):
    explainer = build(name)
    found = explainer.explain(TEXT)
    assert found.tokens == tuple(TEXT.split())
    assert found.position == 8
    size = np.abs(found.scores).sum()
    assert abs(found.scores.sum() + found.bias - found.value) < 1e-5 * size
    trace = found.trace
    assert trace.sink
    assert trace.tokens == ("sink", *found.tokens)
    assert trace.tokens[found.trace_position] == "table"
    assert not trace.carried[:, 0].any()
    assert not trace.carried[:, :, 0].any()
    np.testing.assert_allclose(trace.carried[0].sum(axis=0)[1:], found.scores, atol=1e-6 * size)
    np.testing.assert_allclose(trace.attention().sum(-1), 1)


def test_a_position_counts_tokens_and_not_the_sink(gpt_oss, probe):
    rows = own_rows(gpt_oss, probe).mean(axis=1)
    for position in (0, 3, -1):
        found = gpt_oss.explain(TEXT, method="raw", position=position)
        node = position % 9 + 1
        assert (found.position, found.tokens[-1]) == (node, TEXT.split()[position])
        np.testing.assert_allclose(found.scores, rows[-1, node, : node + 1], atol=1e-5)
    with pytest.raises(OptionError, match="position is 9"):
        gpt_oss.explain(TEXT, method="raw", position=9)
    assert gpt_oss.explain("keys", method="raw").tokens == ("sink", "keys")


@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_in_uniform_attention_the_sink_is_one_more_position_that_each_token_sees(
    gpt_oss, probe, method
):
    rows = own_rows(gpt_oss, probe).mean(axis=1)
    even = np.zeros_like(rows)
    for layer, window in enumerate((3, 99)):
        even[layer, 0, 0] = 1
        for row in range(1, 10):
            seen = [0, *(column for column in range(1, row + 1) if row - column < window)]
            even[layer, row, seen] = 1 / len(seen)
    function = {"rollout": attnflow.attention_rollout, "flow": attnflow.attention_flow}[method]
    ratio = function(rows)[-1, -1] / function(even)[-1, -1]
    found = gpt_oss.explain(TEXT, method=method)
    assert found.options["receptive_field"]
    np.testing.assert_allclose(found.scores, ratio / ratio.sum(), atol=1e-5)
    np.testing.assert_allclose(found.trace.uniform().attention, even)


def test_the_sink_can_be_left_out(gpt_oss):
    plain = gpt_oss.explain(TEXT, method="rollout", special_tokens=False)
    assert plain.tokens == tuple(TEXT.split())
    with torch.no_grad():
        strong = build("GptOssForCausalLM")
        for layer in strong.model.model.layers:
            layer.self_attn.sinks.fill_(30.0)
    found = strong.explain(TEXT, method="rollout", receptive_field=False, drop_sink=True)
    assert found.tokens == tuple(TEXT.split())
    assert any("'sink'" in note for note in found.notes)
    words = gpt_oss.explain(TEXT, method="rollout", units="words")
    assert words.tokens[0] == "sink"


@pytest.mark.parametrize("edges", ["gradient", "effective", "value_norm", "alti"])
def test_edges_that_weigh_what_is_carried_have_no_sink(gpt_oss, edges):
    found = gpt_oss.explain(TEXT, method="rollout", edges=edges)
    assert found.tokens == tuple(TEXT.split())
    assert found.scores.sum() == pytest.approx(1)


def test_a_check_blanks_out_tokens_and_not_the_sink(gpt_oss):
    found = gpt_oss.explain(TEXT, method="rollout", check=True)
    assert found.check.names == tuple(TEXT.split())
    ids = ids_of(gpt_oss)
    blanked = [ids.clone() for _ in range(9)]
    for place, changed in enumerate(blanked):
        changed[0, place] = gpt_oss.tokenizer.unk_token_id
    with torch.no_grad():
        logits = gpt_oss.model(torch.cat([ids, *blanked])).logits[:, -1].double()
    values = logits[:, int(logits[0].argmax())] - logits.mean(-1)
    expected = (values[0] - values[1:]).abs()
    np.testing.assert_allclose(found.check.effects, expected, atol=1e-4)


def test_a_graph_refuses_a_sink_that_attends_to_a_token():
    with pytest.raises(AttentionError, match="sink is True"):
        attnflow.AttentionGraph([[[0.5, 0.5], [0.5, 0.5]]], sink=True)


def test_views_show_the_sink_beside_contributions_and_other_methods(gpt_oss):
    for method in ("contribution", "rollout"):
        found = gpt_oss.explain(TEXT, method=method, keep_heads=True)
        shown = data(found)
        assert shown["labels"][0] == "sink"
        assert shown["special"][0]
        assert shown["labels"][shown["first"]["position"]] == "table"
        assert shown["trace"]["sink"] is True
        assert found.trace.heads.shape[-1] == 10
        table = attention_report(found).tables[0]
        assert "table" in table.title
        assert [row[0].split()[0] for row in table.rows] == ["sink", *TEXT.split()]
        assert "sink" in found.to_html()
        again = Trace.from_dict(json.loads(json.dumps(found.trace.to_dict())))
        assert again.sink
        np.testing.assert_array_equal(again.weights, found.trace.weights)


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
def test_a_run_stores_what_an_explanation_says(gpt_oss, tmp_path, method):
    folder = tmp_path / "out"
    attnflow.run(TEXTS, gpt_oss, output=folder, method=method, workers=1, keep=["attentions"])
    stored = load_attentions(folder)
    for text, kept in zip(TEXTS, stored, strict=True):
        expected = gpt_oss.explain(text, method=method)
        assert kept.sink
        assert kept.tokens == expected.tokens
        for position in ("auto", len(text.split()) - 1):
            found = kept.explain(method=method, position=position)
            assert (found.tokens, found.position) == (expected.tokens, expected.position)
            np.testing.assert_allclose(found.scores, expected.scores, atol=5e-3)
    [part] = (folder / "data").glob("*.parquet")
    for row in pq.read_table(part).to_pylist():
        expected = gpt_oss.explain(TEXTS[row["row"]], method=method)
        assert tuple(row["tokens"]) == expected.tokens
        assert row["position"] == expected.position
        np.testing.assert_allclose(row["scores"], expected.scores, atol=1e-5)


def test_an_evaluation_compares_tokens_and_not_the_sink(gpt_oss, tmp_path):
    few = {"samples": 20, "permutations": 19}
    [scored] = gpt_oss.layer_scores(TEXT, methods=("rollout", "contribution"))
    assert scored.tokens.names == tuple(TEXT.split())
    assert {values.shape for values in scored.scores.values()} == {(2, 9)}
    whole = gpt_oss.explain(TEXT, method="rollout", receptive_field=True)
    np.testing.assert_allclose(scored.scores["rollout", True][-1], whole.scores[1:])
    found = evaluate(
        gpt_oss, TEXTS, methods=("rollout", "contribution"), drop_sink=(False, True), **few
    )
    assert len(found.texts) == len(TEXTS)
    folder = tmp_path / "out"
    attnflow.run(TEXTS, gpt_oss, output=folder, method="rollout", workers=1)
    stored = evaluate_stored(folder, gpt_oss, references=["blank_out"], **few)
    assert not stored.skipped
