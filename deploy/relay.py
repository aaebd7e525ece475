"""A TCP port that leads to a Unix socket, for a client that has no way to the socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def relayed(path: Path) -> Iterator[int]:
    """The port, as long as the block lasts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, path), daemon=True).start()
        yield server.getsockname()[1]


def _accept(server: socket.socket, path: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            target = socket.socket(socket.AF_UNIX)
            target.connect(str(path))
            for pair in ((client, target), (target, client)):
                threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
