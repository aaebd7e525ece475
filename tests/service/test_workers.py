"""`serve --workers`: several processes on one port and one database, which live and end together."""

import asyncio
import json
import signal
import socket

import httpx
import psutil

from tests.service.process import Service, service
from tests.service.refusals import refused
from tests.service.scraping import until

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def children(running):
    return psutil.Process(running.process.pid).children(recursive=True)


def workers(running):
    """The processes that serve, by what started them."""
    return [one for one in children(running) if "spawn_main" in " ".join(one.cmdline())]


async def create(running, *names):
    """A session each, on a connection each, at once."""

    async def put(name):
        async with httpx.AsyncClient(base_url=running.url(), timeout=60) as http:
            return (await http.put(f"/v1/sessions/{name}", json={"user_id": "alice"})).status_code

    return await asyncio.gather(*(put(name) for name in names))


def who_served(running):
    lines = [json.loads(line) for line in running.lines if line.startswith("{")]
    return {line["pid"] for line in lines if line["event"] == "request"}


async def until_both_serve(running, pids):
    async with asyncio.timeout(120):
        while not pids <= who_served(running):
            assert set(await create(running, *map(str, range(20)))) <= {200, 201}


async def test_two_workers_serve_and_one_that_is_killed_is_replaced(folder):
    with service(data_dir=folder, workers=2) as running:
        first = workers(running)
        assert len(first) == 2
        await until_both_serve(running, {one.pid for one in first})

        async with httpx.AsyncClient(base_url=running.url(), timeout=60) as http:
            served = sum('"/v1/sessions/{session_id}"' in line for line in running.lines)
            await until(http, lambda figures: figures.value("requests_total", method="PUT") >= served)
            await until(http, lambda figures: figures.value("pool_size", pool="log") == 20)

            killed = first[0]
            killed.kill()
            psutil.wait_procs([killed], timeout=60)
        async with asyncio.timeout(120):
            while len(workers(running)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "worker_died" in running.log
        await until_both_serve(running, {one.pid for one in workers(running)})
        async with httpx.AsyncClient(base_url=running.url(), timeout=60) as http:
            # What the killed one had counted is not lost, what it had open is.
            await until(http, lambda figures: figures.value("requests_total", method="PUT") >= served)
            await until(http, lambda figures: figures.value("pool_size", pool="log") == 20)

        left = children(running)
        assert any("postgres" in one.name() for one in left)
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.wait) == 0
        _, alive = await asyncio.to_thread(psutil.wait_procs, left, 60)
        assert not alive


async def test_ctrl_c_lets_all_workers_finish_what_they_have_begun(database_url):
    """As a terminal sends it: to every process."""
    with service(database_url=database_url, workers=2) as running:
        left = workers(running)
        answered = set()

        async def put(number):
            while True:
                name = f"{number}.{len(answered)}"
                try:
                    (status,) = await create(running, name)
                except httpx.TransportError:  # Not taken any more.
                    return
                assert status == 201
                answered.add(name)

        writing = [asyncio.create_task(put(number)) for number in range(6)]
        async with asyncio.timeout(120):
            while len(answered) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for process in (psutil.Process(running.process.pid), *left):
            process.send_signal(signal.SIGINT)
        await asyncio.gather(*writing)
        assert await asyncio.to_thread(running.wait) == 0
        assert not [one for one in left if one.is_running()]
    with service(database_url=database_url) as running:
        assert set(await create(running, *answered)) == {200}


async def test_workers_whose_parent_is_killed_end_too(database_url):
    running = Service(database_url=database_url, workers=2)
    await asyncio.to_thread(running.url)
    left = workers(running)
    running.process.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, 60)
    assert not alive
    await asyncio.to_thread(running.wait)


def test_what_cannot_start_is_told(capsys):
    assert "database cannot be reached" in refused(capsys, workers=2, database_url=NOWHERE)
    assert "TURNKEEPER_WORKERS" in refused(capsys, workers=0)


def test_a_port_that_is_taken_is_told(database_url):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = Service("--port", str(taken.getsockname()[1]), "--workers", "2", database_url=database_url)
        assert running.wait() != 0
    assert "Traceback" not in running.log
    assert "address already in use" in running.log.lower()
