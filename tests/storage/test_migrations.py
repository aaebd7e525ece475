"""Migrations: from nothing, from every earlier revision with data in it, and by several replicas at once."""

import asyncio
from itertools import count

import pytest
from alembic import command
from alembic.script import ScriptDirectory

from app.domain.events import NewEvent
from app.services.append import append_events
from app.storage import migrations, sessions
from tests.conftest import database_at
from tests.storage.plans import connect, make_log

REVISIONS = [script.revision for script in ScriptDirectory.from_config(migrations._config()).walk_revisions()]

_names = count()


@pytest.fixture
async def empty_url(postgres):
    name = f"migrated_{next(_names)}"
    postgres.ensure_database(name)
    return postgres.database_url(name)


async def migrate_to(url, revision):
    def upgrade(connection):
        config = migrations._config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    db = database_at(url)
    async with db._log.begin() as connection:
        await connection.run_sync(upgrade)
    await db.close()


@pytest.mark.parametrize("revision", REVISIONS)
async def test_data_of_an_earlier_revision_is_there_and_of_use(empty_url, revision):
    await migrate_to(empty_url, revision)
    connection = await connect(empty_url)
    # The third of three system messages is the latest; the first was archived.
    await make_log(connection, "s", events=6, archived=1, type="CASE WHEN n % 2 = 1 THEN 'system' ELSE 'user' END")
    await connection.execute("UPDATE sessions SET active_token_count = 5, active_turn_count = 3")
    await connection.close()

    db = database_at(empty_url)
    await db.migrate()
    assert await db.is_migrated()
    if revision == "0001":
        async with db.autocommit() as connection:
            session = await sessions.get(connection, "s")
        assert (session.active_token_count, session.superseded_token_count) == (5, 1)
    event = NewEvent(id="new", message={"role": "user", "content": "And now?"}, tokens=1)
    assert (await append_events(db, "s", [event], named=True)).event_version == 7
    await db.close()


async def test_replicas_that_start_at_once_migrate_once(empty_url):
    replicas = [database_at(empty_url) for _ in range(4)]
    await asyncio.gather(*(replica.migrate() for replica in replicas))
    assert all(await asyncio.gather(*(replica.is_migrated() for replica in replicas)))
    for replica in replicas:
        await replica.close()
