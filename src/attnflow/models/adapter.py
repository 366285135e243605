"""Adapter: everything that depends on what kind of input a model reads.

`Explainer`, the references, evaluation, data sets and the server go through an adapter, and none of
them asks what kind it is.
"""

from __future__ import annotations

import difflib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer, resolve_index
from attnflow.errors import AttentionError, AttnflowError, ModelError, OptionError
from attnflow.explain import Answer
from attnflow.explanation import Prediction
from attnflow.graph import AttentionGraph
from attnflow.models.memory import Shape, check_attention_room, check_flow_room, fits
from attnflow.options import ANSWER_METHODS, Options
from attnflow.scoring import Batch, weights_at
from attnflow.streamed import Streamed
from attnflow.tokens import Tokens

if TYPE_CHECKING:
    from attnflow.models.writing import Progress, Writing, Written

# Inputs of a batch run together. This many positions keep a processor busy without holding much
# more attention than one long text would.
BATCH_POSITIONS: Final = 4096
# How many labels an error lists.
LISTED: Final = 10


class Encoded(NamedTuple):
    """One input as the model reads it.

    Attributes:
        tokens: Its tokens: of an encoder-decoder those of the source, then those of the target.
        inputs: What the model is given: lists of numbers, one for each token, or tensors without
            the axis of a batch.
        source: How many tokens come before the first one that a position can be asked about; 0 but
            for an encoder-decoder, or with a learned sink.
        sizes: How many positions of the graph each of the first tokens has; the others, and with
            None all, have one.
        extra: What else its adapter has to know of it.
    """

    tokens: Tokens
    inputs: dict[str, Any]
    source: int = 0
    sizes: tuple[int, ...] | None = None
    extra: Any = None

    def with_sink(self) -> Encoded:
        """Return the input as its graph has it where a learned sink comes before the tokens."""
        return self._replace(tokens=self.tokens.with_sink(), source=self.source + 1)

    @property
    def nodes(self) -> int:
        """How many positions the graph has."""
        sizes = self.sizes or ()
        return sum(sizes) + len(self.tokens) - len(sizes)

    def node(self, position: int) -> int:
        """Return where a position is in the graph: the middle of a token that has several there."""
        token, sizes = position + self.source, self.sizes or ()
        before = sum(sizes[:token]) + max(0, token - len(sizes))
        return before + (sizes[token] // 2 if token < len(sizes) else 0)


SINK: Final = (
    "'sink' is no token: it is what each layer has learned to attend to instead, and adds nothing "
    "to the answer."
)
"""What a reader is told of a learned sink."""

Loader = tuple[str, str | Callable[..., Any]]
"""How a checkpoint is loaded: the name of the class of transformers that loads the model, and the
name of the class that loads its tokenizer or processor, or a function that does."""


class Question(NamedTuple):
    """What is asked about an input.

    Attributes:
        position: As in `Explainer.explain`.
        target: The class or token; None is what the model predicts.
        contrast: The class or token that it is compared with; None is none.
    """

    position: int | str
    target: int | str | None
    contrast: int | str | None = None


class Asked(NamedTuple):
    """What is asked about an answer, in indices.

    Attributes:
        targets: The class or token at each position that the answer is read at; None is what the
            model predicts there. The answer is the sum over the positions.
        contrast: The one that they are compared with; None is none.
        before: Tokens to be written after the text first: what two words have in common.
        others: What the target at each position is compared with, if that is not the same at all.
    """

    targets: tuple[int | None, ...] = (None,)
    contrast: int | None = None
    before: tuple[int, ...] = ()
    others: tuple[int, ...] = ()

    @property
    def contrasts(self) -> tuple[int | None, ...]:
        """What the target at each position is compared with; None is nothing."""
        return self.others or (self.contrast,) * len(self.targets)

    @property
    def same(self) -> bool:
        """Whether every target is the contrast, so there is no difference to explain."""
        return self.contrast is not None and set(self.targets) == {self.contrast}


class Ran(NamedTuple):
    """What a forward pass of a batch gave.

    Attributes:
        captured: The attention, as `attnflow.capture` gives it.
        logits: For each input the logits of each position asked about, float64 of shape
            (P, classes), or (1, classes) where there is one answer for all; None without a head.
        targets: For each input the target of each position.
        contrast: What the targets are compared with; None is nothing.
        batch: The inputs.
        positions: The positions of each that were asked about.
    """

    captured: Any
    logits: list[NDArray[np.float64] | None]
    targets: list[list[int]]
    contrast: int | None = None
    batch: Sequence[Encoded] = ()
    positions: Sequence[Sequence[int]] = ()

    def reads(self, row: int) -> NDArray[np.float64] | None:
        """Return what the head reads of each position of an input; None if it is not known."""
        found = getattr(self.captured, "reads", None)
        return None if found is None else found[row].numpy()


class Contributed(NamedTuple):
    """What the answer for one input of a batch came from.

    Attributes:
        found: What `attnflow.capture.contribute` gave for the batch.
        row: Which input of the batch it is.
        prediction: What the model answered; None if it is a number.
        asked: What was asked about, the target included.
        scores: The contribution of each position of the graph.
    """

    found: Any
    row: int
    prediction: Prediction | None
    asked: Asked
    scores: NDArray[np.float64]

    @property
    def reads(self) -> NDArray[np.float64] | None:
        """What the head reads of each position; None if it cannot be told."""
        return None if self.found.reads is None else self.found.reads[self.row].numpy()

    @property
    def value(self) -> float:
        """The answer."""
        return float(self.found.values[self.row])

    @property
    def bias(self) -> float:
        """What biases add to it."""
        return float(self.found.biases[self.row])

    @property
    def note(self) -> str | None:
        """What a reader has to know if the parts do not add up to the answer."""
        error = float(self.found.errors[self.row])
        if error <= self.found.limit:
            return None
        names = ", ".join(self.found.without_rule)
        where = f" No rule is known for {names}, which the model calls." if names else ""
        return (
            "The parts do not add up to the answer: scores and biases are off by "
            f"{error:.2g} of the sum of the scores' sizes; {self.found.limit:.2g} is "
            f"rounding.{where} Do not trust small differences."
        )


class Reading(NamedTuple):
    """One input as a reference reads it: which of its numbers hold which token.

    Attributes:
        inputs: What the model is given, as in `Encoded`.
        tokens: The tokens, special tokens included.
        places: For each token the name of the input that holds it, and its index there. None if no
            input does, as for special tokens of a vision model, or if the answer cannot depend on
            it, as for what follows a position of a causal model; those are not in `inputs`.
        position: Where the answer is read; None if the model gives one answer for all.
        target: The index of the class or token; None is what the model predicts.
        extra: What else its adapter has to know of it.
        contrast: The index of the class or token that the target is compared with; None is none.
    """

    inputs: dict[str, Any]
    tokens: Tokens
    places: tuple[tuple[str, int] | None, ...]
    position: int | None
    target: int | None
    extra: Any = None
    contrast: int | None = None

    @property
    def shape(self) -> tuple[Any, ...]:
        """What readings that run together have in common."""
        sizes = tuple(
            (name, len(values) if isinstance(values, list) else tuple(values.shape))
            for name, values in self.inputs.items()
        )
        return sizes, self.position

    @property
    def length(self) -> int:
        """How many positions the model computes."""
        names = ("input_ids", "decoder_input_ids")
        held = [len(self.inputs[name]) for name in names if name in self.inputs]
        return sum(held) if held else len(self.tokens)


class Adapter(ABC):
    """A model with its tokenizer or processor, for one kind of input.

    Args:
        model: A model of transformers.
        reader: Its tokenizer, image processor or processor.

    Attributes:
        model: The model.
        reader: As given.
        task: What the model is for; one of `tasks`.

    Raises:
        ModelError: If the model cannot be explained.
    """

    tasks: ClassVar[tuple[str, ...]]
    """The tasks that models of this kind may have."""
    keeps_heads: ClassVar[bool] = False
    """Whether the attention of single heads can be kept."""
    asks_about_targets: ClassVar[bool] = False
    """Whether an evaluation asks about every token of a target, where no position is given."""
    in_data_sets: ClassVar[bool] = False
    """Whether `attnflow.run` takes inputs of this kind, as texts."""
    streams: ClassVar[bool] = False
    """Whether the attention of a long input may be computed again, instead of being kept."""

    task: str

    def __init__(self, model: Any, reader: Any) -> None:
        self.model: Final = model
        self.reader: Final = reader
        self._sink: bool | None = None

    # ---- Which models ----------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model reads this kind of input."""

    @classmethod
    @abstractmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is of another kind.

        Args:
            config: The checkpoint's configuration.
            task: What to load it for, or "auto".
            gguf: Whether it is a GGUF file.

        Raises:
            OptionError: If it is of this kind, and cannot be loaded for that task.
        """

    @property
    def name(self) -> str:
        """The name of the model's class."""
        return type(self.model).__name__

    @property
    def text_model(self) -> Any:
        """The part of the model that reads text."""
        return self.model

    @property
    def tokenizer(self) -> Any:
        """What turns text into tokens; None for a model that reads and writes none."""
        return self.reader

    @property
    def reads_pairs(self) -> bool:
        """Whether a tuple of two texts is one input, each a segment of it."""
        return False

    @property
    def reads_chats(self) -> bool:
        """Whether a list of messages is one input, by the tokenizer's chat template."""
        return False

    @property
    def answers(self) -> bool:
        """Whether the model has a head that predicts something."""
        return True

    @property
    def has_classes(self) -> bool:
        """Whether the answer is a class, not a token."""
        return self.task.endswith("classification")

    @property
    def multi_label(self) -> bool:
        """Whether each class has a probability of its own, independent of the others."""
        problem = getattr(self.model.config, "problem_type", None)
        return bool(problem == "multi_label_classification")

    @property
    def outputs(self) -> int:
        """How many classes or tokens there are to choose from, as far as the model says."""
        config = self.model.config
        if self.has_classes:
            count = getattr(config, "num_labels", None)
        else:
            count = getattr(config.get_text_config(decoder=True), "vocab_size", None)
        return count if isinstance(count, int) else sys.maxsize

    @property
    def depth(self) -> int | None:
        """How many layers can be explained, as far as the model says."""
        layers = getattr(self.model.config, "num_hidden_layers", None)
        return layers if isinstance(layers, int) else None

    # ---- Options ---------------------------------------------------------------------------------

    def check(self, options: Options) -> None:
        """Check what can be checked before an input is read.

        Raises:
            OptionError: If an option is not valid for this model.
        """
        if options.keep_heads and not self.keeps_heads:
            raise OptionError(
                f"keep_heads=True is for models that read one text, not for {self.task}"
            )
        if self.depth is not None:
            resolve_index(options.layer, self.depth, "layer", "layers", first=1)
        needing = {
            "target": options.target is not None,
            "contrast": options.contrast is not None,
            "edges": options.edges == "gradient",
            "method": options.method in ANSWER_METHODS,
            "check": options.check,
        }
        name = next((name for name, needed in needing.items() if needed), None)
        if name is not None and not self.answers:
            raise OptionError(
                f"{name} is {options[name]!r}, which needs a prediction, and {self.name} has no "
                "head; leave it out"
            )
        if options.method == "alti_logit" and self.task != "causal-lm":
            raise OptionError(
                f"method is 'alti_logit', which is for causal language models; {self.name} is for "
                f"{self.task}. Use method='contribution'"
            )
        if options.position == "mean" and self.answers and not self.head_chooses:
            raise OptionError(
                f"position is 'mean', but {self.name} gives an answer at each position; expected "
                "one of them"
            )
        if options.check:
            self.check_replaces()
        fast = getattr(self.tokenizer, "is_fast", False)
        if options.units != "tokens" and not fast:
            raise OptionError(
                f"units={options.units!r} needs the place of each token in the text, which only a "
                f"fast tokenizer gives; {type(self.tokenizer).__name__} is not one"
            )
        if self.answers:
            asked = self.asked(options.target, options.contrast)
            if asked.before and options.position not in ("auto", "last"):
                raise OptionError(
                    f"position is {options.position!r}, but target and contrast are words of "
                    "several tokens, which are compared after the text; leave position out"
                )
        self.check_position(options.position)

    @abstractmethod
    def check_position(self, position: int | str) -> None:
        """Check a position before an input is read.

        Raises:
            OptionError: If it is not valid for this model.
        """

    def target(self, target: Any, name: str = "target") -> int | None:
        """Return the index of a class or token; None stays None.

        Args:
            target: The class, by name or index, or the token, as text or id.
            name: What the option is called, for errors.

        Raises:
            OptionError: If there is no such class or token.
        """
        if target is None:
            return None
        if self.has_classes:
            return class_target(target, self.labels, name)
        return one_token(self.token_ids(target, name), target, self.tokenizer, name)

    def token_ids(self, token: Any, name: str) -> list[int]:
        """Return the ids of the pieces of a token given as text, or its own id.

        Raises:
            OptionError: If there is no such id.
        """
        if not isinstance(token, str):
            return [resolve_index(token, self.outputs, name, "tokens of the vocabulary")]
        return list(self.tokenizer(token, add_special_tokens=False)["input_ids"])

    def asked(self, target: Any, contrast: Any) -> Asked:
        """Return what is asked about: the indices of the target and of the contrast.

        Two words of several tokens are compared where they differ first. The tokens before that,
        which they share, are written after the text.

        Raises:
            OptionError: If there is no such class or token, or both are the same.
        """
        same = OptionError(
            f"contrast is {contrast!r}, the same as the target; expected another class or token"
        )
        before: list[int] = []
        if self.writes and target is not None and contrast is not None:
            mine, other = self.token_ids(target, "target"), self.token_ids(contrast, "contrast")
            shown = " and ".join(_pieces(self.tokenizer, ids) for ids in (mine, other))
            while mine and other and mine[0] == other[0]:
                before.append(mine.pop(0))
                other.pop(0)
            if not mine and not other:
                raise same
            if not mine or not other:
                raise OptionError(
                    f"target is {target!r} and contrast is {contrast!r}, of which one begins the "
                    f"other ({shown}); expected two words that differ in a token"
                )
            return Asked((mine[0],), other[0], tuple(before))
        asked = Asked((self.target(target),), self.target(contrast, "contrast"))
        if asked.same:
            raise same
        return asked

    @property
    def writes(self) -> bool:
        """Whether the model writes text on, token by token."""
        return False

    def extended(self, encoded: Encoded, tokens: Sequence[int]) -> Encoded:
        """Return an input with tokens written after it."""
        raise OptionError(f"{self.name} writes no text that tokens could be added to")

    def value(self, logits: Any, target: int, contrast: int | None) -> Any:
        """Return the answer that contributions add up to.

        Args:
            logits: A tensor of shape (..., classes).
            target: The class or token explained.
            contrast: The one that it is compared with. None is the mean of the other classes, or of
                all tokens; where the model gives each class a probability of its own, or has one
                output, it is nothing.

        Returns:
            The difference of logits, of shape (...).
        """
        own, count = logits[..., target], logits.shape[-1]
        if contrast is not None:
            return own - logits[..., contrast]
        if not self.compares or count == 1:
            return own
        if self.has_classes:
            return own - (logits.sum(-1) - own) / (count - 1)
        return own - logits.mean(-1)

    @property
    def compares(self) -> bool:
        """Whether an answer without a contrast is compared with the mean of the others."""
        alone = self.has_classes and (self.multi_label or self.outputs == 1)
        return not alone

    def predicted(self, logits: NDArray[np.float64], encoded: Encoded | None) -> Prediction | None:
        """Return what the model predicts at some positions together; None if it is a number.

        Args:
            logits: The logits, of shape (P, classes).
            encoded: The input, where that is known.
        """
        if self.has_classes and self.outputs == 1 and not self.multi_label:
            return None
        top = [int(index) for index in logits.argmax(axis=1)]
        best = logits[np.arange(len(top)), top]
        if self.has_classes and self.multi_label:
            shares = 1 / (1 + np.exp(-best))
        else:
            shares = 1 / np.exp(logits - best[:, None]).sum(axis=1)
        return Prediction(self.joined(top, encoded), top[0], float(shares.prod()))

    @property
    def labels(self) -> dict[int, str]:
        """The names of the classes."""
        labels = getattr(self.model.config, "id2label", None) or {}
        return {int(index): str(label) for index, label in labels.items()}

    def label(self, index: int) -> str:
        """Return what a class or token is called."""
        if self.has_classes:
            return self.labels.get(index, str(index))
        # A token without text, as the end is for some tokenizers, is called by its own name. One
        # that only the model has, to round up its vocabulary, is called by its number.
        name = self.tokenizer.decode([index]) or self.tokenizer.convert_ids_to_tokens(index)
        return str(name or f"token {index}")

    def joined(self, indices: Sequence[int], encoded: Encoded | None = None) -> str:
        """Return what the classes or tokens at several positions are called together.

        Args:
            indices: The class or token at each position.
            encoded: The input, where that is known.
        """
        if len(indices) == 1:
            return self.label(indices[0])
        if self.has_classes:
            return ", ".join(dict.fromkeys(map(self.label, indices)))
        return str(self.tokenizer.decode(list(indices)))

    # ---- Reading ---------------------------------------------------------------------------------

    @abstractmethod
    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return the inputs that were given, and whether there are many.

        Raises:
            AttnflowError: If it is neither an input of this kind nor a list of them.
        """

    @abstractmethod
    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read one input.

        Raises:
            AttnflowError: If it cannot be read; the message says why.
        """

    def read_many(
        self, items: Sequence[Any], truncate: bool = False
    ) -> list[Encoded | AttnflowError]:
        """Read inputs; return for each the error if it cannot be read."""
        results: list[Encoded | AttnflowError] = []
        for item in items:
            try:
                results.append(self.read(item, truncate))
            except AttnflowError as error:
                results.append(error)
        return results

    @abstractmethod
    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield inputs that run together, each with its index.

        Every input is checked before the first batch, as far as that is possible without holding
        all of them in memory.

        Raises:
            AttnflowError: If an input cannot be read, or has no such position.
        """

    @abstractmethod
    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return the position to explain.

        Args:
            encoded: The input.
            position: The option.
            causal: Whether the graph is causal; None if that is not known yet.

        Returns:
            The index; None while it depends on whether the graph is causal.

        Raises:
            AttnflowError: If there is no such position.
        """

    def located(self, batch: Sequence[Encoded], options: Options) -> list[tuple[list[int], Asked]]:
        """Return the positions at which each answer is read, and what is asked there.

        Args:
            batch: The inputs.
            options: The options.

        Raises:
            AttnflowError: If there is no such position, class or token.
        """
        asked = self.asked(options.target, options.contrast) if self.answers else Asked()
        places = [self.position(encoded, options.position, None) for encoded in batch]
        # A position that depends on the graph is the last, until the graph is there.
        return [
            ([len(encoded.tokens) - 1 if place is None else place], asked)
            for encoded, place in zip(batch, places, strict=True)
        ]

    @property
    def head_chooses(self) -> bool:
        """Whether the model's head, and not the question, says where the answer is read."""
        return self.answers and self.has_classes

    def weights(
        self,
        encoded: Encoded,
        position: int | str,
        reads: NDArray[np.float64] | None,
        causal: bool,
    ) -> NDArray[np.float64]:
        """Return how much each position of an input's graph counts in what is explained.

        Args:
            encoded: The input.
            position: The option.
            reads: What the head reads of each of the model's positions; None if it is not known.
            causal: Whether the graph is causal.

        Returns:
            Array with a number for each position of the graph, whose sum is 1.

        Raises:
            AttnflowError: If there is no such position.
        """
        count = encoded.nodes
        if position == "mean":
            return np.full(count, 1.0 / count)
        if position == "auto" and reads is not None:
            return self.in_graph(reads, encoded)
        return weights_at(encoded.node(self.position(encoded, position, causal) or 0), count)

    def in_graph(self, reads: NDArray[np.float64], encoded: Encoded) -> NDArray[np.float64]:
        """Return what belongs to the model's positions in the order of an input's graph."""
        return reads[: len(encoded.tokens)]

    @property
    def max_tokens(self) -> int | None:
        """How many tokens the model takes; None if it does not say."""
        return smallest(
            getattr(self.tokenizer, "model_max_length", None),
            getattr(self.model.config, "max_position_embeddings", None),
        )

    # ---- Running ---------------------------------------------------------------------------------

    def run(
        self,
        batch: Sequence[Encoded],
        positions: Sequence[Sequence[int]],
        options: Options,
        targets: Sequence[Sequence[int | None]] | None = None,
        *,
        keep: bool = False,
    ) -> Ran:
        """Run the model on a batch.

        Args:
            batch: The inputs.
            positions: The positions of each that are asked about.
            options: The options.
            targets: For each input the target of each position; None is what the model predicts
                there. Without any, the target is that of the options.
            keep: Whether the attention itself is needed, however long the inputs are.

        Returns:
            The attention, and the answers.
        """
        import torch

        wanted = self.asked(options.target, options.contrast) if self.answers else Asked()
        asked = targets or [[*wanted.targets] * len(places) for places in positions]
        inputs, where = self.stacked(batch, positions)

        def chosen(logits: Any, row: int) -> list[int]:
            # A classifier has one answer for all positions.
            rows = logits if len(logits) > 1 else [logits[0]] * len(asked[row])
            return [
                int(row.argmax()) if target is None else target
                for row, target in zip(rows, asked[row], strict=True)
            ]

        def answer(outputs: Any, *, mean: bool) -> Any:
            """Return each answer, compared with the mean of the others if there is no contrast."""
            values, plain = [], wanted.contrast is None and not mean
            for row in range(len(batch)):
                logits = self.logits(outputs, row, positions[row], where)
                parts = [
                    own[target] if plain else self.value(own, target, wanted.contrast)
                    for own, target in zip(logits, chosen(logits, row), strict=False)
                ]
                values.append(torch.stack(parts).sum())
            return torch.stack(values)

        gradient = options.edges == "gradient"
        stream = not keep and self.streamed(batch, options)
        if self.streams and not stream:
            self._check_room(batch, options)
        captured = self.capture(
            inputs,
            heads=None if options.keep_heads else options.heads,
            score=partial(answer, mean=False) if gradient else None,
            edges="attention" if gradient else options.edges,
            **({"answer": partial(answer, mean=True)} if self.head_chooses else {}),
            **({"keep": False} if stream else {}),
        )
        found: list[NDArray[np.float64] | None] = []
        picked: list[list[int]] = []
        for row in range(len(batch)):
            if not self.answers:
                found.append(None)
                picked.append([])
                continue
            logits = self.logits(captured.outputs, row, positions[row], where)
            found.append(logits.detach().double().cpu().numpy())
            picked.append(chosen(logits, row))
        return Ran(captured, found, picked, wanted.contrast, batch, positions)

    def streamed(self, batch: Sequence[Encoded], options: Options) -> bool:
        """Whether the attention of a batch is computed again for every pass, and not kept.

        What the options ask for has to be read off in passes, and keeping it has to be too much.
        """
        longest = max(len(item.tokens) for item in batch)
        return self._in_passes(options) and not fits(self.shape.kept(longest), len(batch))

    def _check_room(self, batch: Sequence[Encoded], options: Options) -> None:
        """See that attention can be kept, before the model runs.

        Raises:
            GraphSizeError: If there is no room for it; the message says what needs less.
        """
        longest = max(len(item.tokens) for item in batch)
        if options.method == "flow":
            positions = longest if options.position == "mean" else 1
            check_flow_room(self.shape, longest, positions)
        names = ("method", "edges", "keep_heads")
        given = {"method": options.method == "flow", "edges": options.edges != "attention"}
        name = next((name for name in names if given.get(name, options.keep_heads)), "method")
        check_attention_room(self.shape, longest, len(batch), f"{name}={options[name]!r}")

    def _in_passes(self, options: Options) -> bool:
        """Whether what the options ask for can be read off attention that is not kept."""
        plain = options.edges == "attention" and not options.keep_heads
        return self.streams and plain and options.method in ("raw", "rollout")

    def bytes_of(self, tokens: int, options: Options) -> int:
        """Return about how much memory an input takes in the model and afterwards.

        Args:
            tokens: How many tokens it has.
            options: The options.
        """
        shape = self.shape
        if options.method in ANSWER_METHODS:
            held = shape.activations(tokens)
            return shape.forward(tokens) + (held if fits(held) else shape.again(tokens))
        held = shape.kept(tokens)
        if self._in_passes(options) and not fits(held):
            held = shape.streamed(tokens)
        return shape.forward(tokens) + held

    @cached_property
    def shape(self) -> Shape:
        """What the size of the model's activations depends on."""
        return Shape.of(self.text_model)

    def contribute(
        self,
        batch: Sequence[Encoded],
        positions: Sequence[Sequence[int]],
        options: Options,
        asked: Sequence[Asked],
        *,
        steps: bool = False,
    ) -> list[Contributed]:
        """Return what the answers of a batch came from.

        Where the items of a batch cannot be told apart, each runs by itself.

        Args:
            batch: The inputs.
            positions: The positions of each at which its answer is read. The answer is the sum of
                what is asked at each of them.
            options: The options.
            asked: What is asked about each.
            steps: Whether to return what each attention carried, and the attention, if that can be
                followed.
        """
        import torch

        inputs, where = self.stacked(batch, positions)
        targets: list[tuple[int, ...]] = []

        def score(outputs: Any) -> Any:
            targets.clear()
            values = []
            for row, one in enumerate(asked):
                logits = self.logits(outputs, row, positions[row], where)
                pairs = list(zip(logits, one.targets, strict=True))
                targets.append(tuple(int(x.argmax()) if t is None else t for x, t in pairs))
                parts = zip(logits, targets[-1], one.contrasts, strict=True)
                own = [self.value(x, target, other) for x, target, other in parts]
                values.append(torch.stack(own).sum())
            return torch.stack(values)

        if options.method == "alti_logit":
            return self._alti_logit(batch, inputs, positions, asked)
        heads = None if options.keep_heads else options.heads
        # What long inputs leave in every layer is computed again where it is needed.
        size = self.shape.activations(max(len(item.tokens) for item in batch))
        large = not fits(size, len(batch))
        try:
            found = self.attribute(
                inputs, score, steps=steps, heads=heads, again=large and not steps
            )
        except AttentionError:
            if not steps:
                raise
            # The answer can be followed where attention cannot be.
            found = self.attribute(inputs, score, again=large)
        if len(batch) > 1 and found.wrong:
            return [
                self.contribute([item], [place], options, [one], steps=steps)[0]
                for item, place, one in zip(batch, positions, asked, strict=True)
            ]
        results = []
        for row, (encoded, one) in enumerate(zip(batch, asked, strict=True)):
            logits = self.logits(found.outputs, row, positions[row], where)
            results.append(
                Contributed(
                    found,
                    row,
                    self.predicted(logits.detach().double().cpu().numpy(), encoded),
                    one._replace(targets=targets[row]),
                    self.by_position(found, row, encoded),
                )
            )
        return results

    def _alti_logit(
        self,
        batch: Sequence[Encoded],
        inputs: Mapping[str, Any],
        positions: Sequence[Sequence[int]],
        asked: Sequence[Asked],
    ) -> list[Contributed]:
        """Return what attention to each position added; what else adds is the bias."""
        from attnflow.capture import Contributions, alti_logit

        if any(len(places) > 1 for places in positions):
            raise OptionError(
                "method is 'alti_logit', which explains one token at a time; use "
                "method='contribution'"
            )
        found = alti_logit(
            self.model,
            inputs,
            [place for (place,) in positions],
            [one.targets[0] for one in asked],
            [one.contrast for one in asked],
        )
        rest = found.embeddings + found.feed_forward + found.biases
        wrapped = Contributions(
            found.values, (found.scores,), rest, found.errors, (), found.limit, {}
        )
        return [
            Contributed(
                wrapped,
                row,
                self.predicted(found.logits[row][None].double().numpy(), encoded),
                one._replace(targets=(found.targets[row],)),
                self.by_position(wrapped, row, encoded),
            )
            for row, (encoded, one) in enumerate(zip(batch, asked, strict=True))
        ]

    def by_position(self, found: Any, row: int, encoded: Encoded) -> NDArray[np.float64]:
        """Return the contribution of each position of an input's graph."""
        scores: NDArray[np.float64] = found.scores[0][row, : len(encoded.tokens)].numpy()
        return scores

    def followed(self, found: Any) -> Any:
        """Return the attention of steps as `capture` returns it."""
        from attnflow.capture import Captured

        return Captured(
            [step.weights for step in found.steps], found.outputs, sink=found.steps[0].sink
        )

    def carried(self, found: Any, row: int, encoded: Encoded) -> NDArray[np.float64]:
        """Return what each edge of an input's graph carried, as `attnflow.trace.Trace` has it."""
        count = len(encoded.tokens)
        edges = np.stack(
            [
                with_own(
                    step.edges[row, :count, :count].numpy(), step.entering[row, :count].numpy()
                )
                for step in found.steps
            ]
        )
        # A learned sink has no values, so nothing comes from it.
        sink = (1, 0) if found.steps[0].sink else (0, 0)
        return np.pad(edges, ((0, 0), sink, sink))

    def capture(self, inputs: dict[str, Any], **options: Any) -> Any:
        """Run the model with its attention captured."""
        from attnflow.capture import capture

        return capture(self.model, inputs, **options)

    def attribute(self, inputs: dict[str, Any], score: Any, **options: Any) -> Any:
        """Run the model forward and backward, and return what its answers came from."""
        from attnflow.capture import contribute

        return contribute(self.model, inputs, score, **options)

    @abstractmethod
    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return what the model is given for a batch, and what `logits` needs to know of it."""

    @abstractmethod
    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of an input, of shape (P, classes), or (1, classes) for all."""

    @abstractmethod
    def graph(self, captured: Any, row: int, encoded: Encoded, options: Options) -> AttentionGraph:
        """Return the graph of one input of a batch, its padding cut away."""

    def attention(
        self, captured: Any, row: int, encoded: Encoded, options: Options
    ) -> AttentionGraph | Streamed:
        """Return the graph of one input of a batch, or its attention if that was not kept."""
        rows = getattr(captured, "rows", None)
        if rows is None:
            return self.graph(captured, row, encoded, options)
        found: Streamed = rows.text(row, len(encoded.tokens), options.residual)
        return found

    def batch(self, captured: Any, encoded: Sequence[Encoded], options: Options) -> Batch | None:
        """Return what scores a whole batch at once; None if inputs are scored one by one."""
        return None

    def has_sink(self, encoded: Encoded) -> bool:
        """Whether the model's attention has a learned sink. Found once, by running an input."""
        if self._sink is None:
            try:
                kept = {"keep": False} if self.streams else {}
                captured = self.capture(self.stacked([encoded], [[0]])[0], **kept)
            except AttentionError:
                return False
            self._sink = bool(getattr(captured, "sink", False))
        return self._sink

    def shown(self, captured: Any, encoded: Encoded) -> Encoded:
        """Return an input with the tokens that its graph has: with the learned sink, if any."""
        return encoded.with_sink() if getattr(captured, "sink", False) else encoded

    def mask(self, graph: AttentionGraph) -> NDArray[np.bool_] | None:
        """Return the offsets that each layer attends over; None reads them off the attention."""
        return None

    def details(self, encoded: Encoded, outputs: Any) -> dict[str, Any]:
        """Return other arguments of `Explanation`.

        Args:
            encoded: The input.
            outputs: What the model returned.
        """
        return {}

    def answer(self, ran: Ran, row: int) -> list[Answer]:
        """Return what the model answered at each position of an input."""
        logits, targets = ran.logits[row], ran.targets[row]
        if logits is None:
            return [Answer()]
        # A classifier has one answer for all positions.
        rows = logits if len(logits) > 1 else [logits[0]] * len(targets)
        contrast = None if ran.contrast is None else self.label(ran.contrast)
        return [
            Answer(self.predicted(values[None], None), self.label(target), contrast)
            for values, target in zip(rows, targets, strict=True)
        ]

    # ---- Writing ---------------------------------------------------------------------------------

    def generate(
        self, item: Any, writing: Writing, truncate: bool, progress: Progress | None = None
    ) -> Written:
        """Let the model write.

        Args:
            item: The prompt, the chat, or the source.
            writing: How to write.
            truncate: As in `Explainer.explain`.
            progress: Told how many tokens are written.

        Raises:
            OptionError: If the model does not write text.
            TextError: If the text gets longer than the model takes.
        """
        raise OptionError(f"generate needs a model that writes text, not one for {self.task}")

    def questions(
        self, item: Any, question: Question, max_new_tokens: int, truncate: bool
    ) -> tuple[Any, list[Question]]:
        """Return an input with all that is asked about it in an evaluation.

        Args:
            item: The input.
            question: What is asked.
            max_new_tokens: How many tokens a model writes at most, where what it writes is asked
                about.
            truncate: As in `Explainer.explain`.
        """
        return item, [question]

    def counted(self, item: Any, truncate: bool, position: int | str) -> tuple[str, ...]:
        """See that an input can be evaluated; return its tokens, of which frequencies are counted.

        Raises:
            AttnflowError: If it cannot; the message says why.
        """
        encoded = self.read(item, truncate)
        self.position(encoded, position, None)
        return encoded.tokens.names

    # ---- References ------------------------------------------------------------------------------

    def check_replaces(self) -> None:
        """See that parts of an input can be replaced.

        Raises:
            ModelError: If they cannot.
        """
        return

    def check_answers(self) -> None:
        """See that the model answers with a probability, and parts of an input can be replaced.

        Raises:
            ModelError: If that is not so.
        """
        self.check_replaces()
        if not self.answers:
            raise ModelError(
                f"{self.name} has no head and predicts nothing, so no token can matter to its "
                "prediction; expected a model for classification or a language model"
            )
        if self.has_classes and self.outputs == 1 and not self.multi_label:
            raise ModelError(
                f"{self.name} has a single output, which is not a class with a probability; "
                "expected a model with two classes or more, or "
                "config.problem_type='multi_label_classification', which makes the output a "
                "probability"
            )

    def answer_logits(self, outputs: Any, position: int | None) -> Any:
        """Return the logits of a batch that an answer is read from, of shape (B, classes).

        Args:
            outputs: What the model returned.
            position: Where the answer is read; None if there is one for the whole input.

        Raises:
            ModelError: If the model returned no logits.
        """
        logits = getattr(outputs, "logits", None)
        if logits is None:
            logits = getattr(outputs, "prediction_logits", None)
        if logits is None:
            raise ModelError(f"{self.name} returns no logits to read an answer from")
        return logits if position is None else logits[:, position]

    def fill(self, replacement: int | str, name: str = "replacement") -> int:
        """Return the id of the token that others are replaced by.

        Args:
            replacement: "auto", "unk", "mask", a token, or its id. "auto" is a space for a causal
                language model, whose UNK often separates texts; otherwise UNK if the tokenizer has
                one, and else MASK.
            name: What the option is called.

        Raises:
            OptionError: If there is no such token.
        """
        tokenizer = self.tokenizer
        named = {kind: getattr(tokenizer, f"{kind}_token_id", None) for kind in ("unk", "mask")}
        known = tuple(named.values())
        named["auto"] = named["mask"] if named["unk"] is None else named["unk"]
        if self.task == "causal-lm":
            space = _token_id(tokenizer, " ")
            named["auto"] = named["auto"] if space is None else space
        accepted = "'auto' (UNK, MASK or a space), 'unk', 'mask', one token of the vocabulary"
        found: int | None
        if not isinstance(replacement, str):
            found = integer(replacement, name, otherwise=accepted)
        elif replacement in named:
            found = named[replacement]
        else:
            found = _token_id(tokenizer, replacement)
        if found is None:
            raise OptionError(
                f"{name} is {replacement!r}, which is not one token of the tokenizer; expected "
                f"{accepted}, or its id"
            )
        weight = getattr(self.text_model.get_input_embeddings(), "weight", None)
        size = int(weight.shape[0]) if weight is not None else self.outputs
        if not 0 <= found < size:
            raise OptionError(
                f"{name} is {replacement!r}, token {found}, but the model knows {size} tokens: "
                f"expected an id from 0 to {size - 1}"
            )
        if found == getattr(tokenizer, "pad_token_id", None) and found not in known:
            raise OptionError(
                f"{name} is {replacement!r}, the padding token, which a model may ignore; expected "
                "another token"
            )
        return found

    def fill_name(self, fill: int) -> str:
        """Return what tokens are replaced by, in words."""
        name = str(self.tokenizer.decode([fill]))
        return "a space" if name.isspace() else name

    def encoded(self, item: Any, truncate: bool = False) -> Encoded:
        """Return an input as the model reads it, if it was not read before."""
        return item if isinstance(item, Encoded) else self.read(item, truncate)

    @abstractmethod
    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read inputs for a reference.

        Args:
            items: The inputs, or inputs that were read before.
            questions: What is asked about each; targets are indices.
            truncate: As in `Explainer.explain`.

        Raises:
            AttnflowError: If an input cannot be read, or has no such position.
        """

    def changes(self, reading: Reading, token: int, fill: int) -> bool:
        """Whether replacing a token gives the model anything else to read."""
        place = reading.places[token]
        return place is not None and reading.inputs[place[0]][place[1]] != fill

    def replaced(self, reading: Reading, tokens: Collection[int], fill: int) -> Reading:
        """Return a reading with some tokens replaced.

        Args:
            reading: The reading.
            tokens: The tokens, by index. Those without a place are left alone.
            fill: What replaces them, as `fill` gives it.
        """
        inputs = dict(reading.inputs)
        for token in tokens:
            place = reading.places[token]
            if place is not None:
                name, index = place
                if inputs[name] is reading.inputs[name]:
                    inputs[name] = list(inputs[name])
                inputs[name][index] = fill
        return reading._replace(inputs=inputs)

    def deleted(self, reading: Reading, tokens: Collection[int]) -> Reading | None:
        """Return a reading with some tokens deleted.

        What follows moves up. The answer is read where it was; if that token is deleted too, at the
        last one left before it.

        Args:
            reading: The reading.
            tokens: The tokens, by index. Those without a place are left alone.

        Returns:
            The reading, of which `inputs` and `position` have changed. None if nothing is left to
            read the answer at, or an input is empty.
        """
        gone: dict[str, set[int]] = {}
        for token in tokens:
            place = reading.places[token]
            if place is not None:
                gone.setdefault(place[0], set()).add(place[1])
        paired = "decoder_input_ids" in reading.inputs
        inputs = {}
        for name, values in reading.inputs.items():
            # Besides ids, a text has a mask and token types, which go with them.
            lost = gone.get(name if paired else "input_ids", set())
            inputs[name] = [value for index, value in enumerate(values) if index not in lost]
            if not inputs[name]:
                return None
        position = reading.position
        if position is not None:
            asked = gone.get("decoder_input_ids" if paired else "input_ids", set())
            position -= sum(index <= position for index in asked)
            if position < 0:
                return None
        return reading._replace(inputs=inputs, position=position)

    @property
    def can_delete(self) -> bool:
        """Whether tokens can be deleted; those of an image can only be painted over."""
        return True

    def together(self, readings: Sequence[Reading]) -> dict[str, Any]:
        """Return what the model is given for readings of one shape."""
        import torch

        device = self.model.device
        return {
            name: torch.tensor([reading.inputs[name] for reading in readings], device=device)
            for name in readings[0].inputs
        }

    def embeddings(self) -> list[Any]:
        """Return the modules whose outputs are the embeddings of the tokens, each once.

        Raises:
            ModelError: If the model does not say which they are.
        """
        try:
            return self.embedding_modules()
        except NotImplementedError as error:
            raise ModelError(
                f"{self.name} does not say which its embeddings are: its get_input_embeddings() is "
                "not implemented; use blank_out"
            ) from error

    def embedding_modules(self) -> list[Any]:
        """Return the modules whose outputs are the embeddings of the tokens, each once."""
        return [self.model.get_input_embeddings()]

    def embedded(self, reading: Reading) -> list[int]:
        """Return how many embeddings each call of those modules gives for a reading."""
        names = ("input_ids", "decoder_input_ids")
        return [len(reading.inputs[name]) for name in names if name in reading.inputs]


# ---- What adapters share -------------------------------------------------------------------------


def with_own(edges: NDArray[np.float64], entering: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add to each position's own edge what attention does not carry on: the residual connection.

    Args:
        edges: What attention carried, of shape (n, n).
        entering: What each position contributes where it enters the layer, of shape (n,).

    Returns:
        Edges whose columns sum to `entering`.

    Example:
        >>> with_own(np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([1.5, 2.0]))
        array([[0.5, 2. ],
               [1. , 0. ]])
    """
    return edges + np.diag(entering - edges.sum(axis=0))


def class_target(target: Any, labels: Mapping[int, str], name: str = "target") -> int:
    """Return the index of a class.

    Raises:
        OptionError: If there is no such class, or several have that name.

    Example:
        >>> class_target("VBP", {0: "VBZ", 1: "VBP"})
        1
    """
    if not isinstance(target, str):
        return resolve_index(target, len(labels), name, "classes")
    places = [index for index, label in labels.items() if label == target]
    if len(places) > 1:
        raise OptionError(
            f"{name} is {target!r}, the name of {len(places)} classes; give the index: "
            f"{', '.join(map(str, places))}"
        )
    if not places:
        names = list(dict.fromkeys(labels.values()))
        if len(names) > LISTED:
            names = difflib.get_close_matches(target, names, LISTED) or names[:LISTED]
            names.append("another of the model's labels")
        raise OptionError(f"{name} is {target!r}; expected one of {', '.join(names)}, or an index")
    return places[0]


def one_token(ids: Sequence[int], token: Any, tokenizer: Any, name: str) -> int:
    """Return the id of a text that is one token.

    Args:
        ids: The ids of its pieces.
        token: The text, for the error.
        tokenizer: The tokenizer.
        name: What the option is called, for the error.

    Raises:
        OptionError: If it is not one token of the vocabulary.
    """
    if len(ids) != 1:
        raise OptionError(
            f"{name} is {token!r}, which is {len(ids)} tokens ({_pieces(tokenizer, ids)}); "
            "expected one token (a leading space may matter), or its index"
        )
    return int(ids[0])


def _pieces(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return tokens for an error, with the spaces that they begin with."""
    return ", ".join(repr(tokenizer.decode([one])) for one in ids)


def _token_id(tokenizer: Any, token: str) -> int | None:
    """Return the id of a text that is one token of the vocabulary; None if it is not."""
    known = tokenizer.get_vocab()
    if token in known:
        return int(known[token])
    ids = tokenizer(token, add_special_tokens=False)["input_ids"]
    unknown = getattr(tokenizer, "unk_token_id", None)
    return int(ids[0]) if len(ids) == 1 and ids[0] != unknown else None


def grouped(lengths: Sequence[tuple[int, ...]], most: int | None = None) -> Iterator[list[int]]:
    """Yield the indices of inputs that run together: of similar length, the short ones first.

    Args:
        lengths: The lengths of each input; a batch is padded to the largest of each.
        most: How many positions a batch may have, padded ones included. None is `BATCH_POSITIONS`.

    Example:
        >>> list(grouped([(5,), (2,), (3,)], most=6))
        [[1, 2], [0]]
    """
    batch: list[int] = []
    longest: tuple[int, ...] = ()
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        longest = tuple(map(max, zip(longest or lengths[index], lengths[index], strict=True)))
        if batch and (len(batch) + 1) * sum(longest) > (most or BATCH_POSITIONS):
            yield batch
            batch, longest = [], lengths[index]
        batch.append(index)
    if batch:
        yield batch


@contextmanager
def about_item(index: int, count: int) -> Iterator[None]:
    """Name the input that an error of a block is about, if there are several.

    Args:
        index: Which input it is, from 0.
        count: How many inputs there are.

    Example:
        >>> with about_item(3, 500):
        ...     raise OptionError("the text is empty")
        Traceback (most recent call last):
        attnflow.errors.OptionError: item 3: the text is empty
    """
    try:
        yield
    except AttnflowError as error:
        if count == 1:
            raise
        raise type(error)(f"item {index}: {error}") from error


def smallest(*limits: Any) -> int | None:
    """Return the smallest of some limits; None and very large numbers are ignored.

    Example:
        >>> smallest(512, None, 10**30)
        512
    """
    return min((x for x in limits if isinstance(x, int) and 0 < x < 10**9), default=None)
