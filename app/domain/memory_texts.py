"""Edits of memory files. Pure: text in, text or a sentence out."""

import re
from collections.abc import Sequence

from app.domain.errors import MemoryRefused
from app.domain.memory_lines import Seen, first_end, last_end, lines_of, with_end, with_ends
from app.domain.memory_views import snippet

# Each occurrence takes a search that is linear in the file: so many tell a model enough.
_MOST_OCCURRENCES = 10

_NUMBERED = re.compile(r" {0,5}[0-9]+\t")


def replaced(path: str, text: str, old: str, new: str) -> tuple[str, str]:
    """The text with its one occurrence of `old` replaced, and a snippet of the place. Raises MemoryRefused.

    Line ends are compared as a model sees them, and stay what the file has.
    """
    if not old:
        raise MemoryRefused("The old text is empty: send the text to replace, exactly as the file has it.")
    seen, wanted = Seen(text), with_end(old, "\n")
    place = _only_place(path, seen.text, wanted)
    start, stop = seen.origin(place), seen.origin(place + len(wanted))
    end = first_end(text[start:stop]) or first_end(text)
    changed = text[:start] + (with_end(new, end) if end else new) + text[stop:]
    column = place - (seen.text.rfind("\n", 0, place) + 1)
    return changed, snippet(changed, seen.text.count("\n", 0, place) + 1, with_end(new, "\n").count("\n") + 1, column)


def inserted(path: str, text: str, after: int, new: str) -> tuple[str, str]:
    """The text with `new` as lines of its own after a line (0: before the first), and a snippet of the place.

    The file's line ends are kept, and whether it ends with one. Raises MemoryRefused.
    """
    lines = with_ends(text)
    if not 0 <= after <= len(lines):
        raise MemoryRefused(f"Line {after} is outside of {path}: {places_for_lines(len(lines))}")
    end = first_end(text) or "\n"
    added = [f"{line}{end}" for line in (lines_of(new) or [""])]
    if after == len(lines) and lines and not last_end(text):
        # The last line has no end: what follows it begins behind one, and the file still ends without.
        added = [f"{end}{line.removesuffix(end)}" for line in added]
    changed = "".join([*lines[:after], *added, *lines[after:]])
    return changed, snippet(changed, after + 1, len(added))


def places_for_lines(count: int) -> str:
    """Where lines can be inserted, as a sentence."""
    return f"send a number from 0 (before the first line) to {count} (the number of its lines: at the end)."


def _only_place(path: str, text: str, wanted: str) -> int:
    places = _occurrences(text, wanted)
    if not places:
        numbered = ", without the line numbers of the view" if _NUMBERED.match(wanted) else ""
        raise MemoryRefused(
            f"The old text does not occur in {path}. View it and send the text exactly as it is there{numbered}."
        )
    if len(places) > 1:
        at_least = "at least " if len(places) == _MOST_OCCURRENCES else ""
        raise MemoryRefused(
            f"The old text occurs {at_least}{len(places)} times in {path} ({_lines_of_places(text, places)}). Send "
            "more of the text around it, so that it occurs once."
        )
    return places[0]


def _occurrences(text: str, wanted: str) -> list[int]:
    """Where it occurs first, overlapping occurrences included."""
    places: list[int] = []
    place = text.find(wanted)
    while place >= 0 and len(places) < _MOST_OCCURRENCES:
        places.append(place)
        place = text.find(wanted, place + 1)
    return places


def _lines_of_places(text: str, places: Sequence[int]) -> str:
    numbers = dict.fromkeys(text.count("\n", 0, place) + 1 for place in places)
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
