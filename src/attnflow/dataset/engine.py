"""Engines, which run the model: this machine, or a Ray cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from attnflow.checks import choice, invalid
from attnflow.dataset.local import local_map
from attnflow.errors import OptionError
from attnflow.models import Explainer

ENGINES: Final = ("local", "ray")

Map: TypeAlias = Callable[
    [Explainer, Callable[[Explainer, Any], Any], Iterator[tuple[int, Any]], Callable[[], object]],
    Generator[tuple[int, Any], None, None],
]
"""A function of the model, the work, the numbered tasks, and a callback that closes what a forked
process inherited. It yields the number and the result of each task as tasks finish."""


def check_explainer(explainer: Any) -> None:
    """Check that an argument is an `Explainer`.

    Raises:
        OptionError: If it is not.
    """
    if not isinstance(explainer, Explainer):
        raise invalid("explainer", explainer, f"an Explainer, not a {type(explainer).__name__}")


@contextmanager
def opened(
    engine: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
) -> Iterator[Map]:
    """Open an engine until the context ends.

    Args:
        engine: "local" or "ray".
        workers: The number of workers; None is one for each CPU.
        address: The Ray cluster, as in `attnflow.dataset.ray.joined`.
        device: Where Ray's workers run the model, as there.

    Yields:
        The function that does the work.

    Raises:
        OptionError: If there is no such engine, the engine does not have an option, or the cluster
            has no room.
        MissingExtraError: If Ray is needed and not installed.
    """
    choice(engine, "engine", ENGINES)
    if engine == "local":
        for name, value in (("address", address), ("device", None if device == "auto" else device)):
            if value is not None:
                raise OptionError(
                    f"{name} is {value!r}, which needs engine='ray'; the local engine runs the "
                    "model on the device that it is on"
                )
        yield lambda explainer, work, todo, let_go: local_map(
            explainer, work, todo, workers, let_go
        )
    else:
        from attnflow.dataset.ray import joined, ray_map

        with joined(address, workers, device) as cluster:
            # The workers of a cluster inherit nothing from this process.
            yield lambda explainer, work, todo, _: ray_map(explainer, work, todo, cluster)
