"""Run a model once and return its attention, or what else its edges may weigh."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from transformers import PretrainedConfig

from attnflow.capture.borrow import borrowed, sparse_kind
from attnflow.capture.head import HeadInput, watched_head
from attnflow.capture.interface import NAME, Recorder, recording_into, with_gradient
from attnflow.capture.mixers import check_mixers
from attnflow.capture.nested import mapped
from attnflow.capture.recording import Recording
from attnflow.capture.rows import ROWS, RowRecording, Rows
from attnflow.capture.running import forward, forward_options, takes_part
from attnflow.capture.watch import EDGES, EdgeRecording, OwnEdgeRecording, watched
from attnflow.checks import HEAD_FUSIONS, choice, invalid, resolve_index
from attnflow.errors import AttentionError, OptionError
from attnflow.options import MEASURED_EDGES


class Captured(NamedTuple):
    """What a forward pass gave.

    Attributes:
        layers: The attention of each layer, lowest first, on the CPU and detached; float64 if the
            model computes in float64, float32 otherwise. Each is of shape (B, n, n), or
            (B, H, n, n) if the heads were kept. Rows attend, columns are attended to. Padded
            positions are still there.
        outputs: What the model returned, without attention weights of its own.
        residuals: For ``edges="value_norm"`` the share of the residual connection in each layer,
            float64 of shape (B, n), on the CPU; for ``edges="alti"``, whose rows hold the residual,
            zeros. None otherwise.
        reads: How much of what the head reads is at each position, float64 of shape (B, n), on the
            CPU, rows summing to 1. None if it was not asked for, or cannot be told.
        sink: Whether position 0 of the layers is a learned sink, which is no token (GPT-OSS). It
            has the share of each row that goes to the sink, and attends to itself. The layers are
            of shape (B, n + 1, n + 1) then. Only attention itself has it: a sink has no values, and
            so no part in other edges.
        rows: What the attention is computed from, if it was not kept; there are no `layers` then.
    """

    layers: list[torch.Tensor]
    outputs: Any
    residuals: list[torch.Tensor] | None = None
    reads: torch.Tensor | None = None
    sink: bool = False
    rows: Rows | None = None


def capture(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    *,
    heads: str | int | None = "mean",
    score: Callable[[Any], torch.Tensor] | None = None,
    edges: str = "attention",
    answer: Callable[[Any], torch.Tensor] | None = None,
    apart: torch.nn.Module | None = None,
    keep: bool = True,
) -> Captured:
    """Run a model and capture the attention of every layer.

    Heads are fused layer by layer. The attention of all heads of all layers is never in memory,
    unless `heads` is None, `score` is given, or the model does not use the attention interface of
    transformers and its own attention output is read (DeBERTa, MPNet).

    The model runs in eval mode, which turns off dropout, without a cache, and without gradients
    unless `score` is given. Afterwards it is restored, also after an exception:
    attention implementation, train or eval mode, hooks, gradients and gradient flags.

    Args:
        model: A model of transformers, or a module around one: an encoder or a decoder, whose
            layers all attend over the same tokens.
        inputs: What the model takes, on its device, such as ``input_ids`` of shape (B, n) and
            ``attention_mask``.
        heads: How heads become one: "mean", "max", "min" or "sum" over the heads, re-normalised;
            the index of one head; or None to keep all heads.
        score: A function from the model's outputs to one number for each item, of shape (B,). If it
            is given, the layers hold the gradient-weighted attention instead: the mean over heads
            of ``relu(d score / d A * A)``, not normalised. Of `heads`, only None matters then: it
            keeps the heads apart.
        edges: What the layers hold: "attention"; "effective", the part of each head's attention
            that its values let through (`attnflow.edges.effective`); "value_norm", the norms of
            the vectors that attention adds up, with the residual's share measured
            (`attnflow.edges.value_norm`); or "alti", how near those vectors, the residual's
            included, come to the layer's output (`attnflow.edges.alti`). The last two add up the
            heads by themselves: `heads` is "mean", or for value norms the index of the only head to
            use. All but "attention" hold all heads of one layer at a time, and do not go with
            `score`.
        answer: A function as `score` is. If it is given, `Captured.reads` says at which positions
            the model's head reads this answer. Gradients go through the head only.
        apart: A part of the model whose attention is not captured: the vision tower of a model that
            reads an image with a text.
        keep: Whether the attention is kept. If it is not, `Captured.rows` has each layer's queries
            and keys, which grow with n and not with its square, and computes it again. That is for
            attention itself, of models that use the attention interface of transformers; what
            other models attend to is kept all the same.

    Returns:
        The attention of each layer, and the model's outputs.

    Raises:
        AttentionError: If the model's attention cannot be captured, or is not that of one stack of
            layers over the same tokens.
        OptionError: If an argument is not valid, or no gradient comes from `score`.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(
        ...     vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        ...     intermediate_size=16,
        ... ))
        >>> captured = capture(model, {"input_ids": torch.tensor([[1, 2, 3]])})
        >>> [tuple(layer.shape) for layer in captured.layers]
        [(1, 3, 3), (1, 3, 3)]
        >>> captured.outputs.last_hidden_state.shape
        torch.Size([1, 3, 8])
    """
    _check_model(model)
    check_options(model, heads, score, edges)
    size = input_size(inputs)

    # Not in inference mode: its tensors cannot be used where gradients are wanted, and a model that
    # keeps one, such as a table of positions, would keep it for good.
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(score is not None),
        ExitStack() as stack,
    ):
        given = ordinary(inputs)
        check_mixers(model, given)
        head = None
        if answer is not None:
            head = stack.enter_context(watched_head(model, only_head=score is None))
        if edges != "attention":
            captured = _capture_edges(model, given, size, heads, edges, apart)
            return _with_reads(captured, head, answer, size.items)
        name = type(model).__name__
        if not keep and score is None and heads is not None and takes_part(model):
            by_rows = RowRecording(name, size.batch, size.tokens, heads)
            outputs = run_recorded(model, given, by_rows, implementation=ROWS, apart=apart)
            if by_rows.taken:
                check_depth(model, len(by_rows.taken))
                rows = Rows(by_rows.taken, heads)
                captured = Captured([], outputs, sink=rows.sink, rows=rows)
                return _with_reads(captured, head, answer, size.items)
        recording = Recording(name, size.batch, size.tokens, heads, gradients=score is not None)
        if takes_part(model):
            outputs = run_recorded(model, given, recording, apart=apart)
        if not recording.layers:
            outputs = _run_with_output(model, given, recording)
        check_depth(model, len(recording.layers))
        captured = _with_reads(Captured(recording.layers, outputs), head, answer, size.items)
        if score is None:
            layers, sink = recording.leveled()
            return captured._replace(layers=layers, sink=sink)
        values = check_score(score(outputs), size.items)
        layers = weigh_by_gradient(values, recording.layers, keep_heads=heads is None)
        return captured._replace(layers=layers, outputs=detached(outputs))


def _with_reads(
    captured: Captured,
    head: HeadInput | None,
    answer: Callable[[Any], torch.Tensor] | None,
    items: int,
) -> Captured:
    """Add which positions the head read, if that is asked for."""
    if head is None or answer is None:
        return captured
    reads = None
    if head.wanted:
        values = check_score(answer(captured.outputs), items)
        # Gradients of the attention may be asked for later.
        found = torch.autograd.grad(values.sum(), head.wanted, retain_graph=True, allow_unused=True)
        reads = head.weights(list(found), items)
    return captured._replace(outputs=detached(captured.outputs), reads=reads)


def _capture_edges(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    size: "_Size",
    heads: str | int | None,
    edges: str,
    apart: torch.nn.Module | None,
) -> Captured:
    """Run a model and capture edges that need more than the weights."""
    name = type(model).__name__
    recording = EdgeRecording(name, size.batch, size.tokens, heads, edges=edges)
    outputs = None
    if takes_part(model):
        outputs = run_recorded(model, inputs, recording, watched(model, recording), apart=apart)
        recording.check_done()
    if not recording.layers:
        recording = OwnEdgeRecording(name, size.batch, size.tokens, heads, edges=edges)
        outputs = run_recorded(
            model, inputs, recording, watched(model, recording), "eager", apart=apart
        )
        recording.check_done()
    if not recording.layers:
        raise AttentionError(
            f"edges={edges!r} is not supported for {name}: the values of its attention cannot be "
            "captured; use edges='attention'"
        )
    check_depth(model, len(recording.layers))
    return Captured(
        recording.layers, outputs, recording.residuals if edges in MEASURED_EDGES else None
    )


# ---- Running the model ---------------------------------------------------------------------------


def ordinary(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs without tensors made in inference mode: none can be saved for gradients."""
    return {
        name: value.clone() if torch.is_tensor(value) and value.is_inference() else value
        for name, value in inputs.items()
    }


def run_recorded(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    recording: Recorder,
    watching: AbstractContextManager[None] | None = None,
    implementation: str = NAME,
    apart: torch.nn.Module | None = None,
) -> Any:
    """Run a model with the attention function that records, within a context if one is given."""
    options = forward_options(model, output_attentions=False)
    with (
        borrowed(model, implementation, apart),
        watching or nullcontext(),
        recording_into(recording),
    ):
        return forward(model, {**inputs, **options})


def _run_with_output(
    model: torch.nn.Module, inputs: Mapping[str, Any], recording: Recording
) -> Any:
    """Run a model that does not take part, and record the attention that it returns."""
    options = forward_options(model, output_attentions=True)
    given = {**inputs, **options}
    with borrowed(model, "eager"), ExitStack() as again:
        if "block_sparse" in map(sparse_kind, model.modules()):
            # It may replace its layers while it runs, and what watches the old ones sees nothing.
            forward(model, {**inputs, **forward_options(model, output_attentions=False)})
            again.enter_context(borrowed(model, "eager"))
        sparse = "block_sparse" in map(sparse_kind, model.modules())
        with _gradients_from_embeddings(model, given, recording.gradients):
            outputs = forward(model, given)
    name = type(model).__name__
    if sparse:
        raise AttentionError(
            f"{name} attends to random blocks of the text, and does not return the whole of its "
            "attention; method='contribution' explains it, or call "
            'model.set_attention_type("original_full") first, which changes the model'
        )
    attentions = getattr(outputs, "attentions", None)
    if not attentions or any(weights is None for weights in attentions):
        raise AttentionError(
            f"the attention of {name} cannot be captured: no layer calls the attention interface "
            "of transformers, and output_attentions=True returns no weights; "
            "method='contribution' needs none"
        )
    for weights in attentions:
        recording.add(weights)
    kept = {name: value for name, value in outputs.items() if name != "attentions"}
    return type(outputs)(**kept)


@contextmanager
def _gradients_from_embeddings(
    model: torch.nn.Module, inputs: dict[str, Any], wanted: bool
) -> Iterator[None]:
    """Keep gradients from the embeddings on, also where every parameter is frozen."""
    if not wanted:
        yield
        return
    if torch.is_tensor(inputs.get("inputs_embeds")):
        inputs["inputs_embeds"] = with_gradient(inputs["inputs_embeds"])
        yield
        return
    embeddings = model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda _, __, output: with_gradient(output))
    try:
        yield
    finally:
        handle.remove()


# ---- Gradients -----------------------------------------------------------------------------------


def weigh_by_gradient(
    values: torch.Tensor, layers: list[torch.Tensor], *, keep_heads: bool
) -> list[torch.Tensor]:
    """Return ``relu(d score / d A * A)`` of every layer, detached and on the CPU."""
    for layer, weights in enumerate(layers, 1):
        if not weights.requires_grad:
            raise AttentionError(
                f"layer {layer} was computed without gradients: the model's forward pass turns "
                "them off, as torch.no_grad() does; score needs them"
            )
    # Not backward(), which would leave gradients behind in the parameters. Items do not see each
    # other, so the gradient of the sum is each item's own.
    gradients = torch.autograd.grad(values.sum(), layers, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise OptionError(
            "score does not depend on the attention of any layer; expected a number computed from "
            "the model's outputs"
        )
    weighed = []
    for weights, gradient in zip(layers, gradients, strict=True):
        exact = torch.promote_types(weights.dtype, torch.float32)
        if gradient is None:  # the score was read off a layer below
            product = torch.zeros_like(weights, dtype=exact)
        else:
            product = torch.relu(gradient.detach().to(exact) * weights.detach().to(exact))
        weighed.append((product if keep_heads else product.mean(dim=1)).detach().cpu())
    return weighed


def detached(value: Any) -> Any:
    """Return outputs without the graph that made them, which would keep every layer in memory."""
    return mapped(lambda part: part.detach() if torch.is_tensor(part) else part, value)


# ---- Checks --------------------------------------------------------------------------------------


class _Size(NamedTuple):
    """How large the inputs are, and the attention has to be."""

    items: int
    batch: int
    tokens: int | None


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"model is a {type(model).__name__}; expected a torch module")
    if is_encoder_decoder(model):
        raise AttentionError(
            f"{type(model).__name__} is an encoder-decoder; use attnflow.capture.capture_pair, or "
            "capture its encoder, model.get_encoder()"
        )


def check_options(model: torch.nn.Module, heads: Any, score: Any, edges: Any) -> None:
    """Check the options of a capture, as far as the model's configuration tells."""
    if score is not None and not callable(score):
        raise invalid("score", score, "a function of the model's outputs")
    choice(edges, "edges", EDGES)
    if edges != "attention" and score is not None:
        raise OptionError(f"score requires edges='attention'; edges is {edges!r}")
    if edges == "alti" and heads != "mean":
        raise OptionError(
            f"heads is {heads!r}, but edges='alti' adds up the vectors of all heads; expected "
            "'mean'"
        )
    if edges == "value_norm" and (heads is None or (isinstance(heads, str) and heads != "mean")):
        raise OptionError(
            f"heads is {heads!r}, but edges='value_norm' combines the vectors of all heads; "
            "expected 'mean', or the index of one head"
        )
    if isinstance(heads, str):
        choice(heads, "heads", HEAD_FUSIONS, otherwise="the index of a head, or None to keep all")
    elif heads is not None:
        count = getattr(_text_config(model), "num_attention_heads", None)
        # If the configuration does not tell how many heads there are, the first layer will.
        resolve_index(heads, count if isinstance(count, int) else sys.maxsize, "heads", "heads")


def is_encoder_decoder(model: torch.nn.Module) -> bool:
    """Whether a model is an encoder and a decoder in one."""
    config = getattr(model, "config", None)
    # The encoder of such a model may say so too, but takes no input for a decoder.
    takes = inspect.signature(model.forward).parameters
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in takes


def _text_config(model: torch.nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if isinstance(config, PretrainedConfig) else config


def input_size(inputs: Any) -> _Size:
    """Check inputs and return how large they are."""
    if not isinstance(inputs, Mapping):
        raise OptionError(
            f"inputs is a {type(inputs).__name__}; expected a mapping of names to tensors, as a "
            "tokenizer returns"
        )
    tensors = [value for value in inputs.values() if torch.is_tensor(value) and value.ndim > 0]
    if not tensors:
        raise OptionError(
            f"inputs has no tensor, only {', '.join(inputs) or 'nothing'}; call the tokenizer with "
            'return_tensors="pt"'
        )
    tokens: int | None = None
    if torch.is_tensor(inputs.get("input_ids")):
        # Several choices for one item, (B, choices, n), are run as items of their own.
        main: torch.Tensor = inputs["input_ids"]
        lead, tokens = main.shape[:-1], main.shape[-1]
    elif torch.is_tensor(inputs.get("inputs_embeds")):
        main = inputs["inputs_embeds"]
        lead, tokens = main.shape[:-2], main.shape[-2]
    else:
        main = tensors[0]
        lead = main.shape[:1]
    if main.numel() == 0:
        raise OptionError(f"inputs are empty: their shape is {tuple(main.shape)}")
    # An image adds positions of its own.
    return _Size(main.shape[0], lead.numel(), None if "pixel_values" in inputs else tokens)


def check_depth(model: torch.nn.Module, seen: int) -> None:
    """Check that attention was computed as often as the model has layers."""
    config = _text_config(model)
    depth = getattr(config, "num_hidden_layers", None)
    if not isinstance(depth, int):
        return
    # A layer of ALBERT is a group of layers, of one as a rule.
    depth *= getattr(config, "inner_group_num", 1)
    if seen != depth:
        raise AttentionError(
            f"{type(model).__name__} has {depth} layers, but attention was computed {seen} times; "
            "expected one self-attention in each layer, and not a difference of two, or layers "
            "without any. Capture one part of the model, or try method='contribution'"
        )


def check_score(values: Any, items: int) -> torch.Tensor:
    """Return what a score function gave, if it is one number with a gradient for each item."""
    if not torch.is_tensor(values) or tuple(values.shape) != (items,):
        got = f"shape {tuple(values.shape)}" if torch.is_tensor(values) else type(values).__name__
        raise OptionError(
            f"score returned {got}; expected a tensor of one number for each item, shape ({items},)"
        )
    if not values.requires_grad:
        raise OptionError(
            "score returned numbers without a gradient; expected numbers that torch computes from "
            "the model's outputs"
        )
    return values
