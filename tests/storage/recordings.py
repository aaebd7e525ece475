"""What a release said to its database, as statements that can be said again: to newer schemas, on any day."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

FOLDER = Path(__file__).parent / "releases"

_PREPARABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE)\b", re.IGNORECASE)
# What the driver asks for itself, and how it leaves a connection behind.
_OF_THE_DRIVER = re.compile(
    r"pg_catalog|typeinfo|show standard_conforming|^\s*(SET|RESET|CLOSE|UNLISTEN)|;.*RESET ALL", re.DOTALL
)
_LOGGED = re.compile(r"(?:execute [^:]*|statement): (.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$\d+ = ('(?:[^']|'')*'|NULL)")
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\+00")
_NEAR = timedelta(days=400)


@dataclass(frozen=True)
class Recording:
    """Statements, and when which of them was said with which parameters over which connection."""

    revision: str
    begun: datetime
    statements: list[str]
    calls: list[tuple[int, int, list[str]]]  # connection, statement, parameters as SQL writes them

    @classmethod
    def of_log(cls, lines: list[str], *, revision: str, begun: datetime) -> "Recording":
        """From PostgreSQL's log in JSON, of a server that logs all statements."""
        known: dict[str, int] = {}
        connections: dict[int, int] = {}
        calls = []
        for pid, statement, parameters in _one_transaction_after_the_other(list(_said(lines))):
            place = known.setdefault(statement, len(known))
            calls.append((connections.setdefault(pid, len(connections)), place, parameters))
        return cls(revision, begun, list(known), calls)

    @classmethod
    def load(cls, file: Path) -> "Recording":
        stored = json.loads(file.read_text())
        return cls(**stored | {"begun": datetime.fromisoformat(stored["begun"])})

    def save(self) -> Path:
        file = FOLDER / f"{self.revision}.json"
        calls = ",\n  ".join(json.dumps(call, ensure_ascii=False) for call in self.calls)
        statements = ",\n  ".join(json.dumps(statement, ensure_ascii=False) for statement in self.statements)
        head = f'"revision": "{self.revision}",\n "begun": "{self.begun.isoformat()}"'
        file.write_text(f'{{{head},\n "statements": [\n  {statements}\n ],\n "calls": [\n  {calls}\n ]\n}}\n')
        return file

    def today(self, parameter: str) -> str:
        """A parameter with its instants moved as far as today is from the day of the recording."""

        def moved(found: re.Match[str]) -> str:
            instant = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
            if abs(instant - self.begun) > _NEAR:
                return found[0]
            return (instant + (datetime.now(UTC) - self.begun)).strftime("%Y-%m-%d %H:%M:%S.%f+00")

        return _INSTANT.sub(moved, parameter)


class Replay:
    """A recording that is said again, step by step; every statement stays prepared, as the service keeps them."""

    def __init__(self, recording: Recording, connect: Any) -> None:
        self._recording = recording
        self._connect = connect
        self._connections: dict[int, asyncpg.Connection] = {}
        self._prepared: set[tuple[int, int]] = set()
        self.outcomes: list[tuple[int, str]] = []

    async def say(self, calls: Iterator[tuple[int, int, list[str]]] | list[tuple[int, int, list[str]]]) -> None:
        """Raises asyncpg.PostgresError for what the schema does not take."""
        for number, place, parameters in calls:
            connection = await self._connection(number)
            self.outcomes.append((place, await self._one(connection, number, place, parameters)))

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    async def _connection(self, number: int) -> asyncpg.Connection:
        if number not in self._connections:
            self._connections[number] = await self._connect()
            await self._connections[number].execute("SET lock_timeout = '60s'")
        return self._connections[number]

    async def _one(self, connection: asyncpg.Connection, number: int, place: int, parameters: list[str]) -> str:
        statement = self._recording.statements[place]
        if not _PREPARABLE.match(statement):
            return await connection.execute(statement)
        if (number, place) not in self._prepared:
            await connection.execute(f"PREPARE said_{place} AS {statement}")
            self._prepared.add((number, place))
        values = ", ".join(self._recording.today(parameter) for parameter in parameters)
        return await connection.execute(f"EXECUTE said_{place}{f'({values})' if values else ''}")


def _said(lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    for line in lines:
        entry = json.loads(line)
        found = _LOGGED.fullmatch(entry["message"])
        if found is None or entry.get("application_name") != "turnkeeper" or _OF_THE_DRIVER.search(found[1]):
            continue
        if entry["message"].startswith("execute fetch from"):  # More rows of a statement that was logged before.
            continue
        yield entry["pid"], found[1].strip(), _PARAMETER.findall(entry.get("detail", ""))


def _one_transaction_after_the_other(said: list[tuple[int, str, list[str]]]) -> Iterator[tuple[int, str, list[str]]]:
    """What waited for another's lock would wait for ever, where one call is made after the other."""
    while said:
        pid, statement, _ = said[0]
        if not statement.startswith("BEGIN"):
            yield said.pop(0)
            continue
        ends = (
            place for place, (by, what, _) in enumerate(said) if by == pid and what.startswith(("COMMIT", "ROLLBACK"))
        )
        length = next(ends) + 1
        yield from (call for call in said[:length] if call[0] == pid)
        said = [call for call in said[:length] if call[0] != pid] + said[length:]
