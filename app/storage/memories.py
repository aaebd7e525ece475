"""Memory stores in PostgreSQL. Edits of a store follow one another under the lock of its row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.domain.memory_files import Editor, Keeping, MemoryFile
from app.storage import memory_histories as histories
from app.storage.database import Connection

# The time is told once the lock is there: so the times of edits are in the order of the edits.
_LOCK = text("""
INSERT INTO memory_stores (store) VALUES (:store)
ON CONFLICT (store) DO UPDATE SET last_version = memory_stores.last_version
RETURNING last_version, clock_timestamp() AS at
""")

_REQUEST = text("""
INSERT INTO memory_stores (store, requests) VALUES (:store, 1)
ON CONFLICT (store) DO UPDATE SET requests = memory_stores.requests + 1
RETURNING requests, extract(epoch FROM now() - reminded_at)::float8 AS seconds, reminder_owed AS owed
""")
_REMINDED = text("""
UPDATE memory_stores SET reminded_at = now(), reminder_owed = false WHERE store = :store
""")
_OWED = text("UPDATE memory_stores SET reminder_owed = true WHERE store = :store")

_SIZES = text("SELECT path, bytes FROM memory_files WHERE store = :store ORDER BY path")
_FILES = text("""
SELECT path, content, bytes, version, updated_at FROM memory_files
WHERE store = :store AND path = ANY(CAST(:paths AS text[])) ORDER BY path
""")
_CONTENTS = text("SELECT path, content FROM memory_files WHERE store = :store ORDER BY path")
_LISTED = text("""
SELECT path, '' AS content, bytes, version, updated_at FROM memory_files
WHERE store = :store AND (CAST(:prefix AS text) = '' OR path = :prefix OR starts_with(path, :prefix || '/'))
ORDER BY path
""")

# After all that is known of the path, also where a clock stepped back or an import brought later times.
_AT = """
greatest(CAST(:at AS timestamptz), (
    SELECT max(edited_at) FROM memory_versions v WHERE v.store = :store AND v.path = i.path
))
"""
_DELETE = text(f"""
WITH gone AS (
    DELETE FROM memory_files f
    USING unnest(CAST(:paths AS text[]), CAST(:versions AS bigint[])) AS i (path, version)
    WHERE f.store = :store AND f.path = i.path
    RETURNING i.path, i.version, f.file
)
INSERT INTO memory_versions (store, path, version, content, edited_at, tool, session_id, file)
SELECT :store, i.path, i.version, NULL, {_AT}, :tool, :session_id, i.file FROM gone i
""")  # noqa: S608
_WRITE = text(f"""
WITH written AS (
    INSERT INTO memory_files (store, path, content, bytes, version, updated_at, file)
    SELECT :store, i.path, i.content, i.bytes, i.version, {_AT}, coalesce(i.file, gen_random_uuid())
    FROM unnest(CAST(:paths AS text[]), CAST(:contents AS text[]), CAST(:sizes AS int[]),
                CAST(:versions AS bigint[]), CAST(:files AS uuid[])) AS i (path, content, bytes, version, file)
    ON CONFLICT (store, path) DO UPDATE SET
        content = EXCLUDED.content, bytes = EXCLUDED.bytes, version = EXCLUDED.version,
        updated_at = EXCLUDED.updated_at
    RETURNING *
)
INSERT INTO memory_versions (store, path, version, content, edited_at, tool, session_id, file)
SELECT store, path, version, content, updated_at, :tool, :session_id, file FROM written
""")  # noqa: S608
_IDS = text("SELECT path, file FROM memory_files WHERE store = :store AND path = ANY(CAST(:paths AS text[]))")
_COUNT = text("UPDATE memory_stores SET last_version = :last WHERE store = :store")
_STORES = text("""
SELECT store, last_version FROM memory_stores
WHERE CAST(:store AS text) IS NULL OR store = :store ORDER BY store
""")
_ERASE = text("""
WITH gone AS (DELETE FROM memory_stores WHERE store = :store RETURNING store)
SELECT count(*) FROM memory_files f JOIN gone USING (store)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A store that is this transaction's to edit: the number of its latest edit, and the time."""

    store: str
    last: int
    at: datetime


async def lock(connection: Connection, store: str) -> Locked:
    """Become the one that edits the store until the transaction ends."""
    row = (await connection.execute(_LOCK, {"store": store})).one()
    return Locked(store=store, last=row.last_version, at=row.at)


async def count_request(connection: Connection, store: str) -> tuple[int, float, bool]:
    """Count a request that gets the prompt: its number, seconds since the last reminder (or the beginning), and
    whether one is owed.

    The store is locked until the transaction ends, so that of several at once each has a number of its own.
    """
    row = (await connection.execute(_REQUEST, {"store": store})).one()
    return row.requests, row.seconds, row.owed


async def note_reminder(connection: Connection, store: str) -> None:
    await connection.execute(_REMINDED, {"store": store})


async def owe_reminder(connection: Connection, store: str) -> None:
    """The next request has the reminder again; nothing is owed to a store that is gone."""
    await connection.execute(_OWED, {"store": store})


async def sizes(connection: Connection, store: str) -> dict[str, int]:
    """The bytes of each file, by its path."""
    rows = await connection.execute(_SIZES, {"store": store})
    return {row.path: row.bytes for row in rows}


async def files(connection: Connection, store: str, paths: Sequence[str]) -> dict[str, MemoryFile]:
    """Files by their paths; those that there are not are left out."""
    rows = await connection.execute(_FILES, {"store": store, "paths": list(paths)})
    return {row["path"]: _file(row) for row in rows.mappings()}


async def contents(connection: Connection, store: str) -> dict[str, str]:
    """What each file holds, by its path: the store as it is at one moment."""
    rows = await connection.execute(_CONTENTS, {"store": store})
    return {row.path: row.content for row in rows}


async def listed(connection: Connection, store: str, prefix: str) -> list[MemoryFile]:
    """The file or the files of the directory at a path, without their contents."""
    rows = await connection.execute(_LISTED, {"store": store, "prefix": prefix})
    return [_file(row) for row in rows.mappings()]


async def write(
    connection: Connection,
    locked: Locked,
    changes: Mapping[str, str | None],
    *,
    by: Editor,
    keeping: Keeping,
    moves: Mapping[str, str] | None = None,
) -> None:
    """Make files what they are to be (None: gone), each under a version of its own.

    `moves` tells which path a file had before that keeps its history under another one.
    """
    numbers = {path: number for number, path in enumerate(changes, start=locked.last + 1)}
    files = await _ids_of(connection, locked.store, moves or {})
    common = {"store": locked.store, "at": locked.at, "tool": by.tool, "session_id": by.session_id}
    if gone := [path for path, content in changes.items() if content is None]:
        parameters = common | {"paths": gone, "versions": [numbers[path] for path in gone]}
        await connection.execute(_DELETE, parameters)
    if written := {path: content for path, content in changes.items() if content is not None}:
        await connection.execute(
            _WRITE,
            common
            | {
                "paths": list(written),
                "contents": list(written.values()),
                "sizes": [len(content.encode()) for content in written.values()],
                "versions": [numbers[path] for path in written],
                "files": [files.get(path) for path in written],
            },
        )
        await histories.join(connection, locked.store, list(written))
    await connection.execute(_COUNT, {"store": locked.store, "last": locked.last + len(changes)})
    added = sum(map(histories.size_of, changes.values()))
    await histories.keep(connection, locked.store, list(changes), locked.at, keeping, added=added)


async def stores(connection: Connection, store: str | None) -> dict[str, int]:
    """The numbers of the latest edits by store: of one, or of all."""
    return {row.store: row.last_version for row in await connection.execute(_STORES, {"store": store})}


async def erase(connection: Connection, store: str) -> int:
    """Remove a store with everything in it; how many files it had."""
    return int(await connection.scalar(_ERASE, {"store": store}) or 0)


async def _ids_of(connection: Connection, store: str, moves: Mapping[str, str]) -> dict[str, Any]:
    """The ids of files by their new paths."""
    if not moves:
        return {}
    rows = await connection.execute(_IDS, {"store": store, "paths": list(moves)})
    return {moves[row.path]: row.file for row in rows}


def _file(row: Any) -> MemoryFile:
    return MemoryFile(
        path=row["path"],
        content=row["content"],
        bytes=row["bytes"],
        version=row["version"],
        updated_at=row["updated_at"],
    )
