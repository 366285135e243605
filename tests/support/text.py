"""Tiny text models of random weights: an encoder, a classifier and a decoder."""

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from attnflow.models import Explainer
from tests.support.tiny import sharpen, wordpiece_tokenizer

SENTENCE = "the keys key to cabinet s are is on table a film that no one will forget"
VOCABULARY = {
    word: i
    for i, word in enumerate(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SENTENCE.split(), "##s"]
    )
}
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}


def decoder_tokenizer():
    """Whole words, no special tokens around the text."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def encoder():
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    return Explainer(sharpen(model), wordpiece_tokenizer(VOCABULARY))


def classifier():
    config = transformers.BertConfig(**SIZES, id2label={0: "bad", 1: "good"})
    return Explainer(
        sharpen(transformers.BertForSequenceClassification(config)), wordpiece_tokenizer(VOCABULARY)
    )


def decoder():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, eos_token_id=None)
    return Explainer(sharpen(transformers.LlamaForCausalLM(config)), decoder_tokenizer())
