"""A running service for each file that asks for one, on a database of the file's own."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.service.process import service


@pytest.fixture(scope="module")
def running(shared_database_url):
    with service(database_url=shared_database_url) as started:
        yield started


@pytest.fixture
def folder():
    # Directly below the temporary folder: as root, PostgreSQL is another user, whom pytest's own folder keeps out.
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)
