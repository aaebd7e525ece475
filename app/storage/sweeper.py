"""Removing the rows of expired and deleted sessions, in batches; they are invisible already."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Any fixed number: it names the lock that one replica sweeps under.
_LOCK = 0x73776570

# The guard stands in the statement: a session that was extended in between survives.
_RETIRE = text("""
UPDATE sessions SET deleted_at = now()
WHERE deleted_at IS NULL AND expires_at <= now() AND key IN (
    SELECT key FROM sessions WHERE deleted_at IS NULL AND expires_at <= now()
    ORDER BY expires_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
""")

_PURGE_ACTIVE = text("""
DELETE FROM active_events WHERE (session_key, seq) IN (
    SELECT a.session_key, a.seq FROM sessions s JOIN active_events a ON a.session_key = s.key
    WHERE s.deleted_at IS NOT NULL LIMIT :batch
)
""")

_PURGE_EVENTS = text("""
DELETE FROM events WHERE (session_key, seq) IN (
    SELECT e.session_key, e.seq FROM sessions s JOIN events e ON e.session_key = s.key
    WHERE s.deleted_at IS NOT NULL LIMIT :batch
)
""")

_PURGE_SESSIONS = text("""
DELETE FROM sessions WHERE key IN (
    SELECT s.key FROM sessions s
    WHERE s.deleted_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM events e WHERE e.session_key = s.key)
      AND NOT EXISTS (SELECT FROM active_events a WHERE a.session_key = s.key)
    LIMIT :batch
)
""")


# Longer than any token lives: then there is none left to refuse.
_FORGET_ERASURES = text("DELETE FROM erased_users WHERE erased_at < now() - interval '31 days'")


async def try_lock(connection: AsyncConnection) -> bool:
    """Become the one that sweeps until the transaction ends; False when another is."""
    return bool(await connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": _LOCK}))


async def retire_expired(connection: AsyncConnection, batch: int) -> None:
    await connection.execute(_RETIRE, {"batch": batch})


async def forget_erasures(connection: AsyncConnection) -> None:
    await connection.execute(_FORGET_ERASURES)


async def purge(connection: AsyncConnection, batch: int) -> int:
    """Remove rows of deleted sessions, at most a batch of each table; returns how many were removed."""
    removed = 0
    for statement in (_PURGE_ACTIVE, _PURGE_EVENTS, _PURGE_SESSIONS):
        removed += (await connection.execute(statement, {"batch": batch})).rowcount
    return removed
