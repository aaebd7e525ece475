"""Taking the turn of a session: one request at a time, the others wait in line without holding a connection."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import structlog
from uuid_utils import uuid4

from app.domain.chat import OnBusy
from app.domain.errors import DomainError, NotOwner, SessionBusy, SessionNotFound, TooManyWaiting
from app.domain.instants import render_instant
from app.domain.leases import Attempt, Lease
from app.domain.sessions import Session
from app.storage import leases, sessions
from app.storage.database import Database

log = structlog.get_logger()

Result = TypeVar("Result")

MAX_WAITING = 16
# How often the first in line looks whether another replica gave the turn up.
_SHORTEST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
# A lease is renewed this many times before it would run out.
_RENEWALS = 3


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """A session whose turn was taken; without a lease where turns may interleave, or once that was given up."""

    session: Session
    lease: Lease | None


@dataclass(slots=True)
class _Line:
    """Requests of this process that wait for one session, the first one of which looks for the turn."""

    waiting: deque[asyncio.Event] = field(default_factory=deque)


class Turns:
    """Who is next. Only the lease in the database decides; what is kept here makes waiting orderly and quick."""

    def __init__(self, db: Database, *, lease_seconds: float, busy_timeout: float) -> None:
        self._db = db
        self._lease_seconds = lease_seconds
        self._busy_timeout = busy_timeout
        self._lines: dict[int, _Line] = {}

    async def take(
        self, session_id: str, *, owner: str | None, request_id: str, on_busy: OnBusy, gone: asyncio.Event
    ) -> Turn | None:
        """The turn of a session, None when there is no such session.

        Raises NotOwner, SessionBusy, TooManyWaiting, and ClientGone when `gone` is set while waiting.
        """
        if on_busy == "interleave":
            return await self._without_lease(session_id, owner)
        attempt = await self._attempt(session_id, owner, request_id)
        if attempt is None or attempt.lease is not None:
            return _turn(attempt)
        if on_busy == "reject":
            raise _busy(attempt)
        return await self._wait(attempt, owner, request_id, gone)

    @asynccontextmanager
    async def kept(self, turn: Turn) -> AsyncIterator[None]:
        """Keep the lease alive while its holder works, and give it up at the end, if that was not done already."""
        if turn.lease is None:
            yield
            return
        renewing = asyncio.create_task(self._renew(turn.lease))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            if turn.lease is not None:
                await uninterrupted(self._release(turn.lease))
                self.given_up(turn)

    def given_up(self, turn: Turn) -> None:
        """Note that the turn's last write gave it up: the next in line need not wait any longer."""
        turn.lease = None
        if line := self._lines.get(turn.session.key):
            line.waiting[0].set()

    async def _without_lease(self, session_id: str, owner: str | None) -> Turn | None:
        try:
            async with self._db.autocommit() as connection:
                session = await sessions.get(connection, session_id)
        except SessionNotFound:
            return None
        if owner not in {None, session.user_id}:
            raise NotOwner(session_id, str(owner))
        return Turn(session=session, lease=None)

    async def _attempt(self, session_id: str, owner: str | None, request_id: str) -> Attempt | None:
        async with self._db.autocommit() as connection:
            attempt = await leases.acquire(
                connection,
                session_id,
                token=str(uuid4()),
                holder=request_id,
                seconds=self._lease_seconds,
                owner=owner,
            )
        if attempt is not None and owner not in {None, attempt.session.user_id}:
            raise NotOwner(session_id, str(owner))
        return attempt

    async def _wait(self, attempt: Attempt, owner: str | None, request_id: str, gone: asyncio.Event) -> Turn | None:
        session = attempt.session
        line = self._lines.setdefault(session.key, _Line())
        if len(line.waiting) >= MAX_WAITING:
            raise TooManyWaiting(session.id, MAX_WAITING)
        woken = asyncio.Event()
        line.waiting.append(woken)
        deadline = monotonic() + self._busy_timeout
        poll = _SHORTEST_POLL_SECONDS
        try:
            while True:
                is_first = line.waiting[0] is woken
                await _first_of(woken, gone, seconds=min(poll if is_first else 1, max(0.0, deadline - monotonic())))
                if gone.is_set():
                    raise ClientGone
                if line.waiting[0] is woken:
                    woken.clear()
                    poll = min(2 * poll, _LONGEST_POLL_SECONDS)
                    latest = await self._attempt(session.id, owner, request_id)
                    if latest is None:
                        raise SessionNotFound(session.id)  # What was deleted meanwhile is not created anew.
                    if latest.lease is not None:
                        return _turn(latest)
                    attempt = latest
                if monotonic() >= deadline:
                    raise _busy(attempt)
        finally:
            line.waiting.remove(woken)
            if line.waiting:
                line.waiting[0].set()
            else:
                self._lines.pop(session.key, None)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(lease.seconds / _RENEWALS)
            try:
                async with self._db.autocommit() as connection:
                    if not await leases.renew(connection, lease):
                        return
            except DomainError as error:
                log.warning("lease_not_renewed", reason=type(error).__name__)

    async def _release(self, lease: Lease) -> None:
        try:
            async with self._db.autocommit() as connection:
                await leases.release(connection, lease)
        except DomainError as error:
            log.warning("lease_not_released", reason=type(error).__name__)


async def uninterrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Finish what must not stop halfway, also when the one who waits for it is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _first_of(*events: asyncio.Event, seconds: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one


def _turn(attempt: Attempt | None) -> Turn | None:
    return None if attempt is None else Turn(session=attempt.session, lease=attempt.lease)


def _busy(attempt: Attempt) -> SessionBusy:
    holder = attempt.holder
    return SessionBusy(
        attempt.session.id,
        "another" if holder is None else holder.request_id,
        "just now" if holder is None else render_instant(holder.since),
    )
