"""Run a model, and what has to be known of it to do so."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from attnflow.errors import AttnflowError, ModelError


def takes_part(model: torch.nn.Module) -> bool:
    """Whether any part of a model takes its attention function from transformers.

    Transformers tells from the source of the model. Asking first saves models that do not take part
    a forward pass for nothing.
    """
    return any(
        module._can_set_attn_implementation()
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
    )


def forward(model: torch.nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Run a model.

    Args:
        model: The model.
        inputs: What it takes.

    Returns:
        What it returned.

    Raises:
        ModelError: If it raises an error of its own; the message has the reason.
    """
    try:
        return model(**inputs)
    except (AttnflowError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Whatever a model may raise on an input that it does not take.
        name = type(model).__name__
        reason = " ".join(str(error).split()) or type(error).__name__
        parameters = inspect.signature(model.forward).parameters
        given = {key: tuple(value.shape) for key, value in inputs.items() if torch.is_tensor(value)}
        described = ", ".join(f"{key} of shape {shape}" for key, shape in given.items())
        if "pixel_values" in parameters and "pixel_values" not in given:
            raise ModelError(
                f"{name} reads an image together with a text, and was given {described} only; "
                f"explain the part of it that reads texts, or images, by itself. It says: {reason}"
            ) from error
        raise ModelError(
            f"{name} cannot run on what it was given, {described}: {reason}"
        ) from error


def forward_options(model: torch.nn.Module, *, output_attentions: bool) -> dict[str, bool]:
    """Return the options for a forward pass, those of them that the model takes."""
    wanted = {"use_cache": False, "return_dict": True, "output_attentions": output_attentions}
    parameters = inspect.signature(model.forward).parameters
    # A model with keywords of any name passes them on to a part that takes them, if any does; its
    # configuration knows the name then.
    passes_on = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    config = getattr(model, "config", None)
    return {
        name: value
        for name, value in wanted.items()
        if name in parameters or (passes_on and hasattr(config, name))
    }


def stacks(model: torch.nn.Module) -> list[tuple[str, torch.nn.ModuleList]]:
    """Return the lists of attention layers in a model that are in no other such list."""
    found: list[tuple[str, torch.nn.ModuleList]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if isinstance(module, torch.nn.ModuleList) and not inside:
            attend = (f"{path} {type(part).__name__}" for path, part in module.named_modules())
            if any("att" in words.lower() for words in attend):
                found.append((name, module))
    return found
