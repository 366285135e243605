"""Loading a model of transformers with its tokenizer or processor."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Final

from attnflow.checks import choice
from attnflow.errors import AttnflowError, MissingExtraError, ModelError, OptionError
from attnflow.models.adapter import Adapter
from attnflow.models.audio import AudioAdapter
from attnflow.models.image import ImageAdapter
from attnflow.models.image_text import ImageTextAdapter
from attnflow.models.pair import PairAdapter
from attnflow.models.similarity import SimilarityAdapter
from attnflow.models.sound import SoundAdapter
from attnflow.models.spans import QuestionAdapter, TokenAdapter
from attnflow.models.text import TextAdapter

ADAPTERS: Final[tuple[type[Adapter], ...]] = (
    SoundAdapter,
    PairAdapter,
    ImageTextAdapter,
    SimilarityAdapter,
    AudioAdapter,
    ImageAdapter,
    TokenAdapter,
    QuestionAdapter,
    TextAdapter,
)
"""The kinds of input. The first one that fits a model is its own."""

TASKS: Final = tuple(task for adapter in reversed(ADAPTERS) for task in adapter.tasks)
"""The tasks that a model can be loaded for."""


def adapter_for(model: Any, reader: Any) -> Adapter:
    """Return the adapter of a model.

    Args:
        model: A model of transformers.
        reader: Its tokenizer, image processor or processor.

    Raises:
        MissingExtraError: If torch or transformers is not installed.
        ModelError: If it is not a model that can be explained.
    """
    _require_hf()
    if not hasattr(model, "config") or not callable(getattr(model, "forward", None)):
        raise ModelError(
            f"model is {type(model).__name__}; expected a model of transformers. "
            "Explainer.from_pretrained(name_or_path) loads one"
        )
    if not callable(reader):
        raise ModelError(
            f"tokenizer is {type(reader).__name__}; expected the model's tokenizer or processor"
        )
    kind = next(adapter for adapter in ADAPTERS if adapter.fits(model))
    return kind(model, reader)


def load(
    name_or_path: str | os.PathLike[str],
    task: str,
    device: str,
    dtype: str,
    allow_pickle: bool,
    trust_remote_code: bool,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer or processor, as `Explainer.from_pretrained` does.

    Returns:
        The model, in eval mode on its device, and the tokenizer or processor.

    Raises:
        AttnflowError: As `Explainer.from_pretrained`.
    """
    _require_hf()
    import transformers

    from attnflow.capture.quiet import quiet

    choice(task, "task", ("auto", *TASKS))
    place = _device(device)
    number = _dtype(dtype, place)
    path = Path(name_or_path)
    source: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    name = str(name_or_path)
    gguf = path.suffix == ".gguf" and path.is_file()
    if gguf:
        name, source["gguf_file"] = str(path.parent), path.name
    try:
        with quiet():
            _register_own(path)
            config = transformers.AutoConfig.from_pretrained(name, **source)
            found = (adapter.loader(config, task, gguf) for adapter in ADAPTERS)
            name_of_class, read = next(loader for loader in found if loader is not None)
            if isinstance(read, str):
                read = getattr(transformers, read).from_pretrained
            reader = read(name, **source)
            if gguf and begins_texts(path) and getattr(reader, "bos_token_id", None) is not None:
                # The file asks for it, and transformers does not look there.
                reader.add_bos_token = True
            if not gguf:
                source["use_safetensors"] = None if allow_pickle else True
            kind: Any = getattr(transformers, name_of_class)
            model = kind.from_pretrained(name, dtype=number, **source)
    except AttnflowError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"loading {name} needs another package: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        if "Unrecognized configuration class" in str(error):
            raise OptionError(
                f"task is {task!r}, but transformers has no {config.model_type} for it; expected "
                f"auto or another of {', '.join(TASKS)}"
            ) from error
        raise ModelError(_loading_failed(name, path, error, allow_pickle)) from error
    return model.to(place).eval(), reader


def name_of(name_or_path: str | os.PathLike[str]) -> str:
    """Return what a model is called, wherever it is named.

    Args:
        name_or_path: What it is loaded by.

    Returns:
        The name of a folder, of a GGUF file without its ending, or on the hub; "verb_number" for
        the model that comes with attnflow.

    Example:
        >>> name_of("google/bert-tiny")
        'google/bert-tiny'
        >>> from attnflow.models.verb_number import checkpoint
        >>> name_of(checkpoint())
        'verb_number'
    """
    path = Path(name_or_path)
    if not path.exists():
        return str(name_or_path)
    path = path.resolve()
    if path.parts[-2:] == ("verb_number", "checkpoint"):
        return "verb_number"
    return path.stem if path.suffix == ".gguf" else path.name


def begins_texts(path: Path) -> bool:
    """Whether a GGUF file says that its texts begin with the BOS token.

    The key is looked for as it is written, because reading all keys of a large vocabulary takes
    half a minute: the key, its type (7 is a boolean), and its value.

    Args:
        path: The file.
    """
    key = b"tokenizer.ggml.add_bos_token"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(key)
        end = place + len(key)
        return place >= 0 and content[end : end + 5] == b"\x07\x00\x00\x00\x01"


def _register_own(path: Path) -> None:
    """Register the verb-number model with transformers, if that is what is loaded."""
    config = path / "config.json"
    if config.is_file() and b'"attnflow-verb-number"' in config.read_bytes():
        import attnflow.models.verb_number.model  # noqa: F401


def _require_hf() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f'explaining a model needs {" and ".join(missing)}; run: pip install "attnflow[hf]"'
        )


def _device(device: Any) -> Any:
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(
            f"device is {device!r}; expected 'auto' or a device such as 'cpu' or 'cuda:0'"
        ) from error
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # Not every kind of device can be counted, but each says that it is missing.
        raise OptionError(
            f"device is {device!r}, which this torch cannot use ({first_line(error)}); expected "
            "'auto', 'cpu' or a device of this machine"
        ) from error
    return place


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without the full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _dtype(dtype: Any, device: Any) -> Any:
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    found = getattr(torch, str(dtype), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(
            f"dtype is {dtype!r}; expected 'auto' or a dtype such as 'float32' or 'bfloat16'"
        )
    return found


def _loading_failed(name: str, path: Path, error: Exception, allow_pickle: bool) -> str:
    """Say in one sentence why a model could not be loaded."""
    reason = " ".join(str(error).split())
    if path.is_dir():
        if not allow_pickle and not list(path.glob("*.safetensors")) and list(path.glob("*.bin")):
            return (
                f"{name} has no safetensors weights, only pickled ones, which can run any code "
                "when they are loaded; pass allow_pickle=True if you trust them"
            )
        if not (path / "config.json").is_file():
            return f"{name} has no config.json; expected a folder written by save_pretrained"
        return f"{name} could not be loaded: {reason}"
    if path.is_absolute() or name.startswith((".", "~")):
        return f"{name} does not exist; expected a folder, a GGUF file, or a name on the hub"
    if "trust_remote_code" in reason:
        return f"{name} comes with its own code; pass trust_remote_code=True if you have read it"
    return (
        f"{name} is not a local folder, and loading it from the Hugging Face hub failed: {reason}"
    )
