"""The database of a command: the configured one, or the embedded one, which is started if it does not run."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from app.config import Settings
from app.storage.database import Database
from app.storage.embedded import EmbeddedPostgres
from app.storage.embedded_host import EmbeddedPostgresError

log = structlog.get_logger()

DATABASE_NAME = "turnkeeper"


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """The URL to use within the block. Raises EmbeddedPostgresError."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    with EmbeddedPostgres.start(settings.data_dir, parameters=_parameters(settings)) as server:
        server.ensure_database(DATABASE_NAME)
        with _kept_alive(server):
            yield server.database_url(DATABASE_NAME)


@contextmanager
def _kept_alive(server: EmbeddedPostgres) -> Iterator[None]:
    """Nobody else starts an embedded server again that was killed, or ended as its disk was full."""
    stopping = threading.Event()
    watching = threading.Thread(target=_revive, args=(server, stopping), daemon=True)
    watching.start()
    try:
        yield
    finally:
        stopping.set()
        watching.join()


def _revive(server: EmbeddedPostgres, stopping: threading.Event) -> None:
    pause = 1.0
    while not stopping.wait(pause):
        try:
            if server.revive():
                log.error("embedded_postgresql_started_again", log=str(server.data_dir / "postgres.log"))
            pause = 1.0
        except (EmbeddedPostgresError, OSError) as error:
            log.error("embedded_postgresql_does_not_start", reason=str(error).splitlines()[0])  # noqa: TRY400
            pause = min(60.0, 2 * pause)


def _parameters(settings: Settings) -> dict[str, str]:
    """As many connections as all pools of all workers may open, and some for other commands."""
    wanted = settings.workers * (2 * settings.pool_size + 4) + 20
    return {"max_connections": str(max(100, wanted))}


async def migrate(url: str, settings: Settings) -> None:
    """Bring a database to the newest revision. Raises DatabaseUnavailable."""
    async with migrated(url, settings):
        pass


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """The migrated database of the settings. Raises EmbeddedPostgresError, DatabaseUnavailable."""
    with database_url(settings) as url:
        async with migrated(url, settings) as db:
            yield db


@asynccontextmanager
async def migrated(url: str, settings: Settings) -> AsyncIterator[Database]:
    """A database, brought to the newest revision. Raises DatabaseUnavailable."""
    db = Database(
        url,
        pool_size=settings.pool_size,
        pool_timeout=settings.pool_timeout_seconds,
        statement_timeout_ms=settings.statement_timeout_ms,
    )
    try:
        await db.migrate()
        yield db
    finally:
        await db.close()
