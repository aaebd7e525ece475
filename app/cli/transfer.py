"""`turnkeeper import` and `turnkeeper export`."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from app.cli.database import open_database
from app.config import Settings, load_settings
from app.domain import ids, json_values, tokens
from app.domain.errors import DatabaseUnavailable, DomainError
from app.domain.exports import ExportRecord, SessionRecord, line_of
from app.domain.sessions import Lifetime
from app.importing.formats import HEAD_LENGTH, PARSERS, Format, detect
from app.importing.records import BadRecord, Origin, Record
from app.services.importing import Tally, import_records
from app.storage import transfer
from app.storage.database import Database

FAILED = 1
SOME_BAD = 2

# How often the progress bar moves, in records.
_PROGRESS_STEP = 100


def _checked(fault_of: Callable[[str], str | None]) -> Callable[[str | None], str | None]:
    def check(value: str | None) -> str | None:
        if value is not None and (fault := fault_of(value)):
            raise typer.BadParameter(fault)
        return value

    return check


_UserId = Annotated[
    str | None, typer.Option("--user", metavar="ID", help="Whose.", callback=_checked(ids.fault_of_user_id))
]


def import_files(
    files: Annotated[list[Path], typer.Argument(help="What to import.", metavar="FILE…", show_default=False)],
    user: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            callback=_checked(ids.fault_of_user_id),
            help="Whose conversations these are; without: the file's name tells.",
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            callback=_checked(ids.fault_of_id),
            help="Session of single messages, and what the ids of whole conversations begin with.",
        ),
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Format of the files; without: what they look like.")
    ] = None,
    ttl_seconds: Annotated[
        int | None, typer.Option(min=1, help="Lifetime of the new sessions; without: for ever.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what goes wrong.")] = False,
) -> None:
    """Import Turnkeeper's own export, OpenAI-format messages (JSONL), ChatGPT's conversations.json, LoCoMo.

    Ids are made from the source: importing a file again adds what is new in it and nothing else. What cannot be used
    is reported with its place, and the rest is imported.

    Exit code: 0; 2 when there were bad records; 1 when nothing could be imported or a file could not be read.
    """
    settings = load_settings()
    origin = Origin(
        stem="",
        count_tokens=tokens.counter(settings.tokens_per_part),
        user_id=user,
        session_id=session,
        lifetime=Lifetime(ttl_seconds=ttl_seconds),
    )
    command = _Import(format_=format_, origin=origin, quiet=quiet)
    with _explained():
        asyncio.run(command.run(settings, files))
    raise typer.Exit(command.exit_code)


def export(
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this user's.", callback=_checked(ids.fault_of_user_id))
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this session.", callback=_checked(ids.fault_of_id))
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; without: standard output.")
    ] = None,
) -> None:
    """Export sessions with their logs as NDJSON, which `turnkeeper import` reads back without loss."""

    async def run() -> tuple[int, int]:
        count_of_sessions = count = 0
        with _written(output) as target:
            async with open_database(load_settings()) as db:
                async for batch in transfer.export(db, user_id=user, session_id=session):
                    target.writelines(map(_line, batch))
                    count_of_sessions += sum(isinstance(record, SessionRecord) for record in batch)
                    count += len(batch)
        return count_of_sessions, count - count_of_sessions

    with _explained():
        sessions, events = asyncio.run(run())
    _say(f"Exported {sessions:,} sessions, {events:,} events.")
    if session is not None and not sessions:
        raise typer.Exit(FAILED)


class _Unreadable(Exception):
    """A file of which nothing can be imported."""


class _Import:
    """One run of the command over its files."""

    def __init__(self, *, format_: Format | None, origin: Origin, quiet: bool) -> None:
        self._format = format_
        self._origin = origin
        self._tally = Tally()
        self._unreadable = 0
        self._quiet = quiet
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[events]:,} events"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )

    @property
    def exit_code(self) -> int:
        if self._unreadable or (self._tally.bad and not self._tally.sessions):
            return FAILED
        return SOME_BAD if self._tally.bad else 0

    async def run(self, settings: Settings, files: list[Path]) -> None:
        async with open_database(settings) as db:
            started = time.monotonic()
            with self._progress:
                for file in files:
                    try:
                        await self._import(db, file)
                    except (OSError, _Unreadable) as error:
                        self._unreadable += 1
                        self._print(f"{_name(file)}: {error}")
            if not self._quiet:
                self._summarize(time.monotonic() - started)

    async def _import(self, db: Database, file: Path) -> None:
        with file.open("rb", HEAD_LENGTH) as source:
            if not (head := source.peek(HEAD_LENGTH)).strip():
                return
            found = self._format or detect(head)
            if found is None:
                raise _Unreadable(f"This looks like none of the formats; if it is one, say so: --format {'|'.join(Format)}")
            if found is Format.TURNKEEPER and not self._origin.user_id is self._origin.session_id is None:
                raise _Unreadable("An export of Turnkeeper names users and sessions itself: leave out --user and --session.")
            records = PARSERS[found](source, replace(self._origin, stem=file.stem))
            watched = self._watched(records, source, file)
            await import_records(db, watched, self._tally, lambda bad: self._report(file, bad))

    def _watched(self, records: Iterable[Record], source: BinaryIO, file: Path) -> Iterator[Record]:
        before = self._tally.added + self._tally.known
        ...

    def _report(self, file: Path, bad: BadRecord) -> None:
        self._print(f"{_name(file)}:{bad.place}: {bad.reason}")
