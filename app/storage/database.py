"""Connections: a pool for the short statements of the log, and one for searches."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import Any

import asyncpg
from sqlalchemy import Executable, text
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.domain.errors import Overloaded, SearchTooBroad
from app.domain.observer import UNOBSERVED, Observer
from app.storage import fitness, migrations
from app.storage.addresses import Address
from app.storage.meanings import translated
from app.storage.pools import Pool, PoolFigures

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
        """Raises DatabaseUnusable for a URL that is none."""
        address = Address.of(url)

        def engine(size: int, timeout_ms: int, **parameters: str) -> AsyncEngine:
            return _engine(address, size, pool_timeout, timeout_ms, parameters)

        # Through a transaction-mode PgBouncer a statement is prepared and run on one server only within one.
        def one_by_one(engine: AsyncEngine) -> Callable[[], AbstractAsyncContextManager[AsyncConnection]]:
            if not address.has_prepared_statements:
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
        with translated(canceled=Overloaded):
            async with self._log_pool.lend(self._log.begin) as connection:
                yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """Statements that each commit by themselves: one round trip instead of three."""
        with translated(canceled=Overloaded):
            async with self._log_pool.lend(self._connect_log) as connection:
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Reads of the log that an index bounds, or nearly so."""
        with translated(canceled=SearchTooBroad):
            async with self._log_pool.lend(self._connect_log) as connection:
                yield connection

    @asynccontextmanager
    async def searching(self) -> AsyncIterator[AsyncConnection]:
        """Reads whose cost depends on the words that are looked for."""
        with translated(canceled=SearchTooBroad):
            async with self._search_pool.lend(self._connect_search) as connection:
                yield connection

    async def migrate(self) -> None:
        """Raises DatabaseUnavailable, DatabaseUnusable, MigrationError."""
        with translated(canceled=Overloaded), fitness.told():
            await fitness.check(self._unlimited)
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
    address: Address, size: int, pool_timeout: float, statement_timeout_ms: int, parameters: dict[str, str]
) -> AsyncEngine:
    return create_async_engine(
        address.url,
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
            **address.connect_arguments(),
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


def _as_it_is(value: str) -> str:
    return value
