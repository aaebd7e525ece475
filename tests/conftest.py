"""Real parts for the tests: one PostgreSQL, a migrated template, and a clone of it for each test that asks."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import asyncpg
import httpx
import pytest
from hypothesis import HealthCheck, settings

from app.config import Settings
from app.main import create_app
from app.storage.database import Database
from app.storage.embedded import EmbeddedPostgres

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("default")

_TEMPLATE = "template_turnkeeper"
_numbers = count(1)
_SLOW_FOLDERS = {"service", "clients", "examples"}


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


# Files that take a minute or so come first: two workers then end at about the same time.
_SLOW = ("service", "cli", "clients", "examples")


def pytest_collection_modifyitems(config, items):
    if config.getoption("numprocesses", None):
        items.sort(key=lambda item: item.path.parent.name not in _SLOW)
    # Files are handed out in this order: the long ones first, so that no worker waits for another's at the end.
    items.sort(key=lambda item: item.path.parent.name not in _SLOW_FOLDERS)
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="takes minutes; run with --long")
        for item in items:
            if "long" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    # The tests kill processes, not machines: what was written to the kernel survives that.
    fast = {"fsync": "off", "max_connections": "200", "autovacuum": "off"}
    # Not below pytest's own folder, which is private: as root, the server is another user and keeps out of it.
    folder = Path(tempfile.mkdtemp())
    try:
        with EmbeddedPostgres.start(folder, parameters=fast) as server:
            yield server
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
async def template(postgres) -> str:
    postgres.ensure_database(_TEMPLATE)
    db = database_at(postgres.database_url(_TEMPLATE))
    await db.migrate()
    await db.close()
    return _TEMPLATE


@pytest.fixture
async def database_url(postgres, template) -> AsyncIterator[str]:
    """A fresh, migrated database."""
    async with cloned(postgres, template) as url:
        yield url


@pytest.fixture
async def empty_url(postgres) -> AsyncIterator[str]:
    """A fresh database without tables."""
    async with cloned(postgres, "template0") as url:
        yield url


@pytest.fixture(scope="module")
async def shared_database_url(postgres, template) -> AsyncIterator[str]:
    """One database for all tests of a file: for those that use users and sessions of their own."""
    async with cloned(postgres, template) as url:
        yield url


@pytest.fixture
async def db(database_url) -> AsyncIterator[Database]:
    database = database_at(database_url)
    yield database
    await database.close()


@pytest.fixture(scope="module")
async def shared_db(shared_database_url) -> AsyncIterator[Database]:
    database = database_at(shared_database_url)
    yield database
    await database.close()


@pytest.fixture
async def client(database_url) -> AsyncIterator[httpx.AsyncClient]:
    """The service in this process, on a fresh database, without keys."""
    async with serving(database_url) as http:
        yield http


@pytest.fixture(scope="module")
async def shared_client(shared_database_url) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(shared_database_url) as http:
        yield http


def database_at(url: str) -> Database:
    return Database(url, pool_size=20, pool_timeout=20, statement_timeout_ms=20_000)


@asynccontextmanager
async def serving(url: str, **changed) -> AsyncIterator[httpx.AsyncClient]:
    # The environment and .env of whoever runs the tests are no business of theirs.
    app = create_app(Settings(_env_file=None, **{"pool_size": 20, **changed}), database_url=url)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http,
    ):
        yield http


@asynccontextmanager
async def cloned(postgres: EmbeddedPostgres, template: str, options: str = "") -> AsyncIterator[str]:
    name = f"test_{next(_numbers)}"
    await administer(postgres, f'CREATE DATABASE "{name}" TEMPLATE "{template}" {options}')
    yield postgres.database_url(name)
    await administer(postgres, f'DROP DATABASE "{name}" WITH (FORCE)')


async def administer(postgres: EmbeddedPostgres, statement: str) -> None:
    connection = await asyncpg.connect(host=str(postgres.socket_dir), port=5432, user="postgres", database="postgres")
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
