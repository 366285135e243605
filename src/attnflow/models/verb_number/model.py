"""The paper's verb-number model: GPT-2 Transformer blocks that see the whole sentence.

Importing this module registers the model with transformers. `AutoModelForSequenceClassification`
and `attnflow.Explainer.from_pretrained` then load it from its folder.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, GPT2Config
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2PreTrainedModel
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

LABELS = ("VBZ", "VBP")
"""The classes: the verb is singular, the verb is plural."""


class VerbNumberConfig(GPT2Config):  # type: ignore[misc]
    """The configuration of a `VerbNumberForSequenceClassification`.

    The defaults are the paper's: six layers, eight heads, 128 dimensions. The names are those of
    GPT-2's configuration.
    """

    model_type = "attnflow-verb-number"

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "vocab_size": 10_000,
                "n_positions": 128,
                "n_embd": 128,
                "n_layer": 6,
                "n_head": 8,
                "activation_function": "gelu_pytorch_tanh",  # GPT-2's own, as one operation
                "bos_token_id": None,
                "eos_token_id": None,
                "pad_token_id": 0,
                "use_cache": False,
                "id2label": dict(enumerate(LABELS)),
                "label2id": {label: index for index, label in enumerate(LABELS)},
                **options,
            }
        )


class VerbNumberForSequenceClassification(GPT2PreTrainedModel):  # type: ignore[misc]
    """GPT-2 blocks without the causal mask, and a classifier on the first token, CLS.

    Example:
        >>> model = VerbNumberForSequenceClassification(VerbNumberConfig(n_layer=2))
        >>> model(input_ids=torch.tensor([[2, 5, 6]])).logits.shape
        torch.Size([1, 2])
    """

    config_class = VerbNumberConfig
    base_model_prefix = ""

    def __init__(self, config: VerbNumberConfig) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(GPT2Block(config, layer_idx=i) for i in range(config.n_layer))
        for block in self.h:
            block.attn.is_causal = False  # sdpa uses it when there is no mask
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.score = nn.Linear(config.n_embd, config.num_labels)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of the words."""
        return self.wte

    def set_input_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the embedding of the words."""
        self.wte = new_embeddings

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Return the last layer's embeddings of all tokens, of shape (batch, n, dimensions)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        words = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        places = torch.arange(words.shape[1], device=words.device)
        hidden = self.drop(words + self.wpe(places))
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden, attention_mask=attention_mask
        )
        for block in self.h:
            hidden = block(hidden, attention_mask=mask, **options)
        return self.ln_f(hidden)

    @can_return_tuple  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput:
        """Classify sentences whose first token is CLS.

        Args:
            input_ids: Words, of shape (batch, n).
            attention_mask: 0 for padding and 1 for words, of shape (batch, n).
            inputs_embeds: Embeddings instead of `input_ids`, of shape (batch, n, dimensions).
            labels: Classes, of shape (batch,). With them, the output has the cross-entropy loss.
            **options: Options that transformers passes to the attention function.

        Returns:
            The logits, of shape (batch, 2), and the loss if labels are given.
        """
        options = {name: value for name, value in options.items() if "output_" not in name}
        hidden = self.encode(input_ids, attention_mask, inputs_embeds, **options)
        logits = self.score(hidden[:, 0])
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


AutoConfig.register(VerbNumberConfig.model_type, VerbNumberConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    VerbNumberConfig, VerbNumberForSequenceClassification, exist_ok=True
)
