"""Caseless text: the one definition of what a search term matches."""

import unicodedata


def fold(text: str) -> str:
    """Unicode case folding under canonical composition (Unicode 3.13, D145, with NFC at the end).

    >>> fold("STRASSE") == fold("Straße")
    True
    """
    return _nfc(_nfc(text).casefold())


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
