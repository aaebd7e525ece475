"""Tells the observer of every request, whatever becomes of it. Pure ASGI."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.routes import route_of
from app.domain.observer import Observer


class Observing:
    def __init__(self, app: ASGIApp, *, observer: Observer) -> None:
        self.app = app
        self.observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.observer.request_began()
        try:
            await self.app(scope, receive, watched)
        finally:
            seconds = time.perf_counter() - started
            self.observer.request_ended(scope["method"], route_of(scope), status, seconds)
