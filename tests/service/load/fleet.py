"""Replicas of the service on one database, killed and started again while clients use them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from app.storage.embedded import EmbeddedPostgres
from app.storage.embedded_host import run_tool
from tests.service.process import Service

# So long after PostgreSQL is back, a replica may still find connections that broke.
_AFTERMATH_SECONDS = 10


@dataclass
class Fleet:
    """What runs. `urls` are where the replicas listen; one that was ended keeps its URL until another is there."""

    settings: dict[str, Any]
    services: list[Service] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    # When a replica was ended, by its URL, and when PostgreSQL was away, from and to.
    ended: dict[str, float] = field(default_factory=dict)
    outages: list[tuple[float, float]] = field(default_factory=list)
    # Resident bytes of each replica, second by second of its life.
    memory: dict[str, list[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    async def kill(self, place: int) -> None:
        """SIGKILL."""
        self.ended[self.urls[place]] = time.monotonic()
        await asyncio.to_thread(self.services[place].kill)
        self._inspect(self.services[place])

    async def stop(self, place: int) -> None:
        """SIGTERM."""
        self.ended[self.urls[place]] = time.monotonic()
        if code := await asyncio.to_thread(self.services[place].stop):
            self.faults.append(f"A replica that was stopped ended with {code}.")
        self._inspect(self.services[place])

    async def start(self, place: int) -> None:
        """Another one where one was ended."""
        self.services[place], self.urls[place] = await self._started()

    async def restart(self, postgres: EmbeddedPostgres, mode: str) -> None:
        """PostgreSQL, as `pg_ctl restart` does it: `fast` or `immediate`."""
        began = time.monotonic()
        # Else whatever it writes would go down the pipe that its starter reads to the end.
        options = ["-w", "-m", mode, "-D", postgres._cluster, "-l", "/dev/null"]
        done = await asyncio.to_thread(run_tool, postgres._bin / "pg_ctl", "restart", *options)
        self.outages.append((began, time.monotonic()))
        assert done.returncode == 0, done.stdout
        _reap(postgres.pid)

    def is_down(self, url: str, at: float) -> bool:
        """Whether a connection to this replica may have been broken by then."""
        return self.ended.get(url, at + 1) <= at

    def is_without_database(self, began: float, ended: float) -> bool:
        """Whether the database was away in between, or just before."""
        return any(began < last + _AFTERMATH_SECONDS and first < ended for first, last in self.outages)

    def take_memory(self) -> None:
        for url, service in zip(self.urls, self.services, strict=True):
            if url not in self.ended:
                self.memory.setdefault(url, []).append(service.memory)

    async def open(self, replicas: int) -> None:
        for service, url in await asyncio.gather(*(self._started() for _ in range(replicas))):
            self.services.append(service)
            self.urls.append(url)

    def close(self) -> None:
        for service in self.services:
            if service.process.poll() is None:
                service.stop()
                self._inspect(service)

    async def _started(self) -> tuple[Service, str]:
        service = Service(**self.settings)
        return service, await asyncio.to_thread(service.url)

    def _inspect(self, service: Service) -> None:
        """Nothing may have crashed inwardly."""
        lines = [line for line in service.lines if '"exception"' in line or "Traceback" in line]
        self.faults += [f"A replica crashed inwardly: {line[:200]} … {line[-2500:]}" for line in lines]


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@asynccontextmanager
async def fleet(*, replicas: int = 2, **settings: Any) -> AsyncIterator[Fleet]:
    running = Fleet(settings)
    try:
        await running.open(replicas)
        yield running
    finally:
        running.close()
