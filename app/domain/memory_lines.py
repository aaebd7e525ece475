"""Lines of a memory file, whatever they end with: a model sees none of that."""

import re
from bisect import bisect_left

_END = re.compile(r"\r\n|\n|\r")


def lines_of(text: str) -> list[str]:
    """The lines without their ends; a final newline ends the last line and begins none."""
    if not text:
        return []
    return _END.split(text.removesuffix(last_end(text)))


def with_ends(text: str) -> list[str]:
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", text)


def first_end(text: str) -> str | None:
    """What the first line ends with, when there is an end."""
    found = _END.search(text)
    return found[0] if found else None


def last_end(text: str) -> str:
    if text.endswith("\r\n"):
        return "\r\n"
    return text[-1:] if text[-1:] in {"\n", "\r"} else ""


def with_end(text: str, end: str) -> str:
    """The text with every line ending so.

    >>> with_end("a\\r\\nb\\n", "\\n")
    'a\\nb\\n'
    """
    return _END.sub(end, text)


class Seen:
    """A text as a model sees it, with newlines at the ends of lines, and where that is in the text itself."""

    def __init__(self, text: str) -> None:
        self.text = with_end(text, "\n")
        # Each pair of CR and LF is one character here: behind it, places differ by one more.
        self._pairs = [match.start() - number for number, match in enumerate(re.finditer("\r\n", text))]

    def origin(self, place: int) -> int:
        """Where a place of this text is in the text itself."""
        return place + bisect_left(self._pairs, place)
