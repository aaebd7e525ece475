"""The LLM of the demo: a script behind OpenAI's chat completions API, on a socket like a real one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from app.cli.demo_story import CORRECTION, FACT, NEEDS_THE_FACT

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
    if steps := _script(_question(request)):
        taken = sum(message["role"] == "tool" for message in _since_question(request))
        if taken < len(steps):
            return _call(f"call_{len(request['messages'])}", *steps[taken])
    if last["role"] == "tool":
        return _answer(_AFTER_TOOLS.get(_question(request)) or f"You said: “{_found(last)}”")
    if request["messages"][0]["role"] == "system" and not request.get("tools"):
        return _answer(_SUMMARY)
    known = [answer for word, answer in _ANSWERS.items() if word in last["content"].lower()]
    return _answer(known[0] if known else "I am only a script.")


def _script(question: str) -> list[tuple[str, dict[str, Any]]]:
    """The tools that are called on the way to an answer."""
    if "receipt?" in question:
        return [("conversation_search", {"innerThought": "That is no longer in my view.", "query": "receipt"})]
    return _MEMORY_STEPS.get(question, [])


_MEMORY_STEPS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    FACT: [
        ("MemoryCreate", {"path": "diet.md", "fileText": "---\ntype: user\n---\nMara eats no nuts.\n"}),
        ("MemoryCreate", {"path": "MEMORY.md", "fileText": "- [diet](diet.md): what she eats\n"}),
    ],
    NEEDS_THE_FACT: [("MemoryView", {"path": "MEMORY.md"}), ("MemoryView", {"path": "diet.md"})],
    CORRECTION: [("MemoryStrReplace", {"path": "diet.md", "oldStr": "no nuts", "newStr": "no hazelnuts"})],
}
_AFTER_TOOLS = {
    FACT: "I will remember that.",
    NEEDS_THE_FACT: "An apple cake: there are no nuts in it.",
    CORRECTION: "Corrected: only hazelnuts.",
}


def _question(request: dict[str, Any]) -> str:
    return str(next(one["content"] for one in reversed(request["messages"]) if one["role"] == "user"))


def _since_question(request: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = request["messages"]
    last = max(place for place, one in enumerate(messages) if one["role"] == "user")
    return messages[last:]


def _found(result: dict[str, Any]) -> str:
    return str(json.loads(result["content"])[0]["text"])


def _answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
