"""The OpenAPI document holds: no 5xx, no status, content type or body that it does not describe."""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.service.process import service
from tests.upstream import Answer, scripted_upstream

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KEY = "a-service-key"


@schemathesis.serializer("application/zip")
def as_it_is(_context, value):
    """Archives that are none: what one holds is tested in `tests/api/test_memories.py`."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


@pytest.fixture(scope="module")
def running(shared_database_url):
    with (
        scripted_upstream() as upstream,
        service(
            database_url=shared_database_url, api_keys=KEY, token_secret="s" * 40, upstream_url=upstream.url
        ) as process,
    ):
        upstream.reset(Answer("We did."))
        # What the document's examples name, so that they find something.
        with httpx.Client(base_url=process.url(), headers={"Authorization": f"Bearer {KEY}"}) as http:
            for role in ("user", "assistant"):
                event = {"id": f"msg-{role}", "message": {"role": role, "content": "We decided on PostgreSQL."}}
                body = {"user_id": "alice", "events": [event]}
                http.post("/v1/sessions/support-4711/events", json=body).raise_for_status()
        yield process


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.long)])
def test_nothing_is_answered_that_the_document_does_not_describe(running, examples):
    document = schemathesis.openapi.from_url(f"{running.url()}/openapi.json")
    called = set()
    for result in document.get_all_operations():
        operation = result.ok()
        called.add(operation.label)

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case):
            case.call_and_validate(headers={"Authorization": f"Bearer {KEY}"}, checks=CHECKS, timeout=30)

        check()
    assert len(called) > 20
