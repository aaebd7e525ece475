"""The HTTP server of one process: uvicorn, which ends the answers that take too long to end when it stops."""

import asyncio
import math
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from app.api.dependencies import Services
from app.cli.slow_clients import PatientProtocol
from app.config import Settings

# For storing what was interrupted at the end of the grace period, before connections are cut.
LAST_SECONDS = 5

Address = tuple[str, int]


def server_config(app: FastAPI | str, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=PatientProtocol.of(settings.client_timeout_seconds),
        ws="none",  # An upgrade is ignored; a library that happens to be installed would answer it by itself.
        log_config=None,
        access_log=False,  # The service logs its requests itself, by route and without ids.
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace_seconds) + LAST_SECONDS,
    )


class Server(uvicorn.Server):
    """uvicorn, telling where it listens once it does."""

    def __init__(self, app: FastAPI, settings: Settings, listens: Callable[[Address], None]) -> None:
        super().__init__(server_config(app, settings))
        self._app = app
        self._settings = settings
        self._listens = listens

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._settings.shutdown_grace_seconds, self._stop_chats)
        await super().shutdown(sockets)
        timer.cancel()

    def _stop_chats(self) -> None:
        services: Services = self._app.state.services
        services.chat.stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for listener in server.sockets:
                self._listens(listener.getsockname())
