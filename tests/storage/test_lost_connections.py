"""A connection of which the driver lost track: a 503 to its caller, and nobody gets it again."""

import asyncpg
import pytest
from sqlalchemy import text

from app.domain.errors import DatabaseUnavailable


async def backend(lent):
    async with lent() as connection:
        return await connection.scalar(text("SELECT pg_backend_pid()"))


async def lose(lent):
    async with lent() as connection:
        await connection.execute(text("SELECT 1"))
        # As asyncpg raised it in an append, on a busy machine whose PostgreSQL was restarted.
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")


@pytest.mark.parametrize("kind", ["autocommit", "transaction", "reading", "searching"])
async def test_a_connection_that_the_driver_lost_track_of_is_given_up(db, kind):
    lent = getattr(db, kind)
    before = await backend(lent)
    assert await backend(lent) == before
    with pytest.raises(DatabaseUnavailable):
        await lose(lent)
    assert await backend(lent) != before
    assert not any(figures.in_use for figures in db.pools().values())
