"""Effective attention: the part of attention that the values let through.

Brunner, Liu, Pascual, Richter, Ciaramita and Wattenhofer, "On Identifiability in Transformers",
ICLR 2020, section 3. What attention to a head's values adds to a position is ``W T``, where
T = V O, the values times the head's part of the output projection. Where there are more tokens than
a head has dimensions, some of W is always lost in that product: the part in the
left null space of T. Effective attention is W without it.
"""

import torch


def effective_attention(
    weights: torch.Tensor, values: torch.Tensor, projection: torch.Tensor
) -> torch.Tensor:
    """Return ``W T T^+`` for every head, where ``T = V O``.

    It is the matrix of the smallest norm that gives the same output: ``W_eff T = W T``. It equals W
    where T has as many independent rows as there are tokens, which needs a head of at least that
    size. Entries may be negative.

    A row is computed with the tokens alone that its position can see, those on which any head has a
    weight other than exactly 0. So a causal mask, a window and padding are kept, and what follows a
    position, or pads it, has no effect on its row. Rows with the same tokens in sight are computed
    together. In a causal model no two rows have, which costs about n^2 d^2 operations for a head of
    size d; without a mask it is n d^2.

    A dimension of T counts as 0 below ``max(m, D)`` times the precision of float64, relative to the
    largest.

    Args:
        weights: Attention W, of shape (B, H, n, m).
        values: The values V, of shape (B, H, m, d).
        projection: Each head's part O of the output projection, of shape (H, d, D).

    Returns:
        Effective attention, float64 of shape (B, H, n, m), on the CPU.

    Example:
        >>> weights = torch.tensor([[[[0.5, 0.3, 0.2]]]])  # one position that attends to three
        >>> values = torch.tensor([[[[1.0], [1.0], [0.0]]]])  # a head of one dimension
        >>> effective_attention(weights, values, torch.ones(1, 1, 1))
        tensor([[[[0.4000, 0.4000, 0.0000]]]], dtype=torch.float64)
    """
    # On the CPU: elsewhere torch has no least squares that reveals the rank.
    exact = weights.cpu().double()
    # T has the column space of V R^T, where O^T = Q R, and that is narrow.
    factor = torch.linalg.qr(projection.cpu().double().transpose(-1, -2), mode="r").R
    space = values.cpu().double() @ factor.transpose(-1, -2)
    limit = max(values.shape[-2], projection.shape[-1]) * torch.finfo(torch.float64).eps
    effective = torch.zeros_like(exact)
    seen = (exact != 0).any(dim=1)
    sights, sight_of = torch.unique(seen, dim=1, return_inverse=True)
    for index in range(sights.shape[1]):
        rows = torch.nonzero(sight_of == index)[:, 0]
        sight = sights[:, index]
        columns = torch.nonzero(sight.any(dim=0))[:, 0]
        if len(columns) == 0:
            continue
        # Projected onto the column space. A row of zeros has no part in it.
        inside = space[:, :, columns] * sight[:, None, columns, None]
        wanted = exact[:, :, rows][..., columns].transpose(-1, -2)
        found = torch.linalg.lstsq(inside, wanted, rcond=limit, driver="gelsy").solution
        effective[:, :, rows[:, None], columns] = (inside @ found).transpose(-1, -2)
    return effective


def effective_rows(
    weights: torch.Tensor,
    values: torch.Tensor,
    projection: torch.Tensor,
    *,
    cross: bool = False,
) -> torch.Tensor:
    """Return effective attention as rows that edges can weigh: not negative, with a sum of 1.

    Each head is taken by itself, before heads are fused: the absolute values of its effective
    attention, each row divided by its sum. A row of which nothing is left is all on the position
    itself, or, where the positions attended to are others, stays a row of zeros.

    Args:
        weights: Attention W, of shape (B, H, n, m).
        values: The values V, of shape (B, H, m, d).
        projection: Each head's part O of the output projection, of shape (H, d, D).
        cross: Whether it is attention to the outputs of an encoder, not among the same positions.

    Returns:
        Rows, float64 of shape (B, H, n, m), on the CPU.

    Example:
        >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> values = torch.tensor([[[[1.0], [3.0]]]])
        >>> effective_rows(weights, values, torch.ones(1, 1, 1))
        tensor([[[[1.0000, 0.0000],
                  [0.2500, 0.7500]]]], dtype=torch.float64)
    """
    sizes = effective_attention(weights, values, projection).abs()
    sums = sizes.sum(dim=-1, keepdim=True)
    rows = sizes / torch.where(sums > 0, sums, 1.0)
    if cross:
        return rows
    return torch.where(sums > 0, rows, torch.eye(sizes.shape[-1], dtype=sizes.dtype))
