"""Memory stores in PostgreSQL. Edits of a store follow one another under the lock of its row."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text

from app.domain.exports import MemoryRecord
from app.domain.memory_files import Editor, FileVersion, Keeping, MemoryFile
from app.storage.database import Connection

_LOCK = text("""
INSERT INTO memory_stores (store) VALUES (:store)
ON CONFLICT (store) DO UPDATE SET last_version = memory_stores.last_version
RETURNING last_version
""")

_REQUEST = text("""
INSERT INTO memory_stores (store, requests) VALUES (:store, 1)
ON CONFLICT (store) DO UPDATE SET requests = memory_stores.requests + 1
RETURNING requests, extract(epoch FROM now() - reminded_at)::float8 AS seconds
""")
_REMINDED = text("UPDATE memory_stores SET reminded_at = now() WHERE store = :store")

_SIZES = text("SELECT path, bytes FROM memory_files WHERE store = :store ORDER BY path")
_FILES = text("""
SELECT path, content, bytes, version, updated_at FROM memory_files
WHERE store = :store AND path = ANY(CAST(:paths AS text[])) ORDER BY path
""")
_LISTED = text("""
SELECT path, '' AS content, bytes, version, updated_at FROM memory_files
WHERE store = :store AND (CAST(:prefix AS text) = '' OR path = :prefix OR starts_with(path, :prefix || '/'))
ORDER BY path
""")

_DELETE = text("DELETE FROM memory_files WHERE store = :store AND path = ANY(CAST(:paths AS text[]))")

_WRITE = text("""
INSERT INTO memory_files (store, path, content, bytes, version, updated_at)
SELECT :store, i.path, i.content, i.bytes, i.version, now()
FROM unnest(CAST(:paths AS text[]), CAST(:contents AS text[]), CAST(:sizes AS int[]), CAST(:versions AS bigint[]))
     AS i (path, content, bytes, version)
ON CONFLICT (store, path) DO UPDATE SET
    content = EXCLUDED.content, bytes = EXCLUDED.bytes, version = EXCLUDED.version, updated_at = EXCLUDED.updated_at
""")

_REMEMBER = text("""
INSERT INTO memory_versions (store, path, version, content, edited_at, tool, session_id)
SELECT :store, i.path, i.version, i.content, now(), :tool, :session_id
FROM unnest(CAST(:paths AS text[]), CAST(:contents AS text[]), CAST(:versions AS bigint[]))
     AS i (path, content, version)
""")

_COUNT = text("UPDATE memory_stores SET last_version = :last WHERE store = :store")

_FORGET_OLD = text("""
DELETE FROM memory_versions v WHERE v.store = :store AND v.path = ANY(CAST(:paths AS text[])) AND (
    v.edited_at < now() - CAST(:days AS int) * interval '1 day'
    OR v.version <= (
        SELECT version FROM memory_versions o WHERE o.store = :store AND o.path = v.path
        ORDER BY version DESC OFFSET :most LIMIT 1
    )
) AND NOT EXISTS (
    SELECT FROM memory_files f WHERE f.store = v.store AND f.path = v.path AND f.version = v.version
)
""")

_VERSIONS = text("""
SELECT version, octet_length(content) AS bytes, edited_at, tool, session_id
FROM memory_versions WHERE store = :store AND path = :path ORDER BY version DESC
""")
_VERSION = text("""
SELECT content FROM memory_versions WHERE store = :store AND path = :path AND version = :version
""")
_PURGE = text("DELETE FROM memory_versions WHERE store = :store AND path = ANY(CAST(:paths AS text[]))")
_PURGED_PATHS = text("""
SELECT DISTINCT path FROM memory_versions
WHERE store = :store AND (path = :path OR starts_with(path, :path || '/'))
""")
_STORES = text("SELECT store FROM memory_stores ORDER BY store")
_AFTER = text("""
SELECT store, path, version, content, edited_at, tool, session_id FROM memory_versions
WHERE store = :store AND (path, version) > (:path, :version) ORDER BY path, version LIMIT :limit
""")
_RESTORE_STORE = text("""
INSERT INTO memory_stores (store, last_version) VALUES (:store, :version)
ON CONFLICT (store) DO UPDATE SET last_version = greatest(memory_stores.last_version, EXCLUDED.last_version)
""")
_RESTORE_VERSION = text("""
INSERT INTO memory_versions (store, path, version, content, edited_at, tool, session_id)
VALUES (:store, :path, :version, :content, :edited_at, :tool, :session_id)
ON CONFLICT DO NOTHING
""")
_SAME_VERSION = text("""
SELECT content IS NOT DISTINCT FROM CAST(:content AS text) FROM memory_versions
WHERE store = :store AND path = :path AND version = :version
""")
_NEWEST = text("SELECT max(version) FROM memory_versions WHERE store = :store AND path = :path")
_RESTORE_FILE = text("""
INSERT INTO memory_files (store, path, content, bytes, version, updated_at)
VALUES (:store, :path, :content, :size, :version, :edited_at)
ON CONFLICT (store, path) DO UPDATE SET
    content = EXCLUDED.content, bytes = EXCLUDED.bytes, version = EXCLUDED.version, updated_at = EXCLUDED.updated_at
""")
_ERASE = text("""
WITH gone AS (DELETE FROM memory_stores WHERE store = :store RETURNING store)
SELECT count(*) FROM memory_files f JOIN gone USING (store)
""")


async def lock(connection: Connection, store: str) -> int:
    """Become the one that edits the store until the transaction ends; the number of its latest edit."""
    return int((await connection.execute(_LOCK, {"store": store})).scalar_one())


async def count_request(connection: Connection, store: str) -> tuple[int, float]:
    """Count a request that gets the prompt: its number, and seconds since the last reminder (or the beginning).

    The store is locked until the transaction ends, so that of several at once each has a number of its own.
    """
    row = (await connection.execute(_REQUEST, {"store": store})).one()
    return row.requests, row.seconds


async def note_reminder(connection: Connection, store: str) -> None:
    await connection.execute(_REMINDED, {"store": store})


async def sizes(connection: Connection, store: str) -> dict[str, int]:
    """The bytes of each file, by its path."""
    rows = await connection.execute(_SIZES, {"store": store})
    return {row.path: row.bytes for row in rows}


async def files(connection: Connection, store: str, paths: Sequence[str]) -> dict[str, MemoryFile]:
    """Files by their paths; those that there are not are left out."""
    rows = await connection.execute(_FILES, {"store": store, "paths": list(paths)})
    return {row["path"]: _file(row) for row in rows.mappings()}


async def listed(connection: Connection, store: str, prefix: str) -> list[MemoryFile]:
    """The file or the files of the directory at a path, without their contents."""
    rows = await connection.execute(_LISTED, {"store": store, "prefix": prefix})
    return [_file(row) for row in rows.mappings()]


async def write(
    connection: Connection, store: str, changes: Mapping[str, str | None], *, last: int, by: Editor, keeping: Keeping
) -> int:
    """Make files what they are to be (None: gone), each under a version of its own after `last`; the latest of them.

    The store has to be locked.
    """
    numbered = list(enumerate(changes.items(), start=last + 1))
    written = [(number, path, content) for number, (path, content) in numbered if content is not None]
    await connection.execute(
        _DELETE, {"store": store, "paths": [p for p, content in changes.items() if content is None]}
    )
    if written:
        await connection.execute(
            _WRITE,
            {
                "store": store,
                "paths": [path for _, path, _ in written],
                "contents": [content for *_, content in written],
                "sizes": [len(content.encode()) for *_, content in written],
                "versions": [number for number, *_ in written],
            },
        )
    await connection.execute(
        _REMEMBER,
        {
            "store": store,
            "paths": [path for _, (path, _) in numbered],
            "contents": [content for _, (_, content) in numbered],
            "versions": [number for number, _ in numbered],
            "tool": by.tool,
            "session_id": by.session_id,
        },
    )
    latest = last + len(numbered)
    await connection.execute(_COUNT, {"store": store, "last": latest})
    await connection.execute(
        _FORGET_OLD,
        {"store": store, "paths": list(changes), "days": keeping.days, "most": keeping.max_versions},
    )
    return latest


async def versions(connection: Connection, store: str, path: str) -> list[FileVersion]:
    """Newest first; of deleted files as well."""
    rows = await connection.execute(_VERSIONS, {"store": store, "path": path})
    return [FileVersion(**row) for row in rows.mappings()]


async def content_of(connection: Connection, store: str, path: str, version: int) -> str | None:
    """What a file was after an edit; None where it was deleted by it, or where no such version is kept."""
    found: str | None = await connection.scalar(_VERSION, {"store": store, "path": path, "version": version})
    return found


async def purge(connection: Connection, store: str, path: str) -> int:
    """Forget a path for good, with everything below it: the files have to be deleted before."""
    rows = await connection.execute(_PURGED_PATHS, {"store": store, "path": path})
    paths = [row.path for row in rows]
    await connection.execute(_PURGE, {"store": store, "paths": paths})
    return len(paths)


async def stores(connection: Connection) -> list[str]:
    return [row.store for row in await connection.execute(_STORES)]


async def versions_after(
    connection: Connection, store: str, path: str, version: int, limit: int
) -> list[MemoryRecord]:
    """All versions of a store's files in the order of (path, version), as an export has them."""
    parameters = {"store": store, "path": path, "version": version, "limit": limit}
    return [MemoryRecord(**row) for row in (await connection.execute(_AFTER, parameters)).mappings()]


async def restore(connection: Connection, record: MemoryRecord) -> bool | None:
    """Put a version back in its place: True when it was not there, False when it was, None when another is there."""
    parameters = {name: getattr(record, name) for name in record.__struct_fields__}
    await connection.execute(_RESTORE_STORE, parameters)
    added = bool((await connection.execute(_RESTORE_VERSION, parameters)).rowcount)
    if not added:
        kept = await connection.scalar(_SAME_VERSION, parameters)
        return False if kept else None
    if await connection.scalar(_NEWEST, parameters) == record.version:
        size = None if record.content is None else len(record.content.encode())
        statement = _DELETE if size is None else _RESTORE_FILE
        await connection.execute(statement, parameters | {"size": size, "paths": [record.path]})
    return True


async def erase(connection: Connection, store: str) -> int:
    """Remove a store with everything in it; how many files it had."""
    return int(await connection.scalar(_ERASE, {"store": store}) or 0)


def _file(row: Any) -> MemoryFile:
    return MemoryFile(
        path=row["path"],
        content=row["content"],
        bytes=row["bytes"],
        version=row["version"],
        updated_at=row["updated_at"],
    )
