"""The service with a key and a scripted upstream, on a real socket: what a client of its API talks to."""

from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.clients import npm
from tests.service.process import service
from tests.upstream import MODELS, Answer, scripted_upstream

KEY = "client-key"
# Beyond 10 s the service passes on what it is asked to wait, instead of waiting itself.
IMPATIENT = {"Retry-After": "61"}

_numbers = count(1)


class Memory:
    """The service as a test sees it: where it is, and what it has stored."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = f"{url}/v1"
        self.http = http

    def log(self, session: str) -> list[dict]:
        response = self.http.get(f"/v1/sessions/{session}/events")
        assert response.status_code == 200, response.text
        return response.json()["events"]

    def said(self, session: str) -> list[tuple]:
        """The role and text of each message."""
        return [(event["type"], event["text"]) for event in self.log(session)]


@pytest.fixture(scope="module")
def _script():
    with scripted_upstream() as script:
        yield script


@pytest.fixture
def script(_script):
    _script.reset(Answer(text="Hello Ada."))
    yield _script
    _script.wait(lambda script: not script.in_flight)


@pytest.fixture(scope="module")
def memory(_script, shared_database_url):
    settings = {"upstream_url": _script.url, "upstream_model": MODELS[0], "upstream_api_key": "upstream-key"}
    with service(database_url=shared_database_url, api_keys=KEY, **settings) as running:
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=running.url(), headers=headers, timeout=30) as http:
            yield Memory(running.url(), http)


@pytest.fixture
def session():
    return f"session-{next(_numbers)}"


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder where the npm packages are installed."""
    return npm.installed()
