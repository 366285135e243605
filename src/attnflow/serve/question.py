"""What a client asks: the body of a request, checked against the schema that is documented."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from attnflow.options import EDGES, METHODS, POSITIONS, UNITS
from attnflow.serve.limits import Limits

__all__ = ["Question", "Refused", "read_question", "schema"]

# An index beyond this is one of nothing.
MOST: Final = 1_000_000

NOT_OPTIONS: Final = ("text", "compare", "trace", "page")


class Refused(Exception):
    """A request that gets an error for an answer.

    Args:
        status: The status of the answer.
        kind: One word for programs.
        message: A sentence for people.
        headers: Headers of the answer.
    """

    def __init__(
        self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": {"status": self.status, "kind": self.kind, "message": self.message}}


class Question(NamedTuple):
    """What is to be explained, and how.

    Attributes:
        texts: One text, or two that are compared.
        options: The options of `Explainer.explain`.
        trace: Whether the answer holds the attention graph.
        page: Whether the answer holds what the page needs.
    """

    texts: tuple[str, ...]
    options: dict[str, Any]
    trace: bool
    page: bool


def schema(limits: Limits) -> dict[str, Any]:
    """Return the JSON Schema of a question.

    Args:
        limits: The limits of the server.

    Returns:
        The schema. `read_question` takes what is valid by it.
    """
    text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
    index = {"type": "integer", "minimum": -MOST, "maximum": MOST}
    null = {"type": "null"}

    def switch(about: str) -> dict[str, Any]:
        return {"type": "boolean", "default": False, "description": about}

    return {
        "type": "object",
        "required": ["text"],
        "additionalProperties": False,
        "properties": {
            "text": {**text, "description": "The text whose answer is explained."},
            "compare": {
                "anyOf": [text, null],
                "default": None,
                "description": "A second text, explained in the same way.",
            },
            "method": {
                "enum": list(METHODS),
                "default": "flow",
                "description": "Raw attention, attention rollout or attention flow.",
            },
            "layer": {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": MOST},
                    {"type": "integer", "minimum": -MOST, "maximum": -1},
                ],
                "default": -1,
                "description": "The layer whose embedding is explained, from 1; -1 is the last.",
            },
            "position": {
                "anyOf": [{"enum": list(POSITIONS)}, index],
                "default": "auto",
                "description": (
                    "The position whose embedding is explained: an index from 0, cls, mask, last, "
                    "or auto, which is what the model answers from."
                ),
            },
            "edges": {
                "enum": list(EDGES),
                "default": "attention",
                "description": "What an edge of the attention graph weighs.",
            },
            "target": {
                "anyOf": [{"type": "string", "minLength": 1, "maxLength": 200}, index, null],
                "default": None,
                "description": "The class or token to explain; null is what the model predicts.",
            },
            "heads": {
                "anyOf": [{"enum": ["mean", "max", "min", "sum"]}, index],
                "default": "mean",
                "description": "How heads become one, or the index of a head.",
            },
            "residual": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "default": 0.5,
                "description": "The share of the residual connection.",
            },
            "receptive_field": {
                "enum": ["auto", True, False],
                "default": "auto",
                "description": (
                    "Relate scores to uniform attention over the same mask; auto does so for "
                    "causal models."
                ),
            },
            "units": {
                "enum": list(UNITS),
                "default": "tokens",
                "description": "What is scored: tokens, words or sentences.",
            },
            "special_tokens": {
                "type": "boolean",
                "default": True,
                "description": "Keep special tokens among those scored.",
            },
            "drop_sink": switch("Leave out the token that most positions attend to."),
            "truncate": switch("Cut a text that is longer than the model takes."),
            "keep_heads": switch("Keep each head in the trace; only with edges attention."),
            "trace": switch("Put the attention graph into each explanation."),
            "page": switch("Answer with what the page shows, too."),
        },
    }


def read_question(body: bytes, limits: Limits) -> Question:
    """Return the question in the body of a request.

    Args:
        body: JSON, as `schema` says.
        limits: The limits of the server.

    Returns:
        The question.

    Raises:
        Refused: If the body is not JSON (400), not valid (422), or a text too long (413).

    Example:
        >>> read_question(b'{"text": "the keys", "compare": "the key", "layer": 3}', Limits()).texts
        ('the keys', 'the key')
        >>> read_question(b'{"text": "the keys", "method": "sum"}', Limits())
        Traceback (most recent call last):
        attnflow.serve.question.Refused: method is "sum"; expected raw, rollout or flow
    """
    try:
        given = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once
        )
    except UnicodeDecodeError as error:
        raise Refused(400, "not_json", f"the body is not UTF-8: {error}") from error
    except RecursionError as error:
        raise Refused(400, "not_json", "the body is nested too deeply") from error
    except ValueError as error:
        raise Refused(400, "not_json", f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refused(422, "invalid", f"the body is {_named(given)}; expected an object")
    described = schema(limits)["properties"]
    for name in given:
        if name not in described:
            raise Refused(
                422, "invalid", f"there is no field {_named(name)}; expected {', '.join(described)}"
            )
    if "text" not in given:
        raise Refused(422, "invalid", "text is missing; expected the text to explain")
    values = {name: _read(name, given, rules, limits) for name, rules in described.items()}
    return Question(
        texts=tuple(values[name] for name in ("text", "compare") if values[name] is not None),
        options={name: value for name, value in values.items() if name not in NOT_OPTIONS},
        trace=values["trace"],
        page=values["page"],
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of a field that is there twice nobody knows which one is meant."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Refused(422, "invalid", f"the field {_named(name)} is there more than once")
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _read(name: str, given: dict[str, Any], rules: dict[str, Any], limits: Limits) -> Any:
    """Return the value of a field, its default where there is none."""
    if name not in given:
        return rules["default"]
    value = given[name]
    if isinstance(value, str):
        if name in ("text", "compare") and len(value) > limits.characters:
            raise Refused(
                413,
                "too_long",
                f"{name} has {len(value)} characters, and this server takes {limits.characters}",
            )
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Refused(
                422, "invalid", f"{name} holds half of a surrogate pair, which is no character"
            ) from error
    choices = rules.get("anyOf", [rules])
    if not any(_fits(value, choice) for choice in choices):
        expected = " or ".join(_words(choice) for choice in choices)
        raise Refused(422, "invalid", f"{name} is {_named(value)}; expected {expected}")
    if isinstance(value, float) and "integer" in [choice.get("type") for choice in choices]:
        return int(value)
    return value


def _fits(value: Any, rules: dict[str, Any]) -> bool:
    """Whether a value is valid by a schema: an enumeration, or a type and its range."""
    if "enum" in rules:
        # In Python, though not in JSON, 1 equals true.
        return any(type(value) is type(item) and value == item for item in rules["enum"])
    kind = rules["type"]
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str) and rules["minLength"] <= len(value) <= rules["maxLength"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # In JSON, 2.0 is an integer.
    whole = isinstance(value, int) or value.is_integer()
    return (kind == "number" or whole) and rules["minimum"] <= value <= rules["maximum"]


def _words(rules: dict[str, Any]) -> str:
    """Return a schema in words."""
    if "enum" in rules:
        *names, last = (item if isinstance(item, str) else _named(item) for item in rules["enum"])
        return f"{', '.join(names)} or {last}"
    kind = rules["type"]
    if kind == "string":
        return f"a string of {rules['minLength']} to {rules['maxLength']} characters"
    if kind in ("integer", "number"):
        noun = "a whole number" if kind == "integer" else "a number"
        return f"{noun} from {rules['minimum']} to {rules['maximum']}"
    return {"null": "null", "boolean": "true or false"}[kind]


def _named(value: Any) -> str:
    """Return a value as JSON, no more of it than a message needs."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
