"""Memories out and in again without loss: random users, hostile records, and stores that have edits of their own."""

import asyncio
import io
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.domain import json_values
from app.domain.conditions import Condition
from app.domain.errors import FileNotFound, MemoryRefused
from app.domain.exports import line_of
from app.domain.memory_files import Editor, Keeping
from app.domain.memory_trees import Limits
from app.importing.records import Origin
from app.importing.turnkeeper import parse
from app.services.importing import Tally, import_records
from app.services.memories import Memories
from app.storage import memories as storage
from app.storage import sessions, transfer
from tests.storage.test_transfer import hold, kept

LIMITS = Limits(max_file_bytes=2_000, max_files=8, max_store_bytes=10_000)
_users = count()

RECORD = {
    "kind": "memory",
    "store": "alice",
    "path": "a.md",
    "version": 1,
    "content": "old",
    "edited_at": "2026-01-01T00:00:00Z",
    "tool": "put",
    "session_id": None,
}


def memories_of(db):
    return Memories(db=db, limits=LIMITS, keeping=Keeping(max_versions=50, days=90, max_bytes=2**24))


async def exported(db, user):
    return [
        json_values.encode(line_of(record)) async for batch in transfer.export(db, user_id=user) for record in batch
    ]


async def imported(db, lines, limits=LIMITS):
    data = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    tally, bad = Tally(), []
    records = parse(io.BytesIO(data), Origin(stem="export", count_tokens=lambda _: 1))
    await import_records(db, records, tally, lambda one: bad.append((one.place, one.reason)), limits=limits)
    return tally, bad


async def erase(db, user):
    async with db.transaction() as connection:
        await storage.lock(connection, user)
        await sessions.delete_of_user(connection, user)
        await storage.erase(connection, user)


async def texts(db, store):
    memories = memories_of(db)
    return {
        file.path: (await memories.get(store, file.path)).content for file in await memories.list_files(store, "")
    }


async def history(db, store, path):
    memories = memories_of(db)
    return [
        None if one.bytes is None else (await memories.get(store, one.path, one.version)).content
        for one in await memories.versions(store, path)
    ]


async def put(db, store, path, content):
    await memories_of(db).put(store, path, content, Condition(), Editor(tool="put"))


PATHS = st.sampled_from(["a", "a/b", "b.md", "ü/é", "日記 😀.md", "%"])
TEXTS = st.text(alphabet=st.sampled_from('a\n\r\u2028é😀"\\\x01\x7f\ufeff'), max_size=20)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PATHS, TEXTS),
        st.tuples(st.just("delete"), PATHS),
        st.tuples(st.just("rename"), PATHS, PATHS),
        st.tuples(st.just("restore"), PATHS, st.integers(0, 3)),
        st.tuples(st.just("purge"), PATHS),
    ),
    max_size=12,
)


async def edit(db, store, edits):
    """What of these edits can be done."""
    memories = memories_of(db)
    for kind, path, *rest in edits:
        with suppress(MemoryRefused, FileNotFound, ZeroDivisionError):
            await EDITORS[kind](memories, store, path, Editor(tool=kind), *rest)


async def restore_one(memories, store, path, by, number):
    versions = [one.version for one in await memories.versions(store, path) if one.bytes is not None]
    await memories.restore(store, path, versions[number % len(versions)], by)


EDITORS = {
    "put": lambda memories, store, path, by, content: memories.put(store, path, content, Condition(), by),
    "delete": lambda memories, store, path, by: memories.delete(store, path, by),
    "rename": lambda memories, store, path, by, new: memories.rename(store, path, new, by),
    "restore": restore_one,
    "purge": lambda memories, store, path, by: memories.remove(store, path, Condition(), by, purge=True),
}


@settings(max_examples=25)
@given(kept, EDITS)
async def test_a_user_goes_out_is_erased_and_is_there_again(shared_db, session, edits):
    user = f"user {next(_users)}"
    await hold(shared_db, user, f"{user}'s", *session)
    await edit(shared_db, user, edits)
    before, files = await exported(shared_db, user), await texts(shared_db, user)
    deleted = await memories_of(shared_db).list_deleted(user, "")
    await erase(shared_db, user)
    assert await exported(shared_db, user) == []
    for _ in range(2):
        tally, bad = await imported(shared_db, before)
        assert bad == []
        assert await exported(shared_db, user) == before
    assert tally.memory.added == tally.memory.files == 0
    assert await texts(shared_db, user) == files
    assert await memories_of(shared_db).list_deleted(user, "") == deleted


@settings(max_examples=25)
@given(EDITS, EDITS, st.booleans())
async def test_an_import_into_a_memory_with_newer_edits_loses_nothing(shared_db, old, new, is_erased):
    user = f"user {next(_users)}"
    await edit(shared_db, user, old)
    lines = await exported(shared_db, user)
    if is_erased:
        await erase(shared_db, user)
    await edit(shared_db, user, [one for one in new if one[0] != "purge"])
    files, held = await texts(shared_db, user), await exported(shared_db, user)
    await imported(shared_db, lines)
    after = await exported(shared_db, user)

    def known(lines):
        return {(one["path"], one["content"], one["edited_at"], one["tool"]) for one in map(json.loads, lines)}

    assert known(after) == known(held) | known(lines)
    now = await texts(shared_db, user)
    assert {path: now.get(path) for path in files} == files, "the newer texts stay"
    assert (await imported(shared_db, lines))[0].memory.added == 0
    assert await exported(shared_db, user) == after
    await edit(shared_db, user, old)  # it goes on


@pytest.mark.parametrize(
    ("edited_at", "wins"), [("2020-01-01T00:00:00Z", "mine"), ("2090-01-01T00:00:00Z", "old")], ids=["older", "newer"]
)
async def test_of_two_texts_the_later_is_the_files_and_the_other_is_in_its_history(db, edited_at, wins):
    await put(db, "alice", "a.md", "mine")
    record = RECORD | {"edited_at": edited_at}
    for _ in range(2):
        tally, bad = await imported(db, [record])
        assert bad == []
        assert await texts(db, "alice") == {"a.md": wins}
        assert sorted(await history(db, "alice", "a.md")) == ["mine", "old"]
    assert tally.memory.known == 1
    await put(db, "alice", "a.md", "next")
    assert await texts(db, "alice") == {"a.md": "next"}
    assert (await history(db, "alice", "a.md"))[:2] == ["next", wins]


HOSTILE = [
    {"version": 0},
    {"version": -1},
    {"version": 2**53},
    {"version": 10**30},
    {"version": True},
    {"version": 1.5},
    {"version": None},
    {"content": "\ud800"},
    {"content": "a\0b"},
    {"content": 7},
    {"content": "x" * 2_001},
    {"path": ""},
    {"path": "/etc/passwd"},
    {"path": "../x"},
    {"path": "a//b"},
    {"path": "a\\b"},
    {"path": "\udfff"},
    {"path": "/memories/a"},
    {"path": "x" * 600},
    {"store": "a/b"},
    {"store": ""},
    {"store": "\ud800"},
    {"store": "shared:"},
    {"tool": ""},
    {"tool": "\ud800"},
    {"tool": "x" * 300},
    {"tool": None},
    {"session_id": "a\0"},
    {"session_id": "\ud83d"},
    {"edited_at": "2026-01-01T00:00:00"},
    {"edited_at": "0001-01-01T00:00:00+14:00"},
    {"edited_at": "soon"},
    {"file": "no uuid"},
    {"unknown": 1},
    {"kind": "memories"},
]


async def test_bad_records_are_told_with_their_lines_and_the_rest_is_imported(db):
    good = [RECORD | {"path": "first"}, RECORD | {"path": "last"}]
    tally, bad = await imported(db, [good[0], *(RECORD | one for one in HOSTILE), good[1]])
    assert [place for place, _ in bad] == [str(line) for line in range(2, len(HOSTILE) + 2)]
    assert all(reason.endswith(".") for _, reason in bad), bad
    json.dumps(bad).encode()
    assert (tally.bad, tally.memory.added, tally.memory.files) == (len(HOSTILE), 2, 2)
    assert set(await texts(db, "alice")) == {"first", "last"}


async def test_a_text_without_a_place_is_told_and_kept_in_the_history(db):
    await put(db, "alice", "d/file", "mine")
    await put(db, "alice", "f", "mine")
    lines = [RECORD | {"path": "d"}, RECORD | {"path": "f/below"}, RECORD | {"path": "fine"}]
    for turn in range(2):
        tally, bad = await imported(db, lines)
        assert [place for place, _ in bad] == ["1", "2"]
        assert (tally.memory.added, tally.memory.files) == ((3, 1) if not turn else (0, 0))
    assert set(await texts(db, "alice")) == {"d/file", "f", "fine"}
    deleted = {file.path: file.version for file in await memories_of(db).list_deleted("alice", "")}
    assert set(deleted) == {"d", "f/below"}
    assert await history(db, "alice", "d") == ["old"]


async def test_a_store_takes_no_more_than_its_limits_of_files(db):
    tally, bad = await imported(db, [RECORD | {"path": f"{number}"} for number in range(10)])
    assert [place for place, _ in bad] == ["9", "10"]
    assert len(await texts(db, "alice")) == 8
    large = [RECORD | {"store": "bob", "path": f"{number}", "content": "x" * 2_000} for number in range(7)]
    assert [place for place, _ in (await imported(db, large))[1]] == ["6", "7"]
    assert (await imported(db, large, limits=None))[1] == []
    assert tally.memory.added == 10


async def test_what_only_was_a_file_is_in_nobodys_way(db):
    """A path may have been a file first and a directory later, in whatever order the lines come."""
    lines = [
        RECORD | {"path": "a/b", "version": 3, "edited_at": "2026-01-03T00:00:00Z"},
        RECORD | {"path": "a", "version": 1},
        RECORD | {"path": "a", "version": 2, "content": None, "edited_at": "2026-01-02T00:00:00Z"},
    ]
    for order in (lines, lines[::-1]):
        store = f"shared:{next(_users)}"
        assert (await imported(db, [one | {"store": store} for one in order]))[1] == []
        assert await texts(db, store) == {"a/b": "old"}


async def test_one_id_for_two_files_stays_with_one_of_them(db):
    file = "00000000-0000-4000-8000-000000000000"
    await imported(db, [RECORD | {"path": path, "file": file} for path in "ab"])
    await memories_of(db).remove("alice", "a", Condition(), Editor(tool="delete"), purge=True)
    assert await texts(db, "alice") == {"b": "old"}
    assert await history(db, "alice", "b") == ["old"]


async def test_imports_and_edits_at_once_lose_nothing(db):
    lines = [RECORD | {"path": f"{n % 4}", "version": n + 1, "content": f"old {n}"} for n in range(120)]
    began = datetime.now(UTC) - timedelta(days=1)
    lines = [one | {"edited_at": (began + timedelta(seconds=n)).isoformat()} for n, one in enumerate(lines)]
    await asyncio.gather(
        *(imported(db, lines) for _ in range(3)), *(put(db, "alice", f"{n % 4}", f"new {n}") for n in range(20))
    )
    async with db.autocommit() as connection:
        held = [row.content for row in await connection.execute(text("SELECT content FROM memory_versions"))]
    assert {f"old {n}" for n in range(120)} <= set(held)
    assert all(content.startswith("new") for content in (await texts(db, "alice")).values())


async def test_what_is_edited_while_it_is_exported_is_told_as_it_was(db):
    """A file that is renamed behind the reader's back is neither lost nor there twice."""
    for number in range(45):
        await put(db, "alice", f"{number % 5}", f"text {number}")
    before = await texts(db, "alice")
    batches = transfer.export(db, user_id="alice")
    told = [line_of(record) for record in await anext(batches)]
    await memories_of(db).rename("alice", "4", "0-renamed", Editor(tool="rename"))
    await memories_of(db).delete("alice", "3", Editor(tool="delete"))
    told += [line_of(record) async for batch in batches for record in batch]
    await imported(db, [json_values.encode(one | {"store": "shared:copy"}) for one in told])
    assert await texts(db, "shared:copy") == before
