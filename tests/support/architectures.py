"""Tiny text models of every architecture, and what must be the same after one was used."""

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnflow.capture.interface import NAME

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    # Large weights, so that attention is far from uniform.
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROPE = {key: value for key, value in SMALL.items() if key != "max_position_embeddings"}
# The class of each model, and what its configuration has besides.
MODELS = {
    "BERT": ("BertForSequenceClassification", {}),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32, "attention_dropout": 0.1},
    ),
    "RoBERTa": ("RobertaForMaskedLM", {}),
    "ALBERT": (
        "AlbertForMaskedLM",
        {"embedding_size": 8, "num_hidden_layers": 3, "attention_probs_dropout_prob": 0.1},
    ),
    "ELECTRA": ("ElectraForSequenceClassification", {"embedding_size": 8}),
    "DeBERTa-v2": (
        "DebertaV2ForSequenceClassification",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
    ),
    "MPNet": ("MPNetForMaskedLM", {}),
    "ModernBERT": (
        "ModernBertForMaskedLM",
        {
            "local_attention": 4,
            "global_attn_every_n_layers": 2,
            "num_hidden_layers": 3,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "attention_dropout": 0.1,
        },
    ),
    "GPT-2": ("GPT2LMHeadModel", {"n_inner": 32}),
    "Llama": ("LlamaForCausalLM", {"num_key_value_heads": 2, "attention_dropout": 0.1}),
    "Mistral": (
        "MistralForCausalLM",
        {"num_key_value_heads": 2, "sliding_window": 3, "attention_dropout": 0.1},
    ),
    "Qwen2": ("Qwen2ForCausalLM", {"num_key_value_heads": 2, "attention_dropout": 0.1}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", {"attention_dropout": 0.1}),
}
CAUSAL = ("GPT-2", "Llama", "Mistral", "Qwen2", "GPT-NeoX")


def build(name, implementation=None, seed=0, **changes):
    """A small model with random weights, in eval mode; the same for the same seed."""
    class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    config = kind.config_class(**{**SMALL, **options, **changes})
    if implementation is not None:
        config._attn_implementation = implementation
    torch.manual_seed(seed)
    return kind(config).eval()


def texts(*lengths, seed=0):
    """Random token ids, padded to the longest on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(3, 50, (length,), generator=generator)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask}


def score_of(outputs):
    """A number for each item: a logit, of the first position if there are several."""
    logits = outputs.logits
    return logits[:, 1] if logits.ndim == 2 else logits[:, 2, 7]


def state_of(model):
    """All that must be as before: implementations, modes, hooks, flags, gradients and values."""
    state = {"registered": sorted(set(ALL_ATTENTION_FUNCTIONS.keys()) - {NAME})}
    for path, module in model.named_modules():
        state[path, "mode"] = module.training
        state[path, "attributes"] = sorted(vars(module))
        for kind in sorted(vars(module)):
            if "hooks" in kind and isinstance(vars(module)[kind], dict):
                state[path, kind] = list(vars(module)[kind].items())
        config = getattr(module, "config", None)
        if config is not None:
            state[path, "implementation"] = config._attn_implementation
            state[path, "config"] = config.to_dict()
            for part in config.sub_configs:
                state[path, part] = getattr(config, part)._attn_implementation
    for path, parameter in model.named_parameters():
        gradient = parameter.grad
        state[path, "gradient"] = None if gradient is None else gradient.clone().tolist()
        state[path, "parameter"] = (
            parameter.requires_grad,
            parameter.device,
            parameter.data_ptr(),
            parameter._version,
        )
    for path, buffer in model.named_buffers():
        state[path, "buffer"] = (buffer.device, buffer.tolist())
    return state


def unusual(model):
    """Give a model a state of its own: modes, flags, gradients and a hook that differ by module."""
    model.train()
    modules = list(model.modules())
    modules[len(modules) // 2].eval()
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 2 == 0)
        if i % 4 == 0:
            parameter.grad = torch.full_like(parameter, 0.25)
    modules[-1].register_forward_hook(lambda *_: None)
    return model


def randomised(model, seed=0):
    """Biases and norms that are not 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn(parameter.shape, generator=generator) * 0.3
    return model


def eager_run(model, **inputs):
    """The outputs of a model, with its attention and hidden states."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True, output_hidden_states=True)


def tiny_t5(ids):
    """A T5 with inputs: a source, and three positions of a target."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        initializer_factor=2.0,
    )
    model = randomised(transformers.T5ForConditionalGeneration(config).eval()).double()
    return model, {"input_ids": ids, "decoder_input_ids": torch.tensor([[0, 4, 11]])}
