"""Contributions: what each position adds to an answer, from one forward and one backward pass.

The forward pass is the model's own, with everything that multiplies held at its value: attention
weights, the denominators of norms, the slope ``f(z) / z`` of every activation, and half of each
factor where two activations are multiplied. Every bias is multiplied by a number s = 1. The answer
y is then linear in the embeddings x and in s together. By Euler's theorem

    y = sum over positions t of x_t . dy/dx_t  +  s dy/ds

exactly. The first part are the contributions, the second is what biases add. Both come from
gradients, and neither as a remainder: a function that has no rule here makes the sum wrong, which
is checked every time. This is the decomposition of DecompX (Modarressi et al., ACL 2023) without
its shares of the biases; freezing attention and norms is also in Ali et al. (ICML 2022).

The rules are applied by a `TorchFunctionMode`, which sees every function of torch that the model
calls. No module is changed; hooks are there for the time of the call.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from attnflow.cancel import check_limits
from attnflow.capture.borrow import USUAL, borrowed, implementations_of
from attnflow.capture.forward import (
    check_score,
    detached,
    input_size,
    ordinary,
)
from attnflow.capture.head import watched_head
from attnflow.capture.interface import NAME, recording_into
from attnflow.capture.mixers import check_mixers
from attnflow.capture.nested import mapped, parts
from attnflow.capture.recording import fuse_heads, level, with_sink
from attnflow.capture.rows import ROWS, RowRecording
from attnflow.capture.rules import RULES, carries, constant, sloped
from attnflow.capture.running import forward, forward_options, stacks, takes_part
from attnflow.errors import AttentionError


class Contributions(NamedTuple):
    """What a batch of B answers came from.

    All tensors are float64, on the CPU and detached.

    Attributes:
        values: The answers y, of shape (B,).
        scores: For each stack of layers, in the order in which they run, the contribution of every
            position, of shape (B, n): the only stack, or the encoder and the decoder.
        biases: What biases add to each answer, of shape (B,).
        errors: ``|sum of scores + bias - y|`` over the sum of the absolute scores, of shape (B,).
        without_rule: The names of the functions that made the sum wrong. They are looked for where
            there is one item, and its error is larger than `limit`.
        limit: The largest error that rounding explains in the model's data type.
        outputs: What the model returned.
        steps: Every attention of the pass, in the order in which they ran, if asked for.
        reads: How much of what the head reads is at each position, of shape (B, n), as in
            `attnflow.capture.Captured`; None if that cannot be told.
    """

    values: torch.Tensor
    scores: tuple[torch.Tensor, ...]
    biases: torch.Tensor
    errors: torch.Tensor
    without_rule: tuple[str, ...]
    limit: float
    outputs: Any
    steps: tuple["Step", ...] = ()
    reads: torch.Tensor | None = None

    @property
    def wrong(self) -> bool:
        """Whether the parts of an answer do not add up.

        In a batch it may be that only the biases went to the wrong item, where layers mix the
        positions of all items, as experts do. Each item alone shows that.
        """
        return bool((self.errors > self.limit).any())


class Step(NamedTuple):
    """What one attention carried to a batch of B answers, float64 and on the CPU.

    Attributes:
        stack: The stack of layers that it is in, counted from 0.
        layer: The layer in its stack, counted from 0.
        cross: Whether it reads another stack's output.
        edges: Of shape (B, n, m): the part of the answer that position i got from position j
            through this attention. What the biases below the values add is not part of it.
        heads: Of shape (B, H): the part of the answer that each head brought, the sum of its edges.
        entering: Of shape (B, n): the contribution of every position to the answer where it enters
            the layer.
        weights: The attention weights, their heads fused, of shape (B, n, m), or (B, H, n, m) if
            the heads were kept; float64 if the model computes in float64, float32 otherwise.
        sink: Whether the weights have a learned sink before the first position, as in `Captured`.
    """

    stack: int
    layer: int
    cross: bool
    edges: torch.Tensor
    heads: torch.Tensor
    entering: torch.Tensor
    weights: torch.Tensor
    sink: bool = False


def contribute(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    score: Callable[[Any], torch.Tensor],
    *,
    steps: bool = False,
    heads: str | int | None = "mean",
    apart: torch.nn.Module | None = None,
    through: torch.Tensor | None = None,
    again: bool = False,
) -> Contributions:
    """Run a model once forward and once backward, and return what its answers came from.

    The model runs in eval mode and without a cache. It is left as it was found, also after an
    exception: train or eval mode, hooks, gradients and gradient flags.

    Args:
        model: A model of transformers, or a module around one.
        inputs: What the model takes, on its device, such as ``input_ids`` of shape (B, n) and
            ``attention_mask``.
        score: A function from the model's outputs to one number for each item, of shape (B,): a
            logit, or a difference or sum of logits. It has to be linear in the logits.
        steps: Whether to return what each attention carried, too. The attention weights of all
            layers are held then.
        heads: How heads become one in the weights of the steps, as in `attnflow.capture.capture`.
        apart: A part of the model whose attention is not among the steps: the vision tower of a
            model that reads an image with a text.
        through: Of shape (B, n): the positions whose embeddings another stack has computed, such as
            those of an image. The answer is followed through them to the positions of that stack,
            and their own score is 0. None follows no answer from stack to stack, unless the second
            attends to the first.
        again: Whether each layer is computed again in the backward pass, from what entered it, and
            attention some rows at a time. Memory then grows by what enters the layers, and the time
            by a forward pass. Not with `steps`.

    Returns:
        The contributions of every position.

    Raises:
        AttentionError: If no stack of attention layers is found in the model, or `steps` are asked
            for and its layers do not call the attention interface of transformers, or mix positions
            by something else, too.
        OptionError: If `score` does not return one number for each item.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> model = BertForSequenceClassification(BertConfig(
        ...     vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        ...     intermediate_size=16,
        ... ))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> found = contribute(model, {"input_ids": ids}, lambda outputs: outputs.logits[:, 1])
        >>> (scores,) = found.scores
        >>> scores.shape
        torch.Size([1, 3])
        >>> bool((scores.sum(1) + found.biases - found.values).abs() < 1e-6)
        True
    """
    size = input_size(inputs)
    if steps:
        check_mixers(model, inputs)
    # Kernels of their own, as flash attention, cannot be held at their values.
    usual = implementations_of(model) <= set(USUAL)
    implementation = NAME if steps else None if usual else "sdpa"
    if again and takes_part(model):
        implementation = ROWS
    with torch.inference_mode(False), torch.enable_grad(), borrowed(model, implementation, apart):
        given = {**ordinary(inputs), **forward_options(model, output_attentions=False)}
        found = _contribute(model, given, score, size.items, steps, heads, through, again)
        # Functions are tested one by one with all that they leave in memory.
        if size.items > 1 or not found.wrong or again:
            return found
        with _Diagnosis(1, _device(model), through) as diagnosis, _hooked(model, diagnosis):
            score(forward(model, given))
    return found._replace(without_rule=tuple(diagnosis.found))


def _contribute(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    score: Callable[[Any], torch.Tensor],
    items: int,
    steps: bool,
    heads: str | int | None,
    through: torch.Tensor | None,
    again: bool,
) -> Contributions:
    if not stacks(model):
        raise AttentionError(
            f"{type(model).__name__} has no list of attention layers, so the embeddings that enter "
            "the first of them cannot be found; use method='rollout'"
        )
    frozen = _Frozen(items, _device(model), through, again)
    recording = _Steps(frozen, heads)
    with (
        recording_into(recording if steps else frozen.rows),
        _hooked(model, frozen),
        watched_head(model, only_head=False) as head,
    ):
        with frozen:
            outputs = forward(model, inputs)
            found = score(outputs)
        if torch.is_tensor(found) and not found.requires_grad:
            raise AttentionError(
                f"{type(model).__name__} computes its answer without gradients, as "
                "torch.no_grad() and reversible layers do, and contributions need them; try "
                "method='rollout'"
            )
        answers = check_score(found, items)
        if steps and not recording.taken:
            raise AttentionError(
                f"the attention of {type(model).__name__} cannot be followed from layer to layer: "
                "none of its layers calls the attention interface of transformers"
            )
        recording.check_layers(type(model).__name__)
        embeddings = list(frozen.entries.values())
        # Inside a mode of its own, what was seen of the head may not be part of the graph.
        read = [values for values in head.wanted if values.requires_grad]
        wanted = [*embeddings, frozen.scale]
        every = torch.autograd.grad(
            answers.sum(),
            [*wanted, *recording.wanted, *read],
            allow_unused=True,
            materialize_grads=True,
            retain_graph=steps,
        )
    gradients = every[: len(every) - len(read)]
    tokens = input_size(inputs).tokens
    scores = tuple(
        _dot(x, gradient, tokens).reshape(items, -1)
        for x, gradient in zip(embeddings, gradients, strict=False)
    )
    values, biases = answers.detach().double().cpu(), gradients[len(embeddings)].double().cpu()
    mass = sum(part.abs().sum(1) for part in scores)
    total = sum(part.sum(1) for part in scores)
    errors = (total + biases - values).abs() / torch.clamp(mass, min=torch.finfo(torch.double).tiny)
    # Rounding errors of a type grow with the number of layers that they pass through.
    limit = max(1e-4, 8 * torch.finfo(embeddings[0].dtype).eps)
    carried = recording.carried(gradients[len(wanted) :], tokens)
    reads = head.weights(list(every[len(gradients) :]), items)
    return Contributions(
        values, scores, biases, errors, (), limit, detached(outputs), carried, reads
    )


def _dot(x: torch.Tensor, gradient: torch.Tensor, tokens: int | None) -> torch.Tensor:
    """Return what each position contributes; a position of a text may have several streams."""
    product = (x.detach().double() * gradient.double()).sum(-1).cpu()
    streams = product.ndim > 2 and product.shape[1] == tokens
    return product.flatten(2).sum(-1) if streams else product


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


# ---- Where the embeddings enter ------------------------------------------------------------------

# Modules that apply a function to each number by itself. Some compute it from functions that have
# rules of their own, which would give another slope.
_ACTIVATION: Final = re.compile("gelu|silu|swish|mish|relu|tanh|activation", re.IGNORECASE)

# The pass under way. Another thread may run the model meanwhile, without its rules.
_PASS: Final[ContextVar["_Frozen | None"]] = ContextVar("attnflow_frozen", default=None)


@contextmanager
def _hooked(model: torch.nn.Module, frozen: "_Frozen") -> Iterator[None]:
    """Take the embeddings and the activations of a forward pass; no hook is left afterwards."""

    def enter(name: str, layer: Any, arguments: Any, options: dict[str, Any]) -> Any:
        if _PASS.get() is not frozen:
            return None
        if arguments:
            entry = frozen.enter(name, arguments[0], (*arguments[1:], *options.values()))
            arguments = (entry, *arguments[1:])
        else:
            entry = frozen.enter(name, options["hidden_states"], options.values())
            options = {**options, "hidden_states": entry}
        return frozen.begin(layer, arguments, options) if frozen.again else (arguments, options)

    def leave(layer: Any, arguments: Any, output: Any) -> Any:
        return frozen.finish(output) if _PASS.get() is frozen else None

    def before(module: torch.nn.Module, arguments: Any) -> Any:
        if _PASS.get() is not frozen or not arguments or not carries(arguments[0]):
            return None
        frozen.activated.append(arguments[0])
        return (arguments[0].detach(), *arguments[1:])

    def after(module: torch.nn.Module, arguments: Any, output: torch.Tensor) -> Any:
        if _PASS.get() is not frozen or not frozen.activated:
            return None
        return sloped(frozen.activated.pop(), output)

    handles: list[Any] = []
    token = _PASS.set(frozen)
    try:
        for name, layers in stacks(model):
            for layer in layers:
                hook = partial(enter, name)
                handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
                if frozen.again:
                    handles.append(layer.register_forward_hook(leave))
        for module in model.modules():
            if _is_activation(module):
                handles.append(module.register_forward_pre_hook(before))
                handles.append(module.register_forward_hook(after))
        yield
    finally:
        _PASS.reset(token)
        for handle in handles:
            handle.remove()


def _is_activation(module: torch.nn.Module) -> bool:
    return (
        _ACTIVATION.search(type(module).__name__) is not None
        and next(module.children(), None) is None
        and next(module.parameters(), None) is None
    )


# ---- The frozen forward pass ---------------------------------------------------------------------


class _Frozen(TorchFunctionMode):  # type: ignore[misc]
    """Applies `RULES` to every function that a model calls.

    Args:
        items: How many items are in the batch.
        device: Where the model is.
        through: The positions whose embeddings another stack has computed, as in `contribute`.
        again: Whether layers are computed again in the backward pass, as in `contribute`.

    Attributes:
        scale: What every bias is multiplied by: ones of shape (B,), whose gradient is what biases
            add to each item's answer.
        entries: The embeddings as they enter the first layer of each stack, by its name.
        layers: What entered each layer so far.
        activated: The inputs of activation modules that are running.
        rows: What attention by rows is recorded into; None if layers are kept.
    """

    def __init__(
        self,
        items: int,
        device: torch.device,
        through: torch.Tensor | None = None,
        again: bool = False,
    ) -> None:
        super().__init__()
        self.through: Final = through
        self.again: Final = again
        self.rows: Final = RowRecording("", items, None, "mean", keep=False) if again else None
        self.scale = torch.ones(items, device=device, requires_grad=True)
        self._running: list[_Run] = []
        self.entries: Final[dict[str, torch.Tensor]] = {}
        self.layers: Final[list[_Entered]] = []
        self.activated: Final[list[torch.Tensor]] = []

    def enter(self, name: str, values: torch.Tensor, others: Iterable[Any]) -> torch.Tensor:
        """Note what enters a layer of a stack, and return what the layer goes on with."""
        if name not in self.entries:
            self.entries[name] = values.detach().requires_grad_()
            entry = self.entries[name]
            if self.through is not None and carries(values):
                values = torch.where(self.through[..., None], values, entry)
            else:
                # The layers may change it in place, which a leaf does not allow.
                values = entry.clone()
        # A decoder's layers are also given what the encoder returned, by whatever name.
        encoded = (other for other in others if carries(other) and other.ndim == values.ndim)
        other = next((other for other in encoded if other is not values), None)
        if not self.again:
            self.layers.append(_Entered(name, values, other))
        return values

    def begin(
        self, layer: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note what a layer is given, and turn gradients off until it is done."""
        self._running.append(_Run(layer, (arguments, options)))
        torch.set_grad_enabled(False)
        # The layer may change it in place.
        changed: tuple[tuple[Any, ...], dict[str, Any]] = mapped(
            lambda value: value.clone() if carries(value) else value, (arguments, options)
        )
        return changed

    def finish(self, output: Any) -> Any:
        """Return a layer's output, whose gradients come from computing the layer again."""
        torch.set_grad_enabled(True)
        run = self._running.pop()
        values = [value for value in parts(output) if _is_real(value)]
        given = [value for value in parts(run.given) if carries(value)]
        found = iter(_Again.apply(self, run, values, self.scale, *given))
        return mapped(lambda value: next(found) if _is_real(value) else value, output)

    @contextmanager
    def repeated(self, scale: torch.Tensor) -> Iterator[None]:
        """Compute in a block as in the forward pass, in whatever thread this is."""
        before, self.scale = self.scale, scale
        token = _PASS.set(self)
        try:
            with recording_into(self.rows), torch.enable_grad(), self:
                yield
        finally:
            _PASS.reset(token)
            self.scale = before

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        arguments = [constant(argument) for argument in args]
        options = {name: constant(value) for name, value in (kwargs or {}).items()}
        rule = RULES.get(function.__name__) if torch.is_grad_enabled() else None
        if rule is None:
            return function(*arguments, **options)
        return rule(self, function, *arguments, **options)

    def add_bias(self, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Add a bias, multiplied by the scale of each item."""
        if bias is None or values.numel() == 0:
            return values
        added: torch.Tensor = _AddBias.apply(values, bias, self.scale)
        return added


class _Entered(NamedTuple):
    """What entered a layer: its stack, the values of its positions, and another stack's output."""

    stack: str
    values: torch.Tensor
    other: torch.Tensor | None


class _Run(NamedTuple):
    """A layer, and the arguments and options that it was given."""

    layer: torch.nn.Module
    given: tuple[tuple[Any, ...], dict[str, Any]]


class _Again(torch.autograd.Function):  # type: ignore[misc]
    """A layer's output, computed before; its gradient computes the layer again, with the rules."""

    @staticmethod
    def forward(
        ctx: Any,
        frozen: _Frozen,
        run: _Run,
        output: list[torch.Tensor],
        scale: torch.Tensor,
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.frozen, ctx.run, ctx.scale = frozen, run, scale
        return tuple(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        check_limits()
        frozen, (layer, given), scale = ctx.frozen, ctx.run, ctx.scale
        ctx.run = None  # what entered the layer is not needed any more
        leaves: list[torch.Tensor] = []

        def leaf(value: Any) -> Any:
            if not carries(value):
                return value
            leaves.append(value.detach().requires_grad_())
            # The layer may change it in place, which a leaf does not allow.
            return leaves[-1].clone()

        own = scale.detach().requires_grad_()
        with frozen.repeated(own):
            arguments, options = mapped(leaf, given)
            # Not by a call of the layer, whose hooks have run before.
            output = [x for x in parts(layer.forward(*arguments, **options)) if _is_real(x)]
        pairs = [
            (value, gradient)
            for value, gradient in zip(output, gradients, strict=True)
            if value.requires_grad
        ]
        found = torch.autograd.grad(
            [value for value, _ in pairs],
            [own, *leaves],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        return None, None, None, *found


def _is_real(value: Any) -> bool:
    return bool(torch.is_tensor(value) and value.is_floating_point())


class _AddBias(torch.autograd.Function):  # type: ignore[misc]
    """``values + bias * scale``, where every scale is 1."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(bias)
        ctx.items = len(scale)
        return values + bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (bias,) = ctx.saved_tensors
        part = gradient.to(torch.promote_types(gradient.dtype, torch.float32)) * bias
        if gradient.shape[0] % ctx.items:
            # The items cannot be told apart; `Contributions.wrong` says so.
            return gradient, None, part.sum().expand(ctx.items)
        return gradient, None, part.reshape(ctx.items, -1).sum(1)


class _Steps:
    """Records every attention of a frozen pass, and computes what it carried.

    Args:
        frozen: The pass.
        heads: How heads become one, as in `contribute`.
    """

    gradients = False

    def __init__(self, frozen: _Frozen, heads: str | int | None) -> None:
        self.taken: Final[list[_Taken]] = []
        self._frozen = frozen
        self._heads = heads
        self._sunk: set[int] = set()

    def sink(self) -> None:
        """Note that the next attention gives a part to a learned sink."""
        self._sunk.add(len(self.taken))

    def take(
        self, module: Any, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor
    ) -> None:
        """Take what an attention layer has computed."""
        self.taken.append(_Taken(len(self._frozen.layers) - 1, weights.detach(), values, output))

    def check_layers(self, model: str) -> None:
        """Check that no layer attends more often than to its own positions and to others'.

        Raises:
            AttentionError: If one does, as for a difference of two attentions.
        """
        times = Counter(taken.entry for taken in self.taken)
        most = len(self._frozen.entries)
        if any(count > most for count in times.values()):
            raise AttentionError(
                f"a layer of {model} computes attention {max(times.values())} times, so it cannot "
                "be followed from layer to layer"
            )

    @property
    def wanted(self) -> list[torch.Tensor]:
        """What gradients are needed of: outputs of attention, then what entered the layers."""
        if not self.taken:
            return []
        outputs = [taken.output for taken in self.taken]
        return [*outputs, *(entered.values for entered in self._frozen.layers)]

    def carried(self, gradients: Sequence[torch.Tensor], tokens: int | None) -> tuple[Step, ...]:
        """Return the steps, given the gradients of `wanted` and how many tokens a text has."""
        if not self.taken:
            return ()
        names = list(self._frozen.entries)
        layers = self._frozen.layers
        found = []
        fused = [
            fuse_heads(
                with_sink(taken.weights) if number in self._sunk else taken.weights,
                self._heads,
                number + 1,
            ).cpu()
            for number, taken in enumerate(self.taken)
        ]
        rows = iter(level(fused, self._sunk))
        for taken, gradient in zip(self.taken, gradients, strict=False):
            entered = layers[taken.entry]
            below = layers[: taken.entry]
            # The values come from the positions of this stack, or from another stack's output.
            values = _linear_part(taken.values, entered.values)
            cross = values is None
            if values is None:
                values = _linear_part(taken.values, entered.other)
            edges, by_head = _carry(taken.weights, values, gradient)
            found.append(
                Step(
                    stack=names.index(entered.stack),
                    layer=sum(other.stack == entered.stack for other in below),
                    cross=cross,
                    edges=edges,
                    heads=by_head,
                    entering=_dot(entered.values, gradients[len(self.taken) + taken.entry], tokens),
                    weights=next(rows),
                    sink=bool(self._sunk),
                )
            )
        return tuple(found)


class _Taken(NamedTuple):
    entry: int
    weights: torch.Tensor
    values: torch.Tensor
    output: torch.Tensor


def _linear_part(values: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor | None:
    """Return the part of values that comes from x and not from biases; None if none does.

    The values are J x + b in the frozen pass. J x is the gradient of J^T u by u, times x.
    """
    if x is None:
        return None
    u = torch.zeros_like(values, requires_grad=True)
    (product,) = torch.autograd.grad(
        values, x, u, create_graph=True, retain_graph=True, allow_unused=True
    )
    if product is None:
        return None
    (part,) = torch.autograd.grad(product, u, x.detach())
    return part


def _carry(
    weights: torch.Tensor, values: torch.Tensor | None, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sums of ``W[h, i, j] (gradient[h, i] . v[h, j])``.

    The first is over heads, of shape (B, n, m), the second over positions, of shape (B, H).
    """
    if values is None:
        # Constants, as a learnt prefix: nothing of them comes from a position.
        nothing = torch.zeros_like(weights, dtype=torch.double, device="cpu")
        return nothing[:, 0], nothing.sum((2, 3))
    values = values.detach().repeat_interleave(weights.shape[1] // values.shape[1], dim=1)
    gains = gradient.transpose(1, 2) @ values.transpose(-1, -2)
    parts = weights * gains
    return parts.sum(1).double().cpu(), parts.sum((2, 3)).double().cpu()


class _Diagnosis(_Frozen):
    """Finds the functions that are not linear although they have no rule.

    Each call is made once more on copies, and compared with what its gradient says.

    Attributes:
        found: The names of the functions.
    """

    def __init__(self, items: int, device: torch.device, through: torch.Tensor | None) -> None:
        super().__init__(items, device, through)
        self.found: Final[dict[str, None]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        copies: list[torch.Tensor] = []

        def copied(value: Any) -> Any:
            if type(value) in (list, tuple):
                return type(value)(copied(item) for item in value)
            if not carries(value) or isinstance(value, torch.nn.Parameter):
                return value.clone() if torch.is_tensor(value) else value
            copies.append(value.detach().requires_grad_())
            return copies[-1].clone()

        given = copied(args)
        options = {name: copied(value) for name, value in (kwargs or {}).items()}
        if copies and torch.is_grad_enabled():
            result = super().__torch_function__(function, types, given, options)
            if (
                carries(result)
                and result.is_floating_point()
                and not self._is_linear(result, copies)
            ):
                self.found[function.__name__] = None
        return super().__torch_function__(function, types, args, kwargs)

    def _is_linear(self, result: torch.Tensor, copies: list[torch.Tensor]) -> bool:
        inputs = [*copies, self.scale]
        gradients = torch.autograd.grad(
            result, inputs, torch.ones_like(result), materialize_grads=True, allow_unused=True
        )
        parts = [
            (value.detach() * gradient).double().sum()
            for value, gradient in zip(inputs, gradients, strict=True)
        ]
        size = float(result.detach().double().abs().sum())
        return abs(float(sum(parts) - result.detach().double().sum())) <= 1e-3 * size
