"""`turnkeeper keys`: keys that are made and revoked while the service runs."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

import httpx
import pytest

from tests.service.process import Service, service
from tests.service.refusals import refused

_COMMAND = [sys.executable, "-c", "from app.cli import main; main()", "keys"]
_REVOKED_WITHIN = 11


def keys(url, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    return subprocess.run(
        [*_COMMAND, *arguments],
        env=environment | {"TURNKEEPER_DATABASE_URL": url},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def made(url, name):
    """A new key: its id and itself."""
    done = keys(url, "create", name)
    assert done.returncode == 0, done.stderr
    return re.search(r"Key (\S+)", done.stderr)[1], done.stdout.strip()


def status(running, key, path="/v1/sessions"):
    return httpx.get(running.url() + path, headers={"Authorization": f"Bearer {key}"}, timeout=30).status_code


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_key_is_made_used_listed_and_revoked_while_the_service_runs(database_url):
    with service(database_url=database_url, api_keys="the-set-key") as running:
        key_id, key = made(database_url, "importer [bold]")
        other_id, other = made(database_url, "other")
        assert re.fullmatch(r"tk_[\w-]{43}", key)
        assert status(running, key) == 200, "a key works as soon as it is made"
        assert status(running, other) == status(running, "the-set-key") == 200
        assert status(running, key + "x") == status(running, "tk_" + "x" * 43) == 401
        listed = keys(database_url, "list").stdout
        assert "importer [bold]" in listed
        assert key[:9] in listed
        assert key not in listed
        assert key[9:] not in listed
        used = next(line for line in listed.splitlines() if key_id in line)
        assert used.count(" UTC") == 2, "created and last used"
        assert keys(database_url, "revoke", key_id).returncode == 0
        wait_until(lambda: status(running, key) == 401, _REVOKED_WITHIN)
        assert status(running, other) == 200
        again = keys(database_url, "revoke", key_id)
        assert (again.returncode, "There is no key" in again.stderr) == (2, True)
        # Revoking the last one that was made closes, and does not open.
        assert keys(database_url, "revoke", other_id).returncode == 0
        wait_until(lambda: status(running, other) == 401, _REVOKED_WITHIN)
        assert keys(database_url, "list").stdout.count(" UTC") == 6
        for secret in (key, other, "the-set-key"):
            assert secret not in running.log


def test_a_service_without_keys_closes_once_one_is_made_and_stays_closed(database_url):
    with service(database_url=database_url) as running:
        assert httpx.get(f"{running.url()}/v1/sessions").status_code == 200
        key_id, key = made(database_url, "first")
        wait_until(lambda: httpx.get(f"{running.url()}/v1/sessions").status_code == 401, _REVOKED_WITHIN)
        assert status(running, key) == 200
        assert keys(database_url, "revoke", key_id).returncode == 0
        wait_until(lambda: status(running, key) == 401, _REVOKED_WITHIN)
        assert httpx.get(f"{running.url()}/v1/sessions").status_code == 401


@pytest.mark.parametrize("with_key", [False, True])
def test_beyond_this_machine_a_key_is_needed_set_or_made(database_url, with_key):
    if with_key:
        _, key = made(database_url, "public")
    running = Service("--host", "0.0.0.0", "--port", "0", database_url=database_url)  # noqa: S104
    if not with_key:
        assert running.wait() == 1
        assert "Without a service key only this machine may be served" in running.log
        assert "Traceback" not in running.log
        return
    try:
        url = running.url().replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        assert httpx.get(f"{url}/v1/sessions").status_code == 401
        assert httpx.get(f"{url}/v1/sessions", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        ("short", "at least 32 bytes"),
        ("x" * 40 + ",short", "at least 32 bytes"),
        (",".join(["x" * 40] * 3), "One or two"),
    ],
)
def test_a_secret_that_is_easy_to_guess_stops_the_start(capsys, secret, reason):
    told = refused(capsys, token_secret=secret)
    assert "TURNKEEPER_TOKEN_SECRET" in told
    assert reason in told
    assert "x" * 40 not in told


def test_tokens_and_secrets_are_in_no_log_and_no_error(database_url):
    secret = "quite-a-secret-" + "0123456789" * 3
    with service(database_url=database_url, api_keys="the-set-key", token_secret=secret) as running:
        service_key = {"Authorization": "Bearer the-set-key"}
        body = {"user_id": "alice", "scopes": ["read"]}
        token = httpx.post(f"{running.url()}/v1/tokens", json=body, headers=service_key).json()["token"]
        answers = [
            httpx.get(f"{running.url()}{path}", headers={"Authorization": f"Bearer {given}"}).text
            for path in ("/v1/sessions", "/v1/sessions?user_id=alice", "/v1/users/bob/export", "/v1/nothing")
            for given in (token, token[:-1], "the-set-ke")
        ]
        for hidden in (secret, token, "the-set-key"):
            assert hidden not in running.log
            assert hidden not in json.dumps(answers)
