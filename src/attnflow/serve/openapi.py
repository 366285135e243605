"""The description of the server's interface, and the page that shows it."""

import json
from html import escape
from typing import Any

from attnflow import __version__
from attnflow.explanation import FORMAT
from attnflow.serve.limits import Limits
from attnflow.serve.question import schema

__all__ = ["describe", "docs_page"]

KINDS = (
    "busy",
    "failed",
    "invalid",
    "no_token",
    "not_found",
    "not_json",
    "stopping",
    "too_large",
    "too_late",
    "too_long",
    "too_many",
    "too_slow",
    "twice",
    "wrong_host",
    "wrong_method",
    "wrong_origin",
    "wrong_type",
)

# What any request may be answered with.
COMMON = {
    400: "The request cannot be read.",
    401: "The server asks for a token, and it is missing or wrong.",
    403: "The request comes from a page of another site.",
    421: "The Host header is not one of this server.",
}


def describe(limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return the OpenAPI description.

    Args:
        limits: The limits of the server.
        token: Whether it asks for a token.

    Returns:
        What JSON can hold: OpenAPI 3.1.
    """
    guarded: list[dict[str, list[str]]] = [{"token": []}] if token else []
    explanation = {
        "type": "object",
        "description": "What Explanation.to_dict returns, and Explanation.from_dict reads.",
        "required": ["format", "version", "method", "layer", "position", "tokens", "scores"],
        "properties": {
            "format": {"const": FORMAT},
            "version": {"type": "integer"},
            "model": {"type": ["string", "null"]},
            "task": {"type": ["string", "null"]},
            "method": {"enum": ["raw", "rollout", "flow"]},
            "layer": {"type": "integer", "minimum": 1},
            "position": {"type": "integer", "minimum": 0},
            "target": {"type": ["string", "null"]},
            "prediction": {
                "type": ["object", "null"],
                "properties": {
                    "label": {"type": "string"},
                    "index": {"type": "integer"},
                    "probability": {"type": "number"},
                },
            },
            "text": {"type": "string"},
            "tokens": {"type": "array", "items": {"type": "string"}},
            "scores": {"type": "array", "items": {"type": "number"}},
            "layer_scores": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "number"}},
            },
            "saturation": {"type": ["number", "null"]},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
    }
    answer = {
        "type": "object",
        "required": ["explanations", "pages", "seconds"],
        "properties": {
            "explanations": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {"$ref": "#/components/schemas/Explanation"},
            },
            "pages": {
                "type": ["array", "null"],
                "description": "What the page shows, if page was true.",
                "items": {"type": "object"},
            },
            "seconds": {"type": "number", "description": "How long it took, waiting not counted."},
        },
    }
    event = {
        "type": "object",
        "description": (
            "One line of a stream. waiting and running come at least once a second; answer is the "
            "last, with the status and the body that the answer has without a stream."
        ),
        "required": ["event"],
        "properties": {
            "event": {"enum": ["waiting", "running", "answer"]},
            "ahead": {"type": "integer", "description": "How many requests come first."},
            "stage": {"enum": ["model", "scores", "answer"]},
            "text": {"type": "integer"},
            "texts": {"type": "integer"},
            "seconds": {"type": "number"},
            "status": {"type": "integer"},
            "body": {"type": "object"},
        },
    }
    model = {
        "type": "object",
        "required": ["model", "task", "layers", "heads", "tokens", "characters", "edges"],
        "properties": {
            "model": {"type": "string"},
            "task": {"type": "string"},
            "layers": {"type": "integer"},
            "heads": {"type": ["integer", "null"]},
            "tokens": {"type": "integer", "description": "How many tokens a text may have."},
            "characters": {"type": "integer", "description": "How many characters."},
            "edges": {"type": "array", "items": {"type": "string"}},
            "mask": {"type": ["string", "null"]},
            "example": {"type": "string"},
        },
    }
    retry = {
        "Retry-After": {
            "description": "After how many seconds to try again.",
            "schema": {"type": "integer", "minimum": 1},
        }
    }
    explain = {
        "operationId": "explain",
        "summary": "Explain a text, or two that are compared",
        "description": (
            "One model answers all requests, one at a time. Clients take turns, however many "
            f"requests each has. At most {limits.waiting} requests wait, {limits.waiting_each} of "
            f"one client, and each is answered within {limits.seconds:g} seconds. A body may have "
            f"{limits.body} bytes, a text {limits.characters} characters and {limits.tokens} "
            "tokens. A request whose client has gone is dropped."
        ),
        "security": guarded,
        "parameters": [
            {
                "name": "Attnflow-Client",
                "in": "header",
                "description": "A name for the client, of your choice; without one, clients of one "
                "address take turns as one.",
                "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/Question"},
                    "example": {
                        "text": "the keys to the cabinet",
                        "compare": "the key to the cabinet",
                        "method": "rollout",
                    },
                }
            },
        },
        "responses": {
            "200": {
                "description": "The explanations. With Accept: application/x-ndjson a stream of "
                "events, one a line, of which the last is the answer.",
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}},
                    "application/x-ndjson": {"schema": {"$ref": "#/components/schemas/Event"}},
                },
            },
            **_errors(
                {
                    **COMMON,
                    408: "The body did not arrive in time.",
                    413: "The body or a text is too long.",
                    415: "The body is not application/json.",
                    422: "A field is not valid, by itself or for this model.",
                    500: "The server failed.",
                    504: f"There was no answer within {limits.seconds:g} seconds.",
                }
            ),
            **_errors({429: "Too many requests of this client wait."}, retry),
            **_errors({503: "Too many requests wait, or the server is stopping."}, retry),
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "attnflow",
            "version": __version__,
            "summary": "From which input tokens did a Transformer's answer come?",
            "description": (
                "Raw attention, attention rollout and attention flow of a text, from the model "
                "behind this server. There are no cookies. Requests under another host name, or "
                "from a page of another site, are refused."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/api/explain": {"post": explain},
            "/api/model": {
                "get": {
                    "operationId": "model",
                    "summary": "What the model is like",
                    "security": guarded,
                    "responses": {
                        "200": _json("The model.", {"$ref": "#/components/schemas/Model"}),
                        **_errors(COMMON),
                    },
                }
            },
            "/healthz": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether the server is up",
                    "responses": {
                        "200": _json("It is.", {"$ref": "#/components/schemas/Health"}),
                        "503": _json("It is stopping.", {"$ref": "#/components/schemas/Health"}),
                        **_errors({name: COMMON[name] for name in (400, 403, 421)}),
                    },
                }
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "What the server counts, for Prometheus",
                    "security": guarded,
                    "responses": {
                        "200": {
                            "description": "Prometheus' text format.",
                            "content": {"text/plain": {"schema": {"type": "string"}}},
                        },
                        **_errors(COMMON),
                    },
                }
            },
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Question": schema(limits),
                "Answer": answer,
                "Explanation": explanation,
                "Event": event,
                "Model": model,
                "Health": {
                    "type": "object",
                    "required": ["status"],
                    "properties": {"status": {"enum": ["ok", "stopping"]}},
                },
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["status", "kind", "message"],
                            "properties": {
                                "status": {"type": "integer"},
                                "kind": {"enum": list(KINDS)},
                                "message": {"type": "string"},
                            },
                        }
                    },
                },
            },
        },
    }


def _json(about: str, kind: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": kind}}}


def _errors(about: dict[int, str], headers: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        str(status): {
            **_json(sentence, {"$ref": "#/components/schemas/Error"}),
            **({"headers": headers} if headers else {}),
        }
        for status, sentence in about.items()
    }


def docs_page(description: dict[str, Any]) -> str:
    """Return a description as a page, which needs no script.

    Args:
        description: What `describe` returned.

    Returns:
        An HTML document.
    """
    info = description["info"]
    blocks = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f'<p class="subtitle">{escape(info["summary"])}</p>',
        f"<p>{escape(info['description'])}</p>",
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a>. '
        '<a href="/">Back to the page</a>.</p>',
    ]
    schemas = description["components"]["schemas"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            blocks += _operation(path, method, operation, schemas)
    blocks.append("<section><h2>What is sent and answered</h2>")
    for name, kind in schemas.items():
        blocks += [f'<h3 id="{escape(name)}">{escape(name)}</h3>']
        if "description" in kind:
            blocks.append(f"<p>{escape(kind['description'])}</p>")
        blocks.append(_fields(name, kind))
    blocks.append("</section>")
    body = "\n".join(blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(info['title'])}: the interface</title>\n"
        '<link rel="stylesheet" href="/page.css">\n</head>\n<body>\n'
        f'<main class="attnflow docs" data-theme="auto">\n{body}\n</main>\n</body>\n</html>\n'
    )


def _operation(
    path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> list[str]:
    blocks = [
        f'<section><h2 id="{escape(operation["operationId"])}"><code>{method.upper()} '
        f"{escape(path)}</code></h2>",
        f"<p>{escape(operation['summary'])}.</p>",
    ]
    if "description" in operation:
        blocks.append(f"<p>{escape(operation['description'])}</p>")
    if operation.get("security"):
        blocks.append("<p>It needs the token: <code>Authorization: Bearer TOKEN</code>.</p>")
    for parameter in operation.get("parameters", ()):
        about = escape(parameter["description"])
        blocks.append(f"<p>Header <code>{escape(parameter['name'])}</code>: {about}</p>")
    if "requestBody" in operation:
        example = operation["requestBody"]["content"]["application/json"]["example"]
        blocks += [
            '<p>Body: JSON, a <a href="#Question">Question</a>, for example:</p>',
            f"<pre>{escape(json.dumps(example, indent=2))}</pre>",
        ]
    rows = []
    for status, response in sorted(operation["responses"].items()):
        kinds = [
            _type(content["schema"], schemas) for content in response.get("content", {}).values()
        ]
        rows.append(
            f'<tr><th scope="row">{status}</th><td>{" or ".join(kinds)}</td>'
            f"<td>{escape(response['description'])}</td></tr>"
        )
    return [
        *blocks,
        _table(("Status", "Body", "When"), rows, f"Answers of {method.upper()} {path}"),
        "</section>",
    ]


def _fields(kind_name: str, kind: dict[str, Any]) -> str:
    rows = []
    for name, rules in kind.get("properties", {}).items():
        default = escape(_value(rules["default"])) if "default" in rules else ""
        rows.append(
            f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{_type(rules)}</td>'
            f"<td>{default}</td><td>{escape(rules.get('description', ''))}</td></tr>"
        )
    return _table(("Field", "Type", "Default", "What it is"), rows, f"Fields of {kind_name}")


def _table(names: tuple[str, ...], rows: list[str], caption: str) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f'<caption class="unseen">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _type(rules: dict[str, Any], schemas: dict[str, Any] | None = None) -> str:
    """Return the type of a value, as HTML."""
    if "$ref" in rules:
        name = escape(rules["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in rules:
        return " or ".join(_type(choice) for choice in rules["anyOf"])
    if "enum" in rules:
        return ", ".join(f"<code>{escape(_value(item))}</code>" for item in rules["enum"])
    if "const" in rules:
        return f"<code>{escape(_value(rules['const']))}</code>"
    kinds = rules["type"] if isinstance(rules["type"], list) else [rules["type"]]
    words = " or ".join(kinds)
    if "array" in kinds and "items" in rules:
        words += f" of {_type(rules['items'])}"
    if "minimum" in rules and "maximum" in rules:
        words += f", {rules['minimum']} to {rules['maximum']}"
    if "maxLength" in rules:
        words += f", {rules['minLength']} to {rules['maxLength']} characters"
    return words


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
