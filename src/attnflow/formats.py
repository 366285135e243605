"""Output formats: one table of the functions that show and write results.

A result, such as an `Explanation`, does not know how it is displayed. `attnflow.view` registers a
writer for each kind of result and each format. It is imported when the first writer is looked up.
The methods of a result look their writers up here. Adding an output format is one call of
`register`.

A format is named by the ending of its files (".svg"), or by what it is made for ("terminal"). The
writer of an ending takes the result and returns the content of the file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from attnflow.errors import OptionError
from attnflow.io.files import write_whole

_WRITERS: dict[tuple[type, str], Callable[..., Any]] = {}
_PROVIDERS: list[str] = []


def provide(module: str) -> None:
    """Name a module that registers formats. It is imported before the table is first used.

    Args:
        module: The module's full name.
    """
    _PROVIDERS.append(module)


def _writers() -> dict[tuple[type, str], Callable[..., Any]]:
    for module in _PROVIDERS:
        import_module(module)  # waits for another thread that is importing it
    return _WRITERS


def register(kind: type, name: str, writer: Callable[..., Any]) -> None:
    """Add a format to the table, or replace it.

    Args:
        kind: The class of the results that the writer takes.
        name: The format: a file ending such as ".svg", in lower case, or another name.
        writer: A function that takes a result. For a file ending, it returns a string or bytes.

    Example:
        >>> register(complex, ".txt", lambda number: f"{number.real} + {number.imag}i")
        >>> render(1 + 2j, ".txt")
        '1.0 + 2.0i'
    """
    _writers()[kind, name] = writer


def endings(kind: type) -> tuple[str, ...]:
    """Return the file endings that a kind of result can be saved to, in the order registered.

    Args:
        kind: The class of the results.

    Returns:
        The endings, each with its dot.
    """
    return tuple(
        name for known, name in _writers() if name.startswith(".") and issubclass(kind, known)
    )


def render(result: object, name: str, *args: Any, **options: Any) -> Any:
    """Show a result in a format, or return it in that format.

    Args:
        result: The result.
        name: The format, as registered for the result's class or a base class of it.
        *args: Further arguments of the writer.
        **options: Further options of the writer.

    Returns:
        What the writer returns.

    Raises:
        OptionError: If the format is not registered.
    """
    writers = _writers()
    for kind in type(result).__mro__:
        if (kind, name) in writers:
            return writers[kind, name](result, *args, **options)
    known = [name for kind, name in writers if isinstance(result, kind)]
    raise OptionError(
        f"a {type(result).__name__} has no format {name!r}; expected {', '.join(known) or 'none'}"
    )


def save(result: object, path: str | os.PathLike[str]) -> None:
    """Write a result to a file in the format of its ending. A failure leaves no partial file.

    Args:
        result: The result.
        path: The file.

    Raises:
        OptionError: If the ending is not registered for the result's class.
        OSError: If the file cannot be written. A file that was there before is then unchanged.
    """
    ending = _ending(path, endings(type(result)), "path")
    write_whole(path, render(result, ending))


def check_path(path: str | os.PathLike[str], accepted: Sequence[str], name: str = "path") -> None:
    """Check that a file can be written, before the work for its content begins.

    Args:
        path: The file.
        accepted: The accepted endings, see `endings`.
        name: The name of the argument, for error messages.

    Raises:
        OptionError: If the path has another ending, or its folder does not exist.

    Example:
        >>> check_path("scores.doc", [".json", ".csv"])
        Traceback (most recent call last):
        attnflow.errors.OptionError: path must end in .json or .csv, got 'scores.doc'
    """
    _ending(path, accepted, name)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise OptionError(f"{os.fspath(path)!r} cannot be written: there is no folder {folder!r}")


def _ending(path: str | os.PathLike[str], accepted: Sequence[str], name: str) -> str:
    given = os.fspath(path)
    ending = os.path.splitext(given)[1].lower()
    if ending not in accepted:
        raise OptionError(f"{name} must end in {' or '.join(accepted)}, got {given!r}")
    return ending


def without_nan(value: Any) -> Any:
    """Return a value for JSON, which has no NaN: None stands for it.

    Args:
        value: Dictionaries, lists, tuples, arrays, strings and numbers, nested in any way.

    Returns:
        The same with None for every NaN, dictionaries for named tuples, and lists for other tuples
        and arrays.

    Example:
        >>> without_nan({"mean": float("nan"), "ci": (0.5, 1.0)})
        {'mean': None, 'ci': [0.5, 1.0]}
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
