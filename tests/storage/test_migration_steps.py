"""Expand before contract: no migration breaks the release that still serves, nor keeps it waiting (ADR 8)."""

import re
from itertools import pairwise

import pytest
from alembic.script import ScriptDirectory

from app.storage import migrations
from tests.storage.schema_steps import migrate_to, migration_step, statement_step

SCRIPTS = {script.revision: script for script in ScriptDirectory.from_config(migrations._config()).walk_revisions()}
# They fill columns in the transaction that adds them. They were there before there was a release.
EXEMPT = {"0002", "0004"}

OLD = """
CREATE TABLE old (
    id bigint PRIMARY KEY, name text NOT NULL DEFAULT '', size integer, kind text NOT NULL, UNIQUE (kind, name)
)
"""


@pytest.mark.parametrize(("before", "revision"), [*pairwise([None, *sorted(SCRIPTS)])])
async def test_a_migration_leaves_the_previous_release_all_that_it_needs(empty_url, before, revision):
    if before:
        await migrate_to(empty_url, before)
    step = await migration_step(empty_url, revision)
    # A contract step says in `contract` why no release that may run beside this one needs what it takes away.
    assert step.breaks() == [] or getattr(SCRIPTS[revision].module, "contract", None)
    assert step.blocks() == [] or revision in EXEMPT


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DROP TABLE old", "old is gone"),
        ("ALTER TABLE old RENAME TO new", "old is gone"),
        ("ALTER TABLE old DROP COLUMN size", "old.size is gone"),
        ("ALTER TABLE old RENAME COLUMN size TO bytes", "old.size is gone"),
        ("ALTER TABLE old ALTER COLUMN size TYPE bigint", "old.size was integer, and is bigint"),
        ("ALTER TABLE old ALTER COLUMN size SET NOT NULL", "old.size has to be given"),
        ("ALTER TABLE old ALTER COLUMN name DROP DEFAULT", "old.name has to be given"),
        ("ALTER TABLE old ADD COLUMN colour text NOT NULL", "old.colour is new and has to be given"),
        ("ALTER TABLE old ADD CONSTRAINT small CHECK (size < 9)", "old: constraint small restricts what is written"),
        ("CREATE UNIQUE INDEX sizes ON old (size)", "old: index sizes restricts what is written"),
        ("ALTER TABLE old DROP CONSTRAINT old_kind_name_key", "old: constraint old_kind_name_key is gone"),
    ],
)
async def test_what_breaks_the_previous_release_is_told(shared_db, statement, why):
    step = await step_of(shared_db, statement)
    assert why in step.breaks()


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["ALTER TABLE old ALTER COLUMN size TYPE bigint"], "old is written anew"),
        (["ALTER TABLE old ADD COLUMN at timestamptz DEFAULT clock_timestamp()"], "old is written anew"),
        (["CREATE INDEX sizes ON old (size)"], "old is locked against writes: create indexes CONCURRENTLY"),
        (["LOCK TABLE old IN EXCLUSIVE MODE"], "old is locked against writes: create indexes CONCURRENTLY"),
        (
            ["ALTER TABLE old ADD COLUMN colour text", "UPDATE old SET colour = 'red'"],
            "old is altered and filled in one transaction: fill it in a migration of its own",
        ),
    ],
)
async def test_what_keeps_the_previous_release_waiting_is_told(shared_db, statements, why):
    step = await step_of(shared_db, *statements)
    assert why in step.blocks()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE new (id bigint PRIMARY KEY REFERENCES old (id), name text NOT NULL CHECK (name <> ''))",
        "ALTER TABLE old ADD COLUMN colour text",
        "ALTER TABLE old ADD COLUMN colour text NOT NULL DEFAULT 'red'",
        "ALTER TABLE old ALTER COLUMN name DROP NOT NULL",
        "UPDATE old SET size = 1 WHERE size IS NULL",
    ],
)
async def test_what_expands_passes(shared_db, statement):
    step = await step_of(shared_db, statement)
    assert (step.breaks(), step.blocks()) == ([], [])


@pytest.mark.parametrize("script", [*SCRIPTS.values()], ids=[*SCRIPTS])
def test_a_migration_waits_for_no_lock_for_long_and_goes_forward_only(script):
    with open(script.path) as file:  # noqa: PTH123
        seconds = re.findall(r"SET LOCAL lock_timeout = '(\d+)s'", file.read())
    assert seconds, "Without lock_timeout, everything behind a waiting ALTER TABLE waits as long as it does."
    assert all(int(given) <= 2 for given in seconds)
    assert not hasattr(script.module, "downgrade"), "A way back is another migration forward, or a backup."
    assert re.fullmatch(r"\d{4}", script.revision), "A release tells by the number whether a database is newer."


async def step_of(db, *statements):
    """The step of statements on a database that has the table `old`, undone afterwards."""
    async with db._unlimited.connect() as connection:
        await connection.exec_driver_sql(OLD)
        await connection.commit()
        try:
            return await connection.run_sync(statement_step, *statements)
        finally:
            await connection.rollback()
            await connection.exec_driver_sql("DROP TABLE old CASCADE")
            await connection.commit()
