"""Import: what was read from a file, into the log. Running it again adds nothing; what is refused is reported."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast
from zlib import crc32

from app.domain.errors import (
    EventConflict,
    NotOwner,
    Overloaded,
    SearchTooBroad,
    SessionExists,
    SessionGone,
    SystemMessagesRefused,
)
from app.domain.events import NewEvent
from app.domain.exports import EventRecord, SessionRecord
from app.domain.memory_trees import Limits
from app.domain.sessions import NewSession
from app.importing.records import BadRecord, FoundEvent, FoundMemory, FoundSession, Record
from app.services.append import append_events
from app.services.importing_memories import MemoryImport, MemoryTally
from app.storage import transfer
from app.storage.database import Database

# What one statement writes.
MAX_EVENTS = 500
MAX_BYTES = 512 * 1024

# How many sessions are written at a time.
LANES = 4

# Reading is work for the event loop, too: after so many records the lanes have their turn. A thread for it would
# make every answer of the database wait for the interpreter lock (15 to 35 % slower).
_READ_AT_A_TIME = 20

_TOO_SLOW = "Writing it takes longer than a statement may run (TURNKEEPER_STATEMENT_TIMEOUT_MS)."

Report = Callable[[BadRecord], None]


@dataclass(slots=True)
class Tally:
    """What an import did so far. `left_out` are events of sessions that were refused or have expired."""

    sessions: int = 0
    added: int = 0
    known: int = 0
    bad: int = 0
    expired: int = 0
    left_out: int = 0
    memory: MemoryTally = field(default_factory=MemoryTally)

    @property
    def took_any(self) -> bool:
        """Whether anything of the file was of use."""
        return bool(self.sessions or self.memory.added or self.memory.known)


async def import_records(
    db: Database, records: Iterable[Record], tally: Tally, report: Report, *, limits: Limits | None = None
) -> None:
    """Write what a parser finds. Raises DatabaseUnavailable and Overloaded; running it again goes on from there.

    `limits` are those of memory stores; None: there are none.
    """
    run = _Import(db, tally, report)
    memories = MemoryImport(db=db, limits=limits, tally=tally.memory, report=run.report)
    lanes: list[asyncio.Task[None] | None] = [None] * LANES
    try:
        async for chunk in _chunks(records):
            if isinstance(chunk, BadRecord):
                run.report(chunk)
                continue
            if isinstance(chunk, FoundMemory):
                await memories.add(chunk)
                continue
            # A session stays in its lane, and so its events stay in order.
            lane = crc32(chunk.session.id.encode()) % LANES
            await _done(lanes[lane])
            lanes[lane] = asyncio.create_task(run.write(chunk))
        await memories.finish()
        for task in lanes:
            await _done(task)
    finally:
        for task in filter(None, lanes):
            task.cancel()
        await asyncio.gather(*filter(None, lanes), return_exceptions=True)


async def _done(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await task


@dataclass(slots=True)
class _Session:
    found: FoundSession
    is_counted: bool = False
    is_refused: bool = False

    @property
    def id(self) -> str:
        return self.found.session.id


@dataclass(slots=True)
class _Chunk:
    """A run of events of one session that is written at once; no two have the same id."""

    session: _Session
    events: dict[str, FoundEvent] = field(default_factory=dict)
    size: int = 0

    def takes(self, found: FoundEvent) -> bool:
        if not self.events:
            return True
        fits = len(self.events) < MAX_EVENTS and self.size + found.size <= MAX_BYTES
        return fits and found.event.id not in self.events

    def add(self, found: FoundEvent) -> None:
        self.events[found.event.id] = found
        self.size += found.size


async def _chunks(records: Iterable[Record]) -> AsyncIterator[_Chunk | FoundMemory | BadRecord]:
    chunk: _Chunk | None = None
    for number, record in enumerate(records):
        if number % _READ_AT_A_TIME == 0:
            await asyncio.sleep(0)
        if isinstance(record, BadRecord | FoundMemory):
            yield record
        elif isinstance(record, FoundSession):
            if chunk:
                yield chunk
            chunk = _Chunk(_Session(record))
        elif chunk is None:
            raise ValueError("A parser names a session before its events.")
        else:
            if not chunk.takes(record):
                yield chunk
                chunk = _Chunk(chunk.session)
            chunk.add(record)
    if chunk:
        yield chunk


class _Import:
    def __init__(self, db: Database, tally: Tally, report: Report) -> None:
        self._db = db
        self._tally = tally
        self._report = report

    def report(self, bad: BadRecord) -> None:
        self._tally.bad += 1
        self._report(bad)

    async def write(self, chunk: _Chunk) -> None:
        session, events = chunk.session, list(chunk.events.values())
        if not session.is_refused:
            try:
                await self._write(session, events)
            except (NotOwner, SessionExists, SessionGone) as error:
                session.is_refused = True
                self.report(BadRecord(place=session.found.place, reason=f"{error} Its events are left out."))
        if session.is_refused:
            self._tally.left_out += len(events)
        elif not session.is_counted and (events or isinstance(session.found.session, SessionRecord)):
            session.is_counted = True
            self._tally.sessions += 1

    async def _write(self, session: _Session, events: list[FoundEvent]) -> None:
        try:
            if isinstance(record := session.found.session, SessionRecord):
                await self._restore(session, record, events)
            elif events:
                await self._append(record, events)
        except (Overloaded, SearchTooBroad):
            if len(events) != 1:
                raise Overloaded from None
            self.report(BadRecord(place=events[0].place, reason=_TOO_SLOW))

    async def _restore(self, session: _Session, record: SessionRecord, events: Sequence[FoundEvent]) -> None:
        async with self._db.transaction() as connection:
            key = await transfer.restore_session(connection, record)
            if key is None:
                session.is_refused = True
                self._tally.expired += 1
                return
            records = cast("list[EventRecord]", [found.event for found in events])
            restored = await transfer.restore_events(connection, key, records)
        self._tally.added += restored.added
        self._tally.known += restored.known
        for place in restored.conflicting:
            reason = f"Session {record.id!r} has another event with its id or in its place."
            self.report(BadRecord(place=events[place].place, reason=reason))

    async def _append(self, new: NewSession, events: list[FoundEvent]) -> None:
        while events:
            refused: set[str] = set()
            try:
                batch = cast("list[NewEvent]", [found.event for found in events])
                appended = await append_events(self._db, new.id, batch, named=True, create_as=new)
            except EventConflict as error:
                refused = set(error.event_ids)
                reason = "The session has another message under the same id."
            except SystemMessagesRefused as error:
                refused = {found.event.id for found in events if found.event.type == "system"}
                reason = str(error)
            else:
                self._tally.added += appended.appended
                self._tally.known += appended.replayed
                return
            for found in events:
                if found.event.id in refused:
                    self.report(BadRecord(place=found.place, reason=reason))
            events = [found for found in events if found.event.id not in refused]
