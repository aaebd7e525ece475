"""Records what this release says to its database, before the next one adds a migration: `make recording`."""

import asyncio
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from app.storage import migrations
from app.storage.embedded import EmbeddedPostgres
from tests.conftest import database_at
from tests.storage.recordings import Recording
from tests.storage.traffic import converse

_LOG_EVERYTHING = {
    "logging_collector": "on",
    "log_destination": "jsonlog",
    "log_filename": "said.log",
    "log_statement": "all",
    "log_error_verbosity": "default",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with EmbeddedPostgres.start(folder, parameters=_LOG_EVERYTHING) as server:
            server.ensure_database("recorded")
            recording = asyncio.run(_record(server))
    finally:
        shutil.rmtree(folder)
    print(f"{recording.save()}: {len(recording.calls)} calls of {len(recording.statements)} statements")  # noqa: T201


async def _record(server: EmbeddedPostgres) -> Recording:
    url = server.database_url("recorded")
    db = database_at(url)
    await db.migrate()
    await db.close()
    log = server._cluster / "log" / "said.json"
    before = len(log.read_text().splitlines())
    begun = datetime.now(UTC)
    await converse(url)
    await asyncio.sleep(1)  # The server's collector writes a moment later.
    lines = log.read_text().splitlines()[before:]
    return Recording.of_log(lines, revision=migrations._known()[-1], begun=begun)


if __name__ == "__main__":
    main()
