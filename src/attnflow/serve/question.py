"""What a client asks: the body of a request, checked."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

from attnflow.errors import OptionError
from attnflow.io.records import has_surrogates
from attnflow.models.writing import WRITING
from attnflow.options import OPTIONS, Count, Option, Options, Switch
from attnflow.serve.answer import Refused
from attnflow.serve.limits import Limits

Item = str | tuple[str, str] | list[dict[str, str]]
"""An input as `Explainer.explain` takes it: a text, two texts as a pair, or a chat."""

# What the server takes as inputs, in words.
ITEM: Final = 'a text, a list of two texts, or a list of messages {"role": ..., "content": ...}'
MOST_MESSAGES: Final = 100
# Options that say which of several explanations is wanted. A generation has all of them.
NOT_WRITING: Final = ("position", "target")
EACH: Final = Option(
    "each",
    Switch(auto=True),
    "auto",
    "Explain every new token by itself, too. auto does so unless the text is long.",
)


class Question(NamedTuple):
    """What to explain, and how.

    Attributes:
        texts: One input, or two to compare.
        options: The options of `Explainer.explain`.
        trace: Whether the answer contains the attention graph.
        page: Whether the answer contains what the page shows.
        writing: How the model writes, as `Explainer.generate` takes it; None if it does not write.
    """

    texts: tuple[Item, ...]
    options: Options
    trace: bool
    page: bool
    writing: dict[str, Any] | None = None


def question_type(limits: Limits) -> Any:
    """Return the type of the body of ``POST /api/explain``.

    Args:
        limits: The limits of the server.

    Returns:
        A pydantic model.
    """
    from pydantic import Field

    item = _item_type(limits)
    about = "A second input, explained the same way, and for the answer to the first."
    return _body_type(
        "Question",
        "A text, or two to compare, and the options of Explainer.explain.",
        {
            "text": (item, Field(description=f"What the model reads: {ITEM}.")),
            "compare": (item | None, Field(None, description=about)),
        },
        OPTIONS,
    )


def prompt_type(limits: Limits) -> Any:
    """Return the type of the body of ``POST /api/generate``.

    Args:
        limits: The limits of the server.

    Returns:
        A pydantic model.
    """
    from pydantic import Field

    return _body_type(
        "Prompt",
        "A text or chat for the model to answer, and the options of Explainer.generate.",
        {"text": (_item_type(limits), Field(description=f"What the model reads: {ITEM}."))},
        [
            *writing_options(limits),
            *(row for row in OPTIONS if row.name not in NOT_WRITING),
        ],
    )


def writing_options(limits: Limits) -> list[Option]:
    """Return the options of writing, within the limits of the server."""
    most = limits.new_tokens
    return [
        replace(row, kind=Count(1, most), default=min(row.default, most))
        if row.name == "max_new_tokens"
        else row
        for row in (*WRITING, EACH)
    ]


def _item_type(limits: Limits) -> Any:
    """Return the type of an input."""
    from pydantic import ConfigDict, Discriminator, Field, Tag, with_config
    from typing_extensions import TypedDict

    text = Annotated[str, Field(min_length=1, max_length=limits.characters)]
    name = Annotated[str, Field(min_length=1, max_length=50)]

    @with_config(ConfigDict(extra="forbid"))
    class Message(TypedDict):
        """A message of a chat."""

        role: Annotated[name, Field(description="Such as system, user or assistant.")]
        content: Annotated[text, Field(description="What it says.")]

    pair = Annotated[list[text], Field(min_length=2, max_length=2)]
    chat = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    kinds = Discriminator(
        _kind_of, custom_error_type="item", custom_error_message=f"expected {ITEM}"
    )
    return Annotated[
        Annotated[text, Tag("text")] | Annotated[pair, Tag("pair")] | Annotated[chat, Tag("chat")],
        kinds,
    ]


def _kind_of(value: Any) -> str | None:
    """Return which kind of input is meant, so that an error is about this kind alone."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "chat" if value and isinstance(value[0], dict) else "pair"
    return None


def _body_type(name: str, about: str, fields: dict[str, Any], rows: Iterable[Option]) -> Any:
    """Return the type of a body: its own fields, a field for each option, and what is sent."""
    from pydantic import ConfigDict, Field, create_model

    return create_model(
        name,
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__=about,
        **fields,
        **{row.name: _field(row) for row in rows},
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
            accepted = row.kind.accepted
            for python, json_name in (("True", "true"), ("False", "false"), ("None", "null")):
                accepted = accepted.replace(python, json_name)
            raise PydanticCustomError(
                "option", "expected {accepted}", {"accepted": accepted}
            ) from error

    return Annotated[Any, AfterValidator(check), WithJsonSchema(row.json_schema())], row.default


def read_question(body: bytes, kind: Any) -> Question:
    """Return the question in the body of a request.

    Args:
        body: The body.
        kind: What `question_type` or `prompt_type` returned.

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
        text, trace, page = map(values.pop, ("text", "trace", "page"))
        given_texts = [text, values.pop("compare", None)]
        # A list of two texts is a pair, which is a tuple in Python.
        texts = tuple(
            tuple(one) if _kind_of(one) == "pair" else one for one in given_texts if one is not None
        )
        writing = {row.name: values.pop(row.name) for row in (*WRITING, EACH) if row.name in values}
        return Question(texts, Options(**values), trace, page, writing or None)
    except ValidationError as error:
        raise _refusal(error.errors()[0], kind) from error
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
    name, *inside = error["loc"]
    # The first place inside an input names its kind, of which the client did not speak.
    for part in inside[1:]:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    if error["type"] == "extra_forbidden":
        known = ", ".join(("role", "content") if inside else kind.model_fields)
        return Refused("invalid", f"there is no field {_shown(name)}; expected {known}")
    if error["type"] == "missing":
        return Refused("invalid", f"{name} is missing; expected {'a text' if inside else ITEM}")
    if error["type"] == "string_too_long":
        return Refused("too_long", f"{name} has {len(given)} characters; {reason}")
    return Refused("invalid", f"{name} is {_shown(given)}; {reason}")


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened for a message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
