"""`turnkeeper serve` as a process of its own, as an operator runs it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_COMMAND = [sys.executable, "-c", "from app.cli import main; main()", "serve"]
_PATIENCE_SECONDS = 120


class Service:
    """A running service; its output is read all the time, so that it never blocks on it."""

    def __init__(self, *options: str, **settings: object) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
        environment |= {f"TURNKEEPER_{name.upper()}": str(value) for name, value in settings.items()}
        # Not in the checkout, where a .env may be.
        self.process = subprocess.Popen(
            [*_COMMAND, *(options or ("--port", "0"))],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    def url(self) -> str:
        """Where it listens, once it does."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if found := re.search(r"listens on (http://\S+)", self.log):
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"The service did not start:\n{self.log}")

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it ends."""
        code = self.process.wait(_PATIENCE_SECONDS)
        self._reader.join()
        if self.process.stderr:
            self.process.stderr.close()
        return code

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line)


@contextmanager
def service(*, may_crash: bool = False, **settings: object) -> Iterator[Service]:
    """A service until the end of the block, which must not have crashed inwardly."""
    running = Service(**settings)
    try:
        running.url()
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()
    assert "Traceback" not in running.log
    crashes = [line for line in running.lines if '"exception"' in line]
    assert may_crash or not crashes, crashes[0][-3000:]
