"""What an earlier release says to its database still works on the newest schema, and while that is being made."""

import asyncio

import asyncpg
import pytest

from app.storage import migrations
from tests.conftest import database_at
from tests.storage.plans import connect
from tests.storage.recordings import FOLDER, Recording, Replay
from tests.storage.schema_steps import migrate_to
from tests.storage.traffic import converse

FIRST_RECORDED = "0003"
RECORDED = sorted(file.stem for file in FOLDER.glob("*.json"))


def recording_of(revision) -> Recording:
    return Recording.load(FOLDER / f"{revision}.json")


def test_every_release_that_a_migration_follows_is_recorded():
    followed = [revision for revision in migrations._known()[:-1] if revision >= FIRST_RECORDED]
    assert set(followed) <= set(RECORDED), "run `make recording` on the release before the new migration"


async def test_this_release_can_be_recorded(database_url):
    await converse(database_url)


@pytest.mark.parametrize("revision", RECORDED)
async def test_a_release_gets_the_same_from_the_newest_schema(empty_url, database_url, revision):
    recording = recording_of(revision)
    await migrate_to(empty_url, revision)
    then = await replayed(recording, empty_url)
    # Otherwise the recording says nothing: it writes and reads every table.
    assert len(then) == len(recording.calls) > 400
    assert {outcome.split()[0] for _, outcome in then} >= {"INSERT", "UPDATE", "DELETE", "SELECT", "BEGIN", "COMMIT"}
    assert await replayed(recording, database_url) == then


@pytest.mark.parametrize("revision", RECORDED)
@pytest.mark.parametrize("part", [0.05, 0.5, 0.95])
async def test_a_release_serves_while_the_database_is_migrated(empty_url, revision, part):
    recording = recording_of(revision)
    await migrate_to(empty_url, revision)
    replay = Replay(recording, lambda: connect(empty_url))
    before = int(len(recording.calls) * part)
    await replay.say(recording.calls[:before])
    db = database_at(empty_url)
    async with asyncio.TaskGroup() as both:
        both.create_task(db.migrate())
        both.create_task(replay.say(recording.calls[before:]))
    assert await db.is_migrated()
    await db.close()
    await replay.close()
    written = [outcome for _, outcome in replay.outcomes if outcome.startswith("INSERT")]
    assert len(replay.outcomes) == len(recording.calls)
    assert len([outcome for outcome in written if outcome != "INSERT 0 0"]) > 10


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE sessions RENAME COLUMN last_seq TO newest_seq",
        "ALTER TABLE events DROP COLUMN digest",
        "ALTER TABLE events ADD COLUMN language text NOT NULL",
        "ALTER TABLE memory_files DROP COLUMN bytes",
        "ALTER TABLE turn_leases ADD CONSTRAINT named CHECK (holder = 'me')",
        "DROP TABLE memory_versions",
    ],
)
async def test_a_schema_that_breaks_a_release_is_noticed(database_url, statement):
    connection = await connect(database_url)
    await connection.execute(statement)
    await connection.close()
    with pytest.raises(asyncpg.PostgresError):
        await replayed(recording_of(RECORDED[-1]), database_url)


@pytest.mark.parametrize("revision", RECORDED)
async def test_every_table_is_spoken_of(empty_url, revision):
    await migrate_to(empty_url, revision)
    connection = await connect(empty_url)
    tables = [row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    await connection.close()
    statements = " ".join(recording_of(revision).statements)
    spoken = [table for table in tables if f"INSERT INTO {table}" in statements and f"FROM {table}" in statements]
    assert sorted([*spoken, "alembic_version"]) == sorted(tables)


async def replayed(recording, url):
    replay = Replay(recording, lambda: connect(url))
    try:
        async with asyncio.timeout(300):
            await replay.say(recording.calls)
    finally:
        await replay.close()
    return replay.outcomes
