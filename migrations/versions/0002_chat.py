"""Turn leases, how far a log was answered, and when a chat's compaction may be tried again."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    # `answered_seq`: a reply up to there was delivered, whether or not the message filter let it be stored.
    "ALTER TABLE sessions ADD COLUMN answered_seq bigint NOT NULL DEFAULT 0",
    "ALTER TABLE sessions ADD COLUMN compaction_failures integer NOT NULL DEFAULT 0",
    "ALTER TABLE sessions ADD COLUMN compaction_retry_at timestamptz",
    # Whose turn a session is at: gone with the session, and at the latest when it expires.
    """
    CREATE TABLE turn_leases (
        session_key bigint PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
        token uuid NOT NULL,
        holder text NOT NULL,
        acquired_at timestamptz NOT NULL,
        expires_at timestamptz NOT NULL
    ) WITH (fillfactor = 70)
    """,
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '10s'")
    for statement in STATEMENTS:
        op.execute(statement)
