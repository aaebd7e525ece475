"""Sessions, the insert-only log, and the narrow table of active events."""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE EXTENSION IF NOT EXISTS btree_gin",
    # `key` is the session for everything that hangs on it; `id` is only its name, and may be given anew.
    # Ids are compared by byte on every server, hence COLLATE "C".
    """
    CREATE TABLE sessions (
        key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        created_at timestamptz NOT NULL,
        expires_at timestamptz,
        ttl_seconds bigint,
        ttl_sliding boolean NOT NULL,
        allow_system_messages boolean NOT NULL,
        metadata json NOT NULL,
        event_version bigint NOT NULL DEFAULT 0,
        compaction_generation bigint NOT NULL DEFAULT 0,
        last_seq bigint NOT NULL DEFAULT 0,
        event_count bigint NOT NULL DEFAULT 0,
        active_event_count bigint NOT NULL DEFAULT 0,
        active_turn_count bigint NOT NULL DEFAULT 0,
        active_token_count bigint NOT NULL DEFAULT 0,
        last_event_at timestamptz,
        deleted_at timestamptz
    ) WITH (fillfactor = 70)
    """,
    "CREATE UNIQUE INDEX sessions_id ON sessions (id) WHERE deleted_at IS NULL",
    # Not partial: a plan that is made while the table is empty takes all of a partial index for as quick to read as
    # one row of another.
    "CREATE INDEX sessions_of_user ON sessions (user_id, created_at DESC, id DESC)",
    "CREATE INDEX sessions_newest ON sessions (created_at DESC, id DESC)",
    "CREATE INDEX sessions_expiry ON sessions (expires_at) WHERE deleted_at IS NULL AND expires_at IS NOT NULL",
    "CREATE INDEX sessions_to_purge ON sessions (key) WHERE deleted_at IS NOT NULL",
    # The log is only ever inserted into: archiving touches the narrow table below, never these indexes.
    # No foreign key: events enter only under the lock of their session's row, and leave before it does.
    """
    CREATE TABLE events (
        session_key bigint NOT NULL,
        seq bigint NOT NULL,
        id text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        type text COLLATE "C" NOT NULL,
        timestamp timestamptz NOT NULL,
        message json NOT NULL,
        digest bytea NOT NULL,
        search_text text COLLATE "C",
        tokens integer NOT NULL,
        synthetic boolean NOT NULL,
        recall_result boolean NOT NULL,
        tool_calls json,
        metadata json NOT NULL,
        CONSTRAINT events_pkey PRIMARY KEY (session_key, seq),
        CONSTRAINT events_id_is_unique UNIQUE (session_key, id),
        CONSTRAINT events_type_is_known CHECK (type IN ('user', 'assistant', 'system', 'tool'))
    )
    """,
    "CREATE INDEX events_turn_starts ON events (session_key, seq) WHERE type = 'user'",
    "CREATE INDEX events_system ON events (session_key, seq) WHERE type = 'system'",
    "CREATE INDEX events_tool_calls ON events (session_key, seq) WHERE tool_calls IS NOT NULL",
    "CREATE INDEX events_of_user ON events (user_id, timestamp, session_key, seq)",
    # 1 MB halves the worst stall of an insert under 16 writers at the same rate.
    """
    CREATE INDEX events_search ON events USING gin (user_id, search_text gin_trgm_ops)
        WITH (gin_pending_list_limit = 1024)
    """,
    # A session belongs to one user: without this the planner takes the two for independent.
    "CREATE STATISTICS events_owner (dependencies, ndistinct) ON user_id, session_key FROM events",
    """
    CREATE TABLE active_events (
        session_key bigint NOT NULL,
        seq bigint NOT NULL,
        type text COLLATE "C" NOT NULL,
        CONSTRAINT active_events_pkey PRIMARY KEY (session_key, seq)
    )
    """,
    "CREATE INDEX active_events_turn_starts ON active_events (session_key, seq) WHERE type = 'user'",
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '2s'")
    for statement in STATEMENTS:
        op.execute(statement)
