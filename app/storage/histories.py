"""What a chat loads: the window that its filter selects, the log's tail, and the system prompt, in one statement."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    union_all,
)

from app.domain.errors import SessionNotFound, TooManyEvents
from app.domain.events import Event
from app.domain.filters import ACTIVE, EventFilter
from app.domain.readings import MAX_EVENTS
from app.domain.said import Loaded
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

# More than any turn has.
TAIL_EVENTS = 1_000


async def load(db: Database, session: Session, f: EventFilter, *, max_tokens: int | None = None) -> Loaded:
    """The history of a session for one prompt, one snapshot of it.

    `max_tokens` bounds how much of the window is read, to whole turns, and not the tail. Raises SessionNotFound when
    the session is gone, TooManyEvents.
    """
    window = None
    if f.pattern is not None:
        window = (await scans.search_log(db, session, f)).events
        f = _NOTHING
    if f.last_n is not None or f.page_size is not None:
        max_tokens = None
    query = _query(_SCOPE, f, by_budget=max_tokens is not None)
    parameters = {"session_key": session.key, "owner": session.user_id, "max_tokens": max_tokens, **bounds(f)}
    async with db.reading() if f.is_bounded else db.searching() as connection:
        rows = await fetch(connection, query, parameters)
    if not rows:
        raise SessionNotFound(session.id)
    return _loaded(rows, window, f, max_tokens)


def _loaded(
    rows: Sequence[Mapping[str, Any]], window: list[Event] | None, f: EventFilter, max_tokens: int | None
) -> Loaded:
    """`max_tokens` where that is what the window was cut by."""
    parts: dict[str, list[Event]] = {"window": [], "tail": [], "system": []}
    for row in rows:
        if row["seq"] is not None:
            parts[row["part"]].append(event_of(row))
    window = parts["window"] if window is None else window
    if len(window) > MAX_EVENTS:
        if max_tokens is None:
            raise TooManyEvents(MAX_EVENTS)
        window = window[1:]
    if max_tokens is not None and sum(event.tokens for event in window) > max_tokens:
        window = _from_first_turn(window)
    return Loaded(
        window=window if f.page_size is None else window[: f.page_size],
        tail=parts["tail"],
        system=parts["system"][0] if parts["system"] else None,
        first_seq=rows[0]["first_seq"],
        answered_seq=rows[0]["answered_seq"],
    )


def _from_first_turn(events: list[Event]) -> list[Event]:
    """What was cut by its tokens, less the part of a turn that it begins with."""
    start = next((place for place, event in enumerate(events) if event.starts_turn), len(events))
    return events[start:]


@once_for_each_shape
def _query(scope: Any, f: EventFilter, *, by_budget: bool) -> Select[Any]:
    del scope  # Always a session by its key.
    window = _newest_by_budget(f) if by_budget else cut(_SCOPE, f, recall=False)
    found = union_all(
        window.add_columns(_part("window")),
        _tail().add_columns(_part("tail")),
        latest_system_message(_SCOPE).add_columns(_part("system")),
    )
    return finished(_SCOPE, f, found).add_columns(_target().c.answered_seq, _first_seq().label("first_seq"))


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


def _tail() -> Select[Any]:
    """From the turn of the last complete reply on; at most `TAIL_EVENTS`, of a log that is never answered."""
    mine = active_events.c.session_key == _SCOPE.session_key
    newest = active_events.c.seq.desc()
    starts = select(active_events.c.seq).where(mine, is_turn_start(active_events), active_events.c.seq <= _anchor())
    start = starts.order_by(newest).limit(literal_column("1")).scalar_subquery()
    begun = [log.c.seq >= func.coalesce(start, literal_column("0", BigInteger)) for log in log_tables(ACTIVE)]
    tail = matching(_SCOPE, ACTIVE, *event_columns(_SCOPE)).where(*begun)
    rows = tail.order_by(newest).limit(literal_column(str(TAIL_EVENTS), BigInteger)).subquery("tail")
    return select(*rows.c)


def _anchor() -> ColumnElement[int]:
    """Up to where the log was answered: by a chat, or by a complete reply among the newest events."""
    target = _target()
    answered = select(target.c.answered_seq).scalar_subquery()
    mine = active_events.c.session_key == _SCOPE.session_key
    newest = (
        select(active_events.c.seq, active_events.c.type)
        .where(mine, active_events.c.seq > answered)
        .order_by(active_events.c.seq.desc())
        .limit(literal_column(str(TAIL_EVENTS), BigInteger))
        .subquery("newest")
    )
    is_complete = text(
        "(events.metadata ->> 'interrupted') IS DISTINCT FROM 'true' "
        "AND (events.metadata ->> 'late') IS DISTINCT FROM 'true' "
        # Rounds of a run tell by `answered_seq` that it was answered.
        "AND (events.metadata -> 'run') IS NULL"
    )
    replies = (
        select(newest.c.seq)
        .join(events, and_(events.c.session_key == _SCOPE.session_key, events.c.seq == newest.c.seq))
        .where(newest.c.type == literal_column("'assistant'", Text), is_complete)
    )
    reply = replies.order_by(newest.c.seq.desc()).limit(literal_column("1")).scalar_subquery()
    return func.greatest(answered, func.coalesce(reply, literal_column("0", BigInteger)))


def _target() -> Any:
    if _SCOPE.target is None:
        raise ValueError("A session has a target.")
    return _SCOPE.target


def _first_seq() -> ColumnElement[int]:
    said = select(events.c.seq).where(events.c.session_key == _SCOPE.session_key, ~is_system(events))
    return said.order_by(events.c.seq).limit(literal_column("1")).scalar_subquery()


def _part(name: str) -> ColumnElement[str]:
    return literal_column(f"'{name}'", Text).label("part")
