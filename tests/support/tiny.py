"""What the tiny models of several test files are made of."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors


def wordpiece_tokenizer(vocabulary):
    """WordPiece with CLS and SEP, as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def sharpen(model, scale=0.4):
    """Random weights attend to everything alike; larger ones make choices."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, scale)
    return model.eval()
