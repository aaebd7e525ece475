"""The scripted Messages API of Anthropic: a real HTTP server whose model makes the calls that it is told to make."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MessagesApi(ThreadingHTTPServer):
    """Anthropic's API: answers with the calls that it was told to make, one message each, and then with a text."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.calls: list[dict] = []
        self.requests: list[dict] = []

    def answer(self, request: dict) -> dict:
        self.requests.append(request)
        done = len(self.requests) > len(self.calls)
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [{"type": "text", "text": "Noted."} if done else self._call(len(self.requests))],
            "stop_reason": "end_turn" if done else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 7},
        }

    def results(self) -> list[dict]:
        """What the last request says that the calls came to."""
        said = [message["content"] for message in self.requests[-1]["messages"] if message["role"] == "user"]
        return [block for content in said[1:] for block in content]

    def _call(self, number: int) -> dict:
        return {"type": "tool_use", "id": f"toolu_{number}", "name": "memory", "input": self.calls[number - 1]}


class _Handler(BaseHTTPRequestHandler):
    server: MessagesApi

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.path.partition("?")[0] == "/v1/messages"
        body = json.dumps(self.server.answer(request) if known else {}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass
