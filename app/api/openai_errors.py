"""Errors in OpenAI's shape, so that its SDKs raise the exceptions that their users know."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from app.domain import json_values
from app.domain.errors import Fault

# What is offered of OpenAI's API, and what else of it a client may try. `/v1/chat` is Turnkeeper's own.
_OFFERED = "POST /v1/chat/completions and GET /v1/models"
_PREFIXES = tuple(
    f"/v1/{name}"
    for name in (
        "chat/completions",
        "models",
        "responses",
        "completions",
        "embeddings",
        "images",
        "audio",
        "files",
        "uploads",
        "batches",
        "fine_tuning",
        "moderations",
        "assistants",
        "threads",
        "vector_stores",
        "conversations",
        "realtime",
        "containers",
        "evals",
        "videos",
        "organization",
        "graders",
        "skills",
        "chatkit",
        "engines",
    )
)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def wants(scope: Mapping[str, Any]) -> bool:
    """Whether a request is for OpenAI's API."""
    path: str = scope.get("path", "")
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in _PREFIXES)


def error(
    scope: Mapping[str, Any],
    status: int,
    slug: str,
    detail: str,
    *,
    faults: Sequence[Fault] = (),
    headers: Mapping[str, str] | None = None,
    **also: Any,
) -> Response:
    """`code` is what the type of a problem document ends with, `param` the first place of a wrong input."""
    places = [".".join(map(str, fault.loc)).removeprefix("body.") for fault in faults]
    body = {
        "message": detail,
        "type": type_of(status),
        "param": next(iter(places), None),
        "code": slug.replace("-", "_"),
        "request_id": scope.get("state", {}).get("request_id", ""),
        **also,
    }
    return Response(json_values.encode({"error": body}), status, headers, "application/json")


def type_of(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def is_error(body: bytes) -> bool:
    """Whether a body is in this shape already."""
    try:
        value = json_values.decode(body)
    except json_values.InvalidJson:
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def not_offered(path: str) -> str:
    return f"{path} is not offered here; of OpenAI's API there are {_OFFERED}."
