"""Reads of the log: windows, pages and plain reads, a session's state in the same snapshot."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Select,
    SelectBase,
    Text,
    any_,
    bindparam,
    false,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import EventNotFound, SessionNotFound, TooManyEvents
from app.domain.events import Event
from app.domain.filters import EventFilter
from app.domain.readings import MAX_EVENTS, Reading, SessionReading
from app.domain.sessions import Session
from app.storage import sessions
from app.storage.criteria import (
    SESSION,
    SESSION_BY_KEY,
    USER,
    Scope,
    bounds,
    event_columns,
    is_archived,
    is_system,
    log_tables,
    matching,
    once_for_each_shape,
)
from app.storage.database import fetch
from app.storage.tables import events
from app.storage.windows import window_start

_EVERYTHING = EventFilter()


async def read_session(
    connection: AsyncConnection,
    session_id: str,
    event_filter: EventFilter,
    *,
    recall: bool = False,
    with_system: bool = False,
) -> SessionReading:
    """A session's events and state. `with_system` also looks up the latest system message.

    One statement for what is bounded by its place in the log. For the rest the session is looked up first, so that
    the planner sees which it is (`SESSION_BY_KEY` has the measurement).

    Raises SessionNotFound, TooManyEvents. The pattern of the filter is not applied here (`app.storage.scans`).
    """
    if not event_filter.is_bounded:
        session = await sessions.get(connection, session_id)
        return await read_log(connection, session, event_filter, recall=recall, with_system=with_system)
    query = _query(SESSION, event_filter, recall=recall, with_system=with_system)
    rows = await fetch(connection, query, {"session_id": session_id} | bounds(event_filter))
    return _session_reading(rows, session_id, event_filter)


async def read_log(
    connection: AsyncConnection,
    session: Session,
    event_filter: EventFilter,
    *,
    recall: bool = False,
    with_system: bool = False,
) -> SessionReading:
    """The same of a session that was looked up already."""
    query = _query(SESSION_BY_KEY, event_filter, recall=recall, with_system=with_system)
    subject = {"session_key": session.key, "owner": session.user_id}
    rows = await fetch(connection, query, subject | bounds(event_filter))
    return _session_reading(rows, session.id, event_filter)


def _session_reading(rows: Sequence[Any], session_id: str, event_filter: EventFilter) -> SessionReading:
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
    query = _query(USER, event_filter, recall=recall)
    found = await fetch(connection, query, {"owner": user_id} | bounds(event_filter))
    return _reading([event_of(row) for row in found], event_filter)


async def get_event(connection: AsyncConnection, session_id: str, event_id: str) -> Event:
    """Raises SessionNotFound, EventNotFound."""
    found = await connection.execute(_EVENT, {"session_id": session_id, "event_id": event_id})
    row = found.mappings().one_or_none()
    if row is None:
        raise SessionNotFound(session_id)
    if row["seq"] is None:
        raise EventNotFound(session_id, event_id)
    return event_of(row)


async def get_system_message(connection: AsyncConnection, session_key: int) -> Event | None:
    """The latest system message that a session stored."""
    row = (await connection.execute(_SYSTEM_MESSAGE, {"session_key": session_key})).mappings().one_or_none()
    return None if row is None or row["seq"] is None else event_of(row)


async def get_events(connection: AsyncConnection, session_key: int, event_ids: list[str]) -> dict[str, Event]:
    """Events of one session by their ids; those that it does not hold are left out."""
    found = await connection.execute(_EVENTS, {"session_key": session_key, "event_ids": event_ids})
    return {row["id"]: event_of(row) for row in found.mappings() if row["seq"] is not None}


def event_of(row: Mapping[str, Any]) -> Event:
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


def finished(scope: Scope, f: EventFilter, found: SelectBase) -> Select[Any]:
    """The rows found, in order and each with what is looked up only for the rows that are returned.

    In the scope of a session each has the session's state: one row with null events when there are no events, and no
    row at all when there is no such session.
    """
    rows = found.subquery("found")
    query = select(rows, is_archived(rows, f))
    if scope.target is None:
        return query.order_by(rows.c.timestamp, rows.c.session_id, rows.c.seq)
    state = (scope.target.c.event_version, scope.target.c.active_token_count)
    return query.add_columns(*state).select_from(scope.target.outerjoin(rows, true())).order_by(rows.c.seq)


@once_for_each_shape
def _query(scope: Scope, f: EventFilter, *, recall: bool, with_system: bool = False) -> Select[Any]:
    found = cut(scope, f, recall=recall).add_columns(false().label("is_system"))
    if not with_system:
        return finished(scope, f, found)
    system = latest_system_message(scope).add_columns(true().label("is_system"))
    return finished(scope, f, union_all(found, system))


def cut(scope: Scope, f: EventFilter, *, recall: bool) -> Select[Any]:
    """The matching events, cut to the window, the page or, plain, to one more than may be returned."""
    query = matching(scope, f, *event_columns(scope), recall=recall)
    if f.page_size is not None:
        # One more than the page tells whether another follows.
        skipped = bindparam("skipped", type_=BigInteger)
        return query.order_by(*scope.order).offset(skipped).limit(f.page_size + 1)
    at_most = literal_column(str(MAX_EVENTS + 1), BigInteger)
    if f.last_n is None:
        return query.order_by(*scope.order).limit(at_most)
    # More than MAX_EVENTS is refused, so a larger window need not be looked for.
    size = min(f.last_n, MAX_EVENTS + 1)
    if scope.target is None:
        return query.order_by(*(column.desc() for column in scope.order)).limit(size)
    start = select(window_start(scope, f, size).label("seq")).cte("start")
    begun = [log.c.seq >= select(start.c.seq).scalar_subquery() for log in log_tables(f)]
    return query.where(*begun).order_by(*scope.order).limit(at_most)


def latest_system_message(scope: Scope) -> Select[Any]:
    query = matching(scope, _EVERYTHING, *event_columns(scope)).where(is_system(events))
    return query.order_by(events.c.seq.desc()).limit(literal_column("1"))


def _one_of(scope: Scope, *criteria: Any) -> Select[Any]:
    return finished(scope, _EVERYTHING, matching(scope, _EVERYTHING, *event_columns(scope)).where(*criteria))


_EVENT = _one_of(SESSION, events.c.id == bindparam("event_id"))
_EVENTS = _one_of(SESSION_BY_KEY, events.c.id == any_(bindparam("event_ids", type_=ARRAY(Text))))
_SYSTEM_MESSAGE = finished(SESSION_BY_KEY, _EVERYTHING, latest_system_message(SESSION_BY_KEY))


def _reading(found: list[Event], f: EventFilter) -> Reading:
    if f.page_size is not None:
        return Reading(events=found[: f.page_size], has_more=len(found) > f.page_size)
    if len(found) > MAX_EVENTS:
        raise TooManyEvents(MAX_EVENTS)
    return Reading(events=found, has_more=None)
