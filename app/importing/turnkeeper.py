"""Turnkeeper's own export: a session in a line, then its events, each in a line. Nothing is derived or changed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec

from app.domain import ids, json_values
from app.domain.exports import EventRecord, ExportRecord, SessionRecord
from app.importing.reading import Value, lines
from app.importing.records import (
    BadRecord,
    FoundEvent,
    FoundSession,
    Origin,
    Record,
    fault_of_message,
    fault_of_metadata,
)


def parse(source: BinaryIO, _: Origin) -> Iterator[Record]:
    session: FoundSession | None = None
    followed_by = 0
    for found in lines(source):
        record = found if isinstance(found, BadRecord) else _record(found)
        if isinstance(record, FoundEvent):
            record = _in_session(record, session)
        if not isinstance(record, FoundSession):
            followed_by += 1
            yield record
            continue
        yield from _missing(session, followed_by)
        session, followed_by = record, 0
        yield session
    yield from _missing(session, followed_by)


def _record(found: Value) -> Record:
    try:
        record = msgspec.convert(found.value, ExportRecord)
    except msgspec.ValidationError as error:
        return BadRecord(place=found.place, reason=f"{error}.")
    if fault := _fault_of(record):
        return BadRecord(place=found.place, reason=fault)
    if isinstance(record, SessionRecord):
        return FoundSession(place=found.place, session=record)
    return FoundEvent(place=found.place, event=record, size=len(json_values.encode(found.value)))


def _fault_of(record: ExportRecord) -> str | None:
    if isinstance(record, SessionRecord):
        instants = (record.created_at, record.expires_at, record.last_event_at)
        fault = ids.fault_of_user_id(record.user_id)
    else:
        instants = (record.timestamp,)
        fault = ids.fault_of_id(record.session_id) or fault_of_message(record.message)
    return fault or ids.fault_of_id(record.id) or fault_of_metadata(record.metadata) or _fault_of_instants(*instants)


def _fault_of_instants(*instants: datetime | None) -> str | None:
    try:
        for instant in instants:
            if instant is not None:
                instant.astimezone(UTC)
    except OverflowError:
        return "A time is outside the years 1 to 9999 in UTC."
    return None


def _in_session(found: FoundEvent, session: FoundSession | None) -> Record:
    event: Any = found.event
    if session is None or session.session.id != event.session_id:
        return _bad(found, f"The line of its session, {event.session_id!r}, does not stand in front of it.")
    if event.seq > session.session.last_seq:  # type: ignore[union-attr]
        return _bad(found, "Its seq is greater than last_seq of its session.")
    return found


def _missing(session: FoundSession | None, followed_by: int) -> Iterator[BadRecord]:
    """An export that was cut off between two lines must not pass for a whole one."""
    if session is not None and followed_by < (announced := session.session.event_count):
        reason = f"The session announces {announced:,} events, but only {followed_by:,} follow: the file was cut off."
        yield BadRecord(place=session.place, reason=reason)
