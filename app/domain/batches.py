"""A batch to append: each event once, and what the batch itself tells about the calls it answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import EventConflict
from app.domain.events import NewEvent
from app.domain.recall import RECALL_TOOLS, answered_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event of a batch, with what the log has to be asked about it.

    `answers` is the id of a call that was made before this batch: whether the result is one of a recall tool,
    only the log can tell. A blank id pairs by position: `answers_nth` counts the results before it in the batch.
    """

    event: NewEvent
    digest: bytes
    recall_result: bool
    answers: str | None
    answers_nth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`entries` are distinct by id; `places[i]` is where the i-th event of the request is found among them."""

    entries: list[Entry]
    places: list[int]

    @property
    def repeated(self) -> int:
        return len(self.places) - len(self.entries)

    @property
    def has_system(self) -> bool:
        return any(entry.event.type == "system" for entry in self.entries)

    @property
    def system_places(self) -> list[int]:
        """Where in the request system messages stand, from 0."""
        return [at for at, place in enumerate(self.places) if self.entries[place].event.type == "system"]


def batch_of(events: Sequence[NewEvent]) -> Batch:
    """Raises EventConflict when one id comes with two different messages."""
    place_of_id: dict[str, int] = {}
    distinct: list[NewEvent] = []
    for event in events:
        place = place_of_id.setdefault(event.id, len(distinct))
        if place == len(distinct):
            distinct.append(event)
        elif distinct[place].digest != event.digest:
            raise EventConflict([event.id])
    return Batch(entries=_entries(distinct), places=[place_of_id[event.id] for event in events])


def _entries(events: Sequence[NewEvent]) -> list[Entry]:
    entries: list[Entry] = []
    results_in_front = 0  # tool messages that the batch begins with
    for index, (event, called) in enumerate(zip(events, answered_calls([e.message for e in events]), strict=True)):
        asks_log = event.type == "tool" and called is None
        entries.append(
            Entry(
                event=event,
                digest=event.digest,
                recall_result=called in RECALL_TOOLS,
                answers=event.message["tool_call_id"].strip() if asks_log else None,
                answers_nth=results_in_front,
            )
        )
        if event.type == "tool" and results_in_front == index:
            results_in_front += 1
    return entries
