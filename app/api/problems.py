"""Errors over HTTP: the one table from what went wrong to status and problem type (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import compile_path

from app.api import mcp_errors, openai_errors
from app.domain import errors, json_values
from app.telemetry import sqlstate_of

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:turnkeeper:problem:"

# Anything that is not listed is a fault of the service: 500.
PROBLEMS: Mapping[type[Exception], tuple[int, str]] = {
    errors.InvalidInput: (422, "invalid-request"),
    errors.Unauthorized: (401, "unauthorized"),
    errors.NotYours: (403, "forbidden"),
    errors.ScopeMissing: (403, "scope-missing"),
    errors.ServiceKeyNeeded: (403, "service-key-needed"),
    errors.TokensNotConfigured: (503, "tokens-not-configured"),
    errors.SessionNotFound: (404, "session-not-found"),
    errors.SessionGone: (404, "session-not-found"),
    errors.EventNotFound: (404, "event-not-found"),
    errors.ToolNotFound: (404, "tool-not-found"),
    errors.SessionExists: (409, "session-exists"),
    errors.NotOwner: (403, "not-owner"),
    errors.EventConflict: (409, "event-conflict"),
    errors.EventIdTaken: (409, "event-conflict"),
    errors.SessionIdMissing: (400, "session-id-missing"),
    errors.SessionBusy: (409, "session-busy"),
    errors.TurnLost: (409, "session-busy"),
    errors.TooManyWaiting: (409, "session-busy"),
    errors.CallAnswered: (409, "call-answered"),
    errors.CallAbandoned: (409, "call-abandoned"),
    errors.CallUnknown: (422, "call-unknown"),
    errors.CallsUnanswered: (422, "calls-unanswered"),
    errors.ContextTooLarge: (413, "context-too-large"),
    errors.VersionMismatch: (412, "version-mismatch"),
    errors.SystemMessagesRefused: (422, "system-messages-refused"),
    errors.TooManyEvents: (422, "too-many-events"),
    errors.SearchTooBroad: (422, "search-too-broad"),
    errors.MemoryRefused: (422, "memory-refused"),
    errors.FileNotFound: (404, "file-not-found"),
    errors.FileVersionNotFound: (404, "file-version-not-found"),
    errors.FileVersionMismatch: (412, "version-mismatch"),
    errors.PlanRefused: (409, "plan-refused"),
    errors.ModelNotAllowed: (422, "model-not-allowed"),
    errors.UpstreamRefused: (502, "upstream-refused"),  # It is passed on with the upstream's own status.
    errors.UpstreamFailed: (502, "upstream-failed"),
    errors.UpstreamTimedOut: (504, "upstream-timed-out"),
    errors.UpstreamNotConfigured: (503, "upstream-not-configured"),
    errors.ServiceStopping: (503, "service-stopping"),
    errors.Overloaded: (503, "overloaded"),
    errors.DatabaseUnavailable: (503, "database-unavailable"),
    errors.NotMigrated: (503, "not-migrated"),
}

# Problems that the framework finds before a handler is reached.
SLUG_OF_STATUS = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "unsupported-media-type",
    421: "wrong-host",
    422: "invalid-request",
    429: "rate-limited",
    500: "internal-error",
}


def problem(
    scope: Mapping[str, Any],
    status: int,
    slug: str,
    detail: str,
    *,
    faults: Sequence[errors.Fault] = (),
    headers: Mapping[str, str] | None = None,
    **also: Any,
) -> Response:
    """A problem document, OpenAI's error where its SDKs call, or JSON-RPC's for MCP.

    `errors` lists the places of a wrong input.
    """
    if openai_errors.wants(scope):
        return openai_errors.error(scope, status, slug, detail, faults=faults, headers=headers, **also)
    body = _document(scope, status, slug, detail, faults) | also
    if mcp_errors.wants(scope):
        return mcp_errors.error(body, headers)
    return Response(json_values.encode(body), status, headers, MEDIA_TYPE)


def _document(
    scope: Mapping[str, Any], status: int, slug: str, detail: str, faults: Sequence[errors.Fault]
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + slug,
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "request_id": scope.get("state", {}).get("request_id", ""),
    }
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        body["errors"] = [{"loc": list(fault.loc), "msg": _encodable(fault.msg)} for fault in faults] or [
            {"loc": [], "msg": detail}
        ]
    return body


def problem_of_status(
    scope: Mapping[str, Any], status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    return problem(scope, status, SLUG_OF_STATUS.get(status, "error"), detail, headers=headers)


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.DomainError, _domain_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _client_gone)


async def _domain_error(request: Request, error: Exception) -> Response:
    if isinstance(error, errors.UpstreamRefused):
        return _refused_by_upstream(request, error)
    return problem_of_error(request.scope, error)


def problem_of_error(scope: Mapping[str, Any], error: Exception) -> Response:
    """What a domain error looks like over HTTP."""
    status, slug = _kind(error)
    faults = _faults(error)
    headers = _HEADERS.get(status)
    also = {"call_ids": list(map(_encodable, error.call_ids))} if isinstance(error, _ABOUT_CALLS) else {}
    return problem(scope, status, slug, _encodable(str(error)), faults=faults, headers=headers, **also)


def described(scope: Mapping[str, Any], error: Exception) -> Mapping[str, Any]:
    """The problem document of a domain error."""
    return _document(scope, *_kind(error), _encodable(str(error)), _faults(error))


def _kind(error: Exception) -> tuple[int, str]:
    status, slug = PROBLEMS.get(type(error), (500, "internal-error"))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        cause = error.__cause__
        log.warning("request_failed", problem=slug, cause=type(cause).__name__, sqlstate=sqlstate_of(cause))
    return status, slug


_HEADERS: Mapping[int, Mapping[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
_ABOUT_CALLS = (errors.CallAnswered, errors.CallAbandoned, errors.CallUnknown, errors.CallsUnanswered)


def _refused_by_upstream(request: Request, error: errors.UpstreamRefused) -> Response:
    """The upstream's own status and words; to OpenAI's SDKs its own body, as it came."""
    log.warning("upstream_refused", status=error.status)
    if openai_errors.wants(request.scope) and openai_errors.is_error(error.body):
        return Response(error.body, error.status, error.headers)
    headers = {name: value for name, value in error.headers.items() if name != "content-type"}
    return problem(request.scope, error.status, "upstream-refused", _encodable(str(error)), headers=headers)


async def _invalid_request(request: Request, error: Exception) -> Response:
    faults = [_fault(item) for item in cast("RequestValidationError", error).errors()]
    detail = "; ".join(f"{'.'.join(map(str, fault.loc))}: {fault.msg}" for fault in faults)
    return problem(request.scope, 422, "invalid-request", _encodable(detail), faults=faults)


async def _http_exception(request: Request, error: Exception) -> Response:
    exception = cast("HTTPException", error)
    detail = exception.detail
    if exception.status_code == HTTPStatus.NOT_FOUND and openai_errors.wants(request.scope):
        detail = openai_errors.not_offered(request.url.path)
    elif exception.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"There is no {request.url.path} here; /docs lists what there is."
    elif exception.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods_of_path(request)) or (exception.headers or {}).get("Allow", "")
        detail = f"{request.url.path} does not take {request.method}, only {allowed}."
        return problem_of_status(request.scope, exception.status_code, _encodable(detail), {"Allow": allowed})
    return problem_of_status(request.scope, exception.status_code, _encodable(detail), exception.headers)


def _methods_of_path(request: Request) -> list[str]:
    """Of all routes of the path: the framework names those of the first one alone."""
    paths = request.app.openapi()["paths"]
    taken = {
        method.upper()
        for template, methods in paths.items()
        if compile_path(template)[0].fullmatch(request.url.path)
        for method in methods
    }
    return sorted(taken)


async def _client_gone(request: Request, _: Exception) -> Response:
    """Nobody reads this but the log."""
    return problem_of_status(request.scope, 400, "The connection was closed before the whole body had come.")


def _faults(error: Exception) -> Sequence[errors.Fault]:
    if isinstance(error, errors.InvalidInput):
        return error.faults
    if isinstance(error, errors.SystemMessagesRefused):
        return [errors.Fault(("body", "events", at, "message", "role"), str(error)) for at in error.places]
    return ()


def _fault(item: Mapping[str, Any]) -> errors.Fault:
    if item["type"] == "json_invalid":
        return errors.Fault(("body",), item["ctx"]["error"])
    if item["type"] == "extra_forbidden":
        return errors.Fault(tuple(map(_encodable_place, item["loc"])), "This field is unknown.")
    return errors.Fault(tuple(map(_encodable_place, item["loc"])), item["msg"].removeprefix("Value error, "))


def _encodable_place(place: str | int) -> str | int:
    return _encodable(place) if isinstance(place, str) else place


def _encodable(text: str) -> str:
    """An error body must itself be encodable, whatever it quotes."""
    return text.encode("utf-8", "replace").decode()
