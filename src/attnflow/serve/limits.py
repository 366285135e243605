"""The limits of a server."""

from dataclasses import dataclass, fields
from typing import Any

from attnflow.errors import OptionError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The limits of a server. Each must be 1 or more.

    Attributes:
        characters: How many characters a text may have.
        tokens: How many tokens a text may have. Attention takes memory and time in proportion to
            the square of their number.
        body: How many bytes the body of a request may have.
        waiting: How many requests may wait, of all clients together.
        waiting_each: How many requests of one client may wait.
        seconds: How long a request may take, waiting included.
        body_seconds: How long a client may take to send the body of a request.

    Raises:
        OptionError: If a limit is not a number, or less than 1.

    Example:
        >>> Limits(characters=500).characters
        500
        >>> Limits(waiting=0)
        Traceback (most recent call last):
        attnflow.errors.OptionError: waiting is 0; expected 1 or more
    """

    characters: int = 10_000
    tokens: int = 512
    body: int = 262_144
    waiting: int = 64
    waiting_each: int = 16
    seconds: float = 60.0
    body_seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            kinds = int | float if field.type is float else int
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise OptionError(f"{field.name} is {value!r}; expected a number")
            if not 1 <= value <= 1e9:
                raise OptionError(f"{field.name} is {value}; expected 1 or more")
