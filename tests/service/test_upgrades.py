"""Replicas that start at once, and releases beside each other: as processes, as an operator runs them."""

import asyncio

import httpx

from tests.service.process import Service, service
from tests.service.refusals import refused
from tests.storage.test_migrations import set_revision

ALICE = {"user_id": "alice", "events": [{"id": "1", "message": {"role": "user", "content": "Hello."}}]}


def test_two_replicas_that_start_at_once_on_an_empty_database_both_serve(empty_url):
    replicas = [Service(database_url=empty_url) for _ in range(2)]
    try:
        urls = [replica.url() for replica in replicas]
        assert [httpx.get(f"{url}/readyz").status_code for url in urls] == [200, 200]
        assert httpx.post(f"{urls[0]}/v1/sessions/s/events", json=ALICE).status_code == 201
        assert len(httpx.get(f"{urls[1]}/v1/sessions/s/events").json()["events"]) == 1
    finally:
        assert [replica.stop() for replica in replicas] == [0, 0]
    for replica in replicas:
        assert "Traceback" not in replica.log
        assert '"level": "error"' not in replica.log


def test_a_release_stays_ready_when_the_next_one_has_migrated_and_can_be_started_again(database_url):
    with service(database_url=database_url) as running:
        asyncio.run(set_revision(database_url, "9999"))
        assert httpx.get(f"{running.url()}/readyz").status_code == 200
        assert httpx.post(f"{running.url()}/v1/sessions/s/events", json=ALICE).status_code == 201
    with service(database_url=database_url) as again:
        assert httpx.get(f"{again.url()}/readyz").status_code == 200
        assert len(httpx.get(f"{again.url()}/v1/sessions/s/events").json()["events"]) == 1
    assert "database_is_newer" in again.log
    assert "database_is_newer" not in running.log


def test_a_database_of_something_else_is_refused_with_a_sentence(database_url, capsys):
    asyncio.run(set_revision(database_url, "3f2a"))
    assert "none of Turnkeeper's" in refused(capsys, database_url=database_url)
