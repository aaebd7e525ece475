"""Delivering a chat's answer as pure ASGI: chunks go out as they come, a client that leaves is noticed at once."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.domain.chat import ChatRequest, Report
from app.domain.errors import ServiceStopping
from app.services.chat import Chat, Reply
from app.services.live_reply import error_event
from app.services.turns import ClientGone

log = structlog.get_logger()

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Delivery(Response):
    """What a chat answers. The whole cycle runs while it is sent, so that a client that leaves ends all of it.

    `patience`: seconds after which a client that takes nothing is gone.
    """

    def __init__(self, chat: Chat, request: ChatRequest, *, patience: float) -> None:
        super().__init__()
        self._chat = chat
        self._request = request
        self._patience = patience
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _watched(receive) as gone:
            try:
                async with self._chat.answering(self._request, gone) as reply:
                    await _until(gone, self._chat.stopping, self._deliver(reply, scope, receive, send))
            except ClientGone:
                log.info("client_gone")
            except ServiceStopping as error:
                if not self._has_begun:
                    raise
                await send({"type": "http.response.body", "body": error_event(error)})

    async def _deliver(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        report = _headers(reply.report)
        if not self._request.streamed:
            answer = await reply.whole()
            await Response(answer.body, headers={**answer.headers, **report})(scope, receive, send)
            return
        headers = {**await reply.open(), **report, **_STREAM_HEADERS}
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        self._has_begun = True
        await send({"type": "http.response.start", "status": 200, "headers": pairs})

        async def emit(piece: bytes) -> None:
            try:
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError as error:
                raise ClientGone from error

        await reply.pump(emit)
        await send({"type": "http.response.body", "body": b""})


def _headers(report: Report) -> dict[str, str]:
    return {
        "X-Session-Id": quote(report.session_id, safe=""),
        "X-Event-Version": str(report.event_version),
        "X-Turnkeeper-Events": ",".join(quote(event_id, safe="") for event_id in report.event_ids),
        "X-Turnkeeper-Reply-Event": quote(report.reply_id, safe=""),
        "X-Turnkeeper-Context": f"events={report.history_events};tokens={report.history_tokens}",
    }


@asynccontextmanager
async def _watched(receive: Receive) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the client goes away; the body was read before, so nothing else can come."""
    gone = asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _until(gone: asyncio.Event, stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or give it up when the client is gone or the service stops, letting it put away what it has.

    Raises ClientGone, ServiceStopping.
    """
    task = asyncio.create_task(work)
    ends = [asyncio.create_task(event.wait()) for event in (gone, stopping)]
    try:
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise ClientGone if gone.is_set() else ServiceStopping
    task.result()
