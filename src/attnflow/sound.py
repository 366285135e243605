"""Sound in, what a speech model reads out, and which stretch of time each of its positions hears.

Whisper's encoder hears 30 seconds at once, as 1,500 positions of 0.02 seconds. Whatever is shorter
is filled up with silence. In an explanation, a source token is a stretch of sound of a tenth of a
second, named by its time, "0.30-0.40 s". The silence that was added is one special token.

Importing this module needs NumPy only; running a model needs torch and transformers.
"""

from __future__ import annotations

import os
import wave
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import ModelError, TextError

__all__ = ["Listener", "Stretches", "is_sound_model", "listener", "stretches"]

# How long a stretch is, in seconds, as nearly as whole positions allow. A spoken word takes a
# quarter of a second or so, and a sound of it a tenth.
STRETCH: Final = 0.1

_SOUND: Final = (
    "a float array of one channel, a mapping with 'array' and 'sampling_rate', or the path of a "
    ".wav file"
)


class Stretches(NamedTuple):
    """The stretches that the positions of a sound are put together to.

    Attributes:
        names: The name of each.
        sizes: How many positions each has, in their order.
        special: For each whether it is silence that was added.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    special: tuple[bool, ...]


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
        """Return the samples of a sound, checked.

        Args:
            sound: A float array of one channel, at the extractor's sampling rate; a mapping with
                "array" and "sampling_rate"; or the path of a .wav file, whose channels are
                averaged.
            truncate: Cut what is longer than the model hears, instead of an error.

        Returns:
            The samples, float32 of shape (n,).

        Raises:
            TextError: If it is none of these, empty, too long, or at another sampling rate.
        """
        given, rate = sound, None
        if isinstance(sound, str | os.PathLike):
            given, rate = _read_wave(Path(sound))
        elif isinstance(sound, Mapping):
            if not {"array", "sampling_rate"} <= set(sound):
                held = ", ".join(map(str, sound)) or "nothing"
                raise TextError(f"the sound is a mapping with {held}; expected {_SOUND}")
            given, rate = sound["array"], sound["sampling_rate"]
        if rate is not None and rate != self.rate:
            raise TextError(
                f"the sound has {rate} samples a second and the model takes {self.rate}; resample "
                "it first"
            )
        samples = _samples(given)
        if len(samples) > self.samples and not truncate:
            raise TextError(
                f"the sound has {len(samples)} samples, {len(samples) / self.rate:.2f} seconds, "
                f"and the model hears {self.samples}, {self.samples / self.rate:g} seconds; cut it "
                "into parts, or pass truncate=True (--truncate) to cut it there"
            )
        return samples[: self.samples]

    def features(self, samples: NDArray[np.float32]) -> Any:
        """Return what the model is given for a sound, a tensor of shape (1, bins, frames)."""
        read = self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")
        return read["input_features"]

    def stretches(self, samples: NDArray[np.float32]) -> Stretches:
        """Return the stretches of a sound, and of the silence after it."""
        heard = -(-len(samples) * self.positions // self.samples)
        return stretches(self.positions, heard, self.samples / self.rate / self.positions)


def is_sound_model(model: Any) -> bool:
    """Return whether a model, or a class of models, is given sound.

    Args:
        model: A model of transformers, or its class.

    Returns:
        Whether its main input is ``input_features``.
    """
    return getattr(model, "main_input_name", None) == "input_features"


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
            f"{name} reads sound, but not as Whisper does, in positions of a known time; its "
            "attention can be had with attnflow.capture.capture_pair, and its graph with "
            "attnflow.encoder_decoder_graph"
        )
    extractor = getattr(processor, "feature_extractor", None)
    if extractor is None or getattr(processor, "tokenizer", None) is None:
        raise ModelError(
            f"{name} reads sound and writes text; expected its processor, which has a feature "
            f"extractor and a tokenizer, in the place of {type(processor).__name__}"
        )
    frames = int(extractor.n_samples // extractor.hop_length)
    if frames != 2 * positions or extractor.feature_size != model.config.num_mel_bins:
        raise ModelError(
            f"{name} takes {2 * positions} frames of {model.config.num_mel_bins} numbers, and the "
            f"feature extractor gives {frames} of {extractor.feature_size}; expected the model's "
            "own"
        )
    return Listener(extractor, int(extractor.sampling_rate), int(extractor.n_samples), positions)


def stretches(positions: int, heard: int, seconds: float) -> Stretches:
    """Put the positions of a sound together to stretches of a tenth of a second.

    Args:
        positions: How many positions there are.
        heard: How many of them the sound takes. The others are silence that was added.
        seconds: How long a position is.

    Returns:
        The stretches.

    Example:
        >>> stretches(1500, 12, 0.02)[:2]
        (('0.00-0.10 s', '0.10-0.20 s', '0.20-0.24 s', '[silence 0.24-30.00 s]'), (5, 5, 2, 1488))
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
    return Stretches(tuple(names), tuple(sizes), tuple(special))


def _samples(given: Any) -> NDArray[np.float32]:
    """Return samples that were given as an array, checked."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    array = np.asarray(given) if hasattr(given, "__array__") else None
    if array is None:
        raise TextError(f"the sound is {type(given).__name__}; expected {_SOUND}")
    if array.dtype.kind != "f":
        raise TextError(
            f"the sound is an array of type {array.dtype}; expected floats from -1 to 1, such as "
            "16-bit samples divided by 32768"
        )
    if array.ndim != 1:
        raise TextError(
            f"the sound is an array of shape {array.shape}; expected one channel, of shape (n,)"
        )
    if len(array) == 0:
        raise TextError("the sound is empty; there is nothing to explain")
    if not np.isfinite(array).all():
        raise TextError("the sound holds NaN or infinity; expected floats from -1 to 1")
    return array.astype(np.float32, copy=False)


def _read_wave(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the samples of a .wav file, its channels averaged, and its sampling rate."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = np.frombuffer(file.readframes(file.getnframes()), dtype=np.uint8)
    except FileNotFoundError:
        raise TextError(f"{path} does not exist; expected {_SOUND}") from None
    except (OSError, EOFError, wave.Error) as error:
        reason = str(error) or "it ends too early"
        raise TextError(
            f"{path} cannot be read as a .wav file of plain samples: {reason}; expected {_SOUND}"
        ) from error
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
