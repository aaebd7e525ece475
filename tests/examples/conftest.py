"""The adapters of examples/, on a running service. `./run test` installs what they adapt: the group `examples`."""

from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest
from session_log import Turnkeeper

from tests.clients.conftest import KEY, Memory, _script, memory, script, session

__all__ = ["KEY", "Memory", "_script", "memory", "script", "session"]


@pytest.fixture
def turnkeeper(memory):
    """The service as adapters use it, with their key."""
    with Turnkeeper(memory.url.removesuffix("/v1"), KEY) as made:
        yield made


@pytest.fixture
def lossy(memory):
    """A network that delivers an append to the service and loses the answer, or calls it busy, `losses` times."""
    server = LossyNetwork(memory.url.removesuffix("/v1"))
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    with Turnkeeper(f"http://127.0.0.1:{server.server_port}", KEY) as server.turnkeeper:
        yield server
    server.shutdown()
    thread.join()
    server.server_close()
    assert server.lost


class LossyNetwork(ThreadingHTTPServer):
    losses = 1
    busy = False
    turnkeeper: Turnkeeper

    def __init__(self, service: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.service = service
        self.lost: Counter[bytes] = Counter()

    def loses(self, path: str, body: bytes) -> bool:
        if not path.endswith("/events") or self.lost[body] == self.losses:
            return False
        self.lost[body] += 1
        return True


class _Handler(BaseHTTPRequestHandler):
    server: LossyNetwork

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kept = {
            name: self.headers[name] for name in ("Authorization", "Content-Type", "Accept") if self.headers[name]
        }
        answer = httpx.request(self.command, self.server.service + self.path, content=body, headers=kept)
        if self.command == "POST" and self.server.loses(self.path, body):
            if self.server.busy:
                self.send_response(503)
                self.send_header("Retry-After", "0")
                self.end_headers()
            return  # HTTP/1.0: the connection is closed, otherwise without a word.
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass
