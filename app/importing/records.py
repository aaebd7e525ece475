"""What every format is read into: sessions, each followed by its events, and what could not be used."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, BinaryIO

from app.domain import ids, json_values, messages
from app.domain.events import NewEvent
from app.domain.exports import EventRecord, MemoryRecord, SessionRecord
from app.domain.sessions import Lifetime, NewSession
from app.domain.tokens import CountTokens

# As over HTTP, where a message stands three levels deep in the body of a request.
MAX_DEPTH = json_values.MAX_DEPTH - 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where records come from, and what the caller decides about them: ids are derived from these."""

    stem: str
    count_tokens: CountTokens
    user_id: str | None = None
    session_id: str | None = None
    lifetime: Lifetime = field(default_factory=Lifetime)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSession:
    """`place` is a line number or a path in the JSON; a NewSession is only created when it has events."""

    place: str
    session: NewSession | SessionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEvent:
    """An event of the session found before it. `size` is about that of its JSON, in bytes."""

    place: str
    event: NewEvent | EventRecord
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMemory:
    """A version of a file of a memory store."""

    place: str
    record: MemoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    place: str
    reason: str


Record = FoundSession | FoundEvent | FoundMemory | BadRecord

Parse = Callable[[BinaryIO, Origin], Iterator[Record]]


def found_session(
    place: str, origin: Origin, *, session_id: str, user_id: str, metadata: dict[str, Any]
) -> Iterator[Record]:
    """A conversation of another format. Its system messages are kept, like everything that was said."""
    fault = fault_of_metadata(metadata)
    session = NewSession(
        id=session_id,
        user_id=user_id,
        lifetime=origin.lifetime,
        allow_system_messages=True,
        metadata={} if fault else metadata,
    )
    yield FoundSession(place=place, session=session)
    if fault:
        yield BadRecord(place=place, reason=f"{fault} The conversation is imported without it.")


def found_event(
    place: str,
    origin: Origin,
    *,
    event_id: str,
    message: Any,
    timestamp: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> FoundEvent | BadRecord:
    """An event of another format, or why it cannot be one. The id comes from `id_from`."""
    metadata = metadata or {}
    if fault := fault_of_message(message) or fault_of_metadata(metadata):
        return BadRecord(place=place, reason=fault)
    event = NewEvent(
        id=event_id,
        message=message,
        tokens=origin.count_tokens(message),
        timestamp=timestamp,
        metadata=metadata,
    )
    return FoundEvent(place=place, event=event, size=len(json_values.encode([message, metadata])))


def fault_of_message(message: Any) -> str | None:
    """Why a message would be refused over HTTP as well."""
    if fault := _fault_of_value(message):
        return f"The message {fault}"
    if faults := messages.faults_of(message):
        return "; ".join(f"{'.'.join(map(str, ('message', *fault.loc)))}: {fault.msg}" for fault in faults)
    return None


def fault_of_metadata(metadata: Any) -> str | None:
    if fault := _fault_of_value(metadata):
        return f"The metadata {fault}"
    return "Metadata hold no NUL character (U+0000)." if json_values.holds_nul(metadata) else None


def id_from(*parts: object) -> str:
    """An id made of parts of the source, the same each time; changed as little as makes it legal."""
    wanted = "-".join(map(str, parts))
    if ids.fault_of_user_id(wanted) is None:
        return wanted
    legal = "".join("_" if c == ":" or ids.fault_of_id(f"x{c}") else c for c in wanted)
    digest = blake2b(wanted.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{legal[:200]}-{digest}"


def _fault_of_value(value: Any) -> str | None:
    if json_values.is_deeper_than(value, MAX_DEPTH):
        return f"is nested more than {MAX_DEPTH} levels deep."
    try:
        json_values.encode(value)
    except UnicodeEncodeError:
        return r"holds a lone surrogate (\ud800 to \udfff), or bytes that are not UTF-8."
    return None
