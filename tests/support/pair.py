"""Tiny encoder-decoders of random weights, and an image."""

import numpy as np
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnflow.models import Explainer
from tests.support.tiny import sharpen

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCE = "the keys key to cabinet are is on table a film that no one will mask"
WORDS = [*SPECIAL, *SENTENCE.split()]
IDS = {word: index for index, word in enumerate(WORDS)}


def pair_tokenizer():
    """Whole words and an end, as T5 and Marian have it."""
    inner = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="$0 [SEP]", special_tokens=[("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", eos_token="[SEP]"
    )


def build_pair(name):
    sizes = {
        "vocab_size": len(WORDS),
        "d_model": 16,
        "decoder_start_token_id": 0,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    if name == "T5":
        config = transformers.T5Config(**sizes, num_layers=2, num_heads=2, d_kv=8, d_ff=16)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        kinds = {"BART": "BartForConditionalGeneration", "Marian": "MarianMTModel"}
        kind = getattr(transformers, kinds[name])
        config = kind.config_class(
            **sizes,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=32,
            bos_token_id=2,
            forced_eos_token_id=None,
            scale_embedding=True,
        )
        model = kind(config)
    return Explainer(sharpen(model, 0.3), pair_tokenizer())


def photo(seed=0, shape=(30, 40)):
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
