"""What stands before every route, as pure ASGI: request ids, logs, what a URL may be, body limit."""

import re
import time
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from app.api.lingering import lingering
from app.api.problems import problem_of_status
from app.api.routes import route_of
from app.domain.errors import DomainError

log = structlog.get_logger()

REQUEST_ID = "X-Request-Id"
_MAX_REQUEST_ID_LENGTH = 128
_MEMORY_BODY = re.compile(r"/v1/memories/[^/]+/(archive|file)")


class RequestLog:
    """Gives each request an id, logs it by its route, and turns what nobody expected into a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get(REQUEST_ID))
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault(REQUEST_ID, request_id)  # An upstream may have set its own.
            await send(message)

        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            if status and isinstance(error.__cause__, DomainError):
                # Without its end the connection breaks, so that nobody takes the answer for whole.
                log.warning("answer_broken_off", cause=type(error.__cause__).__name__)
                return
            log.exception("request_crashed")
            if status:
                raise
            detail = f"Something unexpected went wrong; the log tells more about request {request_id}."
            await problem_of_status(scope, 500, detail)(scope, receive, send_with_id)
        finally:
            milliseconds = round((time.perf_counter() - started) * 1000, 1)
            log.info("request", method=scope["method"], route=route_of(scope), status=status, ms=milliseconds)
            structlog.contextvars.clear_contextvars()


class StrictUrl:
    """Refuses a URL that would be read as another one: a quoted `/` in an id, bytes that are not UTF-8."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (detail := self._fault(scope)):
            await problem_of_status(scope, 422, detail)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _fault(self, scope: Scope) -> str | None:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if b"%2f" in path.lower():
            return "An id holds no '/', not even a quoted one: it is a segment of the URL."
        try:
            unquote_to_bytes(path).decode()
            unquote_to_bytes(scope["query_string"]).decode()
        except UnicodeDecodeError:
            return "The URL holds bytes that are not UTF-8: percent-encode ids and words in UTF-8."
        return None


class BodyLimit:
    """Refuses a body that is announced as, or turns out, larger than the limit.

    What is put into a memory store may be as large as the store's own limits allow (`max_memory_bytes`, by the last
    segment of the path).
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_memory_bytes: Mapping[str, int]) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.max_memory_bytes = max_memory_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self._most(scope)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            refusal = problem_of_status(scope, 413, self._detail(most), {"Connection": "close"})
            await refusal(scope, receive, lingering(receive, send))
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, self._detail(most), {"Connection": "close"})
            return message

        await self.app(scope, limited, lingering(receive, send, lambda: received > most))

    def _most(self, scope: Scope) -> int:
        match = _MEMORY_BODY.fullmatch(scope["path"]) if scope["method"] == "PUT" else None
        return max(self.max_bytes, self.max_memory_bytes.get(match[1], 0) if match else 0)

    def _detail(self, most: int) -> str:
        return f"A request body has at most {most:,} bytes here; send less at once."


def _request_id(given: str | None) -> str:
    if given and len(given) <= _MAX_REQUEST_ID_LENGTH and given.isascii() and given.isprintable():
        return given
    return str(uuid7())
