"""Tiny models and texts that evaluations run on."""

import numpy as np
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnflow.models import Explainer
from tests.support.tiny import sharpen

SENTENCE = "the keys key to cabinet are is on table a film that no one will forget"
WORDS = SENTENCE.split()
VOCABULARY = {
    word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
}
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}


def tokenizer_of(*, special):
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    if special:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def classifier():
    config = transformers.BertConfig(**SIZES, id2label={0: "bad", 1: "good"})
    model = sharpen(transformers.BertForSequenceClassification(config))
    return Explainer(model, tokenizer_of(special=True))


def decoder():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, eos_token_id=None)
    return Explainer(sharpen(transformers.LlamaForCausalLM(config)), tokenizer_of(special=False))


def some_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(count)]


TEXTS = some_texts(8)
FEW = {"samples": 200, "permutations": 199}
