"""Turn leases, how far a log was answered, and what triggers and failures of compaction are told by."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    # `answered_seq`: a reply up to there was delivered, whether or not the message filter let it be stored.
    "ALTER TABLE sessions ADD COLUMN answered_seq bigint NOT NULL DEFAULT 0",
    # Tokens of the latest system message, and of those that it took the place of: a trigger does not count these.
    "ALTER TABLE sessions ADD COLUMN system_token_count bigint NOT NULL DEFAULT 0",
    "ALTER TABLE sessions ADD COLUMN superseded_token_count bigint NOT NULL DEFAULT 0",
    """
    UPDATE sessions s SET system_token_count = found.latest, superseded_token_count = found.total - found.latest
    FROM (
        SELECT session_key, sum(tokens) AS total, (array_agg(tokens ORDER BY seq DESC))[1] AS latest
        FROM events JOIN active_events a USING (session_key, seq) WHERE events.type = 'system' GROUP BY session_key
    ) found
    WHERE s.key = found.session_key
    """,
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
    op.execute("SET LOCAL lock_timeout = '2s'")
    for statement in STATEMENTS:
        op.execute(statement)
