"""Ids in headers: percent-encoded, as HTTP has no other way for what is not ASCII."""

from urllib.parse import unquote_to_bytes

from app.domain.errors import Fault, InvalidInput

SESSION_ID = "X-Session-Id"
USER_ID = "X-User-Id"


def decoded(name: str, value: str | None) -> str | None:
    """Raises InvalidInput."""
    if value is None:
        return None
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError:
        fault = Fault(("header", name), "An id in a header is percent-encoded UTF-8, such as caf%C3%A9.")
        raise InvalidInput(fault) from None
