"""Reads of the log: windows, pages and plain reads in one statement each, its state included."""

from typing import Any

from sqlalchemy import RowMapping, Select, SelectBase, false, literal, select, true, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import EventNotFound, SessionNotFound, TooManyEvents
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.readings import MAX_EVENTS, Reading, SessionReading
from app.storage.criteria import Scope, event_columns, matching, session_scope, user_scope
from app.storage.tables import events
from app.storage.windows import window_start


async def read_session(
    connection: AsyncConnection,
    session_id: str,
    event_filter: EventFilter,
    *,
    recall: bool = False,
    with_system: bool = False,
) -> SessionReading:
    """A session's events and state, in one statement. `with_system` also looks up the latest system message.

    Raises SessionNotFound, TooManyEvents. The pattern of the filter is not applied here (`app.storage.scans`).
    """
    scope = session_scope(session_id)
    found = _cut(scope, event_filter, recall=recall).add_columns(false().label("is_system"))
    system = _latest_system_message(scope).add_columns(true().label("is_system"))
    rows = await with_target(connection, scope, union_all(found, system) if with_system else found)
    if not rows:
        raise SessionNotFound(session_id)
    reading = _reading(
        [event_of(row) for row in rows if row["seq"] is not None and not row["is_system"]], event_filter
    )
    return SessionReading(
        events=reading.events,
        has_more=reading.has_more,
        event_version=rows[0]["event_version"],
        active_token_count=rows[0]["active_token_count"],
        system=next((event_of(row) for row in rows if row["is_system"]), None),
    )


async def read_user(
    connection: AsyncConnection, user_id: str, event_filter: EventFilter, *, recall: bool = False
) -> Reading:
    """Events across a user's sessions, by (timestamp, session id, seq), in one statement. Raises TooManyEvents."""
    query = _cut(user_scope(user_id), event_filter, recall=recall)
    found = [event_of(row) for row in (await connection.execute(query)).mappings()]
    return _reading(found[::-1] if event_filter.last_n is not None else found, event_filter)


async def get_event(connection: AsyncConnection, session_id: str, event_id: str) -> Event:
    """Raises SessionNotFound, EventNotFound."""
    scope = session_scope(session_id)
    everything = EventFilter()
    query = matching(scope, everything, *event_columns(scope, everything)).where(events.c.id == event_id)
    rows = await with_target(connection, scope, query)
    if not rows:
        raise SessionNotFound(session_id)
    if rows[0]["seq"] is None:
        raise EventNotFound(session_id, event_id)
    return event_of(rows[0])


async def get_system_message(connection: AsyncConnection, session_key: int) -> Event | None:
    """The latest system message that a session stored."""
    row = (await connection.execute(_latest_system_message(session_scope(session_key)))).mappings().one_or_none()
    return None if row is None else event_of(row)


async def get_events(connection: AsyncConnection, session_key: int, event_ids: list[str]) -> dict[str, Event]:
    """Events of one session by their ids; those that it does not hold are left out."""
    scope = session_scope(session_key)
    everything = EventFilter()
    query = matching(scope, everything, *event_columns(scope, everything)).where(events.c.id.in_(event_ids))
    return {row["id"]: event_of(row) for row in (await connection.execute(query)).mappings()}


def event_of(row: RowMapping) -> Event:
    return Event(
        id=row["id"],
        session_id=row["session_id"],
        seq=row["seq"],
        timestamp=row["timestamp"],
        type=row["type"],
        message_json=row["message"],
        synthetic=row["synthetic"],
        archived=row["archived"],
        tokens=row["tokens"],
        metadata_json=row["metadata"],
    )


def _cut(scope: Scope, f: EventFilter, *, recall: bool) -> Select[Any]:
    """The matching events, cut to the window, the page or, plain, to one more than may be returned."""
    query = matching(scope, f, *event_columns(scope, f), recall=recall)
    if f.page_size is not None and f.page is not None:
        # One more than the page tells whether another follows.
        return query.order_by(*scope.order).offset(f.page * f.page_size).limit(f.page_size + 1)
    if f.last_n is None:
        return query.order_by(*scope.order).limit(MAX_EVENTS + 1)
    # More than MAX_EVENTS is refused, so a larger window need not be looked for.
    size = min(f.last_n, MAX_EVENTS + 1)
    if scope.target is None:
        return query.order_by(*(column.desc() for column in scope.order)).limit(size)
    return query.where(events.c.seq >= window_start(scope, f, size)).order_by(*scope.order).limit(MAX_EVENTS + 1)


def _latest_system_message(scope: Scope) -> Select[Any]:
    everything = EventFilter()
    query = matching(scope, everything, *event_columns(scope, everything)).where(events.c.type == "system")
    return query.order_by(events.c.seq.desc()).limit(1)


async def with_target(connection: AsyncConnection, scope: Scope, found: SelectBase) -> list[RowMapping]:
    """The rows found, each with the session's state; one row with null events when there are none of them, and
    no row at all when there is no such session."""
    if scope.target is None:
        raise ValueError("Only the scope of a session has a target.")
    rows = found.subquery("found")
    query = (
        select(scope.target.c.key, scope.target.c.event_version, scope.target.c.active_token_count, *rows.c)
        .select_from(scope.target.outerjoin(rows, literal(True)))
        .order_by(rows.c.seq)
    )
    return list((await connection.execute(query)).mappings())


def _reading(found: list[Event], f: EventFilter) -> Reading:
    if f.page_size is not None:
        return Reading(events=found[: f.page_size], has_more=len(found) > f.page_size)
    if len(found) > MAX_EVENTS:
        raise TooManyEvents(MAX_EVENTS)
    return Reading(events=found, has_more=None)
