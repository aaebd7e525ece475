"""One llama.cpp server for all of these tests, and the service in front of it."""

import httpx
import pytest

from tests.live.llama import MODEL, llama, model_file
from tests.service.process import service


@pytest.fixture(scope="session")
def model():
    with model_file() as path:
        yield path


@pytest.fixture(scope="session")
def upstream(model):
    with llama(model) as started:
        yield started


@pytest.fixture(scope="module")
def http(upstream, shared_database_url):
    with service(database_url=shared_database_url, upstream_url=upstream.url, upstream_model=MODEL) as running:
        with httpx.Client(base_url=running.url(), timeout=60) as client:
            yield client


@pytest.fixture(scope="session")
def direct(upstream):
    """The server without the service in front of it: what the service is held against."""
    with httpx.Client(base_url=upstream.address, timeout=60) as client:
        yield client
