"""The tokenizer of the verb-number model: whole words; rare words are a tag or UNK."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[MASK]")
"""The special tokens, in the order of their ids."""

_TAGS = """
ADD AFX CC CD DT EX FW GW HYPH IN JJ JJR JJS LS MD NFP NN NNP NNPS NNS PDT POS PRP PRP$ RB RBR RBS
RP SYM TO UH VB VBD VBG VBN VBP VBZ WDT WP WP$ WRB XX
"""
TAGS = frozenset(_TAGS.split())
"""The Penn Treebank's part-of-speech tags, which stand for rare words in the data."""

# Splits the text between two spaces. Text from a treebank is unchanged. In other text,
# contractions and punctuation are split from their words, as in treebanks.
_WORD = "|".join(
    [
        r"-lrb-|-rrb-|-lsb-|-rsb-|``|''|--+|\.\.+|(?:\w\.){2,}",
        r"\w+?(?=n't$)|^n't$|(?<=\w)n't$",
        r"'(?:s|re|ve|ll|d|m|em)$",
        r"[\w$]+(?:[-./&,:*+@_]+[\w$]+)*",
        r"[^\w\s]",
    ]
)

# Treebanks write opening and closing quotation marks differently.
_QUOTES = (
    Replace(Regex(r'(?<![^\s(\[])["\u201c]'), "``"),
    Replace(Regex(r'["\u201c\u201d]'), "''"),
    Replace("\u2019", "'"),
)


def build_tokenizer(sentences: Iterable[str], size: int = 10_000) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the most common words of sentences.

    Words are lower-cased. A part-of-speech tag in capitals, which stands for a rare word in the
    data of Linzen et al., is a token of its own.

    Args:
        sentences: The texts whose words are counted.
        size: The largest number of tokens, special tokens included.

    Returns:
        The tokenizer. A text becomes CLS and its words. An unknown word becomes UNK.

    Example:
        >>> tokenizer = build_tokenizer(["the keys to the cabinet", "the NNS to the cabinet"])
        >>> tokenizer.tokenize("The keys of the NNS")
        ['the', 'keys', '[UNK]', 'the', 'NNS']
    """
    splitting = Sequence([WhitespaceSplit(), Split(Regex(_WORD), "isolated")])
    counts: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    for sentence in sentences:
        words = sentence.split()
        tags.update(word for word in words if word in TAGS)
        plain = " ".join(word for word in words if word not in TAGS)
        counts.update(word for word, _ in splitting.pre_tokenize_str(plain.lower()))
    kept = sorted(tags)[: max(0, size - len(SPECIAL))]
    # Equally common words are sorted by name, so the order of the data makes no difference.
    common = sorted(counts, key=lambda word: (-counts[word], word))
    words = [*SPECIAL, *kept, *common][:size]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.normalizer = Normalizers([Lowercase(), *_QUOTES])
    tokenizer.pre_tokenizer = splitting
    tokenizer.add_tokens([AddedToken(tag, single_word=True, normalized=False) for tag in kept])
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", SPECIAL.index("[CLS]"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        mask_token="[MASK]",
        model_max_length=128,
    )
