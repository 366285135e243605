"""Find what mixes positions without attention, as Mamba does beside attention in a hybrid.

Attention weights say nothing of such a module. The rule knows no names. Two items that are the same
but for the first position run together, with every attention giving zeros. What is left lets no
position know of another, unless some other module mixes them: then the two items differ at a later
position, and the first module that makes them so is the one.

A model with code of its own for attention is not tried, for its attention cannot be taken out. Of
such a model the convolutions over positions and the recurrent layers inside its layers are found.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from attnflow.capture.borrow import borrowed
from attnflow.capture.interface import recorded_attention
from attnflow.capture.running import forward, forward_options, stacks, takes_part
from attnflow.errors import AttentionError, ModelError

# The name of the attention implementation that gives zeros.
NAME: Final = "attnflow_silent"
# How many positions are tried. No usual size of a model, so that the axis can be told from others.
POSITIONS: Final = 7


class Mixer(NamedTuple):
    """A module that mixes positions without attention: its path in the model, and its class."""

    path: str
    kind: str


_FOUND: Final[WeakKeyDictionary[torch.nn.Module, Mixer | None]] = WeakKeyDictionary()


def check_mixers(model: torch.nn.Module, inputs: Mapping[str, Any]) -> None:
    """Check that positions of a model learn of each other through attention only.

    A model is tried once, on a few tokens. Models that are given anything but a text are not tried.

    Args:
        model: A model of transformers that reads one text.
        inputs: What it is given.

    Raises:
        AttentionError: If a module mixes positions without attention.
    """
    ids: Any = inputs.get("input_ids")
    if not torch.is_tensor(ids) or ids.ndim != 2 or "pixel_values" in inputs:
        return
    if model not in _FOUND:
        trial = _Trial()
        if isinstance(model, PreTrainedModel) and takes_part(model):
            # A model that needs more than a text says so when it runs on what it is given.
            with suppress(ModelError, NotImplementedError):
                _try(model, ids, trial)
        _FOUND[model] = trial.found if trial.attended else _declared(model)
    found = _FOUND[model]
    if found is not None:
        raise AttentionError(
            f"{type(model).__name__} mixes positions without attention, in {found.path} "
            f"({found.kind}), which no attention weights show; use method='contribution'"
        )


class _Trial:
    """A forward pass whose attention gives zeros.

    Attributes:
        attended: How often attention was called.
        found: The first module that made two items differ after the first position.
    """

    def __init__(self) -> None:
        self.attended = 0
        self.found: Mixer | None = None
        self._same: list[bool] = []

    def enter(self, values: Iterable[Any]) -> None:
        """Note what a module is given."""
        self._same.append(not any(map(_differs, values)))

    def leave(self, path: str, module: torch.nn.Module, values: Iterable[Any]) -> None:
        """Note what a module returned."""
        if self._same.pop() and self.found is None and any(map(_differs, values)):
            self.found = Mixer(path, type(module).__name__)


# The trial under way. Another thread may run the model meanwhile, with its attention.
_TRIAL: Final[ContextVar[_Trial | None]] = ContextVar("attnflow_trial", default=None)


def _silent(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Give zeros for attention."""
    trial = _TRIAL.get()
    if trial is None:
        return recorded_attention(module, query, key, value, *rest, **more)
    trial.attended += 1
    items, heads, rows = query.shape[:3]
    return value.new_zeros(items, rows, heads, value.shape[-1]), None


AttentionInterface.register(NAME, _silent)
AttentionMaskInterface.register(NAME, eager_mask)


def _try(model: torch.nn.Module, ids: torch.Tensor, trial: _Trial) -> None:
    """Run two items that differ in the embedding of their first position."""

    def embedded(_: Any, __: Any, output: Any) -> Any:
        if _TRIAL.get() is not trial or not torch.is_tensor(output):
            return None
        changed = output.clone()
        # Turned round, and no larger than any embedding is.
        changed[1, 0] = -changed[1, 0].roll(1, -1)
        return changed

    def enter(module: torch.nn.Module, arguments: Any, options: dict[str, Any]) -> None:
        if _TRIAL.get() is trial:
            trial.enter((*arguments, *options.values()))

    def leave(path: str, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if _TRIAL.get() is trial:
            trial.leave(path, module, output if isinstance(output, tuple) else (output,))

    given = ids[:1].repeat(2, POSITIONS)[:, :POSITIONS]
    options = forward_options(model, output_attentions=False)
    handles = [model.get_input_embeddings().register_forward_hook(embedded)]
    with torch.no_grad(), borrowed(model, NAME):
        token = _TRIAL.set(trial)
        try:
            for path, module in model.named_modules():
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                handles.append(module.register_forward_hook(partial(leave, path)))
            forward(model, {"input_ids": given, **options})
        finally:
            _TRIAL.reset(token)
            for handle in handles:
                handle.remove()


def _differs(values: Any) -> bool:
    """Whether values of two items differ after the first position, by more than rounding."""
    if not torch.is_tensor(values) or values.shape[:2] != (2, POSITIONS):
        return False
    if not values.is_floating_point():
        return False
    later = values[:, 1:].detach()
    limit = 64 * torch.finfo(values.dtype).eps * float(later.abs().max())
    return bool((later[0] - later[1]).abs().max() > limit)


def _declared(model: torch.nn.Module) -> Mixer | None:
    """Return a convolution over positions, or a recurrent layer, inside the layers of a model."""
    for name, layers in stacks(model):
        for path, module in layers.named_modules():
            wide = isinstance(module, torch.nn.Conv1d) and module.kernel_size[0] > 1
            if wide or isinstance(module, torch.nn.RNNBase):
                return Mixer(f"{name}.{path}", type(module).__name__)
    return None
