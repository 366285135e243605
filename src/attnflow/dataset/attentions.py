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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import AttnflowError, DataError, MissingExtraError, OptionError
from attnflow.explain import POSITIONS, _Encoded, _explanations, _graph, _mask, _measure, _Options
from attnflow.explanation import Explanation, Prediction
from attnflow.graph import AttentionGraph, _read_layers, resolve_index
from attnflow.scoring import check_choices, check_edges

if TYPE_CHECKING:
    from attnflow.capture import Captured
    from attnflow.dataset.scores import Found
    from attnflow.explain import Explainer

__all__ = [
    "DTYPES",
    "Attentions",
    "Kept",
    "TextAttention",
    "attentions_file",
    "keep_attention",
    "load_attentions",
    "require_safetensors",
]

FORMAT: Final = "attnflow.attentions"
VERSION: Final = 1
DTYPES: Final = ("float16", "float32")
# The tasks whose answer is that of one position.
_BY_POSITION: Final = ("masked-lm", "causal-lm")
_ROW: Final = re.compile(r"[0-9]+")

# The names that tokens from elsewhere may have.
_CLS: Final = ("[CLS]", "<s>", "<cls>")
_MASKS: Final = ("[MASK]", "<mask>")
_ADDED: Final = (
    *_CLS, "[SEP]", "</s>", "<sep>", "[PAD]", "<pad>", "[BOS]", "<bos>", "[EOS]", "<eos>",
    "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>",
)  # fmt: skip
# What a word's first token begins with, in SentencePiece and in byte-level vocabularies.
_WORD_STARTS: Final = ("\u2581", "\u0120")


class TextAttention(NamedTuple):
    """The attention of one text, to be explained without its model.

    `load_attentions` reads them from files; `TextAttention.of` takes any array of weights.

    Attributes:
        attention: The weights: of shape (L, n, n) if their heads are fused, and otherwise of shape
            (L, H, n, n).
        text: The text.
        tokens: The n tokens that the model was given.
        spans: For each token its start and end in the text, or None.
        special: For each token whether it is a special one.
        model: The name of the model, or of the file.
        task: What the model is for; "unknown" if nobody said.
        row: The number of the row that it was kept of, or None.
        id: What names that row.
        places: The positions that have a name: "auto", "cls" and "mask", each a list of indices,
            empty where there is none.
        position: The position that the prediction and the target belong to, or None.
        prediction: What the model answered, if that is known.
        target: The class or token that the run explained, if there was one.
        edges: What the weights are: "attention", "gradient", "effective" or "value_norm".
        heads: How their heads were fused; None if they were not.
        residual: The share of the residual of each layer and position, (L, n), if it was measured.
        mask: Which offsets each layer attends over, (L, 2 n - 1), if that was kept.
        uniform: What uniform attention gives, kept for the next text of the same length.

    Example:
        >>> import numpy as np
        >>> weights = np.array([[[0.5, 0.5], [0.25, 0.75]]] * 2)  # two layers, two tokens
        >>> attention = TextAttention.of(weights, ["open", "doors"])
        >>> attention
        TextAttention(layers=2, tokens=2, model='attention')
        >>> attention.explain(method="rollout", position=1).top(1)
        [('doors', 0.796875)]
    """

    attention: NDArray[np.floating[Any]]
    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]
    model: str
    task: str
    row: int | None
    id: Any
    places: Mapping[str, Sequence[int]]
    position: int | None
    prediction: Prediction | None
    target: str | None
    edges: str
    heads: str | int | None
    residual: NDArray[np.float64] | None
    mask: NDArray[np.bool_] | None
    uniform: dict[Any, NDArray[np.float64]]

    @classmethod
    def of(
        cls, attentions: Any, tokens: Sequence[str] | None = None, *, name: str = "attention"
    ) -> TextAttention:
        """Return the attention of a text from an array of weights.

        Args:
            attentions: Attention weights as `AttentionGraph` takes them, heads fused or not.
            tokens: The n tokens. Words are put together where tokens say how, by "##" before what
                goes on or by a mark before what begins; otherwise each token is a word. None
                numbers them.
            name: What stands for the model's name.

        Returns:
            The attention.

        Raises:
            AttentionError: If the weights are not attention.
            OptionError: If there are not as many tokens as positions.
        """
        stack = _read_layers(attentions)
        count = stack.tokens
        names = [str(i) for i in range(count)] if tokens is None else list(tokens)
        if len(names) != count or not all(isinstance(token, str) for token in names):
            raise OptionError(
                f"tokens has {len(names)} items, and attention is among {count} positions; "
                "expected a string for each"
            )
        # The graph is what checks the weights.
        causal = AttentionGraph(attentions).causal
        weights = np.stack([stack.read(layer) for layer in range(stack.layers)])
        text, spans = _laid_out(names)
        classes = [i for i, token in enumerate(names) if token in _CLS]
        auto = [count - 1] if causal else classes[:1] or [0]
        return cls(
            attention=weights[:, 0] if stack.head_count is None else weights,
            text=text,
            tokens=tuple(names),
            spans=tuple(spans),
            special=tuple(token in (*_ADDED, *_MASKS) for token in names),
            model=name,
            task="unknown",
            row=None,
            id=None,
            places={
                "auto": auto,
                "cls": classes,
                "mask": [i for i, token in enumerate(names) if token in _MASKS],
            },
            position=None,
            prediction=None,
            target=None,
            edges="attention",
            heads="mean" if stack.head_count is None else None,
            residual=None,
            mask=None,
            uniform={},
        )

    def __repr__(self) -> str:
        row = "" if self.row is None else f"row={self.row}, "
        layers, count = len(self.attention), len(self.tokens)
        return f"TextAttention({row}layers={layers}, tokens={count}, model={self.model!r})"

    def graph(self, *, heads: str | int = "mean", residual: float = 0.5) -> AttentionGraph:
        """Return the attention graph, for `attnflow.attention_flow` and its like.

        Args:
            heads: How heads become one, where they are not fused.
            residual: The share of the residual, where it was not measured.

        Returns:
            The graph.
        """
        return AttentionGraph(
            self.attention,
            heads=heads if self.heads is None else "mean",
            residual=residual if self.residual is None else self.residual,
        )

    def explain(
        self,
        *,
        method: str = "flow",
        layer: int = -1,
        position: int | str = "auto",
        heads: str | int | None = None,
        residual: float | None = None,
        receptive_field: str | bool = "auto",
        words: bool = False,
        special_tokens: bool = True,
        drop_sink: bool = False,
        keep_heads: bool = False,
    ) -> Explanation:
        """Explain the text, as `Explainer.explain` does with the model.

        Args:
            method: "raw", "rollout" or "flow".
            layer: The layer, from 1; -1 is the last.
            position: An index, "cls", "mask", "last" or "auto", as with the model. The answer of a
                language model is known for one position, and left out for the others.
            heads: How heads become one. None is their mean; fused heads stay as they are.
            residual: The share of the residual connection. None is 0.5, or what was measured.
            receptive_field: "auto", True or False.
            words: Sum the scores of sub-word tokens to words.
            special_tokens: Keep special tokens among those scored.
            drop_sink: Leave the attention sink out.
            keep_heads: Keep each head in the trace, where they are not fused.

        Returns:
            The explanation, with a trace.

        Raises:
            OptionError: If an option is not valid, or cannot be had without the model.
            AttentionError: If the weights are not attention.
        """
        options = _Options(
            method=method,
            layer=layer,
            position=position,
            edges=self.edges,
            heads=self._fusion(heads, keep_heads),
            residual=0.5 if residual is None else residual,
            receptive_field=receptive_field,
            words=words,
            special_tokens=special_tokens,
            drop_sink=drop_sink,
            keep_heads=keep_heads,
        )
        switches = ("words", "special_tokens", "drop_sink", "keep_heads")
        chosen = {name: getattr(options, name) for name in switches}
        check_choices(method, self.edges, receptive_field, chosen)
        check_edges(self.edges, options.heads, options.residual)
        place = self._place(position)
        known = self.task not in _BY_POSITION or place == self.position
        if not known and self.edges == "gradient":
            raise OptionError(
                f"position is {place}, but these edges are gradients of {self.target!r} at "
                f"position {self.position}; another position needs the model"
            )
        graph = self.graph(heads=options.heads, residual=options.residual)
        text = _Encoded(self.text, {}, self.tokens, self.spans, self.special)
        measured = _measure(
            graph,
            text,
            [place],
            options,
            mask=self.mask,
            heads=list(self.attention) if keep_heads else None,
        )
        [explanation] = _explanations(
            text,
            measured,
            [self.prediction if known else None],
            [self.target if known else None],
            options,
            model=self.model,
            task=self.task,
            uniform=self.uniform,
        )
        return explanation

    def _fusion(self, heads: str | int | None, keep_heads: bool) -> str | int:
        if self.heads is None:
            return "mean" if heads is None else heads
        if heads not in (None, self.heads):
            raise OptionError(
                f"heads is {heads!r}, but the heads of this attention are fused already, by "
                f"{self.heads!r}; others need the model"
            )
        if keep_heads:
            raise OptionError(
                "keep_heads=True needs the attention of each head, and these are fused, by "
                f"{self.heads!r}; that needs the model"
            )
        return self.heads

    def _place(self, position: Any) -> int:
        """Return the index of a position."""
        count = len(self.tokens)
        if not isinstance(position, str):
            return resolve_index(position, count, "position", "tokens")
        if position not in POSITIONS:
            raise OptionError(
                f"position is {position!r}; expected an index, {', '.join(POSITIONS)}"
            )
        if position == "last":
            return count - 1
        places = self.places[position]
        if not places:
            named = "mask" if position == "auto" else position
            raise OptionError(
                f"position is {position!r}, but the text has no {named} token; give an index from "
                f"0 to {count - 1}"
            )
        if len(places) > 1 and position == "mask":
            raise OptionError(
                f"the text has {len(places)} mask tokens; give position as one of "
                f"{', '.join(map(str, places))}"
            )
        return resolve_index(places[0], count, "position", "tokens")


# ---- Keeping -------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """What a file keeps of one text: arrays by the ending of their names, and what JSON holds."""

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any]


def keep_attention(
    explainer: Explainer,
    captured: Captured,
    row: int,
    text: _Encoded,
    options: _Options,
    found: Found,
    dtype: str,
) -> Kept:
    """Return what is kept of one text of a batch.

    Args:
        explainer: The model.
        captured: The attention of the batch.
        row: Which text of the batch it is.
        text: The text.
        options: The options of the run.
        found: What the run made of it.
        dtype: "float16" or "float32".
    """
    graph = _graph(captured, row, len(text.ids), options)
    arrays: dict[str, NDArray[Any]] = {
        "": graph.attention.astype(dtype),
        ".mask": _mask(graph),
    }
    if not isinstance(graph.residual, float):
        arrays[".residual"] = graph.residual.astype(np.float32)
    try:
        auto = explainer._position(text, "auto", graph.causal)
    except AttnflowError:  # a masked language model, and no mask in the text
        auto = None
    ids = {name: getattr(explainer.tokenizer, f"{name}_token_id", None) for name in ("cls", "mask")}
    about = {
        "text": text.text,
        "tokens": text.tokens,
        "spans": text.spans,
        "special": text.special,
        "places": {
            "auto": [] if auto is None else [auto],
            **{name: [i for i, token in enumerate(text.ids) if token == ids[name]] for name in ids},
        },
        "position": found.position,
        "prediction": found.prediction,
        "target": found.target,
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


def _laid_out(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int] | None]]:
    """Return a text that tokens may be of, and where they stand in it.

    Example:
        >>> _laid_out(["[CLS]", "key", "##s", "open"])
        ('keys open', [None, (0, 3), (3, 4), (5, 9)])
        >>> _laid_out(["\u2581key", "s", "\u2581open"])
        ('keys open', [(0, 3), (3, 4), (5, 9)])
    """
    marked = any(token.startswith(_WORD_STARTS) for token in tokens)
    text = ""
    spans: list[tuple[int, int] | None] = []
    for token in tokens:
        if token in _ADDED:
            spans.append(None)
            continue
        goes_on = token.startswith("##") and len(token) > 2
        begins = token.startswith(_WORD_STARTS) if marked else not goes_on
        own = token[1:] if marked and begins else token[2:] if goes_on and not marked else token
        if begins and text:
            text += " "
        spans.append((len(text), len(text) + len(own)))
        text += own
    return text, spans
