"""Identifiers that clients choose: sessions, users, events."""

import unicodedata

MAX_ID_LENGTH = 255

# What the id of a memory store begins with that is nobody's own.
SHARED = "shared:"


def fault_of_id(value: str) -> str | None:
    """Why `value` cannot be an id, or None when it can."""
    if not 1 <= len(value) <= MAX_ID_LENGTH:
        return f"An id has 1 to {MAX_ID_LENGTH} characters; this one has {len(value)}."
    if value in {".", ".."} or "/" in value:
        return "An id is not '.' or '..' and holds no '/': it is a segment of a URL."
    if not value.isprintable() and any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        return "An id holds no control characters and no lone surrogates."
    return None


def fault_of_user_id(value: str) -> str | None:
    """Why `value` cannot be a user id. `shared:` names the memory stores that are nobody's own."""
    if value.startswith(SHARED):
        return f"A user id does not begin with {SHARED!r}."
    return fault_of_id(value)


def fault_of_store_id(value: str) -> str | None:
    """Why `value` cannot be the id of a memory store: a user's id, or `shared:` and a name."""
    return fault_of_id(value.removeprefix(SHARED))
