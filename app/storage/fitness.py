"""Whether a database is one to keep a log in: asked before it is migrated, and told in words of an operator."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.storage.addresses import DatabaseUnusable
from app.storage.meanings import sqlstate_of

_OLDEST = 16
_ASKED = text("""
SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding'),
       current_setting('transaction_read_only')::bool
""")
# They pass by themselves, or say it all: everything else somebody has to put right.
_PASSING = ("08", "57", "53300", "55P03", "40")


async def check(engine: AsyncEngine) -> None:
    """Raises DatabaseUnusable."""
    try:
        async with engine.connect() as connection:
            major, encoding, is_read_only = (await connection.execute(_ASKED)).one()
    except (ValueError, OverflowError) as error:  # Of the driver, before it connects.
        raise DatabaseUnusable(f"TURNKEEPER_DATABASE_URL cannot be used: {error}.") from error
    if fault := fault_of(major, encoding, is_read_only=is_read_only):
        raise DatabaseUnusable(fault)


def fault_of(major: int, encoding: str, *, is_read_only: bool) -> str | None:
    if major < _OLDEST:
        return f"This is PostgreSQL {major}: use version {_OLDEST} or newer."
    if encoding != "UTF8":
        return f"The database is encoded in {encoding}: make one in UTF-8, CREATE DATABASE … ENCODING 'UTF8'."
    if is_read_only:
        return "The database takes no writes: name the primary in TURNKEEPER_DATABASE_URL, not a standby."
    return None


@contextmanager
def told() -> Iterator[None]:
    """What PostgreSQL or its driver refuses, in their own words. Raises DatabaseUnusable."""
    try:
        yield
    except DBAPIError as error:
        if error.connection_invalidated or sqlstate_of(error).startswith(_PASSING):
            raise
        raise DatabaseUnusable(
            f"PostgreSQL refuses: {error.orig}. Check TURNKEEPER_DATABASE_URL, and what its role may do."
        ) from error
