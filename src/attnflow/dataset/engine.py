"""What runs the model: the CPUs of this machine, or a Ray cluster. The same comes out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attnflow.errors import OptionError

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = ["ENGINES", "Map", "opened"]

ENGINES: Final = ("local", "ray")

Map: TypeAlias = Callable[
    [
        "Explainer",
        Callable[["Explainer", Any], Any],
        Iterator[tuple[int, Any]],
        Callable[[], object],
    ],
    Generator[tuple[int, Any], None, None],
]
"""A function of the model, the work, the numbered tasks, and what a new process of the local engine
calls to close what it has no business with. It yields the numbers of the tasks and what became of
them, as they are finished."""


@contextmanager
def opened(
    engine: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
) -> Iterator[Map]:
    """Make an engine ready, for as long as the context lasts.

    Args:
        engine: "local" or "ray".
        workers: How many processes run the model; None is one for each CPU.
        address: The Ray cluster, as in `attnflow.dataset.ray.joined`.
        device: Where Ray's workers run the model, as there.

    Yields:
        What does the work.

    Raises:
        OptionError: If there is no such engine, it does not have such an option, or there is no
            room in the cluster.
        MissingExtraError: If Ray is needed and not installed.
    """
    if engine == "local":
        for name, value in (("address", address), ("device", None if device == "auto" else device)):
            if value is not None:
                raise OptionError(
                    f"{name} is {value!r}, which is for engine='ray'; the local engine runs the "
                    "model where it is"
                )
        from attnflow.dataset.local import local_map

        yield lambda explainer, work, todo, let_go: local_map(
            explainer, work, todo, workers, let_go
        )
    elif engine == "ray":
        from attnflow.dataset.ray import joined, ray_map

        with joined(address, workers, device) as cluster:
            # The machines of a cluster have nothing of this process to let go.
            yield lambda explainer, work, todo, _: ray_map(explainer, work, todo, cluster)
    else:
        raise OptionError(f"engine is {engine!r}; expected {', '.join(ENGINES)}")
