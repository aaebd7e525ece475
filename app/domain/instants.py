"""Instants: RFC 3339 times with an offset, in UTC, to the microsecond."""

import re
from contextlib import suppress
from datetime import UTC, datetime

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)

# PostgreSQL's driver takes these for minus infinity and infinity, which come back as something else.
INFINITE = {datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)}

EXAMPLE = "2026-07-01T00:00:00Z"


def parse_instant(value: object) -> datetime:
    """Raises ValueError, which says what to send. Digits beyond microseconds are dropped."""
    if not isinstance(value, str):
        raise ValueError(f"A time is a string in RFC 3339 with an offset, such as {EXAMPLE}.")
    if _RFC3339.fullmatch(value):
        with suppress(ValueError, OverflowError):
            instant = datetime.fromisoformat(value.upper()).astimezone(UTC)
            if instant not in INFINITE:
                return instant
    raise ValueError(f"{value!r} is not a time with an offset: send RFC 3339, such as {EXAMPLE}.")


def render_instant(instant: datetime) -> str:
    """RFC 3339 in UTC with a trailing Z; a fraction only where there is one."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
