"""The tools over the Model Context Protocol, at one path: who calls, and on what, before the protocol begins.

The credential decides what is reached; no tool has a parameter for it. Nothing is kept between requests, so that any
replica answers any of them.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import id_headers, mcp_errors
from app.api.access import Need, caller_of
from app.api.dependencies import Services
from app.domain import ids, json_values
from app.domain.errors import Fault, InvalidInput
from app.services.offered_tools import Reach, reach_of

_EXAMPLE = 'Send one request or notification, such as {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}.'


class McpEndpoint:
    """Takes one JSON-RPC message a request, and answers it with JSON."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._server: Any = None  # app.api.mcp_server.McpServer
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        _require_json(request)
        reach = await self._reach(request)
        body = await request.body()
        if refusal := _refusal(scope, body):
            await refusal(scope, receive, send)
            return
        handle = (await self._loaded()).handler(reach)
        await handle(scope, _again(body, receive), send)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _reach(self, request: Request) -> Reach:
        """Raises InvalidInput, NotYours, NotOwner, SessionNotFound."""
        user_id = id_headers.decoded(id_headers.USER_ID, request.headers.get(id_headers.USER_ID))
        session_id = id_headers.decoded(id_headers.SESSION_ID, request.headers.get(id_headers.SESSION_ID))
        _check_ids({id_headers.USER_ID: user_id, id_headers.SESSION_ID: session_id})
        return await reach_of(self._services.db, caller_of(request), user_id=user_id, session_id=session_id)

    async def _loaded(self) -> Any:
        """The protocol, which takes half a second to import: who does not use it starts without."""
        async with self._loading:
            if self._server is None:
                module = await asyncio.to_thread(_import)
                self._server = module.McpServer(self._services)
        return self._server


class McpRoute(Route):
    """`need`: what the caller needs to be let in at all; each tool needs its scope."""

    need: Need = "any"

    def __init__(self, endpoint: ASGIApp) -> None:
        super().__init__(mcp_errors.PATH, endpoint, methods=["POST"], include_in_schema=False)


def _import() -> Any:
    from app.api import mcp_server  # noqa: PLC0415

    return mcp_server


def _refusal(scope: Scope, body: bytes) -> Response | None:
    """Of what is no message: the SDK would quote it."""
    try:
        message = json_values.decode(body)
    except json_values.InvalidJson as error:
        return mcp_errors.no_message(scope, mcp_errors.PARSE_ERROR, str(error))
    if _is_message(message):
        return None
    return mcp_errors.no_message(scope, mcp_errors.INVALID_REQUEST, _EXAMPLE)


def _require_json(request: Request) -> None:
    """The SDK would refuse it too, in plain text."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"Send JSON (Content-Type: application/json), not {kind or 'nothing'!r}.")


def _is_message(message: Any) -> bool:
    """A request, or a notification, which has no id: one of another kind would go unanswered as if it had none."""
    return (
        isinstance(message, dict)
        and message.get("jsonrpc") == "2.0"
        and isinstance(message.get("method"), str)
        and isinstance(message.get("params", {}), dict)
        and type(message.get("id", "")) in {str, int}
    )


def _check_ids(given: Mapping[str, str | None]) -> None:
    checks = {id_headers.USER_ID: ids.fault_of_user_id, id_headers.SESSION_ID: ids.fault_of_id}
    found = {name: None if value is None else checks[name](value) for name, value in given.items()}
    faults = [Fault(("header", name), fault) for name, fault in found.items() if fault]
    if faults:
        raise InvalidInput(*faults)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what comes after it."""
    read = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return read.pop() if read else await receive()

    return next_message
