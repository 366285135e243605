"""Attention some rows at a time: no array of n x n, for any layer or head, at any time.

A pass over a long text keeps each layer's queries and keys, which grow with its length n. The
weights of a block of rows are computed from them when they are needed, and let go of: for the
layer's output, for rollout (`StreamedText.sweep`), and for the gradient of the values
(`attend_rows`).

Masks are not built either. `RowMask` stands for one, and computes the rows that are asked for. A
model that does something else with its mask gets the whole mask, as it would without attnflow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

from attnflow.cancel import check_limits
from attnflow.capture.interface import RECORDING, acting, own_attention
from attnflow.capture.nested import mapped
from attnflow.capture.recording import Recording, fuse_heads
from attnflow.checks import BFLOAT16_ROW_TOLERANCE, ROW_TOLERANCE
from attnflow.errors import AttentionError
from attnflow.streamed import Swept

# The name of the attention implementation, which says nothing that transformers gives a meaning to.
ROWS: Final = "attnflow_rows"

# The weights of a block take about this many bytes, which stay in a processor's cache.
BLOCK_BYTES: Final = 2**23
# A device of its own is kept busy by larger blocks.
DEVICE_BLOCK_BYTES: Final = 2**28


# ---- Masks ---------------------------------------------------------------------------------------


class RowMask(torch.Tensor):  # type: ignore[misc] # torch is not installed for mypy
    """A mask of shape (B, 1, n, m) of which only some rows exist at a time.

    It has a shape and a type, but no memory of its own.

    Attributes:
        plain: Whether every position attends to itself and to all before it, and to no other.
    """

    plain: bool
    _rows: Callable[[int, int], torch.Tensor]

    @classmethod
    def of(
        cls, rows: Callable[[int, int], torch.Tensor], plain: bool, like: torch.Tensor, count: int
    ) -> "RowMask":
        """Return a mask.

        Args:
            rows: Returns which positions some rows attend to, from the first of them to the last.
            plain: As the attribute.
            like: One row of the mask as transformers makes it, of shape (B, 1, 1, m).
            count: How many rows there are.
        """
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        mask: RowMask = zero.expand(*like.shape[:2], count, like.shape[-1]).as_subclass(cls)
        mask._rows, mask.plain = rows, plain
        return mask

    def allowed(self, start: int, end: int) -> torch.Tensor:
        """Return which positions some rows attend to, boolean of shape (B, 1, end - start, m)."""
        return self._rows(start, end)

    def item(self, row: int, count: int) -> "RowMask":
        """Return the mask of the first positions of one item of the batch."""
        one = slice(0, 1) if self.shape[0] == 1 else slice(row, row + 1)
        like = torch.zeros((1, self.shape[1], 1, count), dtype=self.dtype, device=self.device)

        def rows(start: int, end: int) -> torch.Tensor:
            return self._rows(start, end)[one, :, :, :count]

        return RowMask.of(rows, self.plain, like, count)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"RowMask(shape={tuple(self.shape)}, plain={self.plain})"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute with the whole mask, unless what is done leaves it as it is."""
        name, first, options = function.__name__, args[0] if args else None, kwargs or {}
        if name in _DESCRIBING:
            return super().__torch_function__(function, types, args, options)
        if name in _LEAVING and isinstance(first, cls):
            result = super().__torch_function__(function, types, args, options)
            index = args[1] if name == "__getitem__" else ()
            sliced = all(
                one is ... or isinstance(one, slice)
                for one in (index if isinstance(index, tuple) else (index,))
            )
            same = (result.shape, result.dtype, result.device) == (
                first.shape,
                first.dtype,
                first.device,
            )
            if sliced and same:
                return first

        def whole(value: Any) -> Any:
            if not isinstance(value, cls):
                return value
            return additive(value.allowed(0, value.shape[-2]), value.dtype)

        return function(*mapped(whole, args), **mapped(whole, options))


# Functions that tell what a mask is like, and those that may leave it as it is.
_DESCRIBING: Final = ("__get__", "size", "dim", "is_floating_point", "__len__", "numel")
_LEAVING: Final = ("__getitem__", "to", "detach")


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask to be added to scores: 0 where a position may be attended to."""
    low = torch.finfo(dtype).min
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=allowed.device), low)


def row_mask(**described: Any) -> torch.Tensor | None:
    """Return what stands for a mask that transformers describes; None where nothing is masked."""
    # Only whether there is a mask at all is told by its first row.
    first = eager_mask(**{**described, "q_length": 1})
    if first is None:
        return None
    given: torch.Tensor | None = described.get("attention_mask")
    count, offset = described["q_length"], described.get("q_offset", 0)
    shared = {
        name: described[name]
        for name in (
            "batch_size",
            "kv_length",
            "kv_offset",
            "mask_function",
            "attention_mask",
            "use_vmap",
            "device",
        )
        if name in described
    }

    def rows(start: int, end: int) -> torch.Tensor:
        found: torch.Tensor = sdpa_mask(
            **shared, q_length=end - start, q_offset=offset + start, allow_is_causal_skip=False
        )
        return found

    window = described.get("local_size")
    causal = described.get("mask_function", causal_mask_function) is causal_mask_function
    whole = window is not None and window >= count and described.get("allow_is_causal_skip", False)
    plain = (
        (causal or whole)
        and count == described["kv_length"]
        and not offset
        and not described.get("kv_offset", 0)
        and (given is None or bool(given.all()))
    )
    return RowMask.of(rows, plain, first, count)


# ---- One layer -----------------------------------------------------------------------------------


class Block(NamedTuple):
    """The weights of some rows of a layer.

    Attributes:
        start: The first row.
        low: The position of the first column. No row attends to any that is not given.
        weights: Of shape (B, H, rows, columns).
    """

    start: int
    low: int
    weights: torch.Tensor


@dataclass(eq=False)
class Layer:
    """What the weights of one layer's attention are computed from.

    Attributes:
        module: The attention layer.
        query: Of shape (B, H, n, d).
        key: Of shape (B, K, n, d), where K divides H.
        mask: A `RowMask`, a tensor to be added to the scores, or None.
        arguments: What else the layer passes to its attention function, by position.
        options: The same, by name.
        value: The values, of shape (B, K, n, d), where part of the attention goes to a learned
            sink, and how much is told by the output; else None.
        usual: Whether the weights are ``softmax(Q K^T * scaling + mask + position_bias)``. Anything
            else, such as soft caps, is computed by the model's own function.
    """

    module: Any
    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    value: torch.Tensor | None = None
    usual: bool = False

    @property
    def plain(self) -> bool:
        """Whether each position attends to itself and all before it."""
        return isinstance(self.mask, RowMask) and self.mask.plain

    def found_usual(self) -> "Layer":
        """Return the layer, marked as usual if its first and last rows are computed as such."""
        changed = any(self.options.get(name) is not None for name in ("softcap", "s_aux"))
        if changed or self.arguments:
            return self
        found, last = replace(self, usual=True), self.query.shape[-2] - 1
        for row in {0, last}:
            own, simple = self._block(row, row + 1), found._block(row, row + 1)
            if own.weights.shape != simple.weights.shape:
                return self
            # Most functions compute the softmax in float32, whatever the model computes in. A row
            # that attends to nothing may be NaN, and nobody reads it.
            kind = torch.promote_types(own.weights.dtype, torch.float32)
            eps = max(torch.finfo(own.weights.dtype).eps, torch.finfo(torch.float32).eps)
            off = (own.weights.to(kind) - simple.weights.to(kind)).abs().nan_to_num(0.0)
            if not bool((off <= 64 * eps).all()):
                return self
        return found

    def item(self, row: int, count: int) -> "Layer":
        """Return the layer as it is for the first positions of one item of the batch."""
        one = slice(row, row + 1)
        mask = self.mask
        if isinstance(mask, RowMask):
            mask = mask.item(row, count)
        return replace(
            self,
            query=self.query[one, :, :count],
            key=self.key[one, :, :count],
            mask=mask if isinstance(mask, RowMask) else _item_of(mask, row, count),
            options={name: _item_of(value, row, count) for name, value in self.options.items()},
            value=None if self.value is None else self.value[one, :, :count],
        )

    def output(self, value: torch.Tensor) -> torch.Tensor:
        """Return what the layer computes of its values, of shape (B, n, H, d)."""
        bias = self.options.get("position_bias") is not None
        simple = self.usual and not bias and (self.plain or self.mask is None)
        if simple and value.shape[-1] == self.query.shape[-1]:
            # The kernel of torch for such shapes never has the matrix, either.
            found = torch.nn.functional.scaled_dot_product_attention(
                self.query,
                self.key,
                value,
                is_causal=self.plain,
                scale=self.options.get("scaling"),
                enable_gqa=self.query.shape[1] != self.key.shape[1],
            )
            return found.transpose(1, 2)
        parts = [self._output(start, end, value) for start, end in self._ranges()]
        return torch.cat(parts, dim=1)

    def _output(self, start: int, end: int, value: torch.Tensor) -> torch.Tensor:
        check_limits()
        if not self.usual:
            return self._own(start, end, value)[0]
        block = self._block(start, end)
        values = value[:, :, block.low : block.low + block.weights.shape[-1]]
        joined = _joined(block.weights, values.shape[1]) @ values
        return _parted(joined, block.weights.shape[1]).transpose(1, 2)

    def gradient(self, output: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the values, the weights held, given that of the output.

        Args:
            output: The gradient of the output, of shape (B, n, H, d).
            value: The values, of shape (B, K, n, d).
        """
        found = torch.zeros_like(value)
        given = output.transpose(1, 2)
        for block in self.blocks():
            rows = given[:, :, block.start : block.start + block.weights.shape[-2]]
            weights = _joined(block.weights, value.shape[1])
            part = weights.transpose(-1, -2) @ _joined(rows, value.shape[1])
            found[:, :, block.low : block.low + block.weights.shape[-1]] += part
        return found

    def blocks(self) -> Iterator[Block]:
        """Yield the weights of all rows, some at a time."""
        for start, end in self._ranges():
            check_limits()
            yield self._block(start, end)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield which rows make a block."""
        count, heads = self.query.shape[-2], len(self.query) * self.query.shape[1]
        size = BLOCK_BYTES if self.query.device.type == "cpu" else DEVICE_BLOCK_BYTES
        step = max(1, size // (heads * self.key.shape[-2] * self.query.element_size()))
        for start in range(0, count, step):
            yield start, min(count, start + step)

    def _block(self, start: int, end: int) -> Block:
        if not self.usual:
            return Block(start, *self._own(start, end, self.value)[1:])
        low, high, allowed = self._columns(start, end)
        query, key = self.query[:, :, start:end], self.key[:, :, low:high]
        scaling = self.options.get("scaling")
        query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        # Heads that share their keys are computed together.
        joined = _joined(query, key.shape[1]) @ key.transpose(-1, -2)
        scores = _parted(joined, query.shape[1])
        lowest = torch.finfo(scores.dtype).min
        if self.plain:
            corner = scores[..., start:]
            later = torch.ones(corner.shape[-2:], dtype=torch.bool, device=corner.device).triu(1)
            corner.masked_fill_(later, lowest)
        elif allowed is not None:
            scores.masked_fill_(~allowed, lowest)
        elif self.mask is not None and self.mask.dtype == torch.bool:
            scores.masked_fill_(~_rows_of(self.mask, start, end), lowest)
        elif self.mask is not None:
            scores += _rows_of(self.mask, start, end)
        bias = self.options.get("position_bias")
        if bias is not None:
            scores += _rows_of(bias, start, end)[..., low:high]
        exact = torch.promote_types(scores.dtype, torch.float32)
        return Block(start, low, torch.softmax(scores, -1, dtype=exact).to(scores.dtype))

    def _columns(self, start: int, end: int) -> tuple[int, int, torch.Tensor | None]:
        """Return the columns that some rows attend to, and which of them each row does."""
        mask, high = self.mask, self.key.shape[-2]
        if not isinstance(mask, RowMask):
            return 0, high, None
        if mask.plain:
            return 0, end, None
        allowed = mask.allowed(start, end)
        columns = allowed.flatten(0, 2).any(0).nonzero()
        if len(columns):
            low, high = int(columns[0]), int(columns[-1]) + 1
            return low, high, allowed[..., low:high]
        return 0, high, allowed

    def _own(
        self, start: int, end: int, value: torch.Tensor | None
    ) -> tuple[torch.Tensor, int, torch.Tensor]:
        """Return the output of some rows, the first column and the weights, by the model's code."""
        low, high, allowed = 0, self.key.shape[-2], None
        mask = self.mask
        # A bias or another argument may be there for all columns.
        whole = any(torch.is_tensor(one) and one.ndim > 2 for one in self.options.values())
        if isinstance(mask, RowMask):
            if not whole:
                low, high, allowed = self._columns(start, end)
            if allowed is None:
                allowed = mask.allowed(start, end)[..., low:high]
            mask = additive(allowed, mask.dtype)
        else:
            mask = _rows_of(mask, start, end)
        query, key = self.query[:, :, start:end], self.key[:, :, low:high]
        # Where only the weights are wanted, one number for each position is enough.
        given = key[..., :1] if value is None else value[:, :, low:high]
        options = {name: _rows_of(one, start, end) for name, one in self.options.items()}
        attend = own_attention(self.module)
        output, weights = attend(self.module, query, key, given, mask, *self.arguments, **options)
        if self.value is not None:
            weights = acting(self.module, weights, given, output)
        return output, low, weights


def _joined(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """Join the rows of heads that share their keys: (B, H, r, x) to (B, K, H / K * r, x)."""
    return rows.unflatten(1, (groups, -1)).flatten(2, 3)


def _parted(joined: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo `_joined`."""
    return joined.unflatten(2, (heads // joined.shape[1], -1)).flatten(1, 2)


def _rows_of(value: Any, start: int, end: int) -> Any:
    """Return some rows of what has one for each position; anything else as it is."""
    if torch.is_tensor(value) and value.ndim > 2 and value.shape[-2] > 1:
        return value[..., start:end, :]
    return value


def _item_of(value: Any, row: int, count: int) -> Any:
    """Return the part of one item of a batch, of a tensor that has one for each pair."""
    if torch.is_tensor(value) and value.ndim == 4:
        found = value[row : row + 1] if len(value) > 1 else value
        return found[..., : count if found.shape[-2] > 1 else 1, :count]
    return value


# ---- The attention function ----------------------------------------------------------------------


class _Attend(torch.autograd.Function):  # type: ignore[misc]
    """A layer's output, whose gradient by the values needs no matrix either."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, layer: Layer) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(value)
        return layer.output(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (value,) = ctx.saved_tensors
        return ctx.layer.gradient(gradient, value), None


@dataclass(eq=False)
class RowRecording(Recording):
    """Takes the queries and keys of each layer.

    Args:
        keep: Whether they are kept; contributions only need the layers computed by rows.

    Attributes:
        taken: What each layer's attention is computed from.
    """

    keep: bool = True
    taken: list[Layer] = field(default_factory=list)

    def take_layer(self, layer: Layer) -> None:
        """Take the next layer.

        Raises:
            AttentionError: If it is not attention among all the tokens.
        """
        if self.keep:
            shape = (*layer.query.shape[:3], layer.key.shape[2])
            self._check_shape(shape, len(self.taken) + 1)
            self.taken.append(layer)


def attend_rows(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *arguments: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute one layer's attention some rows at a time, with the weights held at their values.

    Args:
        module: The attention layer.
        query: Of shape (B, H, n, d).
        key: Of shape (B, K, m, d), where K divides H.
        value: Of shape (B, K, m, d).
        attention_mask: A `RowMask`, what to add to the scores, or None.
        arguments: Passed on to the model's own attention function.
        options: Passed on to the model's own attention function.

    Returns:
        The output of shape (B, n, H, d), and None.
    """
    recording = RECORDING.get()
    if not isinstance(recording, RowRecording):
        # Another thread runs the model, and may want its gradients.
        attend = own_attention(module)
        return attend(module, query, key, value, attention_mask, *arguments, **options)[0], None
    sunk = options.get("s_aux") is not None
    layer = Layer(
        module,
        _alone(query.detach()),
        _alone(key.detach()),
        attention_mask,
        arguments,
        {name: one.detach() if torch.is_tensor(one) else one for name, one in options.items()},
        value.detach() if sunk else None,
    )
    with torch.no_grad():
        layer = layer.found_usual()
    recording.take_layer(layer)
    output: torch.Tensor = _Attend.apply(value, layer)
    return output, None


def _alone(values: torch.Tensor) -> torch.Tensor:
    """Return values whose memory holds nothing else, as where query, key and value are one."""
    held = values.untyped_storage().nbytes()
    return values if held <= values.nbytes else values.clone()


AttentionInterface.register(ROWS, attend_rows)
AttentionMaskInterface.register(ROWS, row_mask)


# ---- Down the layers -----------------------------------------------------------------------------


class Rows(NamedTuple):
    """The queries and keys of a forward pass, and how heads are fused.

    Attributes:
        layers: What each layer's attention is computed from, lowest first.
        heads: How heads become one: as in `attnflow.capture.capture`.
    """

    layers: list[Layer]
    heads: str | int

    @property
    def sink(self) -> bool:
        """Whether a layer has a learned sink."""
        return any(layer.value is not None for layer in self.layers)

    def text(self, row: int, count: int, residual: float) -> "StreamedText":
        """Return the attention of one item.

        Args:
            row: Which item of the batch.
            count: How many positions it has, without padding or a learned sink.
            residual: The residual share.
        """
        layers = [layer.item(row, count) for layer in self.layers]
        return StreamedText(layers, self.heads, residual, self.sink)


class StreamedText:
    """One text's attention, computed again for every pass: an `attnflow.streamed.Streamed`.

    Args:
        layers: What each layer's attention is computed from, for this text alone.
        heads: How heads become one.
        residual: The residual share.
        sink: Whether some layers have a learned sink.
    """

    def __init__(
        self, layers: Sequence[Layer], heads: str | int, residual: float, sink: bool
    ) -> None:
        self._layers: Final = layers
        self._heads: Final = heads
        self.residual: Final = residual
        self.sink: Final = sink
        self.layers: Final = len(layers)
        self.tokens: Final = layers[0].query.shape[-2] + sink

    @cached_property
    def causal(self) -> bool:
        """Whether no position attends to a later one, in any layer; as the masks say."""
        masks = {id(layer.mask): layer for layer in self._layers}
        with torch.no_grad():
            return self.tokens > 1 + self.sink and all(map(_is_causal, masks.values()))

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not installed for mypy
    def sweep(self, weights: NDArray[np.float64], seen: NDArray[np.int64]) -> Swept:
        """Go once through the layers, from the top down; see `Streamed.sweep`."""
        device = self._layers[0].query.device
        # Some devices have no float64.
        kind = torch.float32 if device.type == "mps" else torch.float64
        count, (means, size) = self.layers, weights.shape
        base = torch.as_tensor(weights, dtype=kind, device=device)
        limits = torch.as_tensor(seen, device=device)[:, None]
        counted = (torch.arange(size, device=device) < limits).to(kind)
        raw, rollout = (base.new_zeros((count, means, size)) for _ in range(2))
        received = base.new_zeros((means, size))
        mask = torch.zeros((count, 2 * size - 1), dtype=torch.bool, device=device)
        sunk = np.zeros(count, dtype=np.bool_)
        for number in reversed(range(count)):
            given = torch.cat([base, counted, rollout[number + 1 :].flatten(0, 1)])
            passed = _Passed(self._layers[number], number, given, self.sink, self._heads)
            product = passed.product
            raw[number] = product[:means]
            received += product[means : 2 * means] - counted * passed.own
            rollout[number] = base
            rollout[number:] *= self.residual
            rollout[number] += (1.0 - self.residual) * product[:means]
            above = product[2 * means :].reshape(-1, means, size)
            rollout[number + 1 :] += (1.0 - self.residual) * above
            mask[number] = passed.offsets
            sunk[number] = passed.sunk
        return Swept(
            raw.double().cpu().numpy(),
            rollout.double().cpu().numpy(),
            received.double().cpu().numpy(),
            mask.cpu().numpy(),
            sunk if self.sink else None,
        )


class _Passed:
    """What one layer passes on of some rows.

    Args:
        layer: The layer.
        number: Its number, from 0, for errors.
        given: The rows, of shape (R, n).
        sink: Whether position 0 is a learned sink.
        heads: How heads become one.

    Attributes:
        product: The rows times the layer's attention, of shape (R, n).
        own: How much each position attends to itself, of shape (n,).
        offsets: Which offsets are attended over, of shape (2 n - 1,).
        sunk: Whether any position attends to the sink.
    """

    def __init__(
        self, layer: Layer, number: int, given: torch.Tensor, sink: bool, heads: str | int
    ) -> None:
        first, size = int(sink), given.shape[-1]
        self.product = torch.zeros_like(given)
        self.own = given.new_zeros(size)
        self.offsets = torch.zeros(2 * size - 1, dtype=torch.bool, device=given.device)
        self.sunk = False
        for block in layer.blocks():
            weights, lost = block.weights, None
            if layer.value is not None:
                exact = torch.promote_types(weights.dtype, torch.float32)
                weights = weights.to(exact)
                missing = (1.0 - weights.sum(-1, keepdim=True)).clamp(min=0.0)
                weights = torch.cat([missing, weights], dim=-1)
            rows = fuse_heads(weights, heads, number + 1)[0].to(given.dtype)
            rows = rows / _sums(rows, number, weights.dtype)
            if layer.value is not None:
                lost, rows = rows[:, 0], rows[:, 1:]
            start, low = block.start + first, block.low + first
            end, high = start + rows.shape[0], low + rows.shape[1]
            mine = given[:, start:end]
            self.product[:, low:high] += mine @ rows
            if lost is not None:
                self.product[:, 0] += mine @ lost
                self.sunk = self.sunk or bool(lost.any())
            own = rows.diagonal(start - low)
            place = max(start, low)
            self.own[place : place + len(own)] = own
            found = _offsets(rows != 0)
            begin = low - end + size
            self.offsets[begin : begin + len(found)] |= found
        if first:
            # The sink attends to itself alone.
            self.product[:, 0] += given[:, 0]
            self.own[0] = 1.0


def _sums(rows: torch.Tensor, number: int, kind: torch.dtype) -> torch.Tensor:
    """Return the sums of rows, which are about 1."""
    sums = rows.sum(-1, keepdim=True)
    tolerance = BFLOAT16_ROW_TOLERANCE if kind == torch.bfloat16 else ROW_TOLERANCE
    if not bool(((sums - 1.0).abs() <= tolerance).all() & (rows >= 0).all()):
        raise AttentionError(
            f"layer {number + 1} has rows of attention that are not shares of 1: their sums are "
            f"from {float(sums.min()):.3g} to {float(sums.max()):.3g}"
        )
    return sums


def _offsets(attended: torch.Tensor) -> torch.Tensor:
    """Return over which diagonals of an (r, m) mask any row attends, from the lowest left one.

    Rows are written upside down, each one place longer than it is read, so that a diagonal becomes
    a column.
    """
    rows, columns = attended.shape
    wide = torch.zeros((rows, columns + rows), dtype=torch.bool, device=attended.device)
    wide[:, :columns] = attended.flip(0)
    width = columns + rows - 1
    return wide.flatten()[: rows * width].unflatten(0, (rows, width)).any(0)


def _is_causal(layer: Layer) -> bool:
    """Whether the mask of a layer lets no position attend to a later one."""
    if layer.plain:
        return True
    if layer.mask is None and layer.usual:
        return False
    for start, end in layer._ranges():
        if isinstance(layer.mask, RowMask):
            attended, low = layer.mask.allowed(start, end)[0, 0], 0
        else:
            block = layer._block(start, end)
            attended, low = (block.weights != 0).flatten(0, 1).any(0), block.low
        if bool(attended.triu(start - low + 1).any()):
            return False
    return True
