"""Value-weighted attention: how long the vectors are that attention adds up.

Kobayashi, Kuribayashi, Yokoi and Inui, "Attention is not Only a Weight: Analyzing Transformers with
Vector Norms", EMNLP 2020. A large weight on a short vector moves little.
"""

import torch


def value_norms(
    weights: torch.Tensor,
    values: torch.Tensor,
    projection: torch.Tensor,
    residual: torch.Tensor,
    *,
    cross: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of value-weighted attention, and the share of the residual of each position.

    The edge from position k to position m weighs ``||sum_h W[h][k, m] v_h[m] O_h||``: the norm of
    the vector that k gets from m through all heads. Rows are divided by their sums. The residual's
    share of position k is ``||x_k|| / (||x_k|| + the sum of row k)``, where x_k is the vector that
    the attention's output is added to. The bias of the output projection is not attributed to any
    position, and left out.

    A row of zeros becomes one that is all on the position itself, or, where the positions attended
    to are others, stays as it is.

    Args:
        weights: Attention W, of shape (B, H, n, m).
        values: The values v, of shape (B, H, m, d).
        projection: Each head's part O of the output projection, of shape (H, d, D).
        residual: The vectors x, of shape (B, n, D).
        cross: Whether it is attention to the outputs of an encoder, not among the same positions.

    Returns:
        The rows, float64 of shape (B, n, m), and the shares, float64 of shape (B, n), from 0 to 1.

    Example:
        >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> values = torch.tensor([[[[1.0], [3.0]]]])
        >>> rows, shares = value_norms(
        ...     weights, values, torch.ones(1, 1, 1), torch.tensor([[[1.0], [2.0]]])
        ... )
        >>> rows
        tensor([[[1.0000, 0.0000],
                 [0.2500, 0.7500]]], dtype=torch.float64)
        >>> shares
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    exact = weights.double()
    vectors = values.double() @ projection.double()
    # The square of the norm is w G[m] w, with w the weights of all heads on m and G[m] the products
    # of their vectors: n x n vectors of the model's size need not be made.
    products = torch.einsum("bhmx,bgmx->bmhg", vectors, vectors)
    squares = torch.zeros_like(exact[:, 0])
    for head in range(exact.shape[1]):
        squares += exact[:, head] * torch.einsum("bgkm,bmg->bkm", exact, products[:, :, head])
    norms = squares.clamp(min=0.0).sqrt()
    sums = norms.sum(dim=-1)
    length = residual.double().norm(dim=-1)
    total = length + sums
    shares = length / torch.where(total > 0, total, 1.0)
    some = sums[..., None] > 0
    rows = norms / torch.where(some, sums[..., None], 1.0)
    if cross:
        return rows, shares
    alone = torch.eye(norms.shape[-1], dtype=norms.dtype, device=norms.device)
    return torch.where(some, rows, alone), shares
