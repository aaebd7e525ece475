"""Histories of memory files follow them when they are renamed; a reminder that was not answered is owed."""

from alembic import op

revision = "0004"
down_revision = "0003"

STATEMENTS = (
    # A file keeps its own id under every name that it has. Until now its history ended with a name.
    "ALTER TABLE memory_files ADD COLUMN file uuid",
    "ALTER TABLE memory_files ALTER COLUMN file SET DEFAULT gen_random_uuid()",
    "ALTER TABLE memory_versions ADD COLUMN file uuid",
    "ALTER TABLE memory_versions ALTER COLUMN file SET DEFAULT gen_random_uuid()",
    """
    UPDATE memory_versions v SET file = p.file
    FROM (SELECT store, path, gen_random_uuid() AS file FROM memory_versions GROUP BY store, path) p
    WHERE p.store = v.store AND p.path = v.path
    """,
    """
    UPDATE memory_files f SET file = coalesce(
        (SELECT v.file FROM memory_versions v WHERE v.store = f.store AND v.path = f.path LIMIT 1), gen_random_uuid()
    )
    """,
    "ALTER TABLE memory_files ALTER COLUMN file SET NOT NULL",
    "ALTER TABLE memory_versions ALTER COLUMN file SET NOT NULL",
    "CREATE INDEX memory_versions_file ON memory_versions (store, file)",
    # The order of an export.
    "CREATE INDEX memory_versions_in_order ON memory_versions (store, version, path)",
    # What all versions of a store take, the current ones as well: each edit has to know.
    "ALTER TABLE memory_stores ADD COLUMN version_bytes bigint NOT NULL DEFAULT 0",
    """
    UPDATE memory_stores s SET version_bytes = v.bytes
    FROM (
        SELECT store, sum(500 + coalesce(octet_length(content), 0)) AS bytes FROM memory_versions GROUP BY store
    ) v
    WHERE v.store = s.store
    """,
    # The answer to the request that had the reminder never came: the next one has it again.
    "ALTER TABLE memory_stores ADD COLUMN reminder_owed boolean NOT NULL DEFAULT false",
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '2s'")
    for statement in STATEMENTS:
        op.execute(statement)
