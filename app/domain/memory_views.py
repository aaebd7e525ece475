"""What a model is shown of its memory: never more than it can read at once, and how to read on."""

import re
from collections.abc import Sequence

from app.domain.errors import MemoryRefused
from app.domain.memory_lines import lines_of

# Characters: some 10,000 tokens of a view, and 1,000 of the place that was edited.
MAX_VIEW = 40_000
MAX_SNIPPET = 4_000
MAX_SNIPPET_LINE = 500

# Around a place that was edited, a model is shown so many lines.
SHOWN_AROUND = 4

_RANGE = re.compile(r"\[?\s{0,9}(-?\d{1,9})\s{0,9},\s{0,9}(-?\d{1,9})\s{0,9}\]?", re.ASCII)


def file_view(path: str, text: str, view_range: str | None) -> str:
    """A file with numbered lines; `view_range` is "start,end", from 1, -1 for the last line. Raises MemoryRefused."""
    lines = lines_of(text)
    first, last = _range(view_range, len(lines), f"{path} has {_counted(len(lines), 'line')}")
    shown = _numbered(lines[first - 1 : last], first)
    until = first + len(shown) - 1
    head = f"File: {path}\nLines {first if lines else 0}-{until} of {len(lines)}\n"
    return "\n".join([head, *shown, *_cut_note(lines, first), *_rest("Lines", until, last)])


def directory_view(path: str, entries: Sequence[str], view_range: str | None) -> str:
    """What a directory holds, an entry a line; `view_range` is of these. Raises MemoryRefused."""
    first, last = _range(view_range, len(entries), f"/{path} has {len(entries)} entries")
    shown = _fitting([f"  {entry}" for entry in entries[first - 1 : last]], MAX_VIEW) or ["(Nothing is saved yet.)"]
    return "\n".join([f"Contents of /{path}:\n", *shown, *_rest("Entries", first + len(shown) - 1, last)])


def snippet(text: str, first: int, count: int, column: int = 0) -> str:
    """Numbered lines around those that were edited; of a long line, what is around the column."""
    lines = lines_of(text)
    start = max(1, first - SHOWN_AROUND)
    end = min(len(lines), first + count - 1 + SHOWN_AROUND)
    around = [
        _around(line, column if number == first else 0)
        for number, line in enumerate(lines[start - 1 : end], start=start)
    ]
    shown = _fitting([_line(number, line) for number, line in enumerate(around, start=start)], MAX_SNIPPET)
    return "\n".join([*shown, *_rest("Lines", start + len(shown) - 1, end)])


def _numbered(lines: Sequence[str], first: int) -> list[str]:
    numbered = [_line(number, line) for number, line in enumerate(lines, start=first)]
    shown = _fitting(numbered, MAX_VIEW)
    return [shown[0][:MAX_VIEW], *shown[1:]] if shown else []


def _line(number: int, line: str) -> str:
    return f"{number:6d}\t{line}"


def _fitting(lines: Sequence[str], most: int) -> Sequence[str]:
    """As many of the first lines as have room, but one in any case."""
    length = 0
    for count, line in enumerate(lines):
        length += len(line) + 1
        if count and length > most:
            return lines[:count]
    return lines


def _rest(what: str, until: int, last: int) -> list[str]:
    if until >= last:
        return []
    return ["", f"({what} {until + 1} to {last} are not shown: view the range {until + 1},{last} to read on.)"]


def _cut_note(lines: Sequence[str], first: int) -> list[str]:
    """A line that alone is too long can be read on once it is divided."""
    if not lines or len(_line(first, lines[first - 1])) <= MAX_VIEW:
        return []
    length = f"{len(lines[first - 1]):,}"
    how = "replace its last words shown by the same and a line break, and view the next line"
    return ["", f"(Line {first} is cut here: it has {length} characters. To read on, divide it: {how}.)"]


def _around(line: str, column: int) -> str:
    if len(line) <= MAX_SNIPPET_LINE:
        return line
    start = max(0, min(column - MAX_SNIPPET_LINE // 2, len(line) - MAX_SNIPPET_LINE))
    end = start + MAX_SNIPPET_LINE
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"


def _range(given: str | None, count: int, of: str) -> tuple[int, int]:
    """The first and the last of `count`; "1,0" of none. `of` tells whose range it is."""
    if given is None:
        return 1, count
    shown = repr(given if len(given) <= 50 else f"{given[:50]}…")
    match = _RANGE.fullmatch(given.strip())
    if not match:
        raise MemoryRefused(f"{shown} is no range: send the first and the last, such as 1,20 or 5,-1 (to the end).")
    first, last = int(match[1]), int(match[2])
    last = count if last == -1 else last
    if first == 1 and last == count:
        return first, last  # Also of an empty file.
    if not count:
        raise MemoryRefused(f"The range {shown} does not fit: {of}. Leave it out.")
    if not 1 <= first <= last <= count:
        raise MemoryRefused(
            f"The range {shown} does not fit: {of}. Send a start from 1 to {count} and an end that is not before it, "
            "or -1 for the end."
        )
    return first, last


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
