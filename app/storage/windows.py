"""Turn-whole windows in SQL: where the window of the newest N events begins (`app.domain.turns` has the rule)."""

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Select, func, literal_column, select
from sqlalchemy.types import BigInteger

from app.domain.filters import EventFilter
from app.storage.criteria import Scope, is_turn_start, log_of, matching_tables, places

WINDOW_BEGINS_AT_START = 0


def in_window(query: Select, scope, f, size):
    ...
