"""The LLM of the demo: a script behind OpenAI's chat completions API, on a socket like a real one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SUMMARY = (
    "Mara is planning the opening of Kruste & Krume on 12 June: 40 guests, rye rolls with herb butter, and a "
    "raffle. Her sister Ilse plays the accordion."
)
_ANSWERS = {
    "opening": "Lovely! How many people do you expect, and what would you like to offer?",
    "guests": "For 40 people: 80 rye rolls with herb butter, and a raffle at noon.",
    "accordion": "Then I put Ilse down for the music, at eleven.",
    "deposit": "Noted: the deposit of 75 euros for the tables is paid, receipt 2231.",
    "weather": "Have the tent ready all the same.",
}


@contextmanager
def scripted_llm() -> Iterator[str]:
    """Its URL, as an upstream's."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choice = {"index": 0, "message": _message(request), "finish_reason": "stop"}
        body = json.dumps({"id": "scripted", "object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _message(request: dict[str, Any]) -> dict[str, Any]:
    last = request["messages"][-1]
    if last["role"] == "tool":
        found = json.loads(last["content"])[0]["text"]
        return {"role": "assistant", "content": f"You said: “{found}”"}
    if "receipt" in last["content"] and request.get("tools"):
        arguments = json.dumps({"innerThought": "That is no longer in my view.", "query": "receipt"})
        function = {"name": "conversation_search", "arguments": arguments}
        call = {"id": "call_4", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if request["messages"][0]["role"] == "system":
        return {"role": "assistant", "content": _SUMMARY}
    known = [answer for word, answer in _ANSWERS.items() if word in last["content"].lower()]
    return {"role": "assistant", "content": known[0] if known else "I am only a script."}
