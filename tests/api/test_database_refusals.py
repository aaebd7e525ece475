"""What PostgreSQL refuses in operation, as its disk is full or a right is gone: a documented 503 until it is over."""

import asyncpg
import pytest
from sqlalchemy import text

from tests.conftest import serving

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'quinoa' USING ERRCODE = current_setting('refuse.state'); END $$
"""
TABLES = ("sessions", "events", "memory_stores", "erased_users")
APPEND = {"user_id": "alice", "events": [{"message": {"role": "user", "content": "x"}}]}
WRITES = (
    ("POST", "/v1/sessions/s/events", APPEND),
    ("PUT", "/v1/sessions/new", {"user_id": "alice"}),
    ("PUT", "/v1/memories/alice/file?path=a.md", None),
    ("DELETE", "/v1/users/alice", None),
)
UNAVAILABLE = {
    "53100": "disk full",
    "53200": "out of memory",
    "58030": "an I/O error",
    "25006": "read-only, as a standby is",
    "42501": "a right was revoked",
    "25P04": "a transaction took too long for the server",
}
OVERLOADED = {"40P01": "a deadlock", "40001": "a conflict of transactions"}


async def written(client):
    return [await client.request(method, path, json=body) for method, path, body in WRITES]


@pytest.mark.parametrize("state", [*UNAVAILABLE, *OVERLOADED], ids=lambda state: (UNAVAILABLE | OVERLOADED)[state])
async def test_what_the_database_refuses_is_503_and_recovers(database_url, db, capsys, state):
    async with db.transaction() as connection:
        await connection.execute(text(REFUSE))
        for table in TABLES:
            await connection.execute(
                text(f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} EXECUTE FUNCTION refuse()")
            )
    await alter(database_url, f"SET refuse.state = '{state}'")
    async with serving(database_url) as client:
        for answer in await written(client):
            assert answer.status_code == 503, answer.text
            assert answer.json()["type"].endswith(":overloaded" if state in OVERLOADED else ":database-unavailable")
            assert int(answer.headers["Retry-After"]) > 0
            assert "quinoa" not in answer.text
        assert (await client.get("/v1/sessions")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        logged = capsys.readouterr()
        assert f"sqlstate={state}" in logged.out + logged.err, "whoever is on call has to know what PostgreSQL said"
        async with db.transaction() as connection:
            for table in TABLES:
                await connection.execute(text(f"DROP TRIGGER refuse ON {table}"))
        assert all(answer.is_success for answer in await written(client))


async def test_a_database_that_became_read_only_is_read_and_writes_are_503(database_url):
    """As when a standby took over, or the server protects a full disk; connections of that time are not kept."""
    async with serving(database_url) as client:
        assert (await client.post("/v1/sessions/s/events", json=APPEND)).status_code == 201
        await alter(database_url, "SET default_transaction_read_only = on")
        await end_connections(database_url)
        await client.get("/v1/sessions")  # May find that its connection was ended.
        refused = await client.post("/v1/sessions/s/events", json=APPEND)
        assert (refused.status_code, refused.json()["type"].split(":")[-1]) == (503, "database-unavailable")
        assert (await client.get("/v1/sessions/s/events")).status_code == 200
        await alter(database_url, "RESET default_transaction_read_only")
        # On a connection of its own, though the server did not end the one that was refused.
        answers = [await client.post("/v1/sessions/s/events", json=APPEND) for _ in range(3)]
        assert [answer.status_code for answer in answers][-1] == 201


async def alter(database_url, what):
    """For connections that are made from now on."""
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute(f'ALTER DATABASE "{name}" {what}')
    await connection.close()


async def end_connections(database_url):
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()
