"""Fifty clients do everything at once on two replicas that are killed, on a PostgreSQL that is restarted.

No acknowledged write is lost, no prompt is invalid, no error is undocumented; in ten minutes memory stays flat.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from statistics import median

import asyncpg
import pytest

from app.api.problems import PROBLEMS
from app.storage.embedded import EmbeddedPostgres
from tests.service.consistency import LEFT_OVER, WRONG_COUNTERS
from tests.service.load.clients import Load
from tests.service.load.fleet import Fleet, fleet
from tests.service.load.model import Model
from tests.service.load.round_robin import RoundRobin, round_robin
from tests.service.load.sessions import Session
from tests.upstream import Script, scripted_upstream

CLIENTS = 50
SHOWN = 8
NDJSON = {"Accept": "application/x-ndjson"}
MARGIN = 32 * 1024 * 1024

# What clients that behave may see while replicas die and the model fails: all of it is in docs/failures.md.
EXPECTED = {
    "database-unavailable",
    "overloaded",
    "service-stopping",
    "session-busy",
    "upstream-failed",
    "upstream-refused",
    # Held against what was acknowledged where they come: of a session before its first event, of a repeated edit.
    "session-not-found",
    "version-mismatch",
}


@dataclass(frozen=True)
class Plan:
    """What happens under load; each event so many seconds after the one before, or later when that takes longer."""

    pause: float
    events: tuple[str, ...]
    lease_seconds: float
    # Between two actions of a client, on average.
    think_seconds: float
    measures_memory: bool = False


SHORT = Plan(4, ("load", "kill 0", "start 0", "restart immediate", "stop 1"), lease_seconds=4, think_seconds=1.5)
# From the second kill on one replica lives: what it takes then is measured.
_TWO_KILLS = ("stop 0", "start 0", "kill 0", "start 0")
LONG = Plan(
    15,
    (
        *("load", "kill 0", "start 0", "kill 1", "start 1"),
        *_TWO_KILLS * 2,
        "restart fast",
        *_TWO_KILLS * 3,
        "restart immediate",
        *_TWO_KILLS * 3,
    ),
    lease_seconds=10,
    think_seconds=1,
    measures_memory=True,
)


@pytest.mark.parametrize("plan", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "long"])
async def test_nothing_acknowledged_is_lost_under_mixed_load(folder, plan):
    with scripted_upstream() as script, EmbeddedPostgres.start(folder) as postgres:
        postgres.ensure_database("turnkeeper")
        model = script.behaviour = Model(seed=7)
        settings = {
            "database_url": postgres.database_url("turnkeeper"),
            "upstream_url": script.url,
            "chat_lease_seconds": plan.lease_seconds,
            "chat_busy_timeout_seconds": 15,
            "shutdown_grace_seconds": 2,
            "sweep_interval_seconds": 1,
        }
        async with fleet(**settings) as running, round_robin(running.urls) as client:
            load = Load(client, model, seed=7, pause=plan.think_seconds)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.run(CLIENTS))
                watching = asyncio.create_task(watch(running, script))
                await carry_out(plan, running, postgres)
                load.is_over = True
            watching.cancel()
            faults = [*load.faults, *model.faults, *await faults_in_the_end(load, running)]
    sys.stdout.write(figures(load, running))
    faults += [*running.faults, *faults_of_answers(client, running)]
    if plan.measures_memory:
        faults += faults_of_memory(running)
    assert not faults, "\n\n".join([f"{len(faults)} faults.", *faults[:SHOWN]])
    assert_it_was_a_load(load)


async def carry_out(plan: Plan, running: Fleet, postgres: EmbeddedPostgres) -> None:
    for event in plan.events:
        pause = asyncio.create_task(asyncio.sleep(plan.pause))
        match event.split():
            case ["load"]:
                pass
            case ["kill", place]:
                await running.kill(int(place))
            case ["stop", place]:
                await running.stop(int(place))
            case ["start", place]:
                await running.start(int(place))
            case ["restart", mode]:
                await running.restart(postgres, mode)
        await pause


async def watch(running: Fleet, script: Script) -> None:
    """Take the memory of the replicas; and keep what the upstream was asked from filling ours."""
    while True:
        await asyncio.sleep(1)
        running.take_memory()
        script.requests.clear()
        script.headers.clear()


async def faults_in_the_end(load: Load, running: Fleet) -> list[str]:
    faults = await faults_of_rows(running)
    for session in load.sessions:
        faults += [f"{session.id}: {fault}" for fault in await faults_of_session(session, load.client)]
    for kept in (*load.files, *load.lines.values()):
        faults += await kept.faults(load.client)
    return faults


async def faults_of_session(session: Session, client: RoundRobin) -> list[str]:
    answer = await client.insist("GET", f"/v1/sessions/{session.id}/events", headers=NDJSON)
    if session.is_deleted:
        return [] if answer.status_code == 404 else ["It was deleted, and is there."]
    if answer.status_code == 200:
        session.log = [json.loads(line) for line in answer.text.splitlines()]
    return [*session.faults_of_log()]


async def faults_of_rows(running: Fleet) -> list[str]:
    connection = await asyncpg.connect(str(running.settings["database_url"]).replace("+asyncpg", ""))
    try:
        wrong = [f"The counters of {row['id']} are wrong." for row in await connection.fetch(WRONG_COUNTERS)]
        async with asyncio.timeout(20):
            while await connection.fetchval(LEFT_OVER):  # noqa: ASYNC110  # The sweepers are other processes.
                await asyncio.sleep(0.1)
    finally:
        await connection.close()
    return wrong


def faults_of_answers(client: RoundRobin, running: Fleet) -> list[str]:
    """Every error is documented and was to be expected; connections broke because replicas were ended."""
    documented = {slug for _, slug in PROBLEMS.values()}
    slugs = {slug.replace("_", "-") for _, slug in client.seen if slug}
    faults = [f"Undocumented: {slug}." for slug in slugs - documented]
    faults += [f"Nobody has to see {slug}: {dict(client.seen)}." for slug in slugs - EXPECTED]
    for broken in client.broken:
        away = running.is_without_database(broken.began, broken.ended)
        if not running.is_down(broken.url, broken.ended) and not away:
            faults.append(f"{broken.what} broke off at a replica that lived: {broken.error!r}")
    for began, ended in client.without_database:
        if not running.is_without_database(began, ended):
            faults.append(f"The database was said to be away {began:.1f}, while it was there: {running.outages}.")
    return faults


def faults_of_memory(running: Fleet) -> list[str]:
    """Of the replica that lived longest: its last third takes no more than its first one, after a minute."""
    samples = max(running.memory.values(), key=len)[60:]
    first, _, last = map(median, in_thirds(samples))
    return [f"Memory grew from {first:,.0f} to {last:,.0f} bytes."] if last - first > MARGIN else []


def figures(load: Load, running: Fleet) -> str:
    stored = sum(line.fate == "stored" for session in load.sessions for line in session.lines.values())
    memory = max(running.memory.values(), key=len, default=[0])
    thirds = [f"{median(part) / 1e6:.0f} MB" for part in in_thirds(memory) if part]
    away = [f"{last - first:.1f} s" for first, last in running.outages]
    lines = (
        f"{len(load.sessions)} sessions, {stored} acknowledged events, actions: {dict(load.done)}",
        f"answers: {dict(load.client.seen)}; {len(load.client.broken)} broken connections",
        f"prompts: {dict(load.model.prompts)}; {len(running.ended)} replicas ended; PostgreSQL away: {away}",
        f"memory of the replica that lived longest, {len(memory)} s, in thirds: {thirds}",
    )
    return "\n".join(lines)


def in_thirds(samples: list[int]) -> list[list[int]]:
    size = len(samples) // 3
    return [samples[:size], samples[size : 2 * size], samples[2 * size :]]


def assert_it_was_a_load(load: Load) -> None:
    assert sum(load.done.values()) > 10 * CLIENTS
    assert load.done.keys() >= {"append", "chat", "read_context", "search", "edit", "add_line"}
    assert load.client.broken, "replicas were ended while they were used"
    assert any(slug == "database-unavailable" for _, slug in load.client.seen), "the database was away"
