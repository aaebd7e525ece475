"""`turnkeeper serve`: migrate, start, say where it listens."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

from app.api.chat_defaults import chat_defaults
from app.cli.database import database_url, migrated
from app.cli.server import Address, Server
from app.cli.workers import serve_by_workers
from app.config import PREFIX, Settings, SettingsError, is_loopback, load_settings
from app.main import create_app
from app.services.service_keys import KeyRing


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (TURNKEEPER_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (TURNKEEPER_PORT).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve (TURNKEEPER_WORKERS).")] = None,
) -> None:
    """Start the service; without TURNKEEPER_DATABASE_URL on a PostgreSQL of its own."""
    settings = load_settings(host=host, port=port, workers=workers)
    chat_defaults(settings)  # What is wrong in them is told once, before anything is migrated or any worker started.
    # uvicorn sends itself the signal again when it is done; its default would leave PostgreSQL running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(stderr=True)
    if settings.database_url is None:
        console.print(f"Starting PostgreSQL in {settings.data_dir.resolve()} …", soft_wrap=True)

    with database_url(settings) as url:
        has_keys = asyncio.run(_prepare(url, settings))

        def announce(address: Address) -> None:
            _announce(console, address, has_keys=has_keys)

        if settings.workers > 1:
            serve_by_workers(settings, url, announce)
        else:
            Server(create_app(settings, database_url=url), settings, announce).run()


async def _prepare(url: str, settings: Settings) -> bool:
    """Migrate; whether there are service keys. Raises SettingsError where none would guard a public address."""
    async with migrated(url, settings) as db:
        keys = KeyRing(db, [key.get_secret_value() for key in settings.api_keys])
        await keys.refresh()
    if keys.is_open and not is_loopback(settings.host):
        raise SettingsError(
            f"Without a service key only this machine may be served, not {settings.host!r}: set {PREFIX}API_KEYS, "
            f"make a key with `turnkeeper keys create`, or set {PREFIX}HOST to 127.0.0.1."
        )
    return not keys.is_open


def _announce(console: Console, address: Address, *, has_keys: bool) -> None:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    keys = "service keys are required" if has_keys else "no keys: only this machine is served"
    console.print(f"Turnkeeper listens on http://{host}:{address[1]} ({keys}).", soft_wrap=True)
    console.print(f"Try it in a browser: http://{host}:{address[1]}/docs", soft_wrap=True)
