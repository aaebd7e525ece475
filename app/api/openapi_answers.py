"""The answers of the OpenAPI document: each error once, headers, and examples."""

from collections.abc import Mapping
from copy import deepcopy
from http import HTTPStatus
from typing import Any

from app.api import openai_errors
from app.api.examples import EXAMPLES, PARAMETERS
from app.api.openapi_corrections import Document, Operation, operations
from app.api.problems import TYPE_PREFIX

# The name of each error, what its problem type ends with, and what it may say.
ERRORS: Mapping[int, tuple[str, str, str]] = {
    400: ("Bad Request", "bad-request", "The connection was closed before the whole body had come."),
    401: ("Unauthorized", "unauthorized", "Send a service key: Authorization: Bearer KEY."),
    403: ("Forbidden", "not-owner", "Session 'support-4711' does not belong to 'bob'."),
    404: ("Not Found", "session-not-found", "Session 'support-4711' does not exist."),
    409: ("Conflict", "session-exists", "Session 'support-4711' exists already."),
    412: ("Precondition Failed", "version-mismatch", "The version is 8, not 7."),
    413: ("Content Too Large", "body-too-large", "A request body has at most 10,485,760 bytes."),
    415: ("Unsupported Media Type", "unsupported-media-type", "Send JSON (Content-Type: application/json)."),
    422: ("Unprocessable Content", "invalid-request", "body.last_n: Input should be greater than or equal to 1"),
    429: ("Too Many Requests", "rate-limited", "These are too many requests; try again in 3 seconds."),
    502: ("Bad Gateway", "upstream-failed", "The upstream failed: it cannot be reached (ConnectError)."),
    503: ("Service Unavailable", "overloaded", "The service is busy; try again."),
    504: ("Gateway Timeout", "upstream-timed-out", "The upstream did not answer within 60 s."),
}
_REQUEST = "0199f3a0-7c1e-7d5a-9a43-2f1f6b0c8a11"

# What answers with the version of a session or file, for `If-Match`.
ETAGS = frozenset(
    {
        "create_session",
        "ensure_session",
        "get_session",
        "update_session",
        "append_events",
        "list_events",
        "query_events",
        "get_memory_file",
        "put_memory_file",
        "restore_memory_file",
    }
)
_ETAG = {"ETag": {"description": 'The version, such as `"7"`.', "schema": {"type": "string"}}}
_ERROR_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}},
    429: {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}},
    503: {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}},
}
_OTHERWISE = frozenset({"application/x-ndjson", "text/event-stream", "application/openmetrics-text"})


def complete(document: Document) -> None:
    shared: dict[str, Any] = {}
    for operation in operations(document):
        _complete_request(operation)
        operation["responses"] = dict(sorted(operation["responses"].items()))
        for code, response in operation["responses"].items():
            status = int(code)
            if status >= 400:
                operation["responses"][code] = _shared_error(status, response, shared)
            else:
                _complete_answer(operation, status, response, document)
    document["components"]["responses"] = dict(sorted(shared.items()))


def _complete_request(operation: Operation) -> None:
    example = EXAMPLES.get(operation["operationId"], {})
    values = {**PARAMETERS, **example.get("parameters", {})}
    for parameter in operation.get("parameters", ()):
        if parameter["required"] and parameter["name"] in values:
            parameter["example"] = values[parameter["name"]]
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        if "request" in example and kind != "application/octet-stream":
            media["example"] = deepcopy(example["request"])


def _complete_answer(operation: Operation, status: int, response: dict[str, Any], document: Document) -> None:
    name = operation["operationId"]
    example = EXAMPLES.get(name, {})
    whole = "again" if status == HTTPStatus.OK and "again" in example else "response"
    content = response.get("content", {})
    if response["description"] == "Successful Response":
        response["description"] = _description(content, document)
    if name in ETAGS:
        response["headers"] = {**response.get("headers", {}), **deepcopy(_ETAG)}
    for kind, media in content.items():
        part = "stream" if kind in _OTHERWISE else whole
        if part in example:
            media["example"] = deepcopy(example[part])


def _description(content: dict[str, Any], document: Document) -> str:
    """What the schema of an answer says of itself."""
    schemas = [media["schema"] for media in content.values()]
    name = schemas[0].get("$ref", "").rpartition("/")[2] if schemas else ""
    described = document["components"]["schemas"].get(name, {}).get("description")
    return described or ("The content." if content else "Done.")


def _shared_error(status: int, response: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """Where all say the same of an error, it is there once."""
    if status not in ERRORS:
        return response
    [(kind, media)] = response["content"].items()
    is_openai = media["schema"]["$ref"].endswith("OpenAIError")
    example = _openai_example(status) if is_openai else _problem_example(status)
    whole = {**response, "content": {kind: {**media, "example": example}}}
    if status in _ERROR_HEADERS:
        whole["headers"] = deepcopy(_ERROR_HEADERS[status])
    name = ("OpenAI" if is_openai else "") + ERRORS[status][0].replace(" ", "")
    return {"$ref": f"#/components/responses/{name}"} if shared.setdefault(name, whole) == whole else whole


def _problem_example(status: int) -> dict[str, Any]:
    title, slug, detail = ERRORS[status]
    example = {"type": TYPE_PREFIX + slug, "title": title, "status": status, "detail": detail, "request_id": _REQUEST}
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        place, _, msg = detail.partition(": ")
        example["errors"] = [{"loc": place.split("."), "msg": msg}]
    return example


def _openai_example(status: int) -> dict[str, Any]:
    _, slug, detail = ERRORS[status]
    kind = openai_errors.type_of(status)
    return {"error": {"message": detail, "type": kind, "param": None, "code": slug.replace("-", "_")}}
