"""An answer to a body that is not read: what still comes is thrown away for a while before the connection is closed.

Closed at once, with bytes on their way, it would be reset: the client would get an error of the network, no answer.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive, Send

# As long as a client that does not read while it writes may take to have written.
_SECONDS = 5.0


def lingering(receive: Receive, send: Send, is_wanted: Callable[[], bool] = lambda: True) -> Send:
    """Sends the same, but lets the client finish before the end."""

    async def sending(message: Message) -> None:
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not is_last or not is_wanted():
            await send(message)
            return
        await send({**message, "more_body": True})
        await _discard(receive)
        await send({"type": "http.response.body", "body": b""})

    return sending


async def _discard(receive: Receive) -> None:
    try:
        async with asyncio.timeout(_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        pass
