"""Memory stores: cases R."""

import asyncio
import json
from itertools import count

import pytest

from app.domain.memory_files import Keeping
from app.domain.memory_trees import Limits
from app.services import memory_tools
from app.services.memories import Memories

_stores = count()


@pytest.fixture(scope="module")
def memories(shared_db):
    limits = Limits(max_file_bytes=2_000, max_files=30, max_store_bytes=20_000)
    return Memories(db=shared_db, limits=limits, keeping=Keeping(max_versions=5_000, days=90, max_bytes=2**30))


@pytest.fixture
def store():
    return f"store-{next(_stores)}"


async def call(memories, store, tool, **arguments):
    answer = await memory_tools.run(memories, store, tool, json.dumps(arguments), session=None)
    assert answer.is_error == answer.content.startswith("Error: ")
    return answer.content


async def texts_of(memories, store):
    return {
        file.path: (await memories.get(store, file.path)).content for file in await memories.list_files(store, "")
    }


async def fill(memories, store, **files):
    for path, text in files.items():
        await call(memories, store, "MemoryCreate", path=path.replace("__", "/") + ".md", fileText=text)


async def test_r1_a_view_lists_two_levels_or_numbers_lines(memories, store):
    await fill(memories, store, b="é", a__deep__er="x", a__c="two\nlines\n")
    assert await call(memories, store, "MemoryView", path="") == (
        "Contents of /:\n\n  a/\n  a/c.md (10 bytes)\n  a/deep/\n  b.md (2 bytes)"
    )
    assert await call(memories, store, "MemoryView", path="a/c.md") == (
        "File: a/c.md\nLines 1-2 of 2\n\n     1\ttwo\n     2\tlines"
    )
    assert "er.md" in await call(memories, store, "MemoryView", path="a/deep")


RANGES = {"2,4": "BCD", "bad": None, "5,2": None, "4,-1": "DE", "1,6": None, "0,2": None}


@pytest.mark.parametrize(("given_range", "shown"), RANGES.items())
async def test_r2_a_range_shows_these_lines(memories, store, given_range, shown):
    await fill(memories, store, f="A\nB\nC\nD\nE")
    view = await call(memories, store, "MemoryView", path="f.md", viewRange=given_range)
    if shown is None:
        assert view.startswith("Error: ")
    else:
        assert "".join(line[-1] for line in view.splitlines()[3:]) == shown


async def test_r3_of_two_creates_of_one_path_one_wins(memories, store):
    arguments = {"path": "x.md", "fileText": "mine"}
    answers = await asyncio.gather(*(call(memories, store, "MemoryCreate", **arguments) for _ in range(5)))
    assert sorted(answer.startswith("Error: ") for answer in answers) == [False] + [True] * 4
    assert (await call(memories, store, "MemoryCreate", **arguments)).startswith("Error: ")


@pytest.mark.parametrize("old", ["absent", "aa", ""])
async def test_r4_what_is_replaced_occurs_exactly_once(memories, store, old):
    await fill(memories, store, f="aaa")
    answer = await call(memories, store, "MemoryStrReplace", path="f.md", oldStr=old, newStr="x")
    assert answer.startswith("Error: ")
    assert await texts_of(memories, store) == {"f.md": "aaa"}


async def test_r4_an_empty_new_text_deletes(memories, store):
    await fill(memories, store, f="one two three")
    await call(memories, store, "MemoryStrReplace", path="f.md", oldStr=" two", newStr="")
    assert await texts_of(memories, store) == {"f.md": "one three"}


INSERTED = {
    "before the first": ("A\nB\n", 0, "X", "X\nA\nB\n"),
    "in the middle": ("A\nB\n", 1, "X", "A\nX\nB\n"),
    "at the end": ("A\nB\n", 2, "X", "A\nB\nX\n"),
    "at an end without newline": ("A\nB", 2, "X", "A\nB\nX"),
    "with a newline of its own": ("A\nB\n", 1, "X\n", "A\nX\nB\n"),
    "several lines": ("A\nB\n", 1, "X\nY\n", "A\nX\nY\nB\n"),
    "with the file's line ends": ("A\r\nB\r\n", 1, "X\nY", "A\r\nX\r\nY\r\nB\r\n"),
    "into nothing": ("", 0, "X", "X\n"),
}


@pytest.mark.parametrize(("before", "line", "text", "after"), INSERTED.values(), ids=INSERTED)
async def test_r5_lines_are_inserted(memories, store, before, line, text, after):
    await fill(memories, store, f=before)
    answer = await call(memories, store, "MemoryInsert", path="f.md", insertLine=line, insertText=text)
    assert not answer.startswith("Error: ")
    assert await texts_of(memories, store) == {"f.md": after}
    assert (await call(memories, store, "MemoryInsert", path="f.md", insertLine=99, insertText="x")).startswith("Err")


async def test_r6_what_cannot_be_moved_or_deleted(memories, store):
    await fill(memories, store, a__b="x", c="y")
    for old, new in (
        ("", "z"),
        ("a", ""),
        ("a", "a/inside"),
        ("a", "a"),
        ("a", "c.md"),
        ("a", "c.md/x"),
        ("no", "z"),
    ):
        answer = await call(memories, store, "MemoryRename", oldPath=old, newPath=new)
        assert answer.startswith("Error: "), (old, new)
    assert (await call(memories, store, "MemoryDelete", path="")).startswith("Error: ")
    assert await texts_of(memories, store) == {"a/b.md": "x", "c.md": "y"}
    assert await call(memories, store, "MemoryRename", oldPath="a", newPath="new/place") == "Renamed a to new/place."
    assert await texts_of(memories, store) == {"new/place/b.md": "x", "c.md": "y"}


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a//b", "a\0b", "a\\b", "a/../b", "x\n", "/memories//x", "a" * 600]
)
async def test_r7_hostile_paths_are_refused(memories, store, path):
    answer = await call(memories, store, "MemoryCreate", path=path, fileText="x")
    assert answer.startswith("Error: ")
    assert await texts_of(memories, store) == {}


async def test_r7_the_root_may_be_named(memories, store):
    await call(memories, store, "memory", command="create", path="/memories/x.md", file_text="x")
    assert await texts_of(memories, store) == {"x.md": "x"}
    view = await call(memories, store, "memory", command="view", path="/memories")
    assert "x.md (1 bytes)" in view


async def test_r8_concurrent_inserts_lose_nothing(memories, store):
    await fill(memories, store, MEMORY="# Index\n")
    lines = [f"- entry {number}" for number in range(20)]
    await asyncio.gather(
        *(call(memories, store, "MemoryInsert", path="MEMORY.md", insertLine=1, insertText=line) for line in lines)
    )
    assert sorted((await texts_of(memories, store))["MEMORY.md"].splitlines()[1:]) == sorted(lines)


async def test_limits_are_kept_inside_the_transaction(memories, store):
    too_large = await call(memories, store, "MemoryCreate", path="x.md", fileText="x" * 2_001)
    assert "2,000" in too_large
    answers = await asyncio.gather(
        *(call(memories, store, "MemoryCreate", path=f"{number}.md", fileText="x") for number in range(35))
    )
    assert sum(answer.startswith("Error: ") for answer in answers) == 5
    assert len(await texts_of(memories, store)) == 30


async def test_anthropics_commands_do_the_same(memories, store):
    for command in (
        {"command": "create", "path": "/memories/a.md", "file_text": "one\n"},
        {"command": "insert", "path": "/memories/a.md", "insert_line": 1, "insert_text": "two\n"},
        {"command": "str_replace", "path": "/memories/a.md", "old_str": "one", "new_str": "1"},
        {"command": "view", "path": "/memories/a.md", "view_range": [1, 2]},
        {"command": "rename", "old_path": "/memories/a.md", "new_path": "/memories/b.md"},
    ):
        assert not (await call(memories, store, "memory", **command)).startswith("Error: "), command
    assert await texts_of(memories, store) == {"b.md": "1\ntwo\n"}
    await call(memories, store, "memory", command="delete", path="/memories/b.md")
    assert await texts_of(memories, store) == {}
