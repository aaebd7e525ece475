"""Reads in batches: patterns, which only the service can apply, and streams of any length.

Each batch is a short statement of its own that continues after the last event of the one before: no connection and
no cursor is held between them. The log is append-only, so that nothing is skipped or repeated.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, and_, func, literal_column, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import SearchTooBroad, SessionGone, TooManyEvents
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.readings import MAX_EVENTS, Reading, SessionReading
from app.domain.sessions import Session
from app.storage import sessions
from app.storage.criteria import SESSION_BY_KEY, USER, Scope, bounds, event_columns, matching
from app.storage.database import Database
from app.storage.reads import event_of, finished, get_system_message
from app.storage.windows import window_start

# The values of a scope's order columns: where an event stands.
Place = tuple[Any, ...]


class _Log(NamedTuple):
    """What is read: a scope, and whose events it is about."""

    scope: Scope
    subject: dict[str, Any]


BATCH_EVENTS = 500
# What one batch may hold beyond its first event.
BATCH_BYTES = 2 * 1024 * 1024
# About as many bytes as an event takes. A message is compressed, 1 MB of a word to 11 kB, and would have to be read
# for its length; a text tells its own without being read, and for tool calls there are the tokens.
SIZE_SQL = """
    greatest(pg_column_size(events.message), octet_length(events.search_text), CAST(events.tokens AS bigint) * 4)
    + pg_column_size(events.metadata)
"""


async def search_session(db: Database, session_id: str, event_filter: EventFilter) -> SessionReading:
    """Read by a filter with a pattern. Raises SessionNotFound, TooManyEvents, SearchTooBroad."""
    async with db.searching() as connection:
        session = await sessions.get(connection, session_id)
        system = await get_system_message(connection, session.key)
    reading = await search_log(db, session, event_filter)
    return SessionReading(
        events=reading.events,
        has_more=reading.has_more,
        event_version=session.event_version,
        active_token_count=session.active_token_count,
        system=system,
    )


async def read_newest_tokens(
    db: Database, session_id: str, event_filter: EventFilter, max_tokens: int
) -> SessionReading:
    """The newest events until they exceed so many tokens, and at least the newest turn. Raises SessionNotFound."""
    async with db.searching() as connection:
        session = await sessions.get(connection, session_id)
        system = await get_system_message(connection, session.key)
    newest_first: list[Event] = []
    total, has_turn = 0, False
    async for batch in _matching_pattern(db, _log_of_session(session), event_filter, backwards=True):
        newest_first += batch
        total += sum(event.tokens for event in batch if event.type != "system")
        has_turn = has_turn or any(event.starts_turn for event in batch)
        if total > max_tokens and has_turn:
            break
    return SessionReading(
        events=newest_first[::-1],
        has_more=None,
        event_version=session.event_version,
        active_token_count=session.active_token_count,
        system=system,
    )


async def search_log(db: Database, session: Session, event_filter: EventFilter) -> Reading:
    """The same of a session that is known already. Raises TooManyEvents, SearchTooBroad."""
    return await _search(db, _log_of_session(session), event_filter)


async def search_user(db: Database, user_id: str, event_filter: EventFilter) -> Reading:
    """The same across a user's sessions."""
    return await _search(db, _log_of_user(user_id), event_filter)


async def stream_session(db: Database, session_id: str, event_filter: EventFilter) -> AsyncIterator[list[Event]]:
    """All events that a filter without a page selects, in batches. Raises SessionNotFound at the first batch."""
    async with db.searching() as connection:
        session = await sessions.get(connection, session_id)
    async for batch in stream_log(db, session, event_filter):
        yield batch


async def stream_log(db: Database, session: Session, event_filter: EventFilter) -> AsyncIterator[list[Event]]:
    """The same of a session that was looked up already. Raises SessionGone."""
    log = _log_of_session(session)
    if event_filter.last_n is not None and event_filter.pattern is None:
        async with db.searching() as connection:
            start = await _window_start(connection, log, event_filter)
            event_filter = _starting_at(start, event_filter)
    if event_filter.last_n is not None:
        oldest = await _nth_match_from_end(db, log, event_filter, event_filter.last_n)
        event_filter = _starting_at(0 if oldest is None else oldest.seq, event_filter)
    async for batch in _matching_pattern(db, log, event_filter):
        yield batch


async def stream_user(db: Database, user_id: str, event_filter: EventFilter) -> AsyncIterator[list[Event]]:
    """The same across a user's sessions, by (timestamp, session id, seq)."""
    log = _log_of_user(user_id)
    first = None
    if event_filter.last_n is not None and event_filter.pattern is not None:
        oldest = await _nth_match_from_end(db, log, event_filter, event_filter.last_n)
        first = None if oldest is None else (oldest.timestamp, oldest.session_id, oldest.seq)
    elif event_filter.last_n is not None:
        async with db.searching() as connection:
            first = await _nth_from_end(connection, log, event_filter)
    event_filter = replace(event_filter, last_n=None)
    async for batch in _matching_pattern(db, log, event_filter, first=first):
        yield batch


async def _search(db: Database, log: _Log, f: EventFilter) -> Reading:
    """The window, page or plain read of a filter with a pattern; reads no further than that needs."""
    paged = f.page_size is not None and f.page is not None
    skipped = f.page * f.page_size if f.page is not None and f.page_size is not None else 0
    wanted = min(f.last_n or MAX_EVENTS + 1, MAX_EVENTS + 1) if f.page_size is None else f.page_size + 1
    found: list[Event] = []
    deadline = time.monotonic() + db.statement_timeout
    try:
        async with asyncio.timeout(db.statement_timeout):
            async for batch in _matching_pattern(db, log, f, backwards=f.last_n is not None, deadline=deadline):
                found += batch[skipped:]
                skipped = max(0, skipped - len(batch))
                if len(found) >= wanted:
                    break
    except TimeoutError:
        raise SearchTooBroad from None
    found = found[:wanted]
    if paged:
        return Reading(events=found[: f.page_size], has_more=len(found) == wanted)
    if len(found) > MAX_EVENTS:
        raise TooManyEvents(MAX_EVENTS)
    return Reading(events=found[::-1] if f.last_n is not None else found, has_more=None)


async def _matching_pattern(
    db: Database,
    log: _Log,
    f: EventFilter,
    *,
    first: Place | None = None,
    backwards: bool = False,
    deadline: float = math.inf,
) -> AsyncIterator[list[Event]]:
    async for batch in _batches(db, log, f, first=first, backwards=backwards):
        if f.pattern is None:
            yield batch
        else:
            # RE2 is linear, but a batch of long texts still is work: it leaves the event loop.
            yield await asyncio.to_thread(_matches, batch, f, deadline)


def _matches(batch: list[Event], f: EventFilter, deadline: float) -> list[Event]:
    """The thread outlives a reader who gave up: it has to end by itself, or those that follow wait for it."""
    matching_events = []
    for event in batch:
        if time.monotonic() > deadline:
            raise TimeoutError
        if f.matches_pattern(event.text):
            matching_events.append(event)
    return matching_events


async def _nth_match_from_end(db: Database, log: _Log, f: EventFilter, n: int) -> Event | None:
    """The n-th newest match of a pattern; None when there are fewer."""
    async for batch in _matching_pattern(db, log, f, backwards=True):
        if n <= len(batch):
            return batch[n - 1]
        n -= len(batch)
    return None


def _starting_at(seq: int, f: EventFilter) -> EventFilter:
    """The filter of a window's events, once it is known where the window begins."""
    return replace(f, last_n=None, after_seq=max(seq - 1, -1 if f.after_seq is None else f.after_seq))


async def _batches(
    db: Database, log: _Log, f: EventFilter, *, first: Place | None, backwards: bool
) -> AsyncIterator[list[Event]]:
    scope, where = log.scope, None if first is None else _not_before(log.scope, first)
    while True:
        query = _bounded_batch(scope, f, where, backwards=backwards)
        async with db.searching() as connection:
            batch = await _fetch(connection, scope, query, log.subject | bounds(f), backwards=backwards)
        if not batch:
            return
        yield batch
        last = batch[-1]
        if scope.target is None:
            where = _beyond(scope, (last.timestamp, last.session_id, last.seq), backwards=backwards)
        else:
            f = replace(f, before_seq=last.seq) if backwards else replace(f, after_seq=last.seq)


def _bounded_batch(
    scope: Scope, f: EventFilter, where: ColumnElement[bool] | None, *, backwards: bool
) -> Select[Any]:
    """The next events, as many as fit both bounds, and always the first of them."""
    order = [column.desc() if backwards else column for column in scope.order]
    size = literal_column(SIZE_SQL, BigInteger)
    size_before = (func.sum(size).over(order_by=order) - size).label("size_before")
    query = matching(scope, f, *event_columns(scope), size_before)
    if where is not None:
        query = query.where(where)
    rows = query.order_by(*order).limit(BATCH_EVENTS).subquery()
    return finished(scope, f, select(rows).where(rows.c.size_before <= BATCH_BYTES))


async def _fetch(
    connection: AsyncConnection, scope: Scope, query: Select[Any], parameters: dict[str, Any], *, backwards: bool
) -> list[Event]:
    rows = (await connection.execute(query, parameters)).mappings().all()
    if scope.target is not None and not rows:
        raise SessionGone  # Deleted or expired meanwhile: the reader must not take what it has for everything.
    batch = [event_of(row) for row in rows if row["seq"] is not None]
    return batch[::-1] if backwards else batch


async def _window_start(connection: AsyncConnection, log: _Log, f: EventFilter) -> int:
    query = select(window_start(log.scope, f, f.last_n or 1))
    return int(await connection.scalar(query, log.subject | bounds(f)) or 0)


async def _nth_from_end(connection: AsyncConnection, log: _Log, f: EventFilter) -> Place | None:
    order = log.scope.order
    query = matching(log.scope, f, *order).order_by(*(column.desc() for column in order))
    found = await connection.execute(query.offset((f.last_n or 1) - 1).limit(1), log.subject | bounds(f))
    row = found.one_or_none()
    return None if row is None else tuple(row)


def _log_of_session(session: Session) -> _Log:
    return _Log(SESSION_BY_KEY, {"session_key": session.key, "owner": session.user_id})


def _log_of_user(user_id: str) -> _Log:
    return _Log(USER, {"owner": user_id})


def _beyond(scope: Scope, place: Place, *, backwards: bool) -> ColumnElement[bool]:
    # The comparison of the first column alone is implied, and is what an index can begin at.
    first: ColumnElement[Any] = scope.order[0]
    mine, given = tuple_(*scope.order), _tuple(scope, place)
    if backwards:
        return and_(first <= place[0], mine < given)
    return and_(first >= place[0], mine > given)


def _not_before(scope: Scope, place: Place) -> ColumnElement[bool]:
    first: ColumnElement[Any] = scope.order[0]
    return and_(first >= place[0], tuple_(*scope.order) >= _tuple(scope, place))


def _tuple(scope: Scope, place: Place) -> ColumnElement[Any]:
    return tuple_(*place, types=[column.type for column in scope.order])
