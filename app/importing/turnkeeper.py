"""Turnkeeper's own export: a session in a line, then its events, each in a line. Nothing is derived or changed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

from app.domain import ids, json_values
from app.domain.errors import MemoryRefused
from app.domain.exports import EventRecord, ExportRecord, MemoryRecord, SessionRecord, kind_of
from app.domain.instants import INFINITE
from app.domain.memory_paths import file_path
from app.importing.reading import Value, lines
from app.importing.records import (
    BadRecord,
    FoundEvent,
    FoundMemory,
    FoundSession,
    Origin,
    Record,
    fault_of_message,
    fault_of_metadata,
)

_KINDS = {kind_of(SessionRecord), kind_of(EventRecord), kind_of(MemoryRecord)}


def parse(source: BinaryIO, _: Origin) -> Iterator[Record]:
    session: SessionRecord | None = None
    place, followed_by = "", 0
    for found in lines(source):
        record = found if isinstance(found, BadRecord) else _record(found)
        if isinstance(record, SessionRecord):
            yield from _missing(session, place, followed_by)
            session, place, followed_by = record, found.place, 0
            yield FoundSession(place=place, session=record)
            continue
        if isinstance(record, MemoryRecord):
            yield FoundMemory(place=found.place, record=record)
            continue
        followed_by += 1
        if isinstance(record, EventRecord):
            yield _event_of(session, found.place, record)
        else:
            yield record
    yield from _missing(session, place, followed_by)


def _record(found: Value) -> ExportRecord | BadRecord:
    kind = found.value.get("kind") if isinstance(found.value, dict) else None
    if isinstance(kind, str) and kind not in _KINDS:
        return BadRecord(place=found.place, reason=f"This version does not know records of the kind {kind!r}.")
    try:
        record: ExportRecord = msgspec.convert(found.value, SessionRecord | EventRecord | MemoryRecord)
    except msgspec.ValidationError as error:
        return BadRecord(place=found.place, reason=f"{error}.")
    match record:
        case SessionRecord():
            fault = _fault_of_session(record)
        case MemoryRecord():
            fault = _fault_of_memory(record)
        case _:
            fault = _fault_of_event(record)
    return BadRecord(place=found.place, reason=fault) if fault else record


def _fault_of_session(record: SessionRecord) -> str | None:
    return (
        ids.fault_of_id(record.id)
        or ids.fault_of_user_id(record.user_id)
        or fault_of_metadata(record.metadata)
        or _fault_of_instants(record.created_at, record.expires_at, record.last_event_at)
    )


def _fault_of_memory(record: MemoryRecord) -> str | None:
    try:
        if file_path(record.path) != record.path:
            return f"The path {record.path!r} is not in its plain form."
    except MemoryRefused as error:
        return str(error)
    return (
        ids.fault_of_store_id(record.store)
        or _fault_of_content(record.content or "")
        or _fault_of_editor("tool", record.tool)
        or _fault_of_editor("session_id", record.session_id)
        or _fault_of_instants(record.edited_at)
    )


def _fault_of_content(content: str) -> str | None:
    if "\0" in content:
        return "A memory holds no NUL character (U+0000)."
    try:
        content.encode()
    except UnicodeEncodeError:
        return r"The content holds a lone surrogate (\ud800 to \udfff), or bytes that are not UTF-8."
    return None


def _fault_of_editor(name: str, value: str | None) -> str | None:
    fault = None if value is None else ids.fault_of_id(value)
    return f"{name}: {fault}" if fault else None


def _fault_of_event(record: EventRecord) -> str | None:
    return (
        ids.fault_of_id(record.id)
        or fault_of_message(record.message)
        or fault_of_metadata(record.metadata)
        or _fault_of_instants(record.timestamp)
    )


def _fault_of_instants(*instants: datetime | None) -> str | None:
    if all(instant is None or _can_be_kept(instant) for instant in instants):
        return None
    return "A time is outside the years 1 to 9999 in UTC."


def _can_be_kept(instant: datetime) -> bool:
    try:
        return instant.astimezone(UTC) not in INFINITE
    except OverflowError:
        return False


def _event_of(session: SessionRecord | None, place: str, event: EventRecord) -> FoundEvent | BadRecord:
    if session is None or session.id != event.session_id:
        reason = f"The line of its session, {event.session_id!r}, does not stand in front of it."
        return BadRecord(place=place, reason=reason)
    if event.seq > session.last_seq:
        return BadRecord(place=place, reason=f"Its seq, {event.seq}, is greater than last_seq of its session.")
    return FoundEvent(place=place, event=event, size=len(json_values.encode(event)))


def _missing(session: SessionRecord | None, place: str, followed_by: int) -> Iterator[BadRecord]:
    """An export that was cut off between two lines must not pass for a whole one."""
    if session is not None and followed_by < session.event_count:
        events = f"{session.event_count:,} events, of which only {followed_by:,} follow"
        yield BadRecord(place=place, reason=f"Session {session.id!r} had {events}: the export was cut off.")
