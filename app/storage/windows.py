"""Turn-whole windows in SQL: where the window of the newest N events begins (`app.domain.turns` has the rule)."""

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.types import BigInteger

from app.domain.filters import EventFilter
from app.storage.criteria import Scope, matching, turn_starts
from app.storage.tables import events

WINDOW_BEGINS_AT_START = 0


def window_start(scope: Scope, event_filter: EventFilter, size: int) -> ColumnElement[int]:
    """The `seq` that a session's window of at least `size` matching events begins with.

    It reads `size` events from the end and, only when the oldest of them is inside a turn, the nearest turn start
    before it, through an index of turn starts: the cost does not grow with the log.
    """
    nth = (
        matching(scope, event_filter, events.c.seq, events.c.type)
        .order_by(events.c.seq.desc())
        .offset(size - 1)
        .limit(1)
        .cte("nth")
    )
    nth_seq = select(nth.c.seq).scalar_subquery()
    begins = [nth_seq, literal(WINDOW_BEGINS_AT_START, BigInteger)]
    if event_filter.keeps_turns_whole and "user" in (event_filter.types or {"user"}):
        nth_if_start = select(nth.c.seq).where(nth.c.type == "user").scalar_subquery()
        start_before = (
            matching(scope, event_filter, events.c.seq)
            .where(turn_starts(event_filter), events.c.seq < nth_seq)
            .order_by(events.c.seq.desc())
            .limit(1)
            .scalar_subquery()
        )
        # COALESCE evaluates its arguments one by one: the search for a start is only run when it is needed.
        begins = [nth_if_start, start_before, *begins]
    return func.coalesce(*begins)
