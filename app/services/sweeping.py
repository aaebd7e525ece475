"""The sweeper at work: removes expired and deleted sessions, by itself and when it is woken."""

import asyncio

import structlog

from app.domain.errors import DomainError
from app.domain.observer import UNOBSERVED, Observer
from app.storage import sweeper
from app.storage.database import Database
from app.telemetry import sqlstate_of

log = structlog.get_logger()


class Sweeping:
    """A background task; `wake` starts a round at once, as after a deletion."""

    def __init__(self, db: Database, *, interval: float, batch: int, observer: Observer = UNOBSERVED) -> None:
        self._db = db
        self._observer = observer
        self._interval = interval
        self._batch = batch
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            await self._sweep()

    async def _sweep(self) -> None:
        try:
            swept = await sweep(self._db, batch=self._batch)
        except DomainError as error:
            log.warning("sweep_failed", reason=str(error), sqlstate=sqlstate_of(error))
            self._observer.swept(None)
        else:
            self._observer.swept(swept)
            if swept:
                log.info("swept", rows=swept)


async def sweep(db: Database, *, batch: int) -> int:
    """Remove what is expired or deleted, a batch a transaction; returns the number of rows removed.

    Zero when another replica is at it.
    """
    total = 0
    while True:
        async with db.transaction() as connection:
            if not await sweeper.try_lock(connection):
                return total
            await sweeper.retire_expired(connection, batch)
            await sweeper.forget_erasures(connection)
            removed = await sweeper.purge(connection, batch)
        total += removed
        if not removed:
            return total
