"""Many clients at once: nothing is lost, batches stay together, and one of several racers wins."""

import asyncio

import httpx
import pytest

from tests.service.process import service

WRITERS = 16
BATCHES = 6


@pytest.fixture(scope="module")
def address(shared_database_url):
    with service(database_url=shared_database_url) as running:
        yield running.url()


@pytest.fixture
async def http(address):
    limits = httpx.Limits(max_connections=40)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        yield client


def says(text, **fields):
    return {"message": {"role": "user", "content": text}, **fields}


@pytest.mark.parametrize("named", [True, False])
async def test_16_writers_on_one_session(http, named):
    path = f"/v1/sessions/writers-{named}/events"

    async def write(writer):
        versions = []
        for batch in range(BATCHES):
            texts = [f"{writer}.{batch}.{place}" for place in range(5)]
            events = [says(text, **({"id": text} if named else {})) for text in texts]
            response = await http.post(path, json={"user_id": "alice", "events": events})
            assert response.status_code == 201, response.text
            versions.append(response.json()["event_version"])
        return versions

    versions = await asyncio.gather(*map(write, range(WRITERS)))
    read = (await http.get(path)).json()
    texts = [event["text"] for event in read["events"]]
    total = WRITERS * BATCHES * 5
    assert read["event_version"] == len(texts) == len(set(texts)) == total
    batches = [texts[start : start + 5] for start in range(0, total, 5)]
    for batch in batches:
        prefix = batch[0].rsplit(".", 1)[0]
        assert batch == [f"{prefix}.{place}" for place in range(5)], "a batch is contiguous and in its order"
    for writer in range(WRITERS):
        own = [batch[0] for batch in batches if batch[0].startswith(f"{writer}.")]
        assert own == [f"{writer}.{batch}.0" for batch in range(BATCHES)]
    assert sorted(version for each in versions for version in each) == list(range(5, total + 1, 5))


async def test_a_deleted_id_that_is_given_anew_gets_nothing_of_the_old_session(http):
    path = "/v1/sessions/reborn"

    async def write(life):
        written = 0
        while True:
            response = await http.post(f"{path}/events", json={"events": [says(f"life {life}")]})
            if response.status_code == 404 and written:
                return
            written += response.status_code == 201

    for life in range(5):
        assert (await http.post("/v1/sessions", json={"id": "reborn", "user_id": "alice"})).status_code == 201
        writers = [asyncio.create_task(write(life)) for _ in range(4)]
        await asyncio.sleep(0.1)
        seen = (await http.get(f"{path}/events")).json()
        assert {event["text"] for event in seen["events"]} == {f"life {life}"}
        assert (await http.delete(path)).status_code == 204
        await asyncio.gather(*writers)


async def test_of_several_writers_with_one_version_one_wins(http):
    path = "/v1/sessions/versions/events"
    await http.post(path, json={"user_id": "alice", "events": [says("0")]})
    for version in range(1, 6):
        headers = {"If-Match": f'"{version}"'}
        responses = await asyncio.gather(
            *(http.post(path, json={"events": [says(f"{version}")]}, headers=headers) for _ in range(8))
        )
        assert sorted(response.status_code for response in responses) == [201] + [412] * 7
