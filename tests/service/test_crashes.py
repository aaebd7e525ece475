"""`kill -9` in the middle of a stream of appends: what was acknowledged is there, and no batch is in part."""

import asyncio
import os
import signal
import time
from itertools import count

import asyncpg
import httpx
import psutil
import pytest

from app.storage.embedded import EmbeddedPostgres
from tests.service.process import Service

SESSIONS = 3
WRITERS = 2
BATCH = 4


class Stream:
    """Clients that append batches until the service breaks; they remember what was sent and what acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, list[list[str]]] = {f"s{number}": [] for number in range(SESSIONS)}
        self.unsettled: list[tuple[str, list[str]]] = []
        self._numbers = count()

    async def run(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            writers = [self._write(http, session) for session in self.acknowledged for _ in range(WRITERS)]
            await asyncio.gather(*writers)

    async def retry(self, url: str) -> None:
        """Send again what got no answer: a replay, or new; in either case it is there once."""
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            for session, ids in self.unsettled:
                response = await http.post(f"/v1/sessions/{session}/events", json=_body(ids))
                assert response.status_code in {200, 201}, response.text
                self.acknowledged[session].append(ids)
        self.unsettled.clear()

    async def _write(self, http: httpx.AsyncClient, session: str) -> None:
        while True:
            ids = [f"e{next(self._numbers)}" for _ in range(BATCH)]
            try:
                response = await http.post(f"/v1/sessions/{session}/events", json=_body(ids))
            except httpx.HTTPError:
                self.unsettled.append((session, ids))
                return
            if response.status_code != 201:
                assert response.status_code == 503, response.text
                self.unsettled.append((session, ids))
                return
            self.acknowledged[session].append(ids)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_killing_the_service_loses_no_acknowledged_event(folder, rounds):
    with EmbeddedPostgres.start(folder) as postgres:
        postgres.ensure_database("turnkeeper")
        url = postgres.database_url("turnkeeper")
        stream = Stream()
        for number in range(rounds):
            service = Service(database_url=url)
            address = await asyncio.to_thread(service.url)
            await stream.retry(address)
            writing = asyncio.create_task(stream.run(address))
            await asyncio.sleep(0.3 + 0.07 * (number % 5))
            service.kill()
            await writing
            await check(postgres, stream)
        assert sum(map(len, stream.acknowledged.values())) > rounds * SESSIONS


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_killing_postgresql_loses_no_acknowledged_event(folder, rounds):
    stream = Stream()
    postgres = EmbeddedPostgres.start(folder)
    postgres.ensure_database("turnkeeper")
    service = Service(database_url=postgres.database_url("turnkeeper"))
    try:
        address = await asyncio.to_thread(service.url)
        for number in range(rounds):
            writing = asyncio.create_task(stream.run(address))
            await asyncio.sleep(0.3 + 0.07 * (number % 5))
            _kill_with_children(postgres.pid)
            await writing
            postgres.stop()  # Gives up its share of the dead server: the last one could not stop its own.
            postgres = await asyncio.to_thread(EmbeddedPostgres.start, folder)
            await _until_ready(address)
            await stream.retry(address)
            await check(postgres, stream)
    finally:
        service.stop()
        postgres.stop()
    assert "Traceback" not in service.log


async def check(postgres: EmbeddedPostgres, stream: Stream) -> None:
    connection = await asyncpg.connect(
        host=str(postgres.socket_dir), port=5432, user="postgres", database="turnkeeper"
    )
    try:
        # One snapshot: what was on its way when the service died may be committed while this reads.
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for session, acknowledged in stream.acknowledged.items():
                sent = [*acknowledged, *(ids for name, ids in stream.unsettled if name == session)]
                await _check_session(connection, session, acknowledged, sent)
    finally:
        await connection.close()


async def _check_session(
    connection: asyncpg.Connection, session: str, acknowledged: list[list[str]], sent: list[list[str]]
) -> None:
    state = await connection.fetchrow("SELECT * FROM sessions WHERE id = $1", session)
    if state is None:
        assert not acknowledged
        return
    rows = await connection.fetch("SELECT id, tokens FROM events WHERE session_key = $1 ORDER BY seq", state["key"])
    stored = [row["id"] for row in rows]
    assert len(stored) == len(set(stored))
    batches = [stored[start : start + BATCH] for start in range(0, len(stored), BATCH)]
    assert all(batch in sent for batch in batches), "each batch is whole, and in its order"
    assert all(batch in batches for batch in acknowledged), "what was acknowledged is there"
    assert state["event_version"] == state["event_count"] == len(stored)
    assert state["active_event_count"] == state["active_turn_count"] == len(stored)
    assert state["active_token_count"] == sum(row["tokens"] for row in rows)
    active = "SELECT count(*) FROM active_events WHERE session_key = $1"
    assert await connection.fetchval(active, state["key"]) == len(stored)


def _body(ids: list[str]) -> dict:
    events = [{"id": event_id, "message": {"role": "user", "content": f"text of {event_id}"}} for event_id in ids]
    return {"user_id": "alice", "events": events}


def _kill_with_children(pid: int) -> None:
    postmaster = psutil.Process(pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)


async def _until_ready(url: str) -> None:
    deadline = time.monotonic() + 30
    async with httpx.AsyncClient(base_url=url) as http:
        while (response := await http.get("/readyz")).status_code != 200:
            assert time.monotonic() < deadline, response.text
            await asyncio.sleep(0.05)
