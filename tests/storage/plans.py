"""What PostgreSQL did for the statements that the service ran, and logs too long to append one by one."""

import asyncio
import json
from collections.abc import Iterator

import asyncpg
from sqlalchemy import event, make_url

_SETTINGS = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_buffers = on;
SET auto_explain.log_format = json;
SET client_min_messages = log;
"""

_SESSION = """
INSERT INTO sessions (id, user_id, created_at, ttl_sliding, allow_system_messages, metadata, event_version, last_seq,
                      event_count, active_event_count)
VALUES ($1, $2, now(), false, true, '{}', $3::bigint, $3::bigint * 1024, $3::bigint, $3::bigint)
RETURNING key
"""

_EVENTS = """
INSERT INTO events (session_key, seq, id, user_id, type, timestamp, message, digest, search_text, tokens, synthetic,
                    recall_result, tool_calls, metadata)
SELECT $1, n * 1024, 'event-' || n, $2, {type}, timestamptz '2026-01-01 00:00Z' + n * interval '1 second',
       json_build_object('role', {type}, 'content', {text}), '', {text}, 1, false, false,
       CASE WHEN {type} = 'assistant' AND n % 4 = 0 THEN json_build_array(json_build_object('id', 'call-' || n)) END,
       '{{}}'
FROM generate_series(1, $3::bigint) AS n
"""

_ACTIVE = """
INSERT INTO active_events SELECT session_key, seq, type FROM events WHERE session_key = $1 AND seq > $2::bigint * 1024
"""


class Explained:
    """The plans of all statements that a Database runs, from its connections' first one on."""

    def __init__(self, db) -> None:
        self.logged: list[str] = []
        for engine in (db._log, db._search):
            event.listen(engine.sync_engine, "connect", lambda connection, _: connection.run_async(self._follow))

    async def of(self, call):
        """What the call returns, and the plans of its statements."""
        self.logged.clear()
        result = await call
        await asyncio.sleep(0)  # Log messages are handed over by the event loop.
        return result, [json.loads(text[text.index("{") :])["Plan"] for text in self.logged]

    async def _follow(self, connection) -> None:
        connection.add_log_listener(lambda _, message: self.logged.append(message.message))
        await connection.execute(_SETTINGS)


def buffers(plans) -> int:
    """Pages of tables and indexes that were touched, in memory or not."""
    return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)


def indexes(plans) -> set[str]:
    return {node["Index Name"] for plan in plans for node in _nodes(plan) if "Index Name" in node}


async def connect(database_url) -> asyncpg.Connection:
    url = make_url(database_url)
    return await asyncpg.connect(host=url.query["host"], user=url.username, database=url.database)


async def make_log(
    connection,
    session_id,
    *,
    events,
    user="someone",
    archived=0,
    type="CASE WHEN n % 2 = 1 THEN 'user' ELSE 'assistant' END",  # noqa: A002
    text="'event ' || n",
) -> int:
    """A session's log; `type` and `text` are SQL about `n`, the number of an event from 1. Returns its key."""
    key = await connection.fetchval(_SESSION, session_id, user, events)
    await connection.execute(_EVENTS.format(type=type, text=text), key, user, events)
    await connection.execute(_ACTIVE, key, archived)
    return key


def _nodes(plan) -> Iterator[dict]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
