"""Real input: three conversations of the LoCoMo benchmark, imported twice, then read over HTTP."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.service.process import service

DATA = Path(__file__).parents[3] / "shared" / "data" / "locomo"
FILES = sorted(DATA.glob("*.json"))
COMMAND = [sys.executable, "-c", "from app.cli import main; main()", "import"]

pytestmark = pytest.mark.skipif(not FILES, reason="the LoCoMo conversations are not beside this checkout")


@pytest.fixture(scope="module")
def http(shared_database_url):
    environment = {**os.environ, "TURNKEEPER_DATABASE_URL": shared_database_url}
    runs = [
        subprocess.run([*COMMAND, *FILES], env=environment, capture_output=True, text=True, timeout=120, check=True)
        for _ in range(2)
    ]
    assert "78 sessions, 1,729 events added, 0 already there, 0 bad records" in runs[0].stderr
    assert "78 sessions, 0 events added, 1,729 already there, 0 bad records" in runs[1].stderr
    with service(database_url=shared_database_url) as running, httpx.Client(base_url=running.url()) as client:
        yield client


def sessions(http):
    return http.get("/v1/sessions", params={"limit": 500}).json()["items"]


def test_a_window_of_20_starts_a_turn_in_every_session(http):
    opened_by_the_other = 0
    for session in sessions(http):
        path = f"/v1/sessions/{session['id']}/events"
        log = http.get(path).json()["events"]
        window = http.get(path, params={"last_n": 20}).json()["events"]
        assert window == log[len(log) - len(window) :]
        assert len(window) >= min(20, len(log))
        if window[0]["type"] != "user":
            assert window == log or not any(event["type"] == "user" for event in log[: len(log) - len(window) + 1])
            opened_by_the_other += log[0]["type"] != "user"
    assert len(sessions(http)) == 78
    assert opened_by_the_other <= 16


def test_every_message_is_found_again_by_words_from_it(http):
    for session in sessions(http):
        for event in http.get(f"/v1/sessions/{session['id']}/events").json()["events"]:
            words = re.findall(r"\S+", event["text"])
            phrase = " ".join(words[:4]) if len(words) > 1 else event["text"]
            if phrase not in event["text"]:
                phrase = max(words, key=len)
            body = {"query": phrase.swapcase(), "page_size": 100}
            found = http.post(f"/v1/sessions/{session['id']}/search", json=body).json()["results"]
            assert event["id"] in [result["event_id"] for result in found], phrase


def test_a_search_across_sessions_finds_what_was_said_months_apart_in_order(http):
    body = {"query": "adoption", "types": ["user"], "page_size": 100}
    found = http.post("/v1/users/locomo-26/search", json=body).json()["results"]
    instants = [result["timestamp"] for result in found]
    assert instants == sorted(instants)
    assert instants[0][:7] < "2023-06"
    assert instants[-1][:7] > "2023-09"
    assert len({result["session_id"] for result in found}) > 3
    call = {"innerThought": "What became of the adoption?", "query": "adoption, adopt", "since": instants[1]}
    answer = http.post("/v1/users/locomo-26/tools/cross_session_search", json=call).json()
    results = json.loads(answer["content"])
    assert not answer["is_error"]
    assert len(results) == 10
    assert [result["timestamp"] for result in results] == sorted(result["timestamp"] for result in results)
