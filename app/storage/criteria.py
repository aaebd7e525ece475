"""EventFilter in SQL: whose events are read, which of them match, and in which order.

`app.domain.filters` defines what these must select; a property test holds the two together.

Building a statement takes longer than PostgreSQL needs for it. So a statement is built once for each shape of a
filter; whose events are meant, the bounds and the words are parameters (`bounds`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    DateTime,
    FromClause,
    Select,
    SelectBase,
    Text,
    and_,
    any_,
    bindparam,
    false,
    literal,
    literal_column,
    or_,
    select,
    true,
)

from app.domain.filters import EventFilter
from app.domain.text import fold
from app.storage.sessions import live
from app.storage.tables import active_events, events, sessions

Statement = TypeVar("Statement", bound=SelectBase)

_BOUNDS: Mapping[str, BindParameter[Any]] = {
    "from_": bindparam("from_", type_=DateTime(timezone=True)),
    "to": bindparam("to", type_=DateTime(timezone=True)),
    "after_seq": bindparam("after_seq", type_=BigInteger),
    "before_seq": bindparam("before_seq", type_=BigInteger),
}
# What stands for what is bound, and for a pattern, in the shape of a filter.
_SOME: Mapping[str, Any] = {
    "from_": datetime(1, 1, 1, tzinfo=UTC),
    "to": datetime(1, 1, 1, tzinfo=UTC),
    "after_seq": 0,
    "before_seq": 0,
    "keyword": ".",
    "pattern": ".",
}

_ESCAPE = "/"

# A literal: the planner has to see it, to know that an index of just these events serves.
_USER = literal_column("'user'", Text)
_SYSTEM = literal_column("'system'", Text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """Whose events are read, and their order. `target` has a row exactly when the session exists."""

    source: FromClause
    mine: ColumnElement[bool]
    owner: ColumnElement[bool]
    session_id: ColumnElement[str]
    order: tuple[ColumnElement[Any], ...]
    session_key: ColumnElement[int] | None = None
    target: CTE | None = None


def _session_scope(named: ColumnElement[bool], *, key: ColumnElement[int] | None, owner: ColumnElement[str]) -> Scope:
    columns = (
        sessions.c.key,
        sessions.c.id,
        sessions.c.event_version,
        sessions.c.active_token_count,
        sessions.c.answered_seq,
    )
    target = select(*columns).where(named, live()).cte("target")
    session_key = select(target.c.key).scalar_subquery() if key is None else key
    return Scope(
        source=events,
        mine=events.c.session_key == session_key,
        owner=events.c.user_id == owner,
        session_id=select(target.c.id).scalar_subquery(),
        order=(events.c.seq,),
        session_key=session_key,
        target=target,
    )


# A session by its id, in one statement with what is read of it. Of which session, the planner does not see.
SESSION = _session_scope(
    sessions.c.id == bindparam("session_id", type_=Text), key=None, owner=bindparam("owner", type_=Text)
)

# A session by its key and owner: where it must stay the same one for several statements, and where the planner has
# to see it. Words of one session of 10,000 events among many short ones took 10 ms instead of 3: it was taken for one
# of those, and read from end to end.
_KEY = bindparam("session_key", type_=BigInteger)
SESSION_BY_KEY = _session_scope(sessions.c.key == _KEY, key=_KEY, owner=bindparam("owner", type_=Text))

# All sessions of a user.
USER = Scope(
    source=events.join(sessions, sessions.c.key == events.c.session_key),
    mine=and_(events.c.user_id == bindparam("owner", type_=Text), live()),
    owner=true(),
    session_id=sessions.c.id,
    order=(events.c.timestamp, sessions.c.id, events.c.seq),
)


def once_for_each_shape(build: Callable[..., Statement]) -> Callable[..., Statement]:
    """Keep the statements that `build` makes. Filters differ in shape when they need different statements."""
    kept = lru_cache(maxsize=256)(build)

    def statement(scope: Scope, f: EventFilter, **options: Any) -> Statement:
        return kept(scope, _shape_of(f), **options)

    return statement


def bounds(f: EventFilter) -> dict[str, Any]:
    """The parameters of the statement of a filter, but for whose events are meant."""
    terms = {f"term_{number}": _escaped(term) for number, term in enumerate(_terms(f))}
    return {name: getattr(f, name) for name in _BOUNDS} | {"skipped": (f.page or 0) * (f.page_size or 0)} | terms


def matching(
    scope: Scope, event_filter: EventFilter, *columns: ColumnElement[Any], recall: bool = False
) -> Select[Any]:
    """The given columns of a scope's events that match, but for the pattern; neither ordered nor cut.

    `recall` leaves out what is never a recall result: summaries, and results of the recall tools themselves.
    """
    source = scope.source
    if event_filter.exclude_archived:
        source = source.join(active_events, _is_active_row())
    query = select(*columns).select_from(source).where(scope.mine, *_criteria(scope, event_filter))
    return query.where(~events.c.synthetic, ~events.c.recall_result) if recall else query


def places(scope: Scope, f: EventFilter) -> Select[Any]:
    """`seq` and `type` of a session's events that match: from the table of active ones alone, when that can tell."""
    log = log_of(f)
    if log is events or f.from_ is not None or f.to is not None or f.exclude_synthetic or f.is_text_search:
        return matching(scope, f, log.c.seq, log.c.type)
    mine = log.c.session_key == scope.session_key
    return select(log.c.seq, log.c.type).where(mine, *_types(log, f), *_seq_bounds(log, f))


def log_tables(f: EventFilter) -> tuple[FromClause, ...]:
    """The tables of `matching` that have the place of an event.

    What is asked of it has to be asked of both: the planner does not see that one follows from the other, and might
    read the active events from their beginning.
    """
    return (active_events, events) if f.exclude_archived else (events,)


def log_of(f: EventFilter) -> FromClause:
    """The one that holds no others than may match."""
    return log_tables(f)[0]


def event_columns(scope: Scope) -> tuple[ColumnElement[Any], ...]:
    """What an Event is made of, but for `archived` (`is_archived`)."""
    return (
        events.c.id,
        scope.session_id.label("session_id"),
        events.c.session_key,
        events.c.seq,
        events.c.timestamp,
        events.c.type,
        events.c.message,
        events.c.synthetic,
        events.c.tokens,
        events.c.metadata,
    )


def is_archived(rows: FromClause, f: EventFilter) -> ColumnElement[bool]:
    """Of rows that are cut already: it is looked up for each."""
    if f.exclude_archived:
        return false().label("archived")
    # A scalar subquery is always an index probe for each row; a join may become a hash of the whole table.
    active_seq = select(active_events.c.seq).where(
        active_events.c.session_key == rows.c.session_key, active_events.c.seq == rows.c.seq
    )
    return active_seq.scalar_subquery().is_(None).label("archived")


def is_turn_start(log: FromClause) -> ColumnElement[bool]:
    return log.c.type == _USER


def is_system(log: FromClause) -> ColumnElement[bool]:
    return log.c.type == _SYSTEM


def _shape_of(f: EventFilter) -> EventFilter:
    """The bounds and the number of the page are parameters of a statement; a pattern has no part in it."""
    given = {name: value for name, value in _SOME.items() if getattr(f, name) is not None}
    if f.keywords is not None:
        given["keywords"] = (".",) * len(f.keywords)
    if f.page is not None:
        given["page"] = 0
    return replace(f, **given) if given else f


def _is_active_row() -> ColumnElement[bool]:
    return and_(active_events.c.session_key == events.c.session_key, active_events.c.seq == events.c.seq)


def _criteria(scope: Scope, f: EventFilter) -> Iterator[ColumnElement[bool]]:
    yield from _types(events, f)
    for log in log_tables(f):
        yield from _seq_bounds(log, f)
    if f.from_ is not None:
        yield events.c.timestamp >= _BOUNDS["from_"]
    if f.to is not None:
        yield events.c.timestamp <= _BOUNDS["to"]
    if f.exclude_synthetic:
        yield ~events.c.synthetic
    if f.is_text_search:
        yield from _text_criteria(scope, f)


def _types(log: FromClause, f: EventFilter) -> Iterator[ColumnElement[bool]]:
    if f.types is not None:
        yield log.c.type == any_(literal(sorted(f.types), ARRAY(Text)))


def _seq_bounds(log: FromClause, f: EventFilter) -> Iterator[ColumnElement[bool]]:
    if f.after_seq is not None:
        yield log.c.seq > _BOUNDS["after_seq"]
    if f.before_seq is not None:
        yield log.c.seq < _BOUNDS["before_seq"]


def _text_criteria(scope: Scope, f: EventFilter) -> Iterator[ColumnElement[bool]]:
    if f.pattern is not None:
        # Text that is null or empty never matches, not even a pattern such as `.*`.
        yield events.c.search_text != ""
    # The text index begins with the user: a word of one session is looked up among its owner's.
    yield scope.owner
    contained = [
        events.c.search_text.contains(bindparam(f"term_{number}", type_=Text), escape=_ESCAPE)
        for number in range(len(_terms(f)))
    ]
    if f.keyword is not None:
        yield contained.pop(0)
    if f.keywords is not None:
        yield and_(*contained) if f.match_mode == "all" else or_(*contained)


def _terms(f: EventFilter) -> list[str]:
    """The words that are looked for, in the order of their parameters."""
    return [*(() if f.keyword is None else (f.keyword,)), *(f.keywords or ())]


def _escaped(term: str) -> str:
    """A term as what LIKE takes literally."""
    return "".join(_ESCAPE + char if char in (_ESCAPE, "%", "_") else char for char in fold(term))
