"""Run a model with temporary settings, and restore it afterwards."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

import torch
from transformers import PretrainedConfig

# What transformers calls itself where it hooks into a model to record outputs, and how it remembers
# that it did.
_RECORDER: Final = "transformers.utils.output_capturing"
_RECORDER_FLAG: Final = "_output_capturing_hooks_installed"

# The attention implementations that are computed by functions of torch.
USUAL: Final = (None, "eager", "sdpa")

_LOCKS: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
_LOCKS_GUARD: Final = threading.Lock()


@contextmanager
def borrowed(
    model: torch.nn.Module, implementation: str | None, apart: torch.nn.Module | None = None
) -> Iterator[None]:
    """Run a block with a model in eval mode and with another attention implementation.

    Afterwards, however the block ends, the model is as before: the attention implementation of its
    configuration and of every configuration inside it, the train or eval mode of every module, the
    hooks, and the modules themselves. Threads that borrow the same model, or models that share a
    configuration, take turns.

    Nothing is called on the model to do this. ``model.eval()`` and ``set_attn_implementation`` may
    be overridden, and the second writes warnings to the log.

    Args:
        model: The model.
        implementation: The name of an attention implementation that is registered, or None to
            leave it as it is.
        apart: A part of the model whose attention is not recorded, such as a vision tower. It
            attends as it does, or with sdpa where it has a kernel of its own.
    """
    configs = configs_of(model)
    own = {id(config) for config in configs_of(apart)} if apart is not None else set()
    with _turn([model, *configs]):
        modules = list(model.modules())
        training = [module for module in modules if module.training]
        unflagged = [module for module in modules if _RECORDER_FLAG not in vars(module)]
        hooks = [(module, set(module._forward_hooks)) for module in modules]
        before = [(config, config._attn_implementation_internal) for config in configs]
        # A BigBird replaces its sparse attention by another one when a text is short.
        parts = [(module, dict(module.named_children())) for module in modules]
        kinds = [(module, kind) for module in modules if (kind := sparse_kind(module)) is not None]
        try:
            for config in configs:
                if id(config) in own:
                    if config._attn_implementation_internal not in USUAL:
                        config._attn_implementation_internal = "sdpa"
                elif implementation is not None:
                    config._attn_implementation_internal = implementation
            for module in training:
                module.training = False
            yield
        finally:
            for config, found in before:
                config._attn_implementation_internal = found
            for module, children in parts:
                for name, child in children.items():
                    if getattr(module, name) is not child:
                        setattr(module, name, child)
            for module, kind in kinds:
                module.attention_type = kind
            for module in training:
                module.training = True
            for module, known in hooks:
                _remove_recorders(module, known)
            for module in unflagged:
                vars(module).pop(_RECORDER_FLAG, None)


def sparse_kind(module: torch.nn.Module) -> str | None:
    """Return which attention a part of a BigBird uses at the moment; None for any other module."""
    kind = vars(module).get("attention_type")
    return kind if isinstance(kind, str) else None


def configs_of(model: torch.nn.Module) -> list[Any]:
    """Return every configuration in a model, each object once, the model's own first.

    A layer reads its attention implementation from the configuration it was built with, and in a
    model made of several each part has one of its own.
    """
    found: dict[int, Any] = {}

    def visit(config: Any) -> None:
        if isinstance(config, PretrainedConfig) and id(config) not in found:
            found[id(config)] = config
            for name in config.sub_configs:
                visit(getattr(config, name, None))

    for module in model.modules():
        visit(getattr(module, "config", None))
    return list(found.values())


@contextmanager
def _turn(objects: list[Any]) -> Iterator[None]:
    """Wait until no other thread holds any of some objects."""
    # Always in the same order, or two threads could wait for each other. The locks may be
    # entered again by the thread that holds them, as a hook might.
    keys = sorted(id(item) for item in objects)
    with _LOCKS_GUARD:
        locks = [_LOCKS.setdefault(key, threading.RLock()) for key in keys]
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        yield


def _remove_recorders(module: torch.nn.Module, known: set[int]) -> None:
    """Remove the hooks of transformers that were not there before."""
    for key, hook in list(module._forward_hooks.items()):
        if key not in known and getattr(hook, "__module__", None) == _RECORDER:
            del module._forward_hooks[key]
            module._forward_hooks_with_kwargs.pop(key, None)
            module._forward_hooks_always_called.pop(key, None)


def implementations_of(model: torch.nn.Module) -> set[str | None]:
    """Return the attention implementations that the parts of a model use."""
    return {config._attn_implementation_internal for config in configs_of(model)}
