"""Everything that is held, out and in again without loss.

An export reads short statements, each continuing where the one before ended: no connection is held between them.
Putting back is idempotent and may be broken off anywhere: what is there already is left as it is, and the version and
counters of a session move with the events that enter, so that they end where they stood when the export was made.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import json_values
from app.domain.errors import NotOwner, SessionExists, SessionGone
from app.domain.exports import EventRecord, ExportRecord, SessionRecord
from app.storage import memories, memory_histories
from app.storage.append import event_columns
from app.storage.database import Database
from app.storage.scans import BATCH_BYTES, BATCH_EVENTS, SIZE_SQL
from app.storage.sessions import LIVE_SQL, live, retire_expired
from app.storage.tables import sessions

# What the keys and names of so many sessions take is all that is held of them at a time.
BATCH_SESSIONS = 500

# Each up to the largest file that a memory keeps.
BATCH_VERSIONS = 20

# `read` tells whether the batch has all that the limit let through, or ends at the bound on bytes.
_EVENTS = text(f"""
SELECT * FROM (
    SELECT e.*, count(*) OVER () AS read, sum(e.size) OVER (ORDER BY e.seq) - e.size AS size_before,
           NOT EXISTS (SELECT FROM active_events a WHERE a.session_key = :key AND a.seq = e.seq) AS archived
    FROM (
        SELECT seq, id, timestamp, message, tokens, synthetic, recall_result, metadata,
               {SIZE_SQL} AS size
        FROM events WHERE session_key = :key AND seq > :after AND seq <= :last_seq
        ORDER BY seq LIMIT :limit
    ) e
) batch WHERE size_before <= :bytes ORDER BY seq
""")  # noqa: S608

_FIND_SESSION = text(f"SELECT key, user_id, created_at FROM sessions WHERE id = :id AND {LIVE_SQL}")  # noqa: S608

# The version begins where it stood without these events: the compactions remain. It is below zero, until they are
# in, where compactions brought in more summaries than they count for.
_RESTORE_SESSION = text("""
INSERT INTO sessions (id, user_id, created_at, expires_at, ttl_seconds, ttl_sliding, allow_system_messages, metadata,
                      event_version, compaction_generation, last_seq, last_event_at, answered_seq)
SELECT :id, :user_id, CAST(:created_at AS timestamptz), CAST(:expires_at AS timestamptz),
       CAST(:ttl_seconds AS bigint), :ttl_sliding, :allow_system_messages, CAST(:metadata AS json),
       CAST(:event_version AS bigint) - CAST(:event_count AS bigint), CAST(:compaction_generation AS bigint),
       CAST(:last_seq AS bigint), CAST(:last_event_at AS timestamptz), CAST(:answered_seq AS bigint)
WHERE CAST(:expires_at AS timestamptz) IS NULL OR CAST(:expires_at AS timestamptz) > now()
ON CONFLICT (id) WHERE deleted_at IS NULL DO NOTHING
RETURNING key
""")

_RESTORE_EVENTS = text(f"""
WITH target AS MATERIALIZED (
    SELECT key, user_id FROM sessions WHERE key = :key AND {LIVE_SQL} FOR UPDATE
), incoming AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:ids AS text[]), CAST(:seqs AS bigint[]), CAST(:types AS text[]), CAST(:timestamps AS timestamptz[]),
        CAST(:messages AS text[]), CAST(:digests AS bytea[]), CAST(:search_texts AS text[]), CAST(:tokens AS int[]),
        CAST(:synthetic AS boolean[]), CAST(:archived AS boolean[]), CAST(:recall_results AS boolean[]),
        CAST(:tool_calls AS text[]), CAST(:metadata AS text[])
    ) AS i (
        id, seq, type, timestamp, message, digest, search_text, tokens, synthetic, archived, recall_result,
        tool_calls, metadata
    )
), written AS (
    INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                        tokens, synthetic, recall_result, tool_calls, metadata)
    SELECT t.key, i.seq, i.id, t.user_id, i.type, i.timestamp, CAST(i.message AS json), i.digest, i.search_text,
           i.tokens, i.synthetic, i.recall_result, CAST(i.tool_calls AS json), CAST(i.metadata AS json)
    FROM target t CROSS JOIN incoming i
    ON CONFLICT DO NOTHING
    RETURNING seq, id
), active AS MATERIALIZED (
    SELECT i.* FROM written w JOIN incoming i ON i.seq = w.seq AND i.id = w.id WHERE NOT i.archived
), activated AS (
    INSERT INTO active_events (session_key, seq, type) SELECT t.key, a.seq, a.type FROM target t CROSS JOIN active a
), total AS (
    SELECT count(*) AS events, count(*) FILTER (WHERE type = 'user' AND NOT synthetic) AS turns,
           coalesce(sum(tokens), 0) AS tokens
    FROM active
), moved AS (
    UPDATE sessions s SET
        event_version = s.event_version + (SELECT count(*) FROM written),
        event_count = s.event_count + (SELECT count(*) FROM written),
        active_event_count = s.active_event_count + total.events,
        active_turn_count = s.active_turn_count + total.turns,
        active_token_count = s.active_token_count + total.tokens
    FROM target t, total
    WHERE s.key = t.key AND EXISTS (SELECT FROM written)
)
SELECT (SELECT count(*) FROM target) AS targets, (SELECT array_agg(seq) FROM written) AS written
""")  # noqa: S608

_RECOUNT_SYSTEM = text("""
UPDATE sessions s SET system_token_count = found.latest, superseded_token_count = found.total - found.latest
FROM (
    SELECT coalesce(sum(e.tokens), 0) AS total, coalesce((array_agg(e.tokens ORDER BY e.seq DESC))[1], 0) AS latest
    FROM events e JOIN active_events a USING (session_key, seq) WHERE e.session_key = :key AND e.type = 'system'
) found
WHERE s.key = :key
""")

_KNOWN_EVENTS = text("""
SELECT id, seq, digest FROM events WHERE session_key = :key AND id = ANY(CAST(:ids AS text[]))
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """How many events entered; which were there already; which are in conflict with what is there, by their place."""

    added: int
    known: int
    conflicting: tuple[int, ...]


async def export(
    db: Database, *, user_id: str | None = None, session_id: str | None = None
) -> AsyncIterator[list[ExportRecord]]:
    """Sessions by (created_at, id), each followed by its events by seq: of a user, of one session, or all.

    But of one session alone, the versions of memory files come behind. Raises SessionGone when a session is deleted
    while its log is being read: half a log must not pass for a whole.
    """
    after: tuple[datetime, str] | None = None
    while names := await _next_sessions(db, user_id, session_id, after):
        for name in names:
            async for batch in _session_with_events(db, name["key"]):
                yield batch
        after = (names[-1]["created_at"], names[-1]["id"])
    if session_id is None:
        async for versions in _memory_versions(db, user_id):
            yield versions


async def _memory_versions(db: Database, user_id: str | None) -> AsyncIterator[list[ExportRecord]]:
    async with db.searching() as connection:
        stores = await memories.stores(connection, user_id)
    for store, last in stores.items():
        after = (0, "")
        while True:
            async with db.searching() as connection:
                batch = await memory_histories.versions_after(connection, store, after, last, BATCH_VERSIONS)
            if not batch:
                break
            yield [*batch]
            after = (batch[-1].version, batch[-1].path)


async def restore_session(connection: AsyncConnection, record: SessionRecord) -> int | None:
    """The key of the session, created without its events when it is not there; None when it has expired.

    Raises NotOwner, and SessionExists when another session has the id: one that was created at another time.
    """
    for _ in range(2):
        found = (await connection.execute(_FIND_SESSION, {"id": record.id})).mappings().one_or_none()
        if found is not None:
            return _same_session(found, record)
        await retire_expired(connection, record.id)
        if (key := await connection.scalar(_RESTORE_SESSION, _session_columns(record))) is not None:
            return int(key)
    return None


async def restore_events(connection: AsyncConnection, session_key: int, records: Sequence[EventRecord]) -> Restored:
    """Put events, each with an id of its own, back at their places in the log. Raises SessionGone."""
    digests = [record.digest for record in records]
    parameters = event_columns(records) | {
        "key": session_key,
        "seqs": [record.seq for record in records],
        "digests": digests,
        "archived": [record.archived for record in records],
        "recall_results": [record.recall_result for record in records],
    }
    row = (await connection.execute(_RESTORE_EVENTS, parameters)).mappings().one()
    if not row["targets"]:
        raise SessionGone
    if any(record.type == "system" for record in records):
        await connection.execute(_RECOUNT_SYSTEM, {"key": session_key})
    if len(written := row["written"] or ()) == len(records):
        return Restored(added=len(written), known=0, conflicting=())
    rows = await connection.execute(_KNOWN_EVENTS, {"key": session_key, "ids": [record.id for record in records]})
    held = {(id_, seq, digest) for id_, seq, digest in rows}
    conflicting = tuple(
        place
        for place, (record, digest) in enumerate(zip(records, digests, strict=True))
        if (record.id, record.seq, digest) not in held
    )
    return Restored(added=len(written), known=len(records) - len(written) - len(conflicting), conflicting=conflicting)


async def _next_sessions(
    db: Database, user_id: str | None, session_id: str | None, after: tuple[datetime, str] | None
) -> Sequence[RowMapping]:
    place = (sessions.c.created_at, sessions.c.id)
    query = select(sessions.c.key, *place).where(live()).order_by(*place).limit(BATCH_SESSIONS)
    if user_id is not None:
        query = query.where(sessions.c.user_id == user_id)
    if session_id is not None:
        query = query.where(sessions.c.id == session_id)
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(*after))
    async with db.searching() as connection:
        return (await connection.execute(query)).mappings().all()


async def _session_with_events(db: Database, key: int) -> AsyncIterator[list[ExportRecord]]:
    """Of events appended meanwhile nothing is told: the log is read as far as it went when its session was."""
    async with db.searching() as connection:
        query = select(sessions).where(sessions.c.key == key, live())
        row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            return
        session = _session_of(row)
        events, is_last = await _events_after(connection, key, session, -1)
    count = len(events)
    if is_last and count < session.event_count:
        return  # Deleted meanwhile, and nothing of it is told yet.
    yield [session, *events]
    while not is_last:
        async with db.searching() as connection:
            events, is_last = await _events_after(connection, key, session, events[-1].seq)
        count += len(events)
        if is_last and count < session.event_count:
            raise SessionGone
        if events:
            yield [*events]


async def _events_after(
    connection: AsyncConnection, key: int, session: SessionRecord, seq: int
) -> tuple[list[EventRecord], bool]:
    parameters = {
        "key": key,
        "after": seq,
        "last_seq": session.last_seq,
        "limit": BATCH_EVENTS,
        "bytes": BATCH_BYTES,
    }
    rows = (await connection.execute(_EVENTS, parameters)).mappings().all()
    is_last = not rows or len(rows) == rows[0]["read"] < BATCH_EVENTS
    return [_event_of(row, session.id) for row in rows], is_last


def _session_of(row: RowMapping) -> SessionRecord:
    fields: dict[str, Any] = {name: row[name] for name in SessionRecord.__struct_fields__}
    return SessionRecord(**fields | {"metadata": json_values.decode(row["metadata"])})


def _event_of(row: RowMapping, session_id: str) -> EventRecord:
    return EventRecord(
        id=row["id"],
        session_id=session_id,
        seq=row["seq"],
        timestamp=row["timestamp"],
        message=json_values.decode(row["message"]),
        synthetic=row["synthetic"],
        archived=row["archived"],
        recall_result=row["recall_result"],
        tokens=row["tokens"],
        metadata=json_values.decode(row["metadata"]),
    )


def _session_columns(record: SessionRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__}
    return fields | {"metadata": json_values.encode(record.metadata)}


def _same_session(found: RowMapping, record: SessionRecord) -> int:
    if found["user_id"] != record.user_id:
        raise NotOwner(record.id, record.user_id)
    if found["created_at"] != record.created_at:
        raise SessionExists(record.id)
    return int(found["key"])
