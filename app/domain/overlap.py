"""Where what a client resends overlaps the history that is loaded for it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Likeness = tuple[Any, ...]

# How many places are weighed against each other at most. What has no optional messages is compared in the time that
# reading takes; this is for conversations that repeat themselves for ever and leave things out as well.
MAX_PLACES = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A message of either side. An optional one needs no counterpart on the other.

    `also`: another form in which the client may have it. `fragment`: of a reply that broke off; the client may have
    stopped at any place of it.
    """

    likeness: Likeness
    optional: bool = False
    also: Likeness | None = None
    fragment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What of the resent messages is in the history: from `start` up to `end`; `pairs` are (history, resent)."""

    start: int
    end: int
    pairs: list[tuple[int, int]] = field(default_factory=list)


def find_overlap(history: Sequence[Compared], resent: Sequence[Compared]) -> Overlap | None:
    """The first of: (a) the history as a contiguous run in what is resent, the last such; (b) the longest suffix of
    the history that what is resent begins with; (c) what is resent as a contiguous run in the history; (d) where a
    question with its reply is in both, what is resent up to that reply, and on as long as both go on alike.
    """
    sides = _Sides(history, resent)
    found = sides.history_in_resent() or sides.suffix_of_history() or sides.in_history() or sides.last_exchange()
    if found is None and all(one.optional for one in history):
        return Overlap(start=len(resent), end=len(resent))  # As if there was no history.
    return found


class _Sides:
    def __init__(self, history: Sequence[Compared], resent: Sequence[Compared]) -> None:
        self._resent = resent
        # An optional message without any counterpart can only be left out.
        self._history_places = _comparable(history, resent)
        self._resent_places = _comparable(resent, history)
        self._wanted = [history[place] for place in self._history_places]
        self._among = [resent[place] for place in self._resent_places]
        self._forward = _alignments(self._wanted, self._among)

    def history_in_resent(self) -> Overlap | None:
        best = self._forward.best_start()
        return None if best is None else self._overlap(self._forward.path(0, best))

    def suffix_of_history(self) -> Overlap | None:
        first = self._forward.longest_suffix()
        return None if first is None else self._overlap(self._forward.path(first, 0), start=0)

    def in_history(self) -> Overlap | None:
        backward = _alignments(self._among, self._wanted)
        best = backward.best_start()
        if best is None:
            return None
        pairs = [(history, resent) for resent, history in backward.path(0, best)]
        return self._overlap(pairs, start=0, end=len(self._resent))

    def last_exchange(self) -> Overlap | None:
        """A reply alone proves nothing: examples may have the same."""
        after: dict[Likeness, dict[Likeness, int]] = defaultdict(dict)
        for place in range(1, len(self._wanted)):
            after[self._wanted[place - 1].likeness][self._wanted[place].likeness] = place
        for place in range(len(self._among) - 1, 0, -1):
            question, reply = self._among[place - 1].likeness, self._among[place].likeness
            if reply[0] == "assistant" and reply in after[question]:
                history = after[question][reply]
                return self._overlap([(history - 1, place - 1), *self._in_step(history, place)], start=0)
        return None

    def _in_step(self, history: int, resent: int) -> Iterator[tuple[int, int]]:
        """From a pair on, as long as both go on alike."""
        for one, other in zip(self._wanted[history:], self._among[resent:], strict=False):
            if not alike(one, other):
                return
            yield history, resent
            history, resent = history + 1, resent + 1

    def _overlap(
        self, pairs: Sequence[tuple[int, int]], *, start: int | None = None, end: int | None = None
    ) -> Overlap:
        real = [(self._history_places[history], self._resent_places[resent]) for history, resent in pairs]
        return Overlap(
            start=real[0][1] if start is None else start, end=real[-1][1] + 1 if end is None else end, pairs=real
        )


def _comparable(side: Sequence[Compared], other: Sequence[Compared]) -> list[int]:
    known = {form for one in other for form in (one.likeness, one.also)}
    fragments = any(one.fragment for one in (*side, *other))
    return [
        place
        for place, one in enumerate(side)
        if not one.optional
        or one.likeness in known
        or (one.also is not None and one.also in known)
        or (fragments and any(alike(one, another) for another in other))
    ]


def alike(one: Compared, other: Compared) -> bool:
    if one.likeness == other.likeness or one.likeness == other.also or one.also == other.likeness:
        return True
    return (one.fragment and _is_part(other.likeness, one.likeness)) or (
        other.fragment and _is_part(one.likeness, other.likeness)
    )


def _is_part(part: Likeness, whole: Likeness) -> bool:
    """Whether it is the beginning of a reply's text, without calls."""
    if part[0] != "assistant" or part[2] or not isinstance(part[1], str) or not isinstance(whole[1], str):
        return False
    return bool(part[1].strip()) and whole[1].startswith(part[1])


class _Step(NamedTuple):
    """The best that follows from a place on: how many messages match, and what to do first."""

    matched: int
    wanted: int
    among: int


class _Alignments:
    """All ways to find `wanted` up to its end in `among`, leaving out what is optional on either side.

    Row i holds, for each place from where `wanted[i:]` is found, the way with the most matches.
    """

    def __init__(self, wanted: Sequence[Compared], among: Sequence[Compared]) -> None:
        self._length = len(wanted)
        self._rows: list[dict[int, _Step]] = [{} for _ in wanted]
        self._last = {place: _Step(0, 0, 0) for place in range(len(among) + 1)}
        places = _Places(among)
        optional = [place for place, one in enumerate(among) if one.optional]
        taken = 0
        for first in range(len(wanted) - 1, -1, -1):
            below = self._row(first + 1)
            row = {
                place: _Step(below[place + 1].matched + 1, 1, 1)
                for place in places.of(wanted[first])
                if place + 1 in below
            }
            if wanted[first].optional:
                _improve(row, ((place, _Step(step.matched, 1, 0)) for place, step in below.items()))
            for place in reversed(optional):
                if place + 1 in row:
                    _improve(row, [(place, _Step(row[place + 1].matched, 0, 1))])
            self._rows[first] = row
            taken += len(row)
            if taken > MAX_PLACES:
                self._rows = [{} for _ in wanted]
                return

    def best_start(self) -> int | None:
        """From where all of it is found, with the most matches, the last such."""
        if not self._length:
            return None
        found = [(step.matched, place) for place, step in self._rows[0].items() if step.matched]
        return max(found)[1] if found else None

    def longest_suffix(self) -> int | None:
        """From where on it is found at the beginning."""
        found = (first for first in range(1, self._length) if (s := self._rows[first].get(0)) and s.matched)
        return next(found, None)

    def path(self, first: int, place: int) -> list[tuple[int, int]]:
        """The pairs that match, in order."""
        pairs = []
        while first < self._length:
            step = self._rows[first][place]
            if step.wanted and step.among:
                pairs.append((first, place))
            first, place = first + step.wanted, place + step.among
        return pairs

    def _row(self, first: int) -> dict[int, _Step]:
        return self._rows[first] if first < self._length else self._last


class _Exactly:
    """The same where nothing is optional: runs of equal messages, found in the time of reading them (Knuth, Morris
    and Pratt).
    """

    def __init__(self, wanted: Sequence[Compared], among: Sequence[Compared]) -> None:
        self._wanted = [one.likeness for one in wanted]
        self._among = [one.likeness for one in among]

    def best_start(self) -> int | None:
        wanted = self._wanted
        if not wanted or len(wanted) > len(self._among):
            return None
        borders = _borders([*wanted, None, *self._among])[len(wanted) + 1 :]
        ends = [end for end, border in enumerate(borders, start=1) if border == len(wanted)]
        return ends[-1] - len(wanted) if ends else None

    def longest_suffix(self) -> int | None:
        if not self._wanted or not self._among:
            return None
        length = _borders([*self._among, None, *self._wanted[1:]])[-1]
        return len(self._wanted) - length if 0 < length < len(self._wanted) else None

    def path(self, first: int, place: int) -> list[tuple[int, int]]:
        return [(at, place + at - first) for at in range(first, len(self._wanted))]


def _alignments(wanted: Sequence[Compared], among: Sequence[Compared]) -> _Alignments | _Exactly:
    plain = not any(one.optional or one.also or one.fragment for one in (*wanted, *among))
    return _Exactly(wanted, among) if plain else _Alignments(wanted, among)


class _Places:
    """Where a message stands."""

    def __init__(self, among: Sequence[Compared]) -> None:
        self._among = among
        self._of: dict[Likeness, list[int]] = defaultdict(list)
        self._special = []
        for place, one in enumerate(among):
            self._of[one.likeness].append(place)
            if one.also is not None or one.fragment:
                self._special.append(place)

    def of(self, one: Compared) -> Iterable[int]:
        if one.also is not None or one.fragment:
            return [place for place, other in enumerate(self._among) if alike(one, other)]
        equal = self._of.get(one.likeness, [])
        others = [place for place in self._special if alike(one, self._among[place])]
        return {*equal, *others} if others else equal


def _improve(row: dict[int, _Step], steps: Iterable[tuple[int, _Step]]) -> None:
    for place, step in steps:
        if place not in row or step.matched > row[place].matched:
            row[place] = step


def _borders(sequence: Sequence[Any]) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(sequence)
    length = 0
    for place in range(1, len(sequence)):
        while length and sequence[place] != sequence[length]:
            length = borders[length - 1]
        length += sequence[place] == sequence[length]
        borders[place] = length
    return borders
