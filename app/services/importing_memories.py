"""Import of memory files: their versions into the histories, then the files as the newest of these say."""

from collections.abc import Callable
from dataclasses import dataclass, field

from app.domain import memory_trees
from app.domain.errors import MemoryRefused
from app.domain.memory_trees import Limits
from app.importing.records import BadRecord, FoundMemory
from app.storage import memories, memory_restores
from app.storage.database import Connection, Database

# What one transaction writes.
_MAX_VERSIONS = 50
_MAX_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class MemoryTally:
    """Versions that were added or were there already, and files that are different now."""

    added: int = 0
    known: int = 0
    files: int = 0


@dataclass(slots=True, kw_only=True)
class MemoryImport:
    """A run of versions, store by store. Without `limits` files are as large and as many as they come."""

    db: Database
    limits: Limits | None
    tally: MemoryTally
    report: Callable[[BadRecord], None]
    _store: str | None = None
    _pending: list[FoundMemory] = field(default_factory=list)
    _bytes: int = 0
    # By path the place of the version that came last.
    _places: dict[str, str] = field(default_factory=dict)

    async def add(self, found: FoundMemory) -> None:
        if found.record.store != self._store:
            await self.finish()
            self._store = found.record.store
        size = memory_trees.size_of(found.record.content or "")
        if self.limits is not None and size > self.limits.max_file_bytes:
            reason = f"It has {size:,} bytes; a file has at most {self.limits.max_file_bytes:,}."
            self.report(BadRecord(place=found.place, reason=reason))
            return
        self._pending.append(found)
        self._bytes += size
        if len(self._pending) >= _MAX_VERSIONS or self._bytes >= _MAX_BYTES:
            await self._write()

    async def finish(self) -> None:
        """What is pending, and the files of the store."""
        await self._write()
        if self._store is not None and self._places:
            async with self.db.transaction() as connection:
                await memories.lock(connection, self._store)
                await self._settle(connection, self._store)
        self._places.clear()

    async def _write(self) -> None:
        if self._store is None or not self._pending:
            return
        async with self.db.transaction() as connection:
            locked = await memories.lock(connection, self._store)
            added = await memory_restores.restore(connection, locked, [found.record for found in self._pending])
        self.tally.added += added
        self.tally.known += len(self._pending) - added
        self._places |= {found.record.path: found.place for found in self._pending}
        self._pending.clear()
        self._bytes = 0

    async def _settle(self, connection: Connection, store: str) -> None:
        unsettled = await memory_restores.unsettled(connection, store, list(self._places))
        gone = [file.path for file in unsettled if file.bytes is None]
        await memory_restores.remove(connection, store, gone)
        self.tally.files += len(gone)
        sizes = await memories.sizes(connection, store)
        for file in unsettled:
            if file.bytes is None:
                continue
            try:
                self._require_place(sizes, file.path, file.bytes)
            except MemoryRefused as refused:
                reason = f"{refused} This text is kept in the history of {file.path!r} alone."
                self.report(BadRecord(place=self._places[file.path], reason=reason))
                continue
            await memory_restores.settle(connection, store, file)
            sizes[file.path] = file.bytes
            self.tally.files += 1

    def _require_place(self, sizes: dict[str, int], path: str, size: int) -> None:
        if path not in sizes:
            memory_trees.require_free(sizes, path)
        if self.limits is not None:
            memory_trees.require_room(sizes, {path: size}, self.limits)
