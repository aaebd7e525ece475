"""Compaction: which active events are archived and where a summary goes. Pure: events in, a plan out.

What all strategies share: the latest stored system message is pinned, earlier ones are superseded and archived by
every pass. Synthetic events use no slot. The cut moves forward to the next turn start or, where none follows, back to
the last one, so that the newest turn always stays; without a turn start nothing is archived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from app.domain.errors import Fault, InvalidInput
from app.domain.events import Event, NewEvent
from app.domain.sessions import Counters
from app.domain.turns import split_into_turns

Reason = Literal["trigger", "fits", "no_turn_start", "conflict", "blank_summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Fires with more than `turns` turns that are not synthetic, the one in progress included."""

    turns: int

    def __post_init__(self) -> None:
        _require_positive("turns", self.turns)

    def fires(self, counters: Counters) -> bool:
        return counters.active_turns > self.turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Fires at `tokens` active tokens or more."""

    tokens: int

    def __post_init__(self) -> None:
        _require_positive("tokens", self.tokens)

    def fires(self, counters: Counters) -> bool:
        return counters.active_tokens >= self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Any:
    triggers: "tuple[Trigger, ...]"

    def __post_init__(self) -> None:
        if not self.triggers:
            raise InvalidInput(Fault(("any",), "A composite of no triggers never fires: name at least one."))

    def fires(self, counters: Counters) -> bool:
        return any(trigger.fires(counters) for trigger in self.triggers)


Trigger = Turns | Tokens | Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveWindow:
    """The active events of a session, in `seq` order, by what compaction makes of them."""

    pinned: Event | None
    superseded: tuple[Event, ...]
    synthetic: tuple[Event, ...]
    real: tuple[Event, ...]

    @classmethod
    def of(cls, events: Sequence[Event]) -> "ActiveWindow":
        system = [event for event in events if event.type == "system"]
        conversation = [event for event in events if event.type != "system"]
        return cls(
            pinned=system[-1] if system else None,
            superseded=tuple(system[:-1]),
            synthetic=tuple(event for event in conversation if event.synthetic),
            real=tuple(event for event in conversation if not event.synthetic),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Which real events go; `reason` says why none does."""

    archived: tuple[Event, ...] = ()
    kept: tuple[Event, ...] = ()
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Keeps the newest `max_events` real events."""

    max_events: int

    def __post_init__(self) -> None:
        _require_positive("max_events", self.max_events)

    def cut(self, window: ActiveWindow) -> Cut:
        return _cut_at(window.real, len(window.real) - self.max_events)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWindow:
    """Keeps the newest `max_turns` turns, and what precedes the first turn."""

    max_turns: int

    def __post_init__(self) -> None:
        _require_positive("max_turns", self.max_turns)

    def cut(self, window: ActiveWindow) -> Cut:
        starts = _turn_starts(window.real)
        if not starts:
            return Cut(kept=window.real, reason="no_turn_start")
        if len(starts) <= self.max_turns:
            return Cut(kept=window.real, reason="fits")
        first, cut = starts[0], starts[-self.max_turns]
        return Cut(archived=window.real[first:cut], kept=window.real[:first] + window.real[cut:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """Keeps the contiguous newest suffix that fits, after pinned and synthetic tokens are deducted."""

    max_tokens: int

    def __post_init__(self) -> None:
        _require_positive("max_tokens", self.max_tokens)

    def cut(self, window: ActiveWindow) -> Cut:
        fixed = (window.pinned, *window.synthetic)
        budget = self.max_tokens - sum(event.tokens for event in fixed if event is not None)
        sizes = accumulate(event.tokens for event in reversed(window.real))
        fitting = sum(size <= budget for size in sizes)
        return _cut_at(window.real, len(window.real) - fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """Keeps the newest `max_events` real events behind a rolling summary of what went before."""

    max_events: int
    overlap: int = 0
    system_prompt: str | None = None
    shadow_prompt: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        _require_positive("max_events", self.max_events)
        if not 0 <= self.overlap < self.max_events:
            raise InvalidInput(
                Fault(("overlap",), f"The overlap is from 0 to less than max_events ({self.max_events}).")
            )

    def cut(self, window: ActiveWindow, max_input_tokens: int) -> Cut:
        """One pass takes the oldest whole turns up to `max_input_tokens`, and at least one of them."""
        whole = _cut_at(window.real, len(window.real) - self.max_events)
        if whole.reason is not None:
            return whole
        turns = split_into_turns(whole.archived)
        sizes = accumulate(sum(event.tokens for event in turn) for turn in turns)
        taken = max(1, sum(size <= max_input_tokens for size in sizes))
        count = sum(len(turn) for turn in turns[:taken])
        return Cut(archived=window.real[:count], kept=window.real[count:])


Strategy = SlidingWindow | TurnWindow | TokenBudget | Summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Seqs to archive, and new events to insert right before the event at `before`."""

    archive: tuple[int, ...]
    kept: int
    insert: tuple[NewEvent, ...] = ()
    before: int | None = None
    reason: Reason | None = None


def plan(window: ActiveWindow, cut: Cut, summary: Sequence[NewEvent] = ()) -> Plan:
    """What a cut comes to. A new summary replaces the synthetic events that were there."""
    gone = [*window.superseded, *cut.archived, *(window.synthetic if summary else ())]
    kept = len(window.real) - len(cut.archived) + (window.pinned is not None)
    return Plan(
        archive=tuple(sorted(event.seq for event in gone)),
        kept=kept + (0 if summary else len(window.synthetic)),
        insert=tuple(summary),
        before=cut.kept[0].seq if summary else None,
        reason=cut.reason if cut.reason == "blank_summary" or not gone else None,
    )


def _cut_at(real: tuple[Event, ...], start: int) -> Cut:
    """Archive what precedes `start`, moved to a turn start."""
    if start <= 0:
        return Cut(kept=real, reason="fits")
    starts = _turn_starts(real)
    if not starts:
        return Cut(kept=real, reason="no_turn_start")
    cut = next((place for place in starts if place >= start), starts[-1])
    if cut == 0:
        return Cut(kept=real, reason="fits")
    return Cut(archived=real[:cut], kept=real[cut:])


def _turn_starts(events: Sequence[Event]) -> list[int]:
    return [place for place, event in enumerate(events) if event.starts_turn]


def _require_positive(name: str, value: int) -> None:
    if value <= 0:
        raise InvalidInput(Fault((name,), f"{name} is at least 1; this one is {value}."))
