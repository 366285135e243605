"""Models that classify sound: wav2vec2, HuBERT and their like, and spectrogram Transformers (AST).

A token is a stretch of sound of a tenth of a second, named by its time, "0.30-0.40 s". wav2vec2
hears a position every 0.02 seconds. AST cuts a spectrogram into patches, of which those of all
frequencies at one time belong to one stretch; it hears a fixed length, and the silence that is
added to a shorter sound is one special token, after "[CLS]" and "[DIST]".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_index
from attnflow.errors import ModelError, OptionError, TextError
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import BATCH_POSITIONS, Adapter, Encoded, Loader, Question, Reading
from attnflow.models.sound import read_sound, stretches
from attnflow.models.text import fused_graph
from attnflow.options import Options
from attnflow.tokens import Tokens

# How the names of classes end that classify sounds.
CLASSIFIERS: Final = ("ForSequenceClassification", "ForAudioClassification")

# What replaces a stretch.
SILENCE: Final = 0

# The special tokens of a spectrogram Transformer.
_SPECIAL: Final = ("[CLS]", "[DIST]")


class Heard(NamedTuple):
    """How a sound is laid out for a model.

    Attributes:
        tokens: The stretches, and special tokens.
        sizes: How many positions each token has.
        order: The positions of the model in the order of the tokens.
        slices: For each token its part of the input, from and to along the axis of time; None for
            a special token.
        silent: The input for silence of the same length.
    """

    tokens: Tokens
    sizes: tuple[int, ...]
    order: NDArray[np.int64]
    slices: tuple[tuple[int, int] | None, ...]
    silent: Any


class AudioAdapter(Adapter):
    """Reads a sound, for a model without a decoder."""

    tasks: ClassVar[tuple[str, ...]] = ("audio-classification", "audio-encoder")

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        self.task = _task_of(type(model).__name__)
        self._extractor: Final = getattr(reader, "feature_extractor", None) or reader
        config = model.config
        self._patches: Final = hasattr(config, "time_stride") and hasattr(config, "num_mel_bins")
        if not self._patches and not hasattr(config, "conv_kernel"):
            raise ModelError(
                f"{self.name} reads sound in a way that is not known; expected a model whose "
                "convolutions make positions of it, as wav2vec2 and HuBERT, or a spectrogram "
                "Transformer (AST)"
            )
        rate = getattr(self._extractor, "sampling_rate", None)
        if not isinstance(rate, int):
            raise ModelError(
                f"tokenizer is {type(reader).__name__}; expected the feature extractor of "
                f"{self.name}"
            )
        self._rate: Final = rate
        if self._patches:
            wanted = (config.max_length, config.num_mel_bins)
            given = tuple(
                getattr(self._extractor, name, None) for name in ("max_length", "num_mel_bins")
            )
            if wanted != given:
                raise ModelError(
                    f"{self.name} takes {wanted[0]} frames of {wanted[1]} numbers, and this "
                    f"feature extractor gives {given[0]} of {given[1]}"
                )

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model, or a class of models, is given the samples or spectrogram of a sound."""
        return getattr(model, "main_input_name", None) == "input_values"

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is not that of an audio model."""
        import transformers

        name = (getattr(config, "architectures", None) or [""])[0]
        saved: Any = getattr(transformers, name, None)
        if saved is None and type(config) in transformers.MODEL_MAPPING:
            saved = transformers.MODEL_MAPPING[type(config)]
        if not cls.fits(saved):
            return None
        if task not in ("auto", *cls.tasks):
            raise OptionError(
                f"task is {task!r}, but {saved.__name__} reads sound; expected auto, "
                f"{', '.join(cls.tasks)}"
            )
        if task in ("auto", _task_of(saved.__name__)):
            return saved.__name__, "AutoFeatureExtractor"
        if task == "audio-classification":
            raise OptionError(
                f"task is {task!r}, but the checkpoint is a {saved.__name__} without a classifier: "
                "its answers would be random; expected auto or audio-encoder"
            )
        return "AutoModel", "AutoFeatureExtractor"

    @property
    def tokenizer(self) -> Any:
        """None: a sound has no text."""
        return None

    @property
    def max_tokens(self) -> int | None:
        """None: a sound is measured in seconds."""
        return None

    @property
    def answers(self) -> bool:
        """Whether the model classifies."""
        return self.task == "audio-classification"

    def check(self, options: Options) -> None:
        """Refuse units of texts."""
        if options.units != "tokens":
            raise OptionError(
                f"units is {options.units!r}, which is for texts; this model takes sounds"
            )
        super().check(options)

    # ---- Reading ---------------------------------------------------------------------------------

    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return the sounds that were given, not read yet."""
        if not isinstance(inputs, list):
            return [inputs], False
        if not inputs:
            raise TextError("inputs is an empty list; expected a sound or a list of sounds")
        return inputs, True

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read one sound."""
        samples = read_sound(item, self._rate, self._most, truncate)
        heard = self._spectrogram(samples) if self._patches else self._waves(samples)
        inputs = {"input_values": self._features(samples)}
        return Encoded(heard.tokens, inputs, sizes=heard.sizes, extra=heard)

    @property
    def _most(self) -> int | None:
        """How many samples the model takes; None if it takes any number."""
        if not self._patches:
            return None
        return int(self.model.config.max_length) * self._frame[1]

    @property
    def _frame(self) -> tuple[int, int]:
        """How many samples a frame of a spectrogram has, and how far one is from the next."""
        return self._rate // 40, self._rate // 100

    def _features(self, samples: NDArray[np.float32]) -> Any:
        read = self._extractor(samples, sampling_rate=self._rate, return_tensors="pt")
        return read["input_values"][0]

    def _waves(self, samples: NDArray[np.float32]) -> Heard:
        """Lay out a sound for a model whose convolutions make positions of its samples."""
        config, count, stride = self.model.config, len(samples), 1
        for kernel, step in zip(config.conv_kernel, config.conv_stride, strict=True):
            count, stride = (count - kernel) // step + 1, stride * step
        if count < 1:
            raise TextError(
                f"the sound has {len(samples)} samples, which are too few for one position of "
                f"{self.name}, about {stride}; expected a longer sound"
            )
        tokens, sizes = stretches(count, count, stride / self._rate)
        edges = [*(stride * edge for edge in np.cumsum([0, *sizes[:-1]])), len(samples)]
        return Heard(
            tokens,
            sizes,
            np.arange(count),
            tuple((int(first), int(last)) for first, last in pairwise(edges)),
            self._features(np.zeros_like(samples)),
        )

    def _spectrogram(self, samples: NDArray[np.float32]) -> Heard:
        """Lay out a sound for a model that cuts its spectrogram into patches."""
        config, (frame, hop) = self.model.config, self._frame
        if len(samples) < frame:
            raise TextError(
                f"the sound has {len(samples)} samples, and a frame of the spectrogram has "
                f"{frame}; expected a longer sound"
            )
        step = int(config.time_stride)
        rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        columns = (config.max_length - config.patch_size) // step + 1
        frames = min(1 + (len(samples) - frame) // hop, int(config.max_length))
        heard = min(columns, -(-frames // step))
        found, across = stretches(columns, heard, step * hop / self._rate)
        first = len(_SPECIAL)
        tokens = Tokens(
            "",
            (*_SPECIAL, *found.names),
            (None,) * (first + len(found)),
            (*(True for _ in _SPECIAL), *found.special),
        )
        # The model has all times of one frequency, then of the next.
        patches = first + np.arange(rows * columns).reshape(rows, columns).T.ravel()
        edges = [*(step * int(edge) for edge in np.cumsum(across[: sum(~np.array(found.special))]))]
        edges[-1] = frames
        slices = [*pairwise([0, *edges]), *[None] * sum(found.special)]
        return Heard(
            tokens,
            (*(1 for _ in _SPECIAL), *(rows * size for size in across)),
            np.concatenate([np.arange(first), patches]),
            (*(None for _ in _SPECIAL), *slices),
            self._features(np.zeros_like(samples)),
        )

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield sounds of one length together: wav2vec2 hears padding, and AST pads by itself."""
        for item in items:
            read_sound(item, self._rate, self._most, options.truncate)
        waiting: dict[Any, list[tuple[int, Encoded]]] = {}
        for index, item in enumerate(items):
            encoded = self.read(item, options.truncate)
            self.position(encoded, options.position, None)
            shape = tuple(encoded.inputs["input_values"].shape)
            batch = waiting.setdefault(shape, [])
            batch.append((index, encoded))
            if (len(batch) + 1) * len(encoded.extra.order) > BATCH_POSITIONS:
                yield waiting.pop(shape)
        yield from waiting.values()

    def check_position(self, position: int | str) -> None:
        """Do nothing: which positions have names depends on the sound."""

    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return the token whose position is explained: of a stretch, the one in its middle."""
        names = encoded.tokens.names
        if not isinstance(position, str):
            return resolve_index(position, len(names), "position", "tokens")
        if position == "mean":
            return None
        if position == "auto":
            # A classifier's head says which positions it reads. An encoder has none.
            return 0 if self._patches else len(names) // 2
        wanted = "[CLS]" if position == "cls" else position
        if wanted not in names:
            raise OptionError(
                f"position is {position!r}; expected 'auto', an index from 0 to {len(names) - 1}, "
                f"or a name such as {names[0]!r}"
            )
        return names.index(wanted)

    # ---- Running ---------------------------------------------------------------------------------

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the batch as one tensor."""
        return self._stacked([sound.inputs["input_values"] for sound in batch]), None

    def _stacked(self, sounds: Sequence[Any]) -> dict[str, Any]:
        import torch

        values = torch.stack(list(sounds)).to(self.model.device, self.model.dtype)
        return {"input_values": values}

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of a sound."""
        return outputs.logits[row][None]

    def graph(self, captured: Any, row: int, encoded: Encoded, options: Options) -> AttentionGraph:
        """Return the graph of one sound, its positions in the order of time."""
        order = encoded.extra.order
        self._check_count(captured.layers[0].shape[-1], len(order))

        def ordered(layer: Any) -> Any:
            return layer[row : row + 1][..., order, :][..., order]

        residuals = captured.residuals
        if residuals is not None:
            residuals = [share[row : row + 1][..., order] for share in residuals]
        layers = [ordered(layer) for layer in captured.layers]
        own = captured._replace(layers=layers, residuals=residuals)
        return fused_graph(own, 0, len(order), options)

    def by_position(self, found: Any, row: int, encoded: Encoded) -> NDArray[np.float64]:
        """Return the contribution of each position, in the order of time."""
        return self.in_graph(found.scores[0][row].numpy(), encoded)

    def in_graph(self, reads: NDArray[np.float64], encoded: Encoded) -> NDArray[np.float64]:
        """Return what belongs to the model's positions in the order of time."""
        self._check_count(len(reads), len(encoded.extra.order))
        ordered: NDArray[np.float64] = reads[encoded.extra.order]
        return ordered

    def _check_count(self, found: int, expected: int) -> None:
        if found != expected:
            raise ModelError(
                f"{self.name} attends over {found} positions, and its configuration says "
                f"{expected}, so the time of a position is not known"
            )

    def mask(self, graph: AttentionGraph) -> NDArray[np.bool_] | None:
        """Return the mask: in a sound every position sees every other."""
        return np.ones((graph.layers, 2 * graph.tokens - 1), dtype=np.bool_)

    # ---- References ------------------------------------------------------------------------------

    def counted(self, item: Any, truncate: bool, position: int | str) -> tuple[str, ...]:
        """Return nothing: stretches of sound have no frequencies."""
        read_sound(item, self._rate, self._most, truncate)
        return ()

    def fill(self, replacement: int | str, name: str = "replacement") -> int:
        """Return what replaces a stretch: silence."""
        if replacement != "auto":
            raise OptionError(
                f"{name} is {replacement!r}, but the model takes sounds; expected 'auto', which "
                "puts silence in the place of a stretch"
            )
        return SILENCE

    def fill_name(self, fill: int) -> str:
        """Return what stretches are replaced by."""
        return "silence"

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read sounds for a reference."""
        readings = []
        for item, question in zip(items, questions, strict=True):
            encoded = self.encoded(item, truncate)
            # One answer for the whole sound, wherever it is read.
            self.position(encoded, question.position, None)
            places = tuple(
                None if part is None else ("input_values", token)
                for token, part in enumerate(encoded.extra.slices)
            )
            target: Any = question.target
            contrast: Any = question.contrast
            inputs, tokens, heard = encoded.inputs, encoded.tokens, encoded.extra
            readings.append(Reading(inputs, tokens, places, None, target, heard, contrast))
        return readings

    def changes(self, reading: Reading, token: int, fill: int) -> bool:
        """Whether a token is a stretch of the sound."""
        return reading.places[token] is not None

    def replaced(self, reading: Reading, tokens: Collection[int], fill: int) -> Reading:
        """Return a reading with silence in the place of some stretches."""
        values = reading.inputs["input_values"].clone()
        for token in tokens:
            part = reading.extra.slices[token]
            if part is not None:
                values[slice(*part)] = reading.extra.silent[slice(*part)]
        return reading._replace(inputs={"input_values": values})

    @property
    def can_delete(self) -> bool:
        """No: without a stretch, all that follows would be heard earlier."""
        return False

    def together(self, readings: Sequence[Reading]) -> dict[str, Any]:
        """Return what the model is given for readings of one shape."""
        return self._stacked([reading.inputs["input_values"] for reading in readings])

    def embedding_modules(self) -> list[Any]:
        """Refuse: a stretch of sound has several embeddings."""
        raise ModelError(
            f"{self.name} reads sound, and a stretch of it has several embeddings; use blank_out"
        )


def _task_of(class_name: str) -> str:
    return "audio-classification" if class_name.endswith(CLASSIFIERS) else "audio-encoder"
