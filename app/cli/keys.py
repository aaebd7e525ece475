"""`turnkeeper keys`: service keys that are made, listed and revoked while the service runs."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from app.cli.database import open_database
from app.config import load_settings
from app.services.service_keys import CACHE_SECONDS, make_key
from app.storage import credentials
from app.storage.credentials import ServiceKey
from app.storage.database import Database

Result = TypeVar("Result")

commands = typer.Typer(name="keys", help="Make, list and revoke service keys.", no_args_is_help=True)


@commands.command()
def create(name: Annotated[str, typer.Argument(help="What the key is for, such as the caller's name.")]) -> None:
    """Make a key and print it, this once: only its digest is kept."""
    key_id, key = _run(lambda db: make_key(db, name))
    Console(stderr=True).print(f"Key {key_id} ({name}). It is shown only now:", markup=False, soft_wrap=True)
    typer.echo(key)


@commands.command("list")
def list_keys() -> None:
    """List the keys, by how they begin."""
    table = Table("id", "name", "begins with", "created", "last used", "revoked", box=None)
    for key in _run(_all):
        instants = (_shown(key.created_at), _shown(key.last_used_at), _shown(key.revoked_at))
        table.add_row(key.id, key.name, f"{key.prefix}…", *instants)
    Console(width=200).print(table, markup=False)


@commands.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `list` shows.")]) -> None:
    """Revoke a key."""

    async def run(db: Database) -> bool:
        async with db.transaction() as connection:
            return await credentials.revoke_key(connection, key_id)

    if not _run(run):
        raise typer.BadParameter(f"There is no key {key_id!r} that is not revoked: `turnkeeper keys list` shows all.")
    Console(stderr=True).print(f"Revoked: within {CACHE_SECONDS} seconds no replica lets it in.")


async def _all(db: Database) -> list[ServiceKey]:
    async with db.transaction() as connection:
        return await credentials.keys(connection)


def _run(work: Callable[[Database], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with open_database(load_settings()) as db:
            return await work(db)

    return asyncio.run(run())


def _shown(instant: datetime | None) -> str:
    return "–" if instant is None else instant.strftime("%Y-%m-%d %H:%M UTC")
