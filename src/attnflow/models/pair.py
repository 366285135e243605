"""Encoder-decoders that read text: a source text, and the target so far.

The graph has the source's tokens and then the target's. A position of the target is explained by
the source's tokens and by the target's own up to there, together.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import choice, resolve_index
from attnflow.errors import ModelError, OptionError, TextError
from attnflow.graph import AttentionGraph, encoder_decoder_graph
from attnflow.models.adapter import (
    Adapter,
    Encoded,
    Loader,
    Question,
    Reading,
    about_item,
    grouped,
    smallest,
    with_own,
)
from attnflow.models.text import padded, placed
from attnflow.models.writing import Progress, Writing, Written, end_ids, text_from, write
from attnflow.options import Options
from attnflow.scoring import gradient_rows, shares
from attnflow.tokens import Span, Tokens, in_text

# What stands between the source and the target where both are shown as one text.
ARROW: Final = " → "


class PairAdapter(Adapter):
    """Reads a source text and the target so far, and writes on."""

    tasks: ClassVar[tuple[str, ...]] = ("seq2seq-lm",)
    asks_about_targets: ClassVar[bool] = True
    in_data_sets: ClassVar[bool] = True
    what: ClassVar[str] = "text"
    """What a source is called in errors."""

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        self.task = self.tasks[0]
        _check_input(type(model))
        if not (
            hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None
        ):
            raise ModelError(
                f"{self.name} is an encoder-decoder without a head that writes text; only "
                f"encoder-decoders that write are explained. task={self.task!r} loads it as one"
            )

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model has an encoder and a decoder."""
        # The encoder of an encoder-decoder may be called one too, but takes no decoder's input.
        both = "decoder_input_ids" in inspect.signature(model.forward).parameters
        return both and bool(getattr(model.config, "is_encoder_decoder", False))

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is not an encoder-decoder."""
        if not getattr(config, "is_encoder_decoder", False):
            return None
        cls._check_saved(config, task)
        return "AutoModelForSeq2SeqLM", "AutoTokenizer"

    @classmethod
    def _check_saved(cls, config: Any, task: str) -> None:
        import transformers

        saved = (config.architectures or [""])[0]
        _check_input(getattr(transformers, saved, None))
        able = cls.tasks[0]
        if task == "auto" and saved.endswith(("Classification", "QuestionAnswering")):
            raise ModelError(
                f"the checkpoint is a {saved}; expected an encoder-decoder that writes text. "
                f"task={able!r} loads it as one"
            )
        if task not in ("auto", able):
            raise OptionError(
                f"task is {task!r}, but {config.model_type} is an encoder-decoder; expected auto "
                f"or {able}"
            )

    @property
    def depth(self) -> int | None:
        """How many layers the decoder has, as far as the model says."""
        config = self.model.config
        names = ("decoder_layers", "num_decoder_layers")
        found = [getattr(config, name, None) for name in names]
        return next((depth for depth in found if isinstance(depth, int)), None)

    def token_ids(self, token: Any, name: str) -> list[int]:
        """Return the ids of the pieces of a token of the target."""
        if not isinstance(token, str):
            return super().token_ids(token, name)
        return list(self.tokenizer(text_target=token, add_special_tokens=False)["input_ids"])

    @property
    def writes(self) -> bool:
        """True: the decoder writes on."""
        return True

    def extended(self, encoded: Encoded, tokens: Sequence[int]) -> Encoded:
        """Return a pair with tokens written after the target so far."""
        target = [*encoded.inputs["decoder_input_ids"], *tokens]
        self._check_target(target)
        return encoded._replace(
            tokens=self._with_target(encoded.extra, target),
            inputs={**encoded.inputs, "decoder_input_ids": target},
        )

    @property
    def max_target(self) -> int | None:
        """How many target tokens the model takes."""
        config = self.model.config
        return smallest(
            getattr(config, "max_target_positions", None),
            getattr(config, "max_position_embeddings", None),
        )

    # ---- Reading ---------------------------------------------------------------------------------

    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return sources, each with the target so far.

        Args:
            inputs: A source; a tuple of a source and the target so far; or a list of either.
        """
        many = isinstance(inputs, list)
        if many and not inputs:
            raise TextError(f"inputs is an empty list; expected a {self.what} or a list of them")
        return [self._pair(item) for item in (inputs if many else [inputs])], many

    def _pair(self, item: Any) -> tuple[Any, str]:
        """Return a source and the target so far, which may be empty."""
        pair = item if isinstance(item, tuple) else (item, "")
        if len(pair) != 2 or not self._is_source(pair[0]) or not isinstance(pair[1], str):
            shown = repr(item) if isinstance(item, str | tuple) else type(item).__name__
            raise TextError(
                f"the input is {shown}; expected a source {self.what}, or a tuple of a source "
                f"{self.what} and the target so far, a text"
            )
        return pair

    def _is_source(self, source: Any) -> bool:
        return isinstance(source, str)

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read a source and the target so far."""
        source, said = self._pair(item)
        target = self._target_ids(said)
        if not source.strip():
            raise TextError("the source text is empty; there is nothing to explain")
        most = self.max_tokens
        ids = self.tokenizer(
            source,
            truncation=bool(truncate and most),
            max_length=most if truncate else None,
            verbose=False,
        )["input_ids"]
        if most is not None and len(ids) > most:
            raise TextError(
                f"the source text has {len(ids)} tokens and the model takes {most}; shorten it, "
                "or pass truncate=True to cut it there"
            )
        special = _special_ids(self.tokenizer) | {target[0]}
        names = [str(name) for name in self.tokenizer.convert_ids_to_tokens(ids)]
        spans = _source_spans(self.tokenizer, source, ids, special)
        first = Tokens(source, tuple(names), spans, tuple(token in special for token in ids))
        return Encoded(
            self._with_target(first, target),
            {"input_ids": list(ids), "decoder_input_ids": target},
            source=len(ids),
            extra=first,
        )

    def _target_ids(self, said: str) -> list[int]:
        """Return the ids of the target so far, with what it starts with."""
        start = self.model.config.decoder_start_token_id
        if start is None:
            raise ModelError(
                f"{self.name} does not say what its target starts with: "
                "config.decoder_start_token_id is None"
            )
        labels = list(self.tokenizer(text_target=said)["input_ids"])
        # The token that ends a target has not been written yet.
        if labels and labels[-1] == getattr(self.tokenizer, "eos_token_id", None):
            labels.pop()
        # The tokenizer of Whisper begins with what the target begins with, others do not.
        labels = labels if labels[:1] == [start] else [start, *labels]
        self._check_target(labels)
        return labels

    def _check_target(self, target: list[int]) -> None:
        most = self.max_target
        if most is not None and len(target) > most:
            raise TextError(
                f"the target so far has {len(target)} tokens, including those it starts with, and "
                f"the model takes {most}; shorten it"
            )

    def _with_target(self, source: Tokens, target: list[int]) -> Tokens:
        """Return the tokens of a source with those of a target."""
        special_ids = _special_ids(self.tokenizer) | {target[0]}
        text, spans = source.text, list(source.spans)
        if text and any(token not in special_ids for token in target):
            text += ARROW
        begin, before = len(text), ""
        shown: list[int] = []
        for place, token in enumerate(target):
            if token in special_ids:
                # The start of the target is where the arrow stands, if there is one.
                arrow = place == 0 and text.endswith(ARROW)
                spans.append((begin - len(ARROW), begin) if arrow else None)
                continue
            # A tokenizer tells where tokens stand only in texts that it reads, so the target is
            # decoded token by token.
            shown.append(token)
            after = self.tokenizer.decode(shown, clean_up_tokenization_spaces=False)
            start = len(before) if after.startswith(before) else len(after)
            spans.append((begin + start, begin + len(after)))
            before = after
        text += before
        names = [*source.names, *map(str, self.tokenizer.convert_ids_to_tokens(target))]
        special = [*source.special, *(token in special_ids for token in target)]
        placed = [None if flag else span for span, flag in zip(spans, special, strict=True)]
        return Tokens(text, in_text(text, names, placed), tuple(spans), tuple(special))

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield pairs of similar length together."""
        encoded = []
        for index, item in enumerate(items):
            with about_item(index, len(items)):
                encoded.append(self.read(item, options.truncate))
                self.position(encoded[-1], options.position, None)
        lengths = [(pair.source, len(pair.inputs["decoder_input_ids"])) for pair in encoded]
        for batch in grouped(lengths):
            yield [(index, encoded[index]) for index in batch]

    def check_position(self, position: int | str) -> None:
        """Refuse a position that has no meaning for targets."""
        if isinstance(position, str):
            choice(position, "position", ("auto", "last"), otherwise="an index")

    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return a position of the target."""
        self.check_position(position)
        count = len(encoded.inputs["decoder_input_ids"])
        if isinstance(position, str):
            return count - 1
        return resolve_index(position, count, "position", "target positions")

    # ---- Running ---------------------------------------------------------------------------------

    def capture(self, inputs: dict[str, Any], **options: Any) -> Any:
        """Run the model with its three kinds of attention captured."""
        from attnflow.capture import capture_pair

        return capture_pair(self.model, inputs, **options)

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the batch as padded tensors."""
        pad = smallest(getattr(self.tokenizer, "pad_token_id", None)) or 0
        device = self.model.device
        # What follows a position has no effect on it, so a padded target needs no mask.
        targets = [pair.inputs["decoder_input_ids"] for pair in batch]
        return {
            "decoder_input_ids": padded(targets, pad, device),
            **self._sources(batch, pad),
        }, None

    def _sources(self, batch: Sequence[Encoded], pad: int) -> dict[str, Any]:
        """Return what the encoder is given for a batch."""
        sources = [pair.inputs["input_ids"] for pair in batch]
        inputs = {"input_ids": padded(sources, pad, self.model.device)}
        if len({len(source) for source in sources}) > 1:
            ones = [[1] * len(source) for source in sources]
            inputs["attention_mask"] = padded(ones, 0, self.model.device)
        return inputs

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of positions of a target."""
        return outputs.logits[row, list(positions)]

    def graph(self, captured: Any, row: int, encoded: Encoded, options: Options) -> AttentionGraph:
        """Return the graph of one pair."""
        count, said = encoded.node(0), len(encoded.inputs["decoder_input_ids"])
        encoder: list[Any] = [layer[row, :count, :count] for layer in captured.encoder]
        decoder: list[Any] = [layer[row, :said, :said] for layer in captured.decoder]
        cross: list[Any] = [layer[row, :said, :count] for layer in captured.cross]
        if options.edges == "gradient":
            encoder, decoder = (
                [gradient_rows(layer.double().numpy()) for layer in part]
                for part in (encoder, decoder)
            )
            # A position without any positive gradient on the source attends to itself.
            cross = [shares(layer.double().numpy()) for layer in cross]
        residual: float | NDArray[np.float64] = options.residual
        if captured.residuals is not None:
            own, before, across = captured.residuals
            below = len(encoder)
            residual = np.ones((below + 2 * len(decoder), count + said))
            for layer, share in enumerate(own):
                residual[layer, :count] = share[row, :count].numpy()
            for layer, (share, other) in enumerate(zip(before, across, strict=True)):
                residual[below + 2 * layer, count:] = share[row, :said].numpy()
                residual[below + 2 * layer + 1, count:] = other[row, :said].numpy()
        return encoder_decoder_graph(
            encoder, decoder, cross, residual=residual, allow_empty=options.edges != "attention"
        )

    def by_position(self, found: Any, row: int, encoded: Encoded) -> NDArray[np.float64]:
        """Return the contributions of the source's positions, then of the target's."""
        source, target = found.scores
        said = len(encoded.inputs["decoder_input_ids"])
        return np.concatenate([source[row, : encoded.node(0)], target[row, :said]])

    def followed(self, found: Any) -> Any:
        """Return the three kinds of attention of steps as `capture_pair` returns them."""
        from attnflow.capture import CapturedPair

        kinds: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for step in found.steps:
            kinds[2 if step.cross else step.stack].append(step.weights)
        return CapturedPair(*kinds, found.outputs)

    def carried(self, found: Any, row: int, encoded: Encoded) -> NDArray[np.float64]:
        """Return what each edge carried; the other side passes through unchanged.

        Within a layer of the decoder it is not known what biases add between its two steps: they
        are in the columns of the layer above.
        """
        count, said = encoded.node(0), len(encoded.inputs["decoder_input_ids"])
        source, target = slice(0, count), slice(count, count + said)
        scores = self.by_position(found, row, encoded)
        layers = []
        # What of the source is still to be read by the layers above.
        crossing = [step.edges[row, :said, :count].numpy() for step in found.steps if step.cross]
        left = np.sum(crossing, axis=(0, 1))
        arrived = np.zeros(said)
        for step in found.steps:
            whole = np.zeros((count + said, count + said))
            if step.cross:
                whole[target, source] = step.edges[row, :said, :count].numpy()
                left = left - whole[target, source].sum(axis=0)
                whole[source, source] = np.diag(left)
                whole[target, target] = np.diag(arrived)
            else:
                side = source if step.stack == 0 else target
                size = side.stop - side.start
                entering = step.entering[row, :size].numpy()
                whole[side, side] = with_own(step.edges[row, :size, :size].numpy(), entering)
                arrived = whole[target, target].sum(axis=1)
                other = target if step.stack == 0 else source
                passing = scores[target] if step.stack == 0 else left
                whole[other, other] = np.diag(passing)
            layers.append(whole)
        return np.stack(layers)

    def mask(self, graph: AttentionGraph) -> NDArray[np.bool_] | None:
        """Return the mask: the target does not see what follows, and everything else is seen."""
        mask = np.ones((graph.layers, 2 * graph.tokens - 1), dtype=np.bool_)
        if graph.encoder is not None:
            # In the self-attention of the decoder.
            mask[graph.encoder[0] :: 2, graph.tokens :] = False
        return mask

    def details(self, encoded: Encoded, outputs: Any) -> dict[str, Any]:
        """Return how many of the tokens are the source's."""
        return {"options": {"source_tokens": encoded.source}}

    # ---- Writing ---------------------------------------------------------------------------------

    def generate(
        self, item: Any, writing: Writing, truncate: bool, progress: Progress | None = None
    ) -> Written:
        """Let the model write a target for a source."""
        encoded = self.read(item, truncate)
        first = len(encoded.inputs["decoder_input_ids"])
        writing.check_room(first, self.max_target, "the target so far")
        written = self._write(encoded, writing, progress)
        special = _special_ids(self.tokenizer)
        positions = [k - 1 for k in range(first, len(written)) if written[k] not in special]
        ended = len(written) > first and written[-1] in end_ids(self.model)
        text = ""
        whole = encoded
        if positions:
            said, count = written[first : positions[-1] + 2], len(encoded.tokens)
            text = text_from(self.extended(encoded, said).tokens, count)
            # No token is written from the last one.
            whole = self.extended(encoded, said[:-1])
        return Written(
            whole,
            encoded.tokens.text,
            text,
            len(encoded.tokens),
            positions,
            [written[k + 1] for k in positions],
            ended,
        )

    def _write(
        self, encoded: Encoded, writing: Writing, progress: Progress | None = None
    ) -> list[int]:
        """Return the target that the model writes, with what it starts with."""
        import torch

        model, target = self.model, encoded.inputs["decoder_input_ids"]
        source, options = self._prompt(encoded)
        written = write(
            model,
            source,
            len(target),
            writing,
            progress,
            decoder_input_ids=torch.tensor([target], device=model.device),
            **options,
        )
        # Whisper gives back what the target starts with, or does not, from version to version.
        return written if written[: len(target)] == target else [*target, *written]

    def _prompt(self, encoded: Encoded) -> tuple[Any, dict[str, Any]]:
        """Return what the model writes for, and how."""
        import torch

        source = torch.tensor([encoded.inputs["input_ids"]], device=self.model.device)
        return source, {"attention_mask": torch.ones_like(source)}

    def questions(
        self, item: Any, question: Question, max_new_tokens: int, truncate: bool
    ) -> tuple[Any, list[Question]]:
        """Ask about every token of the target, where no position is given.

        If there is no target, the model writes one, greedily.
        """
        if question.position != "auto":
            return item, [question]
        source, said = self._pair(item)
        if not said.strip():
            empty = self.read((source, ""), truncate)
            first = len(empty.inputs["decoder_input_ids"])
            most = min(max_new_tokens, (self.max_target or sys.maxsize) - first)
            written = self._write(empty, Writing(most))[first:]
            said = str(self.tokenizer.decode(written, skip_special_tokens=True))
            if not said.strip():
                raise TextError("the model writes nothing for the source, so nothing can be asked")
        encoded = self.read((source, said), truncate)
        special = encoded.tokens.special[encoded.source :]
        asked = [
            Question(place, token)
            for place, token in enumerate(encoded.inputs["decoder_input_ids"][1:])
            if not special[place + 1]
        ]
        if not asked:
            raise TextError(f"the tokenizer finds no token in the target {said!r}")
        return (source, said), asked

    def counted(self, item: Any, truncate: bool, position: int | str) -> tuple[str, ...]:
        """See that a pair can be evaluated."""
        names = super().counted(item, truncate, position)
        # Without a target given there is only what a target starts with.
        pair = self._pair(item)
        return names if pair[1].strip() else names[: self.read(pair, truncate).source]

    # ---- References ------------------------------------------------------------------------------

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read pairs for a reference."""
        readings = []
        for item, question in zip(items, questions, strict=True):
            encoded = self.encoded(item, truncate)
            place = self.position(encoded, question.position, None) or 0
            said = encoded.inputs["decoder_input_ids"]
            inputs = {**encoded.inputs, "decoder_input_ids": said[: place + 1]}
            places = (
                *placed(encoded.source),
                *placed(place + 1, len(said), "decoder_input_ids"),
            )
            target: Any = question.target
            contrast: Any = question.contrast
            readings.append(
                Reading(inputs, encoded.tokens, places, place, target, contrast=contrast)
            )
        return readings

    def embedding_modules(self) -> list[Any]:
        """Return the embeddings of the encoder and of the decoder, which may be the same."""
        sides = (self.model.get_encoder, self.model.get_decoder)
        both = [side().get_input_embeddings() for side in sides]
        return both[:1] if both[0] is both[1] else both


def _check_input(kind: Any) -> None:
    """Refuse a class of models that reads neither text nor sound."""
    given = getattr(kind, "main_input_name", "input_ids")
    if given not in ("input_ids", "input_features"):
        raise ModelError(
            f"{kind.__name__} reads {given}, not text or sound; use attnflow.capture.capture_pair "
            "and attnflow.encoder_decoder_graph"
        )


def _special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of special tokens. The one for unknown words stands for a word."""
    special = set(getattr(tokenizer, "all_special_ids", []))
    unknown = getattr(tokenizer, "unk_token_id", None)
    # Some tokenizers have one token for this and for the end.
    others = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "sep")]
    return special if unknown in others else special - {unknown}


def _source_spans(
    tokenizer: Any, source: str, ids: list[int], special_ids: set[int]
) -> tuple[Span | None, ...]:
    if not getattr(tokenizer, "is_fast", False):
        return (None,) * len(ids)
    offsets = tokenizer(source, truncation=True, max_length=len(ids), return_offsets_mapping=True)
    return tuple(
        None if token in special_ids else (int(start), int(end))
        for token, (start, end) in zip(ids, offsets["offset_mapping"], strict=True)
    )
