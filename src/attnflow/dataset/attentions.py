"""Attention without its model: kept in files by a run, or an array of weights from elsewhere.

A run with `keep=("attentions",)` writes a safetensors file a shard. Of row 3 it has

    3           the attention, its heads fused: float16 or float32 of shape (L, n, n)
    3.mask      which offsets, from -(n - 1) to n - 1, a layer attends over: bool, (L, 2 n - 1)
    3.residual  the share of the residual, float32 of shape (L, n), where edges="value_norm"
    3.about     JSON as UTF-8 bytes: its text, tokens, prediction, and what else there is to know

and under "attnflow" in its metadata the model, its fingerprint, its task and all options. With
these, `TextAttention.explain` gives what the model's explainer gives.
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
from attnflow.explanation import Prediction
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import Encoded
from attnflow.models.text import TextAdapter
from attnflow.scoring import mask_of

__all__ = [
    "DTYPES",
    "Attentions",
    "Kept",
    "attentions_file",
    "keep_attention",
    "load_attentions",
    "require_safetensors",
]

FORMAT: Final = "attnflow.attentions"
VERSION: Final = 1
DTYPES: Final = ("float16", "float32")
_ROW: Final = re.compile(r"[0-9]+")


# ---- Keeping -------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """What a file keeps of one text: arrays by the ending of their names, and what JSON holds."""

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any]


def keep_attention(
    adapter: TextAdapter,
    graph: AttentionGraph,
    text: Encoded,
    found: Mapping[str, Any],
    dtype: str,
) -> Kept:
    """Return what is kept of one text.

    Args:
        adapter: What reads texts for the model.
        graph: The text's graph.
        text: The text.
        found: Its "position", "prediction" and "target", as they are stored.
        dtype: "float16" or "float32".
    """
    arrays: dict[str, NDArray[Any]] = {
        "": graph.attention.astype(dtype),
        ".mask": mask_of(graph),
    }
    if not isinstance(graph.residual, float):
        arrays[".residual"] = graph.residual.astype(np.float32)
    try:
        auto = adapter.position(text, "auto", graph.causal)
    except AttnflowError:  # a masked language model, and no mask in the text
        auto = None
    about = {
        "text": text.tokens.text,
        "tokens": text.tokens.names,
        "spans": text.tokens.spans,
        "special": text.tokens.special,
        "places": {
            "auto": [] if auto is None else [auto],
            **{name: adapter.places(text, name) for name in ("cls", "mask")},
        },
        **found,
    }
    return Kept(arrays, about)


def attentions_file(
    kept: Sequence[tuple[int, Any, Kept]], dtype: str, metadata: Mapping[str, Any]
) -> bytes | None:
    """Return the file of a shard's attention; None if there is none to keep.

    Args:
        kept: The number of a row, what names it, and what is kept of it.
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
    # One entry only: safetensors writes several in an order that changes from run to run.
    described = {"attnflow": json.dumps(head, sort_keys=True, ensure_ascii=False)}
    return bytes(save(arrays, metadata=described))


def require_safetensors(what: str) -> None:
    """See that safetensors is installed.

    Args:
        what: What needs it, for the error.

    Raises:
        MissingExtraError: If it is not.
    """
    if find_spec("safetensors") is None:
        raise MissingExtraError(f'{what} needs safetensors; run: pip install "attnflow[data]"')


# ---- Reading -------------------------------------------------------------------------------------


class _File(NamedTuple):
    """A file of kept attention: its rows, and what its metadata say."""

    path: Path
    rows: tuple[int, ...]
    head: dict[str, Any]


class Attentions(Sequence[TextAttention]):
    """The attention of many texts, read from files when it is asked for.

    `load_attentions` makes them. One after the other, or by its place, each is a `TextAttention`.

    Attributes:
        rows: The numbers of the rows whose attention is there, in the order of the files; empty for
            an array from elsewhere.
        model: The name of the model, or of the file.
        options: The options of the run that kept them; empty for an array from elsewhere.
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
        """Return the attention of the text at a place, or of several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} texts, and none at {index}")
        if self._alone is not None:
            return self._alone
        row, file = self._where[index]
        with _opened(file.path) as content:
            return self._read(content, row, file)

    def __iter__(self) -> Iterator[TextAttention]:
        """Yield the attention of each text."""
        if self._alone is not None:
            yield self._alone
        for file, group in groupby(self._where, key=lambda where: where[1]):
            with _opened(file.path) as content:
                for row, _ in group:
                    yield self._read(content, row, file)

    def row(self, number: int) -> TextAttention:
        """Return the attention of a row.

        Args:
            number: The row's number in the source of the run.

        Returns:
            Its attention.

        Raises:
            OptionError: If it is not there.
        """
        if number not in self._places:
            raise OptionError(f"there is no attention of row {number}; {self._there()}")
        return self[self._places[number]]

    def named(self, name: Any) -> TextAttention:
        """Return the attention of the first row with an id.

        Args:
            name: What the row's id is, or how it is written.

        Returns:
            Its attention.

        Raises:
            OptionError: If there is no such row.
        """
        for file, group in groupby(self._where, key=lambda where: where[1]):
            with _opened(file.path) as content:
                for row, _ in group:
                    if str(_about(content, row, file)["id"]) == str(name):
                        return self._read(content, row, file)
        raise OptionError(f"there is no row with the id {name!r}; {self._there()}")

    def _there(self) -> str:
        if not self.rows:
            return "this is an array of weights, which has no rows"
        return f"there are {len(self.rows)} rows, from {min(self.rows)} to {max(self.rows)}"

    def _read(self, content: Any, row: int, file: _File) -> TextAttention:
        about = _about(content, row, file)
        names = set(content.keys())
        try:
            arrays = {
                ending: content.get_tensor(f"{row}{ending}")
                for ending in ("", ".mask", ".residual")
                if f"{row}{ending}" in names
            }
            residual = arrays.get(".residual")
            prediction = about["prediction"]
            _check_shapes(about, arrays)
            return TextAttention(
                attention=arrays[""],
                text=about["text"],
                tokens=tuple(about["tokens"]),
                spans=tuple(
                    None if span is None else (span[0], span[1]) for span in about["spans"]
                ),
                special=tuple(about["special"]),
                model=file.head["model"],
                task=file.head["task"],
                row=row,
                id=about["id"],
                places=about["places"],
                position=about["position"],
                prediction=None if prediction is None else Prediction(*prediction),
                target=about["target"],
                edges=file.head["options"]["edges"],
                heads=file.head["options"]["heads"],
                residual=None if residual is None else residual.astype(np.float64),
                mask=arrays[".mask"],
                uniform=self._uniform,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file.path} is damaged at row {row}: {error}") from error


def load_attentions(
    path: str | os.PathLike[str], tokens: Sequence[str] | None = None
) -> Attentions:
    """Read attention that was stored, to explain it without the model.

    Args:
        path: The output of a run that kept attentions, one of its .safetensors files, or an array
            of attention weights from elsewhere: a .npy, .npz or .safetensors file that has one
            array of shape (L, n, n) or (L, H, n, n), one of several that is called "attentions", or
            an array a layer, in the order of the numbers in their names.
        tokens: The tokens of an array from elsewhere. None takes what the file calls "tokens", or
            numbers them.

    Returns:
        The attention of one text after the other. Nothing but what is asked for is in memory.

    Raises:
        OptionError: If there is nothing to read at the path, or tokens are given that do not fit.
        DataError: If a file is damaged.
        AttentionError: If an array from elsewhere is not attention.
        MissingExtraError: If a .safetensors file is to be read and safetensors is not installed.

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
    if path.is_dir():
        files = _files_in(path)
    elif not path.exists():
        raise OptionError(f"{path} does not exist; expected a file of attention, or a run's output")
    elif path.suffix.lower() == ".safetensors":
        require_safetensors(f"reading {path}")
        known = _read_head(path)
        files = [] if known is None else [known]
    else:
        files = []
    if not files:
        weights, names = _read_array(path)
        return Attentions([], TextAttention.of(weights, tokens or names, name=path.name))
    if tokens is not None:
        raise OptionError(f"{path} has the tokens of each text; leave tokens out")
    return Attentions(files)


def _files_in(folder: Path) -> list[_File]:
    inner = folder / "attentions"
    paths = sorted((inner if inner.is_dir() else folder).glob("part-*.safetensors"))
    if not paths:
        raise OptionError(
            f"{folder} holds no attentions; attnflow run --keep attentions stores them beside its "
            "results"
        )
    require_safetensors(f"reading {folder}")
    files = []
    for path in paths:
        file = _read_head(path)
        if file is None:
            raise DataError(f"{path} was not written by attnflow run --keep attentions")
        files.append(file)
    return files


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as content:
            yield content
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read_head(path: Path) -> _File | None:
    """Return what a file of kept attention has; None if it is another one."""
    with _opened(path) as content:
        written = (content.metadata() or {}).get("attnflow")
        names = list(content.keys())
    if written is None:
        return None
    try:
        head = json.loads(written)
        found, version = head["format"], head["version"]
        usable = isinstance(head["options"], dict) and {"edges", "heads"} <= set(head["options"])
        usable = usable and isinstance(head["model"], str) and isinstance(head["task"], str)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} says nothing that can be read of its attention") from error
    if found != FORMAT or not usable:
        raise DataError(f"{path} has no attention that attnflow run has kept")
    if version != VERSION:
        raise DataError(
            f"{path} has version {version} of {FORMAT}; this release of attnflow reads {VERSION}"
        )
    rows = sorted(int(name) for name in names if _ROW.fullmatch(name))
    return _File(path, tuple(rows), head)


def _about(content: Any, row: int, file: _File) -> dict[str, Any]:
    try:
        about = json.loads(content.get_tensor(f"{row}.about").tobytes())
        return {"id": about["id"], **about}
    except AttnflowError:
        raise
    except Exception as error:  # whatever a damaged file makes of it
        raise DataError(f"{file.path} is damaged at row {row}: {error}") from error


def _check_shapes(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    layers, count = len(arrays[""]), len(about["tokens"])
    expected = {
        "": (layers, count, count),
        ".mask": (layers, 2 * count - 1),
        ".residual": (layers, count),
    }
    for ending, array in arrays.items():
        if array.shape != expected[ending]:
            raise ValueError(
                f"there are {count} tokens, and an array of shape {array.shape} beside them"
            )
    if len(about["spans"]) != count or len(about["special"]) != count:
        raise ValueError(f"there are {count} tokens, and not as many spans")
    if not {"auto", "cls", "mask"} <= set(about["places"]):
        raise ValueError("the positions that have a name are not there")


# ---- Arrays from elsewhere -----------------------------------------------------------------------


def _read_array(path: Path) -> tuple[Any, list[str] | None]:
    """Return the attention weights of a file, and its tokens if it has any."""
    ending = path.suffix.lower()
    try:
        if ending == ".npy":
            return np.load(path, allow_pickle=False), None
        if ending == ".npz":
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        elif ending == ".safetensors":
            with _opened(path) as content:
                there = content.keys()
                arrays = {name: _tensor(content, name, path) for name in there}
        else:
            raise OptionError(
                f"{path} must end in .npy, .npz or .safetensors, or be the output of a run"
            )
    except AttnflowError:
        raise
    except (OSError, ValueError, EOFError) as error:
        reason = str(error)
        # NumPy's advice is to trust such a file.
        if "pickle" in reason:
            reason = "it is no file of NumPy, is damaged, or holds Python objects"
        raise DataError(f"{path} cannot be read: {reason}") from error
    tokens = arrays.pop("tokens", None)
    names = None if tokens is None else [str(token) for token in np.ravel(tokens)]
    return _weights_among(arrays, path), names


def _tensor(content: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = content.get_tensor(name)
    except (TypeError, AttributeError) as error:
        raise DataError(
            f"{path} has {name!r} of a type that NumPy does not know, as bfloat16; store it as "
            "float32"
        ) from error
    return found


def _weights_among(arrays: dict[str, NDArray[Any]], path: Path) -> Any:
    if "attentions" in arrays:
        return arrays["attentions"]
    if len(arrays) == 1:
        [array] = arrays.values()
        return array
    numbers = {name: [int(part) for part in re.findall(r"[0-9]+", name)] for name in arrays}
    layered = all(numbers.values()) and len({array.shape for array in arrays.values()}) == 1
    if not arrays or not layered:
        there = ", ".join(sorted(arrays)[:5]) or "nothing"
        raise DataError(
            f"{path} has {there}; expected one array of attention weights, one called "
            "'attentions', or one a layer with its number in its name"
        )
    return [arrays[name] for name in sorted(arrays, key=lambda name: (numbers[name], name))]
