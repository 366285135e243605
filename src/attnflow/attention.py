"""Attention weights of one text, explained without their model.

The weights may have been kept by a run over a data set (`attnflow.dataset.load_attentions`), or
come from anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import ROW_TOLERANCE, choice, read_layers, resolve_index, strings
from attnflow.errors import OptionError
from attnflow.explain import Answer, explain_graph
from attnflow.explanation import Explanation, Prediction
from attnflow.fields import Segment
from attnflow.generation import Generation
from attnflow.graph import AttentionGraph
from attnflow.options import ANSWER_METHODS, ATTENTION_METHODS, OPTIONS, POSITIONS, Options, sign
from attnflow.scoring import Scorer, weights_at
from attnflow.tokens import ADDED, CLS, Tokens, laid_out, readable

# The tasks whose answer is that of one position.
_BY_POSITION: Final = ("masked-lm", "causal-lm")
# The names that a mask may have.
_MASKS: Final = ("[MASK]", "<mask>")


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
        segments: The parts of the text that have a name, as in `Explanation`.
        model: The name of the model, or of the file.
        task: What the model is for; "unknown" by default.
        row: The number of the row that it was kept of, or None.
        id: What names that row.
        places: The positions that have a name: "auto", "cls" and "mask", each a list of indices,
            empty where there is none.
        position: The position that the prediction and the target belong to, or None.
        prediction: What the model answered, if that is known.
        target: The class or token that the run explained, if there was one.
        edges: What the weights are: "attention", "gradient", "effective", "value_norm" or "alti".
        heads: How their heads were fused; None if they were not.
        residual: The share of the residual of each layer and position, (L, n), if it was measured.
        mask: Which offsets each layer attends over, (L, 2 n - 1), if that was kept.
        uniform: What uniform attention gives, kept for the next text of the same length.
        reads: The positions that the model's head reads, each with its weight; empty if `places`
            says which position is explained by default.
        sink: Whether token 0 is a learned sink. An index given as `position` does not count it.

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
    places: Mapping[str, Sequence[int]]
    uniform: dict[Any, NDArray[np.float64]]
    row: int | None = None
    id: Any = None
    position: int | None = None
    prediction: Prediction | None = None
    target: str | None = None
    edges: str = "attention"
    heads: str | int | None = None
    residual: NDArray[np.float64] | None = None
    mask: NDArray[np.bool_] | None = None
    reads: Sequence[Sequence[float]] = ()
    segments: tuple[Segment, ...] = ()
    sink: bool = False

    @classmethod
    def of(
        cls, attentions: Any, tokens: Sequence[str] | None = None, *, name: str = "attention"
    ) -> TextAttention:
        """Return the attention of a text from an array of weights.

        Args:
            attentions: Attention weights as `AttentionGraph` takes them, heads fused or not.
            tokens: The n tokens. Tokens form words if they mark it: "##" before a token that
                continues a word; or a space or a mark such as "\u2581" and "\u0120" before one
                that begins a word. Marks are left out of the names. Otherwise each token is a
                word. None numbers them.
            name: What stands for the model's name.

        Returns:
            The attention.

        Raises:
            AttentionError: If the weights are not attention.
            OptionError: If there are not as many tokens as positions.
        """
        stack = read_layers(attentions)
        count = stack.tokens
        names = tuple(map(str, range(count))) if tokens is None else strings(tokens, "tokens")
        if len(names) != count:
            raise OptionError(
                f"tokens has {len(names)} items, and attention is among {count} positions; "
                "expected a string for each"
            )
        # The graph is what checks the weights.
        causal = AttentionGraph(attentions).causal
        weights = np.stack([stack.read(layer) for layer in range(stack.layers)])
        sums = weights.sum(axis=-1, keepdims=True)
        # Rows of bfloat16 are rounded, and may sum to less or more than other rows may.
        weights = np.where(abs(sums - 1.0) > ROW_TOLERANCE, weights / sums, weights)
        text, spans = laid_out(names)
        classes = [i for i, token in enumerate(names) if token in CLS]
        auto = [count - 1] if causal else classes[:1] or [0]
        return cls(
            attention=weights[:, 0] if stack.head_count is None else weights,
            text=text,
            tokens=tuple(readable(names)),
            spans=tuple(spans),
            special=tuple(token in (*ADDED, *_MASKS) for token in names),
            model=name,
            task="unknown",
            places={
                "auto": auto,
                "cls": classes,
                "mask": [i for i, token in enumerate(names) if token in _MASKS],
            },
            uniform={},
            heads="mean" if stack.head_count is None else None,
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
            sink=self.sink,
        )

    @sign
    def explain(self, **options: Any) -> Explanation:
        """Explain the text, as `Explainer.explain` does with the model.

        The answer of a language model is known for one position, and left out for the others. Heads
        that are fused stay as they are; a residual share that was measured is used.

        Args:
            **options: As listed in `attnflow.options.OPTIONS`.

        Returns:
            The explanation, with a trace.

        Raises:
            OptionError: If an option is not valid, or needs the model.
            AttentionError: If the weights are not attention.
        """
        for option in OPTIONS:
            given = options.get(option.name, option.default)
            if option.needs_model and given != option.default:
                raise OptionError(
                    f"{option.name} is {given!r}, which needs the model: {option.needs_model}"
                )
        if options.get("edges", self.edges) != self.edges:
            raise OptionError(
                f"edges is {options['edges']!r}, but these weights are {self.edges!r}; other edges "
                "need the model"
            )
        heads = self._fusion(options.get("heads"), bool(options.get("keep_heads", False)))
        chosen = Options(**{**options, "edges": self.edges, "heads": heads})
        if chosen.method in ANSWER_METHODS:
            raise OptionError(
                f"method is {chosen.method!r}, which needs the model: attention weights do not say "
                f"what an answer came from; expected {', '.join(ATTENTION_METHODS)}"
            )
        if chosen.method == "auto":
            chosen = chosen.replace(method="rollout")
        weights = self._weights(chosen.position)
        place = int(weights.argmax())
        known = self.task not in _BY_POSITION or place == self.position
        if not known and self.edges == "gradient":
            raise OptionError(
                f"position is {place}, but these edges are gradients of {self.target!r} at "
                f"position {self.position}; another position needs the model"
            )
        graph = self.graph(heads=chosen.heads, residual=chosen.residual)
        [found] = explain_graph(
            Scorer(graph, mask=self.mask, uniform=self.uniform),
            Tokens(self.text, self.tokens, self.spans, self.special, self.segments),
            [weights],
            chosen,
            [Answer(self.prediction, self.target) if known else Answer()],
            details={"model": self.model, "task": self.task},
            heads=list(self.attention) if chosen.keep_heads else None,
        )
        return found.explanation

    def _fusion(self, heads: str | int | None, keep_heads: bool) -> str | int:
        if self.heads is None:
            return "mean" if heads is None else heads
        if heads not in (None, self.heads) or keep_heads:
            wanted = "keep_heads is True" if keep_heads else f"heads is {heads!r}"
            raise OptionError(
                f"{wanted}, but the heads of this attention are fused, by {self.heads!r}; anything "
                "else needs the model"
            )
        return self.heads

    def _weights(self, position: Any) -> NDArray[np.float64]:
        """Return how much each position counts in what is explained."""
        count = len(self.tokens)
        if position == "mean":
            # Of the tokens, without a learned sink.
            return np.where(np.arange(count) < self.sink, 0.0, 1.0 / (count - self.sink))
        if position != "auto" or not self.reads:
            return weights_at(self._place(position), count)
        weights = np.zeros(count)
        for place, weight in self.reads:
            weights[resolve_index(int(place), count, "position", "tokens")] = weight
        return weights

    def _place(self, position: Any) -> int:
        """Return the index of a position."""
        count = len(self.tokens)
        if not isinstance(position, str):
            sink = int(self.sink)
            return sink + resolve_index(position, count - sink, "position", "tokens")
        choice(position, "position", POSITIONS, otherwise="an index")
        if position == "last":
            return count - 1
        places = self.places[position]
        if not places or (len(places) > 1 and position == "mask"):
            named = "mask" if position == "auto" else position
            given = [place - self.sink for place in places]
            last = count - 1 - self.sink
            expected = ", ".join(map(str, given)) or f"an index from 0 to {last}"
            raise OptionError(
                f"position is {position!r}, but the text has {len(places) or 'no'} {named} tokens; "
                f"expected {expected}"
            )
        return resolve_index(places[0], count, "position", "tokens")


def show(attentions: Any, tokens: Sequence[str] | None = None, **options: Any) -> None:
    """Show attention weights from anywhere: the page in a notebook, text in a terminal.

    It is short for ``TextAttention.of(attentions, tokens).explain(...).show()``. Use that where the
    explanation is needed itself, for example to save a page: `explain` returns it.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, heads fused or not, of a batch
            of one text. Or what is shown as it is: a `TextAttention`, an `Explanation` or a
            `Generation`.
        tokens: The n tokens, as in `TextAttention.of`. None numbers them.
        **options: Options of `TextAttention.explain`, such as `method`, `layer`, `position` and
            `units`. Unlike there, `keep_heads` is True by default if there are heads, so the page
            shows each.

    Raises:
        AttentionError: If the weights are not attention.
        OptionError: If there are not as many tokens as positions, or an option is not valid, needs
            the model, or is given for an explanation that is made already.

    Example:
        >>> import numpy as np
        >>> weights = np.array([[[0.5, 0.5], [0.25, 0.75]]] * 2)  # two layers, two tokens
        >>> show(weights, ["open", "doors"], position=1)
          Attention rollout, layer 2 of 2, position 1 doors, attention
        <BLANKLINE>
          open doors
        <BLANKLINE>
          doors  0.797  ████████████████████████████████
          open   0.203  ████████▏
        <BLANKLINE>
          The higher a token's score, the larger its share in doors at layer 2, by
          attention multiplied along every path.
    """
    made = isinstance(attentions, Explanation | Generation)
    for name, given in {"tokens": tokens, **(options if made else {})}.items():
        if given is not None and (made or isinstance(attentions, TextAttention)):
            raise OptionError(
                f"{name} is {given!r}, but attentions is of type {type(attentions).__name__}, "
                "which has its own; leave it out"
            )
    if made:
        attentions.show()
        return
    if not isinstance(attentions, TextAttention):
        attentions = TextAttention.of(attentions, tokens)
    attentions.explain(**{"keep_heads": attentions.heads is None, **options}).show()
