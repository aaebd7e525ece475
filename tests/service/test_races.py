"""Two replicas on one database, and callers that get in each other's way."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import count

import asyncpg
import httpx
import pytest

from tests.service.consistency import LEFT_OVER, WRONG_COUNTERS
from tests.service.process import service

RACERS = 8
ROUNDS = 6


@pytest.fixture(scope="module")
def replicas(shared_database_url):
    settings = {"database_url": shared_database_url, "sweep_interval_seconds": 0.02}
    with service(**settings) as one, service(**settings) as another:
        yield one.url(), another.url()


@pytest.fixture
async def clients(replicas):
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30)) for url in replicas]


@pytest.fixture(scope="module", autouse=True)
async def rows_agree_with_counters(replicas, shared_database_url):
    """Whatever the tests of this file did."""
    yield
    connection = await asyncpg.connect(shared_database_url.replace("+asyncpg", ""))
    try:
        assert await connection.fetch(WRONG_COUNTERS) == []
        async with asyncio.timeout(20):
            while await connection.fetchval(LEFT_OVER):  # noqa: ASYNC110  # The sweepers are other processes.
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


def body(*texts, **fields):
    events = [{"message": {"role": "user", "content": text}} for text in texts]
    return {"events": events} | fields


async def race(clients, call, racers=RACERS):
    """Let racers call at once, half of them at each replica."""
    return await asyncio.gather(*(call(clients[racer % 2], racer) for racer in range(racers)))


def statuses(responses):
    return sorted(response.status_code for response in responses)


async def texts(client, session):
    return [event["text"] for event in (await client.get(f"/v1/sessions/{session}/events")).json()["events"]]


async def test_f7_twelve_identical_appends_are_one_event(clients):
    for number in range(ROUNDS):
        session = f"identical-{number}"
        sent = {"user_id": "alice", "events": [{"id": "a", "message": {"role": "user", "content": "hi"}}]}

        async def append(client, _, session=session, sent=sent):
            return await client.post(f"/v1/sessions/{session}/events", json=sent)

        responses = await race(clients, append, 12)
        assert statuses(responses) == [200] * 11 + [201]
        assert len({response.json()["events"][0]["seq"] for response in responses}) == 1
        assert await texts(clients[0], session) == ["hi"]


@pytest.mark.parametrize(("method", "losers"), [("POST", 409), ("PUT", 200)])
async def test_e2_of_concurrent_creators_one_creates(clients, method, losers):
    for number in range(ROUNDS):
        session = f"created-{method}-{number}"

        async def create(client, racer, session=session):
            made = {"user_id": "alice", "metadata": {"by": racer}}
            if method == "PUT":
                return await client.put(f"/v1/sessions/{session}", json=made)
            return await client.post("/v1/sessions", json=made | {"id": session})

        responses = await race(clients, create)
        assert statuses(responses) == sorted([201] + [losers] * (RACERS - 1))
        winner = next(response.json() for response in responses if response.status_code == 201)
        assert (await clients[0].get(f"/v1/sessions/{session}")).json() == winner


async def test_of_creators_of_an_expired_session_one_creates(clients):
    for number in range(ROUNDS):
        session = f"expired-{number}"
        gone = {"user_id": "bob", "expires_at": (datetime.now(UTC) + timedelta(milliseconds=40)).isoformat()}
        await clients[0].put(f"/v1/sessions/{session}", json=gone)
        await clients[0].post(f"/v1/sessions/{session}/events", json=body("old"))
        await asyncio.sleep(0.05)

        async def create(client, _, session=session):
            return await client.put(f"/v1/sessions/{session}", json={"user_id": "alice"})

        assert statuses(await race(clients, create)) == [200] * (RACERS - 1) + [201]
        assert await texts(clients[0], session) == []


async def test_one_of_several_writers_of_a_version_wins(clients):
    path = "/v1/sessions/if-match/events"
    await clients[0].post(path, json=body("0", user_id="alice"))
    for version in range(1, ROUNDS + 1):

        async def append(client, racer, version=version):
            named = {"events": [{"id": f"{version}.{racer}", **body("x")["events"][0]}]}
            sent = named if racer % 4 < 2 else body("x")
            return await client.post(path, json=sent, headers={"If-Match": f'"{version}"'})

        assert statuses(await race(clients, append)) == [201] + [412] * (RACERS - 1)
        assert (await clients[0].get("/v1/sessions/if-match")).json()["event_version"] == version + 1


async def test_an_append_is_before_a_deletion_or_finds_nothing(clients):
    for number in range(ROUNDS):
        session = f"deleted-{number}"
        await clients[0].put(f"/v1/sessions/{session}", json={"user_id": "alice"})

        async def append_or_delete(client, racer, session=session):
            if racer == RACERS // 2:
                return await client.delete(f"/v1/sessions/{session}")
            return await client.post(f"/v1/sessions/{session}/events", json=body("x"))

        responses = await race(clients, append_or_delete)
        assert {response.status_code for response in responses} <= {201, 204, 404}
        assert (await clients[0].get(f"/v1/sessions/{session}/events")).status_code == 404


async def test_what_creates_a_session_on_the_way_never_finds_none(clients):
    """An append with `user_id` and a PUT say what to do when there is no session: a deletion is no 404 to them."""

    async def delete():
        while True:
            await clients[0].delete("/v1/sessions/on-the-way")

    async def create(client, racer):
        answered = set()
        for number in range(40):
            if racer % 2:
                response = await client.put("/v1/sessions/on-the-way", json={"user_id": "alice"})
            else:
                event = {"id": f"{racer}.{number}", "message": {"role": "user", "content": "x"}}
                sent = {"user_id": "alice", "events": [event] if racer % 4 else body("x")["events"]}
                response = await client.post("/v1/sessions/on-the-way/events", json=sent)
            answered.add(response.status_code)
        return answered

    deleting = asyncio.create_task(delete())
    answered = set().union(*await race(clients, create))
    deleting.cancel()
    assert answered <= {200, 201}


async def test_an_id_given_anew_shows_only_what_came_after_the_deletion(clients):
    acknowledged, numbers, progress = set(), count(), asyncio.Event()

    async def write(client):
        while len(acknowledged) < 200:
            text = str(next(numbers))
            response = await client.post("/v1/sessions/anew/events", json=body(text))
            assert response.status_code in {201, 404}
            if response.status_code == 201:
                acknowledged.add(text)
                progress.set()

    await clients[0].put("/v1/sessions/anew", json={"user_id": "alice"})
    async with asyncio.TaskGroup() as tasks:
        for client in clients * 3:
            tasks.create_task(write(client))
        while len(acknowledged) < 200:
            await progress.wait()
            progress.clear()
            before = set(acknowledged)
            assert (await clients[0].delete("/v1/sessions/anew")).status_code == 204
            made = await clients[0].post("/v1/sessions", json={"id": "anew", "user_id": "bob"})
            assert made.status_code == 201
            read = (await clients[1].get("/v1/sessions/anew/events")).json()
            assert before.isdisjoint(event["text"] for event in read["events"])
            assert read["event_version"] == len(read["events"])


@pytest.mark.parametrize("how", ["patch", "append"])
async def test_e4_an_extended_session_survives_the_sweeper_and_a_lost_one_stays_lost(clients, how):
    """Each is extended at about the moment it expires; the sweepers of both replicas run all the time."""

    async def live(number):
        client, path = clients[number % 2], f"/v1/sessions/{how}-{number}"
        expires = datetime.now(UTC) + timedelta(seconds=1)
        made = {"user_id": "alice", "ttl_seconds": 1} if how == "append" else {"user_id": "alice"}
        await client.put(path, json={**made, "ttl_sliding": how == "append"})
        if how == "patch":
            await client.post(f"{path}/events", json=body("x"))
            expires = datetime.now(UTC) + timedelta(seconds=0.4)
            await client.patch(path, json={"expires_at": expires.isoformat()})
        await asyncio.sleep((expires - datetime.now(UTC)).total_seconds() + number * 0.02 - 0.4)
        if how == "patch":
            response = await client.patch(path, json={"ttl_seconds": 600})
        else:
            response = await client.post(f"{path}/events", json=body("x"))
        assert response.status_code in {200, 201, 404}
        # Two rounds of the sweepers later it is still what the answer said.
        await asyncio.sleep(0.1)
        assert (await client.get(path)).status_code == (404 if response.status_code == 404 else 200)
        if response.status_code != 404:
            assert await texts(client, f"{how}-{number}") == ["x"]
        return response.status_code

    assert len(set(await asyncio.gather(*map(live, range(30))))) == 2, "some were extended, some were lost"
