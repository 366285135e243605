"""The attention function that `transformers` calls for every layer during a capture.

It computes what the model's own eager attention computes, with the model's own code, and hands the
weights to the recording of the capture under way.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attnflow.capture.recording import Recording
from attnflow.errors import AttentionError

# The name of the attention implementation. It says nothing of "sdpa", "flash" or "flex", parts of a
# name that transformers gives a meaning to.
NAME: Final = "attnflow_capture"


class Recorder(Protocol):
    """What a capture records into."""

    @property
    def gradients(self) -> bool:
        """Whether gradients of the weights will be wanted."""

    def sink(self) -> None:
        """Note that what is taken next gives part of its attention to a learned sink."""

    def take(
        self, module: Any, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor
    ) -> None:
        """Take what an attention layer has computed.

        Args:
            module: The attention layer.
            weights: The weights, of shape (B, H, n, m).
            values: The values, of shape (B, K, m, d), where K divides H.
            output: The output, of shape (B, n, H, d).
        """


# What the capture under way records into. Each thread has its own, and has none outside a capture:
# a model that another thread runs at that moment gives its usual output and is not recorded.
RECORDING: Final[ContextVar[Recorder | None]] = ContextVar("attnflow_recording", default=None)


@contextmanager
def recording_into(recording: Recorder | None) -> Iterator[None]:
    """Record the attention of this thread, in a block, into something; None records nothing."""
    token = RECORDING.set(recording)
    try:
        yield
    finally:
        RECORDING.reset(token)


# Attention of more bytes than this is computed some items at a time. Each step of it goes through
# all weights, which is a third faster if they stay in the cache of a CPU.
PART_BYTES: Final = 2**22

# Arguments that change the weights, which only a model's own attention function knows how to apply.
_OWN_ARGUMENTS: Final = ("softcap", "s_aux", "position_bias", "head_mask")


def recorded_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *arguments: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute one layer's attention and record its weights.

    Args:
        module: The attention layer.
        query: Of shape (B, H, n, d).
        key: Of shape (B, K, m, d), where K divides H.
        value: Of shape (B, K, m, d).
        attention_mask: What to add to the scores, broadcast to (B, H, n, m), or None.
        arguments: Passed on to the model's own attention function.
        options: Passed on to the model's own attention function.

    Returns:
        The output of shape (B, n, H, d), and None: the weights are freed before the next
        layer is computed.

    Raises:
        AttentionError: If a capture is under way, part of the attention goes to a learned sink, and
            how much cannot be told.
    """
    recording = RECORDING.get()
    sinks = recording is not None and options.get("s_aux") is not None
    if recording is not None and recording.gradients:
        query = with_gradient(query)
    elif recording is not None:
        # Nobody asks for gradients of the weights. Contributions hold them at their values.
        query, key = query.detach(), key.detach()
    attend = own_attention(module)
    size = _part_size(query, key)
    if (
        isinstance(recording, Recording)
        and size < len(query)
        and not sinks
        and recording.takes_parts(len(query))
        and _can_be_split(len(query), key, value, attention_mask, (*arguments, *options.values()))
    ):
        outputs: list[torch.Tensor] = []

        def parts() -> Iterator[torch.Tensor]:
            for start in range(0, len(query), size):
                part = slice(start, start + size)
                mask = attention_mask
                if mask is not None and len(mask) > 1:
                    mask = mask[part]
                output, weights = attend(
                    module, query[part], key[part], value[part], mask, *arguments, **options
                )
                outputs.append(output)
                yield weights

        recording.add_parts(parts())
        return torch.cat(outputs), None
    output, weights = attend(module, query, key, value, attention_mask, *arguments, **options)
    if recording is not None:
        if sinks:
            weights = acting(module, weights, value, output)
            recording.sink()
        recording.take(module, weights, value, output)
    return output, None


def acting(
    module: Any, weights: torch.Tensor, value: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    """Return the weights that give the output: some layers scale it by what the sink leaves.

    Args:
        module: The attention layer.
        weights: Of shape (B, H, n, m).
        value: Of shape (B, K, m, d).
        output: Of shape (B, n, H, d).

    Raises:
        AttentionError: If the output is not that of the weights, each row scaled.
    """
    exact = torch.promote_types(weights.dtype, torch.float32)
    values = value.detach().repeat_interleave(weights.shape[1] // value.shape[1], dim=1).to(exact)
    expected, found = weights.to(exact) @ values, output.detach().transpose(1, 2).to(exact)
    limit = 64 * torch.finfo(output.dtype).eps * values.abs().amax()

    def close(product: torch.Tensor) -> bool:
        return bool(((product - found).abs() <= limit).all())

    if close(expected):
        return weights
    size = (expected * expected).sum(dim=-1, keepdim=True)
    scale = (expected * found).sum(dim=-1, keepdim=True) / torch.where(size > 0, size, 1.0)
    if not close(expected * scale) or bool((scale > 1 + 1e-3).any()):
        raise AttentionError(
            f"{type(module).__name__} gives part of each row of attention to a learned sink, and "
            "its weights do not show how much; use method='contribution'"
        )
    return weights.to(exact) * scale.clamp(0.0, 1.0)


def _part_size(query: torch.Tensor, key: torch.Tensor) -> int:
    """Return how many items' attention stays in the cache of a CPU; elsewhere all may."""
    if query.device.type != "cpu":
        return len(query)
    item: int = query.shape[1] * query.shape[2] * key.shape[2] * query.element_size()
    return max(1, PART_BYTES // max(1, item))


def _can_be_split(
    items: int,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    others: tuple[Any, ...],
) -> bool:
    """Whether it is known of all that an attention function is given which part is of which item.

    Of other tensors that is not known, unless they have one part for all items.
    """
    masked = attention_mask is None or (
        attention_mask.ndim == 4 and attention_mask.shape[0] in (1, items)
    )
    shared = all(other.shape[:1] == (1,) for other in others if torch.is_tensor(other))
    return masked and shared and len(key) == len(value) == items


def with_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that gradients are kept for, whether or not any parameter needs them.

    Adding a zero that requires a gradient changes no number and no flag of the model.
    """
    if tensor.requires_grad:
        return tensor
    zero = torch.zeros((), dtype=tensor.dtype, device=tensor.device, requires_grad=True)
    return tensor + zero


def generic_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``softmax(Q K^T * scaling + mask) V``, for models without an eager function.

    Args:
        module: The attention layer.
        query: Of shape (B, H, n, d).
        key: Of shape (B, K, m, d), where K divides H.
        value: Of shape (B, K, m, d).
        attention_mask: Added to the scores or, if boolean, True where a position may be attended
            to. None is all of them, or all that precede where the layer says it is causal.
        scaling: The factor of the scores, by default ``d ** -0.5``.
        dropout: Not applied: a capture runs in eval mode.
        is_causal: Whether the layer is causal; by default what the layer says.
        options: Arguments of no effect on the weights.

    Returns:
        The output of shape (B, n, H, d) and the weights of shape (B, H, n, m).

    Raises:
        AttentionError: If the layer passes an argument that changes the weights in a way that only
            the model itself knows.
    """
    own = [name for name in _OWN_ARGUMENTS if options.get(name) is not None]
    if own:
        raise AttentionError(
            f"{type(module).__name__} passes {', '.join(own)} to its attention function, and "
            f"{type(module).__module__} has no eager_attention_forward that applies it; define one "
            "there"
        )
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(-1, -2) * factor
    if attention_mask is None:
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        if causal:
            rows, columns = scores.shape[-2:]
            seen = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    elif attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    else:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32))
    weights = weights.to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def own_attention(module: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return the eager function of the file that defines an attention layer.

    It knows what is the model's own: soft caps, sinks, position biases and grouped heads. A class
    derived from a layer in another file uses the function of the layer's file.
    """
    for kind in type(module).__mro__:
        source = sys.modules.get(kind.__module__)
        function: Any = getattr(source, "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    return generic_attention


AttentionInterface.register(NAME, recorded_attention)
# Without a mask function of the same name no mask would reach the attention function.
AttentionMaskInterface.register(NAME, eager_mask)
