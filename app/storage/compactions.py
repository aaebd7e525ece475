"""Applying a compaction plan: archive, insert a summary, move the counters; all of it or nothing."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.compaction import Plan
from app.domain.errors import PlanRefused
from app.domain.events import NewEvent
from app.storage.append import event_columns
from app.storage.sessions import LIVE_SQL

# The lock, and the comparison: another compaction since the plan was made moved the generation.
_LOCK = text(f"""
SELECT key FROM sessions WHERE key = :key AND compaction_generation = :generation AND {LIVE_SQL} FOR UPDATE
""")  # noqa: S608

_ARCHIVE = text("""
WITH archived AS (
    DELETE FROM active_events WHERE session_key = :key AND seq = ANY(CAST(:seqs AS bigint[])) RETURNING seq
)
SELECT count(*) AS events,
       count(*) FILTER (WHERE e.type = 'user' AND NOT e.synthetic) AS turns,
       coalesce(sum(e.tokens), 0)::bigint AS tokens,
       coalesce(sum(e.tokens) FILTER (WHERE e.type = 'system'), 0)::bigint AS system_tokens
FROM archived a JOIN events e ON e.session_key = :key AND e.seq = a.seq
""")

# The lowest free seqs after the event that precedes the anchor: appends leave gaps for this (ADR 0001).
_INSERT = text("""
WITH anchor AS (
    SELECT seq, (SELECT max(e.seq) FROM events e WHERE e.session_key = :key AND e.seq < a.seq) AS preceding
    FROM active_events a WHERE a.session_key = :key AND a.seq = :before
), written AS (
    INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                        tokens, synthetic, recall_result, tool_calls, metadata)
    SELECT s.key, coalesce(anchor.preceding, 0) + i.place, i.id, s.user_id, i.type, now(), CAST(i.message AS json),
           i.digest, i.search_text, i.tokens, i.synthetic, false, CAST(i.tool_calls AS json), CAST(i.metadata AS json)
    FROM sessions s CROSS JOIN anchor CROSS JOIN unnest(
        CAST(:ids AS text[]), CAST(:types AS text[]), CAST(:messages AS text[]), CAST(:digests AS bytea[]),
        CAST(:search_texts AS text[]), CAST(:tokens AS int[]), CAST(:synthetic AS boolean[]),
        CAST(:tool_calls AS text[]), CAST(:metadata AS text[])
    ) WITH ORDINALITY AS i (id, type, message, digest, search_text, tokens, synthetic, tool_calls, metadata, place)
    WHERE s.key = :key AND coalesce(anchor.preceding, 0) + i.place < anchor.seq
    RETURNING session_key, seq, type
), activated AS (
    INSERT INTO active_events (session_key, seq, type) SELECT session_key, seq, type FROM written
)
SELECT count(*) FROM written
""")

_MOVE = text("""
UPDATE sessions SET
    event_version = event_version + 1,
    compaction_generation = compaction_generation + 1,
    compaction_failures = 0,
    compaction_retry_at = NULL,
    event_count = event_count + :inserted,
    active_event_count = active_event_count + :inserted - :events,
    active_turn_count = active_turn_count - :turns,
    active_token_count = active_token_count + :inserted_tokens - :tokens,
    superseded_token_count = superseded_token_count - :system_tokens
WHERE key = :key
RETURNING event_version
""")

_FAILED = text("""
UPDATE sessions SET
    compaction_failures = compaction_failures + 1,
    compaction_retry_at = now() + least(3600, 30 * power(2, least(compaction_failures, 10))) * interval '1 second'
WHERE key = :key
""")


async def note_failure(connection: AsyncConnection, session_key: int) -> None:
    """Have the next compaction of a chat wait: half a minute, doubled with each failure in a row, at most an hour."""
    await connection.execute(_FAILED, {"key": session_key})


async def apply(connection: AsyncConnection, session_key: int, plan: Plan, *, generation: int) -> int | None:
    """The version afterwards; None, and nothing changed, when another compaction came first or the session is gone.

    Raises PlanRefused when the plan names what is not active; the transaction must end with that.
    """
    key = {"key": session_key}
    if (await connection.execute(_LOCK, key | {"generation": generation})).one_or_none() is None:
        return None
    archived = (await connection.execute(_ARCHIVE, key | {"seqs": list(plan.archive)})).mappings().one()
    if archived["events"] != len(plan.archive):
        raise PlanRefused("It archives events that are not in the active window.")
    if plan.insert:
        await _insert(connection, session_key, plan.insert, plan.before)
    moved = await connection.execute(
        _MOVE,
        key
        | dict(archived)
        | {"inserted": len(plan.insert), "inserted_tokens": sum(event.tokens for event in plan.insert)},
    )
    return int(moved.scalar_one())


async def _insert(
    connection: AsyncConnection, session_key: int, inserted: Sequence[NewEvent], before: int | None
) -> None:
    columns = event_columns(inserted) | {"digests": [event.digest for event in inserted]}
    columns.pop("timestamps")
    parameters = {"key": session_key, "before": before, **columns}
    if await connection.scalar(_INSERT, parameters) != len(inserted):
        raise PlanRefused("It inserts before an event that is not in the active window, or that has no room.")
