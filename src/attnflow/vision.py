"""From an image to an explanation: which patches a vision Transformer's answer came from.

A vision Transformer cuts an image into patches, and a patch is to it what a word is to a text
model. Beside the patches there are special tokens: CLS, which stands for the whole image, the
distillation token of DeiT, and registers. They are told apart by name: "[CLS]", "[DIST]",
"[REG1]", "[REG2]" and so on, while a patch is named by its row and column, "0,0".

Importing this module needs NumPy only; running a model needs torch and transformers, and reading an
image file needs Pillow.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MissingExtraError, ModelError, OptionError
from attnflow.explanation import Explanation
from attnflow.graph import AttentionGraph, resolve_index
from attnflow.scoring import (
    BATCH_POSITIONS,
    check_choices,
    check_edges,
    gradient_rows,
    notes_on,
    predict,
    relative_to,
    saturation_of,
    scores_of,
    shares,
    sink_of,
)
from attnflow.trace import Trace

__all__ = [
    "TASKS",
    "Layout",
    "explain_each",
    "is_vision_model",
    "list_images",
    "load_image_processor",
    "model_class",
    "task_of",
    "token_layout",
]

# The tasks, and how the names of model classes end that are made for them.
TASKS: Final = {
    "image-classification": ("ForImageClassification", "ForImageClassificationWithTeacher"),
    "image-encoder": (),
}

# How many pixels the longer side of a small copy of an image has.
SMALL: Final = 384

# How many labels an error lists.
LISTED: Final = 10

# What an error says that an image is.
_IMAGE: Final = (
    "a Pillow image, a uint8 array of shape (height, width, 3), or the path of an image file"
)

Area = tuple[float, float, float, float]


class Layout(NamedTuple):
    """How a model's tokens are laid out: special tokens first, then patches row by row.

    Attributes:
        special: The names of the special tokens, in their order.
        kernel: The height and width of a patch, in pixels of what the model is given.
        stride: How far one patch is from the next, down and to the right.
        padding: How many pixels are added around the image before it is cut.

    Example:
        >>> layout = Layout(("[CLS]",), kernel=(16, 16), stride=(16, 16), padding=(0, 0))
        >>> layout.grid(32, 48)
        (2, 3)
        >>> layout.tokens((2, 3))
        ('[CLS]', '0,0', '0,1', '0,2', '1,0', '1,1', '1,2')
    """

    special: tuple[str, ...]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return how many rows and columns of patches an image has.

        Args:
            height: Its height, in pixels of what the model is given.
            width: Its width.

        Returns:
            The rows and columns. A rest that makes no whole patch does not count.
        """
        rows, columns = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip(
                (height, width), self.kernel, self.stride, self.padding, strict=True
            )
        )
        return rows, columns

    def tokens(self, grid: tuple[int, int]) -> tuple[str, ...]:
        """Return the names of all tokens.

        Args:
            grid: The rows and columns of patches.

        Returns:
            The names of the special tokens, then those of the patches.
        """
        patches = (f"{row},{column}" for row in range(grid[0]) for column in range(grid[1]))
        return (*self.special, *patches)

    def covered(self, grid: tuple[int, int]) -> Area:
        """Return what the patches cover of what the model is given.

        Args:
            grid: The rows and columns of patches.

        Returns:
            Top, left, bottom and right, in pixels. Where patches overlap, each counts for what is
            nearest to its middle.
        """
        top, left = (
            (kernel - stride) / 2 - padding
            for kernel, stride, padding in zip(self.kernel, self.stride, self.padding, strict=True)
        )
        return top, left, top + grid[0] * self.stride[0], left + grid[1] * self.stride[1]


class _Options(NamedTuple):
    """The options of an explanation, checked."""

    method: str
    layer: Any
    position: Any
    edges: str
    target: int | None
    heads: str | int
    residual: float
    relative: bool
    special_tokens: bool
    drop_sink: bool


class _Picture(NamedTuple):
    """An image as the model is given it.

    Attributes:
        pixels: A tensor of shape (3, height, width).
        size: The height and width of the image as the user gave it.
        grid: The rows and columns of patches.
        area: What the patches cover of the user's image: top, left, bottom and right, as shares of
            its height and width.
        small: A small copy of that, a JPEG file; None where Pillow is not installed.
    """

    pixels: Any
    size: tuple[int, int]
    grid: tuple[int, int]
    area: Area
    small: bytes | None


# ---- The model -----------------------------------------------------------------------------------


def is_vision_model(model: Any) -> bool:
    """Return whether a model, or a class of models, is given images and nothing else.

    Args:
        model: A model of transformers, or its class.

    Returns:
        Whether its main input is ``pixel_values``.
    """
    return getattr(model, "main_input_name", None) == "pixel_values"


def task_of(class_name: str) -> str:
    """Return what a class of vision models is for.

    Args:
        class_name: The name of the class.

    Returns:
        "image-classification", or "image-encoder" for all that do not classify.

    Example:
        >>> task_of("ViTForImageClassification"), task_of("CLIPVisionModelWithProjection")
        ('image-classification', 'image-encoder')
    """
    classifies = class_name.endswith(TASKS["image-classification"])
    return "image-classification" if classifies else "image-encoder"


def model_class(config: Any, task: str = "auto") -> Any:
    """Return the class to load a checkpoint with, if the checkpoint is that of a vision model.

    Of a CLIP model, whose text and image parts are two models, it is that of the image part.

    Args:
        config: The checkpoint's configuration, as ``AutoConfig.from_pretrained`` gives it.
        task: What to load it for: "image-classification" or "image-encoder". "auto" is what it was
            saved as.

    Returns:
        A class with ``from_pretrained``, or None if it is no vision model.

    Raises:
        OptionError: If it is a vision model, and cannot be loaded for that task.
    """
    import transformers

    name = (getattr(config, "architectures", None) or [""])[0]
    saved: Any = getattr(transformers, "CLIPVisionModel" if name == "CLIPModel" else name, None)
    if saved is None and type(config) in transformers.MODEL_MAPPING:
        saved = transformers.MODEL_MAPPING[type(config)]
    if not is_vision_model(saved):
        return None
    if task != "auto" and task not in TASKS:
        raise OptionError(
            f"task is {task!r}, but {saved.__name__} is a vision model; "
            f"expected auto, {', '.join(TASKS)}"
        )
    saved_for = task_of(saved.__name__)
    if task in ("auto", saved_for):
        return saved
    if task == "image-classification":
        raise OptionError(
            f"task is {task!r}, but the checkpoint is a {saved.__name__} without a classifier: "
            "its answers would be random; expected auto or image-encoder"
        )
    return transformers.AutoModel


def load_image_processor(name_or_path: str | os.PathLike[str], **source: Any) -> Any:
    """Load what prepares images for a model.

    Args:
        name_or_path: The model's folder or its name on the Hugging Face hub.
        **source: Arguments for ``AutoImageProcessor.from_pretrained``, as ``trust_remote_code``.

    Returns:
        The image processor. Where torchvision is not installed it is the one that uses Pillow.

    Raises:
        MissingExtraError: If Pillow is not installed, or the processor needs torchvision.
        OSError: If there is none, or it cannot be read.
        ValueError: If its class is not known.
    """
    if find_spec("PIL") is None:
        raise MissingExtraError("preparing images needs Pillow; run: pip install pillow")
    import transformers

    try:
        return transformers.AutoImageProcessor.from_pretrained(name_or_path, **source)
    except ImportError as error:
        raise _processor_needs(str(name_or_path), error) from error


def token_layout(model: Any) -> Layout:
    """Return how a model's tokens are laid out.

    Args:
        model: A vision model of transformers.

    Returns:
        The layout, read off the module that makes the tokens.

    Raises:
        ModelError: If the model attends within windows or in stages, or cuts no patches.
    """
    import torch

    name = type(model).__name__
    staged = [key for key in ("window_size", "depths") if getattr(model.config, key, None)]
    if staged:
        raise ModelError(
            f"{name} attends within windows or changes its grid from stage to stage, as "
            f"{staged[0]} in its configuration says, so that no position can be followed from "
            "layer to layer; use a model whose layers attend over the whole image, such as ViT"
        )
    embeddings = _embeddings(model)
    patches = None
    if embeddings is not None:
        cutting = [m for m in embeddings.modules() if isinstance(m, torch.nn.Conv2d)]
        patches = cutting[0] if len(cutting) == 1 else None
    if patches is None or patches.padding == "same":
        raise ModelError(
            f"{name} does not cut an image into patches by one convolution, as ViT, DeiT, DINOv2 "
            "and CLIP do, so that its tokens have no known place in the image"
        )
    special = []
    for attribute, label in (
        ("cls_token", "[CLS]"),
        ("class_embedding", "[CLS]"),
        ("distillation_token", "[DIST]"),
    ):
        if torch.is_tensor(getattr(embeddings, attribute, None)):
            special.append(label)
    registers: Any = getattr(embeddings, "register_tokens", None)
    if torch.is_tensor(registers):
        special += [f"[REG{number}]" for number in range(1, registers.shape[-2] + 1)]
    padding = (0, 0) if patches.padding == "valid" else patches.padding
    return Layout(tuple(special), patches.kernel_size, patches.stride, padding)


def _embeddings(model: Any) -> Any:
    """Return the module that makes the tokens: the first that has patch embeddings."""
    for module in model.modules():
        if hasattr(module, "patch_embeddings") or hasattr(module, "patch_embedding"):
            return module
    return None


# ---- Images --------------------------------------------------------------------------------------


def list_images(inputs: Any) -> tuple[list[Any], bool]:
    """Return the images of what was given, one or many.

    Args:
        inputs: An image or a list of images. An image is a Pillow image, an array of shape
            (height, width, 3) and dtype uint8, or the path of a file.

    Returns:
        The images, not read yet, and whether a list was given.

    Raises:
        OptionError: If it is neither an image nor a list of images, or the list is empty.
        MissingExtraError: If a file is to be read and Pillow is not installed.
    """
    if _is_one(inputs):
        _check_image(inputs, "inputs")
        return [inputs], False
    if isinstance(inputs, Mapping | bytes) or not isinstance(inputs, Iterable):
        raise OptionError(
            f"inputs is {type(inputs).__name__}; expected {_IMAGE}, or a list of them"
        )
    images = list(inputs)
    if not images:
        raise OptionError("inputs is an empty list; expected an image or a list of images")
    for index, image in enumerate(images):
        _check_image(image, f"inputs[{index}]")
    return images, True


def _is_one(value: Any) -> bool:
    return isinstance(value, str | os.PathLike | np.ndarray) or _is_pillow(value)


def _is_pillow(value: Any) -> bool:
    # Without the module there is no such image, and it need not be imported to tell.
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _check_image(image: Any, name: str) -> None:
    """Check what can be checked before an image is read."""
    if not _is_one(image):
        raise OptionError(f"{name} is {type(image).__name__}; expected {_IMAGE}")
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise OptionError(
                f"{name} has shape {image.shape}; expected (height, width, 3): red, green, blue"
            )
        if image.dtype != np.uint8:
            raise OptionError(
                f"{name} has dtype {image.dtype}; expected uint8, numbers from 0 to 255"
            )
    elif _is_pillow(image):
        if 0 in image.size:
            raise OptionError(f"{name} is an image without pixels, of size {image.size}")
    else:
        if not os.path.isfile(image):
            raise OptionError(f"{name} is {os.fspath(image)!r}, and there is no such file")
        _pillow("PIL.Image")


def _pillow(module: str) -> Any:
    # Through importlib, so that Pillow is not needed to check the types.
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "reading an image file needs Pillow; run: pip install pillow"
        ) from error


def _read(image: Any) -> NDArray[np.uint8]:
    """Return an image as red, green and blue, of shape (height, width, 3)."""
    # Copies, because torchvision takes neither read-only arrays nor those that run backwards.
    if isinstance(image, np.ndarray):
        return np.array(image)
    if _is_pillow(image):
        return np.array(image.convert("RGB"))
    pillow = _pillow("PIL.Image")
    try:
        with pillow.open(image) as opened:
            # A camera held upright stores its picture lying, and says so.
            upright = _pillow("PIL.ImageOps").exif_transpose(opened)
            return np.array(upright.convert("RGB"))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise OptionError(
            f"{os.fspath(image)} cannot be read as an image: {' '.join(str(error).split())}"
        ) from error


def _prepare(
    image: Any, processor: Any, layout: Layout, known: dict[tuple[int, int], tuple[Any, Area]]
) -> _Picture:
    """Return an image as the model is given it.

    Args:
        image: The image.
        processor: The image processor.
        layout: How the model's tokens are laid out.
        known: Grid and area of the image sizes met so far; a new one is added.
    """
    colours = _read(image)
    size = (colours.shape[0], colours.shape[1])
    pixels = _processed(processor, colours)
    if pixels.ndim != 4 or pixels.shape[0] != 1:
        raise ModelError(
            f"{type(processor).__name__} makes pixel values of shape {tuple(pixels.shape)} of an "
            "image; expected (1, channels, height, width)"
        )
    if size not in known:
        height, width = (int(number) for number in pixels.shape[-2:])
        grid = layout.grid(height, width)
        if min(grid) < 1:
            raise OptionError(
                f"an image of {size[0]} x {size[1]} pixels is given to the model as {height} x "
                f"{width}, which is less than a patch of {layout.kernel[0]} x {layout.kernel[1]}"
            )
        known[size] = grid, _area(processor, size, (height, width), layout.covered(grid))
    grid, area = known[size]
    return _Picture(pixels[0], size, grid, area, _small(colours, area))


def _small(colours: NDArray[np.uint8], area: Area) -> bytes | None:
    """Return a small copy of an area of an image, for views that show scores on it."""
    if find_spec("PIL") is None:
        return None
    height, width = colours.shape[:2]
    top, left, bottom, right = area
    # What the processor added around the image is black, here as there.
    first, above = round(left * width), round(top * height)
    last, below = round(right * width), round(bottom * height)
    box = (first, above, max(first + 1, last), max(above + 1, below))
    picture = _pillow("PIL.Image").fromarray(colours).crop(box)
    picture.thumbnail((SMALL, SMALL))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return file.getvalue()


def _area(processor: Any, size: tuple[int, int], prepared: tuple[int, int], covered: Area) -> Area:
    """Return what the patches cover of the user's image, as shares of its height and width.

    A processor resizes the image, then cuts out its middle or pads it up to the size wanted, and
    then may pad it below and at the right. How large the image is after each step is found by
    leaving out the steps that follow.
    """
    if getattr(processor, "crop_pct", None) is not None:
        raise ModelError(
            f"{type(processor).__name__} cuts off part of an image while it resizes it (crop_pct), "
            "so that the place of a patch in the image is not known"
        )
    blank = np.zeros((*size, 3), dtype=np.uint8)

    def size_without(*steps: str) -> tuple[int, int]:
        left_out = {step: False for step in steps if getattr(processor, step, None)}
        if not left_out:
            return prepared
        shape = _processed(processor, blank, **left_out).shape
        return int(shape[-2]), int(shape[-1])

    cropped = size_without("do_pad")
    resized = size_without("do_pad", "do_center_crop") if _crops(processor) else cropped
    shares = []
    for side in range(2):
        spare = resized[side] - cropped[side]
        # An odd number of pixels to add is divided one way by Pillow and the other by torchvision.
        before = int(spare / 2) if _uses_torchvision(processor) else spare // 2
        shares.append([(edge + before) / resized[side] for edge in covered[side::2]])
    (top, bottom), (left, right) = shares
    return top, left, bottom, right


def _crops(processor: Any) -> bool:
    return bool(getattr(processor, "do_center_crop", False))


def _uses_torchvision(processor: Any) -> bool:
    return getattr(processor, "backend", "pil") == "torchvision"


def _processed(processor: Any, colours: NDArray[np.uint8], **options: Any) -> Any:
    try:
        # Told which axis the colours are: an image of three rows could be taken for another.
        return processor(
            images=[colours], input_data_format="channels_last", return_tensors="pt", **options
        )["pixel_values"]
    except ImportError as error:
        raise _processor_needs(type(processor).__name__, error) from error


def _processor_needs(name: str, error: ImportError) -> MissingExtraError:
    reason = " ".join(str(error).split())
    package = "torchvision" if "torchvision" in reason.lower() else "pillow"
    return MissingExtraError(
        f"the image processor of {name} needs {package}; run: pip install {package}"
    )


# ---- Explaining ----------------------------------------------------------------------------------


def explain_each(
    model: Any,
    processor: Any,
    images: Sequence[Any],
    *,
    name: str = "",
    method: str = "flow",
    layer: int = -1,
    position: int | str = "auto",
    edges: str = "attention",
    target: int | str | None = None,
    heads: str | int = "mean",
    residual: float = 0.5,
    receptive_field: str | bool = "auto",
    words: bool = False,
    special_tokens: bool = True,
    drop_sink: bool = False,
    truncate: bool = False,
) -> Iterator[tuple[int, Explanation]]:
    """Yield the explanations of images as they are done.

    Images that are of one size once they are prepared go through the model together. All options
    and all images are checked before the first one runs, as far as that is possible without reading
    files.

    Args:
        model: A vision model of transformers.
        processor: Its image processor, or a processor that has one.
        images: The images: Pillow images, uint8 arrays of shape (height, width, 3), or paths.
            Colours are all that is used: transparency is left out.
        name: The model's name for the explanations. By default that of its class.
        method: "raw" attention, "rollout" or "flow".
        layer: The layer whose embedding is explained, from 1; -1 is the last.
        position: The position whose embedding is explained: an index, "cls", a token by name, such
            as "[DIST]" or "3,4", the patch in row 3 and column 4, or "auto": CLS.
        edges: What an edge weighs: "attention"; "gradient", the mean over heads of relu(dy/dA * A)
            where y is the target's logit; "effective", the part of each head's attention that its
            values let through; or "value_norm", the norm of the vector that attention brings from
            one position to the other.
        target: The class that the explanation is for, by name or index. None is what the model
            predicts.
        heads: How heads become one: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1. With "value_norm" it is
            measured for each layer and position, and not to be given.
        receptive_field: True divides rollout and flow by what uniform attention gives. "auto" is
            False: in an image every token sees every other.
        words: False; an image has no words.
        special_tokens: Keep special tokens among those scored.
        drop_sink: Leave out the token that most positions attend to whatever it is.
        truncate: False; an image is not cut to a length.

    Yields:
        The index of an image, and its explanation. Its `grid` is that of the patches, and its
        options ``image_size`` and ``area`` say how large the image was and what of it the patches
        cover: top, left, bottom and right, as shares of its height and width.

    Raises:
        OptionError: If an option is not valid for this model, or an image cannot be read; the
            message says what is expected.
        ModelError: If the model or its image processor is none that can be explained.
        AttentionError: If the model's attention is not to be had.
        MissingExtraError: If Pillow or torchvision is needed and not installed.
    """
    processor = getattr(processor, "image_processor", None) or processor
    if not callable(processor):
        raise ModelError(
            f"processor is {type(processor).__name__}; expected the model's image processor"
        )
    layout = token_layout(model)
    options = _checked(
        model,
        words=words,
        truncate=truncate,
        receptive_field=receptive_field,
        method=method,
        layer=layer,
        position=position,
        edges=edges,
        target=target,
        heads=heads,
        residual=residual,
        special_tokens=special_tokens,
        drop_sink=drop_sink,
    )
    for index, image in enumerate(images):
        _check_image(image, f"inputs[{index}]")

    known: dict[tuple[int, int], tuple[Any, Area]] = {}
    waiting: dict[Any, list[tuple[int, _Picture]]] = {}
    for index, image in enumerate(images):
        picture = _prepare(image, processor, layout, known)
        tokens = layout.tokens(picture.grid)
        _position(options.position, tokens, layout, type(model).__name__)
        batch = waiting.setdefault(tuple(picture.pixels.shape), [])
        batch.append((index, picture))
        if (len(batch) + 1) * len(tokens) > BATCH_POSITIONS:
            yield from _explain_batch(model, layout, batch, name, options)
            batch.clear()
    for batch in waiting.values():
        if batch:
            yield from _explain_batch(model, layout, batch, name, options)


def _checked(
    model: Any, *, words: Any, truncate: Any, receptive_field: Any, target: Any, **given: Any
) -> _Options:
    """Check every option before an image is read."""
    switches = {"words": words, "truncate": truncate}
    for name in ("special_tokens", "drop_sink"):
        switches[name] = given[name]
    check_choices(given["method"], given["edges"], receptive_field, switches)
    check_edges(given["edges"], given["heads"], given["residual"])
    for name in ("words", "truncate"):
        if switches[name]:
            raise OptionError(f"{name}=True is for texts, and this model takes images")
    layers = getattr(model.config, "num_hidden_layers", None)
    if isinstance(layers, int):
        resolve_index(given["layer"], layers, "layer", "layers", first=1)
    if task_of(type(model).__name__) == "image-encoder":
        if target is not None:
            raise OptionError(
                f"target is {target!r}, but {type(model).__name__} has no classifier and predicts "
                "nothing; leave it out"
            )
        if given["edges"] == "gradient":
            raise OptionError(
                "edges='gradient' needs a prediction to differentiate, and "
                f"{type(model).__name__} has no classifier; use edges='attention'"
            )
    return _Options(
        target=None if target is None else _target(target, model.config),
        # A row of raw attention over a uniform row is the same row once it is normalised.
        relative=receptive_field is True and given["method"] != "raw",
        **given,
    )


def _target(target: Any, config: Any) -> int:
    """Return the index of the class that an explanation is for."""
    labels = {int(index): str(label) for index, label in config.id2label.items()}
    if not isinstance(target, str):
        return resolve_index(target, len(labels), "target", "classes")
    places = [index for index, label in labels.items() if label == target]
    if len(places) > 1:
        raise OptionError(
            f"target is {target!r}, as {len(places)} classes are called; give the index: "
            f"{', '.join(map(str, places))}"
        )
    if not places:
        names = list(dict.fromkeys(labels.values()))
        if len(names) > LISTED:
            names = difflib.get_close_matches(target, names, LISTED) or names[:LISTED]
            names.append("another of the model's labels")
        raise OptionError(f"target is {target!r}; expected one of {', '.join(names)}, or an index")
    return places[0]


def _position(position: Any, tokens: tuple[str, ...], layout: Layout, model: str) -> int:
    """Return the index of the position to explain."""
    if not isinstance(position, str):
        return resolve_index(position, len(tokens), "position", "tokens")
    wanted = "[CLS]" if position in ("auto", "cls") else position
    if wanted in tokens:
        return tokens.index(wanted)
    patches = f"a patch from '0,0' to {tokens[-1]!r}"
    if wanted == "[CLS]":
        raise OptionError(
            f"position is {position!r}, but {model} has no CLS token that stands for the whole "
            f"image; expected an index from 0 to {len(tokens) - 1}, or {patches}"
        )
    named = "".join(f"{token}, " for token in layout.special)
    raise OptionError(
        f"position is {position!r}; expected an index, auto, cls, {named}or {patches}"
    )


def _explain_batch(
    model: Any,
    layout: Layout,
    batch: list[tuple[int, _Picture]],
    name: str,
    options: _Options,
) -> Iterator[tuple[int, Explanation]]:
    """Run images of one size, and yield the explanation of each."""
    import torch

    from attnflow.capture import capture

    inputs: dict[str, Any] = {
        "pixel_values": torch.stack([picture.pixels for _, picture in batch]).to(
            model.device, model.dtype
        )
    }
    _, height, width = batch[0][1].pixels.shape
    if _interpolates(model, (int(height), int(width))):
        inputs["interpolate_pos_encoding"] = True
    classifies = task_of(type(model).__name__) == "image-classification"

    def chosen(logits: Any) -> Any:
        """Return the class that each image's explanation is for."""
        if options.target is None:
            return logits.argmax(dim=-1)
        return torch.full(logits.shape[:1], options.target, device=logits.device)

    def score(outputs: Any) -> Any:
        return outputs.logits.gather(1, chosen(outputs.logits)[:, None])[:, 0]

    captured = capture(
        model,
        inputs,
        heads=options.heads,
        score=score if options.edges == "gradient" else None,
        edges="attention" if options.edges == "gradient" else options.edges,
    )
    logits = captured.outputs.logits if classifies else None
    targets = chosen(logits).tolist() if classifies else [None] * len(batch)
    averaged = "distillation_logits" in captured.outputs
    for row, (index, picture) in enumerate(batch):
        _check_count(model, layout, picture.grid, captured.layers[0].shape[-1])
        residual: float | NDArray[np.float64] = options.residual
        if captured.residuals is not None:
            residual = np.stack([measured[row].numpy() for measured in captured.residuals])
        layers = [layer[row].double().numpy() for layer in captured.layers]
        graph = _graph(layers, residual, options)
        answer = None if logits is None else logits[row].detach().double().cpu().numpy()
        yield (
            index,
            _explanation(
                model, layout, picture, graph, answer, targets[row], averaged, name, options
            ),
        )


def _interpolates(model: Any, size: tuple[int, int]) -> bool:
    """Whether a model has to be told to fit its position embeddings to an image's size."""
    embeddings = _embeddings(model)
    patches = getattr(embeddings, "patch_embeddings", embeddings)
    own = getattr(patches, "image_size", None)
    own = (own, own) if isinstance(own, int) else own
    if own is None or tuple(own) == size:
        return False
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        return True
    if "interpolate_pos_encoding" in inspect.signature(embeddings.forward).parameters:
        raise ModelError(
            f"{type(model).__name__} takes images of {own[0]} x {own[1]} pixels only, and its "
            f"image processor makes {size[0]} x {size[1]} of this one; set the processor's size"
        )
    # DINOv2 fits them by itself.
    return False


def _check_count(model: Any, layout: Layout, grid: tuple[int, int], count: int) -> None:
    expected = len(layout.special) + grid[0] * grid[1]
    if count != expected:
        raise ModelError(
            f"{type(model).__name__} attends over {count} tokens, but {grid[0]} x {grid[1]} "
            f"patches and {len(layout.special)} special tokens ({', '.join(layout.special)}) are "
            f"{expected}: it masks patches or adds tokens that are not known, so that no token has "
            "a known place in the image"
        )


def _graph(
    layers: list[NDArray[np.float64]], residual: float | NDArray[np.float64], options: _Options
) -> AttentionGraph:
    """Return the graph of one image."""
    if options.edges == "gradient":
        layers = [gradient_rows(layer) for layer in layers]
    return AttentionGraph(layers, residual=residual)


def _uniform_scores(graph: AttentionGraph, method: str, position: int) -> NDArray[np.float64]:
    """Return the scores where every token attends to all alike, of shape (L, n).

    The residual connection keeps its share, also where that was measured.
    """
    if isinstance(graph.residual, float):
        return _even_scores(graph.layers, graph.tokens, graph.residual, method, position)
    even = np.full((graph.layers, graph.tokens, graph.tokens), 1 / graph.tokens)
    return scores_of(AttentionGraph(even, residual=graph.residual), method, [position])[:, 0]


@lru_cache(maxsize=32)
def _even_scores(
    layers: int, tokens: int, residual: float, method: str, position: int
) -> NDArray[np.float64]:
    """Return the same for a residual that all images share."""
    even = np.full((layers, tokens, tokens), 1 / tokens)
    scores = scores_of(AttentionGraph(even, residual=residual), method, [position])[:, 0]
    scores.flags.writeable = False
    return scores


def _explanation(
    model: Any,
    layout: Layout,
    picture: _Picture,
    graph: AttentionGraph,
    logits: NDArray[np.float64] | None,
    target: int | None,
    averaged: bool,
    name: str,
    options: _Options,
) -> Explanation:
    tokens = layout.tokens(picture.grid)
    position = _position(options.position, tokens, layout, type(model).__name__)
    layer = resolve_index(options.layer, graph.layers, "layer", "layers", first=1)
    every = scores_of(graph, options.method, [position])
    saturation = None
    if options.method == "flow":
        saturation = saturation_of(graph, every, layer, [position])[0]
    scores = every[:, 0]
    if options.relative:
        even = _uniform_scores(graph, options.method, position)
        scores = relative_to(even, scores)
    sink = sink_of(graph)
    kept = [i for i in range(len(tokens)) if not (options.drop_sink and i == sink)]
    notes = notes_on(
        tokens,
        scores[layer - 1],
        position,
        layer,
        saturation,
        None if options.drop_sink else sink,
    )
    if averaged and tokens[position] == "[CLS]":
        notes.append(
            "The model's answer is the mean of two, one read off [CLS] and one off [DIST]. This "
            "explains [CLS]; position='[DIST]' explains the other."
        )
    scores = scores[:, kept]
    if options.relative and options.drop_sink:
        scores = shares(scores)
    labels = getattr(model.config, "id2label", None) or {}
    prediction = None
    if logits is not None:
        prediction = predict(logits, lambda top: str(labels.get(top, top)))
    explanation = Explanation(
        tokens=[tokens[i] for i in kept],
        scores=scores[layer - 1],
        layer_scores=scores,
        method=options.method,
        layer=layer,
        position=position,
        target=None if target is None else str(labels.get(target, target)),
        prediction=prediction,
        text="",
        spans=[None] * len(kept),
        special=[i < len(layout.special) for i in kept],
        model=name or type(model).__name__,
        task=task_of(type(model).__name__),
        options={
            "edges": options.edges,
            "heads": options.heads,
            "residual": "measured" if options.edges == "value_norm" else float(options.residual),
            "receptive_field": options.relative,
            "special_tokens": bool(options.special_tokens),
            "drop_sink": bool(options.drop_sink),
            "image_size": picture.size,
            "area": picture.area,
        },
        saturation=saturation,
        notes=notes,
        grid=picture.grid,
        picture=picture.small,
        trace=Trace.of(
            graph,
            tokens=tokens,
            spans=[None] * len(tokens),
            special=[i < len(layout.special) for i in range(len(tokens))],
            # In an image every token sees every other.
            mask=np.ones((graph.layers, 2 * len(tokens) - 1), dtype=np.bool_)
            if options.relative
            else None,
        ),
    )
    return explanation if options.special_tokens else explanation.without_special_tokens()
