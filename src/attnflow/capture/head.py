"""Which positions a model's head reads.

A classifier may read CLS, the last token, the mean of all tokens, or several of these. It reads a
position if the answer has a gradient there, where the head takes over from the layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from attnflow.capture.running import stacks


class HeadInput:
    """What the head of a model was given in a forward pass.

    Attributes:
        layer: The output of the last layer, of shape (B, n, d); None if it was not seen.
        state: The last hidden state that a part of the model returned, after its last norm.
    """

    def __init__(self) -> None:
        self.layer: torch.Tensor | None = None
        self.state: torch.Tensor | None = None

    @property
    def wanted(self) -> list[torch.Tensor]:
        """What gradients are needed of."""
        return [values for values in (self.state, self.layer) if values is not None]

    def weights(self, gradients: list[torch.Tensor | None], items: int) -> torch.Tensor | None:
        """Return how much of the head's reading is at each position.

        Args:
            gradients: The gradient of the answers by each of `wanted`; None if there is none.
            items: How many items the batch has.

        Returns:
            The norm of the gradient at each position, over their sum, float64 of shape (B, n); 0
            where the head does not read. None if it cannot be told.
        """
        for gradient in gradients:
            if gradient is None or gradient.ndim != 3 or len(gradient) != items:
                continue
            norms = gradient.detach().double().norm(dim=-1).cpu()
            sums = norms.sum(dim=1, keepdim=True)
            if bool((sums > 0).all()) and bool(sums.isfinite().all()):
                return norms / sums
        return None


@contextmanager
def watched_head(model: torch.nn.Module, *, only_head: bool) -> Iterator[HeadInput]:
    """Watch what a model's head is given; no hook is left afterwards.

    Args:
        model: The model.
        only_head: Whether gradients begin after the last layer. Otherwise they are on already.
    """
    found, enabled = HeadInput(), torch.is_grad_enabled()
    lists = stacks(model)
    if not lists:
        yield found
        return

    def begin(*_: Any) -> None:
        if only_head:
            torch.set_grad_enabled(enabled)

    def after_layer(_: Any, __: Any, output: Any) -> Any:
        values = output if torch.is_tensor(output) else output[0]
        if not only_head:
            found.layer = values
            return None
        torch.set_grad_enabled(True)
        leaf: torch.Tensor = values.detach().requires_grad_()
        found.layer = leaf
        # A head may change it in place, which a leaf does not allow.
        copy = leaf.clone()
        return copy if torch.is_tensor(output) else (copy, *output[1:])

    def after_part(_: Any, __: Any, output: Any) -> None:
        state: Any = getattr(output, "last_hidden_state", None)
        if torch.is_tensor(state) and state.requires_grad:
            found.state = state

    handles = [model.register_forward_pre_hook(begin)]
    try:
        handles.append(lists[-1][1][-1].register_forward_hook(after_layer))
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                handles.append(module.register_forward_hook(after_part))
        yield found
    finally:
        torch.set_grad_enabled(enabled)
        for handle in handles:
            handle.remove()
