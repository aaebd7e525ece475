"""EventFilter in SQL: whose events are read, which of them match, and in which order.

`app.domain.filters` defines what these must select; a property test holds the two together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CTE, ColumnElement, FromClause, Select, and_, false, or_, select, true

from app.domain.filters import EventFilter
from app.domain.text import fold
from app.storage.sessions import live
from app.storage.tables import active_events, events, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose events are read, and their order. `target` has a row exactly when the session exists."""

    source: FromClause
    mine: ColumnElement[bool]
    owner: ColumnElement[bool]
    session_id: ColumnElement[str]
    order: tuple[ColumnElement[Any], ...]
    target: CTE | None = None


def session_scope(session: str | int) -> Scope:
    """The events of a session, by its id or, where it must stay the same one for several statements, by its key."""
    named = sessions.c.key == session if isinstance(session, int) else sessions.c.id == session
    columns = (
        sessions.c.key,
        sessions.c.id,
        sessions.c.user_id,
        sessions.c.event_version,
        sessions.c.active_token_count,
    )
    target = select(*columns).where(named, live()).cte("target")
    return Scope(
        source=events,
        mine=events.c.session_key == select(target.c.key).scalar_subquery(),
        owner=events.c.user_id == select(target.c.user_id).scalar_subquery(),
        session_id=select(target.c.id).scalar_subquery(),
        order=(events.c.seq,),
        target=target,
    )


def user_scope(user_id: str) -> Scope:
    return Scope(
        source=events.join(sessions, sessions.c.key == events.c.session_key),
        mine=and_(events.c.user_id == user_id, live()),
        owner=true(),
        session_id=sessions.c.id,
        order=(events.c.timestamp, sessions.c.id, events.c.seq),
    )


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


def event_columns(scope: Scope, event_filter: EventFilter) -> tuple[ColumnElement[Any], ...]:
    """Everything that an Event is made of."""
    # A scalar subquery is always an index probe for each row; a join may become a hash of the whole table.
    active_seq = select(active_events.c.seq).where(_is_active_row()).correlate(events).scalar_subquery()
    archived = false() if event_filter.exclude_archived else active_seq.is_(None)
    return (
        events.c.id,
        scope.session_id.label("session_id"),
        events.c.seq,
        events.c.timestamp,
        events.c.type,
        events.c.message,
        events.c.synthetic,
        archived.label("archived"),
        events.c.tokens,
        events.c.metadata,
    )


def turn_starts(event_filter: EventFilter) -> ColumnElement[bool]:
    """The events that start a turn, named so that an index of the right table holds just these."""
    return (active_events if event_filter.exclude_archived else events).c.type == "user"


def _is_active_row() -> ColumnElement[bool]:
    return and_(active_events.c.session_key == events.c.session_key, active_events.c.seq == events.c.seq)


def _criteria(scope: Scope, f: EventFilter) -> Iterator[ColumnElement[bool]]:
    if f.from_ is not None:
        yield events.c.timestamp >= f.from_
    if f.to is not None:
        yield events.c.timestamp <= f.to
    if f.types is not None:
        yield events.c.type.in_(sorted(f.types))
    if f.exclude_synthetic:
        yield ~events.c.synthetic
    if f.after_seq is not None:
        yield events.c.seq > f.after_seq
    if f.before_seq is not None:
        yield events.c.seq < f.before_seq
    if f.is_text_search:
        yield from _text_criteria(scope, f)


def _text_criteria(scope: Scope, f: EventFilter) -> Iterator[ColumnElement[bool]]:
    # Text that is null or empty never matches, not even a pattern such as `.*`.
    yield events.c.search_text != ""
    # The text index begins with the user: a word of one session is looked up among its owner's.
    yield scope.owner
    if f.keyword is not None:
        yield _contains(f.keyword)
    if f.keywords is not None:
        combine = and_ if f.match_mode == "all" else or_
        yield combine(*map(_contains, f.keywords))


def _contains(term: str) -> ColumnElement[bool]:
    return events.c.search_text.contains(fold(term), autoescape=True)
