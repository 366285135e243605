"""An input as a model reads it: which of its numbers hold which token, and what is asked about it.

The references change tokens and look at what becomes of the model's answer. This module finds the
tokens, for a text, for a source with its target so far, and for an image, and changes them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from attnflow import seq2seq, vision
from attnflow.errors import AttentionError, ModelError, OptionError, TextError
from attnflow.explain import POSITIONS, Explainer

__all__ = ["PAIRS", "Reading", "filling", "multi_label", "read", "replaced", "without"]

# The task of an encoder-decoder that reads text.
PAIRS: Final = "seq2seq-lm"

# What stands in for the id of a replacement where the input is an image: the mean colour.
MEAN_COLOUR: Final = 0


class Reading(NamedTuple):
    """One input as the model reads it.

    Attributes:
        inputs: What the model is given: lists of numbers, one for each of its tokens, or the pixels
            of an image, a tensor of shape (channels, height, width).
        tokens: The tokens, special tokens included. Those of a source come before its target's.
        special: For each token whether it is special.
        places: For each token the input that holds it, and where. None if no input does, as for
            special tokens of a vision model, or the answer cannot depend on it, as for tokens that
            come after the position of a causal model; those are not in `inputs`.
        position: Where the answer is read: a position of the text or target. None if the model
            gives one answer for all of it.
        target: The index of the class or token asked about. None is what the model predicts.
        patches: How an image is cut into patches, and their rows and columns. None for text.
    """

    inputs: dict[str, Any]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    places: tuple[tuple[str, int] | None, ...]
    position: int | None
    target: int | None
    patches: tuple[vision.Layout, tuple[int, int]] | None = None

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
        if self.patches is not None:
            return len(self.tokens)
        names = {"input_ids", "decoder_input_ids"}
        return sum(len(values) for name, values in self.inputs.items() if name in names)


def read(
    explainer: Any, inputs: Any, *, target: Any, position: Any, truncate: Any
) -> tuple[list[Reading], bool]:
    """Read inputs as `Explainer.explain` does, and check what is asked about them.

    Args:
        explainer: The explainer.
        inputs: What `Explainer.explain` takes.
        target: The class or token asked about, or a list of them, one for each of many inputs. None
            is what the model predicts.
        position: As in `Explainer.explain`.
        truncate: Whether to cut a text that is longer than the model takes.

    Returns:
        The readings, and whether there are many.

    Raises:
        OptionError: If an option is not valid for this model.
        TextError: If a text is empty, not text, or longer than the model takes.
        ModelError: If the model gives no answer that tokens could matter to.
    """
    if not isinstance(explainer, Explainer):
        raise OptionError(
            f"explainer is {type(explainer).__name__}; expected an attnflow.Explainer"
        )
    if not isinstance(truncate, bool | np.bool_):
        raise OptionError(f"truncate is {truncate!r}; expected True or False")
    _check_answers(explainer)
    if vision.is_vision_model(explainer.model):
        items, many = vision.list_images(inputs)
        wanted = _targets(explainer, target, len(items), many)
        readings = _read_images(explainer, items, wanted, position)
    elif explainer.task == PAIRS:
        pairs, many = seq2seq.list_pairs(inputs)
        wanted = _targets(explainer, target, len(pairs), many)
        readings = _read_pairs(explainer, pairs, wanted, position, bool(truncate))
    else:
        many = not isinstance(inputs, str)
        texts = _list_texts(inputs) if many else [inputs]
        wanted = _targets(explainer, target, len(texts), many)
        readings = _read_texts(explainer, texts, wanted, position, bool(truncate))
    return readings, many


def _check_answers(explainer: Explainer) -> None:
    """See that the model answers with a probability."""
    name = type(explainer.model).__name__
    if explainer.task == "speech-to-text":
        raise ModelError(
            f"{name} reads sound, of which no part can be replaced as a token can; expected a "
            "model that reads text or images"
        )
    if explainer.task in ("encoder", "image-encoder"):
        raise ModelError(
            f"{name} has no head and predicts nothing, so that no token can matter to its "
            "prediction; expected a model for classification or a language model"
        )
    classifies = explainer.task in ("classification", "image-classification")
    if classifies and _count(explainer) == 1 and not multi_label(explainer):
        raise ModelError(
            f"{name} has a single output, which is no class with a probability; expected a model "
            "with two classes or more, or config.problem_type='multi_label_classification', which "
            "makes the output a probability"
        )


def multi_label(explainer: Explainer) -> bool:
    """Whether each class has a probability of its own, whatever the others have."""
    return getattr(explainer.model.config, "problem_type", None) == "multi_label_classification"


def _count(explainer: Explainer) -> int:
    """Return how many classes or tokens there are to choose from, as far as the model says."""
    config = explainer.model.config
    if explainer.task in ("classification", "image-classification"):
        count = getattr(config, "num_labels", None)
    else:
        count = getattr(config.get_text_config(), "vocab_size", None)
    return count if isinstance(count, int) else sys.maxsize


# ---- Targets and replacements --------------------------------------------------------------------


def _targets(explainer: Explainer, target: Any, count: int, many: bool) -> list[int | None]:
    """Return the index of the target of each input."""
    given = [target] * count
    if isinstance(target, list | tuple | np.ndarray):
        if not many:
            raise OptionError(
                f"target is {target!r}, but there is one input; expected one class or token"
            )
        if len(target) != count:
            raise OptionError(
                f"target lists {len(target)} classes or tokens for {count} inputs; expected one "
                "for each, or one for all"
            )
        given = list(target)
    return [_target(explainer, one) for one in given]


def _target(explainer: Explainer, target: Any) -> int | None:
    if target is None:
        return None
    count = _count(explainer)
    if explainer.task in vision.TASKS:
        return vision._target(target, explainer.model.config)
    if explainer.task == PAIRS:
        return seq2seq._target(explainer.tokenizer, target, 0, count)
    return explainer._target(target, range(count))


def filling(explainer: Any, replacement: Any, *, name: str = "replacement") -> int:
    """Return the id of the token that others are replaced by.

    Args:
        explainer: The explainer.
        replacement: "auto", "unk", "mask", a token, or its id. "auto" is UNK if the tokenizer has
            one, and else MASK. For a vision model only "auto", the mean colour.
        name: What the option is called.

    Raises:
        OptionError: If there is no such token.
    """
    if explainer.task in vision.TASKS:
        if replacement != "auto":
            raise OptionError(
                f"{name} is {replacement!r}, but the model takes images; expected 'auto', which "
                "paints a patch in the mean colour"
            )
        return MEAN_COLOUR
    tokenizer = explainer.tokenizer
    unk = getattr(tokenizer, "unk_token_id", None)
    mask = getattr(tokenizer, "mask_token_id", None)
    if isinstance(replacement, str) and replacement in ("auto", "unk", "mask"):
        found = {"auto": mask if unk is None else unk, "unk": unk, "mask": mask}[replacement]
        if found is None:
            missing = {"auto": "neither an UNK nor a MASK", "unk": "no UNK", "mask": "no MASK"}
            raise OptionError(
                f"{name} is {replacement!r}, but the tokenizer has {missing[replacement]} token; "
                f"expected a token of its vocabulary, or the id of one, such as {name}=' '"
            )
        chosen = int(found)
    elif isinstance(replacement, str):
        chosen = _token_id(tokenizer, replacement, name)
    elif isinstance(replacement, int | np.integer) and not isinstance(replacement, bool):
        chosen = int(replacement)
    else:
        raise OptionError(
            f"{name} is {replacement!r}; expected 'auto', 'unk', 'mask', a token, or its id"
        )
    size = _vocabulary_size(explainer)
    if not 0 <= chosen < size:
        raise OptionError(
            f"{name} is {replacement!r}, token {chosen}, but the model knows {size} tokens: "
            f"expected an id from 0 to {size - 1}"
        )
    if chosen == getattr(tokenizer, "pad_token_id", None) and chosen not in (unk, mask):
        raise OptionError(
            f"{name} is {replacement!r}, with which texts are padded: a model may overlook it, or "
            "count positions without it; expected another token"
        )
    return chosen


def _token_id(tokenizer: Any, token: str, name: str) -> int:
    known = tokenizer.get_vocab()
    if token in known:
        return int(known[token])
    ids = tokenizer(token, add_special_tokens=False)["input_ids"]
    unk = getattr(tokenizer, "unk_token_id", None)
    if len(ids) != 1 or ids[0] == unk:
        what = "a token that the tokenizer does not know" if ids == [unk] else f"{len(ids)} tokens"
        raise OptionError(
            f"{name} is {token!r}, which is {what}; expected 'auto', 'unk', 'mask', one token, or "
            "its id"
        )
    return int(ids[0])


def _vocabulary_size(explainer: Explainer) -> int:
    weight = getattr(explainer.model.get_input_embeddings(), "weight", None)
    return int(weight.shape[0]) if weight is not None else _count(explainer)


# ---- Texts, pairs of texts, images ---------------------------------------------------------------


def _list_texts(inputs: Any) -> list[Any]:
    if isinstance(inputs, Mapping | bytes) or not hasattr(inputs, "__iter__"):
        raise TextError(
            f"inputs is {type(inputs).__name__}; expected a string or a list of strings"
        )
    texts = list(inputs)
    if not texts:
        raise TextError("inputs is an empty list; expected a text or a list of texts")
    return texts


def _read_texts(
    explainer: Explainer, texts: list[Any], targets: list[int | None], position: Any, truncate: bool
) -> list[Reading]:
    if isinstance(position, str) and position not in POSITIONS:
        raise OptionError(f"position is {position!r}; expected an index, {', '.join(POSITIONS)}")
    encoded = [explainer._encode(text, truncate) for text in texts]
    found = [explainer._position(text, position, causal=None) for text in encoded]
    if explainer.task == "classification":
        # One answer for the whole text, wherever it is read.
        return [
            Reading(text.inputs, text.tokens, text.special, _places(len(text.ids)), None, target)
            for text, target in zip(encoded, targets, strict=True)
        ]
    readings = []
    causal: bool | None = None
    for text, target, place in zip(encoded, targets, found, strict=True):
        inputs, count = text.inputs, len(text.ids)
        last = count - 1 if place is None else place
        if explainer.task == "causal-lm" and last < count - 1:
            if causal is None:
                causal = _is_causal(explainer, inputs)
            if causal:
                inputs = {name: values[: last + 1] for name, values in inputs.items()}
        places = _places(len(inputs["input_ids"]), count)
        readings.append(Reading(inputs, text.tokens, text.special, places, last, target))
    return readings


def _places(
    held: int, count: int | None = None, name: str = "input_ids"
) -> tuple[tuple[str, int] | None, ...]:
    """Return the places of `count` tokens, of which the first ones are held by an input."""
    later = 0 if count is None else count - held
    return (*((name, index) for index in range(held)), *[None] * later)


def _is_causal(explainer: Explainer, inputs: dict[str, list[int]]) -> bool:
    """Whether the model's positions see only what precedes them, as its attention tells.

    The name of a class does not: a BERT with a head that writes may look at the whole text.
    """
    import torch

    from attnflow.capture import capture

    device = explainer.model.device
    given = {name: torch.tensor([values], device=device) for name, values in inputs.items()}
    try:
        layers = capture(explainer.model, given).layers
    except AttentionError:
        return False  # not known, so that every token is tried
    return not any(bool(torch.triu(layer[0], 1).any()) for layer in layers)


def _read_pairs(
    explainer: Explainer,
    pairs: list[tuple[str, str]],
    targets: list[int | None],
    position: Any,
    truncate: bool,
) -> list[Reading]:
    if isinstance(position, str) and position not in ("auto", "last"):
        raise OptionError(f"position is {position!r}; expected an index, auto or last")
    readings = []
    for pair, target in zip(pairs, targets, strict=True):
        encoded = seq2seq._encode(explainer.model, explainer.tokenizer, *pair, truncate)
        place = seq2seq._position(position, len(encoded.target))
        inputs = {"input_ids": encoded.source, "decoder_input_ids": encoded.target[: place + 1]}
        places = (
            *_places(len(encoded.source)),
            *_places(place + 1, len(encoded.target), "decoder_input_ids"),
        )
        readings.append(Reading(inputs, encoded.tokens, encoded.special, places, place, target))
    return readings


def _read_images(
    explainer: Explainer, images: list[Any], targets: list[int | None], position: Any
) -> list[Reading]:
    model = explainer.model
    layout = vision.token_layout(model)
    processor = getattr(explainer.tokenizer, "image_processor", None) or explainer.tokenizer
    known: dict[Any, Any] = {}
    readings = []
    for image, target in zip(images, targets, strict=True):
        picture = vision._prepare(image, processor, layout, known)
        tokens = layout.tokens(picture.grid)
        # One answer for the whole image, wherever it is read.
        vision._position(position, tokens, layout, type(model).__name__)
        special = tuple(index < len(layout.special) for index in range(len(tokens)))
        places = tuple(
            None if index < len(layout.special) else ("pixel_values", index - len(layout.special))
            for index in range(len(tokens))
        )
        inputs = {"pixel_values": picture.pixels}
        patches = (layout, picture.grid)
        readings.append(Reading(inputs, tokens, special, places, None, target, patches))
    return readings


# ---- Changing tokens -----------------------------------------------------------------------------


def replaced(reading: Reading, tokens: Collection[int], fill: int) -> Reading:
    """Return a reading with some tokens replaced.

    Args:
        reading: The reading.
        tokens: The tokens, by index. Those without a place are left alone.
        fill: The id that replaces theirs, as `filling` gives it.
    """
    inputs = dict(reading.inputs)
    changed = set()
    for token in tokens:
        place = reading.places[token]
        if place is None:
            continue
        name, index = place
        if name not in changed:
            values = inputs[name]
            inputs[name] = list(values) if isinstance(values, list) else values.clone()
            changed.add(name)
        if reading.patches is None:
            inputs[name][index] = fill
        else:
            rows, columns = _pixels_of(index, *reading.patches)
            # Pixels are given relative to the mean colour.
            inputs[name][:, rows, columns] = fill
    return reading._replace(inputs=inputs)


def _pixels_of(index: int, layout: vision.Layout, grid: tuple[int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of pixels that a patch is cut from."""
    row, column = (
        # What was added around the image has no pixels.
        slice(max(0, place * stride - padding), max(0, place * stride - padding + kernel))
        for place, kernel, stride, padding in zip(
            divmod(index, grid[1]), layout.kernel, layout.stride, layout.padding, strict=True
        )
    )
    return row, column


def without(reading: Reading, tokens: Collection[int]) -> Reading | None:
    """Return a reading of a text, or of a pair of texts, with some tokens deleted.

    What follows moves up. The answer is read where it was; if that token is deleted too, at the
    last one left before it.

    Args:
        reading: The reading.
        tokens: The tokens, by index. Those without a place are left alone.

    Returns:
        The reading, of which `inputs` and `position` have changed. None if nothing is left to read
        the answer at, or an input is empty.
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
        deleted = gone.get(name if paired else "input_ids", set())
        inputs[name] = [value for index, value in enumerate(values) if index not in deleted]
        if not inputs[name]:
            return None
    position = reading.position
    if position is not None:
        asked = gone.get("decoder_input_ids" if paired else "input_ids", set())
        position -= sum(index <= position for index in asked)
        if position < 0:
            return None
    return reading._replace(inputs=inputs, position=position)
