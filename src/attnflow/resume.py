"""Results that grow over several runs: who may write to them, and whether they are the same."""

from collections.abc import Callable, Mapping
from typing import IO, Any

from attnflow.errors import OptionError

__all__ = ["difference", "lock"]


def lock(file: IO[bytes], refusal: str) -> None:
    """Keep other processes from writing, for as long as a file is open.

    Args:
        file: The file.
        refusal: What to say if another process has it.

    Raises:
        OptionError: If another process has it.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OptionError(refusal) from error


def difference(
    found: Mapping[str, Any], header: Mapping[str, Any], spelt: Callable[[Any], str] = repr
) -> str:
    """Say what tells two headers apart: attnflow, the model, or an option.

    Args:
        found: The header of results that are there.
        header: The header of those that are to be: "version", "attnflow", "model", "fingerprint"
            and "options".
        spelt: How the value of an option is spelt.

    Returns:
        What differs, in words; nothing if all of it is the same.

    Example:
        >>> one = {"version": 1, "attnflow": "1", "fingerprint": "f", "options": {"layer": 1}}
        >>> difference(one, {**one, "options": {"layer": 2}})
        'layer is 1 there and 2 here'
    """
    for name, what in (("version", "its format's version"), ("attnflow", "attnflow's version")):
        if found.get(name) != header[name]:
            return f"{what} is {found.get(name)} there and {header[name]} here"
    if found.get("fingerprint") != header["fingerprint"]:
        there, here = found.get("model"), header["model"]
        if there == here:
            return f"the model is {here} in both, but its weights or its vocabulary have changed"
        return f"the model is {there} there and {here} here"
    old, new = found.get("options", {}), header["options"]
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            return f"{name} is {spelt(old.get(name))} there and {spelt(new.get(name))} here"
    return ""
