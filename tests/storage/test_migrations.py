"""Migrations: from nothing, from every earlier revision with data, by several replicas, beside other releases."""

import asyncio

import pytest
from alembic.script import ScriptDirectory

from app.domain.events import NewEvent
from app.services.append import append_events
from app.storage import migrations, sessions
from tests.conftest import database_at
from tests.storage.plans import connect, make_log
from tests.storage.schema_steps import migrate_to

REVISIONS = [script.revision for script in ScriptDirectory.from_config(migrations._config()).walk_revisions()]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_data_of_an_earlier_revision_is_there_and_of_use(empty_url, revision):
    await migrate_to(empty_url, revision)
    connection = await connect(empty_url)
    # The third of three system messages is the latest; the first was archived.
    await make_log(connection, "s", events=6, archived=1, type="CASE WHEN n % 2 = 1 THEN 'system' ELSE 'user' END")
    await connection.execute("UPDATE sessions SET active_token_count = 5, active_turn_count = 3")
    await connection.close()

    async with migrated(empty_url) as db:
        if revision == "0001":
            async with db.autocommit() as connection:
                session = await sessions.get(connection, "s")
            assert (session.active_token_count, session.superseded_token_count) == (5, 1)
        await append_to(db, "s", version=7)


async def test_replicas_that_start_at_once_migrate_once(empty_url):
    replicas = [database_at(empty_url) for _ in range(4)]
    await asyncio.gather(*(replica.migrate() for replica in replicas))
    assert all(await asyncio.gather(*(replica.is_migrated() for replica in replicas)))
    for replica in replicas:
        await replica.close()


async def test_a_replica_that_waits_for_its_turn_holds_no_snapshot(empty_url):
    """CREATE INDEX CONCURRENTLY waits for all snapshots: one that waits for it in turn would be a deadlock."""
    db = database_at(empty_url)
    async with migrations._turn(db._unlimited):
        other = database_at(empty_url)
        waiting = asyncio.create_task(other.migrate())
        watcher = await connect(empty_url)
        await until(watcher, OTHERS_THAT_ASKED)
        await watcher.execute("CREATE TABLE log (word text)")
        await watcher.execute("SET lock_timeout = '20s'")
        await watcher.execute("CREATE INDEX CONCURRENTLY words ON log (word)", timeout=60)
        assert not waiting.done()
        await watcher.execute("DROP TABLE log")
        await watcher.close()
    await waiting
    assert await db.is_migrated()
    await db.close()
    await other.close()


@pytest.mark.parametrize("name", ["per%cent", "50%25", "a b+c@d/e?f#ü"])
async def test_any_name_of_a_database_works_in_its_url(postgres, name):
    postgres.ensure_database(name)
    async with migrated(postgres.database_url(name)) as db:
        async with db.autocommit() as connection:
            assert (await connection.exec_driver_sql("SELECT current_database()")).scalar() == name


async def test_a_database_that_a_newer_release_migrated_is_served(empty_url):
    """That release, and this one again if it is taken back, run beside each other."""
    async with migrated(empty_url) as db:
        await set_revision(empty_url, "9999")
        await db.migrate()
        assert await db.is_migrated()
        assert await revision_of(empty_url) == "9999"
        connection = await connect(empty_url)
        await make_log(connection, "s", events=2)
        await connection.close()
        await append_to(db, "s", version=3)


async def test_a_database_of_something_else_is_left_alone(empty_url):
    async with migrated(empty_url) as db:
        await set_revision(empty_url, "3f2a")
        with pytest.raises(migrations.MigrationError, match="'3f2a', which is none of Turnkeeper's"):
            await db.migrate()
        assert not await db.is_migrated()


async def test_a_migration_that_a_long_transaction_keeps_waiting_lets_others_pass(empty_url, monkeypatch):
    """It gives up its place in the queue of the table, tries again, and ends with a sentence in the end."""
    await migrate_to(empty_url, "0001")
    monkeypatch.setattr(migrations, "_PAUSES_SECONDS", (0.1, 0.1))
    long, short = await connect(empty_url), await connect(empty_url)
    db = database_at(empty_url)
    await long.execute("BEGIN; LOCK TABLE sessions IN ACCESS SHARE MODE")
    migrating = asyncio.create_task(db.migrate())
    await until(short, WAITS_FOR_A_TABLE)
    # Behind the migration in the queue: without the time limit it would never be answered.
    assert await short.fetchval("SELECT count(*) FROM sessions", timeout=60) == 0
    with pytest.raises(migrations.MigrationError, match="A long transaction holds a table"):
        await migrating
    assert await revision_of(empty_url) == "0001"

    monkeypatch.setattr(migrations, "_PAUSES_SECONDS", (0.1,) * 100)
    migrating = asyncio.create_task(db.migrate())
    await until(short, WAITS_FOR_A_TABLE)
    await long.execute("COMMIT")
    await migrating
    assert await db.is_migrated()
    for opened in (long, short, db):
        await opened.close()


OTHERS_THAT_ASKED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'COMMIT%'
"""
WAITS_FOR_A_TABLE = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'sessions'::regclass
"""


async def until(connection, query):
    async with asyncio.timeout(60):
        while not await connection.fetchval(query):  # noqa: ASYNC110 - what is waited for happens in the server
            await asyncio.sleep(0.01)


class migrated:  # noqa: N801
    """A database at the newest revision, as long as the block lasts."""

    def __init__(self, url):
        self._db = database_at(url)

    async def __aenter__(self):
        await self._db.migrate()
        assert await self._db.is_migrated()
        return self._db

    async def __aexit__(self, *_):
        await self._db.close()


async def append_to(db, session_id, *, version):
    event = NewEvent(id="new", message={"role": "user", "content": "And now?"}, tokens=1)
    assert (await append_events(db, session_id, [event], named=True)).event_version == version


async def revision_of(url):
    connection = await connect(url)
    try:
        return await connection.fetchval("SELECT version_num FROM alembic_version")
    finally:
        await connection.close()


async def set_revision(url, revision):
    connection = await connect(url)
    await connection.execute("UPDATE alembic_version SET version_num = $1", revision)
    await connection.close()
