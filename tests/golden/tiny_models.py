"""Tiny models of every supported kind, with the same weights on every machine.

The weights are drawn by NumPy from the name of each parameter, and most models compute in float64:
their results agree to many digits whatever the machine, the number of threads or the order of the
calls.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnflow import Explainer

SEED = 20200505
RATE = 16_000

# ---- Tokenizers ----------------------------------------------------------------------------------

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the key to cabinet are is on table a film that no one will forget don t , . ' ##s ##ly"
VOCABULARY = {word: index for index, word in enumerate([*SPECIAL, *WORDS.split()])}

# Texts for the tokenizers below: pieces of words, punctuation, an apostrophe, an unknown word.
TEXTS = [
    "the keys to the cabinets are on a table.",
    "a film",
    "no one will forget that film, don't forget zebras",
]
# With letters of several bytes, of which a byte-level token may have a part.
BYTES_TEXT = "the keys to the na\u00efve \U0001f600 film"

PAIR_WORDS = "the house is old das haus ist alt a cat eine katze"
PAIR_VOCABULARY = {
    word: index for index, word in enumerate(["<pad>", "</s>", "<unk>", *PAIR_WORDS.split()])
}
PAIRS: list[Any] = [("the house is old", "das haus"), "a cat", ("the cat is a zebra", "die")]

SOUND_MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("c", "a"), ("ca", "t")]
SOUND_SPECIAL = ["startoftranscript", "en", "de", "translate", "transcribe", "notimestamps"]
SOUND_TEXT = " the cat"


def encoder_tokenizer() -> Any:
    """Return WordPiece between [CLS] and [SEP], as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, VOCABULARY[name]) for name in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def decoder_tokenizer() -> Any:
    """Return WordPiece without special tokens around the text."""
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    )


def bytes_tokenizer() -> Any:
    """Return byte-level BPE, as GPT-2 has it: a word's token begins with its space."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for word in ("the", "\u0120the", "\u0120key", "\u0120to", "\u0120film", "\u0120na"):
        for length in range(1, len(word)):
            if word[: length + 1] not in vocabulary:
                merges.append((word[:length], word[length]))
                vocabulary[word[: length + 1]] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def pair_tokenizer() -> Any:
    """Return whole words with an end, as T5 and Marian have it."""
    tokenizer = Tokenizer(models.WordLevel(PAIR_VOCABULARY, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$0 </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="</s>",
        model_max_length=16,
    )


def sound_processor() -> Any:
    """Return the processor of a Whisper model that hears one second."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    for first, second in SOUND_MERGES:
        vocabulary[first + second] = len(vocabulary)
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = transformers.WhisperTokenizer(
        vocab=vocabulary,
        merges=SOUND_MERGES,
        pad_token="<|endoftext|>",
        extra_special_tokens=[f"<|{name}|>" for name in SOUND_SPECIAL],
    )
    tokenizer.set_prefix_tokens()
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    return transformers.WhisperProcessor(extractor, tokenizer)


# ---- Inputs that are not texts -------------------------------------------------------------------


def noise(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Return a sound at 16,000 samples a second."""
    samples = np.random.default_rng(seed).normal(size=round(seconds * RATE)) * 0.1
    return np.clip(samples, -1, 1).astype(np.float32)


def photo(height: int = 40, width: int = 60, seed: int = 0) -> NDArray[np.uint8]:
    """Return an image."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# ---- Models --------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of model, and what it is given.

    Attributes:
        make: Makes the explainer.
        inputs: Some inputs, the first of which is explained with every option.
        sparse: Whether some positions do not attend to others at all, as in a causal model.
        other_position: A position other than the default one.
        target: A class or token that is not predicted, or None if the model predicts nothing.
        exhaustive: Whether it is left out where few models are enough.
    """

    make: Callable[[], Any]
    inputs: list[Any]
    sparse: bool
    other_position: int | str
    target: int | str | None
    exhaustive: bool


def filled(make: Callable[[], Any], scale: float, dtype: torch.dtype = torch.float64) -> Any:
    """Return a model with weights that depend on the names of its parameters alone."""
    torch.manual_seed(SEED)
    model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])
            values = generator.standard_normal(tuple(parameter.shape))
            if parameter.ndim >= 2:
                values *= scale
            elif name.endswith("bias"):
                values *= 0.1
            else:
                values = 1.0 + 0.1 * values
            parameter.copy_(torch.from_numpy(values))
    return model.to(dtype).eval()


SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
LABELS = {0: "bad", 1: "good", 2: "neither"}


def text_model(
    class_name: str, *, dtype: torch.dtype = torch.float64, reads: str = "", **changes: Any
) -> Any:
    """Return the explainer of a model that reads one text."""
    kind = getattr(transformers, class_name)
    tokenizer = {"": encoder_tokenizer, "decoder": decoder_tokenizer, "bytes": bytes_tokenizer}
    sizes = {**SIZES, **changes}
    if reads == "bytes":
        sizes |= {"vocab_size": len(bytes_tokenizer()), "eos_token_id": None, "bos_token_id": None}
    if class_name.endswith("ForSequenceClassification"):
        sizes["id2label"] = LABELS
    model = filled(lambda: kind(kind.config_class(**sizes)), 0.4, dtype)
    return Explainer(model, tokenizer[reads]())


def pair_model(class_name: str, **changes: Any) -> Any:
    """Return the explainer of an encoder-decoder that reads text."""
    kind = getattr(transformers, class_name)
    ends = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    sizes = {"vocab_size": len(PAIR_VOCABULARY), "d_model": 16, **ends, **changes}
    return Explainer(filled(lambda: kind(kind.config_class(**sizes)), 0.3), pair_tokenizer())


T5: dict[str, Any] = {
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "d_kv": 8,
    "d_ff": 16,
}
BART: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "forced_eos_token_id": None,
}


def sound_model() -> Any:
    """Return the explainer of a Whisper model."""
    processor = sound_processor()
    end = processor.tokenizer.eos_token_id
    sizes = {name: size for name, size in BART.items() if not name.startswith(("max", "forced"))}
    config = transformers.WhisperConfig(
        **{**sizes, "bos_token_id": end},
        vocab_size=len(processor.tokenizer),
        d_model=16,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=24,
        pad_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=end + 1,
    )
    make = transformers.WhisperForConditionalGeneration
    return Explainer(filled(lambda: make(config), 0.3), processor)


def image_model(class_name: str, *, crops: bool = False, **changes: Any) -> Any:
    """Return the explainer of a vision model, whose processor may crop an image."""
    kind = getattr(transformers, class_name)
    sizes = {
        **{name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size")},
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        **changes,
    }
    if "Classification" in class_name:
        sizes["id2label"] = LABELS
    side = {"height": 32, "width": 32}
    processor: Any = transformers.ViTImageProcessorPil(size=side)
    if crops:
        processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size=side)
    return Explainer(filled(lambda: kind(kind.config_class(**sizes)), 0.4), processor)


def masked(texts: list[str]) -> list[str]:
    """Return texts with one word replaced by a mask."""
    return [text.replace("table", "[MASK]").replace("film", "[MASK]") for text in texts]


def _texts(
    class_name: str,
    *,
    sparse: bool = False,
    target: int | str | None = "on",
    exhaustive: bool = True,
    **changes: Any,
) -> Kind:
    inputs: list[Any] = [BYTES_TEXT, *TEXTS[1:]] if changes.get("reads") == "bytes" else TEXTS
    if class_name.endswith("ForMaskedLM"):
        inputs = masked(inputs)
    if class_name.endswith("ForSequenceClassification"):
        target = "neither"
    return Kind(lambda: text_model(class_name, **changes), inputs, sparse, 2, target, exhaustive)


def _pairs(class_name: str, *, exhaustive: bool = False, **changes: Any) -> Kind:
    return Kind(lambda: pair_model(class_name, **changes), PAIRS, True, 1, "ist", exhaustive)


def _images(class_name: str, target: int | str | None = None, **changes: Any) -> Kind:
    images: list[Any] = [photo(), photo(50, 32, seed=1)]
    return Kind(lambda: image_model(class_name, **changes), images, False, "1,2", target, False)


# In float64, eager attention within a window is NaN in transformers where all of it is padding.
_WINDOW: dict[str, Any] = {"dtype": torch.float32, "sparse": True}
_GROUPED: dict[str, Any] = {"num_key_value_heads": 1, "reads": "decoder", "sparse": True}

KINDS: dict[str, Kind] = {
    "bert-encoder": _texts("BertModel", target=None, exhaustive=False),
    "bert-classifier": _texts("BertForSequenceClassification", exhaustive=False),
    "bert-masked-lm": _texts("BertForMaskedLM", exhaustive=False),
    "albert-masked-lm": _texts("AlbertForMaskedLM", embedding_size=8, exhaustive=False),
    "gpt2-causal-lm": _texts(
        "GPT2LMHeadModel", reads="bytes", n_inner=16, sparse=True, target=5, exhaustive=False
    ),
    "llama-causal-lm": _texts("LlamaForCausalLM", **_GROUPED, exhaustive=False),
    "t5-pair": _pairs("T5ForConditionalGeneration", **T5),
    "bart-pair": _pairs("BartForConditionalGeneration", **BART),
    "marian-pair": _pairs("MarianMTModel", **BART),
    "whisper": Kind(
        sound_model,
        [(noise(0.57), SOUND_TEXT), noise(0.3, seed=1)],
        sparse=True,
        other_position=2,
        target=5,
        exhaustive=False,
    ),
    "vit-classifier": _images("ViTForImageClassification", "neither"),
    "deit-classifier": _images("DeiTForImageClassificationWithTeacher", "neither", crops=True),
    "dinov2-registers": _images("Dinov2WithRegistersModel", num_register_tokens=3),
    "clip-vision": _images("CLIPVisionModel", crops=True),
    "bert-classifier-float32": _texts("BertForSequenceClassification", dtype=torch.float32),
    "distilbert-classifier": _texts(
        "DistilBertForSequenceClassification", dim=16, n_layers=3, n_heads=2, hidden_dim=16
    ),
    "roberta-masked-lm": _texts("RobertaForMaskedLM"),
    "electra-classifier": _texts("ElectraForSequenceClassification", embedding_size=8),
    "deberta-classifier": _texts(
        "DebertaV2ForSequenceClassification",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=4,
    ),
    "mpnet-masked-lm": _texts("MPNetForMaskedLM"),
    "modernbert-masked-lm": _texts(
        "ModernBertForMaskedLM",
        **_WINDOW,
        local_attention=4,
        global_attn_every_n_layers=2,
        cls_token_id=2,
        sep_token_id=3,
    ),
    "gpt2-classifier": _texts(
        "GPT2ForSequenceClassification", reads="decoder", n_inner=16, sparse=True
    ),
    "mistral-causal-lm": _texts("MistralForCausalLM", **(_GROUPED | _WINDOW), sliding_window=3),
    "qwen2-causal-lm": _texts("Qwen2ForCausalLM", **_GROUPED),
    "gemma2-causal-lm": _texts(
        "Gemma2ForCausalLM", **_GROUPED, head_dim=8, attn_logit_softcapping=2.0
    ),
    "gpt-neox-causal-lm": _texts("GPTNeoXForCausalLM", reads="decoder", sparse=True),
}


@cache
def explainer(name: str) -> Any:
    """Return the explainer of one of `KINDS`, made once."""
    return KINDS[name].make()
