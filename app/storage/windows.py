"""Turn-whole windows in SQL: where the window of the newest N events begins (`app.domain.turns` has the rule)."""

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.types import BigInteger

from app.domain.filters import EventFilter
from app.storage.criteria import Scope, is_turn_start, log_of, places

_START_OF_LOG = literal_column("0", BigInteger)


def window_start(scope: Scope, event_filter: EventFilter, size: int) -> ColumnElement[int]:
    """The `seq` that a session's window of at least `size` matching events begins with.

    It reads `size` events from the end and, only when the oldest of them is inside a turn, the nearest turn start
    before it, through an index of turn starts: the cost does not grow with the log.
    """
    log = log_of(event_filter)
    newest_first = places(scope, event_filter).order_by(log.c.seq.desc())
    # Literals: a generic plan has to see how little of the log is wanted.
    nth = newest_first.offset(literal_column(str(size - 1))).limit(literal_column("1")).cte("nth")
    nth_seq = select(nth.c.seq).scalar_subquery()
    begins = [nth_seq, _START_OF_LOG]
    if event_filter.keeps_turns_whole and "user" in (event_filter.types or {"user"}):
        nth_if_start = select(nth.c.seq).where(nth.c.type == "user").scalar_subquery()
        starts_before = newest_first.with_only_columns(log.c.seq).where(is_turn_start(log), log.c.seq < nth_seq)
        # COALESCE evaluates its arguments one by one: the search for a start is only run when it is needed.
        begins = [nth_if_start, starts_before.limit(literal_column("1")).scalar_subquery(), *begins]
    return func.coalesce(*begins)
