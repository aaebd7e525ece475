"""The floor: what FastAPI and asyncpg take for the bare work, with none of the guarantees.

`append` is one statement that moves a version and inserts a row, without ids, replays, text index or validation;
`newest` is a read of 20 events by an index, written as JSON with their messages as they are.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import msgspec
from fastapi import FastAPI, Request, Response

TABLES = """
CREATE TABLE floor_sessions (id text PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE floor_events (session text, seq bigint, message json NOT NULL, PRIMARY KEY (session, seq));
INSERT INTO floor_sessions SELECT 'append-' || n, 0 FROM generate_series(0, 15) AS n;
"""

_APPEND = """
WITH moved AS (UPDATE floor_sessions SET version = version + 1 WHERE id = $1 RETURNING id, version)
INSERT INTO floor_events SELECT id, version, $2::json FROM moved RETURNING seq
"""

_NEWEST = """
SELECT id, seq, timestamp, type, message, synthetic, tokens, metadata FROM events
WHERE session_key = (SELECT key FROM sessions WHERE id = $1 AND deleted_at IS NULL)
ORDER BY seq DESC LIMIT 20
"""


class _Connection(asyncpg.Connection):
    async def reset(self, **_: object) -> None:
        """Nothing is set on these connections: the round trip is saved."""


def _raw(json_text: str) -> msgspec.Raw:
    return msgspec.Raw(json_text.encode())


def create_app() -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        connections = {"min_size": 10, "max_size": 10, "connection_class": _Connection}
        async with asyncpg.create_pool(os.environ["FLOOR_DATABASE"], **connections) as pool:
            app.state.pool = pool
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/append/{session}")
    async def append(session: str, request: Request) -> Response:
        seq = await app.state.pool.fetchval(_APPEND, session, (await request.body()).decode())
        return Response(b'{"seq":%d}' % seq, media_type="application/json")

    @app.get("/newest/{session}")
    async def newest(session: str) -> Response:
        rows = await app.state.pool.fetch(_NEWEST, session)
        events = [dict(row) | {"message": _raw(row["message"]), "metadata": _raw(row["metadata"])} for row in rows]
        return Response(msgspec.json.encode(events[::-1]), media_type="application/json")

    return app
