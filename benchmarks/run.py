"""Measure the service against its floor, in one run on throw-away data: `uv run python -m benchmarks.run`."""

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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import asyncpg
import psutil

from app.domain.compaction import Plan
from app.storage import compactions, sessions
from app.storage.database import Database
from app.storage.embedded import EmbeddedPostgres
from benchmarks import chat, data, servers
from benchmarks.client import Load, get, load, post
from benchmarks.data import Session
from benchmarks.floor import TABLES

CLIENTS = 16
MESSAGE = {"role": "user", "content": "We decided to keep the log in PostgreSQL, and to measure before we praise it."}


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    measured: str
    target: str
    is_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured: how many events the user has that is searched, and how long each load lasts."""

    searched: int
    rounds: int
    seconds: float

    @property
    def all(self) -> int:
        return 10 * self.searched


FULL = Sizes(searched=100_000, rounds=5, seconds=1.5)
QUICK = Sizes(searched=10_000, rounds=3, seconds=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, shorter rounds")
    sizes = QUICK if parser.parse_args().quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-bench-"))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, {sizes.all:,} events.\n")
    print("| | measured | target | |\n|---|---|---|---|")
    try:
        for result in _results(folder, sizes):
            print(f"| {result.name} | {result.measured} | {result.target} | {'ok' if result.is_met else 'missed'} |")
            sys.stdout.flush()
    finally:
        shutil.rmtree(folder)


def _results(folder: Path, sizes: Sizes) -> Iterator[Result]:
    with EmbeddedPostgres.start(folder / "postgres") as postgres:
        postgres.ensure_database("turnkeeper")
        url = postgres.database_url("turnkeeper")
        dsn = f"postgresql://postgres@/turnkeeper?host={postgres.socket_dir}"
        asyncio.run(_prepare(url, dsn, sizes))
        with ExitStack() as running:
            llm = running.enter_context(servers.upstream(folder))
            own = {"upstream_url": f"http://127.0.0.1:{llm.port}/v1", "upstream_model": "none"}
            service = running.enter_context(servers.service(folder, database_url=url, **own))
            floor = running.enter_context(servers.floor(folder, dsn))
            run = _Run(service.port, floor.port, llm.port, sizes)
            yield from run.appends()
            yield from run.chats()
            yield from run.windows()
            yield from run.searches()
            megabytes = psutil.Process(service.pid).memory_info().rss / 2**20
            yield Result("memory of the worker after all this", f"{megabytes:.0f} MB", "<= 300 MB", megabytes <= 300)
        yield _import(folder, url, sizes)
        yield asyncio.run(_archive(url, sizes))
    yield _start(folder)


async def _prepare(url: str, dsn: str, sizes: Sizes) -> None:
    db = Database(url, pool_size=2, pool_timeout=5, statement_timeout_ms=60_000)
    await db.migrate()
    await db.close()
    searched = [Session("long", "alice", sizes.searched // 10)]
    searched += [Session(f"alice-{n}", "alice", sizes.searched // 100) for n in range(90)]
    others = [Session(f"other-{n}", f"user-{n % 1_000}", 50) for n in range(9 * sizes.searched // 50)]
    read = [Session("windows-100", "bob", 100), Session("windows-all", "bob", sizes.all)]
    archived = [Session("archive-short", "carol", 6_000), Session("archive-long", "carol", sizes.searched)]
    written = [Session(f"append-{n}", "dave", 0) for n in range(CLIENTS)]
    connection = await asyncpg.connect(dsn)
    await data.fill(connection, searched + others, silent=read + archived + written)
    await connection.execute(TABLES)
    await connection.close()


@dataclass(frozen=True, slots=True)
class _Run:
    service: int
    floor: int
    llm: int
    sizes: Sizes

    def appends(self) -> Iterator[Result]:
        body = {"events": [{"message": MESSAGE}]}
        for count in (1, CLIENTS):
            ours = [[post(f"/v1/sessions/append-{n}/events", body)] for n in range(count)]
            bare = [[post(f"/append/append-{n}", MESSAGE)] for n in range(count)]
            service, floor = self._alternate((self.service, ours), (self.floor, bare))
            name = f"append of one event, {count} client{'s' if count > 1 else ''}"
            yield _rate_of_floor(name, service, floor)

    def chats(self) -> Iterator[Result]:
        append = [[post("/v1/sessions/append-0/events", {"events": [{"message": MESSAGE}]})]]
        turns = [chat.turns("turn")]
        turn, bare, appended = self._alternate((self.service, turns), (self.llm, turns), (self.service, append))
        own = Load(rate=turn.rate, p50=turn.p50 - bare.p50)
        yield _ratio("chat turn without the upstream's time", own, appended, what="an append", at_most=3)
        late = chat.first_chunks(self.service, seconds=self.sizes.rounds * self.sizes.seconds)
        yield Result("first streamed byte after the upstream's, p50", f"{late:.2f} ms", "<= 2 ms", late <= 2)

    def windows(self) -> Iterator[Result]:
        newest, short = (
            get("/v1/sessions/windows-all/events?last_n=20"),
            get("/v1/sessions/windows-100/events?last_n=20"),
        )
        service, brief, floor = self._alternate(
            (self.service, [[newest]]), (self.service, [[short]]), (self.floor, [[get("/newest/windows-all")]])
        )
        yield _rate_of_floor("newest 20, turn-whole", service, floor)
        yield _ratio(f"newest 20 of {self.sizes.all:,} events", service, brief, what="of 100", at_most=1.2)
        plain = get("/v1/sessions/windows-all/events?last_n=100&exclude_archived=true")
        context = get("/v1/sessions/windows-all/context?last_n=100&max_tokens=1000000")
        window, prompt = self._alternate((self.service, [[plain]]), (self.service, [[context]]))
        yield _ratio("context of 50 turns", prompt, window, what="the plain window", at_most=1.5)

    def searches(self) -> Iterator[Result]:
        words = {"rare": data.RARE, "absent": data.ABSENT, "common": data.COMMON}
        for path, scope, most in (
            ("/v1/users/alice/search", f"one user's {self.sizes.searched:,}", 10),
            ("/v1/sessions/long/search", f"a session of {self.sizes.searched // 10:,}", 8),
        ):
            loads = [(self.service, [[post(path, {"query": word})]]) for word in words.values()]
            for word, found in zip(words, self._alternate(*loads), strict=True):
                yield _milliseconds(f"{word} word in {scope} of {self.sizes.all:,}", found, most)
        far = self.sizes.searched // 1_000
        pages = [post("/v1/users/alice/search", {"query": data.COMMON, "page": page}) for page in (0, far)]
        first, later = self._alternate(*((self.service, [[page]]) for page in pages))
        yield _ratio(f"page {far} of a common word across sessions", later, first, what="page 0", at_most=5)

    def _alternate(self, *loads: tuple[int, Sequence[Sequence[bytes]]]) -> list[Load]:
        """The medians of rounds in which each load has its turn."""
        for port, clients in loads:
            load(port, clients, seconds=0.5)
        rounds = [
            [load(port, clients, seconds=self.sizes.seconds) for port, clients in loads]
            for _ in range(self.sizes.rounds)
        ]
        return [Load(median(x.rate for x in of), median(x.p50 for x in of)) for of in zip(*rounds, strict=True)]


def _import(folder: Path, url: str, sizes: Sizes) -> Result:
    source = folder / "imported.jsonl"
    with source.open("w") as file:
        for number in range(sizes.searched // 5):
            role = "assistant" if number % 2 else "user"
            text = f"{number}: {MESSAGE['content']} " * (1 + number % 4)
            file.write(json.dumps({"role": role, "content": text}) + "\n")
    done = subprocess.run(
        [servers.TURNKEEPER, "import", str(source), "--user", "erin"],
        env={**os.environ, "TURNKEEPER_DATABASE_URL": url},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    rate = float(re.findall(r"([\d,]+) events/s", done.stderr)[-1].replace(",", ""))
    return Result("import", f"{rate:,.0f} events/s", ">= 3,000 events/s", rate >= 3_000)


async def _archive(url: str, sizes: Sizes) -> Result:
    """As compaction does it, without a summary: the oldest 1,000 that are active, five times."""
    db = Database(url, pool_size=2, pool_timeout=5, statement_timeout_ms=60_000)
    times: dict[str, list[float]] = {"archive-short": [], "archive-long": []}
    for generation in range(5):
        archived = Plan(archive=tuple(1024 * (generation * 1_000 + n) for n in range(1, 1_001)), kept=0)
        for name, taken in times.items():
            async with db.transaction() as connection:
                session = await sessions.get(connection, name)
                started = time.perf_counter()
                await compactions.apply(connection, session.key, archived, generation=generation)
            taken.append((time.perf_counter() - started) * 1000)
    await db.close()
    short, long = (median(taken) for taken in times.values())
    measured = f"{long:.1f} ms ({short:.1f} ms of 6,000)"
    return Result(f"archiving 1,000 of {sizes.searched:,} events", measured, "<= 50 ms", long <= 50)


def _start(folder: Path) -> Result:
    data_dir = str(folder / "own")
    with servers.service(folder, data_dir=data_dir):
        pass
    times = []
    for _ in range(3):
        with servers.service(folder, data_dir=data_dir) as service:
            times.append(service.seconds_to_start)
    seconds = median(times)
    return Result("start to /readyz, embedded database", f"{seconds:.1f} s", "<= 2 s", seconds <= 2)


def _rate_of_floor(name: str, ours: Load, floor: Load) -> Result:
    ratio = ours.rate / floor.rate
    measured = f"{ratio:.2f} ({ours.rate:,.0f}/s of {floor.rate:,.0f}/s)"
    return Result(name, measured, ">= 0.6 of the floor", ratio >= 0.6)


def _ratio(name: str, ours: Load, than: Load, *, what: str, at_most: float) -> Result:
    ratio = ours.p50 / than.p50
    measured = f"{ratio:.2f} ({ours.p50:.2f} ms to {than.p50:.2f} ms)"
    return Result(f"{name}, p50", measured, f"<= {at_most:g} x {what}", ratio <= at_most)


def _milliseconds(name: str, ours: Load, at_most: float) -> Result:
    return Result(f"{name}, p50", f"{ours.p50:.1f} ms", f"<= {at_most} ms", ours.p50 <= at_most)


if __name__ == "__main__":
    main()
