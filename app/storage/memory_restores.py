"""Versions of memory files put back: beside what there is, so that nothing of either is lost.

First the versions of a store, then its files: which text a file has is told by all its versions together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from app.domain.exports import MemoryRecord
from app.storage import memory_histories as histories
from app.storage.database import Connection
from app.storage.memories import Locked

# A version that is there already may have got another number when it came: that does not tell.
_RESTORE = text("""
WITH given AS MATERIALIZED (
    SELECT CAST(:store AS text) AS store, CAST(:path AS text) AS path, CAST(:version AS bigint) AS version,
           CAST(:content AS text) AS content, CAST(:edited_at AS timestamptz) AS edited_at,
           CAST(:tool AS text) AS tool, CAST(:session_id AS text) AS session_id, CAST(:file AS uuid) AS file
)
INSERT INTO memory_versions (store, path, version, content, edited_at, tool, session_id, file)
SELECT g.store, g.path,
       CASE WHEN EXISTS (
           SELECT FROM memory_versions v WHERE v.store = g.store AND v.path = g.path AND v.version = g.version
       ) THEN greatest(CAST(:last AS bigint), g.version) + 1 ELSE g.version END,
       g.content, g.edited_at, g.tool, g.session_id,
       coalesce(
           g.file,
           (SELECT f.file FROM memory_files f WHERE f.store = g.store AND f.path = g.path),
           (SELECT v.file FROM memory_versions v WHERE v.store = g.store AND v.path = g.path
            ORDER BY v.edited_at DESC, v.version DESC LIMIT 1),
           gen_random_uuid()
       )
FROM given g
WHERE NOT EXISTS (
    SELECT FROM memory_versions v WHERE v.store = g.store AND v.path = g.path AND v.edited_at = g.edited_at
      AND v.tool = g.tool AND v.content IS NOT DISTINCT FROM g.content
      AND v.session_id IS NOT DISTINCT FROM g.session_id
)
RETURNING version
""")

_COUNT = text("""
UPDATE memory_stores SET last_version = greatest(last_version, CAST(:last AS bigint)) WHERE store = :store
""")

# Where a file is not as its newest version says.
_UNSETTLED = text("""
SELECT n.path, n.version, n.bytes
FROM (
    SELECT DISTINCT ON (path) path, version, octet_length(content) AS bytes FROM memory_versions
    WHERE store = :store AND path = ANY(CAST(:paths AS text[]))
    ORDER BY path, edited_at DESC, version DESC
) n LEFT JOIN memory_files f ON f.store = :store AND f.path = n.path
WHERE CASE WHEN n.bytes IS NULL THEN f.path IS NOT NULL ELSE f.version IS DISTINCT FROM n.version END
ORDER BY n.path
""")

_REMOVE = text("DELETE FROM memory_files WHERE store = :store AND path = ANY(CAST(:paths AS text[]))")

# An id that another file has by now is not shared.
_SETTLE = text("""
WITH own AS (
    UPDATE memory_versions v SET file = CASE WHEN EXISTS (
        SELECT FROM memory_files f WHERE f.store = :store AND f.file = v.file AND f.path <> v.path
    ) THEN gen_random_uuid() ELSE v.file END
    WHERE v.store = :store AND v.path = :path AND v.version = :version
    RETURNING v.*
)
INSERT INTO memory_files (store, path, content, bytes, version, updated_at, file)
SELECT store, path, content, octet_length(content), version, edited_at, file FROM own
ON CONFLICT (store, path) DO UPDATE SET
    content = EXCLUDED.content, bytes = EXCLUDED.bytes, version = EXCLUDED.version,
    updated_at = EXCLUDED.updated_at
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """What a file shall be: `bytes` is None where it shall be gone."""

    path: str
    version: int
    bytes: int | None


async def restore(connection: Connection, locked: Locked, records: Sequence[MemoryRecord]) -> int:
    """Put versions into their files' histories; how many were not there. Their files are left as they are.

    One whose number another version has gets a new one.
    """
    last, added, size = locked.last, 0, 0
    for record in records:
        parameters = {name: getattr(record, name) for name in record.__struct_fields__} | {"last": last}
        version = await connection.scalar(_RESTORE, parameters)
        if version is not None:
            last, added, size = max(last, version), added + 1, size + histories.size_of(record.content)
    await connection.execute(_COUNT, {"store": locked.store, "last": last})
    await histories.count(connection, locked.store, size)
    return added


async def unsettled(connection: Connection, store: str, paths: Sequence[str]) -> list[Unsettled]:
    """Where files are not as the newest of their versions says."""
    rows = await connection.execute(_UNSETTLED, {"store": store, "paths": list(paths)})
    return [Unsettled(**row) for row in rows.mappings()]


async def remove(connection: Connection, store: str, paths: Sequence[str]) -> None:
    await connection.execute(_REMOVE, {"store": store, "paths": list(paths)})


async def settle(connection: Connection, store: str, file: Unsettled) -> None:
    """Make a file what its newest version says."""
    await connection.execute(_SETTLE, {"store": store, "path": file.path, "version": file.version})
    await histories.join(connection, store, [file.path])
