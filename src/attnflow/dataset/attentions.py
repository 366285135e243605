"""Attention without its model: kept in files by a run, or any array of attention weights.

A run with `keep=("attentions",)` writes one safetensors file per shard. For row 3 it contains

    3           the attention, heads fused: float16 or float32 of shape (L, n, n)
    3.mask      the offsets, from -(n - 1) to n - 1, that a layer attends over: bool, (L, 2 n - 1)
    3.residual  the share of the residual, float32 of shape (L, n), if the edges measure it
    3.about     JSON as UTF-8 bytes: the text, its tokens, the prediction and more

The metadata of the file has, under "attnflow", the model, its fingerprint, its task and all
options. `TextAttention.explain` then gives the same explanations as the model's explainer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from attnflow.attention import TextAttention
from attnflow.errors import AttnflowError, DataError, MissingExtraError, OptionError
from attnflow.explain import reads_of
from attnflow.explanation import Prediction
from attnflow.fields import Segment
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import Encoded
from attnflow.models.text import TextAdapter
from attnflow.scoring import mask_of

FORMAT: Final = "attnflow.attentions"
VERSION: Final = 1
DTYPES: Final = ("float16", "float32")


# ---- Keeping -------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """What a file keeps of one text: arrays by the suffix of their names, and the JSON record."""

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any]


def keep_attention(
    adapter: TextAdapter,
    graph: AttentionGraph,
    text: Encoded,
    found: Mapping[str, Any],
    dtype: str,
    reads: NDArray[np.float64] | None,
) -> Kept:
    """Return what is kept of one text.

    Args:
        adapter: The model's adapter.
        graph: The text's graph.
        text: The text.
        found: Its "position", "prediction" and "target".
        dtype: "float16" or "float32".
        reads: What the model's head reads of each position; None if it is not known.
    """
    arrays: dict[str, NDArray[Any]] = {
        "": graph.attention.astype(dtype),
        ".mask": mask_of(graph),
    }
    if not isinstance(graph.residual, float):
        arrays[".residual"] = graph.residual.astype(np.float32)
    try:
        auto = reads_of(adapter.weights(text, "auto", reads, graph.causal))
    except AttnflowError:  # a masked language model, and a text without a mask
        auto = []
    # A learned sink is the first position of the graph.
    shown = text.with_sink() if graph.sink else text
    auto = [read._replace(position=read.position + graph.sink) for read in auto]
    about = {
        "text": text.tokens.text,
        "tokens": shown.tokens.names,
        "spans": shown.tokens.spans,
        "special": shown.tokens.special,
        "places": {
            "auto": [read.position for read in auto],
            **{
                name: [shown.node(place) for place in adapter.places(text, name)]
                for name in ("cls", "mask")
            },
        },
        "reads": auto,
        "sink": graph.sink,
        **({"segments": text.tokens.segments} if text.tokens.segments else {}),
        **found,
    }
    return Kept(arrays, about)


def attentions_file(
    kept: Sequence[tuple[int, Any, Kept]], dtype: str, metadata: Mapping[str, Any]
) -> bytes | None:
    """Return the file of a shard's attention; None if there is none.

    Args:
        kept: The number of each row, its id, and what is kept of it.
        dtype: "float16" or "float32".
        metadata: The model, its fingerprint, its task and the options.
    """
    if not kept:
        return None
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    for number, name, item in kept:
        about = {"row": number, "id": name, **item.about}
        content = json.dumps(about, ensure_ascii=False, default=str).encode()
        for ending, array in item.arrays.items():
            arrays[f"{number}{ending}"] = np.ascontiguousarray(array)
        arrays[f"{number}.about"] = np.frombuffer(content, dtype=np.uint8)
    head = {"format": FORMAT, "version": VERSION, "dtype": dtype, **metadata}
    # One entry only: safetensors writes several entries in random order.
    described = {"attnflow": json.dumps(head, sort_keys=True, ensure_ascii=False)}
    return bytes(save(arrays, metadata=described))


def require_safetensors(what: str) -> None:
    """Check that safetensors is installed.

    Args:
        what: What needs it, for the error.

    Raises:
        MissingExtraError: If it is not installed.
    """
    if find_spec("safetensors") is None:
        raise MissingExtraError(f'{what} needs safetensors; run: pip install "attnflow[data]"')


# ---- Reading -------------------------------------------------------------------------------------


class _File(NamedTuple):
    """A file of kept attention: its rows and its metadata."""

    path: Path
    rows: tuple[int, ...]
    head: dict[str, Any]


class Attentions(Sequence[TextAttention]):
    """The attention of many texts, a sequence of `TextAttention`, read when it is accessed.

    `load_attentions` makes it.

    Attributes:
        rows: The numbers of the rows, in the order of the files; empty for an array of weights.
        model: The name of the model, or of the file.
        options: The options of the run that kept them; empty for an array of weights.
    """

    def __init__(self, files: Sequence[_File], alone: TextAttention | None = None) -> None:
        self._alone = alone
        self._where = [(row, file) for file in files for row in file.rows]
        self._places = {row: place for place, (row, _) in enumerate(self._where)}
        self.rows: Final = tuple(self._places)
        self.model: Final[str] = alone.model if alone is not None else files[0].head["model"]
        self.options: Final[dict[str, Any]] = files[0].head["options"] if files else {}
        self._uniform: dict[Any, NDArray[np.float64]] = {}

    def __repr__(self) -> str:
        return f"Attentions(texts={len(self)}, model={self.model!r})"

    def __len__(self) -> int:
        return len(self._where) if self._alone is None else 1

    @overload
    def __getitem__(self, index: int) -> TextAttention: ...

    @overload
    def __getitem__(self, index: slice) -> list[TextAttention]: ...

    def __getitem__(self, index: int | slice) -> TextAttention | list[TextAttention]:
        """Return the attention of the text at an index, or of several."""
        if self._alone is not None:
            return [self._alone][index]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row, file = self._where[index]
        with _opened(file.path) as content:
            return self._read(content, row, file)

    def __iter__(self) -> Iterator[TextAttention]:
        """Yield the attention of each text."""
        if self._alone is not None:
            yield self._alone
        for content, row, file in self._contents():
            yield self._read(content, row, file)

    def row(self, number: int) -> TextAttention:
        """Return the attention of a row.

        Args:
            number: The row's number in the source of the run.

        Raises:
            OptionError: If there is no such row.
        """
        if number not in self._places:
            raise OptionError(f"there is no attention of row {number}; {self._there()}")
        return self[self._places[number]]

    def named(self, name: Any) -> TextAttention:
        """Return the attention of the first row with an id.

        Args:
            name: The id, or the id as a string.

        Raises:
            OptionError: If there is no such row.
        """
        for content, row, file in self._contents():
            if str(_about(content, row, file)["id"]) == str(name):
                return self._read(content, row, file)
        raise OptionError(f"there is no row with the id {name!r}; {self._there()}")

    def _there(self) -> str:
        if not self.rows:
            return "this is an array of weights, which has no rows"
        return f"there are {len(self.rows)} rows, from {min(self.rows)} to {max(self.rows)}"

    def _contents(self) -> Iterator[tuple[Any, int, _File]]:
        """Yield every row with its file. Each file is opened once."""
        for file, group in groupby(self._where, key=lambda where: where[1]):
            with _opened(file.path) as content:
                for row, _ in group:
                    yield content, row, file

    def _read(self, content: Any, row: int, file: _File) -> TextAttention:
        about = _about(content, row, file)
        with _damage(file, row):
            names = set(content.keys())
            arrays = {
                suffix: content.get_tensor(f"{row}{suffix}")
                for suffix in ("", ".mask", ".residual")
                if f"{row}{suffix}" in names
            }
            _check_shapes(about, arrays)
            residual, prediction = arrays.get(".residual"), about["prediction"]
            spans = (None if span is None else (span[0], span[1]) for span in about["spans"])
            return TextAttention(
                reads=about.get("reads", ()),
                **{name: about[name] for name in ("text", "id", "places", "position", "target")},
                tokens=tuple(about["tokens"]),
                special=tuple(about["special"]),
                segments=tuple(Segment(*one) for one in about.get("segments", ())),
                **{name: file.head[name] for name in ("model", "task")},
                **{name: file.head["options"][name] for name in ("edges", "heads")},
                attention=arrays[""],
                spans=tuple(spans),
                row=row,
                prediction=None if prediction is None else Prediction(*prediction),
                residual=None if residual is None else residual.astype(np.float64),
                mask=arrays[".mask"],
                sink=bool(about.get("sink", False)),
                uniform=self._uniform,
            )


def load_attentions(
    path: str | os.PathLike[str], tokens: Sequence[str] | None = None
) -> Attentions:
    """Read stored attention, to explain it without the model.

    Args:
        path: The output of a run that kept attentions, one of its .safetensors files, or any file
            of attention weights: a .npy, .npz or .safetensors file with one array of shape
            (L, n, n) or (L, H, n, n), with an array called "attentions", or with one array per
            layer, ordered by the numbers in their names.
        tokens: The tokens of an array of weights. None takes the array "tokens" of the file, or
            numbers them.

    Returns:
        The attention of each text. It is read when it is accessed.

    Raises:
        OptionError: If there is nothing to read at the path, or the tokens do not fit.
        DataError: If a file is damaged.
        AttentionError: If the array is not attention.
        MissingExtraError: If safetensors is needed and not installed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/weights.npy", np.full((2, 3, 3), 1 / 3))
        ...     stored = load_attentions(f"{folder}/weights.npy", ["keys", "open", "doors"])
        >>> stored[0].explain(method="raw").top(1)
        [('keys', 0.3333333333333333)]
    """
    path = Path(path)
    files: list[_File | None] = []
    if path.is_dir():
        inner = path / "attentions"
        paths = sorted((inner if inner.is_dir() else path).glob("part-*.safetensors"))
        if not paths:
            raise OptionError(
                f"{path} has no attentions; attnflow run --keep attentions stores them"
            )
        files = [_read_head(part) for part in paths]
        if None in files:
            raise DataError(f"{paths[files.index(None)]} was not written by attnflow run")
    elif not path.exists():
        raise OptionError(f"{path} does not exist; expected a file of attention, or a run's output")
    elif path.suffix.lower() == ".safetensors":
        files = [_read_head(path)]
    known = [file for file in files if file is not None]
    if not known:
        weights, names = _read_array(path)
        return Attentions([], TextAttention.of(weights, tokens or names, name=path.name))
    if tokens is not None:
        raise OptionError(f"tokens cannot be given: {path} has the tokens of each text")
    return Attentions(known)


@contextmanager
def _damage(file: _File, row: int) -> Iterator[None]:
    """Turn any error in reading a row into a `DataError`."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{file.path} is damaged at row {row}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as content:
            yield content
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read_head(path: Path) -> _File | None:
    """Read the metadata of a file of kept attention; None for any other file."""
    require_safetensors(f"reading {path}")
    with _opened(path) as content:
        written = (content.metadata() or {}).get("attnflow")
        rows = sorted(int(name) for name in content.keys() if name.isdecimal())  # noqa: SIM118
    if written is None:
        return None
    try:
        head = json.loads(written)
        found = {name: head[name] for name in ("format", "version")}
        expected = {"format": FORMAT, "version": VERSION}
        if found != expected or not {"model", "task"} < head.keys():
            raise ValueError(f"it has {found}; expected {expected}, a model and a task")
        if not {"edges", "heads"} <= head["options"].keys():
            raise ValueError("its options have no edges or no heads")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} has no attention that this release of attnflow can read: {error!r}"
        ) from error
    return _File(path, tuple(rows), head)


def _about(content: Any, row: int, file: _File) -> dict[str, Any]:
    with _damage(file, row):
        about = json.loads(content.get_tensor(f"{row}.about").tobytes())
        return {"id": about["id"], **about}


def _check_shapes(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    layers, count = len(arrays[""]), len(about["tokens"])
    expected = {
        "": (layers, count, count),
        ".mask": (layers, 2 * count - 1),
        ".residual": (layers, count),
    }
    for suffix, array in arrays.items():
        if array.shape != expected[suffix]:
            raise ValueError(f"it has {count} tokens, but an array of shape {array.shape}")
    for name in ("spans", "special"):
        if len(about[name]) != count:
            raise ValueError(f"it has {count} tokens, but {len(about[name])} {name}")
    if not {"auto", "cls", "mask"} <= about["places"].keys():
        raise ValueError(f"it has only the named positions {list(about['places'])}")


# ---- Any arrays ----------------------------------------------------------------------------------


def _read_array(path: Path) -> tuple[Any, list[str] | None]:
    """Return the attention weights of a file, and its tokens if it has any."""
    suffix = path.suffix.lower()
    arrays: dict[str, NDArray[Any]] = {}
    try:
        if suffix == ".npy":
            return np.load(path, allow_pickle=False), None
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        elif suffix == ".safetensors":
            with _opened(path) as content:
                for name in content.keys():  # noqa: SIM118 # it is not a mapping
                    arrays[name] = content.get_tensor(name)
        else:
            raise OptionError(
                f"{path} must end in .npy, .npz or .safetensors, or be the output of a run"
            )
    except AttnflowError:
        raise
    except (OSError, ValueError, EOFError) as error:
        reason = str(error)
        # NumPy advises to trust such a file.
        if "pickle" in reason:
            reason = "it is not a NumPy file, is damaged, or has Python objects"
        raise DataError(f"{path} cannot be read: {reason}") from error
    except (TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read: it has a type that NumPy does not have, such as bfloat16 "
            f"({error}); store it as float32"
        ) from error
    tokens = arrays.pop("tokens", None)
    names = None if tokens is None else [str(token) for token in np.ravel(tokens)]
    return _weights_among(arrays, path), names


def _weights_among(arrays: dict[str, NDArray[Any]], path: Path) -> Any:
    if "attentions" in arrays:
        return arrays["attentions"]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    numbers = {name: [int(part) for part in re.findall(r"[0-9]+", name)] for name in arrays}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or not all(numbers.values()):
        raise DataError(
            f"{path} has {', '.join(sorted(arrays)[:5]) or 'nothing'}; expected one array of "
            "attention weights, one called 'attentions', or one per layer with its number in its "
            "name"
        )
    return [arrays[name] for name in sorted(arrays, key=lambda name: (numbers[name], name))]
