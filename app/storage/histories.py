"""What a chat loads: the window that its filter selects, the newest turn, and the system prompt, in one statement."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Text, bindparam, func, literal_column, select, union_all

from app.domain.conversation import Loaded
from app.domain.errors import SessionNotFound, TooManyEvents
from app.domain.events import Event
from app.domain.filters import ACTIVE, EventFilter
from app.domain.readings import MAX_EVENTS
from app.domain.sessions import Session
from app.storage import scans
from app.storage.criteria import (
    SESSION_BY_KEY,
    bounds,
    event_columns,
    is_system,
    is_turn_start,
    log_tables,
    matching,
    once_for_each_shape,
)
from app.storage.database import Database, fetch
from app.storage.reads import cut, event_of, finished, latest_system_message
from app.storage.tables import active_events, events

_SCOPE = SESSION_BY_KEY
_MOST = literal_column(str(MAX_EVENTS + 1), BigInteger)
_NOTHING = EventFilter(before_seq=0)


async def load(db: Database, session: Session, f: EventFilter, *, max_tokens: int | None = None) -> Loaded:
    """The history of a session for one prompt, one snapshot of it.

    `max_tokens` bounds how much of the window is read, not what belongs to its newest turn. Raises SessionNotFound
    when the session is gone, TooManyEvents.
    """
    window = None
    if f.pattern is not None:
        window = (await scans.search_log(db, session, f)).events
        f = _NOTHING
    by_budget = max_tokens is not None and f.last_n is None and f.page_size is None
    query = _query(_SCOPE, f, by_budget=by_budget)
    parameters = {"session_key": session.key, "owner": session.user_id, "max_tokens": max_tokens, **bounds(f)}
    async with db.reading() if f.is_bounded else db.searching() as connection:
        rows = await fetch(connection, query, parameters)
    if not rows:
        raise SessionNotFound(session.id)
    return _loaded(rows, window, f, by_budget=by_budget)


def _loaded(
    rows: Sequence[Mapping[str, Any]], window: list[Event] | None, f: EventFilter, *, by_budget: bool
) -> Loaded:
    parts: dict[str, list[Event]] = {"window": [], "turn": [], "system": []}
    for row in rows:
        if row["seq"] is not None:
            parts[row["part"]].append(event_of(row))
    window = parts["window"] if window is None else window
    if len(window) > MAX_EVENTS:
        if not by_budget:
            raise TooManyEvents(MAX_EVENTS)
        window = window[1:]
    first_seq = rows[0]["first_seq"]
    oldest = next((event.seq for event in window if event.type != "system"), None)
    return Loaded(
        window=window if f.page_size is None else window[: f.page_size],
        newest_turn=parts["turn"],
        system=parts["system"][0] if parts["system"] else None,
        has_older=first_seq is not None and (oldest is None or first_seq < oldest),
        answered_seq=rows[0]["answered_seq"],
    )


@once_for_each_shape
def _query(scope: Any, f: EventFilter, *, by_budget: bool) -> Select[Any]:
    del scope  # Always a session by its key.
    window = _newest_by_budget(f) if by_budget else cut(_SCOPE, f, recall=False)
    found = union_all(
        window.add_columns(_part("window")),
        _newest_turn().add_columns(_part("turn")),
        latest_system_message(_SCOPE).add_columns(_part("system")),
    )
    target = _SCOPE.target
    if target is None:
        raise ValueError("A session has a target.")
    return finished(_SCOPE, f, found).add_columns(target.c.answered_seq, _first_seq().label("first_seq"))


def _newest_by_budget(f: EventFilter) -> Select[Any]:
    """The newest events until they exceed so many tokens: the one that does is the last."""
    log = log_tables(f)[0]
    newest = log.c.seq.desc()
    before = (func.sum(events.c.tokens).over(order_by=newest) - events.c.tokens).label("tokens_before")
    newer = matching(_SCOPE, f, *event_columns(_SCOPE), before).where(~is_system(events))
    rows = newer.order_by(newest).limit(_MOST).subquery("newer")
    columns = [column for column in rows.c if column.name != "tokens_before"]
    fits = rows.c.tokens_before <= bindparam("max_tokens", type_=BigInteger)
    return select(*columns).where(fits)


def _newest_turn() -> Select[Any]:
    mine = active_events.c.session_key == _SCOPE.session_key
    starts = select(active_events.c.seq).where(mine, is_turn_start(active_events))
    start = starts.order_by(active_events.c.seq.desc()).limit(literal_column("1")).scalar_subquery()
    begun = [log.c.seq >= func.coalesce(start, literal_column("0", BigInteger)) for log in log_tables(ACTIVE)]
    turn = matching(_SCOPE, ACTIVE, *event_columns(_SCOPE)).where(*begun)
    return turn.order_by(events.c.seq).limit(_MOST)


def _first_seq() -> ColumnElement[int]:
    said = select(events.c.seq).where(events.c.session_key == _SCOPE.session_key, ~is_system(events))
    return said.order_by(events.c.seq).limit(literal_column("1")).scalar_subquery()


def _part(name: str) -> ColumnElement[str]:
    return literal_column(f"'{name}'", Text).label("part")
