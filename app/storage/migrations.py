"""Bringing a database to the newest revision while others serve from it, also when several replicas start at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# Any fixed number: it names the lock that one replica migrates under while the others wait.
_LOCK = 0x7475726E
_LOCK_NOT_AVAILABLE = "55P03"
_BETWEEN_TURNS_SECONDS = 0.1
# A migration gives up its place in a table's queue soon, as all later statements wait behind it: it tries again.
_PAUSES_SECONDS = (0.5, 1, 2, 4, 8, 8, 8, 8)

_PACKAGE = Path(__file__).resolve().parent.parent

log = structlog.get_logger()


class MigrationError(Exception):
    """The database cannot be migrated; the message says why and what to do."""


async def upgrade(engine: AsyncEngine) -> None:
    """Migrate to the newest revision, each in a transaction of its own. Raises MigrationError.

    A database that a newer release has migrated already stays as it is: that release keeps it fit for this one.
    """
    async with _turn(engine) as guard:
        revision = await guard.run_sync(_revision)
        if _is_newer(revision):
            log.warning("database_is_newer", revision=revision, newest_known=_known()[-1])
        elif revision is not None and revision not in _known():
            raise MigrationError(
                f"The database is at revision {revision!r}, which is none of Turnkeeper's: use a database of its own."
            )
        elif revision != _known()[-1]:
            await _upgrade_patiently(engine)


async def is_current(connection: AsyncConnection) -> bool:
    """Whether this release can serve from the database: it is at the newest revision, or a newer release's."""
    revision = await connection.run_sync(_revision)
    return revision == _known()[-1] or _is_newer(revision)


@asynccontextmanager
async def _turn(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """One replica migrates while the others ask again and again.

    They do not wait in a statement: its snapshot would be waited for by CREATE INDEX CONCURRENTLY, for ever.
    """
    while True:
        async with engine.begin() as guard:
            if await guard.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": _LOCK}):
                await guard.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                yield guard
                return
        await asyncio.sleep(_BETWEEN_TURNS_SECONDS)


async def _upgrade_patiently(engine: AsyncEngine) -> None:
    for pause in _PAUSES_SECONDS:
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(_upgrade)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
        log.warning("migration_waits_for_a_lock", seconds=pause)
        await asyncio.sleep(pause)
    raise MigrationError(
        "A long transaction holds a table that a migration has to change: end it "
        "(pg_stat_activity shows it), then start again. What served before still does."
    )


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_newer(revision: str | None) -> bool:
    return revision is not None and revision.isdigit() and revision > _known()[-1]


@cache  # Reads every migration.
def _known() -> list[str]:
    """All revisions, the newest last: numbers of four digits, so that a release can tell that another's is newer."""
    return sorted(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _config() -> Config:
    config = Config()
    # A checkout keeps the migrations beside the package, a wheel inside it.
    inside = _PACKAGE / "migrations"
    config.set_main_option("script_location", str(inside if inside.is_dir() else _PACKAGE.parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config
