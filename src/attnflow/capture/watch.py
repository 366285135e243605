"""What an attention layer's output meets: its projection, and the residual it is added to.

Models name these parts differently, so they are recognised by what they compute in the forward
pass. The output projection is the first linear layer whose input is what attention returned. The
residual x is the input of a module around the attention, or of what ran last before it in there (a
layer norm, where self-attention and cross-attention share a layer), for which x + y, with y the
projection's output, is what another module gets next, or is part of what the module around returns
(attention and feed-forward side by side, as in GPT-NeoX). If nothing
fits, an error is raised.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import torch
from transformers.pytorch_utils import Conv1D

from attnflow.capture.interface import RECORDING, Recorder
from attnflow.capture.recording import Recording, fuse_heads
from attnflow.checks import BFLOAT16_ROW_TOLERANCE, resolve_index
from attnflow.edges.alti import Block, Norm, alti_rows, linearised
from attnflow.edges.effective import effective_rows
from attnflow.edges.value_norm import value_norms
from attnflow.errors import AttentionError

EDGES: Final = ("attention", "effective", "value_norm", "alti")
# How much the parts of a layer may miss its output, relative to it, and where the model computes in
# float16 or bfloat16.
INCOMPLETE: Final = 1e-3
INCOMPLETE_HALF: Final = 1e-1
# So many linear layers are remembered: query, key and value, and what else of positions there may
# be.
LINEAR_LAYERS: Final = 8


class Watcher(Recorder, Protocol):
    """A recording that is told of every module that runs."""

    def enter(self, module: torch.nn.Module, given: torch.Tensor | None) -> None:
        """Note that a module is about to run on an input."""

    def leave(self, module: torch.nn.Module, returned: torch.Tensor | None) -> None:
        """Note that a module has run and what it returned."""


@dataclass(eq=False)
class _Running:
    """A module that has been entered and not left, and its first input.

    `before` is the first input of the module that ran last inside it.
    """

    given: torch.Tensor | None
    before: torch.Tensor | None = None


class _Linear(NamedTuple):
    """A linear layer that has run, its input and what it returned."""

    module: torch.nn.Module
    given: torch.Tensor | None
    returned: torch.Tensor


@dataclass(eq=False)
class _Pending:
    """An attention layer that has run, until its projection and its residual are found.

    Attributes:
        weights: Its weights.
        values: Its values, one for each head.
        output: Its output.
        around: The modules that it ran in.
        candidates: What the output may be added to.
        before: The linear layers that ran before it.
        linear: The projection.
        projection: The projection's weights, of shape (H, d, D).
        bias: The projection's bias, of shape (D,), if it has one.
        added: The projection's output.
        others: What modules returned that ran after the projection.
        norms: The norms that the projection's output went through.
        residual: What it is added to.
        after: The module that the sum is given to, if it may normalise what is carried on.
        normed: That module as a norm, its input and what it returned.
    """

    weights: torch.Tensor
    values: torch.Tensor
    output: torch.Tensor
    around: list[_Running]
    candidates: list[torch.Tensor | None]
    before: list[_Linear]
    linear: torch.nn.Module | None = None
    projection: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    added: torch.Tensor | None = None
    others: list[torch.Tensor] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    residual: torch.Tensor | None = None
    after: torch.nn.Module | None = None
    normed: tuple[Norm, torch.Tensor, torch.Tensor] | None = None


@dataclass(eq=False)
class EdgeRecording(Recording):
    """Takes each layer's edges, such as effective attention or value norms, not its weights.

    Args:
        model: The model's name, for errors.
        batch: The number of items that each layer must have.
        tokens: The number of tokens that each layer must have, or None to go by the first layer.
        heads: The head fusion, the index of a head, or None to keep all heads.
        edges: "effective", "value_norm" or "alti". The last two add up heads by themselves: `heads`
            is "mean", which stands for all of them, or, for value norms, the index of one.
        cross: Whether it is attention to the outputs of an encoder.

    Attributes:
        layers: The edges of each layer so far, as rows that sum to 1. Cross-attention that adds
            nothing to a position is a row of zeros.
        residuals: For "value_norm" and "alti", the share of the residual in each layer so far,
            float64 of shape (B, n).
    """

    edges: str = "effective"
    cross: bool = False
    residuals: list[torch.Tensor] = field(default_factory=list)
    _running: list[_Running] = field(default_factory=list)
    _linears: list[_Linear] = field(default_factory=list)
    _pending: _Pending | None = None

    def take(
        self, module: Any, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor
    ) -> None:
        """Take what the next attention layer has computed; its edges follow when they can."""
        self.check_done()
        self._check_shape(tuple(weights.shape))
        self.expect(weights, values, output)

    def takes_parts(self, items: int) -> bool:
        """No: edges are computed from the output of the whole layer."""
        return False

    def expect(self, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor) -> None:
        """Take what an attention layer has computed, its shape having been checked before."""
        groups = weights.shape[1] // values.shape[1]
        values = values.detach().repeat_interleave(groups, dim=1)
        around = list(self._running)
        candidates = [outer.given for outer in around] + [outer.before for outer in around]
        self._pending = _Pending(
            weights.detach(), values, output.detach(), around, candidates, self._linears
        )
        self._linears = []

    def check_done(self) -> None:
        """Check that no layer's edges are outstanding.

        Raises:
            AttentionError: If what an attention layer's output met could not be told.
        """
        if self._pending is None:
            return
        if self._pending.normed is not None:
            # Nothing else was carried on before the next attention.
            self._carry(self._pending, normed=True)
            return
        missing = (
            "no linear layer takes its attention's output as it is"
            if self._pending.linear is None
            else "its attention's output is scaled, normalised or otherwise changed before it is "
            "added to the residual"
        )
        raise AttentionError(
            f"edges={self.edges!r} is not supported for layer {len(self.layers) + 1} of "
            f"{self.model}: {missing}; edges='attention' works"
        )

    def enter(self, module: torch.nn.Module, given: torch.Tensor | None) -> None:
        """Note that a module is about to run on an input."""
        pending = self._pending
        if pending is not None and given is not None:
            if pending.residual is not None:
                self._follow(pending, given)
            elif pending.added is not None:
                for candidate in pending.candidates:
                    if candidate is not None and is_sum(given, candidate, pending.added):
                        self._meet(pending, candidate, module, given)
                        break
            elif pending.projection is None and _projects(module, given, pending.output):
                heads, size = pending.output.shape[-2:]
                pending.linear = module
                pending.projection = _matrix(module).reshape(heads, size, -1)
                pending.bias = None if module.bias is None else module.bias.detach()
                if self.edges == "effective":
                    self._finish(pending, None)
        self._running.append(_Running(given))

    def leave(self, module: torch.nn.Module, returned: torch.Tensor | None) -> None:
        """Note that a module has run and what it returned."""
        entered = self._running.pop()
        if self._running:
            self._running[-1].before = entered.given
        if returned is not None and _is_linear(module):
            linear = _Linear(module, entered.given, returned.detach())
            self._linears = [*self._linears[1 - LINEAR_LAYERS :], linear]
        pending = self._pending
        if pending is None or returned is None:
            return
        if pending.residual is not None:
            if module is pending.after and pending.normed is None and entered.given is not None:
                norm = linearised(module, entered.given, returned)
                if norm is None:
                    self._finish(pending, pending.residual, entered.given)
                else:
                    pending.normed = norm, entered.given, returned.detach()
                    pending.others.clear()
            elif not self._follow(pending, returned) and returned.shape == pending.residual.shape:
                pending.others.append(returned.detach())
        elif module is pending.linear and pending.added is None:
            pending.added = returned.detach()
        elif pending.added is not None:
            scale: Any = getattr(module, "lambda1", None)
            if (
                pending.projection is not None
                and torch.is_tensor(scale)
                and entered.given is not None
                and torch.equal(entered.given, pending.added)
                and torch.equal(returned, pending.added * scale)
            ):
                # A learnt scale of each dimension, as in DINOv2, is part of the projection.
                pending.added = returned.detach()
                pending.projection = pending.projection * scale.detach()
                pending.bias = None if pending.bias is None else pending.bias * scale.detach()
                return
            if self.edges == "alti" and self._normalises(pending, module, entered.given, returned):
                return
            around = any(entered is outer for outer in pending.around)
            for other in pending.others if around else ():
                if is_sum(returned, entered.given, pending.added, other):
                    self._finish(pending, entered.given, returned - other)
                    return
            if returned.shape == pending.added.shape:
                pending.others.append(returned.detach())

    def _normalises(
        self,
        pending: _Pending,
        module: torch.nn.Module,
        given: torch.Tensor | None,
        returned: torch.Tensor,
    ) -> bool:
        """Whether a module is a norm of the projection's output, as in Gemma 2; it is kept then."""
        added = pending.added
        if given is None or added is None or any(True for _ in module.children()):
            return False
        if not torch.equal(given, added) or torch.equal(returned, added):
            return False
        norm = linearised(module, given, returned.detach())
        if norm is None:
            return False
        pending.norms.append(norm)
        pending.added = returned.detach()
        return True

    def _meet(
        self,
        pending: _Pending,
        residual: torch.Tensor,
        module: torch.nn.Module,
        total: torch.Tensor,
    ) -> None:
        """Take what the projection's output is added to, and the module that the sum is given to.

        If a layer reads its residual through a norm, the sum is what is carried on. If it reads it
        as it is, what follows has to tell whether the sum is normalised first.
        """
        if self.edges == "alti":
            if isinstance(module, torch.nn.Dropout | torch.nn.Identity):
                return
            reads = [linear.given for linear in pending.before if linear.given is not None]
            alone = not any(True for _ in module.children())
            if alone and any(torch.equal(given, residual) for given in reads):
                pending.residual, pending.after = residual, module
                return
        self._finish(pending, residual, total)

    def _follow(self, pending: _Pending, seen: torch.Tensor) -> bool:
        """See whether a sum, or what a norm made of it, is carried on; the layer is done then."""
        if pending.normed is None:
            return False
        _, total, output = pending.normed
        for carried, normed in ((total, False), (output, True)):
            if any(is_sum(seen, carried, other) for other in pending.others):
                self._carry(pending, normed=normed)
                return True
        return False

    def _carry(self, pending: _Pending, *, normed: bool) -> None:
        """Finish a layer whose sum was given to a norm, which is part of it or not."""
        if pending.normed is not None:
            norm, total, output = pending.normed
            outer = [norm] if normed else []
            self._finish(pending, pending.residual, output if normed else total, outer)

    def _finish(
        self,
        pending: _Pending,
        residual: torch.Tensor | None,
        output: torch.Tensor | None = None,
        outer: Sequence[Norm] = (),
    ) -> None:
        """Turn a layer into edges.

        Args:
            pending: The layer.
            residual: What its output is added to, if that was looked for.
            output: What the layer gives out, after its norms.
            outer: The norms of the sum.
        """
        self._pending = None
        weights, values, projection = pending.weights, pending.values, pending.projection
        if projection is None:
            raise ValueError("the layer's projection has to be found first")
        kind = torch.promote_types(weights.dtype, torch.float32)
        layer = len(self.layers) + 1
        if residual is None:
            rows = effective_rows(weights, values, projection, cross=self.cross)
            fused = fuse_heads(rows, self.heads, layer)
            if self.cross and self.heads is not None:
                # A head without any effective attention is left out.
                sums = fused.sum(dim=-1, keepdim=True)
                fused = fused / torch.where(sums > 0, sums, 1.0)
            self.layers.append(fused.to(kind).cpu())
            return
        if self.edges == "alti" and output is not None:
            exact = output.dtype in (torch.float32, torch.float64)
            block = _block(pending, projection, residual, output.detach(), outer)
            self._add(block, INCOMPLETE if exact else INCOMPLETE_HALF)
            return
        if self.heads != "mean":
            head = resolve_index(self.heads, weights.shape[1], "heads", "heads")
            weights, values = weights[:, [head]], values[:, [head]]
            projection = projection[[head]]
        rows, shares = value_norms(weights, values, projection, residual, cross=self.cross)
        self.layers.append(rows.to(kind).cpu())
        self.residuals.append(shares.cpu())

    def _add(self, block: Block, limit: float) -> None:
        """Take a layer whose vectors are known.

        Args:
            block: The layer.
            limit: How much the vectors may miss what the layer gives out, relative to it.

        Raises:
            AttentionError: If they do not add up to it.
        """
        error = block.error()
        if error > limit:
            raise AttentionError(
                f"edges='alti' is not supported for layer {len(self.layers) + 1} of {self.model}: "
                f"its vectors do not add up to its output, off by {error:.2g} of it; at most "
                f"{limit:.1g} is rounding. edges='attention' works"
            )
        rows, shares = alti_rows(block, cross=self.cross)
        self.layers.append(rows.to(block.weights.dtype).cpu())
        self.residuals.append(shares.cpu())


@dataclass(eq=False)
class OwnEdgeRecording(EdgeRecording):
    """Takes the edges of layers that compute attention with code of their own.

    No function is called with their weights and values, but both can be seen: weights are what a
    dropout gets, a tensor of shape (B, H, n, n) of rows that sum to 1; values are what a linear
    layer before it returned, if the weights times them is what a linear layer after it gets.
    """

    _weights: torch.Tensor | None = None

    def enter(self, module: torch.nn.Module, given: torch.Tensor | None) -> None:
        """Note that a module is about to run on an input."""
        if given is not None and isinstance(module, torch.nn.Dropout) and _are_weights(given):
            self._weights = given.detach()
        elif given is not None and self._weights is not None and _is_linear(module):
            weights = self._weights
            values = [_values(weights, linear.returned, given) for linear in self._linears[::-1]]
            for found in (value for value in values if value is not None):
                size = found.shape[-1]
                self.take(module, weights, found, given.unflatten(-1, (weights.shape[1], size)))
                self._weights = None
                break
        super().enter(module, given)


@contextmanager
def watched(model: torch.nn.Module, recording: Watcher) -> Iterator[None]:
    """Tell a recording of every module that runs in a block; no hook is left afterwards.

    Other threads may run the model meanwhile. They are not what is recorded.
    """

    def enter(module: torch.nn.Module, arguments: Any, options: dict[str, Any]) -> None:
        if RECORDING.get() is recording:
            recording.enter(module, _tensor((*arguments, options.get("hidden_states"))))

    def leave(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if RECORDING.get() is recording:
            recording.leave(module, _tensor(output if isinstance(output, tuple) else (output,)))

    handles: list[Any] = []
    try:
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensor(values: tuple[Any, ...]) -> torch.Tensor | None:
    """Return the first of some values if it is a tensor of numbers; None may come before it."""
    for value in values:
        if value is not None:
            return value if torch.is_tensor(value) and value.is_floating_point() else None
    return None


def _matrix(module: torch.nn.Module) -> torch.Tensor:
    """Return what a linear layer multiplies with, of shape (inputs, outputs)."""
    weight: torch.Tensor = module.weight.detach()
    return weight if isinstance(module, Conv1D) else weight.T


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear | Conv1D)


def _are_weights(given: torch.Tensor) -> bool:
    """Whether a tensor is attention among the same positions; a row may be all zeros."""
    if given.ndim != 4 or given.shape[-1] != given.shape[-2] or bool((given < 0).any()):
        return False
    sums = given.double().sum(dim=-1)
    return bool((((sums - 1.0).abs() < BFLOAT16_ROW_TOLERANCE) | (sums == 0)).all())


def _values(
    weights: torch.Tensor, returned: torch.Tensor, product: torch.Tensor
) -> torch.Tensor | None:
    """Return what was returned as values of each head, if the weights times them is a product."""
    if returned.shape != product.shape or returned.shape[-1] % weights.shape[1]:
        return None
    values = returned.unflatten(-1, (weights.shape[1], -1)).transpose(1, 2)
    found = (weights.double() @ values.double()).transpose(1, 2).flatten(-2)
    # Rounded by another order of summing; another linear layer's output would be far off.
    limit = 64 * torch.finfo(product.dtype).eps * float(values.abs().max())
    return values if bool(((found - product).abs() <= limit).all()) else None


def _block(
    pending: _Pending,
    projection: torch.Tensor,
    residual: torch.Tensor,
    output: torch.Tensor,
    outer: Sequence[Norm],
) -> Block:
    """Return a layer whose projection and residual are known, without its biases."""
    weights, values = pending.weights, pending.values
    kind = torch.promote_types(weights.dtype, torch.float32)
    own = _value_bias(pending).to(kind)
    projection = projection.to(kind)
    bias = torch.einsum("bhn,hd,hdx->bnx", weights.to(kind).sum(dim=-1), own, projection)
    return Block(
        weights.to(kind),
        values.to(kind) - own[:, None],
        projection,
        residual.to(kind),
        bias if pending.bias is None else bias + pending.bias.to(kind),
        output.to(kind),
        pending.norms,
        outer,
    )


def _value_bias(pending: _Pending) -> torch.Tensor:
    """Return the bias in the values of each head, of shape (H, d).

    The values are among what a linear layer returned, alone or with queries and keys, in any order.
    If they are not, as where values are normalised, they have no bias that could be told apart.
    """
    values = pending.values
    flat = values.transpose(1, 2).flatten(-2)
    for module, _, returned in reversed(pending.before):
        if module.bias is None or returned.shape[:-1] != flat.shape[:-1]:
            continue
        # Where each number of the first position is, and then whether it is so in all of them.
        places = (returned[0, 0] == flat[0, 0, :, None]).int().argmax(dim=-1)
        if torch.equal(returned[..., places], flat):
            return module.bias.detach()[places].reshape(values.shape[1], -1)
    return torch.zeros_like(values[0, :, 0])


def _projects(module: torch.nn.Module, given: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether a module is a linear layer that is given what attention returned."""
    return (
        isinstance(module, torch.nn.Linear | Conv1D)
        and torch.is_tensor(module.weight)
        and module.weight.is_floating_point()
        and given.shape[-1] == output.shape[-1] * output.shape[-2]
        and given.numel() == output.numel()
        and torch.equal(given.reshape(-1), output.reshape(-1))
    )


def is_sum(total: torch.Tensor, *parts: torch.Tensor | None) -> bool:
    """Whether a tensor is the sum of others, as nearly as its type allows."""
    result = torch.zeros_like(total, dtype=torch.float64)
    size = torch.zeros_like(result)
    for part in parts:
        if part is None or part.shape != total.shape:
            return False
        result += part
        size += part.abs()
    # Each part may have been rounded once more on the way.
    limit = 4 * torch.finfo(total.dtype).eps * size
    return bool(((result - total).abs() <= limit).all())
