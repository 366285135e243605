"""What a client asks: the body of a request, checked."""

import json
from typing import Annotated, Any, NamedTuple

from attnflow.errors import OptionError
from attnflow.io.records import has_surrogates
from attnflow.options import OPTIONS, Option, Options
from attnflow.serve.answer import Refused
from attnflow.serve.limits import Limits


class Question(NamedTuple):
    """What to explain, and how.

    Attributes:
        texts: One input, or two to compare; each is a text, or a tuple of two texts.
        options: The options of `Explainer.explain`.
        trace: Whether the answer contains the attention graph.
        page: Whether the answer contains what the page shows.
    """

    texts: tuple[str | tuple[str, str], ...]
    options: Options
    trace: bool
    page: bool


def question_type(limits: Limits) -> Any:
    """Return the type of a request's body: the texts, and every option of an explanation.

    Args:
        limits: The limits of the server.

    Returns:
        A pydantic model.
    """
    from pydantic import ConfigDict, Field, create_model

    text = Annotated[str, Field(min_length=1, max_length=limits.characters)]
    pair = Annotated[list[text], Field(min_length=2, max_length=2)]
    return create_model(
        "Question",
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__="A text, or two to compare, and the options of Explainer.explain.",
        text=(
            text | pair,
            Field(description="The text whose answer is explained, or a pair of two texts."),
        ),
        compare=(
            text | pair | None,
            Field(None, description="A second text or pair, explained the same way."),
        ),
        **{row.name: _field(row) for row in OPTIONS},
        trace=(bool, Field(False, description="Include the attention graph.")),
        page=(bool, Field(False, description="Include what the page shows.")),
    )


def _field(row: Option) -> tuple[Any, Any]:
    """Return an option as a field of a pydantic model. Its row checks it and has its schema."""
    from pydantic import AfterValidator, WithJsonSchema
    from pydantic_core import PydanticCustomError

    def check(value: Any) -> Any:
        try:
            return row.kind.check(value, row.name)
        except OptionError as error:
            accepted = row.kind.accepted.replace("True", "true").replace("False", "false")
            raise PydanticCustomError(
                "option", "expected {accepted}", {"accepted": accepted}
            ) from error

    return Annotated[Any, AfterValidator(check), WithJsonSchema(row.json_schema())], row.default


def read_question(body: bytes, kind: Any) -> Question:
    """Return the question in the body of a request.

    Args:
        body: The body.
        kind: What `question_type` returned.

    Returns:
        The question.

    Raises:
        Refused: If the body is not JSON (400), not valid (422), or a text is too long (413).

    Example:
        >>> kind = question_type(Limits())
        >>> read_question(b'{"text": "the keys", "compare": "the key", "layer": 3}', kind).texts
        ('the keys', 'the key')
        >>> read_question(b'{"text": "the keys", "drop_sink": "maybe"}', kind)
        Traceback (most recent call last):
        attnflow.serve.answer.Refused: drop_sink is "maybe"; expected true or false
    """
    from pydantic import ValidationError

    try:
        given = json.loads(
            body.decode(),
            parse_constant=_refuse_constant,
            parse_float=_number,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise Refused("not_json", "the body is nested too deeply") from error
    except ValueError as error:
        raise Refused("not_json", f"the body is not JSON in UTF-8: {error}") from error
    try:
        values = dict(kind.model_validate(given))
        text, compare, trace, page = map(values.pop, ("text", "compare", "trace", "page"))
        given_texts = (text,) if compare is None else (text, compare)
        # A list of two texts is a pair, which is a tuple in Python.
        texts = tuple(tuple(one) if isinstance(one, list) else one for one in given_texts)
        return Question(texts, Options(**values), trace, page)
    except ValidationError as error:
        first, *others = error.errors()
        if isinstance(first["input"], list) and others:
            first = others[0]  # what is wrong with a list as a pair, not that it is no text
        raise _refusal(first, kind) from error
    except OptionError as error:
        raise Refused("invalid", str(error)) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _number(text: str) -> int | float:
    """Return a number with a point or an exponent. In JSON, 2.0 is an integer."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Refuse repeated fields, of which parsers pick different ones."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Refused("invalid", f"the field {_shown(name)} is given more than once")
        parts = (name, *(value if isinstance(value, list) else [value]))
        if any(has_surrogates(part) for part in parts if isinstance(part, str)):
            raise Refused("invalid", f"the field {_shown(name)} contains a lone surrogate")
        found[name] = value
    return found


def _refusal(error: Any, kind: Any) -> Refused:
    """Return why a body is refused, from what pydantic found."""
    given, reason = error["input"], error["msg"][0].lower() + error["msg"][1:]
    if not error["loc"]:
        return Refused("invalid", f"the body is {_shown(given)}; expected an object")
    name = error["loc"][0]
    if isinstance(error["loc"][-1], int):
        name = f"{name}[{error['loc'][-1]}]"
    if error["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return Refused("invalid", f"there is no field {_shown(name)}; expected {known}")
    if error["type"] == "missing":
        return Refused("invalid", f"{name} is missing; expected the text to explain")
    if error["type"] == "string_too_long":
        return Refused("too_long", f"{name} has {len(given)} characters; {reason}")
    return Refused("invalid", f"{name} is {_shown(given)}; {reason}")


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened for a message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
