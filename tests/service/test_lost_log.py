"""A service goes on when nobody takes its log any more: the disk of it is full, what read it has ended."""

import os
import re
import signal
import subprocess
import sys
import tempfile

import httpx
import pytest

from tests.service.process import _COMMAND

APPEND = {"user_id": "alice", "events": [{"message": {"role": "user", "content": "x"}}]}


@pytest.fixture
def unheard(database_url):
    """A service whose log had a reader until it listened; its URL and its process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    environment |= {"TURNKEEPER_DATABASE_URL": database_url}
    command = [*_COMMAND, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tempfile.gettempdir())
    try:
        url = next(found[1] for line in process.stderr if (found := re.search(r"listens on (http://\S+)", line)))
        process.stderr.close()
        yield url, process
    finally:
        process.kill()
        process.wait()


def test_requests_are_answered_and_the_service_stops_as_ever(unheard):
    url, process = unheard
    with httpx.Client(base_url=url, timeout=60) as http:
        for _ in range(10):
            assert http.post("/v1/sessions/s/events", json=APPEND).status_code == 201
        assert http.get("/nowhere").status_code == 404
        assert len(http.get("/v1/sessions/s/events").json()["events"]) == 10
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_a_command_does_its_work_while_the_disk_of_its_log_is_full(database_url):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-c", "from app.cli import main; main()", "migrate"]
        environment = os.environ | {"TURNKEEPER_DATABASE_URL": database_url}
        ended = subprocess.run(command, check=False, stderr=full, env=environment, cwd=tempfile.gettempdir())
    # Python's own last flush fails: that is all.
    assert ended.returncode in {0, 120}
