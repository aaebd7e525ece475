"""What it means for a caller when PostgreSQL, its driver or the way to it fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.domain.errors import DatabaseUnavailable, DomainError, EventIdTaken, Overloaded

_QUERY_CANCELED = "57014"
# Ids of events are the only names that a statement may find taken.
_UNIQUE_VIOLATION = "23505"
# Over when it is tried again: a lock that is held, a conflict of transactions, a deadlock.
_OVERLOADED = ("55P03", "40")
READ_ONLY = "25006"
# Somebody has to put it right, or is at it: connections, a server that stops or starts, a full disk or memory, no
# access, no such database, a database that takes no connections, a standby, time-outs of the server's own.
_UNAVAILABLE = ("08", "57P", "53", "58", "28", "3D", "42501", "55000", READ_ONLY, "25P03", "25P04")


@contextmanager
def translated(*, canceled: Callable[[], DomainError]) -> Iterator[None]:
    """Turn what a driver raises into what it means for a caller; what has no meaning here passes."""
    try:
        yield
    except PoolTimeoutError:
        raise Overloaded from None
    except asyncpg.InternalClientError as error:
        raise DatabaseUnavailable from error
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        if (meaning := _meaning(error, canceled)) is None:
            raise
        raise meaning from error


def sqlstate_of(error: BaseException) -> str:
    return str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")


def _meaning(error: Exception, canceled: Callable[[], DomainError]) -> DomainError | None:
    if isinstance(error, OSError) or getattr(error, "connection_invalidated", False):
        return DatabaseUnavailable()
    state = sqlstate_of(error)
    if state == _QUERY_CANCELED:
        return canceled()
    if state == _UNIQUE_VIOLATION:
        return EventIdTaken()
    if state.startswith(_OVERLOADED):
        return Overloaded()
    if state.startswith(_UNAVAILABLE) or isinstance(_of_driver(error), asyncpg.InterfaceError):
        return DatabaseUnavailable()
    return None


def _of_driver(error: BaseException) -> BaseException:
    """What SQLAlchemy wrapped twice."""
    return getattr(getattr(error, "orig", None), "__cause__", None) or error
