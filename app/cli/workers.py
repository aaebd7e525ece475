"""Several processes on one socket: started, started again when they die, and stopped together within bounds."""

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess

import structlog

from app import metrics
from app.cli.server import LAST_SECONDS, Address, Server, server_config
from app.config import Settings
from app.main import create_app
from app.telemetry import configure_logs

log = structlog.get_logger()

# Beyond the grace period: for what is stored at its end, compactions in the background, and a busy machine.
_PATIENCE_SECONDS = LAST_SECONDS + 15
# Before another is started instead of one that died.
_PAUSE_SECONDS = 1.0

# Forked, a worker would share the connections and the locks that its parent has.
_SPAWN = multiprocessing.get_context("spawn")


def serve_by_workers(settings: Settings, database_url: str, announce: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT. The database is migrated already."""
    listener = server_config("", settings).bind_socket()
    with tempfile.TemporaryDirectory(prefix="turnkeeper-") as folder:
        os.environ[metrics.SHARED_FOLDER] = folder  # The workers inherit it.

        def start(ready: connection.Connection) -> SpawnProcess:
            process = _SPAWN.Process(target=_work, args=(settings, database_url, listener, ready))
            process.start()
            return process

        patience = settings.shutdown_grace_seconds + _PATIENCE_SECONDS
        supervisor = _Supervisor(start, settings.workers, lambda: announce(listener.getsockname()))
        try:
            supervisor.run()
        finally:
            listener.close()
            supervisor.stop(patience)


def _work(settings: Settings, database_url: str, listener: socket.socket, ready: connection.Connection) -> None:
    """A worker's whole life."""
    configure_logs(tell_process=True)
    # What holds before the server has begun and once it has ended, when there is nothing to lose: Ctrl-C reaches
    # every process of a terminal, and the parent asks once more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    app = create_app(settings, database_url=database_url)
    Server(app, settings, lambda _: ready.send_bytes(b"ready")).run([listener])


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    ready: connection.Connection
    is_ready: bool = False

    def greet(self) -> None:
        """Note what it says; what dies closes its end without a word."""
        with suppress(EOFError):
            self.is_ready = bool(self.ready.recv_bytes())


class _Supervisor:
    """`started` is called once: when all workers serve for the first time."""

    def __init__(
        self, start: Callable[[connection.Connection], SpawnProcess], count: int, started: Callable[[], None]
    ) -> None:
        self._start_process = start
        self._count = count
        self._started: Callable[[], None] | None = started
        self._workers: list[_Worker] = []
        self._stopping = False
        self._woken, self._waker = connection.Pipe(duplex=False)

    def run(self) -> None:
        """Until a signal comes; exits when the workers cannot even start."""
        for sent in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sent, self._end)
        while not self._stopping:
            while len(self._workers) < self._count and not self._stopping:
                self._start()
            self._wait()

    def stop(self, patience: float) -> None:
        """End all workers: those that are not done in time are killed."""
        deadline = time.monotonic() + patience
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                log.error("worker_killed", pid=worker.process.pid, reason="it did not stop in time")
                worker.process.kill()
                worker.process.join()

    def _end(self, *_: object) -> None:
        self._stopping = True
        self._waker.send_bytes(b"end")

    def _start(self) -> None:
        ready, tell = connection.Pipe(duplex=False)
        self._workers.append(_Worker(self._start_process(tell), ready))
        tell.close()

    def _wait(self) -> None:
        coming = [worker.ready for worker in self._workers if not worker.is_ready]
        sentinels = [worker.process.sentinel for worker in self._workers]
        happened = connection.wait([self._woken, *coming, *sentinels])
        for worker in list(self._workers):
            if worker.process.sentinel in happened:
                self._replace(worker)
            elif worker.ready in happened:
                worker.greet()
        if self._started is not None and all(worker.is_ready for worker in self._workers) and not self._stopping:
            self._started()
            self._started = None

    def _replace(self, worker: _Worker) -> None:
        if self._stopping:
            return
        worker.process.join()
        self._workers.remove(worker)
        worker.ready.close()
        metrics.forget_process(worker.process.pid or 0)
        log.error("worker_died", pid=worker.process.pid, exit_code=worker.process.exitcode)
        if self._started is not None:
            sys.exit("turnkeeper: the workers do not start; the log says why.")
        self._woken.poll(_PAUSE_SECONDS)
