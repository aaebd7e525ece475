"""examples/session_log.py: what all adapters share."""

import httpx
import pytest
from session_log import Turnkeeper, TurnkeeperError

from tests.clients.conftest import KEY


@pytest.mark.parametrize(
    ("below", "key", "status", "sentence"),
    [("", "wrong", 401, "key"), ("", None, 401, "key"), ("/elsewhere", KEY, 404, "There is no /elsewhere/v1")],
)
def test_the_service_says_why_not(memory, session, below, key, status, sentence):
    with Turnkeeper(memory.url.removesuffix("/v1") + below, key) as stranger:
        with pytest.raises(TurnkeeperError, match=sentence) as caught:
            stranger.events(session)
    assert caught.value.status == status


def test_what_is_not_the_service_is_named(script, session):
    with Turnkeeper(script.url.removesuffix("/v1")) as other:
        with pytest.raises(TurnkeeperError, match=f"/v1/sessions/{session}/events/query answers 404 Not Found"):
            other.events(session)


def test_a_service_that_is_away_is_an_error_of_the_connection(session):
    with Turnkeeper("http://127.0.0.1:9") as away, pytest.raises(httpx.ConnectError):
        away.events(session)


def test_a_busy_service_is_asked_again(lossy, session):
    lossy.busy = True
    lossy.turnkeeper.append(session, "ada", [{"id": "e1", "message": {"role": "user", "content": "Hi."}}])
    lossy.losses = 3
    with pytest.raises(TurnkeeperError, match="answers 503 Service Unavailable") as caught:
        lossy.turnkeeper.append(session, "ada", [{"id": "e2", "message": {"role": "user", "content": "Hi."}}])
    assert caught.value.status == 503


def test_more_than_a_batch_is_appended_in_order(turnkeeper, session):
    events = [{"id": f"e{n}", "message": {"role": "user", "content": str(n)}} for n in range(1001)]
    turnkeeper.append(session, "ada", events)
    assert [event["text"] for event in turnkeeper.events(session)] == [str(n) for n in range(1001)]


def test_ids_with_odd_characters_are_paths(turnkeeper):
    odd = "a b?c#d%2F:é"
    turnkeeper.append(odd, "ada", [{"message": {"role": "user", "content": "Hi."}}])
    assert turnkeeper.call("GET", "sessions", odd).json()["id"] == odd
