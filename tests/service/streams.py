"""Chats with a service in another process: what the client gets, whole or in part, and what the log holds then."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import httpx
import psutil

from tests.prompt_rules import require_valid
from tests.service.process import Service
from tests.upstream import Script

PATIENCE_SECONDS = 20
DONE = "[DONE]"


class Stream:
    """An answer as it comes. `text` is what was said so far, `error` an error event, `ended` that `[DONE]` came."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        self.error: dict[str, Any] | None = None
        self.ended = False
        self._lines = response.aiter_lines()

    async def until(self, text: str) -> None:
        """Read on until so much was said."""
        while self.text != text:
            assert text.startswith(self.text), self.text
            assert await self._read(), f"It ended with {self.text!r}."

    async def rest(self) -> None:
        while await self._read():
            pass

    async def _read(self) -> bool:
        line = await anext(self._lines, None)
        if line is None:
            return False
        data = line.removeprefix("data: ")
        if data == DONE:
            self.ended = True
        elif data != line:
            self._take(json.loads(data))
        return True

    def _take(self, chunk: dict[str, Any]) -> None:
        assert not self.ended, "nothing comes after the end"
        self.error = chunk.get("error", self.error)
        for choice in chunk.get("choices", []):
            self.text += choice["delta"].get("content") or ""


class Chats:
    """One replica, and the questions that a client asks it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, session: str, text: str, *, key: str | None = None, **more: Any) -> httpx.Response:
        """The whole answer, whatever it is."""
        return await self.http.post("/v1/chat", json=_body(session, text, more), headers=_headers(key))

    async def answered(self, session: str, text: str, *, key: str | None = None, **more: Any) -> str:
        """The text of a good answer."""
        response = await self.ask(session, text, key=key, **more)
        assert response.status_code == 200, response.text
        content: str = response.json()["choices"][0]["message"]["content"]
        return content

    @asynccontextmanager
    async def stream(self, session: str, text: str, *, key: str | None = None, **more: Any) -> AsyncIterator[Stream]:
        """A streamed answer; leaving the block before its end closes the connection."""
        body = _body(session, text, {**more, "stream": True})
        async with self.http.stream("POST", "/v1/chat", json=body, headers=_headers(key)) as response:
            stream = Stream(response)  # Held here: a reader that nobody holds closes the connection.
            yield stream

    async def streamed(self, session: str, text: str, *, key: str | None = None, **more: Any) -> Stream:
        """A streamed answer, read to its end."""
        async with self.stream(session, text, key=key, **more) as stream:
            assert stream.response.status_code == 200, await stream.response.aread()
            await stream.rest()
        return stream

    async def log(self, session: str) -> list[str]:
        """The events of a session, each a line such as `user Hello` or `assistant Hi (interrupted)`."""
        response = await self.http.get(f"/v1/sessions/{session}/events")
        if response.status_code == 404:
            return []
        assert response.status_code == 200, response.text
        return [_line(event) for event in response.json()["events"]]

    async def until_log(self, session: str, expected: list[str]) -> None:
        """What is stored after the client has gone can only be waited for."""
        await until(lambda: self.log(session), lambda log: log == expected)

    async def pools_in_use(self) -> list[int]:
        response = await self.http.get("/readyz")
        assert response.status_code == 200, response.text
        return [pool["in_use"] for pool in response.json()["pools"].values()]


@asynccontextmanager
async def chats(url: str) -> AsyncIterator[Chats]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        yield Chats(http)


@asynccontextmanager
async def in_the_background(work: Awaitable[Any]) -> AsyncIterator["asyncio.Task[Any]"]:
    """A client that waits meanwhile; it hangs up when the block ends before it got its answer."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextmanager
def released(*holds: Any) -> Iterator[None]:
    """At the end of the block, whatever happened in it: the upstream must not hold its threads for a minute."""
    try:
        yield
    finally:
        for hold in holds:
            hold.set()


@contextmanager
def suspended(*pids: int) -> Iterator[None]:
    """Processes that stand still meanwhile, with their connections open: nothing breaks, and nothing answers."""
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def until(
    look: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool], seconds: float = PATIENCE_SECONDS
) -> Any:
    """What is seen once the condition holds, which another process brings about."""
    seen = None
    try:
        async with asyncio.timeout(seconds):
            while not condition(seen := await look()):  # noqa: ASYNC110  # What is looked at is elsewhere.
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"Not within {seconds} s; seen last: {seen!r}") from None
    return seen


async def until_logged(running: Service, event: str, times: int = 1) -> None:
    """Until the service has logged an event so often."""

    async def seen() -> int:
        return times_logged(running, event)

    await until(seen, lambda count: count >= times)


def times_logged(running: Service, event: str) -> int:
    return sum(f'"event": "{event}"' in line for line in running.lines)


def prompt(script: Script, place: int = -1) -> list[str]:
    """The conversation that the upstream was asked with, which every provider takes, as lines."""
    request = script.requests[place]
    require_valid(request)
    return [f"{message['role']} {message['content']}" for message in request["messages"]]


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        yield connection
    finally:
        await connection.close()


async def lease_of(connection: asyncpg.Connection, session: str) -> asyncpg.Record | None:
    return await connection.fetchrow(
        "SELECT l.token, l.holder, l.acquired_at, l.expires_at"
        " FROM turn_leases l JOIN sessions s ON s.key = l.session_key WHERE s.id = $1 AND s.deleted_at IS NULL",
        session,
    )


async def until_waiting_for_a_lock(
    observer: asyncpg.Connection, statements: int = 1, seconds: float = PATIENCE_SECONDS
) -> None:
    """Until so many statements of services wait for what another connection than this one has locked."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database() AND application_name = 'turnkeeper'"
    )
    await until(lambda: observer.fetchval(query), lambda waiting: waiting == statements, seconds)


async def until_looked_for_the_turn(observer: asyncpg.Connection, times: int = 3) -> None:
    """Until requests tried to take a turn so often: one that waits for it does so again and again."""
    query = (
        "SELECT max(query_start) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'turnkeeper' AND query LIKE '%INSERT INTO turn_leases%'"
    )
    seen = {await observer.fetchval(query)}

    async def look() -> int:
        seen.add(await observer.fetchval(query))
        return len(seen)

    await until(look, lambda count: count > times)


def _body(session: str, text: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"session_id": session, "messages": [{"role": "user", "content": text}], **more}


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": key}


def _line(event: dict[str, Any]) -> str:
    marks = [name for name in ("interrupted", "late") if event["metadata"].get(name)]
    said = event["text"] if event["text"] is not None else ""
    return " ".join([event["type"], said, *(f"({mark})" for mark in marks)])
