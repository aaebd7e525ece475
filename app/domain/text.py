"""Caseless text: the one definition of what a search term matches."""

import re
import sys
import unicodedata
from functools import cache

# Normalising takes time in the square of a run of combining marks. No writing has runs of more than a few; the
# Stream-Safe Text Format (Unicode UAX 15, section 13) breaks longer ones, and so does `fold`.
MAX_MARKS = 30
_JOINER = "\u034f"


def fold(text: str) -> str:
    """Unicode case folding under canonical composition (Unicode 3.13, D145, with NFC at the end).

    >>> fold("STRASSE") == fold("Straße")
    True
    """
    if text.isascii():
        return text.casefold()
    return _nfc(_nfc(_stream_safe(text)).casefold())


def search_form(text: str) -> str:
    """What is searched for `text`. PostgreSQL's text holds no NUL, so a search sees U+FFFD there."""
    return fold(text.replace("\0", "\ufffd"))


def contains(text: str | None, term: str) -> bool:
    """Whether `text` matches `term`: caselessly, in any composition, nothing in the term being special."""
    return bool(text) and fold(term) in search_form(text or "")


def is_blank(text: str) -> bool:
    return not text.strip()


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _stream_safe(text: str) -> str:
    return _long_run().sub(lambda run: run[0] + _JOINER, text)


@cache
def _long_run() -> "re.Pattern[str]":
    """Exactly MAX_MARKS characters of which each is, or decomposes to, combining marks alone."""
    marks = (c for c in map(chr, range(sys.maxunicode + 1)) if _begins_with_a_mark(c))
    return re.compile(f"[{re.escape(''.join(marks))}]{{{MAX_MARKS}}}")


def _begins_with_a_mark(character: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFD", character)[0]) > 0
