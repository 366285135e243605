"""Checks of arguments: plain values, indices, and arrays of attention weights.

Every check takes the argument's value and its name, and returns the value in plain Python or NumPy
types. A value that is not valid raises an error that names the argument, shows the value, and says
what is accepted.
"""

import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import AttentionError, GraphSizeError, OptionError

HEAD_FUSIONS: Final = ("mean", "max", "min", "sum")

# How far the sum of a row of attention may be from 1. Softmax in float32 or float16 stays well
# within this. bfloat16 has 8 significant bits, so rounding alone can change each weight, and with
# it the sum of a row, by one part in 2**8.
ROW_TOLERANCE: Final = 1e-3
BFLOAT16_ROW_TOLERANCE: Final = ROW_TOLERANCE + 2.0**-8

# The fused attention and two arrays of the same size: the edge weights and the rollout of all
# positions, or the integer capacities and the solver's copy of them, which has a few bits more.
_BYTES_PER_EDGE: Final = 25

_NO_WEIGHTS: Final = (
    "a fused attention kernel such as sdpa or flash attention returns no weights; "
    'load the model with attn_implementation="eager"'
)

# The attention of a layer in TransformerLens.
_CACHED: Final = re.compile(r"blocks\.(\d+)\.attn\.hook_pattern")

_LONGEST_VALUE: Final = 60

_T = TypeVar("_T")


# ---- Plain values --------------------------------------------------------------------------------


def invalid(name: str, value: Any, expected: str) -> OptionError:
    """Return the error for an argument whose value is not valid.

    Args:
        name: The argument's name.
        value: Its value; a long one is shortened.
        expected: What is accepted.

    Returns:
        The error, to be raised by the caller.

    Example:
        >>> invalid("layer", "last", "an integer")
        OptionError("layer is 'last'; expected an integer")
    """
    text = repr(value)
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 3]}..."
    return OptionError(f"{name} is {text}; expected {expected}")


def integer(
    value: Any,
    name: str,
    *,
    least: int | None = None,
    most: int | None = None,
    otherwise: str = "",
) -> int:
    """Return an integer.

    Args:
        value: A Python or NumPy integer, or anything else with ``__index__``. Booleans and floats
            are not accepted.
        name: The argument's name, for the error.
        least: The smallest valid value. None means no limit.
        most: The largest valid value. None means no limit.
        otherwise: What else the caller accepts, for the error, such as "None for all of them".

    Returns:
        The integer.

    Raises:
        OptionError: If it is not an integer, or out of range.

    Example:
        >>> integer(3, "batch_size", least=1)
        3
        >>> integer(0, "batch_size", least=1)
        Traceback (most recent call last):
        attnflow.errors.OptionError: batch_size is 0; expected an integer of 1 or more
    """
    expected = _with_range("an integer", least, most, otherwise)
    # To Python a boolean is an integer, but an argument of True is a mistake.
    if isinstance(value, bool | np.bool_):
        raise invalid(name, value, expected)
    try:
        result = operator.index(value)
    except TypeError:
        raise invalid(name, value, expected) from None
    if (least is not None and result < least) or (most is not None and result > most):
        raise invalid(name, result, expected)
    return result


def number(
    value: Any,
    name: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    otherwise: str = "",
) -> float:
    """Return a finite number.

    Args:
        value: A Python or NumPy number. Booleans are not accepted.
        name: The argument's name, for the error.
        least: The smallest valid value. None means no limit.
        most: The largest valid value. None means no limit.
        above: What a valid value exceeds. None means no limit.
        below: What a valid value stays below. None means no limit.
        otherwise: What else the caller accepts, for the error, such as "None".

    Returns:
        The number, as a float.

    Raises:
        OptionError: If it is not a number, not finite, or out of range.

    Example:
        >>> number(1, "residual", least=0, most=1)
        1.0
        >>> number(1, "confidence_level", above=0, below=1)
        Traceback (most recent call last):
        attnflow.errors.OptionError: confidence_level is 1; expected a number above 0 and below 1
    """
    try:
        real = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
        result = float(value) if real else float("nan")
    except OverflowError:  # an integer that no float can hold
        result = float("inf")
    if (
        not np.isfinite(result)
        or (least is not None and result < least)
        or (most is not None and result > most)
        or (above is not None and result <= above)
        or (below is not None and result >= below)
    ):
        raise invalid(
            name, value, _with_range("a number", least, most, otherwise, above=above, below=below)
        )
    return result


def switch(value: Any, name: str) -> bool:
    """Return a boolean.

    Args:
        value: True or False, of Python or of NumPy. Nothing else is converted.
        name: The argument's name, for the error.

    Returns:
        The boolean.

    Raises:
        OptionError: If it is not a boolean.

    Example:
        >>> switch("yes", "truncate")
        Traceback (most recent call last):
        attnflow.errors.OptionError: truncate is 'yes'; expected True or False
    """
    if not isinstance(value, bool | np.bool_):
        raise invalid(name, value, "True or False")
    return bool(value)


def choice(value: Any, name: str, choices: Collection[_T], *, otherwise: str = "") -> _T:
    """Return one of some values.

    Args:
        value: The value.
        name: The argument's name, for the error.
        choices: The valid values: strings, booleans, None. A boolean is not taken for 0 or 1.
        otherwise: What else the caller accepts, for the error, such as "the index of a head".

    Returns:
        The valid value that `value` equals.

    Raises:
        OptionError: If it is none of them. The message lists them.

    Example:
        >>> choice("rollout", "method", ("raw", "rollout", "flow"))
        'rollout'
        >>> choice("flo", "method", ("raw", "rollout", "flow"))
        Traceback (most recent call last):
        attnflow.errors.OptionError: method is 'flo'; expected 'raw', 'rollout' or 'flow'
    """
    given = bool(value) if isinstance(value, np.bool_) else value
    for valid in choices:
        same = isinstance(given, type(valid)) and isinstance(given, bool) is isinstance(valid, bool)
        if same and given == valid:
            return valid
    raise invalid(name, value, either([*map(repr, choices), *([otherwise] if otherwise else [])]))


def string(value: Any, name: str) -> str:
    """Return a string that can be written as UTF-8.

    Args:
        value: The string.
        name: The argument's name, for the error.

    Returns:
        The string.

    Raises:
        OptionError: If it is not a string, or contains a lone surrogate.

    Example:
        >>> string(b"keys", "text")
        Traceback (most recent call last):
        attnflow.errors.OptionError: text is b'keys'; expected a string
    """
    if not isinstance(value, str):
        raise invalid(name, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{name} contains a lone surrogate, {value[error.start]!r}, at index {error.start}; "
            "it cannot be stored"
        ) from None
    return str(value)


def items(
    values: Any,
    name: str,
    what: str = "integers",
    *,
    allow_empty: bool = False,
    otherwise: str = "",
) -> list[Any]:
    """Return the items of a list.

    Args:
        values: A list, a tuple, an array or any other iterable, but not a string or a mapping.
        name: The argument's name, for the error.
        what: What the items are, in the plural, for the error.
        allow_empty: Whether the list may be empty.
        otherwise: What else the caller accepts, for the error, such as "None for all".

    Returns:
        The items, those of arrays as Python numbers.

    Raises:
        OptionError: If it is not a list, or empty.

    Example:
        >>> items(range(3), "layers")
        [0, 1, 2]
        >>> items(3, "layers")
        Traceback (most recent call last):
        attnflow.errors.OptionError: layers is 3; expected a list of integers
    """
    expected = _with_range(f"a list of {what}", None, None, otherwise)
    given = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise invalid(name, values, expected)
    result = list(given)
    if not result and not allow_empty:
        raise OptionError(f"{name} is empty; expected {expected}")
    return result


def strings(
    values: Any, name: str, *, allow_empty: bool = False, otherwise: str = ""
) -> tuple[str, ...]:
    """Return the strings of a list. A single string is not a list of strings.

    Args:
        values: A list, a tuple or any other iterable of strings.
        name: The argument's name, for the error.
        allow_empty: Whether the list may be empty.
        otherwise: What else the caller accepts, for the error, such as "None for all".

    Returns:
        The strings.

    Raises:
        OptionError: If it is not a list, is empty, or has an item that is not a string.

    Example:
        >>> strings(["raw", 3], "methods")
        Traceback (most recent call last):
        attnflow.errors.OptionError: methods[1] is 3; expected a string
    """
    given = items(values, name, "strings", allow_empty=allow_empty, otherwise=otherwise)
    return tuple(string(item, f"{name}[{i}]") for i, item in enumerate(given))


def _with_range(
    what: str,
    least: float | None,
    most: float | None,
    otherwise: str,
    *,
    above: float | None = None,
    below: float | None = None,
) -> str:
    """Return a description of the values from `least` to `most`, above `above`, below `below`."""
    limits = []
    if least is not None and most is not None:
        limits.append(f"from {least:,} to {most:,}")
    elif least is not None:
        limits.append(f"of {least:,} or more")
    elif most is not None:
        limits.append(f"of {most:,} or less")
    if above is not None:
        limits.append(f"above {above:,}")
    if below is not None:
        limits.append(f"below {below:,}")
    described = " ".join([what, " and ".join(limits)]).strip()
    return f"{described}, or {otherwise}" if otherwise else described


def either(parts: list[str]) -> str:
    """Return "a", "a or b", "a, b or c" and so on, for an error."""
    return " or ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


# ---- Indices -------------------------------------------------------------------------------------


def resolve_index(value: Any, count: int, name: str, what: str, *, first: int = 0) -> int:
    """Return an index that counts from `first`; a negative one counts from the end.

    Args:
        value: The index given.
        count: How many there are.
        name: The argument's name, for the error.
        what: What is counted, in the plural, for the error.
        first: The index of the first one.

    Returns:
        The index, from `first` to ``first + count - 1``.

    Raises:
        OptionError: If `value` is not an integer or out of range.

    Example:
        >>> resolve_index(-1, 6, "layer", "layers", first=1)
        6
    """
    index = integer(value, name)
    last = first + count - 1
    resolved = index + last + 1 if index < 0 else index
    if not first <= resolved <= last:
        raise OptionError(
            f"{name} is {index}, but there are {count} {what}: "
            f"expected {first} to {last}, or {-count} to -1 from the end"
        )
    return resolved


def resolve_layer(layer: Any, count: int, name: str = "layer") -> int:
    """Return a layer's number, from 1 to L.

    Args:
        layer: The layer, from 1; -1 is the last.
        count: The number of layers, L.
        name: The argument's name, for the error.

    Returns:
        The layer's number.

    Raises:
        OptionError: If it is not an integer or there is no such layer.
    """
    return resolve_index(layer, count, name, "layers", first=1)


def resolve_layers(layers: Any, count: int) -> NDArray[np.int64]:
    """Return the numbers of some layers, from 1 to L.

    Args:
        layers: The layers, from 1; -1 is the last. None means all.
        count: The number of layers, L.

    Returns:
        The layers' numbers, in the order given.

    Raises:
        OptionError: If it is not a list of integers, is empty, or there is no such layer.

    Example:
        >>> resolve_layers([1, -1], 6)
        array([1, 6])
    """
    if layers is None:
        return np.arange(1, count + 1, dtype=np.int64)
    given = items(layers, "layers", otherwise="None for all of them")
    return np.array(
        [resolve_layer(item, count, f"layers[{i}]") for i, item in enumerate(given)],
        dtype=np.int64,
    )


def resolve_position(position: Any, padding: NDArray[np.bool_], name: str = "position") -> int:
    """Return the index of a position or token, from 0 to n - 1.

    Args:
        position: The index, from 0; a negative one counts from the end.
        padding: Boolean array of shape (n,), True where padded.
        name: The argument's name, for the error.

    Returns:
        The index.

    Raises:
        OptionError: If it is not an integer, out of range, or that of a padded position.
    """
    index = resolve_index(position, len(padding), name, "tokens")
    if padding[index]:
        raise OptionError(f"{name} is {index}, which is a padded position of this AttentionGraph")
    return index


def resolve_positions(
    positions: Any, padding: NDArray[np.bool_], name: str = "positions"
) -> NDArray[np.int64]:
    """Return the indices of some positions or tokens, from 0 to n - 1.

    Args:
        positions: The indices, from 0; a negative one counts from the end. None means all, padded
            ones included.
        padding: Boolean array of shape (n,), True where padded.
        name: The argument's name, for the error.

    Returns:
        The indices, in the order given.

    Raises:
        OptionError: If it is not a list of integers, is empty, or has an index that is out of range
            or that of a padded position.

    Example:
        >>> resolve_positions([0, -1], np.zeros(5, dtype=bool))
        array([0, 4])
    """
    if positions is None:
        return np.arange(len(padding), dtype=np.int64)
    given = items(positions, name, otherwise="None for all of them")
    return np.array(
        [resolve_position(item, padding, f"{name}[{i}]") for i, item in enumerate(given)],
        dtype=np.int64,
    )


# ---- The options of a graph ----------------------------------------------------------------------


def resolve_heads(heads: Any, head_count: int | None, name: str = "attentions") -> str | int:
    """Return a head fusion, or the index of a head.

    Args:
        heads: One of `HEAD_FUSIONS`, or an index; a negative one counts from the end.
        head_count: The number of heads, None if the attention has no head axis.
        name: The name of the attention's argument, for the error.

    Returns:
        The fusion, or the index, from 0.

    Raises:
        OptionError: If it is neither, or there is no such head.
    """
    if isinstance(heads, str):
        return choice(heads, "heads", HEAD_FUSIONS, otherwise="the index of a head")
    index = integer(heads, "heads", otherwise=either([repr(fusion) for fusion in HEAD_FUSIONS]))
    if head_count is None:
        raise OptionError(f"heads={index} selects a head, but {name} has no head axis")
    return resolve_index(index, head_count, "heads", "heads")


def resolve_residual(residual: Any, layers: int, tokens: int) -> float | NDArray[np.float64]:
    """Return the residual share of a graph.

    Args:
        residual: A number from 0 to 1, or an array of them with one for each layer and position.
        layers: The number of layers, L.
        tokens: The number of tokens, n.

    Returns:
        The number; or a copy of the array, float64 of shape (L, n), read-only.

    Raises:
        OptionError: If it is neither, or out of range.
    """
    if getattr(residual, "ndim", 0) == 0 and not isinstance(residual, list | tuple):
        return number(residual, "residual", least=0, most=1)
    try:
        given = np.asarray(residual)
    except (RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"residual cannot be read as an array: {error}") from error
    if given.dtype.kind not in "fiu":
        raise OptionError(f"residual is an array of type {given.dtype}; expected real numbers")
    if given.shape != (layers, tokens):
        raise OptionError(
            f"residual is an array of shape {given.shape}; expected {(layers, tokens)}, a share "
            "for each layer and position, or one number"
        )
    shares = given.astype(np.float64)
    bad = np.argwhere(~((shares >= 0.0) & (shares <= 1.0)))  # NaN too
    if len(bad):
        layer, position = bad[0]
        raise OptionError(
            f"residual contains {shares[layer, position]} at layer {layer + 1}, position "
            f"{position}; expected a number from 0 to 1"
        )
    shares.flags.writeable = False
    return shares


def resolve_padding(padding: Any, tokens: int) -> NDArray[np.bool_]:
    """Return which positions are padded.

    Args:
        padding: Indices of positions, or a boolean array of shape (n,), or None for no padding.
        tokens: The number of tokens, n.

    Returns:
        Boolean array of shape (n,), True where padded, read-only.

    Raises:
        OptionError: If it is neither, if an index is out of range or given twice, or if every
            position is padded.
    """
    mask = np.zeros(tokens, dtype=np.bool_)
    if padding is not None:
        what = f"indices, or a boolean array of length {tokens}"
        values = items(padding, "padding", what, allow_empty=True)
        if values and all(isinstance(value, bool | np.bool_) for value in values):
            if len(values) != tokens:
                raise OptionError(
                    f"padding is a boolean array of length {len(values)}; "
                    f"expected one entry for each of the {tokens} tokens"
                )
            mask[:] = values
        else:
            for i, value in enumerate(values):
                index = resolve_index(value, tokens, f"padding[{i}]", "tokens")
                if mask[index]:
                    # A mask of zeros and ones would otherwise be read as a list of indices.
                    raise OptionError(
                        f"padding has position {index} twice; a mask must be boolean, "
                        "True where padded, such as attention_mask == 0"
                    )
                mask[index] = True
        if mask.all():
            raise OptionError(f"padding has all {tokens} positions; at least one must be left")
    mask.flags.writeable = False
    return mask


# ---- Memory --------------------------------------------------------------------------------------


def available_memory() -> int | None:
    """Return the bytes of memory that are available, or None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def check_memory(
    layers: int, tokens: int, *, needed: int | None = None, seconds: float | None = None
) -> None:
    """Check that a graph fits into memory, with what a method makes of it.

    Args:
        layers: The number of layers.
        tokens: The number of tokens.
        needed: The bytes that are needed. None means those of any graph that is used.
        seconds: For attention flow, how long it will take, which the error says too.

    Raises:
        GraphSizeError: If it does not. The error says what is needed and what is available, and
            what needs less.
    """
    if needed is None:
        needed = _BYTES_PER_EDGE * layers * tokens * tokens
    available = available_memory()
    if available is None or needed <= available:
        return
    memory = f"about {needed / 1e9:,.1f} GB of memory"
    if seconds is None:
        found = f"attentions of {tokens} tokens and {layers} layers need {memory}"
        less = "shorten the text"
    else:
        found = (
            f"flow over {tokens} tokens and {layers} layers needs {memory} and {_duration(seconds)}"
        )
        less = "shorten the text or ask for fewer positions"
    raise GraphSizeError(
        f"{found}, but {available / 1e9:,.1f} GB are available; {less}, or explain the model's "
        "text with method='contribution' or method='rollout', which need no graph"
    )


def copies_that_fit(copies: int, size: int, before: int = 0) -> int:
    """Return how many copies of something fit into memory, at least one.

    Args:
        copies: The most that are wanted.
        size: The bytes of a copy, which may be 0.
        before: The bytes that will be taken before the first copy.

    Example:
        >>> copies_that_fit(4, size=1)
        4
        >>> copies_that_fit(4, size=10**18)
        1
    """
    available = available_memory()
    if available is None or before + copies * size <= available:
        return copies
    return max(1, (available - before) // max(1, size))


def _duration(seconds: float) -> str:
    """Return about how long something takes, in words.

    Example:
        >>> [_duration(seconds) for seconds in (0.2, 42, 300, 30_000)]
        ['about a second', 'about 42 seconds', 'about 5 minutes', 'about 8 hours']
    """
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"about {seconds / size:,.0f} {unit}"
    return f"about {seconds:.0f} seconds" if seconds >= 1.5 else "about a second"


# ---- Attention weights: shapes and types, without reading an element -----------------------------


class Stack(NamedTuple):
    """Attention as given, split into layers of the same size. Made by `read_layers`.

    Attributes:
        name: The argument's name.
        arrays: One array a layer, of any library, each of shape (H, rows, n), or (rows, n) without
            a head axis.
        head_count: The number of heads, H; None without a head axis.
        rows: The number of rows, n for self-attention.
        tokens: The number of columns, n.
    """

    name: str
    arrays: list[Any]
    head_count: int | None
    rows: int
    tokens: int

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.arrays)

    def read(self, layer: int) -> NDArray[np.floating[Any]]:
        """Return the weights of a layer, from 0: float32 or float64 of shape (H, rows, n)."""
        weights = _read_weights(self.arrays[layer], f"layer {layer + 1} of {self.name}")
        return weights.reshape(-1, self.rows, self.tokens)

    def fuse_layer(
        self,
        layer: int,
        heads: str | int,
        *,
        rows: NDArray[np.int64] | None = None,
        columns: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """Check the weights of a layer and fuse its heads.

        Args:
            layer: The layer, from 0.
            heads: The head fusion, or the index of a head.
            rows: The rows to read. None means all.
            columns: The columns to read; the others must have no weight. None means all.

        Returns:
            The fused rows, which sum to 1.

        Raises:
            AttentionError: If a weight is NaN, infinite or negative, if a row does not sum to 1, or
                if `columns` leaves out weight.
        """
        weights = self.read(layer)
        if rows is None:
            rows = np.arange(self.rows)
        else:
            weights = weights[:, rows]
        places = _Places(self.name, layer, self.head_count is not None, rows)
        bfloat16 = _dtype_name(self.arrays[layer]) == "bfloat16"
        tolerance = BFLOAT16_ROW_TOLERANCE if bfloat16 else ROW_TOLERANCE
        _check_weights(weights, tolerance, places)
        if columns is not None:
            _check_left_out(np.delete(weights, columns, axis=2), tolerance, places)
            weights = weights[:, :, columns]
        return _fuse_heads(weights, heads, places)


def read_layers(attentions: Any, name: str = "attentions", *, square: bool = True) -> Stack:
    """Split attention into layers, and check every shape and type. No element is read.

    Args:
        attentions: One array, a list or tuple of one array a layer, or a cache of TransformerLens,
            as `AttentionGraph` takes them.
        name: The argument's name, for errors.
        square: Whether every layer must have as many rows as columns.

    Returns:
        The layers.

    Raises:
        AttentionError: If a shape or type is not valid.
    """
    if not isinstance(attentions, list | tuple):
        _check_type(attentions, name)
    if _is_mapping(attentions):
        attentions = _cached(attentions, name)
    if isinstance(attentions, list | tuple):
        if not attentions:
            raise AttentionError(f"{name} is an empty {type(attentions).__name__}: {_NO_WEIGHTS}")
        arrays = [
            _read_array(item, f"layer {layer} of {name}", name, square, lead=0)
            for layer, item in enumerate(attentions, 1)
        ]
    else:
        whole = _read_array(attentions, name, name, square, lead=1)
        arrays = [whole[layer] for layer in range(whole.shape[0])]
        if not arrays:
            raise AttentionError(f"{name} has shape {tuple(whole.shape)}, which has no layers")
    first = tuple(arrays[0].shape)
    for layer, array in enumerate(arrays, 1):
        where, shape = f"layer {layer} of {name}", tuple(array.shape)
        if square and shape[-1] != shape[-2]:
            raise AttentionError(f"{where} has shape {shape}; expected a square matrix")
        if 0 in shape:
            raise AttentionError(f"{where} is empty: its shape is {shape}")
        if shape != first:
            raise AttentionError(f"{where} has shape {shape}, but layer 1 has {first}")
        if not _dtype_name(array).startswith(("float", "bfloat", "int", "uint")):
            raise AttentionError(f"{where} has type {_dtype_name(array)}; expected real numbers")
    heads = int(first[0]) if len(first) == 3 else None
    return Stack(name, arrays, heads, int(first[-2]), int(first[-1]))


def _check_type(attentions: Any, name: str) -> None:
    """Check that an argument is an array, and not the whole output of a model."""
    kind = type(attentions).__name__
    if hasattr(attentions, "attentions") or hasattr(attentions, "cross_attentions"):
        raise AttentionError(
            f"{name} is a {kind}, the whole output of a model; pass its field output.attentions, "
            "or for an encoder-decoder encoder_decoder_graph(output.encoder_attentions, "
            "output.decoder_attentions, output.cross_attentions)"
        )
    arrays = hasattr(attentions, "shape") or hasattr(attentions, "__array__")
    if attentions is not None and not arrays and not _is_mapping(attentions):
        raise AttentionError(
            f"{name} is of type {kind}; expected an array, or a list or tuple of one array a layer"
        )


def _is_mapping(value: Any) -> bool:
    """Return whether something is a mapping, as a cache is. A data frame is an array."""
    return hasattr(value, "keys") and not hasattr(value, "__array__")


def _cached(cache: Any, name: str) -> list[Any]:
    """Return the attention of every layer in a cache of TransformerLens."""
    found = {
        int(match[1]): cache[key]
        for key in cache.keys()  # noqa: SIM118 # an ActivationCache is no dictionary
        if (match := _CACHED.fullmatch(str(key)))
    }
    kind = type(cache).__name__
    if not found:
        raise AttentionError(
            f"{name} is of type {kind}, without 'blocks.0.attn.hook_pattern'; expected an array, a "
            "list or tuple of one array a layer, or the cache of a TransformerLens model"
        )
    layers = range(max(found) + 1)
    missing = [layer for layer in layers if layer not in found]
    if missing:
        raise AttentionError(
            f"{name} is of type {kind}, without 'blocks.{missing[0]}.attn.hook_pattern'; expected "
            f"all layers from 0 to {layers[-1]}: names_filter may have left some out"
        )
    shape = tuple(found[0].shape)
    if len(shape) == 4 and shape[0] != 1:
        raise AttentionError(
            f"{name} is of type {kind}, a batch of {shape[0]} texts; expected one: select text k "
            f'with [{name}["blocks.%d.attn.hook_pattern" % i][k] for i in range({len(layers)})]'
        )
    return [found[layer] for layer in layers]


def _read_array(value: Any, where: str, name: str, square: bool, *, lead: int) -> Any:
    """Return an array of any library, without the axis of a batch of one text.

    The batch axis, if there is one, comes after `lead` axes: 1 for all layers, 0 for one layer.
    """
    if value is None:
        raise AttentionError(f"{where} is None: {_NO_WEIGHTS}")
    try:
        array = value if hasattr(value, "shape") else np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise AttentionError(f"{where} cannot be read as an array: {error}") from error
    shape = tuple(array.shape)
    axes = len(shape) - lead
    if axes not in (2, 3, 4):
        layers, sides = "L, " * lead, "n, n" if square else "m, n"
        raise AttentionError(
            f"{where} has shape {shape}; expected ({layers}{sides}), ({layers}H, {sides}) or "
            f"({layers}1, H, {sides})"
        )
    if axes < 4:
        return array
    if shape[lead] != 1:
        selection = f"{name}[:, k]" if lead else f"[layer[k] for layer in {name}]"
        raise AttentionError(
            f"{where} has shape {shape}, a batch of {shape[lead]} texts; expected one: select "
            f"text k with {selection}"
        )
    return array[:, 0] if lead else array[0]


def _dtype_name(array: Any) -> str:
    """Return the name of an array's type, such as "float32", for NumPy and torch alike."""
    dtype = getattr(array, "dtype", None)
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


# ---- Attention weights: elements -----------------------------------------------------------------


def _read_weights(array: Any, where: str) -> NDArray[np.floating[Any]]:
    """Return a layer's weights as float32 or float64, without a copy if possible."""
    try:
        if hasattr(array, "detach"):
            array = array.detach().cpu()
            if _dtype_name(array).startswith(("bfloat", "float8")):
                # NumPy does not know these types, and float32 holds them exactly.
                array = array.float()
            array = array.numpy()
        weights = np.asarray(array)
        if weights.dtype not in (np.float32, np.float64):
            weights = weights.astype(np.float32 if weights.dtype.itemsize < 4 else np.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        raise AttentionError(f"{where} cannot be read as an array: {error}") from error
    return weights


class _Places(NamedTuple):
    """Describes a place in a layer, for errors; `rows` are the positions of the rows read."""

    argument: str
    layer: int
    has_heads: bool
    rows: NDArray[np.int64]

    def describe(self, head: int, row: int, column: int | None = None) -> str:
        parts = [f"layer {self.layer + 1}"]
        if self.has_heads:
            parts.append(f"head {head}")
        parts.append(f"row {self.rows[row]}")
        if column is not None:
            parts.append(f"column {column}")
        return ", ".join(parts)


def _check_weights(weights: NDArray[np.floating[Any]], tolerance: float, places: _Places) -> None:
    """Check the weights of a layer, of shape (H, rows, n)."""
    # The product takes a quarter of the time of a sum, and float32 is precise enough for 1e-3.
    with np.errstate(all="ignore"):
        sums = weights @ np.ones(weights.shape[2], weights.dtype)
    # A sum is NaN or infinite if one of its terms is, so usually no second pass is needed.
    if not np.isfinite(sums).all():
        bad = np.argwhere(~np.isfinite(weights))
        if len(bad):
            head, row, column = bad[0]
            raise AttentionError(
                f"{places.argument} contains {weights[head, row, column]} at "
                f"{places.describe(head, row, column)}; expected a finite number"
            )
    if weights.min() < 0:
        head, row, column = np.argwhere(weights < 0)[0]
        raise AttentionError(
            f"{places.argument} contains a negative weight, {weights[head, row, column]:.6g}, at "
            f"{places.describe(head, row, column)}; expected 0 or more"
        )
    if not sums.all():
        head, row = np.argwhere(sums == 0)[0]
        remedy = (
            f"leave it out, or say so: AttentionGraph(attentions, padding=[{places.rows[row]}])"
            if places.argument == "attentions"
            else "leave it out"
        )
        raise AttentionError(
            f"{places.argument} contains a row of zeros at {places.describe(head, row)}; if the "
            f"position is padded, {remedy}"
        )
    off = np.abs(sums - 1.0)
    if off.max() > tolerance:
        head, row = np.unravel_index(off.argmax(), off.shape)
        raise AttentionError(
            f"{places.argument} has rows that do not sum to 1: the row at "
            f"{places.describe(head, row)} sums to {sums[head, row]:.6g}, off by "
            f"{off[head, row]:.2g}; at most {tolerance:.1g} is allowed. Dropout causes this while "
            "a model is in train mode: call model.eval() first"
        )


def _check_left_out(weights: NDArray[np.floating[Any]], tolerance: float, places: _Places) -> None:
    """Check that the columns left out, those of padded positions, have almost no weight."""
    sums = weights.sum(axis=2, dtype=np.float64)
    if sums.max() > tolerance:
        head, row = np.unravel_index(sums.argmax(), sums.shape)
        raise AttentionError(
            f"{places.argument} has weight on padded positions: {sums[head, row]:.6g} of the row "
            f"at {places.describe(head, row)}; expected 0, as a model with an attention mask gives"
        )


def _fuse_heads(
    weights: NDArray[np.floating[Any]], heads: str | int, places: _Places
) -> NDArray[np.float64]:
    """Fuse weights of shape (H, rows, columns) into float64 rows that sum to 1."""
    fused: NDArray[np.float64]
    if isinstance(heads, int):
        fused = weights[heads].astype(np.float64)
    elif heads == "max":
        fused = weights.max(axis=0).astype(np.float64)
    elif heads == "min":
        fused = weights.min(axis=0).astype(np.float64)
    else:
        # The mean and the sum are the same once rows are normalised.
        fused = weights.sum(axis=0, dtype=np.float64)
    sums = fused.sum(axis=1, keepdims=True)
    if not sums.all():
        row = int(np.argmin(sums))
        of = "" if places.argument == "attentions" else f" of {places.argument}"
        raise AttentionError(
            f"heads='min' leaves nothing of layer {places.layer + 1}{of}, row {places.rows[row]}: "
            "no token is attended to by every head; use heads='mean' or 'max'"
        )
    fused /= sums
    return fused
