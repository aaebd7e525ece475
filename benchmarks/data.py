"""Logs to measure with, made by the database: texts of 40 to 400 characters, sessions interleaved as people talk."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

RARE = "zanzibar"  # in one of 10,000 events
COMMON = "deploy"  # in every second one
ABSENT = "quixotry"

_TEXT_INDEX = "SELECT indexdef FROM pg_indexes WHERE indexname = 'events_search'"

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstv" for vowel in "aeio"]

_SESSIONS = """
INSERT INTO sessions (id, user_id, created_at, ttl_sliding, allow_system_messages, metadata, event_version,
                      last_seq, event_count, active_event_count, active_turn_count, active_token_count)
SELECT id, user_id, now(), false, false, '{}', size, size * 1024, size, size, size / 2, size * 50
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS s (id, user_id, size)
"""

# As the service stores them, but for the digest, which no read looks at.
_EVENTS = f"""
WITH places AS MATERIALIZED (
    SELECT key, id, user_id, n, row_number() OVER (ORDER BY n / event_count::float, key) AS place,
           CASE WHEN n % 2 = 1 THEN 'user' ELSE 'assistant' END AS type
    FROM sessions, generate_series(1, event_count) AS n
), texts AS (
    SELECT *, concat_ws(' ', phrases[1 + (place * 7919) % 5000], phrases[1 + (place * 104729) % 5000],
                        CASE WHEN place % 3 = 0 THEN phrases[1 + (place * 1299709) % 5000] END,
                        CASE WHEN place % 2 = 0 THEN '{COMMON}' END,
                        CASE WHEN (n * 7919 + key * 1299709) % 10000 = 0 THEN '{RARE}' END) AS text
    FROM places, (SELECT $1::text[] AS phrases)
)
INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text, tokens, synthetic,
                    recall_result, metadata)
SELECT key, n * 1024, 'event-' || n, user_id, type, timestamptz '2026-01-01 00:00Z' + place * interval '1 second',
       json_build_object('role', type, 'content', text), '\\x00',
       CASE WHEN id <> ALL($2::text[]) THEN text END, 50, false, false, '{{}}'
FROM texts ORDER BY place
"""  # noqa: S608


class Session(NamedTuple):
    id: str
    user: str
    size: int


async def fill(connection: asyncpg.Connection, sessions: Sequence[Session], *, silent: Sequence[Session]) -> None:
    """Fill an empty database. The words of silent sessions are not indexed.

    The text index is built at the end, which is faster than adding to it.
    """
    text_index = await connection.fetchval(_TEXT_INDEX)
    await connection.execute("DROP INDEX events_search")
    await connection.execute(_SESSIONS, *map(list, zip(*sessions, *silent, strict=True)))
    await connection.execute(_EVENTS, _phrases(), [session.id for session in silent])
    await connection.execute("INSERT INTO active_events SELECT session_key, seq, type FROM events")
    await connection.execute("SET maintenance_work_mem = '1GB'")
    await connection.execute(text_index)
    await connection.execute("VACUUM ANALYZE")


def _phrases() -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(2_000)]
    return [" ".join(rng.choices(words, k=rng.randint(4, 20))) for _ in range(5_000)]
