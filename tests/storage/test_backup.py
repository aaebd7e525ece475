"""A backup as docs/operating.md tells it: dumped, restored under another name, and served."""

import asyncio
import re
import subprocess
from pathlib import Path

from app.storage.embedded_host import find_binaries
from tests.conftest import serving

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
EVENTS = {"events": [{"message": {"role": "user", "content": "Kept: слово 記憶"}}]}


async def run(command, environment, folder):
    await asyncio.to_thread(subprocess.run, command, env=environment, cwd=folder, check=True, timeout=120)


async def test_what_was_dumped_can_be_restored_and_served(postgres, client, database_url, tmp_path):
    (await client.post("/v1/sessions/s/events", json={"user_id": "alice", **EVENTS})).raise_for_status()
    (await client.put("/v1/memories/alice/file?path=a.md", content="kept")).raise_for_status()
    commands = re.search(r"```\n(pg_dump .*?)```", PAGE, re.DOTALL)[1]
    name = re.search(r"/(test_\d+)\?", database_url)[1]
    environment = {
        "PATH": f"{find_binaries()}:/usr/bin:/bin",
        "PGHOST": str(postgres.socket_dir),
        "PGPORT": "5432",
        "PGUSER": "postgres",
        "DATABASE_URL": f"dbname={name}",
    }
    await run(["sh", "-ec", commands], environment, tmp_path)
    async with serving(postgres.database_url("turnkeeper_restored")) as restored:
        assert (await restored.get("/readyz")).status_code == 200
        for path in ("/v1/sessions/s/events", "/v1/memories/alice/file?path=a.md"):
            assert (await restored.get(path)).text == (await client.get(path)).text
        found = await restored.post("/v1/users/alice/search", json={"query": "слово"})
        assert len(found.json()["results"]) == 1, found.text
    await run(["dropdb", "turnkeeper_restored"], environment, tmp_path)
