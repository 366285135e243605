"""Families beyond those of `test_supported`: each is explained, or refused with the real reason.

Tiny models of random weights. None of them may end in a traceback, nor be changed.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import attnflow
from attnflow.cli import main
from attnflow.errors import AttentionError, AttnflowError, ModelError, OptionError, TextError
from attnflow.models import Explainer
from tests.support.architectures import SMALL, build, state_of
from tests.support.text import VOCABULARY, decoder_tokenizer
from tests.support.tiny import wordpiece_tokenizer

TEXT = "the keys to the cabinet are on a table"
MAMBA = {"mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 4}
GROUPED = {"num_key_value_heads": 2}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 8,
    "patch_size": 4,
}
# The class, what its configuration has besides, and the module that mixes without attention.
HYBRIDS = {
    "Falcon-H1": (
        "FalconH1ForCausalLM",
        {**GROUPED, **MAMBA, "mamba_d_ssm": 16, "mamba_d_head": 4},
        "FalconH1Mixer",
    ),
    "LFM2": (
        "Lfm2ForCausalLM",
        {**GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
        "Lfm2ShortConv",
    ),
    "Jamba": (
        "JambaForCausalLM",
        {
            **GROUPED,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "use_mamba_kernels": False,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
        },
        "JambaMambaMixer",
    ),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        {
            **GROUPED,
            "head_dim": 8,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        "Qwen3NextGatedDeltaNet",
    ),
    "Bamba": (
        "BambaForCausalLM",
        {**GROUPED, **MAMBA, "attn_layer_indices": [1], "mamba_d_head": 8},
        "BambaMixer",
    ),
    "MiniMax": (
        "MiniMaxForCausalLM",
        {
            **GROUPED,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "block_size": 4,
        },
        "MiniMaxLightningAttention",
    ),
    "ConvBERT": ("ConvBertForSequenceClassification", {"embedding_size": 16}, "Conv1d"),
}
FAST = ("Falcon-H1", "LFM2")
# What the reason of a refusal has to name. None: it is explained by attention, too.
OTHERS = {
    "RWKV": ("RwkvForCausalLM", {}, "pair of tokens"),
    "Longformer": ("LongformerForSequenceClassification", {"attention_window": 4}, "window"),
    "DiffLlama": ("DiffLlamaForCausalLM", GROUPED, "difference of two"),
}


def family(class_name, options):
    kind = getattr(transformers, class_name)
    torch.manual_seed(0)
    return kind(kind.config_class(**{**SMALL, **options})).eval()


def explainer_of(class_name, options):
    causal = class_name.endswith("ForCausalLM")
    tokenizer = decoder_tokenizer() if causal else wordpiece_tokenizer(VOCABULARY)
    return Explainer(family(class_name, options), tokenizer)


def slow_but(fast, table):
    exhaustive = pytest.mark.exhaustive
    return [name if name in fast else pytest.param(name, marks=exhaustive) for name in table]


def check_explained_without_attention(explainer, reason):
    with torch.no_grad():
        explainer.model(torch.tensor([[3, 4]]))  # RWKV scales its weights when it first runs
    before = state_of(explainer.model)
    for _ in range(2):
        for method in ("raw", "rollout", "flow"):
            with pytest.raises(AttentionError, match=reason):
                explainer.explain(TEXT, method=method)
    explanation = explainer.explain(TEXT)
    assert explanation.method == "contribution"
    size = np.abs(explanation.scores).sum()
    error = explanation.scores.sum() + explanation.bias - explanation.value
    assert abs(error) < 1e-3 * size
    assert state_of(explainer.model) == before
    return explanation


@pytest.mark.parametrize("name", slow_but(FAST, HYBRIDS))
def test_a_hybrid_is_explained_by_contributions_and_names_what_mixes_without_attention(name):
    class_name, options, module = HYBRIDS[name]
    explanation = check_explained_without_attention(explainer_of(class_name, options), module)
    assert explanation.trace is None
    assert any(module in note for note in explanation.notes)


@pytest.mark.parametrize("name", slow_but(("DiffLlama",), OTHERS))
def test_attention_that_is_no_row_for_each_position_is_refused_for_its_reason(name):
    class_name, options, reason = OTHERS[name]
    check_explained_without_attention(explainer_of(class_name, options), reason)


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_a_bigbird_is_the_same_on_every_call_and_is_not_changed(long):
    options = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
    explainer = explainer_of("BigBirdForSequenceClassification", options)
    before = state_of(explainer.model)
    text = " ".join([TEXT] * 6) if long else TEXT
    found = []
    for _ in range(2):
        if long:
            with pytest.raises(AttentionError, match="set_attention_type"):
                explainer.explain(text, method="rollout")
        else:
            found.append(explainer.explain(text, method="rollout").scores)
        assert explainer.explain(text).method == "contribution"
    assert state_of(explainer.model) == before
    if long:
        # The advice works.
        explainer.model.bert.set_attention_type("original_full")
        assert explainer.explain(text, method="rollout").scores.sum() == pytest.approx(1)
        return
    np.testing.assert_array_equal(*found)
    full = family("BigBirdForSequenceClassification", {"attention_type": "original_full"})
    full.load_state_dict(explainer.model.state_dict())
    full.set_attn_implementation("eager")
    with torch.no_grad():
        ids = explainer.tokenizer(text, return_tensors="pt")["input_ids"]
        attentions = full(ids, output_attentions=True).attentions
    np.testing.assert_allclose(found[0], attnflow.attention_rollout(attentions)[-1, 0], atol=1e-5)


def refused():
    text = {**SMALL, "encoder_hidden_size": 16}
    pair = {"d_model": 16, "vocab_size": 50, "pad_token_id": 0, "eos_token_id": 2}
    yield (
        "CLIP",
        transformers.CLIPModel,
        {"text_config": SMALL, "vision_config": VISION, "projection_dim": 8},
        "image",
    )
    yield "BLIP", transformers.BlipModel, {"text_config": text, "vision_config": VISION}, "image"
    yield (
        "ViLT",
        transformers.ViltForQuestionAnswering,
        {**SMALL, "image_size": 8, "patch_size": 4},
        "image",
    )
    yield "PatchTST", transformers.PatchTSTForClassification, {"d_model": 16}, "past_values"
    yield (
        "Nystromformer",
        transformers.NystromformerForSequenceClassification,
        {**SMALL, "segment_means_seq_len": 16, "num_landmarks": 4},
        "shape",
    )
    yield (
        "BART",
        transformers.BartForSequenceClassification,
        {**pair, "encoder_layers": 1, "decoder_layers": 1},
        "head that writes",
    )
    yield (
        "T5",
        transformers.T5ForSequenceClassification,
        {**pair, "num_layers": 1, "num_heads": 2},
        "head that writes",
    )


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        pytest.param(*case, id=name, marks=() if name == "ViLT" else pytest.mark.exhaustive)
        for name, *case in refused()
    ],
)
def test_a_model_that_does_not_read_texts_alone_is_refused_for_its_reason(kind, options, reason):
    model = kind(kind.config_class(**options)).eval()
    for method in ("auto", "rollout"):
        with pytest.raises(ModelError, match=reason):
            Explainer(model, wordpiece_tokenizer(VOCABULARY)).explain(TEXT, method=method)


def reformer(class_name, **options):
    sizes = {"axial_pos_shape": (4, 4), "axial_pos_embds_dim": (8, 8), "num_buckets": 2}
    chunks = {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_hashes": 1}
    layers = {"attn_layers": ["local", "lsh"], "num_attention_heads": 2, "attention_head_size": 8}
    given = {**sizes, **chunks, **layers, "vocab_size": 50, "hidden_size": 16, **options}
    config = transformers.ReformerConfig(**given, feed_forward_size=16, max_position_embeddings=16)
    return getattr(transformers, class_name)(config).eval()


@pytest.mark.parametrize(
    ("class_name", "decoder"),
    [("ReformerModelWithLMHead", True), ("ReformerForSequenceClassification", False)],
)
def test_a_reformer_is_refused_because_of_its_reversible_layers(class_name, decoder):
    model = reformer(class_name, is_decoder=decoder)
    tokenizer = decoder_tokenizer() if decoder else wordpiece_tokenizer(VOCABULARY)
    explainer = Explainer(model, tokenizer)
    with pytest.raises(AttentionError, match="without gradients"):
        explainer.explain(TEXT)
    # The encoder of some releases of transformers does not run at all without gradients.
    with pytest.raises((AttentionError, ModelError), match=r"pair of tokens|cannot run on"):
        explainer.explain(TEXT, method="rollout")


def test_a_difference_of_attentions_is_not_shown_as_twice_as_many_layers():
    explanation = explainer_of(*OTHERS["DiffLlama"][:2]).explain(TEXT)
    assert explanation.trace is None
    assert any("4 times" in note for note in explanation.notes)


def test_an_image_processor_is_no_tokenizer():
    config = transformers.SiglipConfig(text_config=SMALL, vision_config=VISION)
    processor = transformers.SiglipImageProcessor(size={"height": 8, "width": 8})
    with pytest.raises(ModelError, match=r"SiglipImageProcessor.*does not read text"):
        Explainer(transformers.SiglipTextModel(config.text_config).eval(), processor)
    image = np.zeros((8, 8, 3), np.uint8)
    vision = transformers.SiglipVisionModel(config.vision_config).eval()
    with pytest.raises(OptionError, match="no CLS token; expected an index from 0 to 3"):
        Explainer(vision, processor).explain(image)
    assert Explainer(vision, processor).explain(image, position=1).method == "rollout"
    classifier = transformers.SiglipForImageClassification(config).eval()
    assert Explainer(classifier, processor).explain(image).method == "contribution"


def bos_tokenizer(**options):
    tokenizer = Tokenizer(models.WordLevel({**VOCABULARY, "<s>": 40}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="<s>", **options
    )


@pytest.mark.parametrize("method", ["auto", "rollout"])
def test_a_text_without_the_bos_that_the_tokenizer_was_saved_with_has_a_note(method):
    model = build("Llama")

    def noted(tokenizer):
        notes = Explainer(model, tokenizer).explain("the keys", method=method).notes
        return any("begin with <s>" in note for note in notes)

    tokenizer = bos_tokenizer(add_bos_token=True)
    assert not noted(tokenizer)
    tokenizer.add_bos_token = False
    assert noted(tokenizer)
    # A token that texts need not begin with, as for GPT-2.
    assert not noted(bos_tokenizer())
    assert not noted(bos_tokenizer(add_bos_token=False))


def test_a_task_that_does_not_exist_lists_the_tasks(capsys):
    with pytest.raises(OptionError, match=r"task is 'classificaton'.*'masked-lm'"):
        Explainer.from_pretrained("/nowhere", task="classificaton")
    for flag, value in (("--task", "classificaton"), ("--device", "cuda:77")):
        assert main(["explain", "the keys", flag, value]) != 0
        error = capsys.readouterr().err.strip()
        assert value in error
        assert len(error.splitlines()) == 1
    assert main(["explain", "the keys", " "]) != 0
    assert "text 2" in capsys.readouterr().err


def test_an_error_about_one_of_many_texts_names_it():
    explainer = Explainer(build("BERT"), wordpiece_tokenizer(VOCABULARY))
    with pytest.raises(TextError, match=r"item 1\b.*empty"):
        explainer.explain([TEXT, " ", TEXT])
    with pytest.raises(AttnflowError, match=r"item 2\b.*position is 9"):
        explainer.explain([TEXT, TEXT, "a film"], position=9, method="rollout")
    with pytest.raises(TextError, match=r"^the text is empty"):
        explainer.explain(" ")


def test_words_that_the_tokenizer_does_not_know_are_named():
    explainer = Explainer(build("BERT"), wordpiece_tokenizer(VOCABULARY))
    for method in ("auto", "rollout"):
        notes = explainer.explain("the xqz keys", method=method).notes
        assert any("'xqz'" in note and "[UNK]" in note for note in notes)
        assert not any("[UNK]" in note for note in explainer.explain(TEXT, method=method).notes)


def test_a_device_that_is_not_there_is_an_error_before_anything_is_loaded():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(OptionError, match="device is 'cuda'"):
        Explainer.from_pretrained("/nowhere", device="cuda")


def test_a_task_that_a_model_does_not_have_is_one_line(tmp_path):
    build("GPT-2").save_pretrained(tmp_path)
    decoder_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="task is 'masked-lm'") as caught:
        Explainer.from_pretrained(tmp_path, task="masked-lm")
    assert "Config" not in str(caught.value)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is another error elsewhere")
def test_a_closed_pipe_ends_the_command_quietly():
    process = subprocess.Popen(
        [sys.executable, "-m", "attnflow", "explain", "--json", "the keys", "the dog"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    with process.stderr:
        assert b"Error" not in process.stderr.read()
    assert process.wait() == 141
