"""`turnkeeper import` and `turnkeeper export`."""

import asyncio
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from app.cli.database import open_database
from app.config import Settings, load_settings
from app.domain import ids, json_values, tokens
from app.domain.errors import DatabaseUnavailable, DomainError
from app.domain.exports import MemoryRecord, kind_of, line_of
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


_a_user = _checked(ids.fault_of_user_id)
_a_session = _checked(ids.fault_of_id)


def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="What to import.")],
    user: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Whose conversations these are; without: named by the file.", callback=_a_user
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Session of single messages; conversations get ids beginning with it.",
            callback=_a_session,
        ),
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Format of the files; without: what they look like.")
    ] = None,
    ttl_seconds: Annotated[
        int | None, typer.Option(min=1, max=2**31, help="Lifetime of new sessions; without: for ever.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell only what goes wrong.")] = False,
) -> None:
    """Import an export of Turnkeeper, messages in OpenAI format (JSONL), ChatGPT's conversations.json, LoCoMo.

    Ids are made from the source: importing a file again adds only what is new in it.

    What cannot be used is reported with its place in the file, and the rest is imported.

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
    command = _Import(settings, origin, format_, quiet=quiet)
    with _explained():
        asyncio.run(command.run(files))
    raise typer.Exit(command.exit_code)


def export(
    user: Annotated[str | None, typer.Option(metavar="ID", help="Only this user's.", callback=_a_user)] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this one.", callback=_a_session)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; without: standard output.")
    ] = None,
) -> None:
    """Export sessions with their logs as NDJSON, which `turnkeeper import` reads back without loss."""
    settings = load_settings()
    with _explained(), _target(output) as target:
        told = asyncio.run(_export(settings, target, user=user, session=session))
    sessions, events, versions = (told[kind] for kind in ("session", "event", "memory"))
    log = f"{sessions:,} sessions and {events:,} events"
    memory = f", {versions:,} versions of {told['file']:,} memory files" if session is None else ""
    _say(f"{log}{memory} exported.")
    if session is not None and not sessions:
        raise typer.Exit(FAILED)


class _Unreadable(Exception):
    """A file of which nothing can be imported."""


class _Import:
    """One run of the command over its files."""

    def __init__(self, settings: Settings, origin: Origin, format_: Format | None, *, quiet: bool) -> None:
        self._settings = settings
        self._origin = origin
        self._format = format_
        self._quiet = quiet
        self._tally = Tally()
        self._unreadable = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[records]:,} records"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )

    @property
    def exit_code(self) -> int:
        if self._unreadable or (self._tally.bad and not self._tally.took_any):
            return FAILED
        return SOME_BAD if self._tally.bad else 0

    async def run(self, files: Iterable[Path]) -> None:
        async with open_database(self._settings) as db:
            started = time.monotonic()
            with self._progress:
                for file in files:
                    try:
                        await self._import(db, file)
                    except _Unreadable as error:
                        self._fail(file, str(error))
                    except OSError as error:
                        self._fail(file, f"It cannot be read: {error.strerror}.")
            if not self._quiet:
                self._say(self._summary(time.monotonic() - started))

    async def _import(self, db: Database, file: Path) -> None:
        with io.BufferedReader(io.FileIO(file), HEAD_LENGTH) as source:
            if not (head := source.peek(HEAD_LENGTH)).strip():
                return
            parse = PARSERS[self._format_of(head)]
            task = self._progress.add_task(
                ascii(file.name)[1:-1], total=os.fstat(source.fileno()).st_size or None, records=0
            )
            records = self._watched(parse(source, replace(self._origin, stem=file.stem)), source, task)
            await import_records(
                db, records, self._tally, lambda bad: self._report(file, bad), limits=self._settings.memory_limits
            )

    def _format_of(self, head: bytes) -> Format:
        found = self._format or detect(head)
        if found is None:
            raise _Unreadable(f"It looks like none of the formats; name one: --format {'|'.join(Format)}.")
        if found is Format.TURNKEEPER and (self._origin.user_id or self._origin.session_id):
            raise _Unreadable("An export names its users and sessions itself: leave out --user and --session.")
        return found

    def _watched(self, records: Iterable[Record], source: BinaryIO, task: TaskID) -> Iterator[Record]:
        number = 0
        for number, record in enumerate(records, start=1):
            if number % _PROGRESS_STEP == 0 and source.seekable():
                self._progress.update(task, completed=source.tell(), records=number)
            yield record
        self._progress.update(task, completed=self._progress.tasks[task].total or 0, records=number)

    def _fail(self, file: Path, reason: str) -> None:
        self._unreadable += 1
        self._say(f"{file}: {reason}")

    def _report(self, file: Path, bad: BadRecord) -> None:
        self._say(f"{file}:{bad.place}: {bad.reason}" if bad.place else f"{file}: {bad.reason}")

    def _summary(self, seconds: float) -> str:
        tally = self._tally
        parts = [
            f"{tally.sessions:,} sessions",
            f"{tally.added:,} events added",
            f"{tally.known:,} already there",
            f"{tally.bad:,} bad records",
        ]
        if tally.memory.added or tally.memory.known:
            parts.append(
                f"{tally.memory.added:,} versions of memory files added, {tally.memory.known:,} already there, "
                f"{tally.memory.files:,} files changed"
            )
        if tally.expired:
            parts.append(f"{tally.expired:,} expired sessions")
        if tally.left_out:
            parts.append(f"{tally.left_out:,} events left out with their sessions")
        return f"{', '.join(parts)}; {(tally.added + tally.known) / seconds:,.0f} events/s."

    def _say(self, text: str) -> None:
        _say(text, self._progress.console)


async def _export(settings: Settings, target: BinaryIO, *, user: str | None, session: str | None) -> Counter[str]:
    """How many records of each kind were written, and of how many files (`file`) the versions are."""
    told: Counter[str] = Counter()
    paths: set[tuple[str, str]] = set()
    async with open_database(settings) as db:
        async for batch in transfer.export(db, user_id=user, session_id=session):
            target.writelines(f"{json_values.encode(line_of(record))}\n".encode() for record in batch)
            told.update(map(kind_of, batch))
            paths |= {(record.store, record.path) for record in batch if isinstance(record, MemoryRecord)}
    told["file"] = len(paths)
    return told


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    """Where to write; a file has its name only once it is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    partial = output.with_name(f"{output.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _explained() -> Iterator[None]:
    """What an operator can do something about is a sentence; an absent database is `main`'s to explain."""
    try:
        yield
    except DatabaseUnavailable:
        raise
    except (DomainError, OSError) as error:
        _say(f"turnkeeper: {error}")
        raise typer.Exit(FAILED) from None


def _say(text: str, console: Console | None = None) -> None:
    # File names and what is quoted from files may hold bytes that are not text.
    readable = text.encode(errors="replace").decode()
    (console or Console(stderr=True)).print(readable, markup=False, highlight=False, soft_wrap=True)
