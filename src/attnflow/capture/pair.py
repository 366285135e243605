"""Run an encoder-decoder once and return its three kinds of attention."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from transformers import PreTrainedModel

from attnflow.capture.forward import (
    check_options,
    check_score,
    detached,
    input_size,
    is_encoder_decoder,
    ordinary,
    run_recorded,
    weigh_by_gradient,
)
from attnflow.capture.recording import Recording
from attnflow.capture.running import takes_part
from attnflow.capture.watch import EdgeRecording, watched
from attnflow.errors import AttentionError, OptionError
from attnflow.options import MEASURED_EDGES


class CapturedPair(NamedTuple):
    """What a forward pass of an encoder-decoder gave, for n source and m target positions.

    Each kind of attention is a list of one tensor a layer, lowest first, on the CPU and detached;
    float64 if the model computes in float64, float32 otherwise. Rows attend, columns are attended
    to. Padded positions are still there.

    Attributes:
        encoder: The encoder's self-attention, each of shape (B, n, n), or (B, H, n, n) if the heads
            were kept.
        decoder: The decoder's self-attention, each of shape (B, m, m) or (B, H, m, m).
        cross: The decoder's attention to the encoder's outputs, each of shape (B, m, n) or
            (B, H, m, n).
        outputs: What the model returned, without attention weights of its own.
        residuals: For ``edges="value_norm"`` the shares of the residual connections: those of the
            encoder's layers, each float64 of shape (B, n), of the decoder's self-attention and of
            its cross-attention, each of shape (B, m). For ``edges="alti"`` the same, zeros but for
            cross-attention: rows of self-attention hold the residual. None otherwise.
    """

    encoder: list[torch.Tensor]
    decoder: list[torch.Tensor]
    cross: list[torch.Tensor]
    outputs: Any
    residuals: tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]] | None = None


def capture_pair(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    *,
    heads: str | int | None = "mean",
    score: Callable[[Any], torch.Tensor] | None = None,
    edges: str = "attention",
) -> CapturedPair:
    """Run an encoder-decoder and capture the attention of every layer.

    As `attnflow.capture.capture`: heads are fused as the layers pass, unless `heads` is None or
    `score` is given; the model runs in eval mode and without a cache, and is restored, also
    after an exception.

    `attnflow.graph.encoder_decoder_graph` makes a graph of the result, of one item at a time.

    Args:
        model: An encoder-decoder of transformers, such as T5, BART, Marian or Whisper. The source
            positions of Whisper are frames of sound.
        inputs: What the model takes, on its device, such as ``input_ids`` of shape (B, n),
            ``attention_mask`` and ``decoder_input_ids`` of shape (B, m).
        heads: How heads become one: "mean", "max", "min" or "sum" over the heads, re-normalised;
            the index of one head; or None to keep all heads.
        score: A function from the model's outputs to one number for each item, of shape (B,). If it
            is given, the layers hold the gradient-weighted attention instead: the mean over heads
            of ``relu(d score / d A * A)``, not normalised. Of `heads`, only None matters then: it
            keeps the heads apart.
        edges: What the layers hold: "attention", "effective", "value_norm" or "alti", as in
            `capture`. A row of cross-attention is all zeros where nothing of it reaches the
            position.

    Returns:
        The attention of each layer, and the model's outputs.

    Raises:
        AttentionError: If the model is not an encoder-decoder, or its attention cannot be captured,
            or its layers are not one self-attention each, followed in the decoder by one
            cross-attention.
        OptionError: If an argument is not valid, or no gradient comes from `score`.

    Example:
        >>> from transformers import BartConfig, BartModel
        >>> model = BartModel(BartConfig(
        ...     vocab_size=50, d_model=8, encoder_layers=1, decoder_layers=2,
        ...     encoder_attention_heads=2, decoder_attention_heads=2,
        ...     encoder_ffn_dim=16, decoder_ffn_dim=16,
        ... ))
        >>> captured = capture_pair(model, {
        ...     "input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[2, 5]]),
        ... })
        >>> [tuple(layer.shape) for layer in captured.encoder]
        [(1, 3, 3)]
        >>> [tuple(layer.shape) for layer in captured.decoder]
        [(1, 2, 2), (1, 2, 2)]
        >>> [tuple(layer.shape) for layer in captured.cross]
        [(1, 2, 3), (1, 2, 3)]
    """
    encoder, decoder = _parts(model)
    check_options(model, heads, score, edges)
    items = _check_inputs(inputs, model)

    # Not in inference mode, for the same reasons as in `capture`.
    with torch.inference_mode(False), torch.set_grad_enabled(score is not None):
        name = type(model).__name__
        recording = _PairRecording(name, encoder, decoder, items, heads, score is not None, edges)
        watching = None if edges == "attention" else watched(model, recording)
        outputs = run_recorded(model, ordinary(inputs), recording, watching)
        recording.check_done()
        found = (recording.encoder.layers, recording.decoder.layers, recording.cross.layers)
        if score is None:
            return CapturedPair(*found, outputs, recording.residuals())
        values = check_score(score(outputs), items)
        every_layer = [layer for part in found for layer in part]
        weighed = weigh_by_gradient(values, every_layer, keep_heads=heads is None)
        first, second = len(found[0]), len(found[0]) + len(found[1])
        return CapturedPair(
            weighed[:first], weighed[first:second], weighed[second:], detached(outputs)
        )


class _Layer(NamedTuple):
    """A layer: the encoder or the decoder, the list of layers inside it, and the place there."""

    part: str
    stack: str
    place: int


class _PairRecording:
    """Takes layers as they are computed, and tells self-attention and cross-attention apart.

    Which part an attention module belongs to is known from the model's tree. Within a layer of the
    decoder, self-attention comes before cross-attention. Shapes would not tell: source and target
    may be of the same length.
    """

    def __init__(
        self,
        model: str,
        encoder: torch.nn.Module,
        decoder: torch.nn.Module,
        batch: int,
        heads: str | int | None,
        gradients: bool,
        edges: str,
    ) -> None:
        def part(name: str, *, cross: bool = False) -> Recording:
            if edges == "attention":
                return Recording(f"{model}'s {name}", batch, None, heads, gradients)
            return EdgeRecording(f"{model}'s {name}", batch, None, heads, edges=edges, cross=cross)

        self.gradients: Final = gradients
        self.encoder: Final = part("encoder")
        self.decoder: Final = part("decoder")
        self.cross: Final = part("cross-attention", cross=True)
        self._edges = edges
        self._watching = [
            part
            for part in (self.encoder, self.decoder, self.cross)
            if isinstance(part, EdgeRecording)
        ]
        self._model = model
        self._layers = dict(_layers_of(encoder, "encoder")) | dict(_layers_of(decoder, "decoder"))
        self._calls: Counter[_Layer] = Counter()

    def sink(self) -> None:
        """Refuse a learned sink, which no encoder-decoder of transformers has.

        Raises:
            AttentionError: Always.
        """
        raise AttentionError(
            f"{self._model} gives part of each row of attention to a learned sink, which is not "
            "supported for an encoder-decoder; use method='contribution'"
        )

    def take(
        self, module: Any, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor
    ) -> None:
        """Take what an attention module has computed.

        Raises:
            AttentionError: If the module is in no layer of the encoder or decoder, the shape is not
                that of attention among all the positions, or the edges of the attention before it
                cannot be captured.
            OptionError: If `heads` is the index of a head that there is not.
        """
        layer = self._layers.get(module)
        if layer is None:
            raise AttentionError(
                f"{type(module).__name__} of {self._model} is in no layer of its encoder or decoder"
            )
        for part in self._watching:
            part.check_done()
        self._calls[layer] += 1
        if layer.part == "encoder":
            self.encoder.take(module, weights, values, output)
        elif self._calls[layer] == 1:
            self.decoder.take(module, weights, values, output)
        else:
            self._check_cross(tuple(weights.shape))
            self.cross.expect(weights, values, output)

    def enter(self, module: torch.nn.Module, given: torch.Tensor | None) -> None:
        """Note that a module is about to run on an input."""
        for part in self._watching:
            part.enter(module, given)

    def leave(self, module: torch.nn.Module, returned: torch.Tensor | None) -> None:
        """Note that a module has run and what it returned."""
        for part in self._watching:
            part.leave(module, returned)

    def residuals(
        self,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]] | None:
        """Return the shares of the residual in each part, if they were measured."""
        if self._edges not in MEASURED_EDGES:
            return None
        encoder, decoder, cross = (part.residuals for part in self._watching)
        return encoder, decoder, cross

    def check_done(self) -> None:
        """Check that no edges are outstanding and every layer attended, as often as it should."""
        for watching in self._watching:
            watching.check_done()
        for part, expected in (("encoder", 1), ("decoder", 2)):
            stacks = {layer.stack for layer in self._calls if layer.part == part}
            if not stacks:
                raise self._missing(part)
            for layer in self._layers.values():
                seen = self._calls[layer]
                if layer.part == part and layer.stack in stacks and seen != expected:
                    raise AttentionError(
                        f"layer {layer.place + 1} of {self._model}'s {part} computed attention "
                        f"{seen} times; expected {expected}, as in T5, BART, Marian and Whisper"
                    )

    def _missing(self, part: str) -> AttentionError:
        return AttentionError(
            f"the attention of {self._model} cannot be captured: no layer of its {part} calls the "
            "attention interface of transformers"
        )

    def _check_cross(self, shape: tuple[int, ...]) -> None:
        if not self.encoder.layers:
            raise self._missing("encoder")
        source, target = (part.layers[-1].shape[-1] for part in (self.encoder, self.decoder))
        if shape[0] != self.decoder.layers[-1].shape[0] or shape[-2:] != (target, source):
            raise AttentionError(
                f"layer {len(self.cross.layers) + 1} of {self._model}'s decoder has "
                f"cross-attention of shape {shape}; expected each of {target} target positions to "
                f"attend to all {source} outputs of the encoder"
            )


def _layers_of(part: torch.nn.Module, name: str) -> Iterator[tuple[torch.nn.Module, _Layer]]:
    """Give the layer of every module of an encoder or decoder that is in a list of layers."""
    for path, module in part.named_modules():
        names = path.split(".")
        numbered = [i for i, item in enumerate(names) if item.isdigit()]
        if numbered:
            # The outermost list: in T5 a layer is itself a list, of its sublayers.
            yield module, _Layer(name, ".".join(names[: numbered[0]]), int(names[numbered[0]]))


# ---- Checks --------------------------------------------------------------------------------------


def _parts(model: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the encoder and the decoder of a model."""
    if not isinstance(model, PreTrainedModel):
        raise OptionError(f"model is a {type(model).__name__}; expected a model of transformers")
    name = type(model).__name__
    if not is_encoder_decoder(model):
        raise AttentionError(f"{name} is not an encoder-decoder; use attnflow.capture.capture")
    if not takes_part(model):
        raise AttentionError(
            f"the attention of {name} cannot be captured: it does not use the attention interface "
            "of transformers"
        )
    encoder: torch.nn.Module = model.get_encoder()
    decoder: torch.nn.Module = model.get_decoder()
    return encoder, decoder


def _check_inputs(inputs: Any, model: PreTrainedModel) -> int:
    """Return the number of items."""
    items = input_size(inputs).items
    if inputs.get("encoder_outputs") is not None:
        raise OptionError(
            "inputs has encoder_outputs, so the encoder would not run; expected its inputs, such "
            "as input_ids"
        )
    targets = [
        inputs.get(name) for name in ("decoder_input_ids", "decoder_inputs_embeds", "labels")
    ]
    given = [target for target in targets if torch.is_tensor(target)]
    if not given and model.can_generate():
        raise OptionError(
            "inputs has nothing for the decoder; expected decoder_input_ids, the tokens of the "
            "target"
        )
    for target in given:
        if target.numel() == 0 or target.shape[0] != items:
            raise OptionError(
                f"inputs has {items} items for the encoder, and for the decoder a tensor of shape "
                f"{tuple(target.shape)}; expected as many items, of one token or more"
            )
    return items
