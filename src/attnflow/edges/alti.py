"""ALTI: how near the vector that attention moves comes to what the layer gives out.

Ferrando, Gállego and Costa-jussà, "Measuring the Mixing of Contextual Information in the
Transformer", EMNLP 2022. A layer's output is a sum of one vector for each position attended to, the
residual included. A position contributes as much as taking its vector away changes the sum, in the
L1 norm. The authors keep the biases of the values in the vectors; here no bias is attributed to any
position.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch

# So many numbers of the vectors between all pairs of positions are in memory at once.
BLOCK_NUMBERS: Final = 2**22


class Norm(NamedTuple):
    """A normalisation with its denominator held at its value, and so linear.

    Attributes:
        centred: Whether the mean of the dimensions is subtracted, as in layer normalisation.
        gain: What each dimension is multiplied by, of shape (D,).
        factor: What each position is multiplied by, of shape (B, n, 1).
        bias: What is added, of shape (D,).
    """

    centred: bool
    gain: torch.Tensor
    factor: torch.Tensor
    bias: torch.Tensor

    def of(self, item: int, rows: slice) -> "Norm":
        """Return the norm of some positions of one item of the batch."""
        return self._replace(factor=self.factor[item, rows])

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        """Apply the norm to vectors of shape (..., n, D), without its bias."""
        if self.centred:
            vectors = vectors - vectors.mean(dim=-1, keepdim=True)
        return vectors * (self.gain * self.factor).to(vectors.dtype)


def linearised(module: torch.nn.Module, given: torch.Tensor, returned: torch.Tensor) -> Norm | None:
    """Return what a module did to its input as a norm; None if it did something else.

    Norms have many classes, with gains that are the weight or one more. They are recognised by what
    they return.

    Args:
        module: The module.
        given: Its input, of shape (B, n, D).
        returned: Its output.

    Example:
        >>> module = torch.nn.LayerNorm(2)
        >>> given = torch.tensor([[[1.0, 5.0]]])
        >>> norm = linearised(module, given, module(given).detach())
        >>> norm.apply(given).round(decimals=3) + 0.0
        tensor([[[-1.,  1.]]])
        >>> linearised(torch.nn.GELU(), given, torch.nn.functional.gelu(given)) is None
        True
    """
    exact, wanted = given.double(), returned.double()
    size = given.shape[-1:]
    weight, bias = (getattr(module, name, None) for name in ("weight", "bias"))
    parts = [part for part in (weight, bias) if part is not None]
    if given.shape != returned.shape or any(part.shape != size for part in parts):
        return None
    zero = torch.zeros_like(exact[0, 0])
    added = zero if bias is None else bias.detach().double()
    gains = [zero + 1.0] if weight is None else [weight.detach().double() + one for one in (0, 1)]
    wanted = wanted - added
    # Many norms compute in float32, whatever the model does.
    rounding = max(torch.finfo(kind).eps for kind in (returned.dtype, torch.float32))
    limit = 16 * rounding * returned.double().norm(dim=-1)
    for centred in (True, False):
        inner = exact - exact.mean(dim=-1, keepdim=True) if centred else exact
        for gain in gains:
            product = inner * gain
            square = (product * product).sum(dim=-1, keepdim=True)
            factor = (wanted * product).sum(dim=-1, keepdim=True) / torch.where(
                square > 0, square, 1.0
            )
            # Padded positions may be anything, also not a number.
            if not bool(((wanted - factor * product).norm(dim=-1) > limit).any()):
                return Norm(centred, gain, factor, added)
    return None


class Block(NamedTuple):
    """One attention layer with its residual: what it mixes, and what it gives out.

    Attributes:
        weights: Attention W, of shape (B, H, n, m).
        values: The values v without their bias, of shape (B, H, m, d).
        projection: Each head's part O of the output projection, of shape (H, d, D).
        residual: The vectors x that the attention's output is added to, of shape (B, n, D).
        bias: What biases add to the attention's output, of shape (B, n, D).
        output: What the layer really gave out, of shape (B, n, D).
        inner: The norms between the output projection and the residual, if any.
        outer: The norms of the sum, as in models that normalise after the residual.
    """

    weights: torch.Tensor
    values: torch.Tensor
    projection: torch.Tensor
    residual: torch.Tensor
    bias: torch.Tensor
    output: torch.Tensor
    inner: Sequence[Norm] = ()
    outer: Sequence[Norm] = ()

    def projected(self, item: int) -> torch.Tensor:
        """Return the projected values of one item, each head's, of shape (m, H, D)."""
        return (self.values[item] @ self.projection).transpose(0, 1)

    def attended(self, item: int, rows: slice, projected: torch.Tensor) -> torch.Tensor:
        """Return the vectors that attention moves, of one item, with the inner norms applied.

        Args:
            item: The item.
            rows: The r positions that attend.
            projected: The first c of the item's projected values.

        Returns:
            The vector from each of c positions to each of r, of shape (c, r, D).
        """
        weights = self.weights[item, :, rows, : len(projected)].permute(2, 1, 0)
        return _through(self.inner, weights @ projected, item, rows)

    def own(self, item: int) -> torch.Tensor:
        """Return the residual's vectors of one item, of shape (n, D), with all norms applied."""
        return _through(self.outer, self.residual[item], item, slice(None))

    def sums(self) -> torch.Tensor:
        """Return the sum of all vectors of each position, of shape (B, n, D)."""
        mixed = torch.einsum("bhnm,bhmd,hdx->bnx", self.weights, self.values, self.projection)
        for norm in self.inner:
            mixed = norm.apply(mixed)
        mixed = mixed + self.residual
        for norm in self.outer:
            mixed = norm.apply(mixed)
        return mixed

    def biases(self) -> torch.Tensor:
        """Return what biases add to the output of each position, of shape (B, n, D)."""
        found = self.bias
        for norm in (*self.inner, *self.outer):
            found = norm.apply(found) + norm.bias.to(found.dtype)
        return found

    def error(self) -> float:
        """Return by how much vectors and biases miss the output, relative to it, at the worst."""
        missed = (self.sums() + self.biases() - self.output).norm(dim=-1)
        size = self.output.norm(dim=-1)
        # Padded positions may be anything, also not a number.
        return float((missed / torch.where(size > 0, size, 1.0)).nan_to_num(0.0).max())


def _through(norms: Sequence[Norm], vectors: torch.Tensor, item: int, rows: slice) -> torch.Tensor:
    for norm in norms:
        vectors = norm.of(item, rows).apply(vectors)
    return vectors


def alti_rows(block: Block, *, cross: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how much each position contributes to each other, and the share of the residual.

    The vector from position j to position i is ``T_ij = sum_h W[h][i, j] v_h[j] O_h``, plus x_i
    where i = j, through the layer's norms with their denominators held at their values. With y_i
    the sum of T_ij over j, the contribution is ``max(0, ||y_i||_1 - ||y_i - T_ij||_1)``. Rows are
    divided by their sums. A row of zeros becomes one that is all on the position itself.

    The residual is part of the vector from a position to itself, so its share is 0. Where the
    positions attended to are others, it is a vector of its own, and its share is measured.

    It takes O(n m H D) operations, in blocks of rows.

    Args:
        block: The layer.
        cross: Whether it is attention to the outputs of an encoder, not among the same positions.

    Returns:
        The rows, float64 of shape (B, n, m), and the shares, float64 of shape (B, n), from 0 to 1.

    Example:
        >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> values = torch.tensor([[[[1.0], [3.0]]]])
        >>> zero = torch.zeros(1, 2, 1)
        >>> residual = torch.tensor([[[1.0], [-1.0]]])
        >>> block = Block(weights, values, torch.ones(1, 1, 1), residual, zero, zero)
        >>> rows, shares = alti_rows(block)  # T = [[2, 0], [0.5, 1.5 - 1]]
        >>> rows
        tensor([[[1.0000, 0.0000],
                 [0.5000, 0.5000]]], dtype=torch.float64)
        >>> shares
        tensor([[0., 0.]], dtype=torch.float64)
    """
    found = [_item_rows(block, item, total, cross) for item, total in enumerate(block.sums())]
    rows, shares = (torch.stack(parts) for parts in zip(*found, strict=True))
    return rows, shares


def _item_rows(
    block: Block, item: int, total: torch.Tensor, cross: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows and the shares of one item, whose vectors have some sums."""
    count, size = block.weights.shape[-1], total.shape[-1]
    length = total.abs().sum(dim=-1)
    own = block.own(item)
    projected = block.projected(item)
    near = torch.zeros(len(total), count, dtype=torch.float64, device=total.device)
    for rows in _rows(len(total), count * size):
        # No row of a causal model sees beyond the last of these.
        attending = (block.weights[item, :, rows] != 0).any(dim=0).any(dim=0)
        seen = max([0 if cross else rows.stop, *(attending.nonzero()[-1:, 0] + 1).tolist()])
        vectors = block.attended(item, rows, projected[:seen])
        missing = total[rows] - _through(block.outer, vectors, item, rows)
        if not cross:
            places = torch.arange(rows.start, rows.stop, device=total.device)
            missing[places, places - rows.start] -= own[places]
        near[rows, :seen] = (length[rows] - missing.abs().sum(dim=-1)).T.double()
    near = near.clamp(min=0.0)
    alone = (length - (total - own).abs().sum(dim=-1)).double().clamp(min=0.0)
    if not cross:
        alone = torch.zeros_like(alone)
    sums = near.sum(dim=-1, keepdim=True)
    result = near / torch.where(sums > 0, sums, 1.0)
    if cross:
        whole = sums[:, 0] + alone
        return result, torch.where(whole > 0, alone / torch.where(whole > 0, whole, 1.0), 1.0)
    eye = torch.eye(count, dtype=torch.float64, device=total.device)
    return torch.where(sums > 0, result, eye), alone


def _rows(count: int, numbers: int) -> Iterator[slice]:
    """Yield slices of so many rows that their numbers fit in a block."""
    step = max(1, BLOCK_NUMBERS // max(1, numbers))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
