"""The guarantees with two replicas behind a round-robin client: while both live, with one killed, and with it back.

Each test goes on in each phase with what it left in the one before.
"""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.service.consistency import LEFT_OVER, WRONG_COUNTERS
from tests.service.load.fleet import fleet
from tests.service.load.round_robin import round_robin, slug_of
from tests.upstream import Answer, scripted_upstream

RACERS = 6
LEASE = 2
REMIND_EVERY = 4

# By the name of the test: what the next phase goes on with.
_left: dict[str, dict] = defaultdict(dict)


@pytest.fixture(scope="module")
def script():
    with scripted_upstream() as script:
        script.behaviour = lambda request: Answer(f"re: {request['messages'][-1]['content']}", delay=0.02)
        yield script


@pytest.fixture(scope="module")
async def running(shared_database_url, script):
    settings = {
        "database_url": shared_database_url,
        "upstream_url": script.url,
        "upstream_model": "m",
        "chat_lease_seconds": LEASE,
        "sweep_interval_seconds": 0.05,
        "memory_consolidation": f'{{"every_requests": {REMIND_EVERY}}}',
    }
    async with fleet(**settings) as running:
        yield running
    assert not running.faults


@pytest.fixture(scope="module", params=["both", "one", "again"])
async def phase(request, running, script):
    """The replica is killed, and started again, in the middle of writes and of an answer."""
    async with round_robin(running.urls) as client:
        if request.param == "one":
            async with busy(client):
                await running.kill(0)
        if request.param == "again":
            async with busy(client):
                await running.start(0)
    return request.param


@pytest.fixture
async def client(running, phase):
    async with round_robin(running.urls) as client:
        yield client


@pytest.fixture
def left(request):
    return _left[request.function.__name__]


@pytest.fixture(scope="module", autouse=True)
async def rows_agree_with_counters(shared_database_url):
    """Whatever the tests of this file did, and whoever was killed at it."""
    yield
    connection = await asyncpg.connect(shared_database_url.replace("+asyncpg", ""))
    try:
        assert await connection.fetch(WRONG_COUNTERS) == []
        async with asyncio.timeout(20):
            while await connection.fetchval(LEFT_OVER):  # noqa: ASYNC110  # The sweepers are other processes.
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


@asynccontextmanager
async def busy(client):
    """Writers that append all the time, and a chat: what is acknowledged is there, nothing is there twice."""
    acknowledged, over = [], asyncio.Event()

    async def write(writer):
        while not over.is_set():
            text = f"{writer}.{len(acknowledged)}"
            sent = {"user_id": "busy", "events": [says(text, id=text)]}
            answer = await client.insist("POST", "/v1/sessions/busy/events", json=sent)
            assert answer.status_code in {200, 201}, answer.text
            acknowledged.append(text)
            await asyncio.sleep(0.05)

    async def talk():
        while not over.is_set():
            await ask(client, "busy-chat", f"q{len(acknowledged)}")

    async with asyncio.TaskGroup() as tasks:
        for writer in range(4):
            tasks.create_task(write(f"{id(over)}.{writer}"))
        tasks.create_task(talk())
        await asyncio.sleep(0.2)
        yield
        await asyncio.sleep(0.2)
        over.set()
    log = await texts(client, "busy")
    assert len(log) == len(set(log))
    assert set(acknowledged) <= set(log)
    said = await texts(client, "busy-chat")
    assert said[1::2] == [f"re: {question}" for question in said[::2]]


def says(text, role="user", **fields):
    return {"message": {"role": role, "content": text}, **fields}


async def append(client, session, *texts, user="alice", **fields):
    sent = {"user_id": user, "events": [says(text, id=f"{session}.{text}") for text in texts]}
    return await client.insist("POST", f"/v1/sessions/{session}/events", json=sent, **fields)


async def texts(client, session):
    read = await client.insist("GET", f"/v1/sessions/{session}/events")
    return [event["text"] for event in read.json()["events"]]


async def ask(client, session, question, **memory):
    """Asked with a key, until it is answered."""
    sent = {
        "session_id": session,
        "user_id": "alice",
        "messages": [{"role": "user", "content": question}],
        "memory": memory,
    }
    answer = await client.insist("POST", "/v1/chat", json=sent, headers={"Idempotency-Key": question})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def statuses(answers):
    return sorted(answer.status_code for answer in answers)


async def race(call):
    return await asyncio.gather(*map(call, range(RACERS)))


async def test_an_append_is_one_however_often_and_wherever_it_is_sent(client, phase, left):
    sent = left.setdefault("sent", [])
    sent.append([f"{phase}.{number}" for number in range(3)])
    answers = await race(lambda _: append(client, "twice", *sent[-1]))
    assert statuses(answers) == [200] * (RACERS - 1) + [201]
    # And again what was sent before the replica was killed, and before another took its place.
    for texts_of_phase in sent:
        again = await append(client, "twice", *texts_of_phase)
        assert (again.status_code, again.json()["event_version"]) == (200, 3 * len(sent))
    assert await texts(client, "twice") == [text for batch in sent for text in batch]


async def test_one_of_several_creators_creates_and_one_of_several_writers_of_a_version_wins(client, phase):
    path = f"/v1/sessions/created-{phase}"
    created = await race(lambda _: client.insist("PUT", path, json={"user_id": "alice"}))
    assert statuses(created) == [200] * (RACERS - 1) + [201]
    for version in range(3):
        condition = {"If-Match": f'"{version}"'}
        wrote = await race(
            lambda racer, version=version, condition=condition: append(
                client, f"created-{phase}", f"{version}.{racer}", headers=condition
            )
        )
        assert statuses(wrote) == [201] + [412] * (RACERS - 1)


async def test_turns_are_taken_one_at_a_time(client, phase, script, left):
    prompts = len(script.requests)
    answers = await race(lambda racer: ask(client, "turns", f"{phase}.{racer}"))
    assert answers == [f"re: {phase}.{racer}" for racer in range(RACERS)]
    log = await texts(client, "turns")
    before = left.get("log", [])
    assert log[: len(before)] == before
    new = log[len(before) :]
    assert new[1::2] == [f"re: {question}" for question in new[::2]]
    assert sorted(new[::2]) == [f"{phase}.{racer}" for racer in range(RACERS)]
    # Each prompt holds the turns before its own, whole.
    for number, request in enumerate(script.requests[prompts:]):
        assert [message["content"] for message in request["messages"]] == log[: len(before) + 2 * number + 1]
    left["log"] = log


async def test_an_answer_is_had_again_from_another_replica(client, phase, script, left):
    asked = left.setdefault("asked", [])
    asked.append(f"key.{phase}")
    await ask(client, "replayed", asked[-1])
    prompts = len(script.requests)
    # The newest turn's: a key of an earlier one is that of an earlier run.
    assert [await ask(client, "replayed", asked[-1]) for _ in range(3)] == [f"re: {asked[-1]}"] * 3
    assert len(script.requests) == prompts
    assert await texts(client, "replayed") == [text for key in asked for text in (key, f"re: {key}")]


async def test_who_does_not_wait_is_told_so_by_the_other_replica(client, phase, script):
    sent = {"session_id": "held", "user_id": "alice", "memory": {"on_busy": "reject"}}

    async def reject(racer):
        messages = [{"role": "user", "content": f"{phase}.{racer}"}]
        while (answer := await client.once("POST", "/v1/chat", json=sent | {"messages": messages})) is None:
            pass
        return answer

    answers = await race(reject)
    assert 200 in statuses(answers)
    assert all(slug_of(answer) == "session-busy" for answer in answers if answer.status_code != 200)
    log = await texts(client, "held")
    assert log[1::2] == [f"re: {question}" for question in log[::2]]


async def test_windows_and_contexts_are_the_same_at_every_replica(client, phase):
    roles = ["user", "assistant", "assistant"] * 4
    events = [says(f"{phase}.{place}", role) for place, role in enumerate(roles)]
    sent = {"user_id": "alice", "events": events}
    assert (await client.insist("POST", "/v1/sessions/windows/events", json=sent)).status_code == 201
    log = (await client.insist("GET", "/v1/sessions/windows/events")).json()["events"]
    for last_n in (1, 2, 3, 5, 8, len(log) - 1, len(log) + 1):
        read = await race(lambda _, n=last_n: client.insist("GET", f"/v1/sessions/windows/events?last_n={n}"))
        first = max(0, len(log) - last_n)
        while log[first]["type"] != "user":
            first -= 1
        assert all(answer.json()["events"] == log[first:] for answer in read)
    contexts = await race(lambda _: client.insist("GET", "/v1/sessions/windows/context?max_tokens=20"))
    assert len({answer.text for answer in contexts}) == 1


async def test_pages_go_on_at_another_replica_while_sessions_are_made(client, phase, left):
    """The cursor of a phase is used up in the next one."""
    made, seen = left.setdefault("made", []), left.setdefault("seen", [])
    for number in range(10):
        made.append(f"page-{phase}-{number}")
        assert (await client.insist("PUT", f"/v1/sessions/{made[-1]}", json={"user_id": "pages"})).status_code == 201
    if cursor := left.get("cursor"):
        while cursor:
            page = await client.insist("GET", f"/v1/sessions?user_id=pages&limit=2&cursor={cursor}")
            seen += [item["id"] for item in page.json()["items"]]
            cursor = page.json()["next_cursor"]
        assert seen == left["expected"]
    first = (await client.insist("GET", "/v1/sessions?user_id=pages&limit=3")).json()
    left |= {"seen": [item["id"] for item in first["items"]], "cursor": first["next_cursor"]}
    left["expected"] = made[::-1]
    assert left["seen"] == made[:-4:-1]


async def test_what_one_replica_took_is_found_through_the_other(client, phase, left):
    left["count"] = left.get("count", 0) + 12
    await append(client, "found", *(f"quinoa {phase} {number}" for number in range(12)), user="finder")
    pages = await asyncio.gather(
        *(
            client.insist("POST", path, json={"query": "quinoa", "page": page, "page_size": 5})
            for path in ("/v1/sessions/found/search", "/v1/users/finder/search")
            for page in range(left["count"] // 5 + 1)
        )
    )
    results = [result["text"] for page in pages for result in page.json()["results"]]
    assert results == 2 * await texts(client, "found")
    arguments = {"query": f"quinoa {phase}", "page": 1}
    answers = await race(
        lambda _: client.insist("POST", "/v1/sessions/found/tools/conversation_search", json=arguments)
    )
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].json()["content"].count(f"quinoa {phase}") == 2


async def test_of_compactions_at_once_one_is_applied(client, phase):
    await append(client, "compacted", *(f"{phase}.{number}" for number in range(8)))
    before = (await client.insist("GET", "/v1/sessions/compacted")).json()
    body = {"strategy": {"turn_window": {"max_turns": 2}}}
    answers = await race(lambda _: client.insist("POST", "/v1/sessions/compacted/compact", json=body))
    done = [answer.json() for answer in answers]
    assert [one["compacted"] for one in done].count(True) == 1
    assert {one["reason"] for one in done} <= {None, "conflict", "fits"}
    after = (await client.insist("GET", "/v1/sessions/compacted")).json()
    assert after["event_version"] == before["event_version"] + 1
    assert (after["event_count"], after["active_event_count"]) == (before["event_count"], 2)
    log = (await client.insist("GET", "/v1/sessions/compacted/events")).json()["events"]
    assert [event["archived"] for event in log] == [True] * (len(log) - 2) + [False] * 2


async def test_a_reminder_comes_once_in_so_many_requests_of_all_replicas(client, phase, left):
    requests = RACERS * 2
    answers = [*await race(lambda _: _prompt(client)), *await race(lambda _: _prompt(client))]
    left["asked"] = left.get("asked", 0) + requests
    left["reminded"] = left.get("reminded", 0) + sum(answer is not None for answer in answers)
    assert left["reminded"] == left["asked"] // REMIND_EVERY


async def _prompt(client):
    return (await client.insist("GET", "/v1/memories/reminded/prompt")).json()["reminder"]


async def test_of_edits_of_one_version_of_a_file_one_wins(client, phase, left):
    path = "/v1/memories/editor/file?path=notes.md"
    for number in range(3):
        condition = {"If-Match": left["etag"]} if left else {"If-None-Match": "*"}
        edits = await race(
            lambda racer, number=number, condition=condition: client.insist(
                "PUT", path, content=f"{phase}.{number}.{racer}", headers=condition
            )
        )
        assert statuses(edits) == [200 if left else 201] + [412] * (RACERS - 1)
        place = next(place for place, edit in enumerate(edits) if edit.status_code != 412)
        left["etag"] = edits[place].headers["ETag"]
        read = await race(lambda _: client.insist("GET", path))
        assert {(answer.text, answer.headers["ETag"]) for answer in read} == {
            (f"{phase}.{number}.{place}", left["etag"])
        }


async def test_sessions_expire_at_every_replica_and_extended_ones_stay(client, phase):
    """Both sweep all the time."""
    sessions = [f"expiring-{phase}-{number}" for number in range(6)]
    for session in sessions:
        await append(client, session, "said")
    expires = datetime.now(UTC) + timedelta(seconds=1)
    for session in sessions:
        assert (await patch(client, session, expires_at=expires.isoformat())).status_code == 200
    # On a machine that runs late they are gone already: what the answer says holds.
    extended = [await patch(client, session, ttl_seconds=600) for session in sessions[:3]]
    await asyncio.sleep(max(0, (expires - datetime.now(UTC)).total_seconds()) + 0.2)
    for session, answer in zip(sessions, extended, strict=False):
        read = await race(lambda _, name=session: client.insist("GET", f"/v1/sessions/{name}"))
        assert statuses(read) == [answer.status_code] * RACERS
        assert answer.status_code == 404 or await texts(client, session) == ["said"]
    for session in sessions[3:]:
        read = await race(lambda _, name=session: client.insist("GET", f"/v1/sessions/{name}"))
        assert statuses(read) == [404] * RACERS


async def patch(client, session, **fields):
    return await client.insist("PATCH", f"/v1/sessions/{session}", json=fields)


async def test_the_messages_of_one_mcp_client_are_answered_by_either_replica(client, phase):
    async def send(method, **message):
        headers = {"Accept": "application/json, text/event-stream", "X-User-Id": "of-tools"}
        message = {"jsonrpc": "2.0", "method": method, **message}
        return await client.insist("POST", "/mcp", json=message, headers=headers)

    client_info = {"name": "test", "version": "1"}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client_info}
    for number in range(3):  # An odd number of messages: each of them goes to both.
        begun = await send("initialize", id=1, params=start)
        assert begun.json()["result"]["serverInfo"]["name"] == "turnkeeper"
        assert "Mcp-Session-Id" not in begun.headers
        assert (await send("notifications/initialized")).status_code == 202
        arguments = {"path": f"{phase}-{number}.md", "fileText": "kept"}
        made = await send("tools/call", id=2, params={"name": "MemoryCreate", "arguments": arguments})
        assert made.json()["result"]["isError"] is False
        read = await send("tools/call", id=3, params={"name": "MemoryView", "arguments": {"path": arguments["path"]}})
        assert "kept" in read.json()["result"]["content"][0]["text"]
        assert len((await send("tools/list", id=4)).json()["result"]["tools"]) == 7
