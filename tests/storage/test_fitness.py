"""A database that cannot be used is told of in a sentence, before anything is migrated."""

import pytest

from app.domain.errors import DatabaseUnavailable
from app.storage.addresses import DatabaseUnusable
from app.storage.fitness import fault_of
from tests.conftest import administer, cloned, database_at

PASSWORD = "hunter2"  # noqa: S105


async def refusal(url):
    with pytest.raises((DatabaseUnusable, DatabaseUnavailable)) as refused:
        await database_at(url).migrate()
    assert PASSWORD not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"postgresql://u:{PASSWORD}@localhost:abc/x", "TURNKEEPER_DATABASE_URL cannot be read"),
        (f"postgresql://u:{PASSWORD}@[::1/x", "TURNKEEPER_DATABASE_URL cannot be read"),
        (f"postgresql://u:{PASSWORD}@localhost/x?prepared_statement_cache_size=no", "cannot be read"),
        (f"postgresql://u:{PASSWORD}@localhost:99999/x", "TURNKEEPER_DATABASE_URL cannot be read"),
        (f"postgresql://u:{PASSWORD}@localhost/x?sslmode=much", "`sslmode` parameter must be one of"),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:1/x", "cannot be reached"),
    ],
)
async def test_a_url_that_leads_nowhere_is_told(url, says):
    assert says in await refusal(url)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("/test_", "/gone_"), "does not exist"),
        (("postgres@", "nobody@"), 'role "nobody" does not exist'),
        (("&port", "&nonsense=1&port"), 'unrecognized configuration parameter "nonsense"'),
    ],
)
async def test_what_the_server_refuses_is_told_in_its_words(empty_url, change, says):
    assert says in await refusal(empty_url.replace(*change))


async def test_rights_that_are_missing_are_told(postgres, empty_url):
    await administer(postgres, "CREATE ROLE limited LOGIN")
    assert "permission denied for schema public" in await refusal(empty_url.replace("postgres@", "limited@"))


async def test_a_standby_is_told(postgres, empty_url):
    name = empty_url.split("/")[3].split("?")[0]
    await administer(postgres, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    assert "takes no writes" in await refusal(empty_url)


async def test_another_encoding_is_told(postgres):
    async with cloned(postgres, "template0", "ENCODING 'LATIN1' LOCALE 'C'") as url:
        assert "encoded in LATIN1" in await refusal(url)


def test_an_old_version_is_told():
    assert "PostgreSQL 15: use version 16" in fault_of(15, "UTF8", is_read_only=False)
    assert fault_of(16, "UTF8", is_read_only=False) is None


@pytest.mark.parametrize("added", ["sslmode=disable", "ssl=disable", "application_name=mine", "search_path=public"])
async def test_parameters_as_libpq_has_them_are_taken(database_url, added):
    db = database_at(f"{database_url}&{added}")
    assert await db.is_migrated()
    await db.close()


async def test_of_several_hosts_the_one_that_answers_is_taken(database_url):
    socket = database_url.split("host=")[1].split("&")[0]
    url = database_url.split("?")[0] + f"?host=%2Fnowhere,{socket}&port=5432,5432&target_session_attrs=primary"
    db = database_at(url)
    assert await db.is_migrated()
    await db.close()
