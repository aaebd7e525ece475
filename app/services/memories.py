"""Memory stores at work: each edit is a transaction of its own, decided on the files that there are."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain import memory_paths, memory_texts, memory_trees, memory_views
from app.domain.conditions import Condition
from app.domain.errors import FileNotFound, FileVersionNotFound, MemoryRefused
from app.domain.memory_archives import packed, unpacked
from app.domain.memory_files import DeletedFile, Editor, FileVersion, Keeping, MemoryFile
from app.domain.memory_lines import lines_of
from app.domain.memory_paths import entry_path, file_path, normalised, shown
from app.domain.memory_trees import Limits, size_of
from app.storage import memories, sessions
from app.storage import memory_histories as histories
from app.storage.database import Connection, Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    db: Database
    limits: Limits
    keeping: Keeping

    # What a model does

    async def view(self, store: str, path: str, view_range: str | None) -> str:
        """A file with numbered lines, or two levels of a directory. Raises MemoryRefused."""
        path = normalised(path)
        async with self.db.reading() as connection:
            found = await memories.files(connection, store, [path])
            if path in found:
                return memory_views.file_view(path, found[path].content, view_range)
            sizes = await memories.sizes(connection, store)
        return memory_views.directory_view(path, memory_trees.entries_of(sizes, path), view_range)

    async def create(self, store: str, path: str, content: str, by: Editor) -> str:
        path = file_path(path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            memory_trees.require_free(edit.sizes, path)
            await self._write(connection, edit, {path: content}, by)
        return f"Created {shown(path)} ({size_of(content)} bytes)."

    async def str_replace(self, store: str, path: str, old: str, new: str, by: Editor) -> str:
        path = file_path(path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            text = await self._text(connection, edit, path)
            changed, snippet = memory_texts.replaced(shown(path), text, old, new)
            if changed != text:
                await self._write(connection, edit, {path: changed}, by)
        return f"Edited {shown(path)}. The place now is:\n{snippet}"

    async def insert(self, store: str, path: str, after: int, new: str, by: Editor) -> str:
        path = file_path(path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            text = await self._text(connection, edit, path)
            changed, snippet = memory_texts.inserted(shown(path), text, after, new)
            await self._write(connection, edit, {path: changed}, by)
        return f"Edited {shown(path)}. The place now is:\n{snippet}"

    async def places_for_lines(self, store: str, path: str) -> str:
        """After which lines of a file something can be inserted, as a sentence. Raises MemoryRefused."""
        path = file_path(path)
        async with self.db.reading() as connection:
            found = await memories.files(connection, store, [path])
            if path not in found:
                raise _no_file(await memories.sizes(connection, store), path)
        count = len(lines_of(found[path].content))
        return f"In {shown(path)}, {memory_texts.places_for_lines(count)}"

    async def delete(self, store: str, path: str, by: Editor) -> str:
        path = normalised(path)
        if not path:
            raise MemoryRefused("The root of the memory cannot be deleted: name a file or directory in it.")
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            gone = memory_trees.below(edit.sizes, path)
            await self._write(connection, edit, dict.fromkeys(gone), by)
        return f"Deleted {shown(path)} ({len(gone)} file{'s' if len(gone) > 1 else ''})."

    async def rename(self, store: str, old: str, new: str, by: Editor) -> str:
        target, old, new = new, normalised(old), normalised(new)
        if not old or not new:
            raise MemoryRefused(
                "The root of the memory cannot be renamed, and nothing can take its place: name what is in it."
            )
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            if old in edit.sizes:
                file_path(target)  # What ends in "/" names the directory that it shall go into.
            moves = memory_trees.moved(edit.sizes, old, new)
            contents = await memories.files(connection, store, list(moves))
            changes: dict[str, str | None] = dict.fromkeys(moves)
            changes |= {moves[path]: file.content for path, file in contents.items()}
            await self._write(connection, edit, changes, by, moves=moves)
        return f"Renamed {shown(old)} to {shown(new)}."

    # What a program does

    async def list_files(self, store: str, prefix: str) -> list[MemoryFile]:
        """The files at or below a path, without their contents."""
        async with self.db.reading() as connection:
            return await memories.listed(connection, store, normalised(prefix))

    async def list_deleted(self, store: str, prefix: str) -> list[DeletedFile]:
        """The files at or below a path that are gone, and of which something is kept."""
        async with self.db.reading() as connection:
            return await histories.deleted(connection, store, normalised(prefix))

    async def get(self, store: str, path: str, version: int | None = None) -> MemoryFile:
        """A file, or what it was at a version. Raises FileNotFound, FileVersionNotFound."""
        path = file_path(path)
        async with self.db.reading() as connection:
            if version is not None:
                return await _version(connection, store, path, version)
            found = await memories.files(connection, store, [path])
            if path not in found:
                below = await memories.listed(connection, store, path)
                raise FileNotFound(path, is_directory=bool(below))
        return found[path]

    async def put(
        self, store: str, path: str, content: str, condition: Condition, by: Editor
    ) -> tuple[MemoryFile, bool]:
        """The file as it is now, and whether it is a new one. Raises FileVersionMismatch."""
        path = file_path(path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            before = (await memories.files(connection, store, [path])).get(path)
            condition.check(before)
            return await self._replaced(connection, edit, path, content, before, by), before is None

    async def remove(self, store: str, path: str, condition: Condition, by: Editor, *, purge: bool) -> None:
        """Delete a file or directory; `purge` forgets its versions, too, also of what was deleted before.

        Only with `purge` the path may be the root: then nothing at all is left of the store. Raises FileNotFound,
        FileVersionMismatch.
        """
        path = normalised(path) if purge else entry_path(path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            condition.check((await memories.files(connection, store, [path])).get(path))
            if not path:
                await memories.erase(connection, store)
                return
            gone = [file for file in edit.sizes if file == path or memory_paths.is_within(file, path)]
            if gone:
                await self._write(connection, edit, dict.fromkeys(gone), by)
            forgotten = await histories.purge(connection, store, path) if purge else 0
            if not gone and not forgotten:
                raise FileNotFound(path)

    async def versions(self, store: str, path: str) -> list[FileVersion]:
        """Newest first. Raises FileNotFound when nothing is known of the path."""
        path = file_path(path)
        async with self.db.reading() as connection:
            found = await histories.versions(connection, store, path)
        if not found:
            raise FileNotFound(path)
        return found

    async def restore(self, store: str, path: str, version: int, by: Editor) -> MemoryFile:
        """Bring back what a file was. Raises FileVersionNotFound."""
        path = file_path(path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            content = (await _version(connection, store, path, version)).content
            before = (await memories.files(connection, store, [path])).get(path)
            return await self._replaced(connection, edit, path, content, before, by)

    async def archive(self, store: str) -> bytes:
        """The zip of all files."""
        async with self.db.reading() as connection:
            found = await memories.contents(connection, store)
        return await asyncio.to_thread(packed, found)

    async def replace(self, store: str, archive: bytes, by: Editor) -> list[MemoryFile]:
        """Make the store what a zip holds, all of it or nothing; the files that it then has."""
        wanted = await asyncio.to_thread(unpacked, archive, self.limits)
        for path in wanted:
            memory_trees.require_parents(wanted, path)
        async with self.db.transaction() as connection:
            edit = await self._begin(connection, store, by)
            before = await memories.contents(connection, store)
            changes: dict[str, str | None] = dict.fromkeys(path for path in before if path not in wanted)
            changes |= {path: content for path, content in wanted.items() if before.get(path) != content}
            if changes:
                await self._write(connection, edit, changes, by)
            return await memories.listed(connection, store, "")

    async def _begin(self, connection: Connection, store: str, by: Editor) -> "_Edit":
        """Raises SessionNotFound when the session that the edit is made through is gone."""
        locked = await memories.lock(connection, store)
        # Under the lock that erasing a user takes first: an edit comes before it, and is erased, or not at all.
        if by.session is not None:
            await sessions.get_by_key(connection, by.session)
        return _Edit(locked=locked, sizes=await memories.sizes(connection, store))

    async def _text(self, connection: Connection, edit: "_Edit", path: str) -> str:
        found = await memories.files(connection, edit.locked.store, [path])
        if path in found:
            return found[path].content
        raise _no_file(edit.sizes, path)

    async def _replaced(
        self, connection: Connection, edit: "_Edit", path: str, content: str, before: MemoryFile | None, by: Editor
    ) -> MemoryFile:
        """The file with this content; one that has it already is left as it is."""
        if before is None:
            memory_trees.require_free(edit.sizes, path)
        elif before.content == content:
            return before
        await self._write(connection, edit, {path: content}, by)
        return (await memories.files(connection, edit.locked.store, [path]))[path]

    async def _write(
        self,
        connection: Connection,
        edit: "_Edit",
        changes: Mapping[str, str | None],
        by: Editor,
        *,
        moves: Mapping[str, str] | None = None,
    ) -> None:
        _require_text(changes)
        if moves is None:  # What only moves takes no more room than it did.
            sizes = {path: None if content is None else size_of(content) for path, content in changes.items()}
            memory_trees.require_room(edit.sizes, sizes, self.limits)
        await memories.write(connection, edit.locked, changes, by=by, keeping=self.keeping, moves=moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """A store that is locked, and the sizes of its files."""

    locked: memories.Locked
    sizes: Mapping[str, int]


def _no_file(sizes: Mapping[str, int], path: str) -> MemoryRefused:
    if memory_trees.is_directory(sizes, path):
        return MemoryRefused(f"{shown(path)} is a directory. View it, and name a file in it.")
    return memory_trees.not_found(sizes, path)


async def _version(connection: Connection, store: str, path: str, version: int) -> MemoryFile:
    found = await histories.version(connection, store, path, version)
    if found is None:
        raise FileVersionNotFound(path, version)
    return found


def _require_text(changes: Mapping[str, str | None]) -> None:
    for path, content in changes.items():
        if content is not None and "\0" in content:
            raise MemoryRefused(f"{shown(path)} would hold a NUL character: a memory holds text. Leave it out.")
