"""One pool of connections, and who waits for one of them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.domain.observer import Observer
from app.storage.meanings import READ_ONLY, sqlstate_of

Connect = Callable[[], AbstractAsyncContextManager[AsyncConnection]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """Connections of one pool: how many it may open and how many are in use."""

    size: int
    in_use: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The connections of an engine, under a name that figures are told by."""

    name: str
    engine: AsyncEngine
    observer: Observer

    def __post_init__(self) -> None:
        self.observer.pool_sized(self.name, self.figures.size)

    @property
    def figures(self) -> PoolFigures:
        pool: Any = self.engine.pool
        return PoolFigures(size=pool.size(), in_use=pool.checkedout())

    @asynccontextmanager
    async def lend(self, connect: Connect) -> AsyncIterator[AsyncConnection]:
        """A connection, got in one of the engine's ways. Raises PoolTimeoutError."""
        async with AsyncExitStack() as stack:
            connection = await self._waited_for(stack.enter_async_context(connect()))
            self.observer.pool_in_use(self.name, +1)
            stack.callback(self.observer.pool_in_use, self.name, -1)
            try:
                yield connection
            except Exception as error:
                if _is_spoilt_by(error):
                    await connection.invalidate()
                raise

    async def _waited_for(self, coming: Awaitable[AsyncConnection]) -> AsyncConnection:
        self.observer.pool_waiting(self.name, +1)
        try:
            return await coming
        except PoolTimeoutError:
            self.observer.pool_timed_out(self.name)
            raise
        finally:
            self.observer.pool_waiting(self.name, -1)


def _is_spoilt_by(error: Exception) -> bool:
    """Whether nobody may get a connection again after an error.

    When the driver has lost track of what is under way on it, as after a time-out; and when it leads to a standby,
    while the address may lead to another server by now.
    """
    return isinstance(error, asyncpg.InternalClientError) or sqlstate_of(error) == READ_ONLY
