"""Edits of a memory and the end of whom it belongs to, at once: what was erased does not come back."""

import asyncio
import json

import pytest
from sqlalchemy import text

from app.storage import memories
from tests.api.chatting import chatting
from tests.conftest import serving
from tests.upstream import Answer

EDIT = {"path": "secret.md", "fileText": "what was erased"}


async def waiting(db):
    """How many connections of this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with db.autocommit() as connection:
        return await connection.scalar(text(query))


async def until_waiting(db, count, *tasks):
    while await waiting(db) < count and not any(task.done() for task in tasks):  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(0.01)


async def holds_nothing(db):
    """Whether no memory of anybody is left."""
    async with db.autocommit() as connection:
        return await connection.scalar(text("SELECT NOT EXISTS (SELECT FROM memory_stores)"))


async def create(client, session="s"):
    assert (await client.post("/v1/sessions", json={"id": session, "user_id": "alice"})).status_code == 201


async def test_an_edit_that_waits_while_its_user_is_erased_leaves_nothing(client, db):
    await create(client)
    async with db.transaction() as connection:
        await memories.lock(connection, "alice")
        edit = asyncio.create_task(client.post("/v1/sessions/s/tools/MemoryCreate", json=EDIT))
        await until_waiting(db, 1)
        erasure = asyncio.create_task(client.delete("/v1/users/alice"))
        await until_waiting(db, 2, erasure)
        await connection.rollback()
    assert (await erasure).status_code == 200
    assert (await edit).status_code in {200, 404}
    assert await holds_nothing(db)


@pytest.mark.parametrize("tool", ["MemoryCreate", "memory"])
async def test_edits_through_sessions_and_erasures_at_random_moments(database_url, db, tool):
    arguments = EDIT if tool != "memory" else {"command": "create", "path": "x.md", "file_text": "x"}
    async with serving(database_url) as one, serving(database_url) as other:
        for turn in range(15):
            await create(one)
            edits = [
                replica.post("/v1/sessions/s/tools/" + tool, json=arguments) for replica in (one, other) for _ in "ab"
            ]

            async def erase(after):
                await asyncio.sleep(after)
                return await other.delete("/v1/users/alice")

            *edited, erased = await asyncio.gather(*edits, erase(turn * 0.001))
            assert erased.status_code == 200
            assert {answer.status_code for answer in edited} <= {200, 404}
            assert await holds_nothing(db), turn


async def test_a_tool_call_of_a_chat_whose_user_was_erased_edits_nothing(database_url, db):
    """Also where the session's id is another session's by then."""
    async with chatting(database_url) as chats:
        await create(chats.http)
        loop = asyncio.get_running_loop()

        async def erase_and_begin_anew():
            await chats.http.delete("/v1/users/alice")
            await create(chats.http)

        def behaviour(request):
            if request["messages"][-1]["role"] == "tool":
                return Answer("done")
            asyncio.run_coroutine_threadsafe(erase_and_begin_anew(), loop).result(10)
            return Answer(calls=[("m1", "MemoryCreate", json.dumps(EDIT))])

        chats.upstream.behaviour = behaviour
        await chats.post("q", memory={"long_term": True})
        result = chats.upstream.requests[-1]["messages"][-1]
        assert result["role"] == "tool"
        assert result["content"].startswith("Error: ")
        assert await holds_nothing(db)


async def test_an_edit_through_a_session_that_was_deleted_is_refused(client, db):
    await create(client)
    await client.delete("/v1/sessions/s")
    assert (await client.post("/v1/sessions/s/tools/MemoryCreate", json=EDIT)).status_code == 404
    assert await holds_nothing(db)


async def test_edits_of_a_user_and_erasures_come_one_after_the_other(client, db):
    """A service key may begin a memory anew after an erasure: then it is whole, with a history of its own."""
    for turn in range(10):
        before = [client.put("/v1/memories/alice/file", params={"path": f"{n}.md"}, content=b"x") for n in range(4)]
        await asyncio.gather(*before, client.delete("/v1/users/alice"))
        for file in (await client.get("/v1/memories/alice/files")).json()["items"]:
            kept = await client.get("/v1/memories/alice/file/versions", params={"path": file["path"]})
            assert [one["version"] for one in kept.json()["items"]] == [file["version"]], turn
        await client.delete("/v1/users/alice")
        assert await holds_nothing(db)
