"""Measure the service against its floor, all in one run on throw-away data: `uv run python -m benchmarks.run`."""

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import asyncpg
import psutil

from app.domain.compaction import Plan
from app.storage import compactions
from app.storage.database import Database
from app.storage.embedded import EmbeddedPostgres
from benchmarks import data, floor, servers
from benchmarks.client import Load, get, load, post
from benchmarks.data import Session

MESSAGE = {"role": "user", "content": "We decided to keep the log in PostgreSQL, and to measure it before we praise it."}
BODY = {"events": [{"message": MESSAGE}]}


class Benchmarks:
    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.scale = 10 if quick else 1
        self.rounds, self.seconds = (3, 1.0) if quick else (5, 1.5)

    def run(self) -> None:
        with EmbeddedPostgres.start(self.folder / "data") as postgres:
            postgres.ensure_database("turnkeeper")
            asyncio.run(self.prepare(postgres))
            with (
                servers.service(self.folder, database_url=postgres.database_url("turnkeeper")) as service,
                servers.floor(self.folder, postgres.socket_dir) as bare,
            ):
                self.service, self.floor = service, bare
                ...
