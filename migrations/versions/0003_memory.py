"""Memory stores: small trees of text files, every version of a file kept."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = (
    # One row a store: the lock under which its edits follow one another, and the number of the latest.
    """
    CREATE TABLE memory_stores (
        store text COLLATE "C" PRIMARY KEY,
        last_version bigint NOT NULL DEFAULT 0,
        requests bigint NOT NULL DEFAULT 0,
        reminded_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE memory_files (
        store text COLLATE "C" NOT NULL REFERENCES memory_stores (store) ON DELETE CASCADE,
        path text COLLATE "C" NOT NULL,
        content text COLLATE "C" NOT NULL,
        bytes integer NOT NULL,
        version bigint NOT NULL,
        updated_at timestamptz NOT NULL,
        PRIMARY KEY (store, path)
    )
    """,
    # Of every edit what the file was afterwards; null: it was deleted.
    """
    CREATE TABLE memory_versions (
        store text COLLATE "C" NOT NULL REFERENCES memory_stores (store) ON DELETE CASCADE,
        path text COLLATE "C" NOT NULL,
        version bigint NOT NULL,
        content text COLLATE "C",
        edited_at timestamptz NOT NULL,
        tool text NOT NULL,
        session_id text COLLATE "C",
        PRIMARY KEY (store, path, version)
    )
    """,
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '2s'")
    for statement in STATEMENTS:
        op.execute(statement)
