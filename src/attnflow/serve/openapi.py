"""The description of the server's interface, and the page that shows it.

`openapi.json` has its paths. What the code knows is added here: the schema of each message, the
errors, the limits and whether a token is required.
"""

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from pydantic import TypeAdapter

from attnflow.serve import messages
from attnflow.serve.answer import KINDS
from attnflow.serve.limits import Limits
from attnflow.serve.question import prompt_type, question_type
from attnflow.version import __version__


def openapi(limits: Limits | None = None, *, token: bool = False) -> dict[str, Any]:
    """Return the description of the interface.

    Args:
        limits: The limits of the server.
        token: Whether clients need a token.

    Returns:
        OpenAPI 3.1, as JSON can hold it.
    """
    limits = limits or Limits()
    described: dict[str, Any] = json.loads(read_file("openapi.json"))
    described["info"]["version"] = __version__
    described["security"] = [{"token": []}] if token else []
    described["paths"]["/api/explain"]["post"]["description"] += (
        f" At most {limits.waiting} requests wait, {limits.waiting_each} of one client. Each is "
        f"answered within {limits.seconds:g} seconds. A body may have {limits.body} bytes, a text "
        f"{limits.characters} characters and {limits.tokens} tokens."
    )
    described["paths"]["/api/generate"]["post"]["description"] += (
        f" A text may have {limits.tokens} tokens, together with those written after it, which "
        f"are at most {limits.new_tokens}."
    )
    types = [
        question_type(limits),
        prompt_type(limits),
        *(getattr(messages, name) for name in messages.__all__),
    ]
    _, schemas = TypeAdapter.json_schemas(
        [(kind.__name__, "validation", TypeAdapter(kind)) for kind in types],
        ref_template="#/components/schemas/{model}",
    )
    asked = {name: schemas["$defs"].pop(name) for name in ("Question", "Prompt")}
    schemas = {**asked, **schemas["$defs"]}
    described["components"] |= {"schemas": schemas, "responses": _errors()}
    return described


def _errors() -> dict[str, Any]:
    """Return the response with each error, by status."""
    responses: dict[str, Any] = {}
    for status, when, retry in KINDS.values():
        schema = {"$ref": "#/components/schemas/Error"}
        known = responses.setdefault(
            str(status), {"description": "", "content": {"application/json": {"schema": schema}}}
        )
        known["description"] = f"{known['description']} {when}".strip()
        if retry:
            seconds = {"type": "integer", "minimum": 1}
            known["headers"] = {"Retry-After": {"description": "In seconds.", "schema": seconds}}
    return responses


def docs_page(description: dict[str, Any]) -> str:
    """Return a description as a page without scripts.

    Args:
        description: What `openapi` returned.

    Returns:
        An HTML document.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["type"] = _type
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return str(environment.from_string(read_file("docs.html")).render(description))


def read_file(name: str) -> str:
    """Return the text of a file that is part of this package."""
    return files("attnflow.serve").joinpath(name).read_text("utf-8")


def _type(schema: dict[str, Any]) -> str:
    """Return the values that a schema allows, in words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(map(_type, schema.get("anyOf") or schema["oneOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(map(json.dumps, schema.get("enum") or [schema["const"]]))
    words = str(schema.get("type", "any value"))
    if "items" in schema:
        words += f" of {_type(schema['items'])}"
    if "minimum" in schema and "maximum" in schema:
        words += f", {schema['minimum']} to {schema['maximum']}"
    if "maxLength" in schema:
        words += f", {schema['minLength']} to {schema['maxLength']} characters"
    return words
