"""Sessions: one conversation each, with an owner, an expiry and counters over its log."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session as it stands. `key` is its inner identity, which no client sees."""

    key: int
    id: str
    user_id: str
    created_at: datetime
    expires_at: datetime | None
    ttl_sliding: bool
    allow_system_messages: bool
    metadata_json: str
    event_version: int
    compaction_generation: int
    event_count: int
    active_event_count: int
    active_turn_count: int
    active_token_count: int
    superseded_token_count: int
    last_event_at: datetime | None

    @property
    def counters(self) -> "Counters":
        return Counters(
            active_turns=self.active_turn_count,
            active_tokens=self.active_token_count - self.superseded_token_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """How long a session lives: seconds from now, until an instant, or for ever (neither is set)."""

    ttl_seconds: int | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    id: str
    user_id: str
    lifetime: Lifetime
    ttl_sliding: bool = False
    allow_system_messages: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a trigger looks at: figures of the session's row, so that no event is read.

    `active_tokens` are without those of system messages that a later one took the place of.
    """

    active_turns: int
    active_tokens: int


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396): null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged
