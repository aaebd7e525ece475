"""Turns, and the rule that a window never splits one.

A turn is a user event (real or synthetic) and everything after it up to the next user event. A window
of the newest N events that would begin inside a turn begins at the start of that turn instead, so that no
prompt ever holds a tool result without its call, a reply without its question or a summary without
its shadow prompt. `app.storage.windows` says the same in SQL; a property test holds the two together.
"""

from collections.abc import Iterable, Sequence

from app.domain.events import Event


def newest_whole_turns(events: Sequence[Event], at_least: int) -> Sequence[Event]:
    """The newest `at_least` events, extended back to the start of the turn that they begin in.

    Where no turn start precedes them (a preamble, or user events were filtered out), the plain newest.
    """
    start = max(0, len(events) - at_least)
    for index in range(start, -1, -1):
        if index < len(events) and events[index].starts_turn:
            return events[index:]
    return events[start:]


def split_into_turns(events: Iterable[Event]) -> list[list[Event]]:
    """The events as turns, oldest first; what precedes the first turn start is a group of its own."""
    turns: list[list[Event]] = []
    for event in events:
        if event.starts_turn or not turns:
            turns.append([])
        turns[-1].append(event)
    return turns
