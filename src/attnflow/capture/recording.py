"""The attention weights of one forward pass, taken down layer by layer."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from attnflow.checks import BFLOAT16_ROW_TOLERANCE, ROW_TOLERANCE, resolve_index
from attnflow.errors import AttentionError


@dataclass(eq=False)
class Recording:
    """Takes a layer's weights as they are computed, checks their shape and fuses their heads.

    Args:
        model: The model's name, for errors.
        batch: The number of items that each layer must have.
        tokens: The number of tokens that each layer must have, or None to go by the first layer.
        heads: The head fusion, the index of a head, or None to keep all heads.
        gradients: Whether to keep the weights with their autograd graph, to compute gradients.
            Nothing is fused then.

    Attributes:
        gradients: The same.
        layers: The weights of each layer so far. Fused, (B, n, n), or with all heads, (B, H, n, n);
            on the CPU unless `gradients`.
    """

    model: str
    batch: int
    tokens: int | None
    heads: str | int | None
    gradients: bool = False
    layers: list[torch.Tensor] = field(default_factory=list)
    _sunk: set[int] = field(default_factory=set)

    def sink(self) -> None:
        """Note that the next layer gives part of its attention to a learned sink."""
        self._sunk.add(len(self.layers))

    def leveled(self) -> tuple[list[torch.Tensor], bool]:
        """Return the layers, all of the same size, and whether position 0 is a learned sink."""
        if self.gradients:
            return self.layers, False
        return level(self.layers, self._sunk), bool(self._sunk)

    def take(
        self, module: Any, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor
    ) -> None:
        """Take the weights of the next layer, whichever attention layer computed them."""
        self.add(weights)

    def add(self, weights: torch.Tensor) -> None:
        """Take the weights of the next layer, of shape (B, H, n, n).

        Raises:
            AttentionError: If the shape is not that of attention among all the tokens.
            OptionError: If `heads` is the index of a head that there is not.
        """
        self._check_shape(tuple(weights.shape))
        self._keep(weights)

    def takes_parts(self, items: int) -> bool:
        """Whether a layer of so many items may come in parts: each is fused and let go of."""
        return items == self.batch and self.heads is not None and not self.gradients

    def add_parts(self, parts: Iterable[torch.Tensor]) -> None:
        """Take the weights of the next layer, each part of some items, (b, H, n, n).

        Raises:
            AttentionError: If the shape is not that of attention among all the tokens.
            OptionError: If `heads` is the index of a head that there is not.
        """
        fused = []
        for weights in parts:
            self._check_shape((self.batch, *weights.shape[1:]))
            fused.append(fuse_heads(weights.detach(), self.heads, len(self.layers) + 1).cpu())
        self.layers.append(torch.cat(fused))

    def expect(self, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor) -> None:
        """Take what the next layer has computed, of shape (B, H, n, m), that was checked before.

        Raises:
            OptionError: If `heads` is the index of a head that there is not.
        """
        self._keep(weights)

    def _keep(self, weights: torch.Tensor) -> None:
        if self.gradients:
            self.layers.append(weights)
            return
        weights = weights.detach()
        if len(self.layers) in self._sunk:
            weights = with_sink(weights)
        self.layers.append(fuse_heads(weights, self.heads, len(self.layers) + 1).cpu())

    def _check_shape(self, shape: tuple[int, ...], layer: int | None = None) -> None:
        number = len(self.layers) + 1 if layer is None else layer
        where = f"layer {number} of {self.model} has attention of shape {shape}"
        if len(shape) != 4:
            raise AttentionError(
                f"{where}, and not one weight for each pair of tokens, (batch, heads, tokens, "
                "tokens): its layers mix positions in another way; try method='contribution'"
            )
        rows, columns = shape[-2:]
        if shape[0] != self.batch:
            raise AttentionError(
                f"{where} for a batch of {self.batch}: it attends within windows; use a model "
                "whose layers attend over the whole input, such as ViT"
            )
        if rows != columns:
            raise AttentionError(
                f"{where}: {rows} positions attend to {columns} at most, as where each position "
                "sees a window of its own (Longformer) or positions are pooled; expected attention "
                "among the same positions. Try method='contribution'"
            )
        if self.tokens is None:
            self.tokens = columns
        if columns != self.tokens:
            raise AttentionError(
                f"{where}; expected {self.tokens} tokens, without windows, pooling or added "
                "positions"
            )


def with_sink(weights: torch.Tensor) -> torch.Tensor:
    """Return weights with a learned sink before the first position.

    The sink gets what is missing in each row, and attends to itself alone.

    Args:
        weights: Of shape (..., n, n), rows that sum to 1 at most.

    Returns:
        Of shape (..., n + 1, n + 1); float64 if the weights are, float32 otherwise.

    Example:
        >>> with_sink(torch.tensor([[0.5, 0.0], [0.25, 0.5]]))
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.2500, 0.2500, 0.5000]])
    """
    weights = weights if weights.dtype == torch.float64 else weights.float()
    framed = _framed(weights)
    framed[..., 1:, 0] = (1.0 - weights.sum(dim=-1)).clamp(min=0.0)
    return framed


def level(layers: list[torch.Tensor], sunk: Collection[int]) -> list[torch.Tensor]:
    """Return layers of one size: if some have a learned sink, others get one of no weight.

    Args:
        layers: Of shape (..., n, n), or (..., n + 1, n + 1) with a sink.
        sunk: Which layers have a sink, by index.
    """
    if not sunk:
        return layers
    return [layer if i in sunk else _framed(layer) for i, layer in enumerate(layers)]


def _framed(weights: torch.Tensor) -> torch.Tensor:
    """Put a position before the first, which attends to itself and which nobody attends to."""
    framed = torch.nn.functional.pad(weights, (1, 0, 1, 0))
    framed[..., 0, 0] = 1.0
    return framed


def fuse_heads(weights: torch.Tensor, heads: str | int | None, layer: int) -> torch.Tensor:
    """Fuse the heads of a layer.

    Rows of the result sum to 1 as nearly as its type allows. In float16 and bfloat16 the rows of a
    model's attention do not, because of rounding; they are normalised again in float32.

    Args:
        weights: Of shape (B, H, n, m).
        heads: "mean" or "sum", which are the same once rows sum to 1; "max" or "min", which are
            re-normalised; the index of a head; or None to keep all heads. "min" leaves a row of
            zeros where no token is attended to by every head.
        layer: The layer's number, for errors.

    Returns:
        Of shape (B, n, m), or (B, H, n, m) if `heads` is None; float64 if the weights are, float32
        otherwise. It shares no memory with weights that were fused.

    Raises:
        AttentionError: If rows to be re-normalised are further from 1 than by rounding.
        OptionError: If `heads` is the index of a head that there is not.

    Example:
        >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]])
        >>> fuse_heads(weights, "mean", 1)
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])
        >>> fuse_heads(weights, -1, 1)
        tensor([[[0.0000, 1.0000],
                 [0.5000, 0.5000]]])
    """
    rounded = weights.dtype not in (torch.float32, torch.float64)
    if rounded or heads in ("max", "min"):
        tolerance = BFLOAT16_ROW_TOLERANCE if weights.dtype == torch.bfloat16 else ROW_TOLERANCE
        weights = weights if weights.dtype == torch.float64 else weights.float()
        sums = weights.sum(dim=-1, keepdim=True)
        _check_rows(sums, tolerance, layer)
        if rounded:
            weights = _divide(weights, sums)
    if heads is None:
        return weights
    if heads == "max" or heads == "min":
        fused = weights.amax(dim=1) if heads == "max" else weights.amin(dim=1)
        return _divide(fused, fused.sum(dim=-1, keepdim=True))
    if isinstance(heads, str):
        return weights.mean(dim=1)
    # A copy: a view would keep all heads in memory.
    return weights[:, resolve_index(heads, weights.shape[1], "heads", "heads")].clone()


def _check_rows(sums: torch.Tensor, tolerance: float, layer: int) -> None:
    # A row of zeros, or of NaN, is what some models give a padded position.
    off = ((sums - 1.0).abs() * (sums != 0)).nan_to_num(0.0)
    worst = float(off.max())
    if worst > tolerance:
        raise AttentionError(
            f"layer {layer} has rows of attention that do not sum to 1, off by {worst:.2g}; at "
            f"most {tolerance:.1g} is allowed. Part of the attention goes to a learned sink, which "
            "is not a token"
        )


def _divide(rows: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Divide rows by their sums, and leave a row of zeros as it is."""
    return rows / torch.where(sums == 0, 1.0, sums)
