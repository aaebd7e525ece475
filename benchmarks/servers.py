"""The processes that are measured, each with its one worker."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

TURNKEEPER = str(Path(sys.executable).with_name("turnkeeper"))


class Server(NamedTuple):
    port: int
    pid: int
    seconds_to_start: float


@contextmanager
def service(folder: Path, **settings: str) -> Iterator[Server]:
    """Turnkeeper; settings without their prefix."""
    names = {f"TURNKEEPER_{name.upper()}": value for name, value in settings.items()}
    with _running([TURNKEEPER, "serve"], folder, names, port="TURNKEEPER_PORT", ready="/readyz") as server:
        yield server


@contextmanager
def floor(folder: Path, database: str) -> Iterator[Server]:
    options = ["--factory", "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    command = [sys.executable, "-m", "uvicorn", "benchmarks.floor:create_app", *options]
    with _running(
        command, folder, {"FLOOR_DATABASE": database}, port="UVICORN_PORT", ready="/openapi.json"
    ) as server:
        yield server


@contextmanager
def upstream(folder: Path) -> Iterator[Server]:
    """An LLM that answers at once."""
    options = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    command = [sys.executable, "-m", "uvicorn", "benchmarks.upstream:app", *options]
    with _running(command, folder, {}, port="UVICORN_PORT", ready="/") as server:
        yield server


@contextmanager
def _running(command: list[str], folder: Path, names: dict[str, str], *, port: str, ready: str) -> Iterator[Server]:
    free = _free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    started = time.perf_counter()
    with (folder / "service.log").open("ab") as log:
        environment = {**kept, **names, port: str(free), "PYTHONPATH": str(Path.cwd())}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
    try:
        _wait(process, f"http://127.0.0.1:{free}{ready}")
        yield Server(free, process.pid, time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    while process.poll() is None:
        with suppress(OSError), urlopen(url) as answer:  # noqa: S310
            if answer.status == 200:
                return
        time.sleep(0.01)
    raise RuntimeError("The server did not start.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
