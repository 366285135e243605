"""A tiny chat model of random weights, with a chat template."""

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from attnflow.models import Explainer
from tests.support.text import SIZES
from tests.support.tiny import sharpen

TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} : {{ m['content'] | trim }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant :{% endif %}"
)
SENTENCE = "user system assistant : the keys key to cabinet are is on table a film no one will"
MESSAGES = [
    {"role": "system", "content": "  a film "},
    {"role": "user", "content": "the keys to the user"},
]


def chat_tokenizer(template=TEMPLATE):
    """Whole words, and a template that marks messages by <s> and </s>."""
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "<s>", "</s>", *SENTENCE.split()])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", bos_token="<s>", eos_token="</s>"
    )
    found.chat_template = template
    return found


def chatter(template=TEMPLATE):
    """A Llama that never ends its answer by itself."""
    tokenizer = chat_tokenizer(template)
    sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 48}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, eos_token_id=None)
    return Explainer(sharpen(transformers.LlamaForCausalLM(config)), tokenizer)
