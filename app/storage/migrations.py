"""Bringing a database to the newest revision, safely also when several replicas start at once."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

# Any fixed number: it names the lock that one replica migrates under while the others wait.
_LOCK = 0x7475726E

_PACKAGE = Path(__file__).resolve().parent.parent


async def upgrade(connection: AsyncConnection) -> None:
    """Migrate to the newest revision, in one transaction of the caller's."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    await connection.run_sync(_upgrade)


async def is_current(connection: AsyncConnection) -> bool:
    return await connection.run_sync(_revision) == _newest_revision()


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@cache  # Reads every migration.
def _newest_revision() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    # A checkout keeps the migrations beside the package, a wheel inside it.
    inside = _PACKAGE / "migrations"
    config.set_main_option("script_location", str(inside if inside.is_dir() else _PACKAGE.parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config
