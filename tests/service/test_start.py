"""How the service starts, refuses to start, and what its log tells."""

import asyncio
import json
import signal
import time

import httpx
import psutil
import pytest

from tests.service.process import Service, service
from tests.service.refusals import refused

NOWHERE = "postgresql://nobody:hunter2@127.0.0.1:1/none"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prot": "1"}, "TURNKEEPER_PROT"),
        ({"statement_timeout_ms": "many"}, "TURNKEEPER_STATEMENT_TIMEOUT_MS"),
        ({"pool_size": "0"}, "TURNKEEPER_POOL_SIZE"),
        ({}, "database cannot be reached"),
        ({"database_url": "mysql://x"}, "TURNKEEPER_DATABASE_URL"),
        ({"api_keys": "good,hunter2\nagain"}, "TURNKEEPER_API_KEYS: A key consists"),
        ({"memory_prompt_file": __file__}, "TURNKEEPER_MEMORY_PROMPT_FILE: the template has no placeholder"),
        ({"memory_prompt_file": "none", "workers": "2"}, "TURNKEEPER_MEMORY_PROMPT_FILE: the file cannot be read"),
        ({"upstream_api_key": "hunter2…"}, "TURNKEEPER_UPSTREAM_API_KEY: A key consists"),
    ],
)
def test_what_an_operator_got_wrong_is_a_sentence(settings, says, capsys):
    told = refused(capsys, **{"database_url": NOWHERE} | settings)
    assert says in told
    assert "hunter2" not in told


def test_a_process_that_does_not_start_says_why_and_no_more():
    running = Service(database_url=NOWHERE)
    assert running.wait() == 1
    [line] = running.lines
    assert line.startswith("turnkeeper: The database cannot be reached")


def test_what_kubernetes_injects_is_ignored_with_a_warning(database_url):
    injected = {"port": "tcp://10.0.0.1:8088", "service_host": "10.0.0.1", "port_8088_tcp_addr": "10.0.0.1"}
    with service(database_url=database_url, **injected) as running:
        assert httpx.get(f"{running.url()}/readyz").status_code == 200
    assert running.log.count("setting_ignored") == 3


def test_the_log_is_json_without_content(database_url):
    key = {"Authorization": "Bearer topsecretkey"}
    with service(database_url=database_url, api_keys="topsecretkey") as running:
        with httpx.Client(base_url=running.url(), headers=key) as http:
            for message in ({"role": "user", "content": "mellow marker"}, {"role": "robot mellow"}):
                body = {"user_id": "mellow", "events": [{"id": "mellow-1", "message": message}]}
                http.post("/v1/sessions/mellow-s/events", json=body, headers={"X-Request-Id": "trace-7"})
            http.post("/v1/users/mellow/search", json={"query": "mellow"})
            http.get("/v1/sessions/mellow-s", headers={"Authorization": "Bearer topsecretkeyx"})
    logged = [json.loads(line) for line in running.lines if line.startswith("{")]
    requests = [line for line in logged if line["event"] == "request"]
    assert [line["status"] for line in requests] == [201, 422, 200, 401]
    assert requests[0]["request_id"] == "trace-7"
    assert requests[0]["route"] == "/v1/sessions/{session_id}/events"
    for secret in ("mellow", "topsecret", "robot"):
        assert secret not in running.log


def test_a_port_that_is_taken_is_told(database_url):
    with service(database_url=database_url) as first:
        second = Service("--port", first.url().rsplit(":", 1)[1], database_url=database_url)
        assert second.wait() != 0
        assert "Traceback" not in second.log
        assert "address already in use" in second.log


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_postgresql_stops_with_the_service_and_keeps_its_data(folder, sent):
    for status in (201, 200):
        with service(data_dir=folder) as running:
            made = httpx.put(f"{running.url()}/v1/sessions/kept", json={"user_id": "alice"})
            assert made.status_code == status
            if status == 200:
                postgres_of(running).kill()
                eventually(lambda running=running: "embedded_postgresql_started_again" in running.log)
                eventually(lambda running=running: httpx.get(f"{running.url()}/readyz").status_code == 200)
            postgres = postgres_of(running)
            running.process.send_signal(sent)
            code = running.wait()
            assert code == 0 or sent == signal.SIGINT
        assert not postgres.is_running()


def postgres_of(running):
    (found,) = [child for child in psutil.Process(running.process.pid).children() if "postgres" in child.name()]
    return found


def eventually(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


async def test_a_service_that_is_stopped_finishes_what_it_has_begun(database_url):
    """It ends by itself, and every append that it answered is there."""
    with service(database_url=database_url) as running:
        answered = set()
        begun = asyncio.Event()

        async def append(http, number):
            while True:
                event = {"id": f"{number}.{len(answered)}", "message": {"role": "user", "content": "x " * 2000}}
                try:
                    response = await http.post("/v1/sessions/s/events", json={"user_id": "alice", "events": [event]})
                except httpx.TransportError:  # Not taken any more.
                    return
                assert response.status_code == 201
                answered.add(event["id"])
                begun.set()

        async with httpx.AsyncClient(base_url=running.url(), timeout=30, headers={"Connection": "close"}) as http:
            async with asyncio.TaskGroup() as tasks:
                for number in range(8):
                    tasks.create_task(append(http, number))
                await begun.wait()
                running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.wait) == 0
    with service(database_url=database_url) as running:
        async with httpx.AsyncClient(base_url=running.url()) as http:
            read = (await http.get("/v1/sessions/s/events")).json()["events"]
        assert answered <= {event["id"] for event in read}
