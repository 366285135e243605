"""Vision Transformers: which patches of an image an answer came from.

A vision Transformer cuts an image into patches, and a patch is to it what a word is to a text
model. Beside the patches there are special tokens: CLS, which stands for the whole image, the
distillation token of DeiT, and registers. Special tokens are named "[CLS]", "[DIST]", "[REG1]",
"[REG2]" and so on; a patch is named by its row and column, "0,0".

Reading an image file needs Pillow.
"""

from __future__ import annotations

import importlib
import inspect
import io
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_index
from attnflow.errors import ImageError, MissingExtraError, ModelError, OptionError
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import (
    BATCH_POSITIONS,
    Adapter,
    Encoded,
    Loader,
    Question,
    Reading,
    about_item,
)
from attnflow.models.text import fused_graph
from attnflow.options import Options
from attnflow.resample import Area
from attnflow.tokens import Tokens

# How the names of classes end that classify images.
CLASSIFIERS: Final = ("ForImageClassification", "ForImageClassificationWithTeacher")

# How many pixels the longer side of a small copy of an image has.
SMALL: Final = 384

# What replaces a patch: pixels are given relative to the mean colour.
MEAN_COLOUR: Final = 0

# What an error says that an image is.
_IMAGE: Final = (
    "a Pillow image, a uint8 array of shape (height, width, 3), or the path of an image file"
)


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


class Picture(NamedTuple):
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


class ImageAdapter(Adapter):
    """Reads an image, which a convolution cuts into patches."""

    tasks: ClassVar[tuple[str, ...]] = ("image-classification", "image-encoder")

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        self.task = _task_of(type(model).__name__)
        self.layout: Final = token_layout(model)  # refuses models that attend within windows
        # The place of the patches in an image, by the image's size.
        self._known: dict[tuple[int, int], tuple[Any, Area]] = {}

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model, or a class of models, is given images and nothing else."""
        return getattr(model, "main_input_name", None) == "pixel_values"

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is not that of a vision model.

        Of a CLIP model, whose text and image parts are two models, the image part is loaded.
        """
        import transformers

        name = (getattr(config, "architectures", None) or [""])[0]
        saved: Any = getattr(transformers, "CLIPVisionModel" if name == "CLIPModel" else name, None)
        if saved is None and type(config) in transformers.MODEL_MAPPING:
            saved = transformers.MODEL_MAPPING[type(config)]
        if not cls.fits(saved):
            return None
        if task not in ("auto", *cls.tasks):
            raise OptionError(
                f"task is {task!r}, but {saved.__name__} is a vision model; "
                f"expected auto, {', '.join(cls.tasks)}"
            )
        if task in ("auto", _task_of(saved.__name__)):
            return saved.__name__, load_image_processor
        if task == "image-classification":
            raise OptionError(
                f"task is {task!r}, but the checkpoint is a {saved.__name__} without a classifier: "
                "its answers would be random; expected auto or image-encoder"
            )
        return "AutoModel", load_image_processor

    @property
    def tokenizer(self) -> Any:
        """None: an image has no text."""
        return None

    @property
    def max_tokens(self) -> int | None:
        """None: an image is resized to what the model takes."""
        return None

    @property
    def processor(self) -> Any:
        """The image processor, also where it is part of another one."""
        return getattr(self.reader, "image_processor", None) or self.reader

    @property
    def answers(self) -> bool:
        """Whether the model classifies."""
        return self.task == "image-classification"

    def check(self, options: Options) -> None:
        """Refuse options that are for texts."""
        for name, expected in (("units", "tokens"), ("truncate", False)):
            if options[name] != expected:
                raise OptionError(
                    f"{name} is {options[name]!r}, which is for texts; this model takes images"
                )
        super().check(options)

    # ---- Reading ---------------------------------------------------------------------------------

    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return the images that were given, not read yet."""
        return list_images(inputs)

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read one image."""
        check_image(item, "the image")
        picture = self._prepare(item)
        names = self.layout.tokens(picture.grid)
        special = tuple(index < len(self.layout.special) for index in range(len(names)))
        tokens = Tokens("", names, (None,) * len(names), special)
        return Encoded(tokens, {"pixel_values": picture.pixels}, extra=picture)

    def _prepare(self, image: Any) -> Picture:
        """Return an image as the model is given it."""
        processor, layout = self.processor, self.layout
        colours = read_image(image)
        size = (colours.shape[0], colours.shape[1])
        pixels = _processed(processor, colours)
        if pixels.ndim != 4 or pixels.shape[0] != 1:
            raise ModelError(
                f"{type(processor).__name__} returns pixel values of shape {tuple(pixels.shape)}; "
                "expected (1, channels, height, width)"
            )
        if size not in self._known:
            height, width = (int(number) for number in pixels.shape[-2:])
            grid = layout.grid(height, width)
            if min(grid) < 1:
                raise ImageError(
                    f"an image of {size[0]} x {size[1]} pixels is given to the model as {height} x "
                    f"{width}, which is less than a patch of {layout.kernel[0]} x "
                    f"{layout.kernel[1]}"
                )
            area = area_of(processor, size, (height, width), layout.covered(grid))
            self._known[size] = grid, area
        grid, area = self._known[size]
        return Picture(pixels[0], size, grid, area, small_copy(colours, area))

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield images together that are of one size once they are prepared."""
        for index, image in enumerate(items):
            check_image(image, f"inputs[{index}]")
        waiting: dict[Any, list[tuple[int, Encoded]]] = {}
        for index, image in enumerate(items):
            with about_item(index, len(items)):
                encoded = self.read(image)
                self.position(encoded, options.position, None)
            shape = tuple(encoded.inputs["pixel_values"].shape)
            batch = waiting.setdefault(shape, [])
            batch.append((index, encoded))
            if (len(batch) + 1) * len(encoded.tokens) > BATCH_POSITIONS:
                yield waiting.pop(shape)
        yield from waiting.values()

    def check_position(self, position: int | str) -> None:
        """Do nothing: which positions have names depends on the image."""

    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return the position to explain."""
        names = encoded.tokens.names
        if not isinstance(position, str):
            return resolve_index(position, len(names), "position", "tokens")
        if position == "mean" or (position == "auto" and self.answers and causal is None):
            return None
        wanted = "[CLS]" if position in ("auto", "cls") else position
        if wanted in names:
            return names.index(wanted)
        special = ("auto", "cls", *self.layout.special) if "[CLS]" in names else self.layout.special
        lacking = "" if "[CLS]" in names else f", and {self.name} has no CLS token"
        expected = ", ".join([*special, f"an index from 0 to {len(names) - 1}"])
        raise OptionError(
            f"position is {position!r}{lacking}; expected {expected}, or a patch from '0,0' to "
            f"{names[-1]!r}"
        )

    # ---- Running ---------------------------------------------------------------------------------

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the batch as one tensor of pixels."""
        return self._pixels([image.inputs["pixel_values"] for image in batch]), None

    def _pixels(self, images: Sequence[Any]) -> dict[str, Any]:
        import torch

        pixels = torch.stack(list(images)).to(self.model.device, self.model.dtype)
        inputs: dict[str, Any] = {"pixel_values": pixels}
        height, width = pixels.shape[-2:]
        if _interpolates(self.model, (int(height), int(width))):
            inputs["interpolate_pos_encoding"] = True
        return inputs

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of an image."""
        return outputs.logits[row][None]

    def graph(self, captured: Any, row: int, encoded: Encoded, options: Options) -> AttentionGraph:
        """Return the graph of one image."""
        count = captured.layers[0].shape[-1]
        rows, columns = encoded.extra.grid
        if count != len(encoded.tokens):
            raise ModelError(
                f"{self.name} attends over {count} tokens; expected {len(encoded.tokens)}, of "
                f"{rows} x {columns} patches and {len(self.layout.special)} special tokens"
            )
        return fused_graph(captured, row, count, options)

    def mask(self, graph: AttentionGraph) -> NDArray[np.bool_] | None:
        """Return the mask: in an image every token sees every other."""
        return np.ones((graph.layers, 2 * graph.tokens - 1), dtype=np.bool_)

    def details(self, encoded: Encoded, outputs: Any) -> dict[str, Any]:
        """Return the grid, a small copy of the image, and what of it the patches cover."""
        picture = encoded.extra
        return {
            "grid": picture.grid,
            "picture": picture.small,
            "options": {"image_size": picture.size, "area": picture.area},
        }

    # ---- References ------------------------------------------------------------------------------

    def counted(self, item: Any, truncate: bool, position: int | str) -> tuple[str, ...]:
        """Return nothing: patches have no frequencies. The image is read when its turn comes."""
        check_image(item, "the image")
        return ()

    def fill(self, replacement: int | str, name: str = "replacement") -> int:
        """Return what replaces a patch: the mean colour."""
        if replacement != "auto":
            raise OptionError(
                f"{name} is {replacement!r}, but the model takes images; expected 'auto', which "
                "paints a patch in the mean colour"
            )
        return MEAN_COLOUR

    def fill_name(self, fill: int) -> str:
        """Return what patches are painted in."""
        return "the mean colour"

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read images for a reference."""
        readings = []
        for item, question in zip(items, questions, strict=True):
            encoded = self.encoded(item)
            # One answer for the whole image, wherever it is read.
            self.position(encoded, question.position, None)
            special = len(self.layout.special)
            places = tuple(
                None if index < special else ("pixel_values", index - special)
                for index in range(len(encoded.tokens))
            )
            target: Any = question.target
            contrast: Any = question.contrast
            inputs, tokens, extra = encoded.inputs, encoded.tokens, encoded.extra
            readings.append(Reading(inputs, tokens, places, None, target, extra, contrast))
        return readings

    def changes(self, reading: Reading, token: int, fill: int) -> bool:
        """Whether a token is a patch."""
        return reading.places[token] is not None

    def replaced(self, reading: Reading, tokens: Collection[int], fill: int) -> Reading:
        """Return a reading with some patches painted over."""
        pixels = reading.inputs["pixel_values"].clone()
        for token in tokens:
            place = reading.places[token]
            if place is not None:
                rows, columns = self._pixels_of(place[1], reading.extra.grid)
                pixels[:, rows, columns] = fill
        return reading._replace(inputs={"pixel_values": pixels})

    def _pixels_of(self, index: int, grid: tuple[int, int]) -> Iterator[slice]:
        """Give the rows and columns of pixels that a patch is cut from."""
        layout = self.layout
        for place, kernel, stride, padding in zip(
            divmod(index, grid[1]), layout.kernel, layout.stride, layout.padding, strict=True
        ):
            # Padding around the image has no pixels.
            first = place * stride - padding
            yield slice(max(0, first), max(0, first + kernel))

    @property
    def can_delete(self) -> bool:
        """No: a patch cannot be cut out."""
        return False

    def together(self, readings: Sequence[Reading]) -> dict[str, Any]:
        """Return what the model is given for readings of one shape."""
        return self._pixels([reading.inputs["pixel_values"] for reading in readings])

    def embedding_modules(self) -> list[Any]:
        """Return the module that makes the tokens."""
        return [_embeddings(self.model)]

    def embedded(self, reading: Reading) -> list[int]:
        """Return how many tokens that module makes."""
        return [len(reading.tokens)]


def _task_of(class_name: str) -> str:
    return "image-classification" if class_name.endswith(CLASSIFIERS) else "image-encoder"


# ---- The model -----------------------------------------------------------------------------------


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
            f"{name} attends within windows or in stages ({staged[0]} in its configuration); use a "
            "model whose layers attend over the whole image, such as ViT"
        )
    embeddings = _embeddings(model)
    patches = None
    if embeddings is not None:
        cutting = [m for m in embeddings.modules() if isinstance(m, torch.nn.Conv2d)]
        patches = cutting[0] if len(cutting) == 1 else None
    if patches is None or patches.padding == "same":
        raise ModelError(
            f"{name} does not cut an image into patches by one convolution, as ViT, DeiT, DINOv2 "
            "and CLIP do, so the place of a token in the image is not known"
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
            f"{type(model).__name__} takes images of {own[0]} x {own[1]} pixels, and its image "
            f"processor returns {size[0]} x {size[1]}; set the processor's size"
        )
    # DINOv2 interpolates without being told.
    return False


# ---- Images --------------------------------------------------------------------------------------


def list_images(inputs: Any) -> tuple[list[Any], bool]:
    """Return the images of what was given, one or many.

    Args:
        inputs: An image or a list of images. An image is a Pillow image, an array of shape
            (height, width, 3) and dtype uint8, or the path of a file.

    Returns:
        The images, not read yet, and whether a list was given.

    Raises:
        ImageError: If it is neither an image nor a list of images, or the list is empty.
        MissingExtraError: If a file is to be read and Pillow is not installed.
    """
    if is_image(inputs):
        check_image(inputs, "inputs")
        return [inputs], False
    if isinstance(inputs, Mapping | bytes) or not isinstance(inputs, Iterable):
        raise ImageError(f"inputs is {type(inputs).__name__}; expected {_IMAGE}, or a list of them")
    images = list(inputs)
    if not images:
        raise ImageError("inputs is an empty list; expected an image or a list of images")
    for index, image in enumerate(images):
        check_image(image, f"inputs[{index}]")
    return images, True


def is_image(value: Any) -> bool:
    """Whether a value may be one image: an array, an image of Pillow, or a path."""
    return isinstance(value, str | os.PathLike | np.ndarray) or _is_pillow(value)


def _is_pillow(value: Any) -> bool:
    # An image of Pillow implies that the module is imported.
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def check_image(image: Any, name: str) -> None:
    """Check what can be checked before an image is read."""
    if not is_image(image):
        raise ImageError(f"{name} is {type(image).__name__}; expected {_IMAGE}")
    if isinstance(image, np.ndarray):
        valid = image.ndim == 3 and image.shape[2] == 3 and 0 not in image.shape
        if not valid or image.dtype != np.uint8:
            raise ImageError(
                f"{name} is an array of type {image.dtype} and shape {image.shape}; expected uint8 "
                "of shape (height, width, 3)"
            )
    elif _is_pillow(image):
        if 0 in image.size:
            raise ImageError(f"{name} is an image without pixels, of size {image.size}")
    else:
        if not os.path.isfile(image):
            raise ImageError(f"{name} is {os.fspath(image)!r}, and there is no such file")
        _pillow("PIL.Image")


def _pillow(module: str) -> Any:
    # With importlib, mypy does not need Pillow.
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "reading an image file needs Pillow; run: pip install pillow"
        ) from error


def read_image(image: Any) -> NDArray[np.uint8]:
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
        raise ImageError(
            f"{os.fspath(image)} cannot be read as an image: {' '.join(str(error).split())}"
        ) from error


def small_copy(colours: NDArray[np.uint8], area: Area) -> bytes | None:
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


def area_of(
    processor: Any, size: tuple[int, int], prepared: tuple[int, int], covered: Area
) -> Area:
    """Return what the patches cover of the user's image, as shares of its height and width.

    A processor resizes the image, then cuts out its middle or pads it up to the size wanted, and
    then may pad it below and at the right. How large the image is after each step is found by
    leaving out the steps that follow.
    """
    if getattr(processor, "crop_pct", None) is not None:
        raise ModelError(
            f"{type(processor).__name__} crops an image while it resizes it (crop_pct), so the "
            "place of a patch in the image is not known"
        )
    blank = np.zeros((*size, 3), dtype=np.uint8)

    def size_without(*steps: str) -> tuple[int, int]:
        left_out = {step: False for step in steps if getattr(processor, step, None)}
        if not left_out:
            return prepared
        shape = _processed(processor, blank, **left_out).shape
        return int(shape[-2]), int(shape[-1])

    cropped = size_without("do_pad")
    resized = cropped
    if getattr(processor, "do_center_crop", False):
        resized = size_without("do_pad", "do_center_crop")
    shares = []
    for side in range(2):
        spare = resized[side] - cropped[side]
        # An odd number of pixels to add is divided one way by Pillow and the other by torchvision.
        torchvision = getattr(processor, "backend", "pil") == "torchvision"
        before = int(spare / 2) if torchvision else spare // 2
        shares.append([(edge + before) / resized[side] for edge in covered[side::2]])
    (top, bottom), (left, right) = shares
    return top, left, bottom, right


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
