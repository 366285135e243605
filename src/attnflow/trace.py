"""Trace: the graph behind an explanation, stored compactly for views.

An explanation has the scores of one method for one position. A view that shows other methods or
positions needs the attention itself. A trace keeps it as integers of 16 or 24 bits, and is
compressed when it is saved.
"""

import base64
import binascii
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow import fields
from attnflow.checks import choice, integer, number, resolve_residual, strings
from attnflow.errors import OptionError
from attnflow.graph import AttentionGraph
from attnflow.uniform import layered_graph, sides, uniform_graph

# A page with more weights loads slowly: 12 layers of 591 tokens.
MOST_WEIGHTS: Final = 2**22
MOST_HEAD_WEIGHTS: Final = 2**22
# Up to this many, weights are kept with more bits: 12 layers of 209 tokens.
FINE_WEIGHTS: Final = 2**19
FINE_BITS: Final = 24
COARSE_BITS: Final = 16
FEWEST_BITS: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trace:
    """The attention graph behind an explanation, and the tokens that are its positions.

    A trace is immutable, and its arrays are read-only. Its weights are integers: each row is scaled
    to a maximum of 2**bits - 1. They have 24 bits in graphs of up to half a million weights, such
    as 12 layers of 209 tokens, and 16 bits in larger ones.

    Attributes:
        tokens: The n tokens that the model was given, special ones included.
        spans: For each token its start and end in the explanation's text, or None.
        special: For each token whether it is a special one.
        weights: The weights of the graph without the residual, its heads fused, as whole numbers of
            shape (L, n, n).
        bits: How many bits a weight has, from 8 to 24.
        residual: The share of the residual connection: a number, or an array of shape (L, n).
        mask: Which offsets, from -(n - 1) to n - 1, each layer attends over, boolean of shape
            (L, 2 n - 1), if scores are to be related to uniform attention. None if they are not.
        heads: The weights of each head, 16 bits each, of shape (L, H, n, n). None if they were not
            kept.
        encoder: Of an encoder-decoder, how many layers its encoder has and how many tokens its
            source, the first of all. Its graph is that of `attnflow.encoder_decoder_graph`, in
            which a layer of the decoder is two. None for any other model.
        carried: What each edge carried to the answer, with its sign, float64 of shape (L, n, n):
            entry [l, k, m] is the part of the answer that position k after layer l + 1 got from
            position m below. A position's own edge has the residual connection and the feed-forward
            layer too. The sum of a column is what position m contributes where it enters the layer;
            what biases add in a layer is in the columns of the layers above. None if it was not
            asked for.
        head_values: What each head of each layer added to the answer, float64 of shape (L, H): the
            sum of what it carried along its edges. None if it, or the heads, were not kept.
        sink: Whether token 0 is a learned sink, which is no token of the text.

    Raises:
        OptionError: If an argument has the wrong type, shape or range.

    Example:
        >>> from attnflow import AttentionGraph
        >>> graph = AttentionGraph([[[0.5, 0.5], [0.25, 0.75]]])
        >>> trace = Trace.of(graph, tokens=["a", "b"], spans=[(0, 1), (2, 3)], special=[False] * 2)
        >>> trace
        Trace(layers=1, tokens=2, bits=24)
        >>> trace.attention().round(6)
        array([[[0.5 , 0.5 ],
                [0.25, 0.75]]])
    """

    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]
    weights: NDArray[np.unsignedinteger[Any]]
    bits: int
    residual: float | NDArray[np.float64]
    mask: NDArray[np.bool_] | None = None
    heads: NDArray[np.unsignedinteger[Any]] | None = None
    encoder: tuple[int, int] | None = None
    carried: NDArray[np.float64] | None = None
    head_values: NDArray[np.float64] | None = None
    sink: bool = False

    def __post_init__(self) -> None:
        count, layers = len(self.tokens), len(self.weights)
        integer(self.bits, "bits", least=FEWEST_BITS, most=FINE_BITS)
        if not layers or len(self.spans) != count or len(self.special) != count:
            raise OptionError(
                f"there are {layers} layers, {count} tokens, {len(self.spans)} spans and "
                f"{len(self.special)} special marks; expected layers, and one of each for a token"
            )
        _check_shape(self.weights, "weights", (layers, count, count))
        _check_rows(self.weights, self.bits, "weights")
        if self.mask is not None:
            _check_shape(self.mask, "mask", (layers, 2 * count - 1))
        if self.heads is not None:
            _check_shape(self.heads, "heads", (layers, *self.heads.shape[1:2], count, count))
            _check_rows(self.heads, COARSE_BITS, "heads")
        if self.encoder is not None:
            _check_sides(self.weights, self.encoder)
        if self.carried is not None:
            _check_shape(self.carried, "carried", (layers, count, count))
        if self.head_values is not None:
            count_of_heads = 0 if self.heads is None else self.heads.shape[1]
            _check_shape(self.head_values, "head_values", (layers, count_of_heads))
        fields.set_fields(
            self,
            tokens=tuple(self.tokens),
            spans=tuple(self.spans),
            special=tuple(self.special),
            weights=fields.read_only(self.weights),
            residual=resolve_residual(self.residual, layers, count),
            mask=None if self.mask is None else fields.read_only(self.mask),
            heads=None if self.heads is None else fields.read_only(self.heads),
            carried=None if self.carried is None else fields.read_only(self.carried),
            head_values=None if self.head_values is None else fields.read_only(self.head_values),
        )

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return Trace.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        heads = "" if self.heads is None else f", heads={self.heads.shape[1]}"
        return f"Trace(layers={self.layers}, tokens={len(self.tokens)}{heads}, bits={self.bits})"

    @property
    def layers(self) -> int:
        """The number of layers of the graph, L."""
        return len(self.weights)

    @property
    def depth(self) -> int:
        """The number of layers to explain: of an encoder-decoder those of the decoder, else L."""
        return self.layers if self.encoder is None else (self.layers - self.encoder[0]) // 2

    @property
    def nbytes(self) -> int:
        """How much memory the weights take, in bytes."""
        return self.weights.nbytes + (0 if self.heads is None else self.heads.nbytes)

    @classmethod
    def of(
        cls,
        graph: AttentionGraph,
        *,
        tokens: Sequence[str],
        spans: Sequence[tuple[int, int] | None],
        special: Sequence[bool],
        mask: NDArray[np.bool_] | None = None,
        heads: Sequence[Any] | None = None,
        carried: NDArray[np.float64] | None = None,
        head_values: NDArray[np.float64] | None = None,
    ) -> "Trace | None":
        """Return the trace of a graph.

        Args:
            graph: The graph, of n tokens and without padding.
            tokens: The tokens.
            spans: Their places in the text.
            special: Whether they are special.
            mask: Which offsets each layer attends over, or None.
            heads: For each layer the weights of its heads, of shape (H, n, n), or None. More than
                4,194,304 of them are left out.
            carried: What each edge carried to the answer, of shape (L, n, n), or None.
            head_values: What each head added to the answer, of shape (L, H), or None. It is left
                out with the heads.

        Returns:
            The trace, or None if it would be of more than 4,194,304 weights, as 12 layers of 592
            tokens are.
        """
        count = graph.attention.size
        if count > MOST_WEIGHTS or count == 0:
            return None
        bits = FINE_BITS if count <= FINE_WEIGHTS else COARSE_BITS
        kept = None
        if heads is not None and sum(np.size(layer) for layer in heads) <= MOST_HEAD_WEIGHTS:
            kept = np.stack([_codes(np.asarray(layer), COARSE_BITS) for layer in heads])
        return cls(
            tokens=tuple(tokens),
            spans=tuple(spans),
            special=tuple(special),
            weights=_codes(graph.attention, bits),
            bits=bits,
            residual=graph.residual,
            mask=mask,
            heads=kept,
            encoder=graph.encoder,
            carried=carried,
            head_values=None if kept is None else head_values,
            sink=graph.sink,
        )

    @staticmethod
    def holds(layers: int, tokens: int) -> bool:
        """Whether a graph of so many layers and tokens is small enough for a trace."""
        return layers * tokens**2 <= MOST_WEIGHTS

    def first(self, count: int) -> "Trace":
        """Return the trace of the first tokens, which do not attend to later ones.

        Args:
            count: How many. Those of a causal model, or of the target of an encoder-decoder, do not
                attend to what follows.

        Returns:
            The trace; it shares its weights with this one.

        Raises:
            OptionError: If one of them attends to a later token.
        """
        if self.weights[:, :count, count:].any():
            raise OptionError(f"one of the first {count} tokens attends to a later one")
        heads = None if self.heads is None else self.heads[:, :, :count, :count]
        return self._part(self.layers, count, heads=heads)

    def source(self) -> "Trace":
        """Return the trace of an encoder-decoder's encoder, whose tokens are the source's.

        Raises:
            OptionError: If it is the trace of another kind of model.
        """
        if self.encoder is None:
            raise OptionError("only the trace of an encoder-decoder has a source")
        return self._part(*self.encoder, heads=None, head_values=None, encoder=None)

    def _part(self, layers: int, count: int, **changed: Any) -> "Trace":
        """Return the trace of the first layers and tokens."""
        last, residual = len(self.tokens) - 1, self.residual
        mask = None if self.mask is None else self.mask[:layers, last + 1 - count : last + count]
        return replace(
            self,
            tokens=self.tokens[:count],
            spans=self.spans[:count],
            special=self.special[:count],
            weights=self.weights[:layers, :count, :count],
            residual=residual if isinstance(residual, float) else residual[:layers, :count],
            mask=mask,
            carried=None if self.carried is None else self.carried[:layers, :count, :count],
            **changed,
        )

    def attention(self) -> NDArray[np.float64]:
        """Return the fused attention, float64 of shape (L, n, n), rows summing to 1."""
        weights = self.weights.astype(np.float64)
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights

    def graph(self) -> AttentionGraph:
        """Return the graph, as exact as the trace is."""
        return layered_graph(
            self.attention(), residual=self.residual, encoder=self.encoder, sink=self.sink
        )

    def uniform(self) -> AttentionGraph:
        """Return the graph of uniform attention over the same mask.

        Raises:
            OptionError: If the trace has no mask.
        """
        if self.mask is None:
            raise OptionError("this trace has no mask, so there is no uniform attention over it")
        return uniform_graph(
            self.mask, residual=self.residual, encoder=self.encoder, sunk=self.graph().sunk
        )

    def to_dict(self, most_bytes: int | None = None) -> dict[str, Any]:
        """Return the trace as lists, dictionaries, strings and numbers.

        Args:
            most_bytes: Leave out the last bits of the weights, and of those of the heads, as many
                as it takes to make them no more than this many characters together, if 8 bits are
                enough for that. None keeps all.

        Returns:
            Values that JSON can represent. Weights are text: for each byte of a weight, from the
            highest down, that byte of every weight; compressed with zlib; in base64.
        """
        room = sys.maxsize if most_bytes is None else most_bytes
        bits, packed = _fitted(partial(_rescaled, self.weights, self.bits), self.bits, room)
        heads = None
        if self.heads is not None:
            head_bits, packed_heads = _fitted(
                partial(_rescaled, self.heads, COARSE_BITS), COARSE_BITS, room - len(packed)
            )
            heads = {
                "count": self.heads.shape[1],
                "bits": head_bits,
                "weights": packed_heads,
                "values": None if self.head_values is None else self.head_values.tolist(),
            }
            room -= len(packed_heads)
        carried = None
        if self.carried is not None:
            scale = float(np.abs(self.carried).max()) or 1.0
            few, packed_carried = _fitted(
                partial(_signed_codes, self.carried, scale), self.bits, room - len(packed)
            )
            carried = {"scale": scale, "bits": few, "values": packed_carried}
        return {
            "layers": self.layers,
            "tokens": list(self.tokens),
            "spans": fields.thawed(self.spans),
            "special": list(self.special),
            "bits": bits,
            "weights": packed,
            "encoder": fields.thawed(self.encoder),
            "residual": fields.thawed(self.residual),
            "mask": None if self.mask is None else _packed(self.mask.astype(np.uint8), 8),
            "heads": heads,
            "carried": carried,
            "sink": self.sink,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Trace":
        """Return the trace of a dictionary that `to_dict` returned.

        Args:
            data: The dictionary.

        Returns:
            The trace.

        Raises:
            OptionError: If it is not such a dictionary.
        """
        names = ("layers", "tokens", "spans", "special", "bits", "weights", "residual")
        if not isinstance(data, Mapping) or any(name not in data for name in names):
            raise OptionError(f"trace is not a dictionary with {', '.join(names)}")
        layers = integer(data["layers"], "trace.layers", least=1)
        bits = integer(data["bits"], "trace.bits", least=FEWEST_BITS, most=FINE_BITS)
        tokens = strings(data["tokens"], "trace.tokens", allow_empty=True)
        count = len(tokens)
        size = layers * count * count
        if not 0 < size <= MOST_WEIGHTS:
            raise OptionError(f"a trace of {layers} layers and {count} tokens cannot be read")
        mask: Any = data.get("mask")
        if mask is not None:
            offsets = 2 * count - 1
            mask = _unpacked(mask, layers * offsets, 8, "mask").reshape(layers, offsets) > 0
        heads: Any = data.get("heads")
        head_values = None
        if heads is not None:
            if not isinstance(heads, Mapping) or not {"count", "weights"} <= set(heads):
                raise OptionError("trace.heads is not a dictionary with count and weights")
            some = integer(heads["count"], "trace.heads.count", least=1)
            if some * size > MOST_HEAD_WEIGHTS:
                raise OptionError(f"a trace of {some} heads of {size} weights cannot be read")
            head_bits = integer(
                heads.get("bits", COARSE_BITS),
                "trace.heads.bits",
                least=FEWEST_BITS,
                most=COARSE_BITS,
            )
            if heads.get("values") is not None:
                head_values = fields.numbers(heads["values"], "trace.heads.values", "(L, H)")
            heads = _unpacked(heads["weights"], some * size, head_bits, "heads")
            heads = _rescaled(heads, head_bits, COARSE_BITS).reshape(layers, some, count, count)
        carried: Any = data.get("carried")
        if carried is not None:
            if not isinstance(carried, Mapping) or not {"scale", "bits", "values"} <= set(carried):
                raise OptionError("trace.carried is not a dictionary with scale, bits and values")
            width = integer(
                carried["bits"], "trace.carried.bits", least=FEWEST_BITS, most=FINE_BITS
            )
            codes = _unpacked(carried["values"], size, width, "carried").astype(np.float64)
            middle = 2 ** (width - 1) - 1
            carried = number(carried["scale"], "trace.carried.scale") * (codes / middle - 1.0)
            carried = carried.reshape(layers, count, count)
        encoder: Any = data.get("encoder")
        weights = _unpacked(data["weights"], size, bits, "weights")
        return cls(
            tokens=tokens,
            spans=fields.spans(data["spans"], count, name="trace.spans"),
            special=fields.booleans(data["special"], "trace.special", count),
            weights=weights.reshape(layers, count, count),
            bits=bits,
            residual=data["residual"],
            mask=mask,
            heads=heads,
            encoder=None if encoder is None else fields.pair(encoder, "trace.encoder", 0),
            carried=carried,
            head_values=head_values,
            sink=choice(data.get("sink", False), "trace.sink", (False, True)),
        )


def _check_shape(array: NDArray[Any], name: str, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise OptionError(f"{name} has shape {array.shape}; expected {expected}")


def _check_rows(codes: NDArray[Any], bits: int, name: str) -> None:
    highest = codes.max(axis=-1)
    top = 2**bits - 1
    if (highest != top).any():
        wrong = int(highest[highest != top][0])
        raise OptionError(f"{name} has a row whose highest weight is {wrong}; expected {top}")


def _check_sides(weights: NDArray[Any], encoder: tuple[int, int]) -> None:
    below, source = encoder
    layers, count = weights.shape[:2]
    steps = layers - below
    if not (0 < below < layers and 0 < source < count and steps % 2 == 0):
        raise OptionError(
            f"encoder is {encoder}, but there are {layers} layers and {count} tokens; expected "
            "fewer layers, two for each layer of the decoder being left, and fewer tokens"
        )
    allowed = sides(layers, count, encoder)
    # A position that takes nothing from the source attends to itself.
    allowed[below + 1 :: 2] |= np.eye(count, dtype=np.bool_)
    if weights[~allowed].any():
        raise OptionError(f"weights has an edge that is not valid for encoder={encoder}")


def _codes(weights: NDArray[Any], bits: int) -> NDArray[np.unsignedinteger[Any]]:
    codes = np.empty(weights.shape, dtype=np.uint16 if bits <= 16 else np.uint32)
    # Layer by layer, in memory that stays in a processor's cache.
    scaled = np.empty(weights.shape[1:])
    for layer, kept in zip(weights, codes, strict=True):
        np.multiply(layer, (2**bits - 1) / layer.max(axis=-1, keepdims=True), out=scaled)
        np.rint(scaled, out=scaled)
        kept[...] = scaled
    return codes


def _rescaled(codes: NDArray[Any], bits: int, wanted: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return codes of so many bits as codes of another number of them."""
    scale = (2**wanted - 1) / (2**bits - 1)
    kind = np.uint16 if wanted <= 16 else np.uint32
    return codes if bits == wanted else np.rint(codes * scale).astype(kind)


def _fitted(codes: Callable[[int], NDArray[Any]], bits: int, room: int) -> tuple[int, str]:
    """Pack codes of so many bits, or of fewer if they take more than `room` characters."""
    packed = _packed(codes(bits), bits)
    while len(packed) > room and bits > FEWEST_BITS:
        bits = max(FEWEST_BITS, bits - 4)
        packed = _packed(codes(bits), bits)
    return bits, packed


def _signed_codes(values: NDArray[np.float64], scale: float, bits: int) -> NDArray[Any]:
    """Return numbers from -scale to scale as codes, 0 exactly in the middle."""
    middle = 2 ** (bits - 1) - 1
    codes: NDArray[Any] = (np.rint(values / scale * middle) + middle).astype(np.uint32)
    return codes


def _packed(codes: NDArray[Any], bits: int) -> str:
    width = -(-bits // 8)
    octets = codes.astype(">u4").reshape(-1).view(np.uint8).reshape(-1, 4)[:, 4 - width :]
    return base64.b64encode(zlib.compress(octets.T.tobytes(), 6)).decode("ascii")


def _unpacked(text: Any, count: int, bits: int, name: str) -> NDArray[Any]:
    width = -(-bits // 8)
    try:
        packed = base64.b64decode(text, validate=True)
        reader = zlib.decompressobj()
        # One byte more than there can be tells a file that is too long, however long it is.
        octets = reader.decompress(packed, width * count + 1)
    except (TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise OptionError(f"{name} of a trace cannot be unpacked: {error}") from error
    if len(octets) != width * count:
        raise OptionError(f"{name} of a trace is not {count} numbers of {bits} bits")
    planes = np.frombuffer(octets, dtype=np.uint8).reshape(width, count)
    codes = np.zeros(count, dtype=np.uint32)
    for plane in planes:
        codes = codes << np.uint32(8) | plane
    return codes.astype(np.uint16) if bits <= 16 else codes
