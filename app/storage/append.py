"""The append: one statement that locks the session, inserts, and moves counters and version together."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import json_values
from app.domain.batches import Batch, Entry
from app.domain.events import NewEvent
from app.domain.exports import EventRecord
from app.domain.messages import text_of, tool_calls_of
from app.domain.recall import RECALL_TOOLS
from app.domain.text import search_form

# Distance between the seqs of two appends: room for summaries before any event (ADR 0001).
SEQ_GAP = 1024

# How far back an answered call is looked for, in assistant messages with calls.
CALLS_LOOKED_AT = 16

# The statement sees one snapshot, taken before it waits for the row. What was committed while it waited
# is therefore invisible to `known`: a batch with ids of the caller's (`named`) is only written while the version
# is still the one of the snapshot; the caller of this module then tries again under the lock.
_APPEND = text("""
WITH target AS MATERIALIZED (
    SELECT key, user_id, event_version, allow_system_messages
    FROM sessions
    WHERE id = :session_id AND deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())
), incoming AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:ids AS text[]), CAST(:types AS text[]), CAST(:timestamps AS timestamptz[]),
        CAST(:messages AS text[]), CAST(:digests AS bytea[]), CAST(:search_texts AS text[]),
        CAST(:tokens AS int[]), CAST(:synthetic AS boolean[]), CAST(:recall_results AS boolean[]),
        CAST(:tool_calls AS text[]), CAST(:answers AS text[]), CAST(:answers_nth AS int[]),
        CAST(:metadata AS text[])
    ) WITH ORDINALITY AS i (
        id, type, timestamp, message, digest, search_text, tokens, synthetic, recall_result,
        tool_calls, answers, answers_nth, metadata, place
    )
), known AS MATERIALIZED (
    SELECT i.place, i.id, e.digest = i.digest AS same
    FROM target t CROSS JOIN incoming i JOIN events e ON e.session_key = t.key AND e.id = i.id
    WHERE CAST(:named AS boolean)
), fresh AS MATERIALIZED (
    SELECT i.* FROM incoming i WHERE NOT EXISTS (SELECT FROM known k WHERE k.place = i.place)
), total AS MATERIALIZED (
    SELECT count(*) AS events,
           count(*) FILTER (WHERE type = 'user' AND NOT synthetic) AS turns,
           coalesce(sum(tokens), 0) AS tokens,
           (array_agg(coalesce(timestamp, now()) ORDER BY place DESC))[1] AS last_event_at,
           bool_or(type = 'system') AS has_system,
           bool_or(answers IS NOT NULL) AS asks_log
    FROM fresh
), earlier_calls AS MATERIALIZED (
    SELECT c.seq, call.value ->> 'id' AS id, call.value ->> 'name' AS name, call.nth,
           (SELECT count(*) FROM events r
            WHERE r.session_key = c.session_key AND r.seq > c.seq AND r.type = 'tool') AS answered
    FROM total, LATERAL (
        SELECT e.session_key, e.seq, e.tool_calls
        FROM events e
        WHERE total.asks_log AND e.session_key = (SELECT key FROM target) AND e.tool_calls IS NOT NULL
        ORDER BY e.seq DESC LIMIT :calls_looked_at
    ) c, json_array_elements(c.tool_calls) WITH ORDINALITY AS call (value, nth)
), moved AS (
    UPDATE sessions s SET
        event_version = s.event_version + total.events,
        last_seq = s.last_seq + :seq_gap * CAST(:size AS bigint),
        event_count = s.event_count + total.events,
        active_event_count = s.active_event_count + total.events,
        active_turn_count = s.active_turn_count + total.turns,
        active_token_count = s.active_token_count + total.tokens,
        last_event_at = total.last_event_at,
        expires_at = CASE WHEN s.ttl_sliding AND s.ttl_seconds IS NOT NULL
                          THEN now() + s.ttl_seconds * interval '1 second' ELSE s.expires_at END
    FROM target t, total
    WHERE s.key = t.key AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > now())
      AND total.events > 0
      AND NOT EXISTS (SELECT FROM known k WHERE NOT k.same)
      AND (CAST(:owner AS text) IS NULL OR s.user_id = CAST(:owner AS text))
      AND (CAST(:expected_version AS bigint) IS NULL OR s.event_version = CAST(:expected_version AS bigint))
      AND (NOT CAST(:named AS boolean) OR s.event_version = t.event_version)
      AND (s.allow_system_messages OR NOT total.has_system)
    RETURNING s.key, s.user_id, s.event_version, s.last_seq - :seq_gap * CAST(:size AS bigint) AS base
), written AS (
    INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                        tokens, synthetic, recall_result, tool_calls, metadata)
    SELECT m.key, m.base + f.place * :seq_gap, f.id, m.user_id, f.type, coalesce(f.timestamp, now()),
           CAST(f.message AS json), f.digest, f.search_text, f.tokens, f.synthetic,
           f.recall_result OR coalesce(f.answers IS NOT NULL AND (
               SELECT c.name = ANY(CAST(:recall_tools AS text[])) FROM earlier_calls c
               WHERE c.id = f.answers AND (c.id <> '' OR c.nth = c.answered + f.answers_nth + 1)
               ORDER BY c.seq DESC LIMIT 1), false),
           CAST(f.tool_calls AS json), CAST(f.metadata AS json)
    FROM moved m CROSS JOIN fresh f
    RETURNING session_key, seq, type
), activated AS (
    INSERT INTO active_events (session_key, seq, type) SELECT session_key, seq, type FROM written
)
SELECT t.key, t.user_id, t.allow_system_messages, t.event_version AS version_before,
       m.event_version, m.base, now() AS now, total.has_system,
       (SELECT array_agg(k.place) FROM known k WHERE k.same) AS replayed,
       (SELECT array_agg(k.id ORDER BY k.place) FROM known k WHERE NOT k.same) AS conflicting
FROM total CROSS JOIN target t LEFT JOIN moved m ON true
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOutcome:
    """What the statement found and did. `event_version` is None when it wrote nothing.

    `base` is the seq before the batch's first; `replayed` are the places (from 1) that the log held already.
    """

    session_key: int
    user_id: str
    allow_system_messages: bool
    has_system: bool
    version_before: int
    event_version: int | None
    base: int | None
    now: datetime
    replayed: frozenset[int]
    conflicting: tuple[str, ...]


async def append(
    connection: AsyncConnection,
    session_id: str,
    batch: Batch,
    *,
    named: bool,
    owner: str | None,
    expected_version: int | None,
) -> AppendOutcome | None:
    """Append in one round trip. None when there is no such session.

    `named`: the batch has ids that may be in the log already. `owner` and `expected_version` are predicates of
    the statement: where they do not hold, nothing is written.
    """
    parameters = _batch_columns(batch.entries) | {
        "session_id": session_id,
        "size": len(batch.entries),
        "named": named,
        "owner": owner,
        "expected_version": expected_version,
        "seq_gap": SEQ_GAP,
        "calls_looked_at": CALLS_LOOKED_AT,
        "recall_tools": sorted(RECALL_TOOLS),
    }
    row = (await connection.execute(_APPEND, parameters)).mappings().one_or_none()
    if row is None:
        return None
    return AppendOutcome(
        session_key=row["key"],
        user_id=row["user_id"],
        allow_system_messages=row["allow_system_messages"],
        has_system=bool(row["has_system"]),
        version_before=row["version_before"],
        event_version=row["event_version"],
        base=row["base"],
        now=row["now"],
        replayed=frozenset(row["replayed"] or ()),
        conflicting=tuple(row["conflicting"] or ()),
    )


def seq_of(outcome: AppendOutcome, place: int) -> int:
    """The seq of the event at a place (from 1) of a batch that was written."""
    if outcome.base is None:
        raise ValueError("Nothing was written.")
    return outcome.base + place * SEQ_GAP


def event_columns(events: Sequence[NewEvent | EventRecord]) -> dict[str, list[object]]:
    """What the rows of events hold whichever way they enter the log: a list a column."""
    texts = [text_of(event.message) for event in events]
    return {
        "ids": [event.id for event in events],
        "types": [event.type for event in events],
        "timestamps": [event.timestamp for event in events],
        "messages": [json_values.encode(event.message) for event in events],
        "search_texts": [None if value is None else search_form(value) for value in texts],
        "tokens": [event.tokens for event in events],
        "synthetic": [event.synthetic for event in events],
        "tool_calls": [_tool_calls(event) for event in events],
        "metadata": [json_values.encode(event.metadata) for event in events],
    }


def _batch_columns(entries: Sequence[Entry]) -> dict[str, list[object]]:
    return event_columns([entry.event for entry in entries]) | {
        "digests": [entry.digest for entry in entries],
        "recall_results": [entry.recall_result for entry in entries],
        "answers": [None if entry.answers is None else _without_nul(entry.answers) for entry in entries],
        "answers_nth": [entry.answers_nth for entry in entries],
    }


def _tool_calls(event: NewEvent | EventRecord) -> str | None:
    """Ids and names of a message's calls, for finding out later what a result answers."""
    if event.type != "assistant" or not (calls := tool_calls_of(event.message)):
        return None
    return json_values.encode(
        [{"id": _without_nul(call.id.strip()), "name": _without_nul(call.name)} for call in calls]
    )


def _without_nul(value: str) -> str:
    return value.replace("\0", "\ufffd")
