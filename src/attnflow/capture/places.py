"""Which part of an image each position of a model is made of, found by changing pixels.

Towers order their patches in ways of their own (row by row, by windows, by groups that become one
position), and some mix them before a decoder reads them. So the pixels of some parts of the image
are changed, and what enters the first layer shows which positions are made of them. For what a
decoder reads, the layers of the tower pass on what they are given, which leaves every position
where it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import torch

from attnflow.capture.borrow import borrowed
from attnflow.capture.running import stacks
from attnflow.errors import AttentionError

# The probe under way. Another thread may run the model meanwhile.
_PROBE: Final[ContextVar["_Probe | None"]] = ContextVar("attnflow_probe", default=None)


def locate(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    tower: torch.nn.Module,
    cells: torch.Tensor,
    image: torch.Tensor,
) -> torch.Tensor:
    """Return which part of an image each position of the vision tower is made of.

    Args:
        model: A model that reads an image with a text.
        inputs: What it takes for one item, on its device, with ``pixel_values``.
        tower: The part of it that reads the image.
        cells: The part of the image that each pixel belongs to, counted from 0, and -1 for pixels
            that belong to none; a shape that broadcasts to that of ``pixel_values``.
        image: Of shape (n,): the positions of the decoder that stand for those parts, one for each,
            in their order.

    Returns:
        For each position that enters the first layer of the tower its part of the image, int64 of
        shape (m,), on the CPU; -1 for a position that is not made of pixels, such as CLS.

    Raises:
        AttentionError: If the tower has not one stack of layers, or a position is made of several
            parts, or the positions of the decoder are not those parts in their order.
    """
    name = type(model).__name__
    found = stacks(model)
    inside = {id(module) for module in tower.modules()}
    towers = [layers for _, layers in found if id(layers) in inside]
    others = [layers for _, layers in found if id(layers) not in inside]
    if len(towers) != 1 or len(others) != 1:
        raise AttentionError(
            f"{name} has {len(towers)} lists of layers that read images and {len(others)} others; "
            "expected a vision tower and a decoder, and no Q-Former or resampler between them, "
            "which would leave image tokens without a place in the image"
        )
    pixels = inputs["pixel_values"]
    cells = cells.to(pixels.device).expand(pixels.shape)
    count = int(image.sum())
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).to(pixels)

    def entering(changed: torch.Tensor, *, decoder: bool) -> torch.Tensor:
        probe = _Probe(others[0][0] if decoder else towers[0][0])
        given = {**inputs, "pixel_values": torch.where(changed, pixels + noise, pixels)}
        probing = _probing(probe, towers[0])
        with torch.no_grad(), borrowed(model, None), suppress(_ReachedError), probing:
            model(**given, use_cache=False)
        if probe.values is None:
            raise AttentionError(f"the layers of {name} are not given the image as embeddings")
        return probe.values.flatten(0, -2).float().cpu()

    nothing = torch.zeros_like(cells, dtype=torch.bool)
    before = entering(nothing, decoder=False)
    made = _differ(entering(cells >= 0, decoder=False), before)
    places = torch.zeros(len(before), dtype=torch.long)
    for bit in range(count.bit_length()):
        one = (cells >> bit & 1).bool()
        with_bit = _differ(entering(one & (cells >= 0), decoder=False), before)
        without = _differ(entering(~one & (cells >= 0), decoder=False), before)
        if bool((with_bit & without).any()):
            raise AttentionError(f"patches of {name} overlap or straddle its image tokens")
        places += with_bit.long() << bit
    places[~made] = -1

    # A random half of the parts, and then the others: positions are made of their own part only.
    half = torch.rand(count, generator=torch.Generator().manual_seed(1)) < 0.5
    before = entering(nothing, decoder=True)
    for chosen in (half, ~half):
        mine = chosen.to(cells.device)[cells.clamp(min=0)] & (cells >= 0)
        expected = torch.zeros(len(before), dtype=torch.bool)
        expected[image.cpu()] = chosen
        if not torch.equal(_differ(entering(mine, decoder=True), before), expected):
            raise AttentionError(
                f"{name} mixes the patches of an image before its decoder reads them, orders them "
                "in another way than row by row, or attends to them from its layers, so the place "
                "of an image token in the image is not known"
            )
    return places


class _ReachedError(Exception):
    """The layer that was looked for is about to run."""


class _Probe:
    """What enters a layer.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer: Final = layer
        self.values: torch.Tensor | None = None


@contextmanager
def _probing(probe: _Probe, tower: torch.nn.ModuleList) -> Iterator[None]:
    """Stop at the layer of a probe; the layers of the tower give what they are given."""

    def given(arguments: Any, options: dict[str, Any]) -> torch.Tensor:
        value: torch.Tensor = arguments[0] if arguments else options["hidden_states"]
        return value

    def reach(layer: torch.nn.Module, arguments: Any, options: dict[str, Any]) -> None:
        if _PROBE.get() is probe:
            probe.values = given(arguments, options)
            raise _ReachedError

    def pass_on(
        layer: torch.nn.Module, arguments: Any, options: dict[str, Any], output: Any
    ) -> Any:
        if _PROBE.get() is not probe:
            return None
        same = given(arguments, options)
        return (same, *output[1:]) if isinstance(output, tuple) else same

    handles: list[Any] = []
    token = _PROBE.set(probe)
    try:
        handles.append(probe.layer.register_forward_pre_hook(reach, with_kwargs=True))
        for layer in tower:
            # Before the hooks of transformers, which record what a layer returned.
            handles.append(layer.register_forward_hook(pass_on, with_kwargs=True, prepend=True))
        yield
    finally:
        _PROBE.reset(token)
        for handle in handles:
            handle.remove()


def _differ(values: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return which positions of (m, d) differ by more than rounding."""
    limit = 64 * torch.finfo(values.dtype).eps * float(before.abs().max())
    return (values - before).abs().amax(-1) > limit
