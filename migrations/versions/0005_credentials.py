"""Service keys that are made and revoked while the service runs; whose tokens are void."""

from alembic import op

revision = "0005"
down_revision = "0004"

STATEMENTS = (
    """
    CREATE TABLE service_keys (
        id text COLLATE "C" PRIMARY KEY,
        name text NOT NULL,
        prefix text NOT NULL,
        digest bytea NOT NULL,
        created_at timestamptz NOT NULL,
        last_used_at timestamptz,
        revoked_at timestamptz,
        CONSTRAINT service_keys_digest UNIQUE (digest)
    )
    """,
    """
    CREATE TABLE erased_users (
        user_digest bytea PRIMARY KEY,
        erased_at timestamptz NOT NULL
    )
    """,
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '2s'")
    for statement in STATEMENTS:
        op.execute(statement)
