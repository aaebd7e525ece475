"""How the service starts, refuses to start, and what its log tells."""

import json

import httpx
import pytest

from tests.service.process import Service, service

NOWHERE = "postgresql://nobody:hunter2@127.0.0.1:1/none"


def refused(**settings):
    """What a service says that does not start."""
    running = Service(**{"database_url": NOWHERE} | settings)
    code = running.wait()
    assert code != 0
    assert "Traceback" not in running.log
    assert "hunter2" not in running.log
    return running.log


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host": "0.0.0.0"}, "TURNKEEPER_API_KEYS"),  # noqa: S104
        ({"prot": "1"}, "TURNKEEPER_PROT"),
        ({"statement_timeout_ms": "many"}, "TURNKEEPER_STATEMENT_TIMEOUT_MS"),
        ({"pool_size": "0"}, "TURNKEEPER_POOL_SIZE"),
        ({}, "database cannot be reached"),
        ({"database_url": "mysql://x"}, "TURNKEEPER_DATABASE_URL"),
    ],
)
def test_what_an_operator_got_wrong_is_a_sentence(settings, says):
    assert says in refused(**settings)


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
