"""The limits of a server."""

from dataclasses import dataclass, fields

from attnflow.checks import integer, number


@dataclass(frozen=True)
class Limits:
    """The limits of a server. Each must be 1 or more.

    Attributes:
        characters: How many characters a text may have.
        tokens: How many tokens a text may have, with what is written after it. Attention takes
            memory and time in proportion to the square of their number.
        new_tokens: How many tokens a model may be asked to write.
        body: How many bytes the body of a request may have.
        waiting: How many requests may wait, of all clients together.
        waiting_each: How many requests of one client may wait.
        seconds: How long a request may take, waiting included.
        body_seconds: How long a client may take to send the body of a request.

    Raises:
        OptionError: If a limit is not a number, less than 1, or more than a billion.

    Example:
        >>> Limits(characters=500).characters
        500
        >>> Limits(waiting=0)
        Traceback (most recent call last):
        attnflow.errors.OptionError: waiting is 0; expected an integer from 1 to 1,000,000,000
    """

    characters: int = 10_000
    tokens: int = 512
    new_tokens: int = 200
    body: int = 262_144
    waiting: int = 64
    waiting_each: int = 16
    seconds: float = 60.0
    body_seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check = number if field.type is float else integer
            check(getattr(self, field.name), field.name, least=1, most=1_000_000_000)
