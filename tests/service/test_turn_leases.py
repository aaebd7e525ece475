"""One conversation at a time: turns are taken in order, by whoever lives, and waiting for one costs nothing."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import count
from threading import Event

import pytest

from tests.service.process import Service, service
from tests.service.streams import (
    chats,
    connected,
    in_the_background,
    lease_of,
    prompt,
    released,
    suspended,
    until,
    until_looked_for_the_turn,
)
from tests.upstream import MODELS, Answer, scripted_upstream

LEASE = 1
POOL = 5
WAITERS = 16
# A loaded machine runs late; a hang is far beyond that.
SLACK = 10

_numbers = count(1)


@pytest.fixture(scope="module")
def _script():
    with scripted_upstream() as script:
        yield script


@pytest.fixture
def script(_script):
    _script.reset()
    yield _script
    _script.wait(lambda script: not script.in_flight)


@pytest.fixture(scope="module")
def settings(_script, shared_database_url):
    return {
        "database_url": shared_database_url,
        "upstream_url": _script.url,
        "upstream_model": MODELS[0],
        "chat_lease_seconds": LEASE,
        "pool_size": POOL,
    }


@pytest.fixture(scope="module")
def replicas(settings):
    with service(**settings) as one, service(**settings) as another:
        yield one, another


@pytest.fixture
async def clients(replicas):
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(chats(running.url())) for running in replicas]


@pytest.fixture
def client(clients):
    return clients[0]


@pytest.fixture
async def observer(shared_database_url):
    async with connected(shared_database_url) as connection:
        yield connection


@pytest.fixture
def session():
    return f"session-{next(_numbers)}"


def echo(script, *holds):
    """Each question is answered with its own text; the first ones are held."""
    waiting = iter(holds)

    def behaviour(request):
        return Answer(f"re: {request['messages'][-1]['content']}", hold=next(waiting, None))

    script.behaviour = behaviour


async def has_lease(observer, session):
    return await lease_of(observer, session) is not None


async def test_requests_of_one_session_are_answered_one_after_the_other(client, script, session, observer):
    hold = Event()
    echo(script, hold)
    with released(hold):
        async with AsyncExitStack() as stack:
            tasks = []
            for number in range(4):
                tasks.append(
                    await stack.enter_async_context(in_the_background(client.answered(session, f"q{number}")))
                )
                if number == 0:
                    await script.eventually(lambda script: script.in_flight)
                else:
                    await until_looked_for_the_turn(observer)
            assert len(script.requests) == 1
            assert await client.log(session) == ["user q0"]
            hold.set()
            assert await asyncio.gather(*tasks) == [f"re: q{number}" for number in range(4)]
    conversation = [line for number in range(4) for line in (f"user q{number}", f"assistant re: q{number}")]
    assert await client.log(session) == conversation
    for number in range(4):
        assert prompt(script, number) == conversation[: 2 * number + 1]
    assert not await has_lease(observer, session)


async def test_who_does_not_want_to_wait_is_told_who_has_the_turn(client, script, session):
    hold = Event()
    echo(script, hold)
    body = {"session_id": session, "messages": [{"role": "user", "content": "q0"}]}
    first = client.http.post("/v1/chat", json=body, headers={"X-Request-Id": "the-first"})
    async with in_the_background(first) as asked:
        with released(hold):
            await script.eventually(lambda script: script.in_flight)
            refused = await client.ask(session, "q1", memory={"on_busy": "reject"})
            assert refused.status_code == 409
            assert "'the-first'" in refused.json()["detail"]
            assert await client.log(session) == ["user q0"]
        assert (await asked).status_code == 200
    assert await client.answered(session, "q1", memory={"on_busy": "reject"}) == "re: q1"
    assert await client.log(session) == ["user q0", "assistant re: q0", "user q1", "assistant re: q1"]


async def test_who_waits_too_long_is_told_who_has_the_turn(client, settings, script, session):
    hold = Event()
    echo(script, hold)
    with service(**settings, chat_busy_timeout_seconds=0.2) as impatient:
        async with chats(impatient.url()) as other, in_the_background(client.answered(session, "q0")) as asked:
            with released(hold):
                await script.eventually(lambda script: script.in_flight)
                started = time.monotonic()
                response = await other.ask(session, "q1")
                assert 0.2 <= time.monotonic() - started < SLACK
                assert response.status_code == 409
                assert "has held its turn since" in response.json()["detail"]
            assert await asked == "re: q0"
    assert await client.log(session) == ["user q0", "assistant re: q0"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_interleaved_requests_lose_nothing_and_every_prompt_is_valid(
    client, script, session, streamed, observer
):
    holds = [Event() for _ in range(3)]
    echo(script, *holds)
    ask = client.streamed if streamed else client.answered
    interleaved = {"memory": {"on_busy": "interleave"}}
    with released(*holds):
        async with AsyncExitStack() as stack:
            tasks = []
            for number in range(3):
                asked = ask(session, f"q{number}", **interleaved)
                tasks.append(await stack.enter_async_context(in_the_background(asked)))
                await script.eventually(lambda script, number=number: script.in_flight == number + 1)
            assert not await has_lease(observer, session)
            for number in (1, 0, 2):
                holds[number].set()
                answer = await tasks[number]
                assert (answer.text if streamed else answer) == f"re: q{number}"
    questions = [f"user q{number}" for number in range(3)]
    assert [prompt(script, number) for number in range(3)] == [questions[: number + 1] for number in range(3)]
    stored = [*questions, *(f"assistant re: q{number}" for number in (1, 0, 2))]
    assert await client.log(session) == stored
    assert await client.answered(session, "next") == "re: next"
    assert prompt(script) == [*stored, "user next"]


async def test_an_interleaved_request_waits_for_no_lease_and_takes_none(client, script, session):
    hold = Event()
    echo(script, hold)
    async with in_the_background(client.answered(session, "q0")) as asked:
        with released(hold):
            await script.eventually(lambda script: script.in_flight)
            assert await client.answered(session, "q1", memory={"on_busy": "interleave"}) == "re: q1"
            refused = await client.ask(session, "q2", memory={"on_busy": "reject"})
            assert refused.status_code == 409
        assert await asked == "re: q0"
    assert await client.log(session) == ["user q0", "user q1", "assistant re: q1", "assistant re: q0"]


async def test_the_17th_that_would_wait_is_refused_and_waiting_holds_no_connection(client, script, session):
    hold = Event()
    echo(script, hold)
    with released(hold):
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(in_the_background(client.answered(session, "q0")))
            await script.eventually(lambda script: script.in_flight)
            # One more than may wait, in no particular order: exactly one of them is refused.
            asked = [client.ask(session, f"w{number}") for number in range(WAITERS + 1)]
            waiting = [await stack.enter_async_context(in_the_background(one)) for one in asked]
            done, still = await asyncio.wait(waiting, timeout=SLACK, return_when=asyncio.FIRST_COMPLETED)
            assert (len(done), len(still)) == (1, WAITERS)
            refused = done.pop().result()
            assert refused.status_code == 409
            assert str(WAITERS) in refused.json()["detail"]
            # More of them than the pool has connections, and yet there is one for everybody else.
            await until(client.pools_in_use, lambda in_use: not any(in_use))
            others = [client.http.get(f"/v1/sessions/{session}") for _ in range(20)]
            assert {response.status_code for response in await asyncio.gather(*others)} == {200}
            assert len(script.requests) == 1
            hold.set()
            assert await first == "re: q0"
            answers = await asyncio.gather(*still)
    assert {response.status_code for response in answers} == {200}
    log = await client.log(session)
    assert len(log) == 2 * (WAITERS + 1)
    assert all(
        answer == question.replace("user ", "assistant re: ")
        for question, answer in zip(log[::2], log[1::2], strict=True)
    )
    assert [prompt(script, number) for number in range(WAITERS + 1)] == [
        log[: 2 * number + 1] for number in range(WAITERS + 1)
    ]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_50_slow_answers_hold_no_connection(client, script, session, streamed, observer):
    hold = Event()
    script.reset(Answer("Hello Ada.", hold=None if streamed else hold, hold_after=(2, hold) if streamed else None))
    with released(hold):
        async with AsyncExitStack() as stack:
            asked = []
            for number in range(50):
                name = f"{session}-{number}"
                work = client.streamed(name, "q") if streamed else client.answered(name, "q")
                asked.append(await stack.enter_async_context(in_the_background(work)))
            await script.eventually(lambda script: script.in_flight == 50)
            # All of them renew their leases meanwhile, for which they hold one for a moment.
            await until(client.pools_in_use, lambda in_use: not any(in_use))
            started = time.monotonic()
            others = [client.http.get(f"/v1/sessions/{session}-{number}/events") for number in range(20)]
            responses = await asyncio.gather(*others)
            assert time.monotonic() - started < SLACK
            assert {response.status_code for response in responses} == {200}
            assert [len(response.json()["events"]) for response in responses] == [1] * 20
            open_transactions = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'turnkeeper' AND state LIKE 'idle in transaction%'"
            )
            assert await observer.fetchval(open_transactions) == 0
            assert script.in_flight == 50
            hold.set()
            answers = await asyncio.gather(*asked)
    if streamed:
        assert {(stream.text, stream.error, stream.ended) for stream in answers} == {("Hello Ada.", None, True)}
    else:
        assert set(answers) == {"Hello Ada."}
    for number in (0, 49):
        assert await client.log(f"{session}-{number}") == ["user q", "assistant Hello Ada."]


async def test_two_replicas_take_turns(clients, script, session, observer):
    hold = Event()
    echo(script, hold)
    with released(hold):
        async with AsyncExitStack() as stack:
            asked = []
            for number in range(12):
                work = clients[number % 2].answered(session, f"q{number}")
                asked.append(await stack.enter_async_context(in_the_background(work)))
                if number == 0:
                    await script.eventually(lambda script: script.in_flight)
            await until_looked_for_the_turn(observer)
            assert len(script.requests) == 1
            hold.set()
            assert await asyncio.gather(*asked) == [f"re: q{number}" for number in range(12)]
    log = await clients[1].log(session)
    assert sorted(log[::2]) == sorted(f"user q{number}" for number in range(12))
    assert log[1::2] == [question.replace("user ", "assistant re: ") for question in log[::2]]
    assert [prompt(script, number) for number in range(12)] == [log[: 2 * number + 1] for number in range(12)]
    assert not await has_lease(observer, session)


async def test_a_turn_that_takes_longer_than_the_lease_keeps_it(clients, script, session, observer):
    hold = Event()
    echo(script, hold)
    async with in_the_background(clients[0].answered(session, "q0")) as asked:
        with released(hold):
            await script.eventually(lambda script: script.in_flight)
            first = await lease_of(observer, session)
            # Renewed again and again: by now it would have run out twice.
            later = first["expires_at"] + timedelta(seconds=LEASE)
            renewed = await until(
                lambda: lease_of(observer, session), lambda lease: lease is None or lease["expires_at"] > later
            )
            assert (renewed["token"], renewed["acquired_at"]) == (first["token"], first["acquired_at"])
            refused = await clients[1].ask(session, "q1", memory={"on_busy": "reject"})
            assert refused.status_code == 409
        assert await asked == "re: q0"
    assert await clients[1].log(session) == ["user q0", "assistant re: q0"]
    assert not await has_lease(observer, session)


async def test_a_killed_replica_blocks_its_session_no_longer_than_the_lease(
    clients, settings, script, session, observer
):
    hold = Event()
    echo(script, hold)
    running = Service(**settings)
    with released(hold):
        async with chats(running.url()) as dying, in_the_background(dying.ask(session, "q0")):
            await script.eventually(lambda script: script.in_flight)
            running.kill()
        left = await lease_of(observer, session)
        assert left["expires_at"] <= await observer.fetchval("SELECT clock_timestamp()") + timedelta(seconds=LEASE)
        killed = time.monotonic()
        assert await clients[0].answered(session, "q1") == "re: q1"
        assert time.monotonic() - killed < LEASE + SLACK
    assert prompt(script) == ["user q0", "user q1"]
    assert await clients[0].log(session) == ["user q0", "user q1", "assistant re: q1"]
    assert not await has_lease(observer, session)


async def test_a_slow_holder_cannot_release_its_successors_lease(clients, replicas, script, session, observer):
    holds = [Event(), Event()]
    echo(script, *holds)
    with released(*holds):
        async with in_the_background(clients[0].answered(session, "q0")) as slow:
            await script.eventually(lambda script: script.in_flight)
            lost = await lease_of(observer, session)
            async with AsyncExitStack() as stack:
                with suspended(replicas[0].process.pid):
                    # It waits until the lease of the one that stands still is over.
                    successor = await stack.enter_async_context(in_the_background(clients[1].answered(session, "q1")))
                    await script.eventually(lambda script: len(script.requests) == 2)
                    taken = await lease_of(observer, session)
                    assert taken["token"] != lost["token"]
                holds[0].set()
                assert await slow == "re: q0"
                kept = await lease_of(observer, session)
                assert kept["token"] == taken["token"]
                assert not successor.done()
                refused = await clients[0].ask(session, "q2", memory={"on_busy": "reject"})
                assert refused.status_code == 409
                holds[1].set()
                assert await successor == "re: q1"
    assert not await has_lease(observer, session)
    stored = ["user q0", "user q1", "assistant re: q0 (late)", "assistant re: q1"]
    assert await clients[0].log(session) == stored
    assert await clients[0].answered(session, "next") == "re: next"
    assert prompt(script) == ["user q0", "user q1", "assistant re: q1", "user next"]
