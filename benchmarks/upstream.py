"""An LLM that answers at once: what a chat takes beyond it is the service's own time."""

import json
import time
from typing import Any

WHOLE = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Noted."}, "finish_reason": "stop"}],
    }
).encode()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The first chunk of a stream says when it was sent, by the clock that all processes of the machine share."""
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    body += message["body"]
    if b'"stream"' not in body:
        await _start(send, "application/json", len(WHOLE))
        await send({"type": "http.response.body", "body": WHOLE})
        return
    await _start(send, "text/event-stream")
    for text, reason in ((f"sent {time.monotonic_ns()} ", None), ("Noted.", None), ("", "stop")):
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": reason}
        chunk = json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})
        await send({"type": "http.response.body", "body": f"data: {chunk}\n\n".encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _start(send: Any, kind: str, length: int | None = None) -> None:
    headers = [(b"content-type", kind.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
