"""Speech models: sound in, and which stretch of time each position of the encoder hears.

Whisper's encoder hears 30 seconds at once, as 1,500 positions of 0.02 seconds. A shorter sound is
padded with silence. In an explanation, a source token is a stretch of sound of a tenth of a second,
named by its time, "0.30-0.40 s". The silence that was added is one special token.
"""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import ModelError, TextError
from attnflow.models.adapter import Encoded, Loader, about_item, grouped
from attnflow.models.pair import PairAdapter
from attnflow.options import Options
from attnflow.tokens import Tokens

# How long a stretch is, in seconds, as nearly as whole positions allow. A spoken word takes about a
# quarter of a second, and a phoneme a tenth.
STRETCH: Final = 0.1

# Stands for the language of a sound until the model has heard it.
UNHEARD: Final = -1

_SOUND: Final = (
    "a float array of one channel, a mapping with 'array' and 'sampling_rate', or the path of a "
    ".wav file"
)


class SoundAdapter(PairAdapter):
    """Reads a sound and the text so far, as Whisper does."""

    tasks: ClassVar[tuple[str, ...]] = ("speech-to-text",)
    in_data_sets: ClassVar[bool] = False
    what: ClassVar[str] = "sound"

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        self._listener: Final = listener(model, reader)

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model has an encoder that is given sound, and a decoder."""
        return super().fits(model) and getattr(model, "main_input_name", None) == "input_features"

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is not Whisper's."""
        if config.model_type != "whisper":
            return None
        cls._check_saved(config, task)
        return "AutoModelForSpeechSeq2Seq", "AutoProcessor"

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processor."""
        return self.reader.tokenizer

    @property
    def max_tokens(self) -> int | None:
        """None: a sound is measured in seconds."""
        return None

    def _is_source(self, source: Any) -> bool:
        return True  # what a sound may be is checked when it is read

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read a sound and the text so far."""
        import torch

        from attnflow.capture.borrow import borrowed

        sound, said = self._pair(item)
        target = self._target_ids(said)
        samples = self._listener.read(sound, truncate)
        features = self._listener.features(samples)
        if UNHEARD in target:
            with torch.no_grad(), borrowed(self.model, None):
                heard = int(
                    self.model.detect_language(
                        input_features=features.to(self.model.device, self.model.dtype),
                        num_segment_frames=features.shape[-1],
                    )[0]
                )
            target = [heard if token == UNHEARD else token for token in target]
        source, sizes = self._listener.stretches(samples)
        return Encoded(
            self._with_target(source, target),
            {"input_features": features[0], "decoder_input_ids": target},
            source=len(source),
            sizes=sizes,
            extra=source,
        )

    def _target_ids(self, said: str) -> list[int]:
        """Return the ids of the text so far, with its language and task, as Whisper is told them.

        A tokenizer that was told them has them there. Otherwise they are those of the model's
        generation_config, or else the language that the model hears, and to transcribe.
        """
        target = super()._target_ids(said)
        config = self.model.generation_config
        languages: dict[str, int] = getattr(config, "lang_to_id", None) or {}
        tasks: dict[str, int] = getattr(config, "task_to_id", None) or {}
        if languages and not set(languages.values()) & set(target):
            target = [target[0], _language_id(config, languages), *target[1:]]
        if languages and tasks and not set(tasks.values()) & set(target):
            task = getattr(config, "task", None) or "transcribe"
            target = [*target[:2], tasks[task], *target[2:]]
        self._check_target(target)
        return target

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield sounds together; one in a file is read again when its turn comes."""
        lengths = []
        for index, item in enumerate(items):
            with about_item(index, len(items)):
                sound, said = self._pair(item)
                self._listener.read(sound, options.truncate)
                target = self._target_ids(said)
                self.check_position(options.position)
            lengths.append((self._listener.positions, len(target)))
        for batch in grouped(lengths):
            yield [(index, self.read(items[index], options.truncate)) for index in batch]

    def _sources(self, batch: Sequence[Encoded], pad: int) -> dict[str, Any]:
        import torch

        features = torch.stack([sound.inputs["input_features"] for sound in batch])
        return {"input_features": features.to(self.model.device, self.model.dtype)}

    def _prompt(self, encoded: Encoded) -> tuple[Any, dict[str, Any]]:
        features = encoded.inputs["input_features"][None]
        return features.to(self.model.device, self.model.dtype), {"return_timestamps": False}

    def check_replaces(self) -> None:
        """Refuse: no part of a sound can be replaced as a token can."""
        raise ModelError(
            f"{self.name} reads sound; a reference needs a model that reads text or images"
        )


def _language_id(config: Any, languages: dict[str, int]) -> int:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    language = getattr(config, "language", None)
    if not isinstance(language, str):
        return UNHEARD
    code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
    found = languages.get(language, languages.get(f"<|{code}|>"))
    if found is None:
        raise ModelError(
            f"generation_config.language is {language!r}, which the model does not know"
        )
    return found


class Listener(NamedTuple):
    """How a model hears.

    Attributes:
        extractor: The feature extractor.
        rate: The samples in a second of what it takes.
        samples: How many samples it takes at most.
        positions: How many positions the encoder makes of them.
    """

    extractor: Any
    rate: int
    samples: int
    positions: int

    def read(self, sound: Any, truncate: bool = False) -> NDArray[np.float32]:
        """Return the samples of a sound, checked, as `read_sound` does."""
        return read_sound(sound, self.rate, self.samples, truncate)

    def features(self, samples: NDArray[np.float32]) -> Any:
        """Return what the model is given for a sound, a tensor of shape (1, bins, frames)."""
        read = self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")
        return read["input_features"]

    def stretches(self, samples: NDArray[np.float32]) -> tuple[Tokens, tuple[int, ...]]:
        """Return the stretches of a sound, and of the silence after it."""
        heard = -(-len(samples) * self.positions // self.samples)
        return stretches(self.positions, heard, self.samples / self.rate / self.positions)


def read_sound(
    sound: Any, rate: int, most: int | None, truncate: bool = False
) -> NDArray[np.float32]:
    """Return the samples of a sound, checked.

    Args:
        sound: A float array of one channel, at the model's sampling rate; a mapping with "array"
            and "sampling_rate"; or the path of a .wav file, whose channels are averaged.
        rate: The samples in a second of what the model takes.
        most: How many samples it takes; None if it does not say.
        truncate: Cut what is longer than the model hears, instead of an error.

    Returns:
        The samples, float32 of shape (n,).

    Raises:
        TextError: If it is none of these, empty, too long, or at another sampling rate.
    """
    given, own = sound, None
    if isinstance(sound, str | os.PathLike):
        given, own = _read_wave(Path(sound))
    elif isinstance(sound, Mapping):
        if not {"array", "sampling_rate"} <= set(sound):
            held = ", ".join(map(str, sound)) or "nothing"
            raise TextError(f"the sound is a mapping with {held}; expected {_SOUND}")
        given, own = sound["array"], sound["sampling_rate"]
    if own is not None and own != rate:
        raise TextError(
            f"the sound has {own} samples a second and the model takes {rate}; resample it first"
        )
    samples = _samples(given)
    if most is not None and len(samples) > most and not truncate:
        raise TextError(
            f"the sound has {len(samples)} samples, and the model takes {most}, which are "
            f"{most / rate:g} seconds; divide it, or pass truncate=True"
        )
    return samples[:most]


def listener(model: Any, processor: Any) -> Listener:
    """Return how a model hears.

    Args:
        model: A Whisper model of transformers.
        processor: Its processor: a feature extractor and a tokenizer.

    Returns:
        What reads sound for it.

    Raises:
        ModelError: If it is another kind of model, or the processor is not one for it.
    """
    name = type(model).__name__
    positions = getattr(model.config, "max_source_positions", None)
    if getattr(model.config, "model_type", None) != "whisper" or not isinstance(positions, int):
        raise ModelError(
            f"{name} reads sound, but is not a Whisper model; use "
            "attnflow.capture.capture_pair and attnflow.encoder_decoder_graph"
        )
    extractor = getattr(processor, "feature_extractor", None)
    if extractor is None or getattr(processor, "tokenizer", None) is None:
        raise ModelError(
            f"tokenizer is {type(processor).__name__}; expected the processor of {name}, which has "
            "a feature extractor and a tokenizer"
        )
    frames = int(extractor.n_samples // extractor.hop_length)
    if frames != 2 * positions or extractor.feature_size != model.config.num_mel_bins:
        raise ModelError(
            f"{name} takes {2 * positions} frames of {model.config.num_mel_bins} numbers, and this "
            f"feature extractor gives {frames} of {extractor.feature_size}"
        )
    return Listener(extractor, int(extractor.sampling_rate), int(extractor.n_samples), positions)


def stretches(positions: int, heard: int, seconds: float) -> tuple[Tokens, tuple[int, ...]]:
    """Put the positions of a sound together to stretches of a tenth of a second.

    Args:
        positions: How many positions there are.
        heard: How many of them the sound takes. The others are silence that was added.
        seconds: How long a position is.

    Returns:
        The stretches as tokens, and how many positions each has. The added silence is special.

    Example:
        >>> tokens, sizes = stretches(1500, 12, 0.02)
        >>> tokens.names
        ('0.00-0.10 s', '0.10-0.20 s', '0.20-0.24 s', '[silence 0.24-30.00 s]')
        >>> sizes
        (5, 5, 2, 1488)
    """
    most = max(1, round(STRETCH / seconds))
    starts = list(range(0, heard, most))
    edges = [*starts, heard]
    names = [f"{first * seconds:.2f}-{last * seconds:.2f} s" for first, last in pairwise(edges)]
    sizes = [last - first for first, last in pairwise(edges)]
    if heard < positions:
        names.append(f"[silence {heard * seconds:.2f}-{positions * seconds:.2f} s]")
        sizes.append(positions - heard)
    special = [False] * len(starts) + [True] * (len(names) - len(starts))
    return Tokens("", tuple(names), (None,) * len(names), tuple(special)), tuple(sizes)


def _samples(given: Any) -> NDArray[np.float32]:
    """Return samples that were given as an array, checked."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    array = np.asarray(given) if hasattr(given, "__array__") else None
    if array is None:
        raise TextError(f"the sound is {type(given).__name__}; expected {_SOUND}")
    if array.dtype.kind != "f" or array.ndim != 1:
        raise TextError(
            f"the sound is an array of type {array.dtype} and shape {array.shape}; expected floats "
            "from -1 to 1 of one channel, of shape (n,)"
        )
    if len(array) == 0 or not np.isfinite(array).all():
        found = "contains NaN or infinity" if len(array) else "is empty"
        raise TextError(f"the sound {found}; expected floats from -1 to 1")
    return array.astype(np.float32, copy=False)


def _read_wave(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the samples of a .wav file, its channels averaged, and its sampling rate."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = np.frombuffer(file.readframes(file.getnframes()), dtype=np.uint8)
    except (OSError, EOFError, wave.Error) as error:
        reason = str(error) or "it ends too early"
        raise TextError(f"{path} cannot be read as a .wav file: {reason}") from error
    whole = data[: len(data) - len(data) % (width * channels)].reshape(-1, width)
    if width == 1:  # these alone are without a sign, and stand for silence at 128
        values = whole[:, 0].astype(np.float64) - 128.0
    else:
        # The bytes, lowest first, become the highest of 32 bits, which keeps the sign.
        wide = np.zeros((len(whole), 4), dtype=np.uint8)
        wide[:, 4 - width :] = whole
        values = wide.view("<i4")[:, 0] / 2.0 ** (32 - 8 * width)
    samples = values.reshape(-1, channels).mean(axis=1) / 2.0 ** (8 * width - 1)
    return samples.astype(np.float32), rate
