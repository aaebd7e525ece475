"""Where what a client resends overlaps the history that is loaded for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.domain.client_view import Likeness


class Compared(NamedTuple):
    """A message of either side; an optional one needs no counterpart on the other."""

    likeness: Likeness
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What of the resent messages is in the history: from `start` up to `end`."""

    start: int
    end: int


def find_overlap(history: Sequence[Compared], resent: Sequence[Compared]) -> Overlap | None:
    """The first of: (a) the history as a contiguous run in what is resent, the last such; (b) the longest suffix of
    the history that what is resent begins with; (c) what is resent as a contiguous run in the history.
    """
    if not history:
        return Overlap(start=len(resent), end=len(resent))
    return _history_in_resent(history, resent) or _suffix_of_history(history, resent) or _in_history(history, resent)


def _history_in_resent(history: Sequence[Compared], resent: Sequence[Compared]) -> Overlap | None:
    search = _Search(history, resent)
    best: tuple[int, Overlap] | None = None
    for start in range(len(resent) - 1, -1, -1):
        found = search.from_(0, start)
        if found and (best is None or found.matched > best[0]):
            best = found.matched, Overlap(start=start, end=found.end)
    return best and best[1]


def _suffix_of_history(history: Sequence[Compared], resent: Sequence[Compared]) -> Overlap | None:
    search = _Search(history, resent)
    for start in range(1, len(history)):
        if found := search.from_(start, 0):
            return Overlap(start=0, end=found.end)
    return None


def _in_history(history: Sequence[Compared], resent: Sequence[Compared]) -> Overlap | None:
    search = _Search(resent, history)
    if any(search.from_(0, start) for start in range(len(history) - 1, -1, -1)):
        return Overlap(start=0, end=len(resent))
    return None


class _Found(NamedTuple):
    matched: int
    end: int


class _Search:
    """Whether a run of `wanted` up to its end stands in `among`, one message after the other.

    What failed once is not tried again: the time is that of the number of places tried, in the worst case the product
    of both lengths.
    """

    def __init__(self, wanted: Sequence[Compared], among: Sequence[Compared]) -> None:
        self._wanted = wanted
        self._among = among
        self._failed: set[tuple[int, int, bool]] = set()

    def from_(self, first: int, start: int) -> _Found | None:
        """Match `wanted[first:]` against `among[start:]`, of which the first messages have to match."""
        tried = [(first, start, 0)]
        seen: set[tuple[int, int, bool]] = set()
        while tried:
            at, place, matched = tried.pop()
            if at == len(self._wanted):
                if matched:
                    return _Found(matched, place)
                continue
            state = at, place, matched > 0
            if state in self._failed or state in seen:
                continue
            seen.add(state)
            tried += self._steps(at, place, matched)
        self._failed |= seen
        return None

    def _steps(self, at: int, place: int, matched: int) -> list[tuple[int, int, int]]:
        """What may be tried next, the best last: match, else leave out what is optional on either side."""
        steps = []
        if place < len(self._among) and self._among[place].optional:
            steps.append((at, place + 1, matched))
        if self._wanted[at].optional:
            steps.append((at + 1, place, matched))
        if place < len(self._among) and self._wanted[at].likeness == self._among[place].likeness:
            steps.append((at + 1, place + 1, matched + 1))
        return steps
