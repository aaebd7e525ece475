"""The tables, as the migrations leave them."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, DateTime, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

sessions = Table(
    "sessions",
    metadata,
    Column("key", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("ttl_seconds", BigInteger),
    Column("ttl_sliding", Boolean, nullable=False),
    Column("allow_system_messages", Boolean, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("event_version", BigInteger, nullable=False),
    Column("compaction_generation", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("event_count", BigInteger, nullable=False),
    Column("active_event_count", BigInteger, nullable=False),
    Column("active_turn_count", BigInteger, nullable=False),
    Column("active_token_count", BigInteger, nullable=False),
    Column("last_event_at", DateTime(timezone=True)),
    Column("deleted_at", DateTime(timezone=True)),
    Column("answered_seq", BigInteger, nullable=False),
    Column("system_token_count", BigInteger, nullable=False),
    Column("superseded_token_count", BigInteger, nullable=False),
    Column("compaction_failures", Integer, nullable=False),
    Column("compaction_retry_at", DateTime(timezone=True)),
)

events = Table(
    "events",
    metadata,
    Column("session_key", BigInteger, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("timestamp", DateTime(timezone=True), nullable=False),
    Column("message", JSON, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("search_text", Text),
    Column("tokens", Integer, nullable=False),
    Column("synthetic", Boolean, nullable=False),
    Column("recall_result", Boolean, nullable=False),
    Column("tool_calls", JSON),
    Column("metadata", JSON, nullable=False),
)

active_events = Table(
    "active_events",
    metadata,
    Column("session_key", BigInteger, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("type", Text, nullable=False),
)
