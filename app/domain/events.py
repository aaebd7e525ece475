"""Events: one message each, in a session's append-only log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from app.domain import json_values, messages
from app.domain.sessions import Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append. Without a timestamp it gets the database's time at the append."""

    id: str
    message: Mapping[str, Any]
    tokens: int
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False

    @property
    def type(self) -> str:
        return messages.type_of(self.message)

    @property
    def digest(self) -> bytes:
        return json_values.digest(self.message)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of the log. `seq` orders the log of one session; compare it, never count with it."""

    id: str
    session_id: str
    seq: int
    timestamp: datetime
    type: str
    message_json: str
    synthetic: bool
    archived: bool
    tokens: int
    metadata_json: str

    @cached_property
    def message(self) -> dict[str, Any]:
        value: dict[str, Any] = json_values.decode(self.message_json)
        return value

    @cached_property
    def text(self) -> str | None:
        return messages.text_of_content(_content_decoder.decode(self.message_json).content)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        value: dict[str, Any] = json_values.decode(self.metadata_json)
        return value

    @property
    def starts_turn(self) -> bool:
        return self.type == "user"

    @property
    def is_interrupted(self) -> bool:
        """Whether it is what had been sent of a reply when the client or the upstream went away."""
        return self.type == "assistant" and self.metadata.get("interrupted") is True

    @property
    def is_late(self) -> bool:
        """Whether it is a reply whose turn had lost its lease: another may have begun meanwhile."""
        return self.type == "assistant" and self.metadata.get("late") is True


class _Content(msgspec.Struct):
    """What is decoded of a message for its text: the rest is skipped over."""

    content: Any = None


_content_decoder = msgspec.json.Decoder(_Content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What an append did: the events of the batch in its order, and where the log stands.

    `late`: written by a chat that had lost its turn. `counters` are those of the session afterwards, where something
    was written, and `may_compact` tells that no failed compaction of a chat is being waited for.
    """

    events: list[Event]
    event_version: int
    appended: int
    replayed: int
    late: bool = False
    counters: Counters | None = None
    may_compact: bool = True
