"""What reads of the log return."""

from dataclasses import dataclass

from app.domain.events import Event

# The most events that one answer holds; more are read in pages or as a stream.
MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Events in order. `has_more` tells of further pages; None where nothing was paged."""

    events: list[Event]
    has_more: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReading(Reading):
    """A reading of one session, with its state in the same snapshot."""

    event_version: int
    active_token_count: int
    system: Event | None
