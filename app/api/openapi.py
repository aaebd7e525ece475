"""The OpenAPI document: what generated clients are made from."""

import json
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from app.api import openai_errors, openapi_answers, openapi_corrections, schemas
from app.api.gate import OPEN_PATHS
from app.api.problems import MEDIA_TYPE

VERSION = "0.1.0"

DESCRIPTION = """\
Memory as a service for LLM agents: the verbatim event log of every conversation, windows that never split a turn, and
recall over everything that was ever said; and chats that load, append and compact around any OpenAI-compatible LLM.
The tools for models are also served over the Model Context Protocol, at `/mcp`.

Errors are problem documents (RFC 9457), where OpenAI's SDKs call in OpenAI's shape. Ids have 1 to 255 characters, no
control characters and no `/`.
Times are RFC 3339 with an offset, returned in UTC.
"""


def operation_id(route: APIRoute) -> str:
    return route.name


def install(app: FastAPI) -> None:
    """Serve a document that says what the framework leaves out: credentials, and errors as problem documents."""

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = _corrected(schema)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def as_yaml(app: FastAPI) -> str:
    return yaml.safe_dump(app.openapi(), sort_keys=False, allow_unicode=True, width=110)


def as_json(app: FastAPI) -> str:
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


def _error_content(path: str) -> dict[str, Any]:
    """Where OpenAI's SDKs call, errors are in OpenAI's shape."""
    media_type, name = ("application/json", "OpenAIError") if openai_errors.wants({"path": path}) else _PROBLEM
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


_PROBLEM = (MEDIA_TYPE, "Problem")


def _openai_error() -> dict[str, Any]:
    schema = schemas.OpenAIError.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), "OpenAIError": schema}


def _corrected(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "A service key, or a token made by `POST /v1/tokens`.",
        }
    }
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["schemas"] |= _openai_error()
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path not in OPEN_PATHS:
                operation["security"] = [{"bearer": []}]
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    response["content"] = _error_content(path)
    openapi_corrections.correct(schema)
    openapi_answers.complete(schema)
    return schema
