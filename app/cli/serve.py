"""`turnkeeper serve`: migrate, start, say where it listens."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

from app.cli.database import database_url, migrate
from app.cli.server import Address, Server
from app.cli.workers import serve_by_workers
from app.config import Settings, load_settings
from app.main import create_app


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (TURNKEEPER_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (TURNKEEPER_PORT).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve (TURNKEEPER_WORKERS).")] = None,
) -> None:
    """Start the service; without TURNKEEPER_DATABASE_URL on a PostgreSQL of its own."""
    settings = load_settings(host=host, port=port, workers=workers)
    # uvicorn sends itself the signal again when it is done; its default would leave PostgreSQL running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(stderr=True)
    if settings.database_url is None:
        console.print(f"Starting PostgreSQL in {settings.data_dir.resolve()} …", soft_wrap=True)

    def announce(address: Address) -> None:
        _announce(console, settings, address)

    with database_url(settings) as url:
        asyncio.run(migrate(url, settings))
        if settings.workers > 1:
            serve_by_workers(settings, url, announce)
        else:
            Server(create_app(settings, database_url=url), settings, announce).run()


def _announce(console: Console, settings: Settings, address: Address) -> None:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    keys = "service keys are required" if settings.api_keys else "no keys: only this machine is served"
    console.print(f"Turnkeeper listens on http://{host}:{address[1]} ({keys}).", soft_wrap=True)
    console.print(f"Try it in a browser: http://{host}:{address[1]}/docs", soft_wrap=True)
