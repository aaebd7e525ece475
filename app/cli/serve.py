"""`turnkeeper serve`: migrate, start, say where it listens."""

import asyncio
import math
import signal
import socket
import sys
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI
from rich.console import Console

from app.api.dependencies import Services
from app.cli.database import database_url, migrate
from app.config import Settings, load_settings
from app.main import create_app

# For storing what was interrupted at the end of the grace period, before connections are cut.
_LAST_SECONDS = 5


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (TURNKEEPER_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (TURNKEEPER_PORT).")] = None,
) -> None:
    """Start the service; without TURNKEEPER_DATABASE_URL on a PostgreSQL of its own."""
    settings = load_settings(host=host, port=port)
    # uvicorn sends itself the signal again when it is done; its default would leave PostgreSQL running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(stderr=True)
    if settings.database_url is None:
        console.print(f"Starting PostgreSQL in {settings.data_dir.resolve()} …", soft_wrap=True)
    with database_url(settings) as url:
        asyncio.run(migrate(url, settings))
        _Server(create_app(settings, database_url=url), console, settings).run()


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="httptools",
        log_config=None,
        access_log=False,  # The service logs its requests itself, by route and without ids.
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace_seconds) + _LAST_SECONDS,
    )


class _Server(uvicorn.Server):
    """uvicorn, saying where it listens once it does."""

    def __init__(self, app: FastAPI, console: Console, settings: Settings) -> None:
        super().__init__(_config(app, settings))
        self._app = app
        self._console = console
        self._settings = settings

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
                self._announce(listener.getsockname())

    def _announce(self, address: tuple[str, int]) -> None:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        keys = "service keys are required" if self._settings.api_keys else "no keys: only this machine is served"
        self._console.print(f"Turnkeeper listens on http://{host}:{address[1]} ({keys}).", soft_wrap=True)
        self._console.print(f"Try it in a browser: http://{host}:{address[1]}/docs", soft_wrap=True)
