"""Connections: a pool for the short statements of the log, one for searches, and what errors mean."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any

import asyncpg
from sqlalchemy import URL, Executable, make_url, text
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from uuid_utils import uuid7

from app.domain.errors import DatabaseUnavailable, DomainError, EventIdTaken, Overloaded, SearchTooBroad
from app.domain.observer import UNOBSERVED, Observer
from app.storage import migrations
from app.storage.pools import Pool, PoolFigures

_QUERY_CANCELED = "57014"
_LOCK_NOT_AVAILABLE = "55P03"
# Ids of events are the only names that a statement may find taken.
_UNIQUE_VIOLATION = "23505"
# Connection exceptions, a server that stops or starts, too many connections, no access, no such database.
_UNAVAILABLE = ("08", "57P", "53300", "28", "3D")


_AUTOCOMMIT = "AUTOCOMMIT"
_DIALECT: Any = PGDialect_asyncpg()  # type: ignore[no-untyped-call]

# Plans that are made once have to be right for a log of any length, also when it was empty as they were made.
_BY_INDEX = {"plan_cache_mode": "force_generic_plan", "enable_bitmapscan": "off"}
_BY_WORDS = {"plan_cache_mode": "force_custom_plan"}

# What the layers above pass on to storage without looking into it.
Connection = AsyncConnection


async def fetch(connection: Connection, statement: Executable, parameters: dict[str, Any]) -> Sequence[Any]:
    """The rows of a statement that is run often and was kept for that, each a mapping.

    Where each statement commits by itself they come from the driver, past SQLAlchemy: that takes 0.1 ms of the
    processor instead of 0.3, which was a third of an append.
    """
    used = connection.sync_connection
    if used is None or used.get_execution_options().get("isolation_level") != _AUTOCOMMIT:
        return (await connection.execute(statement, parameters)).mappings().all()
    driver: asyncpg.Connection = used.connection.driver_connection
    sql, names, values = _compiled(statement)
    values = values | parameters
    try:
        rows: Sequence[Any] = await driver.fetch(sql, *[values[name] for name in names])
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        if driver.is_closed():
            # SQLAlchemy has to find out by itself, to make new connections of all that are in the pool.
            await connection.execute(text("SELECT 1"))
        raise
    return rows


@lru_cache(maxsize=512)
def _compiled(statement: Any) -> tuple[str, list[str], dict[str, Any]]:
    compiled = statement.compile(dialect=_DIALECT)
    return str(compiled), list(compiled.positiontup), dict(compiled.params)


class Database:
    """Two pools on one PostgreSQL.

    Searches have a pool of their own for two reasons: a slow one never keeps an append waiting, and they are planned
    in another way, which is a setting of the connection. Their plans have to see the words: a cached generic plan
    took 107 to 127 ms for a common word instead of 1 ms. What else is asked of the log goes by an index, whatever is
    asked for: planning it anew each time took longer than doing it (an append: 2.2 ms instead of 1.2).
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int,
        pool_timeout: float,
        statement_timeout_ms: int,
        observer: Observer = UNOBSERVED,
    ) -> None:
        def engine(size: int, timeout_ms: int, **parameters: str) -> AsyncEngine:
            return _engine(_asyncpg_url(url), size, pool_timeout, timeout_ms, parameters)

        # Through a transaction-mode PgBouncer a statement is prepared and run on one server only within one.
        def one_by_one(engine: AsyncEngine) -> Callable[[], AbstractAsyncContextManager[AsyncConnection]]:
            if _has_no_prepared_statements(_asyncpg_url(url)):
                return engine.begin
            return engine.execution_options(isolation_level=_AUTOCOMMIT).connect

        self._log = engine(pool_size, statement_timeout_ms, **_BY_INDEX)
        self._search = engine(max(2, pool_size // 2), statement_timeout_ms, **_BY_WORDS)
        self._connect_log, self._connect_search = one_by_one(self._log), one_by_one(self._search)
        # For migrations: one connection holds their lock, another makes them.
        self._unlimited = engine(2, 0)
        self._log_pool = Pool(name="log", engine=self._log, observer=observer)
        self._search_pool = Pool(name="search", engine=self._search, observer=observer)
        self.statement_timeout = statement_timeout_ms / 1000

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Several statements that commit together when the block ends: the only commit point."""
        with _translated(canceled=Overloaded):
            async with self._log_pool.lend(self._log.begin) as connection:
                yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """Statements that each commit by themselves: one round trip instead of three."""
        with _translated(canceled=Overloaded):
            async with self._log_pool.lend(self._connect_log) as connection:
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Reads of the log that an index bounds, or nearly so."""
        with _translated(canceled=SearchTooBroad):
            async with self._log_pool.lend(self._connect_log) as connection:
                yield connection

    @asynccontextmanager
    async def searching(self) -> AsyncIterator[AsyncConnection]:
        """Reads whose cost depends on the words that are looked for."""
        with _translated(canceled=SearchTooBroad):
            async with self._search_pool.lend(self._connect_search) as connection:
                yield connection

    async def migrate(self) -> None:
        with _translated(canceled=Overloaded):
            await migrations.upgrade(self._unlimited)

    async def is_migrated(self) -> bool:
        async with self.autocommit() as connection:
            return await migrations.is_current(connection)

    async def finds_non_ascii_words(self) -> bool:
        """Whether this database has trigrams for words outside ASCII (UTF-8, and an LC_CTYPE other than C)."""
        async with self.autocommit() as connection:
            trigrams = await connection.scalar(text("SELECT show_trgm('слово 記憶')"))
            return bool(trigrams)

    def pools(self) -> dict[str, PoolFigures]:
        return {pool.name: pool.figures for pool in (self._log_pool, self._search_pool)}

    async def close(self) -> None:
        for engine in (self._log, self._search, self._unlimited):
            await engine.dispose()


def _engine(
    url: URL, size: int, pool_timeout: float, statement_timeout_ms: int, parameters: dict[str, str]
) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=size,
        max_overflow=0,
        pool_timeout=pool_timeout,
        hide_parameters=True,  # What people wrote has no place in an error, nor in a log.
        json_serializer=_as_it_is,
        json_deserializer=_as_it_is,
        connect_args={
            "timeout": pool_timeout,
            # The server ends a statement in time, unless it is frozen or the network swallows what it says.
            "command_timeout": statement_timeout_ms / 1000 + pool_timeout if statement_timeout_ms else None,
            **_prepared_statements(url),
            "server_settings": {
                "application_name": "turnkeeper",
                "statement_timeout": str(statement_timeout_ms),
                # Compiling a statement costs more than these statements take.
                "jit": "off",
                # A table holds what everybody said: nobody's events are looked for in all of it, nor by several
                # processes (a word of two characters took 550 ms so).
                "enable_seqscan": "off",
                "max_parallel_workers_per_gather": "0",
                **parameters,
            },
        },
    )


def _has_no_prepared_statements(url: URL) -> bool:
    return url.query.get("prepared_statement_cache_size") == "0"


def _prepared_statements(url: URL) -> dict[str, Any]:
    """With its cache turned off in the URL, nothing may rely on two statements reaching the same server.

    That is PgBouncer in transaction mode: unnamed names would clash there, and asyncpg has a cache of its own.
    """
    if not _has_no_prepared_statements(url):
        return {}
    return {"statement_cache_size": 0, "prepared_statement_name_func": lambda: f"turnkeeper_{uuid7()}"}


def _asyncpg_url(url: str) -> URL:
    parsed = make_url(url).set(drivername="postgresql+asyncpg")
    if "sslmode" in parsed.query:  # libpq's name for what asyncpg calls ssl
        mode = parsed.query["sslmode"]
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return parsed


@contextmanager
def _translated(*, canceled: Callable[[], DomainError]) -> Iterator[None]:
    """Turn what a driver raises into what it means for a caller; what has no meaning here passes."""
    try:
        yield
    except PoolTimeoutError:
        raise Overloaded from None
    except asyncpg.InternalClientError as error:
        raise DatabaseUnavailable from error
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        if (meaning := _meaning(error, canceled)) is None:
            raise
        raise meaning from error


def _meaning(error: Exception, canceled: Callable[[], DomainError]) -> DomainError | None:
    if isinstance(error, OSError) or getattr(error, "connection_invalidated", False):
        return DatabaseUnavailable()
    state = str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")
    if state == _QUERY_CANCELED:
        return canceled()
    if state == _LOCK_NOT_AVAILABLE:
        return Overloaded()
    if state == _UNIQUE_VIOLATION:
        return EventIdTaken()
    if state.startswith(_UNAVAILABLE) or isinstance(error, asyncpg.InterfaceError):
        return DatabaseUnavailable()
    return None


def _as_it_is(value: str) -> str:
    return value
