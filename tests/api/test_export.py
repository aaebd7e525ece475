"""The export of a user over HTTP: a stream that `turnkeeper import` reads back."""

import json

from tests.conftest import serving
from tests.storage.test_transfer import imported
from tests.upstream import Answer, scripted_upstream


async def exported(client, user_id):
    response = await client.get(f"/v1/users/{user_id}/export")
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return response.text.splitlines()


async def say(client, user_id, session_id, *contents):
    events = [{"message": {"role": "user", "content": content}} for content in contents]
    body = {"user_id": user_id, "events": events}
    assert (await client.post(f"/v1/sessions/{session_id}/events", json=body)).status_code == 201


async def test_everything_of_a_user_and_of_nobody_else_is_exported(client):
    await say(client, "alice", "a1", "one", "two\0")
    await say(client, "bob", "b1", "not hers")
    await say(client, "alice", "a2", "three")
    lines = [json.loads(line) for line in await exported(client, "alice")]
    assert [(line["kind"], line["id"]) for line in lines if line["kind"] == "session"] == [
        ("session", "a1"),
        ("session", "a2"),
    ]
    told = [(line["session_id"], line["message"]["content"]) for line in lines if line["kind"] == "event"]
    assert told == [("a1", "one"), ("a1", "two\0"), ("a2", "three")]
    assert "key" not in lines[0]


async def test_an_unknown_user_is_an_empty_stream(client):
    assert await exported(client, "nobody") == []


async def test_an_export_over_http_is_read_back_without_loss(client, db):
    await say(client, "alice", "a1", *(f"message {number}" for number in range(700)))
    lines = await exported(client, "alice")
    session = (await client.get("/v1/sessions/a1")).json()
    events = (await client.get("/v1/sessions/a1/events")).json()
    assert (await client.delete("/v1/users/alice")).json() == {"sessions": 1, "events": 700, "memory_files": 0}
    assert await exported(client, "alice") == []
    tally, bad = await imported(db, lines)
    assert (tally.added, bad) == (700, [])
    assert await exported(client, "alice") == lines
    assert (await client.get("/v1/sessions/a1")).json() == session
    assert (await client.get("/v1/sessions/a1/events")).json() == events


async def test_a_compacted_session_is_read_back_and_goes_on(database_url, db):
    async def compact(client):
        body = {"strategy": {"summarize": {"max_events": 2, "overlap": 0}}}
        done = (await client.post("/v1/sessions/s/compact", json=body)).json()
        assert done["compacted"], done

    with scripted_upstream() as upstream:
        upstream.answers[:] = [Answer("They talked.")]
        async with serving(database_url, upstream_url=upstream.url, upstream_model="small") as client:
            await say(client, "alice", "s", "one", "two", "three", "four")
            await compact(client)
            lines = await exported(client, "alice")
            context = (await client.get("/v1/sessions/s/context")).json()
            await client.delete("/v1/users/alice")
            for part in (lines[:3], lines):
                await imported(db, part)
            assert await exported(client, "alice") == lines
            assert (await client.get("/v1/sessions/s/context")).json() == context
            await say(client, "alice", "s", "five")
            await compact(client)


async def test_a_user_id_that_is_none_is_refused(client):
    assert (await client.get("/v1/users/shared:x/export")).status_code == 422
