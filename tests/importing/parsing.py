"""Running a parser on what a test writes."""

import io

from app.importing.formats import PARSERS
from app.importing.records import BadRecord, FoundEvent, FoundSession, Origin


def parsed(format_, data, **origin):
    """The records of a file `talk.json`; every message counts one token."""
    source = io.BytesIO(data if isinstance(data, bytes) else data.encode())
    return list(PARSERS[format_](source, Origin(**{"stem": "talk", "count_tokens": lambda _: 1} | origin)))


def sessions(records):
    return [record.session for record in records if isinstance(record, FoundSession)]


def events(records):
    return [record.event for record in records if isinstance(record, FoundEvent)]


def messages(records):
    return [event.message for event in events(records)]


def bad(records):
    return {record.place: record.reason for record in records if isinstance(record, BadRecord)}
