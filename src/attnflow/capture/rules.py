"""How each function of torch is computed in a frozen forward pass: one table of rules.

A rule is given the pass, the function, and the function's arguments. It returns the numbers that
the function returns, computed such that they are linear in all arguments that carry a gradient.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch


class Pass(Protocol):
    """The forward pass that a rule is part of."""

    def add_bias(self, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Add a bias, and count what it adds to the answer."""


def constant(value: Any) -> Any:
    """Return an argument with its parameters as constants, whether or not they are trained."""
    if isinstance(value, torch.nn.Parameter):
        return value.detach()
    if type(value) in (list, tuple):
        return type(value)(constant(item) for item in value)
    return value


def carries(value: Any) -> bool:
    """Whether a value depends on the embeddings or on a bias."""
    return bool(torch.is_tensor(value) and value.requires_grad)


def _fix(frozen: Pass, function: Any, *arguments: Any, **options: Any) -> Any:
    """Hold the result at its value."""
    fixed = [value.detach() if carries(value) else value for value in arguments]
    named = {name: value.detach() if carries(value) else value for name, value in options.items()}
    return function(*fixed, **named)


def _fix_slope(frozen: Pass, function: Any, values: Any, *rest: Any, **options: Any) -> Any:
    """Hold ``f(z) / z`` at its value."""
    if not carries(values):
        return function(values, *rest, **options)
    options.pop("inplace", None)
    return sloped(values, function(values.detach(), *rest, **options))


def sloped(values: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return a result as the values that it was computed from, times what is held: the slope."""
    given = values.detach()
    return values * torch.where(given == 0, 0.0, result / given)


def _halve(frozen: Pass, function: Any, left: Any, right: Any, **options: Any) -> Any:
    """Give half of a product to each factor."""
    if not (carries(left) and carries(right)):
        return function(left, right, **options)
    parts = function(left.detach(), right, **options) + function(left, right.detach(), **options)
    return parts / 2


def _einsum(frozen: Pass, function: Any, equation: Any, *operands: Any) -> Any:
    if len(operands) == 1 and type(operands[0]) in (list, tuple):
        operands = tuple(operands[0])
    if len(operands) != 2:
        return function(equation, *operands)
    return _halve(frozen, lambda left, right: function(equation, left, right), *operands)


def _divide(frozen: Pass, function: Any, left: Any, right: Any, **options: Any) -> Any:
    """Hold the denominator at its value."""
    return function(left, right.detach() if carries(right) else right, **options)


def _add(frozen: Pass, function: Any, left: Any, right: Any, **options: Any) -> Any:
    """Treat a constant that is added as a bias."""
    if options or carries(left) == carries(right):
        return function(left, right, **options)
    values, bias = (left, right) if carries(left) else (right, left)
    return _with_constant(frozen, function, left, values, bias)


def _subtract(frozen: Pass, function: Any, left: Any, right: Any, **options: Any) -> Any:
    if options or carries(left) == carries(right):
        return function(left, right, **options)
    reverse = function.__name__ in ("rsub", "__rsub__")
    values, bias = (left, -right) if carries(left) else (-right, left)
    if reverse:
        values, bias = (-left, right) if carries(left) else (right, -left)
    return _with_constant(frozen, function, left, values, bias)


def _with_constant(
    frozen: Pass, function: Any, first: Any, values: torch.Tensor, bias: Any
) -> torch.Tensor:
    if not torch.is_tensor(bias):
        bias = torch.tensor(bias, dtype=values.dtype, device=values.device)
    shape = torch.broadcast_shapes(values.shape, bias.shape)
    total = frozen.add_bias(values.expand(shape), bias.to(values.dtype))
    name = function.__name__
    # In place, others that see the same memory have to see the result.
    return first.copy_(total) if name in ("add_", "sub_", "__iadd__", "__isub__") else total


def _linear(frozen: Pass, function: Any, values: Any, weight: Any, bias: Any = None) -> Any:
    if bias is None or not carries(values):
        return function(values, weight, bias)
    return frozen.add_bias(function(values, weight), bias)


def _addmm(frozen: Pass, function: Any, bias: Any, values: Any, weight: Any, **options: Any) -> Any:
    if options or carries(bias) or not carries(values):
        return function(bias, values, weight, **options)
    return frozen.add_bias(values @ weight, bias)


def _convolve(
    frozen: Pass,
    function: Any,
    values: Any,
    weight: Any,
    bias: Any = None,
    *rest: Any,
    **options: Any,
) -> Any:
    if bias is None or not carries(values):
        return function(values, weight, bias, *rest, **options)
    result = function(values, weight, None, *rest, **options)
    return frozen.add_bias(result, bias.reshape(-1, *[1] * (weight.ndim - 2)))


def _layer_norm(
    frozen: Pass,
    function: Any,
    values: Any,
    shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    if not carries(values):
        return function(values, shape, weight, bias, eps)
    axes = tuple(range(-len(shape), 0))
    values = values.contiguous()  # as the function's own result is, which may be viewed
    centred = values - values.mean(axes, keepdim=True)
    result = centred * _inverse_size(centred, axes, eps)
    return frozen.add_bias(result if weight is None else result * weight, bias)


def _rms_norm(
    frozen: Pass, function: Any, values: Any, shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    if not carries(values):
        return function(values, shape, weight, eps)
    axes = tuple(range(-len(shape), 0))
    eps = torch.finfo(values.dtype).eps if eps is None else eps
    result = values * _inverse_size(values, axes, eps)
    return result if weight is None else result * weight


def _inverse_size(values: torch.Tensor, axes: tuple[int, ...], eps: float) -> torch.Tensor:
    """Return one over the root mean square, at its value."""
    exact = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    return torch.rsqrt(exact.square().mean(axes, keepdim=True) + eps).to(values.dtype)


def _attend(
    frozen: Pass, function: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any
) -> Any:
    """Hold the weights at their values, without ever having them all."""
    return function(query.detach(), key.detach(), value, *rest, **options)


def _multi_head(
    frozen: Pass,
    function: Any,
    query: Any,
    key: Any,
    value: Any,
    size: int,
    heads: int,
    weight: Any,
    bias: Any,
    *rest: Any,
    **options: Any,
) -> Any:
    """Hold the weights of torch's own attention module at their values."""
    fixed = (query.detach(), key.detach(), value.detach(), size, heads, weight, bias, *rest)
    if not carries(value):
        return function(*fixed, **options)
    output, weights = function(
        *fixed, **{**options, "need_weights": True, "average_attn_weights": False}
    )
    extra_key, extra_value, zero, _, out_weight, out_bias = rest
    if weight is None or extra_key is not None or extra_value is not None or zero:
        # Positions of its own, or weights apart, which no model here has: the sum shows it.
        return output, None
    # The items first, for the biases are counted by item.
    mine = None if bias is None else bias[2 * size :]
    values = _linear(
        frozen, torch.nn.functional.linear, value.transpose(0, 1), weight[2 * size :], mine
    )
    split = values.unflatten(-1, (heads, -1)).transpose(1, 2)
    joined = (weights.detach() @ split).transpose(1, 2).flatten(-2)
    result = _linear(frozen, torch.nn.functional.linear, joined, out_weight, out_bias)
    return result.transpose(0, 1), None


def _rows(names: str, rule: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys(names.split(), rule)


RULES: Final[dict[str, Callable[..., Any]]] = {
    **_rows("softmax sigmoid rsqrt sqrt pow __pow__ square exp log erf reciprocal", _fix),
    **_rows("norm vector_norm std var", _fix),
    **_rows("gelu silu tanh mish elu selu softplus hardswish relu6 clamp", _fix_slope),
    **_rows("mul __mul__ __rmul__ multiply mm bmm matmul __matmul__", _halve),
    **_rows("div __truediv__ true_divide divide", _divide),
    **_rows("add add_ __add__ __radd__ __iadd__", _add),
    **_rows("sub sub_ rsub __sub__ __rsub__ __isub__ subtract", _subtract),
    **_rows("conv1d conv2d conv3d", _convolve),
    "einsum": _einsum,
    "linear": _linear,
    "addmm": _addmm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attend,
    "multi_head_attention_forward": _multi_head,
}
"""How each function of torch is computed, by its name. Functions that are not here are linear."""
