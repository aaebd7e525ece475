"""Histories of memory files in PostgreSQL: a version for each edit, under the id that a file keeps when it moves.

A file is as its version with the greatest (edited_at, version) left it. Those numbers are unique for a path.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text

from app.domain.exports import MemoryRecord
from app.domain.memory_files import DeletedFile, FileVersion, Keeping, MemoryFile
from app.storage.database import Connection

# What a version takes besides its text, about, in bytes: with its rows in the indexes.
VERSION_BYTES = 500

_BELOW = "({0}.path = :path OR starts_with({0}.path, :path || '/'))"

# The files that have, or had, the path and that are nowhere else now.
_OWN = """
SELECT o.file FROM memory_versions o WHERE o.store = :store AND o.path = :path AND NOT EXISTS (
    SELECT FROM memory_files f WHERE f.store = :store AND f.file = o.file AND f.path <> :path
)
"""
_VERSIONS = text(f"""
SELECT path, version, octet_length(content) AS bytes, edited_at, tool, session_id FROM memory_versions
WHERE store = :store AND (path = :path OR file IN ({_OWN})) ORDER BY edited_at DESC, version DESC
""")  # noqa: S608
_VERSION = text(f"""
SELECT content, octet_length(content) AS bytes, version, edited_at FROM memory_versions
WHERE store = :store AND (path = :path OR file IN ({_OWN})) AND version = :version AND content IS NOT NULL
ORDER BY path = :path DESC LIMIT 1
""")  # noqa: S608

_DELETED = text(f"""
WITH gone AS MATERIALIZED (
    SELECT v.file, v.path, v.version, v.edited_at, octet_length(v.content) AS bytes FROM memory_versions v
    WHERE v.store = :store AND NOT EXISTS (
        SELECT FROM memory_files f WHERE f.store = :store AND f.file = v.file
    )
), latest AS (
    SELECT DISTINCT ON (file) file, path, edited_at FROM gone ORDER BY file, edited_at DESC, version DESC
), kept AS (
    SELECT DISTINCT ON (file) file, version, bytes FROM gone
    WHERE bytes IS NOT NULL ORDER BY file, edited_at DESC, version DESC
)
SELECT v.path, v.edited_at AS deleted_at, kept.version, kept.bytes FROM latest v LEFT JOIN kept USING (file)
WHERE CAST(:path AS text) = '' OR {_BELOW.format("v")} ORDER BY v.path, v.edited_at
""")  # noqa: S608

# The files themselves have to be deleted before: those that live, live elsewhere.
_PURGE = text(f"""
WITH gone AS (
    DELETE FROM memory_versions v WHERE v.store = :store AND ({_BELOW.format("v")} OR v.file IN (
        SELECT o.file FROM memory_versions o WHERE o.store = :store AND {_BELOW.format("o")} AND NOT EXISTS (
            SELECT FROM memory_files f WHERE f.store = :store AND f.file = o.file
        )
    )) RETURNING {VERSION_BYTES} + coalesce(octet_length(v.content), 0) AS size
)
SELECT count(*) AS versions, coalesce(sum(size), 0)::bigint AS bytes FROM gone
""")  # noqa: S608

# A file that is written where deleted ones were goes on with their history: what is restored of it is its own.
_JOIN = text("""
UPDATE memory_versions v SET file = j.file
FROM (
    SELECT DISTINCT ON (o.file) o.file AS old, f.file
    FROM memory_files f JOIN memory_versions o ON o.store = f.store AND o.path = f.path AND o.file <> f.file
    WHERE f.store = :store AND f.path = ANY(CAST(:paths AS text[]))
      AND NOT EXISTS (SELECT FROM memory_files l WHERE l.store = :store AND l.file = o.file)
    ORDER BY o.file, f.path
) j
WHERE v.store = :store AND v.file = j.old
""")

# A version is as old as what came after it: what a file was yesterday can be had back, whenever it was written.
# `texts` counts the contents of the file from the newest on.
_ENDED = "coalesce(lag(v.edited_at) OVER own, v.edited_at)"
_OF_ITS_FILE = (
    "WINDOW own AS (PARTITION BY v.file ORDER BY v.edited_at DESC, v.version DESC ROWS UNBOUNDED PRECEDING)"
)
_WITH_CURRENT = "LEFT JOIN memory_files f ON f.store = v.store AND f.path = v.path AND f.version = v.version"
_SIZE = f"{VERSION_BYTES} + coalesce(octet_length(v.content), 0)"

_FORGET_OLD = text(f"""
WITH known AS MATERIALIZED (
    SELECT v.path, v.version, f.version IS NULL AND (
        {_ENDED} < CAST(:at AS timestamptz) - CAST(:days AS int) * interval '1 day'
        OR count(v.content) OVER own > CAST(:most AS int) - CAST(v.content IS NULL AS int)
    ) AS is_over
    FROM memory_versions v {_WITH_CURRENT}
    WHERE v.store = :store AND v.file IN (
        SELECT o.file FROM memory_versions o WHERE o.store = :store AND o.path = ANY(CAST(:paths AS text[]))
    )
    {_OF_ITS_FILE}
), gone AS (
    DELETE FROM memory_versions v USING known k
    WHERE k.is_over AND v.store = :store AND v.path = k.path AND v.version = k.version
    RETURNING {_SIZE} AS size
)
SELECT coalesce(sum(size), 0)::bigint FROM gone
""")  # noqa: S608

# The oldest of all files: read through, as it is only done once they are too many, and then some are left out more.
_FORGET_OVERFLOW = text(f"""
WITH known AS MATERIALIZED (
    SELECT v.path, v.version, f.version IS NOT NULL AS is_current, {_ENDED} AS ended_at, {_SIZE} AS size
    FROM memory_versions v {_WITH_CURRENT} WHERE v.store = :store {_OF_ITS_FILE}
), counted AS (
    SELECT *, sum(size) OVER (ORDER BY ended_at DESC, version DESC, path ROWS UNBOUNDED PRECEDING) AS bytes
    FROM known WHERE NOT is_current
), gone AS (
    DELETE FROM memory_versions v USING counted c
    WHERE c.bytes > CAST(:bytes AS bigint) AND v.store = :store AND v.path = c.path AND v.version = c.version
)
UPDATE memory_stores SET version_bytes = coalesce(
    (SELECT sum(size) FROM known WHERE is_current), 0
) + coalesce((SELECT sum(size) FROM counted WHERE bytes <= CAST(:bytes AS bigint)), 0)
WHERE store = :store
""")  # noqa: S608

# What the history takes besides what the files are now.
_HISTORY_BYTES = text(f"""
UPDATE memory_stores SET version_bytes = version_bytes + :added WHERE store = :store
RETURNING version_bytes - (
    SELECT coalesce(sum({VERSION_BYTES} + bytes), 0) FROM memory_files WHERE store = :store
)
""")  # noqa: S608

# By the numbers of the edits, up to where the store was as the export of it began: what is edited meanwhile is not
# told of by halves.
_AFTER = text("""
SELECT store, path, version, content, edited_at, tool, session_id, file FROM memory_versions
WHERE store = :store AND (version, path) > (:version, :path) AND version <= :last
ORDER BY version, path LIMIT :limit
""")


async def versions(connection: Connection, store: str, path: str) -> list[FileVersion]:
    """Newest first; of deleted files as well, and from before a file had this path."""
    rows = await connection.execute(_VERSIONS, {"store": store, "path": path})
    return [FileVersion(**row) for row in rows.mappings()]


async def version(connection: Connection, store: str, path: str, number: int) -> MemoryFile | None:
    """A file after an edit; None where it was deleted by it, or where no such version is kept."""
    parameters = {"store": store, "path": path, "version": number}
    row = (await connection.execute(_VERSION, parameters)).one_or_none()
    if row is None:
        return None
    return MemoryFile(path=path, content=row.content, bytes=row.bytes, version=row.version, updated_at=row.edited_at)


async def deleted(connection: Connection, store: str, prefix: str) -> list[DeletedFile]:
    """The files at or below a path that are gone and of which something is kept."""
    rows = await connection.execute(_DELETED, {"store": store, "path": prefix})
    return [DeletedFile(**row) for row in rows.mappings()]


async def purge(connection: Connection, store: str, path: str) -> int:
    """Forget a path for good, with everything below it; how many versions that were."""
    gone = (await connection.execute(_PURGE, {"store": store, "path": path})).one()
    await count(connection, store, -gone.bytes)
    return int(gone.versions)


async def join(connection: Connection, store: str, paths: Sequence[str]) -> None:
    """Give the files at these paths the histories of those that were there before."""
    await connection.execute(_JOIN, {"store": store, "paths": list(paths)})


async def keep(
    connection: Connection, store: str, paths: Sequence[str], at: datetime, keeping: Keeping, *, added: int
) -> None:
    """Drop what need not be kept any more, the oldest first and never what a file is now.

    `paths` are those that were edited, `added` is what was put into their histories, in bytes.
    """
    parameters = {"store": store, "paths": list(paths), "at": at, "days": keeping.days, "most": keeping.max_versions}
    gone = int((await connection.execute(_FORGET_OLD, parameters)).scalar_one())
    if await count(connection, store, added - gone) > keeping.max_bytes:
        kept = keeping.max_bytes * 9 // 10
        await connection.execute(_FORGET_OVERFLOW, {"store": store, "bytes": kept})


async def count(connection: Connection, store: str, added: int) -> int:
    """Count what came to the histories of a store, or went; what the earlier versions then take."""
    return int((await connection.execute(_HISTORY_BYTES, {"store": store, "added": added})).scalar_one())


def size_of(content: str | None) -> int:
    """What a version takes."""
    return VERSION_BYTES + len((content or "").encode())


async def versions_after(
    connection: Connection, store: str, after: tuple[int, str], last: int, limit: int
) -> list[MemoryRecord]:
    """All versions of a store's files by (version, path), as an export has them, up to the edit `last`."""
    parameters = {"store": store, "version": after[0], "path": after[1], "last": last, "limit": limit}
    return [MemoryRecord(**row) for row in (await connection.execute(_AFTER, parameters)).mappings()]
