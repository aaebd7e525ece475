"""Server-sent events, read as they come (WHATWG HTML, section 9.2): the bytes of each, and its data."""

import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple

DONE = b"[DONE]"

# More than any completion takes in one piece.
MAX_EVENT_BYTES = 64 * 1024 * 1024

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class ServerSentEvent(NamedTuple):
    """`raw` is the event as it came, with the empty line that ends it; `data` is None for comments."""

    raw: bytes
    data: bytes | None


class EventTooLarge(ValueError):
    pass


async def split_events(pieces: AsyncIterable[bytes]) -> AsyncIterator[ServerSentEvent]:
    """The events of a stream that comes in pieces of any size. Raises EventTooLarge."""
    buffer = bytearray()
    searched = 0
    async for piece in pieces:
        buffer += piece
        while end := _END.search(buffer, searched):
            yield _event(bytes(buffer[: end.end()]))
            del buffer[: end.end()]
            searched = 0
        searched = max(0, len(buffer) - 3)
        if len(buffer) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"An event has more than {MAX_EVENT_BYTES} bytes.")
    if buffer.strip():
        yield _event(bytes(buffer) + b"\n\n")


def encoded(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _event(raw: bytes) -> ServerSentEvent:
    lines = [line[5:].removeprefix(b" ") for line in raw.splitlines() if line.startswith(b"data:")]
    return ServerSentEvent(raw, b"\n".join(lines) if lines else None)
