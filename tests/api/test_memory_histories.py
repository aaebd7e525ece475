"""Histories of memory files: through renames, restored, forgotten, and within their bounds."""

import io
import zipfile

import pytest
from sqlalchemy import text

from tests.api.chatting import chatting
from tests.conftest import serving

STORES = pytest.mark.parametrize("store", ["alice", "shared:team"])


class Memory:
    """One store, by HTTP."""

    def __init__(self, client, store="alice"):
        self.client = client
        self.url = f"/v1/memories/{store}"
        self.store = store

    async def put(self, path, content, status=(200, 201)):
        answer = await self.client.put(f"{self.url}/file", params={"path": path}, content=content.encode())
        assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text
        return answer.json().get("version")

    async def tool(self, name, **arguments):
        answer = await self.client.post(f"/v1/users/{self.store}/tools/{name}", json=arguments)
        assert answer.json() == {"content": answer.json()["content"], "is_error": False}, answer.text

    async def rename(self, old, new):
        await self.tool("MemoryRename", oldPath=old, newPath=new)

    async def delete(self, path, *, purge=False, status=204):
        answer = await self.client.delete(f"{self.url}/file", params={"path": path, "purge": purge})
        assert answer.status_code == status, answer.text

    async def restore(self, path, version, status=200):
        answer = await self.client.post(f"{self.url}/file/restore", params={"path": path}, json={"version": version})
        assert answer.status_code == status, answer.text

    async def get(self, path, **params):
        return await self.client.get(f"{self.url}/file", params={"path": path, **params})

    async def versions(self, path):
        answer = await self.client.get(f"{self.url}/file/versions", params={"path": path})
        return answer.json()["items"] if answer.status_code == 200 else []

    async def files(self, **params):
        return (await self.client.get(f"{self.url}/files", params=params)).json()["items"]

    async def deleted(self, **params):
        return [(file["path"], file["size"]) for file in await self.files(deleted=True, **params)]

    async def texts(self):
        return {file["path"]: (await self.get(file["path"])).text for file in await self.files()}


@pytest.fixture
def memory(client):
    return Memory(client)


async def texts_kept(db):
    """Every text that the database holds of any memory."""
    query = "SELECT content FROM memory_versions WHERE content IS NOT NULL UNION SELECT content FROM memory_files"
    async with db.autocommit() as connection:
        return {row.content for row in await connection.execute(text(query))}


# Renames


async def test_a_history_follows_a_file_that_is_renamed(memory):
    await memory.put("a", "one")
    await memory.put("a", "two")
    await memory.rename("a", "x/b")
    await memory.rename("x", "y")
    kept = await memory.versions("y/b")
    assert [(one["path"], one["deleted"]) for one in kept] == [
        ("y/b", False),
        ("x/b", True),
        ("x/b", False),
        ("a", True),
        ("a", False),
        ("a", False),
    ]
    first = kept[-1]["version"]
    assert (await memory.get("y/b", version=first)).text == "one"
    await memory.restore("y/b", first)
    assert await memory.texts() == {"y/b": "one"}


async def test_purging_a_renamed_file_leaves_no_trace_of_it(memory, db):
    await memory.put("a", "secret")
    await memory.rename("a", "dir/b")
    await memory.rename("dir", "other")
    await memory.put("a", "not its business")
    await memory.delete("other/b", purge=True)
    assert await texts_kept(db) == {"not its business"}
    assert await memory.texts() == {"a": "not its business"}
    assert await memory.versions("dir/b") == []
    assert [one["deleted"] for one in await memory.versions("a")] == [False]


async def test_purging_an_old_name_leaves_the_file_that_moved_away(memory, db):
    await memory.put("a", "one")
    await memory.rename("a", "b")
    await memory.put("b", "two")
    await memory.put("a", "another")
    await memory.delete("a", purge=True)
    assert await memory.texts() == {"b": "two"}
    assert await texts_kept(db) == {"one", "two"}  # "one" is what b was
    assert {one["path"] for one in await memory.versions("b")} == {"b"}


async def test_purging_finds_a_deleted_file_by_each_of_its_names(memory, db):
    await memory.put("a", "secret")
    await memory.rename("a", "b")
    await memory.delete("b")
    await memory.delete("a", purge=True)
    assert await texts_kept(db) == set()
    assert await memory.deleted() == []


async def test_what_was_restored_into_a_file_is_forgotten_with_it(memory, db):
    version = await memory.put("a", "secret")
    await memory.delete("a")
    await memory.put("a", "harmless")
    await memory.restore("a", version)
    await memory.rename("a", "b")
    await memory.delete("b", purge=True)
    assert await texts_kept(db) == set()


async def test_a_file_that_moves_where_another_was_takes_on_its_history(memory, db):
    await memory.put("b", "secret")
    await memory.delete("b")
    await memory.put("a", "x")
    await memory.rename("a", "b")
    await memory.rename("b", "c")
    await memory.delete("c", purge=True)
    assert await texts_kept(db) == set()


@STORES
async def test_purging_a_directory_forgets_all_that_was_in_it(client, db, store):
    memory = Memory(client, store)
    await memory.put("d/one", "gone before")
    await memory.delete("d/one")
    await memory.put("d/e/two", "deep")
    await memory.put("d/e/three", "moves out")
    if store == "alice":
        await memory.rename("d/e/three", "kept")
    else:
        await memory.put("kept", "moves out")
    await memory.put("dd", "beside")
    await memory.delete("d", purge=True)
    assert await texts_kept(db) == {"moves out", "beside"}
    assert set(await memory.texts()) == {"kept", "dd"}
    assert await memory.deleted() == []
    await memory.delete("d", purge=True, status=404)


@STORES
async def test_purging_the_root_forgets_the_store(client, db, store):
    memory = Memory(client, store)
    await memory.put("a", "one")
    await memory.put("b", "two")
    await memory.delete("b")
    await client.get(f"{memory.url}/prompt")
    await memory.delete("", status=422)
    await memory.delete("/memories", purge=True)
    assert await texts_kept(db) == set()
    assert await memory.files() == await memory.deleted() == []
    async with db.autocommit() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM memory_stores")) == 0
    await memory.delete("", purge=True)


async def test_purging_the_root_forgets_when_a_reminder_is_due(database_url):
    async with serving(database_url, memory_consolidation={"every_requests": 2}) as client:
        prompt = "/v1/memories/shared:team/prompt"
        reminded = []
        for turn in range(4):
            reminded.append((await client.get(prompt)).json()["reminder"] is not None)
            if turn == 0:
                await Memory(client, "shared:team").delete("", purge=True)
        assert reminded == [False, False, True, False]


# Deleted files


async def test_deleted_files_are_listed_to_be_brought_back_or_purged(memory):
    for path in ("d/a", "d/b", "c"):
        await memory.put(path, path * 2)
    await memory.rename("c", "e")
    await memory.delete("d")
    assert await memory.deleted() == [("d/a", 6), ("d/b", 6)]
    assert await memory.deleted(prefix="d/a") == [("d/a", 6)]
    assert await memory.deleted(prefix="e") == []
    for file in await memory.files(deleted=True):
        await memory.restore(file["path"], file["version"])
    assert await memory.texts() == {"d/a": "d/ad/a", "d/b": "d/bd/b", "e": "cc"}
    assert await memory.deleted() == []
    await memory.delete("e")
    assert await memory.deleted() == [("e", 2)]
    await memory.delete("e", purge=True)
    assert await memory.deleted() == []


# Who edited, and what it was


async def test_a_history_names_what_made_each_edit(memory):
    version = await memory.put("a", "one")
    await memory.tool("MemoryStrReplace", path="a", oldStr="one", newStr="two")
    await memory.restore("a", version)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a", "three")
    await memory.client.put(f"{memory.url}/archive", content=target.getvalue())
    await memory.delete("a")
    tools = [one["tool"] for one in await memory.versions("a")]
    assert tools == ["delete", "archive", "restore", "MemoryStrReplace", "put"]


async def test_a_file_is_read_as_it_was_at_a_version(memory):
    one, two = [await memory.put("a", content) for content in ("one", "two")]
    await memory.delete("a")
    for version, content in ((one, "one"), (two, "two")):
        answer = await memory.get("a", version=version)
        assert (answer.text, answer.headers["ETag"].startswith(f'"{version}-')) == (content, True)
    deletion = (await memory.versions("a"))[0]["version"]
    for version in (deletion, 99):
        answer = await memory.get("a", version=version)
        assert answer.status_code == 404
        assert f"No version {version} of 'a' is kept" in answer.json()["detail"]
    for version in (0, "x", 2**60):
        assert (await memory.get("a", version=version)).status_code == 422


# Bounds


async def test_an_edit_that_changes_nothing_is_no_version(memory):
    version = await memory.put("a", "one")
    assert await memory.put("a", "one") == version
    await memory.tool("MemoryStrReplace", path="a", oldStr="n", newStr="n")
    await memory.restore("a", version)
    assert [one["version"] for one in await memory.versions("a")] == [version]


async def test_of_a_history_the_oldest_go_when_it_is_full(database_url):
    async with serving(database_url, memory_max_history_bytes=60_000) as client:
        memory = Memory(client)
        await memory.put("current", "c" * 90_000)  # what a file is now takes nothing of it
        for number in range(12):
            await memory.put("a", f"{number:02}" * 5_000)
            await memory.put("b", f"{number:02}" * 5_000)
            earlier = [one for path in "ab" for one in (await memory.versions(path))[1:]]
            kept = sum(one["size"] + 500 for one in earlier)
            assert kept <= 60_000
            if number > 6:
                assert kept >= 40_000
        assert (await memory.texts())["a"] == "11" * 5_000
        for path in "ab":
            await memory.delete(path)
        assert await memory.deleted() == [("a", 10_000), ("b", 10_000)]


async def test_a_file_that_was_long_as_it_is_can_be_had_back_from_a_full_history(database_url):
    """What was deleted last is the newest of the history, however long ago it was written."""
    async with serving(database_url, memory_max_history_bytes=60_000) as client:
        memory = Memory(client)
        await memory.put("old", "x" * 10_000)
        for number in range(8):
            await memory.put("a", f"{number}" * 10_000)
        await memory.delete("old")
        assert await memory.deleted() == [("old", 10_000)]


async def test_deletions_count_as_history(database_url, db):
    async with serving(database_url, memory_max_history_bytes=10_000) as client:
        memory = Memory(client)
        for number in range(30):
            await memory.put(f"file {number}", "")
            await memory.delete(f"file {number}")
        async with db.autocommit() as connection:
            assert 10 <= await connection.scalar(text("SELECT count(*) FROM memory_versions")) <= 20


async def test_what_a_history_takes_is_counted_right(database_url, db):
    count = """
    SELECT s.version_bytes, (
        SELECT sum(500 + coalesce(octet_length(content), 0)) FROM memory_versions v WHERE v.store = s.store
    ) AS counted FROM memory_stores s
    """
    async with serving(database_url, memory_max_history_bytes=20_000, memory_max_versions=3) as client:
        memory = Memory(client)
        for number in range(40):
            await memory.put(f"{number % 7}", "é" * number * 10)
            if number % 5 == 0:
                await memory.rename(f"{number % 7}", f"d/{number}")
            if number % 9 == 0:
                await memory.delete("d", purge=number % 2 == 0)
            async with db.autocommit() as connection:
                row = (await connection.execute(text(count))).one()
            assert row.version_bytes == (row.counted or 0), number


async def test_one_version_is_enough_to_undo_a_deletion(database_url):
    async with serving(database_url, memory_max_versions=1) as client:
        memory = Memory(client)
        for content in ("one", "two"):
            await memory.put("a", content)
        assert len(await memory.versions("a")) == 1
        await memory.delete("a")
        assert [(one["deleted"], one["size"]) for one in await memory.versions("a")] == [(True, None), (False, 3)]
        [gone] = await memory.files(deleted=True)
        await memory.restore("a", gone["version"])
        assert await memory.texts() == {"a": "two"}
        await memory.rename("a", "b")
        assert [(one["path"], one["size"]) for one in await memory.versions("b")] == [("b", 3)]


async def test_a_version_is_as_old_as_what_came_after_it(client, db):
    memory = Memory(client)
    for content in ("one", "two"):
        await memory.put("a", content)
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE memory_versions SET edited_at = edited_at - interval '100 days'"))
        await connection.execute(text("UPDATE memory_files SET updated_at = updated_at - interval '100 days'"))
    await memory.delete("a")
    assert [one["size"] for one in await memory.versions("a")] == [None, 3]
    await memory.restore("a", (await memory.versions("a"))[1]["version"])
    assert await memory.texts() == {"a": "two"}


async def test_what_takes_less_goes_on_where_limits_were_lowered(database_url):
    async with serving(database_url) as client:
        for number in range(4):
            await Memory(client).put(f"{number}", "x" * 1_000)
    lower = {"memory_max_file_bytes": 500, "memory_max_files": 2, "memory_max_store_bytes": 2_000}
    async with serving(database_url, **lower) as client:
        memory = Memory(client)
        await memory.put("0", "x" * 900)
        await memory.put("0", "y" * 900)
        await memory.put("0", "y" * 901, status=422)
        await memory.put("new", "", status=422)
        await memory.put("1", "x" * 1_001, status=422)
        await memory.rename("1", "d/one")
        await memory.tool("MemoryStrReplace", path="d/one", oldStr="x" * 1_000, newStr="x" * 600)
        await memory.delete("2")
        await memory.delete("3")
        assert sorted(await memory.texts()) == ["0", "d/one"]


async def test_the_tools_of_a_chat_keep_to_the_bounds_of_the_history(database_url):
    async with chatting(database_url, memory_max_history_bytes=0) as chats:
        memory = Memory(chats.http)
        await memory.put("a", "one")
        await memory.tool("MemoryStrReplace", path="a", oldStr="one", newStr="two")
        assert [one["size"] for one in await memory.versions("a")] == [3]
        await memory.delete("a")
        assert await memory.versions("a") == []
