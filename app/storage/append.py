"""The append: one statement that locks the session, inserts, and moves counters and version together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import json_values
from app.domain.batches import Batch, Entry
from app.domain.events import NewEvent
from app.domain.exports import EventRecord
from app.domain.leases import TurnWrite
from app.domain.messages import text_of, tool_calls_of
from app.domain.recall import RECALL_TOOLS
from app.domain.sessions import Counters
from app.domain.text import search_form
from app.storage.database import fetch
from app.storage.sessions import LATEST, LIVE_SQL

# Distance between the seqs of two appends: room for summaries before any event (ADR 0001).
SEQ_GAP = 1024

# How far back an answered call is looked for, in assistant messages with calls.
CALLS_LOOKED_AT = 16

# How many events after a call are looked through for its results, where it has no id to find them by.
RESULTS_LOOKED_AT = 64

# The statement sees one snapshot, taken before it waits for the row. What was committed while it waited
# is therefore invisible to `known`: a batch with ids of the caller's (`named`) is only written while the version
# is still the one of the snapshot; the caller of this module then tries again under the lock.
#
# It is put together from what the batch needs, and reaches everything by an index in just one way: its plan is made
# once, perhaps while the tables are still empty.
_APPEND = """
WITH target AS MATERIALIZED (
    SELECT key, user_id, event_version, allow_system_messages
    FROM sessions WHERE {column} = :subject AND {live}
), {held} {known} {earlier_calls} moved AS (
    UPDATE sessions s SET
        event_version = s.event_version + CAST(:events AS bigint),
        last_seq = s.last_seq + :seq_gap * CAST(:events AS bigint),
        event_count = s.event_count + CAST(:events AS bigint),
        active_event_count = s.active_event_count + CAST(:events AS bigint),
        active_turn_count = s.active_turn_count + CAST(:turns AS bigint),
        active_token_count = s.active_token_count + CAST(:total_tokens AS bigint),
        last_event_at = coalesce(CAST(:last_event_at AS timestamptz), now()), {answered} {superseded}
        expires_at = CASE WHEN s.ttl_sliding AND s.ttl_seconds IS NOT NULL
                          THEN LEAST(now() + s.ttl_seconds * interval '1 second', {latest}) ELSE s.expires_at END
    WHERE s.{column} = :subject AND {live}
      AND (CAST(:owner AS text) IS NULL OR s.user_id = CAST(:owner AS text))
      AND (CAST(:expected_version AS bigint) IS NULL OR s.event_version = CAST(:expected_version AS bigint))
      AND (s.allow_system_messages OR NOT CAST(:has_system AS boolean)) {none_known} {if_held}
    RETURNING s.key, s.user_id, s.event_version, s.last_seq - :seq_gap * CAST(:events AS bigint) AS base,
              s.active_turn_count, s.active_token_count - s.superseded_token_count AS active_tokens,
              s.compaction_retry_at IS NULL OR s.compaction_retry_at <= now() AS may_compact
), written AS (
    INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text,
                        tokens, synthetic, recall_result, tool_calls, metadata)
    SELECT m.key, m.base + i.place * :seq_gap, i.id, m.user_id, i.type, coalesce(i.timestamp, now()),
           CAST(i.message AS json), i.digest, i.search_text, i.tokens, i.synthetic,
           i.recall_result {or_answers_recall}, CAST(i.tool_calls AS json), CAST({metadata} AS json)
    FROM moved m CROSS JOIN unnest(
        CAST(:ids AS text[]), CAST(:types AS text[]), CAST(:timestamps AS timestamptz[]),
        CAST(:messages AS text[]), CAST(:digests AS bytea[]), CAST(:search_texts AS text[]),
        CAST(:tokens AS int[]), CAST(:synthetic AS boolean[]), CAST(:recall_results AS boolean[]),
        CAST(:tool_calls AS text[]), CAST(:answers AS text[]), CAST(:answers_nth AS int[]),
        CAST(:metadata AS text[]) {late_values}
    ) WITH ORDINALITY AS i (
        id, type, timestamp, message, digest, search_text, tokens, synthetic, recall_result,
        tool_calls, answers, answers_nth, metadata, {late_name} place
    )
), activated AS (
    INSERT INTO active_events (session_key, seq, type)
    SELECT m.key, m.base + i.place * :seq_gap, i.type
    FROM moved m CROSS JOIN unnest(CAST(:types AS text[])) WITH ORDINALITY AS i (type, place)
)
SELECT t.key, t.user_id, t.allow_system_messages, t.event_version AS version_before,
       m.event_version, m.base, m.active_turn_count, m.active_tokens, m.may_compact, now() AS now,
       {replayed} AS replayed, {conflicting} AS conflicting, {is_held} AS held
FROM target t LEFT JOIN moved m ON true
"""

_KNOWN = {
    "known": """known AS MATERIALIZED (
    SELECT i.place, i.id, e.digest = i.digest AS same
    FROM unnest(CAST(:ids AS text[]), CAST(:digests AS bytea[])) WITH ORDINALITY AS i (id, digest, place)
    CROSS JOIN LATERAL (
        SELECT digest FROM events WHERE session_key = (SELECT key FROM target) AND id = i.id LIMIT 1
    ) e
),""",
    "none_known": """
      AND s.event_version = (SELECT event_version FROM target) AND NOT EXISTS (SELECT FROM known)""",
    "replayed": "(SELECT array_agg(place) FROM known WHERE same)",
    "conflicting": "(SELECT array_agg(id ORDER BY place) FROM known WHERE NOT same)",
}
_ALL_NEW = {"known": "", "none_known": "", "replayed": "NULL", "conflicting": "NULL"}

_ANSWERS = {
    "earlier_calls": f"""earlier_calls AS MATERIALIZED (
    SELECT c.seq, call.value ->> 'id' AS id, call.value ->> 'name' AS name, call.nth,
           CASE WHEN call.value ->> 'id' = '' THEN (
               SELECT count(*) FILTER (WHERE type = 'tool') FROM (
                   SELECT type FROM events WHERE session_key = (SELECT key FROM target) AND seq > c.seq
                   ORDER BY seq LIMIT {RESULTS_LOOKED_AT}
               ) r
           ) END AS answered
    FROM (
        SELECT seq, tool_calls FROM events
        WHERE session_key = (SELECT key FROM target) AND tool_calls IS NOT NULL
        ORDER BY seq DESC LIMIT {CALLS_LOOKED_AT}
    ) c, json_array_elements(c.tool_calls) WITH ORDINALITY AS call (value, nth)
),""",  # noqa: S608
    "or_answers_recall": """OR coalesce(i.answers IS NOT NULL AND (
               SELECT c.name = ANY(CAST(:recall_tools AS text[])) FROM earlier_calls c
               WHERE c.id = i.answers AND (c.id <> '' OR c.nth = c.answered + i.answers_nth + 1)
               ORDER BY c.seq DESC LIMIT 1), false)""",
}
_NO_ANSWERS = {"earlier_calls": "", "or_answers_recall": ""}

# The lease's row is written too, so that a successor that takes it over at this moment comes before or after.
_HOLD = """held AS (
    UPDATE turn_leases SET expires_at = clock_timestamp() + CAST(:lease_seconds AS float8) * interval '1 second'
    WHERE session_key = (SELECT key FROM target) AND token = CAST(:lease_token AS uuid) RETURNING session_key
),"""
_RELEASE = """held AS (
    DELETE FROM turn_leases
    WHERE session_key = (SELECT key FROM target) AND token = CAST(:lease_token AS uuid) RETURNING session_key
),"""
# The latest system message takes the place of those before it.
_SUPERSEDED = """
        superseded_token_count = s.superseded_token_count + s.system_token_count
                                 + CAST(:superseded_tokens AS bigint),
        system_token_count = CAST(:system_tokens AS bigint),"""
_IS_HELD = "EXISTS (SELECT FROM held)"
_ANSWERED = (
    "answered_seq = CASE WHEN {held} THEN s.last_seq + :seq_gap * CAST(:events AS bigint) ELSE s.answered_seq END,"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOutcome:
    """What the statement found and did. `event_version` is None when it wrote nothing.

    `base` is the seq before the batch's first; `replayed` are the places (from 1) that the log held already: a batch
    with such is not written. `counters` are those of the session afterwards. `held`: the turn is still the writer's.
    """

    session_key: int
    user_id: str
    allow_system_messages: bool
    version_before: int
    event_version: int | None
    base: int | None
    now: datetime
    replayed: frozenset[int]
    conflicting: tuple[str, ...]
    held: bool
    counters: Counters | None
    may_compact: bool


async def append(
    connection: AsyncConnection,
    subject: str | int,
    batch: Batch,
    *,
    named: bool,
    owner: str | None,
    expected_version: int | None,
    turn: TurnWrite | None = None,
) -> AppendOutcome | None:
    """Append in one round trip: all of the batch, when the log holds none of it. None when there is no such session.

    `subject` is the session's id or its key. `named`: the batch has ids that may be in the log already. `owner`,
    `expected_version` and a `turn` that is required are predicates of the statement: where they do not hold, nothing
    is written.
    """
    events = [entry.event for entry in batch.entries]
    parameters: dict[str, Any] = _columns(batch.entries) | {
        "subject": subject,
        "events": len(events),
        "turns": sum(event.type == "user" and not event.synthetic for event in events),
        "total_tokens": sum(event.tokens for event in events),
        "last_event_at": events[-1].timestamp,
        "has_system": batch.has_system,
        "owner": owner,
        "expected_version": expected_version,
        "seq_gap": SEQ_GAP,
        "recall_tools": sorted(RECALL_TOOLS),
    }
    if turn is not None and turn.lease is not None:
        late = [json_values.encode({**event.metadata, "late": True}) for event in events]
        parameters |= {
            "lease_token": turn.lease.token,
            "lease_seconds": turn.lease.seconds,
            "late_metadata": late,
        }
    if batch.has_system:
        *earlier, latest = [event.tokens for event in events if event.type == "system"]
        parameters |= {"system_tokens": latest, "superseded_tokens": sum(earlier)}
    statement = _statement(
        by_key=isinstance(subject, int),
        named=named,
        has_answers=any(entry.answers is not None for entry in batch.entries),
        has_system=batch.has_system,
        has_lease=turn is not None and turn.lease is not None,
        required=turn is not None and turn.required,
        releases=turn is not None and turn.releases,
        answers_all=turn is not None and turn.answers,
    )
    rows = await fetch(connection, statement, parameters)
    if not rows:
        return None
    row = rows[0]
    return AppendOutcome(
        session_key=row["key"],
        user_id=row["user_id"],
        allow_system_messages=row["allow_system_messages"],
        version_before=row["version_before"],
        event_version=row["event_version"],
        base=row["base"],
        now=row["now"],
        replayed=frozenset(row["replayed"] or ()),
        conflicting=tuple(row["conflicting"] or ()),
        held=row["held"],
        counters=_counters(row),
        may_compact=bool(row["may_compact"]),
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


@cache
def _statement(
    *,
    by_key: bool,
    named: bool,
    has_answers: bool,
    has_system: bool,
    has_lease: bool,
    required: bool,
    releases: bool,
    answers_all: bool,
) -> TextClause:
    is_held = _IS_HELD if has_lease else "true"
    parts = (_KNOWN if named else _ALL_NEW) | (_ANSWERS if has_answers else _NO_ANSWERS)
    parts |= {
        "column": "key" if by_key else "id",
        "held": "" if not has_lease else _RELEASE if releases else _HOLD,
        "if_held": f"AND {is_held}" if required else "",
        "is_held": is_held,
        "late_values": ", CAST(:late_metadata AS text[])" if has_lease else "",
        "late_name": "late_metadata," if has_lease else "",
        "metadata": f"CASE WHEN {is_held} THEN i.metadata ELSE i.late_metadata END" if has_lease else "i.metadata",
        "superseded": _SUPERSEDED if has_system else "",
        "answered": _ANSWERED.format(held=is_held) if answers_all else "",
    }
    return text(_APPEND.format(live=LIVE_SQL, latest=LATEST, **parts))


def _counters(row: Mapping[str, Any]) -> Counters | None:
    if row["active_turn_count"] is None:
        return None
    return Counters(active_turns=row["active_turn_count"], active_tokens=row["active_tokens"])


def _columns(entries: Sequence[Entry]) -> dict[str, list[object]]:
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
