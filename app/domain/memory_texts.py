"""Files of a memory as text: lines, ranges, replacements. Pure: text in, text or a sentence out."""

import re
from collections.abc import Sequence

from app.domain.errors import MemoryRefused

# Around a place that was edited, a model is shown so many lines.
SHOWN_AROUND = 4

_RANGE = re.compile(r"\s*\[?\s*(-?\d{1,9})\s*,\s*(-?\d{1,9})\s*\]?\s*")


def lines_of(text: str) -> list[str]:
    """The lines without their ends; a final newline ends the last line and begins none."""
    if not text:
        return []
    return re.split(r"\r\n|\n|\r", text.removesuffix(_last_end(text)))


def view(path: str, text: str, view_range: str | None) -> str:
    """A file with numbered lines; `view_range` is "start,end", from 1, -1 for the last line. Raises MemoryRefused."""
    lines = lines_of(text)
    first, last = (1, len(lines)) if view_range is None else _range(view_range, len(lines))
    head = f"File: {path}\nLines {first if lines else 0}-{last} of {len(lines)}\n"
    return "\n".join([head, *_numbered(lines, first, last)])


def replaced(path: str, text: str, old: str, new: str) -> tuple[str, str]:
    """The text with its one occurrence of `old` replaced, and a snippet of the place. Raises MemoryRefused."""
    if not old:
        raise MemoryRefused("The old text is empty: send the text to replace, exactly as the file has it.")
    places = _occurrences(text, old)
    if not places:
        raise MemoryRefused(
            f"The old text does not occur in {path}. View the file and send the text exactly as it is there."
        )
    if len(places) > 1:
        numbers = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:10])
        raise MemoryRefused(
            f"The old text occurs {len(places)} times in {path} (lines {numbers}). Send more of the text around it, "
            "so that it occurs once."
        )
    changed = text[: places[0]] + new + text[places[0] + len(old) :]
    return changed, snippet(changed, text.count("\n", 0, places[0]) + 1, new.count("\n") + 1)


def inserted(path: str, text: str, after: int, new: str) -> tuple[str, str]:
    """The text with `new` as lines of its own after a line (0: before the first), and a snippet of the place.

    The file's line ends are kept, and whether it ends with one. Raises MemoryRefused.
    """
    lines = _with_ends(text)
    if not 0 <= after <= len(lines):
        raise MemoryRefused(
            f"Line {after} is outside of {path}, which has {len(lines)} lines: send 0 to {len(lines)}."
        )
    end = _end_of(text)
    added = [f"{line}{end}" for line in (lines_of(new) or [""])]
    if after == len(lines) and lines and not _last_end(text):
        # The last line has no end: what follows it begins behind one, and the file still ends without.
        added = [f"{end}{line.removesuffix(end)}" for line in added]
    changed = "".join([*lines[:after], *added, *lines[after:]])
    return changed, snippet(changed, after + 1, len(added))


def snippet(text: str, first: int, count: int) -> str:
    """Numbered lines around those that were edited."""
    lines = lines_of(text)
    start = max(1, first - SHOWN_AROUND)
    return "\n".join(_numbered(lines, start, min(len(lines), first + count - 1 + SHOWN_AROUND)))


def _numbered(lines: Sequence[str], first: int, last: int) -> list[str]:
    return [f"{number:6d}\t{line}" for number, line in enumerate(lines[first - 1 : last], start=first)]


def _range(given: str, count: int) -> tuple[int, int]:
    match = _RANGE.fullmatch(given)
    if not match:
        raise MemoryRefused(f"{given[:50]!r} is no range: send the first and the last line, such as 1,20 or 5,-1.")
    first, last = int(match[1]), int(match[2])
    last = count if last == -1 else last
    if first == 1 and last == count:
        return first, last  # Also of an empty file.
    if not 1 <= first <= last <= count:
        raise MemoryRefused(
            f"The range {given[:50]!r} does not fit: lines are numbered from 1 to {count}, the start comes first, "
            "and -1 as the end is the last line."
        )
    return first, last


def _occurrences(text: str, wanted: str) -> list[int]:
    """Where it occurs, overlapping occurrences included."""
    places, place = [], text.find(wanted)
    while place >= 0:
        places.append(place)
        place = text.find(wanted, place + 1)
    return places


def _with_ends(text: str) -> list[str]:
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", text)


def _end_of(text: str) -> str:
    """The line end that the file uses: that of its first line."""
    found = re.search(r"\r\n|\n|\r", text)
    return found[0] if found else "\n"


def _last_end(text: str) -> str:
    if text.endswith("\r\n"):
        return "\r\n"
    return text[-1:] if text[-1:] in {"\n", "\r"} else ""
