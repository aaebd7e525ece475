"""Cases E: sessions over HTTP."""

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from sqlalchemy import text

from app.services.sweeping import sweep
from tests.conftest import database_at


async def create(client, **body):
    response = await client.post("/v1/sessions", json={"user_id": "alice"} | body)
    assert response.status_code == 201, response.text
    return response.json()


def instant(value):
    return datetime.fromisoformat(value)


async def test_a_new_session_is_empty_and_has_an_id(client):
    session = await create(client)
    assert session["id"]
    assert session["event_version"] == session["event_count"] == session["active_token_count"] == 0
    assert session["last_event_at"] is None
    assert session["metadata"] == {}
    read = await client.get(f"/v1/sessions/{session['id']}")
    assert read.json() == session
    assert read.headers["ETag"] == '"0"'


async def test_e1_lifetimes(client):
    def lifetime(session):
        return instant(session["expires_at"]) - instant(session["created_at"])

    assert lifetime(await create(client)) == timedelta(days=60)
    assert lifetime(await create(client, ttl_seconds=90)) == timedelta(seconds=90)
    assert (await create(client, expires_at=None))["expires_at"] is None
    at = "2999-01-01T00:00:00.000001+02:00"
    assert (await create(client, expires_at=at))["expires_at"] == "2998-12-31T22:00:00.000001Z"


@pytest.mark.parametrize(
    "body",
    [
        {"ttl_seconds": 5, "expires_at": "2999-01-01T00:00:00Z"},
        {"ttl_seconds": 5, "expires_at": None},
        {"ttl_seconds": 0},
        {"ttl_seconds": 10**15},
        {"ttl_seconds": "5"},
        {"expires_at": "2999-01-01T00:00:00"},
        {"expires_at": "2999-01-01"},
        {"expires_at": 4102444800},
        {"expires_at": "0001-01-01T00:00:00+23:59"},
        {"expires_at": "9999-12-31T23:59:59-23:59"},
        {"expires_at": "9999-12-31T23:59:59.999999Z"},  # infinity to the driver
        {"id": ""},
        {"id": "a/b"},
        {"id": "."},
        {"id": ".."},
        {"id": "a\u0000b"},
        {"id": "a\u0085b"},
        {"id": "x" * 256},
        {"user_id": "shared:team"},
        {"user_id": ""},
        {"user_id": None},
        {"metadata": {"a": "\u0000"}},
        {"metadata": {"\u0000": 1}},
        {"metadata": None},
        {"metadata": []},
        {"surprise": 1},
    ],
)
async def test_a_wrong_session_is_422_and_not_created(shared_client, body):
    response = await shared_client.post("/v1/sessions", json={"user_id": "wrong"} | body)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["errors"][0]["loc"]
    assert (await shared_client.get("/v1/sessions", params={"user_id": "wrong"})).json()["items"] == []


async def test_ids_may_be_anything_that_a_url_segment_can_hold(client):
    for session_id in ["ключ", "a b", "100%", "a?b#c", "😀", "x" * 255, "..."]:
        await create(client, id=session_id)
        path = quote(session_id, safe="")
        assert (await client.get(f"/v1/sessions/{path}")).json()["id"] == session_id


async def test_e2_an_existing_id_is_409_and_untouched(client):
    await create(client, id="s", metadata={"a": 1})
    response = await client.post("/v1/sessions", json={"id": "s", "user_id": "bob"})
    assert response.status_code == 409
    assert (await client.get("/v1/sessions/s")).json()["user_id"] == "alice"


async def test_e2_of_concurrent_creators_exactly_one_creates(client):
    body = {"id": "race", "user_id": "alice"}
    posts = await asyncio.gather(*(client.post("/v1/sessions", json=body) for _ in range(8)))
    assert sorted(response.status_code for response in posts) == [201] + [409] * 7
    puts = await asyncio.gather(*(client.put("/v1/sessions/race2", json={"user_id": "alice"}) for _ in range(8)))
    assert sorted(response.status_code for response in puts) == [200] * 7 + [201]


async def test_put_finds_or_creates_and_never_changes(client):
    created = await client.put("/v1/sessions/s", json={"user_id": "alice", "metadata": {"a": 1}})
    assert created.status_code == 201
    found = await client.put("/v1/sessions/s", json={"user_id": "alice", "metadata": {"a": 2}, "ttl_seconds": 1})
    assert (found.status_code, found.json()) == (200, created.json())
    assert (await client.put("/v1/sessions/s", json={"user_id": "bob"})).status_code == 403
    assert (await client.put("/v1/sessions/s", json={"user_id": "alice", "id": "other"})).status_code == 422


async def test_lists_are_newest_first_and_paged_by_cursor(client):
    for number in range(5):
        await create(client, id=f"s{number}")
    await create(client, id="other", user_id="bob")
    seen, cursor = [], None
    while True:
        params = {"user_id": "alice", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/sessions", params=params)).json()
        seen += [session["id"] for session in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == ["s4", "s3", "s2", "s1", "s0"]
    assert len((await client.get("/v1/sessions")).json()["items"]) == 6
    assert (await client.get("/v1/sessions", params={"cursor": "nonsense"})).status_code == 422


async def test_patch_merges_metadata_and_renews_the_lifetime(client):
    session = await create(client, id="s", metadata={"a": 1, "b": {"c": 2}}, expires_at=None)
    patched = (await client.patch("/v1/sessions/s", json={"metadata": {"a": None, "b": {"d": 1.50}}})).json()
    assert patched == session | {"metadata": {"b": {"c": 2, "d": 1.5}}}
    emptied = await client.patch("/v1/sessions/s", json={"metadata": None})
    assert emptied.json()["metadata"] == {}
    limited = (await client.patch("/v1/sessions/s", json={"ttl_seconds": 60})).json()
    assert limited["expires_at"] is not None
    assert (await client.patch("/v1/sessions/s", json={"expires_at": None})).json()["expires_at"] is None
    assert (await client.patch("/v1/sessions/none", json={})).status_code == 404


async def test_e3_a_deleted_session_is_gone(client):
    await create(client, id="s")
    await client.post("/v1/sessions/s/events", json={"events": [{"message": {"role": "user", "content": "word"}}]})
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    assert (await client.delete("/v1/sessions/s")).status_code == 404
    for path in ("", "/events", "/context", "/events/x"):
        assert (await client.get(f"/v1/sessions/s{path}")).status_code == 404
    found = await client.post("/v1/users/alice/search", json={"query": "word"})
    assert found.json()["results"] == []
    assert (await client.get("/v1/users/alice/events")).json()["events"] == []
    await create(client, id="s")
    assert (await client.get("/v1/sessions/s/events")).json()["events"] == []


async def test_erasing_a_user_counts_and_spares_others(client):
    body = {"events": [{"message": {"role": "user", "content": "x"}}] * 3, "user_id": "alice"}
    for session in ("s1", "s2"):
        await client.post(f"/v1/sessions/{session}/events", json=body)
    await create(client, id="bobs", user_id="bob")
    assert (await client.delete("/v1/users/alice")).json() == {"sessions": 2, "events": 6, "memory_files": 0}
    assert (await client.delete("/v1/users/alice")).json() == {"sessions": 0, "events": 0, "memory_files": 0}
    assert (await client.get("/v1/sessions/s1")).status_code == 404
    assert (await client.get("/v1/sessions/bobs")).status_code == 200


async def _expire(db, session_id, after="-1 second"):
    async with db.autocommit() as connection:
        statement = f"UPDATE sessions SET expires_at = now() + interval '{after}' WHERE id = :id"
        await connection.execute(text(statement), {"id": session_id})


async def test_e4_an_expired_session_is_gone_before_it_is_swept(client, db):
    await client.post(
        "/v1/sessions/s/events",
        json={"user_id": "alice", "events": [{"message": {"role": "user", "content": "word"}}]},
    )
    await _expire(db, "s", "0 seconds")
    assert (await client.get("/v1/sessions/s")).status_code == 404
    assert (await client.get("/v1/sessions")).json()["items"] == []
    assert (await client.post("/v1/users/alice/search", json={"query": "word"})).json()["results"] == []
    append = {"events": [{"message": {"role": "user", "content": "late"}}]}
    assert (await client.post("/v1/sessions/s/events", json=append)).status_code == 404
    assert (await client.patch("/v1/sessions/s", json={"ttl_seconds": 60})).status_code == 404
    assert (await client.delete("/v1/sessions/s")).status_code == 404
    await create(client, id="s", user_id="bob")
    assert (await client.get("/v1/sessions/s/events")).json()["events"] == []


async def test_e4_a_sweep_removes_the_expired_alone(client, db):
    append = {"user_id": "alice", "events": [{"message": {"role": "user", "content": "word"}}] * 3}
    for session in ("expired", "extended", "forever"):
        await client.post(f"/v1/sessions/{session}/events", json=append)
    await client.patch("/v1/sessions/forever", json={"expires_at": None})
    await _expire(db, "expired")
    assert await sweep(db, batch=2) == 7
    async with db.autocommit() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM events")) == 6
        assert await connection.scalar(text("SELECT count(*) FROM active_events")) == 6
        assert await connection.scalar(text("SELECT count(*) FROM sessions")) == 2
    assert await sweep(db, batch=2) == 0


async def test_e4_a_session_extended_while_a_sweep_waits_survives(client, db):
    await create(client, id="s")
    await _expire(db, "s")
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE sessions SET expires_at = now() + interval '1 day' WHERE id = 's'"))
        sweeping = asyncio.create_task(sweep(db, batch=10))
        await asyncio.sleep(0.2)
    await sweeping
    assert (await client.get("/v1/sessions/s")).status_code == 200


async def test_one_replica_sweeps_at_a_time(client, db, database_url):
    await create(client, id="s")
    await _expire(db, "s")
    other = database_at(database_url)
    async with db.transaction() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": 0x73776570})
        assert await sweep(other, batch=10) == 0
    assert await sweep(other, batch=10) == 1
    await other.close()


async def test_a_sliding_session_is_renewed_by_each_append(client, db):
    session = await create(client, id="s", ttl_seconds=3600, ttl_sliding=True)
    await create(client, id="fixed", ttl_seconds=3600)
    for name in ("s", "fixed"):
        await _expire(db, name, "10 seconds")
    append = {"events": [{"id": "1", "message": {"role": "user", "content": "hi"}}]}
    for name in ("s", "fixed"):
        await client.post(f"/v1/sessions/{name}/events", json=append)
    renewed = instant((await client.get("/v1/sessions/s")).json()["expires_at"])
    assert renewed >= instant(session["expires_at"])
    fixed = instant((await client.get("/v1/sessions/fixed")).json()["expires_at"])
    assert fixed < datetime.now(UTC) + timedelta(seconds=11)


async def test_e6_metadata_and_instants_round_trip(client):
    metadata = {"n": 0.1, "big": 123456789012345678901234567890, "deep": {"ü": [None, True, "x"]}}
    session = await create(client, id="s", metadata=metadata, expires_at="2999-12-31T23:59:59.123456Z")
    read = (await client.get("/v1/sessions/s")).json()
    assert read["metadata"] == metadata
    assert read["expires_at"] == "2999-12-31T23:59:59.123456Z" == session["expires_at"]


async def test_a_lifetime_that_would_end_after_the_year_9999_ends_with_it(client):
    body = {"id": "s", "user_id": "alice", "expires_at": "9999-12-30T00:00:00Z", "ttl_sliding": True}
    assert (await client.post("/v1/sessions", json=body)).status_code == 201
    await asyncio.sleep(1.1)
    append = {"events": [{"message": {"role": "user", "content": "hi"}}]}
    assert (await client.post("/v1/sessions/s/events", json=append)).status_code == 201
    assert (await client.get("/v1/sessions/s")).json()["expires_at"] == "9999-12-30T00:00:00Z"
    assert (await client.get("/v1/users/alice/export")).status_code == 200
