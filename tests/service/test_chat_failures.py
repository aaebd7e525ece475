"""Every row of docs/failures.md: what the client gets, what is stored, and what a retry does."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from threading import Event

import httpx
import psutil
import pytest

from app.storage.embedded import EmbeddedPostgres
from tests.service.process import Service, service
from tests.service.streams import (
    chats,
    connected,
    in_the_background,
    lease_of,
    prompt,
    released,
    suspended,
    times_logged,
    until,
    until_logged,
    until_looked_for_the_turn,
    until_waiting_for_a_lock,
)
from tests.upstream import MODELS, Answer, scripted_upstream

TABLE = Path(__file__).parents[2] / "docs" / "failures.md"
LEASE = 1
TEXT, FRAGMENT, SECOND = "Hello Ada.", "Hell", "Here you are."
# Chunk 0 has the role, chunk 1 the fragment.
AFTER_FRAGMENT = 2
# Tried again at once, so that three attempts take no time.
AT_ONCE = {"Retry-After": "0"}
NOWHERE = "http://127.0.0.1:9/v1"
RECALL = {"memory": {"recall": True}}
KEYS = (None, "run-1")

_numbers = count(1)

with_and_without_key = pytest.mark.parametrize("key", KEYS, ids=["without-key", "with-key"])
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Postgres:
    """A server of the test's own, which may go away."""

    def __init__(self, folder):
        self._folder = folder
        self._server = EmbeddedPostgres.start(folder)
        self._server.ensure_database("turnkeeper")
        self.url = self._server.database_url("turnkeeper")

    @contextmanager
    def away(self):
        self._server.stop()
        try:
            yield
        finally:
            self._server = EmbeddedPostgres.start(self._folder)

    def frozen(self):
        server = psutil.Process(self._server.pid)
        return suspended(server.pid, *(child.pid for child in server.children(recursive=True)))

    def stop(self):
        self._server.stop()


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
    }


@pytest.fixture(scope="module")
def one(settings):
    """A replica that waits for the upstream as long as a test may take."""
    with service(**settings) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(settings):
    """Another, which does not."""
    timeouts = {"upstream_first_byte_timeout_seconds": 0.5, "upstream_idle_timeout_seconds": 0.5}
    with service(**settings, **timeouts) as running:
        yield running


@pytest.fixture(scope="module")
def astray(settings):
    """A third, whose upstream is not there, and which does not wait long for a turn."""
    with service(**settings | {"upstream_url": NOWHERE, "chat_busy_timeout_seconds": 0.3}) as running:
        yield running


@pytest.fixture(scope="module")
def own_postgres():
    folder = Path(tempfile.mkdtemp())
    postgres = Postgres(folder)
    yield postgres
    postgres.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def on_own_postgres(settings, own_postgres):
    limits = {"pool_size": 3, "pool_timeout_seconds": 0.5, "statement_timeout_ms": 1000}
    with service(**settings | {"database_url": own_postgres.url}, **limits) as running:
        yield running


@pytest.fixture
async def client(one):
    async with chats(one.url()) as client:
        yield client


@pytest.fixture
async def hasty_client(hasty):
    async with chats(hasty.url()) as client:
        yield client


@pytest.fixture
async def astray_client(astray):
    async with chats(astray.url()) as client:
        yield client


@pytest.fixture
async def client_on_own_postgres(on_own_postgres):
    async with chats(on_own_postgres.url()) as client:
        await until_well(client)
        yield client


@pytest.fixture
async def observer(shared_database_url):
    async with connected(shared_database_url) as connection:
        yield connection


@pytest.fixture
def session():
    return f"session-{next(_numbers)}"


@pytest.fixture
def sessions(session):
    """One for a client without a key and one for a client with one, where a failure takes its time."""
    return {key: f"{session}-{key}" for key in KEYS}


async def test_the_table_and_the_tests_name_the_same_rows():
    rows = re.findall(r"^\| (F\d+) \|", TABLE.read_text(), re.MULTILINE)
    tested = [name.split("_")[1].upper() for name in globals() if re.match(r"test_f\d+_", name)]
    assert rows == [f"F{number}" for number in range(1, len(rows) + 1)]
    assert list(dict.fromkeys(tested)) == rows, "in the order of the table"


# Before the question is stored


async def test_f1_the_database_is_gone_before_the_question_is_stored(
    client_on_own_postgres, own_postgres, script, sessions
):
    client = client_on_own_postgres
    with own_postgres.away():
        for key, name in sessions.items():
            is_unavailable(await client.ask(name, "q", key=key))
    assert script.requests == []
    await until_well(client)
    for key, name in sessions.items():
        assert await client.log(name) == []
        await retry(client, script, name, key, ["user q"])


@with_and_without_key
async def test_f2_the_turn_stays_anothers_for_too_long(client, astray_client, script, session, key):
    async with before(client, script, session):
        response = await astray_client.ask(session, "q", key=key)
        assert problem_of(response) == (409, "session-busy")
        assert await client.log(session) == ["user before"]
    await as_a_first_one(client, script, session, key, ["user before", "assistant First."])


@with_and_without_key
async def test_f3_the_client_leaves_while_it_waits_for_the_turn(client, one, observer, script, session, key):
    gone = times_logged(one, "client_gone")
    async with before(client, script, session):
        async with in_the_background(client.ask(session, "q", key=key)):
            await until_looked_for_the_turn(observer)
        await until_logged(one, "client_gone", gone + 1)
    assert len(script.requests) == 1
    await as_a_first_one(client, script, session, key, ["user before", "assistant First."])


async def test_f4_the_lease_is_lost_before_the_question_is_stored(
    client, hasty_client, one, shared_database_url, observer, script, sessions
):
    script.reset(Answer("Second."))
    for name in sessions.values():
        assert await hasty_client.answered(name, "before") == "Second."
    async with connected(shared_database_url) as locking, AsyncExitStack() as stack:
        lock = locking.transaction()
        await lock.start()
        await locking.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        asked = {
            key: await stack.enter_async_context(in_the_background(client.ask(name, "q", key=key)))
            for key, name in sessions.items()
        }
        # Both have their turn, and read what is stored.
        await until_waiting_for_a_lock(observer, len(asked))
        with suspended(one.process.pid):
            await lock.rollback()
            for name in sessions.values():
                assert await hasty_client.answered(name, "meanwhile") == "Second."
        for task in asked.values():
            assert problem_of(await task) == (409, "session-busy")
    for key, name in sessions.items():
        stored = ["user before", "assistant Second.", "user meanwhile", "assistant Second."]
        await as_a_first_one(client, script, name, key, stored)


# While the upstream works, before its answer begins


async def test_f5_the_upstream_cannot_be_reached(client, astray_client, script, session):
    cases = {f"{session}-{key}-{streamed}": (key, streamed) for key in KEYS for streamed in (False, True)}
    asked = [astray_client.ask(name, "q", key=key, stream=streamed) for name, (key, streamed) in cases.items()]
    for response in await asyncio.gather(*asked):
        assert problem_of(response) == (502, "upstream-failed")
    for name, (key, streamed) in cases.items():
        assert await client.log(name) == ["user q"]
        await retry(client, script, name, key, ["user q"], streamed=streamed)


@whole_and_streamed
@with_and_without_key
async def test_f6_the_upstream_answers_with_an_error_again_and_again(client, script, session, key, streamed):
    script.reset(Answer("It is burning.", status=500, headers=AT_ONCE))
    response = await client.ask(session, "q", key=key, stream=streamed)
    assert problem_of(response) == (500, "upstream-refused")
    assert "It is burning." in response.json()["detail"]
    assert len(script.requests) == 3
    assert await client.log(session) == ["user q"]
    await retry(client, script, session, key, ["user q"], streamed=streamed)


@with_and_without_key
async def test_f7_the_upstream_asks_to_come_back_much_later(client, script, session, key):
    script.reset(Answer("Slow down.", status=429, headers={"Retry-After": "61"}))
    response = await client.ask(session, "q", key=key)
    assert problem_of(response) == (429, "upstream-refused")
    assert response.headers["Retry-After"] == "61"
    assert len(script.requests) == 1
    assert await client.log(session) == ["user q"]
    await retry(client, script, session, key, ["user q"])


@whole_and_streamed
@with_and_without_key
async def test_f8_the_upstream_does_not_begin_to_answer(hasty_client, script, session, key, streamed):
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    with released(hold):
        response = await hasty_client.ask(session, "q", key=key, stream=streamed)
        assert problem_of(response) == (504, "upstream-timed-out")
        await script.eventually(lambda script: script.cancelled == 1)
    assert len(script.requests) == 1
    assert await hasty_client.log(session) == ["user q"]
    await retry(hasty_client, script, session, key, ["user q"], streamed=streamed)


def completion(**message):
    return Answer(body=json.dumps({"choices": [{"index": 0, "message": message}]}).encode())


@pytest.mark.parametrize(
    ("streamed", "answer"),
    [
        (False, Answer(body=b"<html>Welcome</html>")),
        (False, Answer(body=b'{"choices": []}')),
        (False, Answer(body=b'{"error": {"message": "No."}}')),
        (False, completion(content=None, tool_calls="search")),
        (False, completion(content=None, tool_calls=[{"id": 7, "function": {}}])),
        (False, Answer(TEXT, dies_after=0)),
        (False, Answer(status=302, headers={"Location": "/"}, body=b"")),
        (True, completion(content=TEXT)),
    ],
    ids=["html", "no-choice", "an-error-as-200", "no-calls", "no-call", "cut-in-two", "moved", "no-stream"],
)
@with_and_without_key
async def test_f9_the_upstream_answers_nonsense(client, script, session, key, streamed, answer):
    script.reset(answer)
    response = await client.ask(session, "q", key=key, stream=streamed)
    assert problem_of(response) == (502, "upstream-failed")
    assert await client.log(session) == ["user q"]
    await retry(client, script, session, key, ["user q"], streamed=streamed)


@whole_and_streamed
@with_and_without_key
async def test_f10_the_client_leaves_before_the_answer_begins(client, script, session, key, streamed):
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    with released(hold):
        async with in_the_background(client.ask(session, "q", key=key, stream=streamed)):
            await script.eventually(lambda script: script.in_flight)
        await script.eventually(lambda script: script.cancelled == 1)
        assert await client.log(session) == ["user q"]
        await retry(client, script, session, key, ["user q"], streamed=streamed)


# In the middle of a stream


@with_and_without_key
async def test_f11_the_upstream_falls_silent(hasty_client, script, session, key):
    hold = Event()
    script.reset(Answer(TEXT, hold_after=(AFTER_FRAGMENT, hold)))
    with released(hold):
        stream = await hasty_client.streamed(session, "q", key=key)
        await script.eventually(lambda script: script.cancelled == 1)
    assert "0.5 seconds" in stream.error["message"]
    await is_broken_off(stream, hasty_client, script, session, key)


def chunk(**delta):
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


SAID = chunk(content=FRAGMENT)


@pytest.mark.parametrize(
    ("answer", "more"),
    [
        (Answer(TEXT, dies_after=AFTER_FRAGMENT), {}),
        (Answer(body=[SAID]), {}),
        (Answer(body=[SAID, b"data: [DONE]\n\n"]), {}),
        (Answer(body=[SAID, b"data: <html>\n\n"]), {}),
        (Answer(body=[SAID, b"data: 7\n\n"]), {}),
        (Answer(body=[SAID, b'data: {"choices": [7]}\n\n']), RECALL),
        (Answer(body=[SAID, b'data: {"choices": [{"index": 0, "delta": "o Ada."}]}\n\n']), RECALL),
        (
            Answer(
                body=[
                    SAID,
                    chunk(tool_calls=[{"index": 0, "function": 7}]),
                    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}\n\n',
                ]
            ),
            {},
        ),
    ],
    ids=["dies", "ends", "done-without-a-reason", "no-json", "no-chunk", "no-choice", "no-delta", "no-call"],
)
@with_and_without_key
async def test_f12_the_upstream_breaks_off_or_talks_nonsense(client, script, session, key, answer, more):
    script.reset(answer)
    stream = await client.streamed(session, "q", key=key, **more)
    assert stream.error["message"].startswith("The upstream LLM failed")
    await is_broken_off(stream, client, script, session, key)


@with_and_without_key
async def test_f13_the_upstream_says_that_it_failed(client, script, session, key):
    script.reset(Answer(TEXT, error_after=AFTER_FRAGMENT))
    stream = await client.streamed(session, "q", key=key)
    assert stream.error["message"] == "The script fails in the middle."
    await is_broken_off(stream, client, script, session, key)


@with_and_without_key
async def test_f14_the_client_leaves_in_the_middle(client, script, session, key):
    hold = Event()
    script.reset(Answer(TEXT, hold_after=(AFTER_FRAGMENT, hold)))
    with released(hold):
        async with client.stream(session, "q", key=key) as stream:
            await stream.until(FRAGMENT)
        await script.eventually(lambda script: script.cancelled == 1)
    await client.until_log(session, ["user q", f"assistant {FRAGMENT} (interrupted)"])
    await is_made_good(client, script, session, key)


@with_and_without_key
async def test_f15_the_client_takes_nothing_any_more(hasty, hasty_client, script, session, key):
    longest = "and so on, " * 1_000_000  # more than all buffers on the way
    script.reset(Answer(FRAGMENT + longest, pieces=[FRAGMENT, *([longest[:100_000]] * 200)]))
    host, port = hasty.url().removeprefix("http://").split(":")
    body = json.dumps({"session_id": session, "messages": [{"role": "user", "content": "q"}], "stream": True})
    head = f"POST /v1/chat HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n" + (f"Idempotency-Key: {key}\r\n" if key else "")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}\r\n{body}".encode())
        await script.eventually(lambda script: script.cancelled == 1)
        await until(lambda: hasty_client.log(session), lambda log: len(log) == 2)
    question, fragment = await hasty_client.log(session)
    assert fragment.startswith(f"assistant {FRAGMENT}and so on")
    assert fragment.endswith("(interrupted)")
    await retry(hasty_client, script, session, key, [question, fragment])


@whole_and_streamed
@with_and_without_key
async def test_f16_a_round_after_the_services_own_tools_fails(client, script, session, key, streamed):
    search = ("call-1", "conversation_search", '{"query": "Ada"}')
    script.reset(Answer(calls=[search]), Answer("It is burning.", status=500, headers=AT_ONCE))
    if streamed:
        stream = await client.streamed(session, "q", key=key, **RECALL)
        assert (stream.text, stream.ended) == ("", False)
        assert "It is burning." in stream.error["message"]
    else:
        response = await client.ask(session, "q", key=key, **RECALL)
        assert problem_of(response) == (500, "upstream-refused")
    stored = ["user q", "assistant ", "tool No results found."]
    assert await client.log(session) == stored
    script.reset(Answer(SECOND))
    for _ in range(1 if key is None else 2):
        assert await client.answered(session, "q", key=key, **RECALL) == SECOND
        assert len(script.requests) == 1
        # What the service has found out is not asked for again.
        assert prompt(script) == ["user q", "assistant None", "tool No results found."]
        assert await client.log(session) == [*stored, f"assistant {SECOND}"]


# The service ends, or stands still


async def test_f17_sigterm_and_the_answer_ends_in_time(client, settings, script, session):
    hold = Event()
    script.reset(Answer(TEXT, hold_after=(AFTER_FRAGMENT, hold)))
    running = Service(**settings)
    with released(hold):
        async with chats(running.url()) as ending, ending.stream(session, "q") as stream:
            await stream.until(FRAGMENT)
            running.process.send_signal(signal.SIGTERM)
            await until_refused(running)
            hold.set()
            await stream.rest()
            assert (stream.text, stream.error, stream.ended) == (TEXT, None, True)
    assert await asyncio.to_thread(running.wait) == 0
    assert await client.log(session) == ["user q", f"assistant {TEXT}"]
    # Nothing is left of its turn.
    script.reset(Answer("Goodbye."))
    assert await client.answered(session, "next", memory={"on_busy": "reject"}) == "Goodbye."


async def test_f18_sigterm_and_the_answer_does_not_end_in_time(
    client, settings, shared_database_url, observer, script, sessions
):
    hold = Event()
    script.reset(Answer(TEXT, hold_after=(AFTER_FRAGMENT, hold)))
    running = Service(**settings, shutdown_grace_seconds=0.5)
    with released(hold):
        async with (
            chats(running.url()) as ending,
            connected(shared_database_url) as locking,
            AsyncExitStack() as stack,
        ):
            streams = []
            for key, name in sessions.items():
                streams.append(await stack.enter_async_context(ending.stream(name, "q", key=key)))
                await streams[-1].until(FRAGMENT)
            async with locking.transaction():
                # Storing takes its time: the service must not end before it is done.
                await locking.execute("SELECT FROM sessions WHERE id = ANY($1) FOR UPDATE", list(sessions.values()))
                running.process.send_signal(signal.SIGTERM)
                await until_waiting_for_a_lock(observer, len(sessions), seconds=60)
                with pytest.raises(subprocess.TimeoutExpired):
                    await asyncio.to_thread(running.process.wait, 1)
            for stream in streams:
                await stream.rest()
                assert (stream.error["code"], stream.ended) == ("service_stopping", False)
    assert await asyncio.to_thread(running.wait) == 0
    assert '"exception"' not in running.log
    for key, name in sessions.items():
        assert await client.log(name) == ["user q", f"assistant {FRAGMENT} (interrupted)"]
        await is_made_good(client, script, name, key)


@with_and_without_key
async def test_f18_sigterm_and_a_whole_answer_does_not_come_in_time(client, settings, script, session, key):
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    running = Service(**settings, shutdown_grace_seconds=0.5)
    with released(hold):
        async with chats(running.url()) as ending:
            async with in_the_background(ending.ask(session, "q", key=key)) as asked:
                await script.eventually(lambda script: script.in_flight)
                running.process.send_signal(signal.SIGTERM)
                assert problem_of(await asked) == (503, "service-stopping")
    assert await asyncio.to_thread(running.wait) == 0
    assert await client.log(session) == ["user q"]
    await retry(client, script, session, key, ["user q"])


async def test_f19_sigkill(client, observer, settings, script, session):
    holds = [Event(), Event()]
    cases = {f"{session}-{key}-{streamed}": (key, streamed) for key in KEYS for streamed in (False, True)}
    running = Service(**settings)
    with released(*holds):
        async with chats(running.url()) as dying, AsyncExitStack() as stack:
            for name, (key, streamed) in cases.items():
                script.reset(
                    Answer(TEXT, hold_after=(AFTER_FRAGMENT, holds[0])) if streamed else Answer(hold=holds[1])
                )
                if streamed:
                    stream = await stack.enter_async_context(dying.stream(name, "q", key=key))
                    await stream.until(FRAGMENT)
                else:
                    asked = await stack.enter_async_context(in_the_background(dying.ask(name, "q", key=key)))
                    await script.eventually(lambda script: script.requests)
            running.kill()
            with pytest.raises(httpx.HTTPError):
                await stream.rest()
            with pytest.raises(httpx.HTTPError):
                await asked
        for name, (key, streamed) in cases.items():
            assert await client.log(name) == ["user q"]
            lease = await lease_of(observer, name)
            assert (
                lease["expires_at"] - await observer.fetchval("SELECT clock_timestamp()")
            ).total_seconds() <= LEASE
            await retry(client, script, name, key, ["user q"], streamed=streamed)


async def test_f20_the_lease_is_lost_while_the_upstream_works(client, hasty_client, one, script, session):
    hold = Event()
    cases = {f"{session}-{key}-{streamed}": (key, streamed) for key in KEYS for streamed in (False, True)}
    script.behaviour = lambda request: Answer(TEXT, hold=hold) if request["model"] == "slow" else Answer("Second.")
    with released(hold):
        async with AsyncExitStack() as stack:
            asked = {}
            for name, (key, streamed) in cases.items():
                ask = client.streamed if streamed else client.answered
                work = ask(name, "q", key=key, model="slow")
                asked[name] = await stack.enter_async_context(in_the_background(work))
            await script.eventually(lambda script: script.in_flight == len(cases))
            with suspended(one.process.pid):
                for name in cases:
                    assert await hasty_client.answered(name, "meanwhile") == "Second."
                    assert prompt(script) == ["user q", "user meanwhile"]
            hold.set()
            for name, (_, streamed) in cases.items():
                answer = await asked[name]
                assert (answer.text, answer.ended) == (TEXT, True) if streamed else answer == TEXT
    for name, (key, _) in cases.items():
        stored = ["user q", "user meanwhile", "assistant Second.", f"assistant {TEXT} (late)"]
        assert await client.log(name) == stored
        script.reset(Answer(SECOND))
        assert await client.answered(name, "q", key=key) == SECOND
        # With its key it is known, and stands where it is asked now.
        first = ["user q"] if key is None else []
        assert prompt(script) == [*first, "user meanwhile", "assistant Second.", "user q"]
        asked_again = ["user q"] if key is None else []
        assert await client.log(name) == [*stored, *asked_again, f"assistant {SECOND}"]


# When the reply is to be stored


async def test_f21_the_database_is_gone_when_a_whole_reply_is_to_be_stored(
    client_on_own_postgres, own_postgres, script, sessions
):
    client = client_on_own_postgres
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    async with AsyncExitStack() as stack:
        asked = [
            await stack.enter_async_context(in_the_background(client.ask(name, "q", key=key)))
            for key, name in sessions.items()
        ]
        with released(hold):
            await script.eventually(lambda script: script.in_flight == len(asked))
            with own_postgres.away():
                hold.set()
                for response in await asyncio.gather(*asked):
                    is_unavailable(response)
    await until_well(client)
    for key, name in sessions.items():
        assert await client.log(name) == ["user q"]
        await retry(client, script, name, key, ["user q"])


async def test_f22_the_database_is_gone_when_a_streamed_reply_is_to_be_stored(
    client_on_own_postgres, own_postgres, script, sessions
):
    client = client_on_own_postgres
    hold = Event()
    script.reset(Answer(TEXT, hold_after=(AFTER_FRAGMENT, hold)))
    with released(hold):
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(client.stream(name, "q", key=key)) for key, name in sessions.items()
            ]
            for stream in streams:
                await stream.until(FRAGMENT)
            with own_postgres.away():
                hold.set()
                for stream in streams:
                    await stream.rest()
                    assert (stream.text, stream.ended) == (TEXT, False)
                    assert stream.error["message"].startswith("The database cannot be reached")
    await until_well(client)
    for key, name in sessions.items():
        assert await client.log(name) == ["user q"]
        await retry(client, script, name, key, ["user q"], streamed=True)


async def test_f23_the_database_does_not_say_whether_the_reply_was_stored(
    client_on_own_postgres, own_postgres, script, sessions
):
    client = client_on_own_postgres
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    async with AsyncExitStack() as stack:
        asked = [
            await stack.enter_async_context(in_the_background(client.ask(name, "q", key=key)))
            for key, name in sessions.items()
        ]
        with released(hold):
            await script.eventually(lambda script: script.in_flight == len(asked))
            with own_postgres.frozen():
                hold.set()
                assert {response.status_code for response in await asyncio.gather(*asked)} == {503}
    await until_well(client)
    script.reset(Answer(SECOND))
    answers = {key: await client.answered(name, "q", key=key) for key, name in sessions.items()}
    with_key, without_key = [
        [line for line in await client.log(sessions[key]) if not line.endswith("(late)")] for key in ("run-1", None)
    ]
    # It was stored after all, or it was not.
    assert with_key == ["user q", f"assistant {answers['run-1']}"]
    assert answers[None] == SECOND
    assert without_key in (
        ["user q", f"assistant {SECOND}"],
        ["user q", f"assistant {TEXT}", "user q", f"assistant {SECOND}"],
    )


@whole_and_streamed
@with_and_without_key
async def test_f24_the_session_is_deleted_while_the_upstream_works(client, one, script, session, key, streamed):
    not_stored = times_logged(one, "chat_reply_not_stored")
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    ask = client.streamed if streamed else client.answered
    async with in_the_background(ask(session, "q", key=key)) as asked:
        with released(hold):
            await script.eventually(lambda script: script.in_flight)
            (await client.http.delete(f"/v1/sessions/{session}")).raise_for_status()
            (await client.http.put(f"/v1/sessions/{session}", json={"user_id": "bob"})).raise_for_status()
        answer = await asked
    assert (answer.text, answer.ended) == (TEXT, True) if streamed else answer == TEXT
    await until_logged(one, "chat_reply_not_stored", not_stored + 1)
    assert await client.log(session) == []
    await retry(client, script, session, key, ["user q"], streamed=streamed)


@whole_and_streamed
@with_and_without_key
async def test_f25_the_client_leaves_while_its_reply_is_being_stored(
    client, one, shared_database_url, observer, script, session, key, streamed
):
    gone = times_logged(one, "client_gone")
    hold = Event()
    script.reset(Answer(TEXT, hold=hold))
    ask = client.streamed if streamed else client.ask
    async with connected(shared_database_url) as locking, locking.transaction():
        async with in_the_background(ask(session, "q", key=key)):
            with released(hold):
                await script.eventually(lambda script: script.in_flight)
                await locking.execute("SELECT FROM sessions WHERE id = $1 FOR UPDATE", session)
            await until_waiting_for_a_lock(observer)
        # What comes after the client has hung up is heard after it.
        (await client.http.get("/healthz")).raise_for_status()
    await until_logged(one, "client_gone", gone + 1)
    stored = ["user q", f"assistant {TEXT}"]
    assert await client.log(session) == stored
    script.reset(Answer(SECOND))
    again = await client.answered(session, "q", key=key)
    if key is None:
        assert (again, prompt(script)) == (SECOND, [*stored, "user q"])
        assert await client.log(session) == [*stored, "user q", f"assistant {SECOND}"]
    else:
        assert (again, script.requests) == (TEXT, [])
        assert await client.log(session) == stored


@whole_and_streamed
async def test_f26_the_database_was_away_and_is_back_when_the_reply_is_to_be_stored(
    settings, own_postgres, script, session, streamed
):
    """With a lease that is not renewed meanwhile, so that the first to find out is the reply."""
    patient = settings | {"database_url": own_postgres.url, "chat_lease_seconds": 30}
    hold = Event()
    with service(**patient, may_crash=True) as running, released(hold):
        async with chats(running.url()) as client:
            await until_well(client)
            script.reset(Answer(TEXT, hold=hold))
            ask = client.streamed if streamed else client.answered
            async with in_the_background(ask(session, "q", key="run-1")) as asked:
                await script.eventually(lambda script: script.in_flight)
                with own_postgres.away():
                    pass
                hold.set()
                answer = await asked
            assert (answer.text, answer.ended) == (TEXT, True) if streamed else answer == TEXT
            assert await client.log(session) == ["user q", f"assistant {TEXT}"]
            assert await client.answered(session, "q", key="run-1") == TEXT
            assert len(script.requests) == 1


@pytest.mark.parametrize("mode", ["inline", "background"])
@whole_and_streamed
async def test_f27_the_compaction_fails(client, one, script, session, mode, streamed):
    def behaviour(request):
        if request["model"] == MODELS[1]:
            return Answer("No summaries today.", status=500, headers=AT_ONCE)
        return Answer(TEXT)

    failed = times_logged(one, "chat_compaction_failed")
    script.behaviour = behaviour
    strategy = {"summarize": {"max_events": 1, "overlap": 0, "model": MODELS[1]}}
    due = {"memory": {"compaction": {"trigger": {"turns": 1}, "strategy": strategy, "mode": mode}}}
    assert await client.answered(session, "q", **due) == TEXT
    assert len(script.requests) == 1
    if streamed:
        stream = await client.streamed(session, "q", **due)
        assert (stream.text, stream.error, stream.ended) == (TEXT, None, True)
    else:
        assert await client.answered(session, "q", **due) == TEXT
    await until_logged(one, "chat_compaction_failed", failed + 1)
    stored = ["user q", f"assistant {TEXT}"] * 2
    assert await client.log(session) == stored
    # The next turn has all of it, and does not try to compact again at once.
    asked = len(script.requests)
    assert await client.answered(session, "next", **due) == TEXT
    assert prompt(script) == [*stored, "user next"]
    assert len(script.requests) == asked + 1


async def retry(client, script, session, key, stored, *, streamed=False):
    """Ask again: the question goes upstream once, without what is left of a reply, and nothing is stored twice.

    `stored` is what the log holds but for the new reply.
    """
    script.reset(Answer(SECOND))
    for _ in range(1 if key is None else 2):
        if streamed:
            stream = await client.streamed(session, "q", key=key)
            assert (stream.text, stream.error, stream.ended) == (SECOND, None, True)
        else:
            assert await client.answered(session, "q", key=key) == SECOND
        # With a key, the second time is answered from the log.
        assert len(script.requests) == 1
        assert prompt(script) == ["user q"]
        assert await client.log(session) == [*stored, f"assistant {SECOND}"]


async def as_a_first_one(client, script, session, key, stored):
    """Ask again where nothing was stored."""
    assert await client.log(session) == stored
    script.reset(Answer(SECOND))
    for _ in range(1 if key is None else 2):
        assert await client.answered(session, "q", key=key) == SECOND
        assert len(script.requests) == 1
        assert prompt(script) == [*stored, "user q"]
        assert await client.log(session) == [*stored, "user q", f"assistant {SECOND}"]


async def is_broken_off(stream, client, script, session, key):
    """What was said was passed on and is stored as it is; the stream has no end."""
    assert (stream.text, stream.ended) == (FRAGMENT, False)
    assert await client.log(session) == ["user q", f"assistant {FRAGMENT} (interrupted)"]
    await is_made_good(client, script, session, key)


async def is_made_good(client, script, session, key):
    """A retry, and the next turn: neither prompt holds what was left of the first reply."""
    await retry(client, script, session, key, ["user q", f"assistant {FRAGMENT} (interrupted)"], streamed=True)
    script.reset(Answer("Goodbye."))
    assert await client.answered(session, "next") == "Goodbye."
    assert prompt(script) == ["user q", f"assistant {SECOND}", "user next"]


@asynccontextmanager
async def before(client, script, session):
    """Another request has the session's turn, until the end of the block."""
    hold = Event()
    script.reset(Answer("First.", hold=hold))
    async with in_the_background(client.answered(session, "before")) as asked:
        with released(hold):
            await script.eventually(lambda script: script.in_flight)
            yield
        assert await asked == "First."


def problem_of(response):
    """Its status and the end of its type."""
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    return response.status_code, response.json()["type"].rsplit(":", 1)[1]


def is_unavailable(response):
    assert problem_of(response) == (503, "database-unavailable")
    assert int(response.headers["Retry-After"]) > 0


async def until_well(client):
    async def status():
        return (await client.http.get("/readyz")).status_code

    await until(status, lambda status: status == 200)


async def until_refused(running):
    """Until the service takes no new connections: it has seen that it is to end."""

    async def is_refused():
        async with httpx.AsyncClient(base_url=running.url()) as http:
            try:
                await http.get("/healthz")
            except httpx.TransportError:
                return True
        return False

    await until(is_refused, bool)
