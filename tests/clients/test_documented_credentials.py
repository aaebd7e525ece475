"""What docs/credentials.md has an operator type: a key, and a token made with it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import httpx

from tests.service.process import service

PAGE = Path(__file__).parents[2] / "docs" / "credentials.md"
SECRET = token_hex(32)
TURNKEEPER = f"'{sys.executable}' -c 'from app.cli import main; main()'"


def test_a_key_is_made_and_with_it_a_token(shared_database_url):
    [commands] = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    with service(database_url=shared_database_url, api_keys="another", token_secret=SECRET) as running:
        typed = commands.replace("./run", TURNKEEPER).replace("http://127.0.0.1:8088", running.url())
        environment = {**os.environ, "TURNKEEPER_DATABASE_URL": shared_database_url}
        answer = subprocess.run(
            ["sh", "-ec", typed], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        token = json.loads(answer.stdout)["token"]
        with httpx.Client(base_url=running.url(), headers={"Authorization": f"Bearer {token}"}) as alice:
            assert alice.get("/v1/sessions", params={"user_id": "alice"}).status_code == 200
            assert alice.get("/v1/sessions", params={"user_id": "bob"}).status_code == 403
            assert alice.get("/v1/memories/alice/files").status_code == 403, "beyond its scopes"
