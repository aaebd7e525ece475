"""What a migration does to the release that still serves: what it takes away, what it demands, what it locks."""

from dataclasses import dataclass

from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from app.storage import migrations
from tests.conftest import database_at

_TABLES = """
SELECT relname, pg_relation_filenode(oid) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'alembic_version'
"""
_COLUMNS = """
SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull,
       atthasdef OR attidentity <> '' OR NOT attnotnull
FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
"""
# Not-null constraints (n) are told by their columns.
_RULES = """
SELECT conrelid::regclass::text, 'constraint ' || conname, contype <> 'n' FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
UNION ALL
SELECT indrelid::regclass::text, 'index ' || indexrelid::regclass, indisunique FROM pg_index
JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace
UNION ALL
SELECT tgrelid::regclass::text, 'trigger ' || tgname, true FROM pg_trigger WHERE NOT tgisinternal
"""
_LOCKS = """
SELECT relation::regclass::text, mode FROM pg_locks
WHERE pid = pg_backend_pid() AND locktype = 'relation' AND granted
"""


@dataclass(frozen=True)
class Schema:
    """The tables of a database, as far as statements depend on them."""

    files: dict[str, int]
    columns: dict[tuple[str, str], tuple[str, bool, bool]]  # type, not null, filled in when left out
    rules: dict[tuple[str, str], bool]  # whether it restricts what may be written

    @classmethod
    def of(cls, connection: Connection) -> "Schema":
        def rows(query):
            return connection.execute(text(query)).all()

        return cls(
            files=dict(tuple(row) for row in rows(_TABLES)),
            columns={(row[0], row[1]): tuple(row[2:]) for row in rows(_COLUMNS)},
            rules={(row[0], row[1]): row[2] for row in rows(_RULES)},
        )


@dataclass(frozen=True)
class Step:
    """One migration: the schema before and after, and the locks that it held when it was done."""

    before: Schema
    after: Schema
    locks: set[tuple[str, str]]

    def breaks(self) -> list[str]:
        """What fails in the previous release from now on, or is slow: for a contract step only."""
        return [*self._taken(), *self._demanded()]

    def blocks(self) -> list[str]:
        """What keeps the previous release waiting for as long as a table is large."""
        held = {(table, mode) for table, mode in self.locks if table in self.before.files}
        altered = {table for table, mode in held if mode == "AccessExclusiveLock"}
        return [
            *(f"{table} is written anew" for table, file in self.before.files.items() if self._rewrites(table, file)),
            *(
                f"{table} is locked against writes: create indexes CONCURRENTLY"
                for table, mode in held
                if mode in ("ShareLock", "ExclusiveLock")
            ),
            *(
                f"{table} is altered and filled in one transaction: fill it in a migration of its own"
                for table, mode in held
                if mode == "RowExclusiveLock" and table in altered
            ),
        ]

    def _rewrites(self, table, file):
        return self.after.files.get(table, file) != file

    def _taken(self):
        yield from (f"{table} is gone" for table in self.before.files.keys() - self.after.files)
        yield from (f"{on}: {name} is gone" for on, name in self.before.rules.keys() - self.after.rules)
        for (table, column), (kind, required, filled) in self.before.columns.items():
            now = self.after.columns.get((table, column))
            if now is None:
                yield f"{table}.{column} is gone"
            elif now[0] != kind:
                yield f"{table}.{column} was {kind}, and is {now[0]}"
            elif (now[1] and not required) or (filled and not now[2]):
                yield f"{table}.{column} has to be given"

    def _demanded(self):
        for (table, column), (_, _, filled) in self.after.columns.items():
            if table in self.before.files and (table, column) not in self.before.columns and not filled:
                yield f"{table}.{column} is new and has to be given"
        for (table, name), restricts in self.after.rules.items():
            if table in self.before.files and restricts and (table, name) not in self.before.rules:
                yield f"{table}: {name} restricts what is written"


def statement_step(connection: Connection, *statements: str) -> Step:
    """The step that statements make in the transaction that runs."""
    before = Schema.of(connection)
    for statement in statements:
        connection.execute(text(statement))
    return _step(before, connection)


async def migration_step(url: str, revision: str) -> Step:
    """The step of one migration, on a database that is at the revision before."""
    found: list[Step] = []

    def migrate(connection: Connection) -> None:
        before = Schema.of(connection)
        connection.commit()
        run_migrations(connection, revision, on_version_apply=lambda **_: found.append(_step(before, connection)))

    await _on_a_connection(url, migrate)
    return found[0]


async def migrate_to(url: str, revision: str) -> None:
    await _on_a_connection(url, lambda connection: run_migrations(connection, revision))


def run_migrations(connection: Connection, revision: str, **options) -> None:
    """As `migrations/env.py` runs them, up to a revision."""
    config = migrations._config()
    script = ScriptDirectory.from_config(config)
    with EnvironmentContext(config, script, fn=lambda current, _: script._upgrade_revs(revision, current)) as steps:
        steps.configure(connection=connection, transaction_per_migration=True, **options)
        with steps.begin_transaction():
            steps.run_migrations()


def _step(before: Schema, connection: Connection) -> Step:
    # Read first: looking at the schema takes locks as well, though weak ones.
    locks = {tuple(row) for row in connection.execute(text(_LOCKS))}
    return Step(before, Schema.of(connection), locks)


async def _on_a_connection(url: str, work) -> None:
    db = database_at(url)
    async with db._unlimited.connect() as connection:
        await connection.run_sync(work)
    await db.close()
