"""What an export says of a session and of its events: everything that is held, so that it can be put back.

One record is one line. These are msgspec structs, not dataclasses: they are the format, and check it when read.
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta, Struct, structs

from app.domain import json_values, messages

Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Instant = Annotated[datetime, Meta(tz=True)]


class SessionRecord(Struct, tag_field="kind", tag="session", kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A session. Its counters tell where its log stood when it was read; its events follow in the order of `seq`."""

    id: str
    user_id: str
    created_at: Instant
    expires_at: Instant | None
    ttl_seconds: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None
    ttl_sliding: bool
    allow_system_messages: bool
    metadata: dict[str, Any]
    event_version: Count
    compaction_generation: Count
    last_seq: Count
    event_count: Count
    active_event_count: Count
    active_turn_count: Count
    active_token_count: Count
    last_event_at: Instant | None
    # Up to where it was answered; exports of earlier versions do not tell.
    answered_seq: Count = 0


class EventRecord(Struct, tag_field="kind", tag="event", kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An event with its place in the log. `recall_result`: it answers a call of one of the recall tools."""

    id: str
    session_id: str
    seq: Count
    timestamp: Instant
    message: dict[str, Any]
    synthetic: bool
    archived: bool
    recall_result: bool
    tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    metadata: dict[str, Any]

    @property
    def type(self) -> str:
        return messages.type_of(self.message)

    @property
    def digest(self) -> bytes:
        return json_values.digest(self.message)


class MemoryRecord(Struct, tag_field="kind", tag="memory", kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What an edit made of a file of a memory store; `content` is null where it deleted the file.

    The file is what its version with the greatest (edited_at, version) says.
    """

    store: str
    path: str
    # Room for edits to come, whose numbers have to fit as well.
    version: Annotated[int, Meta(ge=1, le=2**52)]
    content: str | None
    edited_at: Instant
    tool: str
    session_id: str | None
    # What the file is called by inside, under every path that it had; exports of earlier versions do not tell.
    file: UUID | None = None


ExportRecord = SessionRecord | EventRecord | MemoryRecord


def kind_of(record: ExportRecord | type[ExportRecord]) -> str:
    return str(record.__struct_config__.tag)


def line_of(record: ExportRecord) -> dict[str, Any]:
    """The object that stands in the line of a record."""
    return {"kind": kind_of(record), **structs.asdict(record)}
